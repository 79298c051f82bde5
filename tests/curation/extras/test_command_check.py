"""The check by a command: verdicts, and checkers that hang, crash, lie, fork, print without end or write about."""

import logging
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from curation.errors import ConfigError, RowError
from curation.extras.checker import command
from curation.extras.checker.command import CommandCheck

Checker = Callable[..., CommandCheck]
READ = "import json, os, sys, time\nrows = [json.loads(line) for line in sys.stdin]\n"


@pytest.fixture
def checker(tmp_path: Path) -> Checker:
    def make(source: str, **options: Any) -> CommandCheck:
        path = tmp_path / "check.py"
        path.write_text(READ + textwrap.dedent(source))
        return CommandCheck(command=["python", str(path)], **options)

    return make


def asked(check: CommandCheck, completions: list[str]) -> list[bool | RowError]:
    return check(completions, ["1"] * len(completions), [{"n": place} for place in range(len(completions))])


def has_namespaces() -> bool:
    return sys.platform == "linux" and subprocess.run(["unshare", "-rn", "true"], check=False).returncode == 0


isolated = pytest.mark.skipif(not has_namespaces(), reason="this system lets nobody make namespaces")


def test_a_command_is_given_rows_and_prints_verdicts(checker: Checker, tmp_path: Path) -> None:
    source = f"""
        open({str(tmp_path / "seen")!r}, "a") if False else None
        assert [sorted(row) for row in rows] == [["completion", "id", "reference", "row"]] * len(rows)
        assert sorted(os.environ)[0] == "LC_CTYPE" or list(os.environ) == ["PATH"], os.environ
        assert os.listdir() == []
        for row in rows:
            right = row["completion"] == str(row["row"]["n"])
            print(json.dumps(right if row["id"] % 2 else {{"right": right, "id": row["id"], "why": "because"}}))
    """
    assert asked(checker(source, batch_rows=3), ["0", "1", "5", "3"]) == [True, True, False, True]
    assert asked(checker(source), []) == []


def test_of_a_folder_for_temporary_files_only_the_named_one_is_shown() -> None:
    made = tempfile.NamedTemporaryFile
    with made("w", suffix=".py", dir="/tmp") as file, made(dir="/tmp") as other:
        file.write(f"import os\nprint('false' if os.path.exists({other.name!r}) else 'true')")
        file.flush()
        assert asked(CommandCheck(command=["python", file.name]), ["x"]) == [True]


def test_equal_rows_are_checked_once(checker: Checker) -> None:
    check = checker("assert len(rows) == 1\nprint('true')")
    assert check(["x"] * 5, ["1"] * 5, [{"n": 0}] * 5) == [True] * 5


@pytest.mark.long
def test_only_rows_at_fault_are_error_rows(checker: Checker) -> None:
    source = """
        for row in rows:
            if row["completion"] == "crash":
                raise SystemExit("boom")
            if row["completion"] == "hang":
                time.sleep(100)
            if row["completion"] == "twice":
                print("true")
            print("maybe" if row["completion"] == "maybe" else "true")
    """
    completions = ["a", "crash", "b", "hang", "c", "twice", "maybe", "d"]
    found = dict(zip(completions, asked(checker(source, seconds=5), completions), strict=True))
    assert all(found.pop(name) is True for name in "abcd")
    assert all(isinstance(verdict, RowError) and verdict.kind == "check_failed" for verdict in found.values())
    words = {
        "crash": r"exit code 1 (boom)",
        "hang": "longer than 5 s",
        "twice": "2 lines for 1 rows",
        "maybe": "'maybe'",
    }
    assert not [name for name, expected in words.items() if expected not in str(found[name])]


@pytest.mark.long
def test_a_command_that_always_fails_ends_the_stage(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"check.command: .*fails on each of 20 rows.*exit code 3 \(broken\)"):
        asked(checker("sys.stderr.write('broken'); sys.exit(3)"), list(map(str, range(50))))
    monkeypatch.setattr(command, "MOST_FAILED", 5)  # each row is a start of the program
    with pytest.raises(ConfigError, match="fails on each of 5 rows"):
        asked(checker("sys.exit(3)", batch_rows=1), list(map(str, range(5))))
    some = checker("sys.exit(3) if rows[0]['completion'] != '3' else print('true')", batch_rows=1)
    assert asked(some, list(map(str, range(8))))[3] is True
    with pytest.raises(ConfigError, match="cannot be started"):
        asked(CommandCheck(command=["no-such-program"]), ["1"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("while True: pass", "longer than 5 s"),
        ("while True: print('x' * 1_000)", "printed more than|ended with|longer than"),
        ("held = bytearray(4 * 2**30)", "MemoryError"),
        ("open('big', 'wb').write(bytes(2**28))", "ended with"),
        ("print('false'); os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("print('true' * 1_000)", "not a verdict"),
        ("print('{\"right\": 1}')", "not a verdict"),
        ('print(\'{"right": true, "id": 7}\')', "not a verdict"),
        ("print('[' * 100_000)", "not a verdict"),
        ("sys.stdout.buffer.write(bytes(range(256)))", "lines for 1 rows"),
    ],
)
def test_hostile_checkers_are_named(checker: Checker, source: str, words: str) -> None:
    start = time.monotonic()
    (verdict,) = asked(checker(source, seconds=5), ["1"])
    assert isinstance(verdict, RowError) and verdict.kind == "check_failed"
    assert any(word in str(verdict) for word in words.split("|")), verdict
    assert time.monotonic() - start < 30


@isolated
def test_a_fork_bomb_ends_and_nothing_of_it_is_left(checker: Checker, tmp_path: Path) -> None:
    source = "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    (verdict,) = asked(checker(source, seconds=20), ["1"])
    assert "more than 32 processes" in str(verdict) or "longer than" in str(verdict)
    assert not _running(str(tmp_path))


@isolated
def test_a_daemon_ends_with_its_checker(checker: Checker, tmp_path: Path) -> None:
    source = f"""
        import subprocess
        subprocess.Popen(["sleep", "1000"], start_new_session=True, env={{"MARK": {str(tmp_path)!r}}}, stdin=-3)
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)
        print("true")
        sys.stdout.flush()
        os._exit(0)
    """
    assert asked(checker(source), ["1"]) == [True]
    assert not _running(str(tmp_path))


def _running(mark: str) -> list[str]:
    """The processes whose command line or environment has a mark, once the kernel has had time to end hundreds."""
    deadline = time.monotonic() + 60
    while True:
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                text = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            if mark.encode() in text and int(pid) != os.getpid():
                found.append(pid)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


@isolated
def test_there_is_no_network_no_other_process_and_no_writing_outside(checker: Checker, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    source = f"""
        import socket
        open("mine", "w").write("its own folder")
        for path in ({str(outside)!r}, "/tmp/outside-{os.getpid()}", "/dev/shm/outside-{os.getpid()}"):
            try:
                open(path, "w")
            except OSError:
                continue
            sys.exit(path)
        try:
            socket.create_connection(("127.0.0.1", int(rows[0]["completion"])), 5)
        except OSError:
            pass
        else:
            sys.exit("network")
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        assert len(pids) <= 3, pids
        print("true")
    """
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        assert asked(checker(source), [str(server.getsockname()[1])]) == [True]
    assert not outside.exists()


def test_secrets_of_the_environment_are_not_passed_on(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret")
    assert asked(checker("print(json.dumps('MY_TOKEN' not in os.environ))"), ["1"]) == [True]


def test_without_a_sandbox_it_is_said_once_what_the_command_can_do(
    checker: Checker, caplog: pytest.LogCaptureFixture
) -> None:
    command._say_unlimited.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert asked(checker("print('true')", sandbox="none"), ["1"]) == [True]
        assert asked(checker("print('false')", sandbox="none"), ["1"]) == [False]
    assert len(caplog.records) == 1 and "it can use the network, and it can write wherever its user can" in caplog.text
    with pytest.raises(ConfigError, match=r"sandbox: 'off': Input should be 'full' or 'none'"):
        checker("print('true')", sandbox="off")


def test_the_digest_follows_the_files_content(checker: Checker, tmp_path: Path) -> None:
    first, again = checker("print(1)").digest, checker("print(1)").digest
    assert first == again != checker("print(2)").digest
    (tmp_path / "check.py").unlink()
    with pytest.raises(ConfigError, match="is not there"):
        CommandCheck(command=["python", str(tmp_path / "check.py")]).digest  # noqa: B018
    with pytest.raises(ConfigError, match="'no-such-program' is not a program"):
        CommandCheck(command=["no-such-program"]).digest  # noqa: B018


def test_temporary_folders_are_removed(checker: Checker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    assert asked(checker("open('x', 'w')\nprint('true')"), ["1"]) == [True]
    assert not list((tmp_path / "t").iterdir())


@pytest.fixture
def without_namespaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that grants no namespace."""
    source, begins = command._LAUNCH.read_text(), "def isolate() -> dict[str, bool]:\n"
    assert source.count(begins) == 1
    nothing = '    return {"network": False, "processes": False}\n\n\ndef granted() -> dict[str, bool]:\n'
    launcher = tmp_path / "launch.py"
    launcher.write_text(source.replace(begins, begins + nothing))
    monkeypatch.setattr(command, "_LAUNCH", launcher)
    command._say_unlimited.cache_clear()


def test_without_namespaces_a_command_is_refused(checker: Checker, without_namespaces: None, tmp_path: Path) -> None:
    source = f"open({str(tmp_path / 'ran')!r}, 'w')\nprint('true')"
    with pytest.raises(ConfigError, match=r"allows no sandbox, without which it can use the network.* sandbox: none"):
        asked(checker(source), ["1"])
    assert not (tmp_path / "ran").exists()
    command.require_sandbox.cache_clear()
    with pytest.raises(ConfigError, match="allows no sandbox"):  # and a run is, before it begins
        command.require_sandbox()


@pytest.mark.long
def test_without_a_sandbox_the_other_limits_hold(checker: Checker, tmp_path: Path) -> None:
    for source, words in (
        ("while True: pass", "longer than 5 s"),
        ("held = bytearray(4 * 2**30)", "MemoryError"),
        ("while True:\n    try:\n        os.fork()\n    except OSError:\n        pass", "processes|longer than"),
    ):
        (verdict,) = asked(checker(source, seconds=5, sandbox="none"), ["1"])
        assert any(word in str(verdict) for word in words.split("|")), verdict
    assert not _running(str(tmp_path))
