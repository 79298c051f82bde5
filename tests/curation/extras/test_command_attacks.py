"""What a checker may try against the machine that it runs on, as root and as an ordinary user."""

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from curation.extras.checker import command

USER = 65534
SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin")
READ = "import errno, json, os, socket, stat, sys, time\nrows = [json.loads(line) for line in sys.stdin]\n"
DRIVER = """
import json, sys, tempfile
sys.path[:0] = json.loads(sys.argv[1])
tempfile.tempdir = sys.argv[2]
from curation.extras.checker import command
command._LAUNCH = command.Path(sys.argv[3])
check = command.CommandCheck(command=["python3", sys.argv[4]], seconds=60)
print(json.dumps([verdict if isinstance(verdict, bool) else str(verdict) for verdict in check(["1"], ["1"], [{}])]))
"""


def can_isolate(user: int) -> bool:
    """Whether this machine lets a user make what the sandbox is of."""
    program = f"mount -t overlay none /mnt -o ro,lowerdir=/usr:{tempfile.gettempdir()}"
    how = {} if user == os.getuid() else {"user": user, "group": user, "extra_groups": []}
    made = subprocess.run(["unshare", "-Urmn", "sh", "-c", program], capture_output=True, **how)
    return made.returncode == 0


@pytest.fixture(params=[0, USER], ids=["root", "user"])
def user(request: pytest.FixtureRequest) -> int:
    wanted: int = request.param
    if os.getuid() not in (0, wanted) and wanted == 0:
        pytest.skip("only root can try it as root")
    if os.getuid() not in (0, wanted):
        wanted = os.getuid()
    if not can_isolate(wanted):
        pytest.skip("this machine grants this user no namespaces with overlays")
    return wanted


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that each user can write, outside pytest's own, which are root's alone."""
    path = Path(tempfile.mkdtemp(prefix="attack-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def attack(home: Path, user: int, source: str) -> object:
    """Run a checker as a user; return its verdict, or what it was ended for."""
    script = home / "check.py"
    script.write_text(READ + textwrap.dedent(source) + "\nprint('true')\n")
    launcher = Path(shutil.copy(command._LAUNCH, home / "launch.py"))
    (home / "temporary").mkdir(exist_ok=True)
    (home / "temporary").chmod(0o777)
    how = {} if user == os.getuid() else {"user": user, "group": user, "extra_groups": []}
    python, paths = sys.executable, [entry for entry in sys.path if entry]
    if how:
        if SYSTEM_PYTHON is None or sys.version_info[:2] != _version(SYSTEM_PYTHON):
            pytest.skip("there is no Python of this version that another user can run")
        python = SYSTEM_PYTHON
    arguments = [json.dumps([str(Path(command.__file__).parents[3]), *paths]), home / "temporary", launcher, script]
    done = subprocess.run(
        [python, "-c", DRIVER, *map(str, arguments)], capture_output=True, text=True, timeout=120, cwd="/", **how
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)[0]


def _version(python: str) -> tuple[int, ...]:
    code = "import sys; print(*sys.version_info[:2])"
    return tuple(map(int, subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.split()))


def test_no_socket_of_the_machine_answers(home: Path, user: int) -> None:
    abstract = f"\0attack-{os.getpid()}"
    with (
        socket.socket(socket.AF_UNIX) as beside,
        socket.socket(socket.AF_UNIX) as elsewhere,
        socket.socket(socket.AF_UNIX) as nameless,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
        tempfile.TemporaryDirectory() as other,
    ):
        paths = [f"{home}/stream", f"{other}/stream", abstract]
        for server, path in zip((beside, elsewhere, nameless), paths, strict=True):
            server.bind(path)
            server.listen()
        datagrams.bind(f"{home}/datagrams")
        for path in (other, paths[0], paths[1], f"{home}/datagrams"):
            os.chmod(path, 0o777)
        source = f"""
            for path in {paths!r}:
                with socket.socket(socket.AF_UNIX) as asking:
                    try:
                        asking.connect(path)
                    except OSError:
                        continue
                    sys.exit("connected to " + path)
            one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                one.sendto(b"x", {f"{home}/datagrams"!r})
            except OSError:
                pass
            else:
                sys.exit("sent")
        """
        assert attack(home, user, source) is True


def test_no_pipe_of_the_machine_is_reached(home: Path, user: int) -> None:
    with tempfile.TemporaryDirectory() as other:
        os.chmod(other, 0o777)
        paths = [f"{home}/pipe", f"{other}/pipe"]
        held = []
        for path in paths:
            os.mkfifo(path)
            os.chmod(path, 0o666)
            held.append(os.open(path, os.O_RDWR | os.O_NONBLOCK))  # somebody reads and writes there
            os.write(held[-1], b"secret")
        source = f"""
            for path in {paths!r}:
                for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY):
                    try:
                        pipe = os.open(path, flags | os.O_NONBLOCK)
                    except OSError:
                        continue
                    try:
                        os.write(pipe, b"attack") if flags else None
                        read = b"" if flags == os.O_WRONLY else os.read(pipe, 100)
                    except OSError:
                        read = b""
                    if b"secret" in read:
                        sys.exit("read " + path)
                    os.close(pipe)
        """
        assert attack(home, user, source) is True
        assert [os.read(pipe, 100) for pipe in held] == [b"secret"] * 2
        for pipe in held:
            os.close(pipe)


@pytest.mark.long
def test_devices_are_the_harmless_ones(home: Path, user: int) -> None:
    if os.getuid() == 0:
        try:
            os.mknod(home / "memory", stat.S_IFCHR | 0o666, os.makedev(1, 1))
            os.mknod(home / "disk", stat.S_IFBLK | 0o666, os.makedev(7, 0))
        except PermissionError:
            pytest.skip("root may make no devices here")
    source = """
        found = set()
        for folder, _, names in os.walk("/", followlinks=False):
            for name in names if not folder.startswith("/proc") else ():
                path = os.path.join(folder, name)
                if stat.S_IFMT(os.lstat(path).st_mode) in (stat.S_IFCHR, stat.S_IFBLK):
                    try:
                        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
                    except OSError:
                        continue
                    found.add(path)
        assert found == {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}, found
        assert sorted(os.listdir("/dev")) == ["fd", "full", "null", "random", "urandom", "zero"]
        assert os.listdir("/run") == []
        for kind in (stat.S_IFCHR, stat.S_IFBLK):
            try:
                os.mknod("own", kind | 0o666, os.makedev(1, 1))
            except OSError:
                continue
            sys.exit("made a device")
    """
    assert attack(home, user, source) is True


@pytest.mark.long
def test_it_is_not_root_and_gets_no_rights_back(home: Path, user: int) -> None:
    source = """
        import ctypes
        assert 0 not in (os.getuid(), os.geteuid(), os.getgid(), os.getegid())
        assert "CapEff:\\t0000000000000000" in open("/proc/self/status").read()
        library = ctypes.CDLL(None, use_errno=True)
        assert library.unshare(0x10000000) and library.unshare(0x00020000), "made a namespace"
        assert library.mount(b"none", os.getcwd().encode(), b"tmpfs", 0, None), "mounted"
        for path in ("/etc/attack", "/usr/attack", "/tmp/attack", "/run/attack", "/attack", "/dev/attack"):
            try:
                open(path, "w")
            except OSError:
                continue
            sys.exit("wrote " + path)
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper"):
            try:
                os.close(os.open(path, os.O_WRONLY))
            except OSError:
                continue
            sys.exit("opened " + path)
    """
    assert attack(home, user, source) is True


@pytest.mark.long
def test_what_it_writes_in_all_is_limited(home: Path, user: int) -> None:
    source = f"""
        written, files = 0, 0
        try:
            while True:
                with open(f"file-{{files}}", "wb", buffering=0) as file:
                    files += 1
                    for _ in range(8):
                        written += file.write(bytes(1 << 20))
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
        assert 0.8 * {command.TOTAL_BYTES} <= written <= {command.TOTAL_BYTES}, written
        for name in os.listdir():
            os.remove(name)
        try:
            for number in range(20_000):
                open(f"empty-{{number}}", "w").close()
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
        else:
            sys.exit("made files without end")
    """
    assert attack(home, user, source) is True


def test_files_that_the_command_does_not_name_are_not_there(home: Path, user: int) -> None:
    with tempfile.TemporaryDirectory() as other:
        os.chmod(other, 0o755)
        (Path(other) / "secret").write_text("secret")
        (home / "data.json").write_text("[1]")
        source = f"""
            assert json.load(open({f"{home}/data.json"!r})) == [1], "its own folder is shown"
            assert not os.path.exists({f"{other}/secret"!r})
            assert not os.path.exists("/var/log") and not os.path.exists("/sys")
        """
        assert attack(home, user, source) is True
