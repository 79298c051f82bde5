"""A launcher of a user's checking command within limits; a script of the standard library alone.

Run as ``launch.py LIMITS COMMAND...``. ``LIMITS`` is a JSON object: ``parent``, the process whose end ends all,
``seconds`` (of processor time a process), ``memory_bytes`` (of address space a process), ``file_bytes`` (of each file
written), ``total_bytes`` (of all files in the working folder), ``processes`` (alive at once), ``sandbox``, ``read``
(folders and files that it is shown), ``root`` (an empty folder in one with a random name) and ``status``, the number of
an open file in which this writes what was limited and why the command was ended, as JSON.

With ``sandbox`` the command has a network without any interface, sees no other processes, and has a file system of its
own (:func:`enter_root`), where it is not root; where the system grants one of these not (it needs Linux, user
namespaces or root, overlays), the command is not started. Killing the first process of its process table kills all of
them, whatever session they are in. They are counted too, since the kernel's limit does not hold for root. All end with
the parent of this process.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from typing import Any

Limits = dict[str, Any]

NEWUSER, NEWNET, NEWPID, NEWIPC, NEWNS = 0x10000000, 0x40000000, 0x20000000, 0x08000000, 0x00020000
ALL = NEWNET | NEWPID | NEWIPC
PDEATHSIG, DROP_CAPABILITY, NO_NEW_PRIVS = 1, 24, 38
MOST_CAPABILITIES = 64
READ_ONLY, HARMLESS, NO_PROGRAMS = 1, 0b0110, 0b1000  # the second: without devices and rights by set-user-id
PRIVATE, BIND, REMOUNT = 1 << 18 | 1 << 14, 1 << 12, 1 << 5
DEVICES = ("null", "zero", "full", "random", "urandom")
MOST_FILES = 10_000
LEAST_LOOK, MOST_LOOK = 0.002, 0.05
NOBODY = 65534
CANNOT_START = 127


def call(name: str, *arguments: object) -> bool:
    """Call a function of the C library; return whether it succeeded."""
    try:
        return bool(getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) == 0)
    except (OSError, AttributeError):
        return False


def isolate() -> dict[str, bool]:
    """Leave the network and the process table; return by name which of them were left."""
    uid, gid = os.geteuid(), os.getegid()
    if call("unshare", NEWUSER | ALL):
        inside = uid or NOBODY  # not root there: a root of its own namespace has capabilities
        maps = ("gid_map", f"{gid or NOBODY} {gid} 1"), ("uid_map", f"{inside} {uid} 1")
        for name, text in (("setgroups", "deny"), *maps):
            with suppress(OSError), open(f"/proc/self/{name}", "w") as file:  # without it, it is nobody all the same
                file.write(text)
        return {"network": True, "processes": True}
    made = call("unshare", ALL)  # root without user namespaces
    return {"network": made, "processes": made}


def mount(kind: str, at: str, flags: int, options: str = "", source: str = "none") -> None:
    """Mount a file system, or raise ``OSError`` if the system does not let this process."""
    if not call("mount", source.encode(), at.encode(), kind.encode() or None, flags, options.encode() or None):
        raise OSError(f"{kind or 'bind'} mount of {at}")


def enter_root(limits: Limits) -> bool:
    """Change to a new root file system; return whether that was possible.

    It has the folders ``read`` as they are, but read-only and each by an overlay: sockets and pipes in them lead to no
    process outside, devices do not open. Of ``/dev`` it has what does no harm, ``/tmp`` and ``/run`` are empty. The
    working folder alone can be written, in memory and to ``total_bytes`` in all.
    """
    root, host = limits["root"], os.getcwd()
    own = "/" + os.path.basename(os.path.dirname(root))  # random, so that it hides no folder of the machine
    try:
        if not (call("unshare", NEWNS) and call("mount", None, b"/", None, PRIVATE, None)):
            return False
        mount("tmpfs", root, HARMLESS, "size=4m,mode=755")
        for name in (f"{own}/empty", f"{own}/work", "/dev", "/proc", "/tmp", "/run"):
            os.makedirs(root + name)
        for path in sorted(limits["read"], key=len):
            show(path, root, f"{root}{own}/empty")
        for name in DEVICES:
            os.close(os.open(f"{root}/dev/{name}", os.O_CREAT))
            mount("", f"{root}/dev/{name}", BIND, source=f"/dev/{name}")
        os.symlink("/proc/self/fd", f"{root}/dev/fd")
        mount("tmpfs", f"{root}{own}/work", HARMLESS, f"size={limits['total_bytes']},nr_inodes={MOST_FILES},mode=777")
        with suppress(OSError):  # a container may not let it: then there is no /proc
            mount("proc", f"{root}/proc", HARMLESS | READ_ONLY | NO_PROGRAMS, source="proc")
        mount("", root, BIND | REMOUNT | READ_ONLY | HARMLESS)
        os.chroot(root)  # within which nobody makes namespaces, so that no other file system is mounted
        os.chdir(f"{own}/work")
        return True
    except OSError:
        os.chdir(host)
        return False


def show(path: str, root: str, empty: str) -> None:
    """Show a folder, file or link of the machine under the same path in another root, or raise ``OSError``."""
    there = root + path
    if os.path.lexists(there) and not os.path.ismount(path):
        return
    os.makedirs(os.path.dirname(there), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), there)
        return
    if os.path.isfile(path):
        os.close(os.open(there, os.O_CREAT))
        mount("", there, BIND, source=path)
        mount("", there, BIND | REMOUNT | READ_ONLY | HARMLESS)
        return
    os.makedirs(there, exist_ok=True)
    layers = [os.open(layer, os.O_PATH) for layer in (path, empty)]  # two, or it would need one to write
    try:
        options = "lowerdir=" + ":".join(f"/proc/self/fd/{layer}" for layer in layers)
        mount("overlay", there, HARMLESS | READ_ONLY, options)
    finally:
        for layer in layers:
            os.close(layer)


def limit(limits: Limits, others: int) -> None:
    """Limit this process and those that it starts."""
    for name, most in (
        (resource.RLIMIT_CPU, limits["seconds"]),
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_NPROC, limits["processes"] + others),
    ):
        hard = resource.getrlimit(name)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(name, (most, most))
    for capability in range(MOST_CAPABILITIES):  # root could leave its file system
        call("prctl", DROP_CAPABILITY, capability, 0, 0, 0)
    call("prctl", NO_NEW_PRIVS, 1, 0, 0, 0)


def list_pids() -> list[int]:
    """Return the ids of all visible processes."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def count_user_threads() -> int:
    """Return the processes and threads of this user, which the kernel counts against the limit."""
    found = 0
    for pid in list_pids():
        try:
            task = os.stat(f"/proc/{pid}/task")
        except OSError:
            continue
        found += (task.st_nlink - 2) if task.st_uid == os.getuid() else 0
    return found


def has_too_many(table: str | None, first: int, most: int) -> bool:
    """Return whether the command has too many processes, by its process table or this session, and count no further."""
    found = 0
    for pid in reversed(list_pids()):
        with suppress(OSError):
            if table is not None:
                found += os.readlink(f"/proc/{pid}/ns/pid") == table
            else:
                found += pid not in (os.getpid(), first) and os.getsid(pid) == os.getsid(0)
        if found > most + 2:  # its first process and the one that waits for it
            return True
    return False


def start(limits: Limits, command: list[str], others: int, niceness: int, is_alone: bool) -> None:
    """Run the command here or, in a process table of its own, in a second process for whose end this one waits."""
    call("prctl", PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if limits["sandbox"]:
        has_root = is_alone and enter_root(limits)
        tell(limits, files=has_root)
        if not has_root:
            os._exit(CANNOT_START)
    if not is_alone or not (child := os.fork()):
        try:
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
            limit(limits, others)
            if limits["sandbox"] and os.getuid() == 0:
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
            for name in (signal.SIGXFSZ, signal.SIGPIPE):  # which Python ignores, and a command inherits
                signal.signal(name, signal.SIG_DFL)
            os.execvp(command[0], command)
        except (OSError, ValueError) as error:
            tell(limits, cannot_start=str(error))
            os._exit(CANNOT_START)
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(to_exit_code(status))


def tell(limits: Limits, **facts: object) -> None:
    """Write facts to the status file."""
    os.write(limits["status"], json.dumps(facts).encode() + b"\n")


def to_exit_code(status: int) -> int:
    """Return the exit code of a wait status; for a signal, as a shell gives it."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def main() -> int:
    """Run the command, and return its exit code."""
    limits, command = json.loads(sys.argv[1]), sys.argv[2:]
    call("prctl", PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != limits["parent"]:
        return CANNOT_START  # it ended before this could be noticed
    os.set_inheritable(limits["status"], False)
    others, niceness = count_user_threads(), os.nice(0)
    with suppress(OSError):
        os.nice(-20)  # above the command's processes, to keep counting them; root may, whom the kernel does not limit
    isolated = isolate() if limits["sandbox"] else {"network": False, "processes": False}
    tell(limits, **isolated)
    first = os.fork()
    if not first:
        start(limits, command, others, niceness, isolated["processes"])
    table = None
    if isolated["processes"]:
        with suppress(OSError):
            table = os.readlink(f"/proc/{first}/ns/pid")
    look = LEAST_LOOK
    while True:
        pid, ended = os.waitpid(first, os.WNOHANG)
        if pid:
            return to_exit_code(ended)
        if has_too_many(table, first, limits["processes"]):
            tell(limits, why=f"had more than {limits['processes']} processes")
            os.kill(first, signal.SIGKILL)
            os.waitpid(first, 0)
            os.killpg(0, signal.SIGKILL)  # without a process table of its own
        time.sleep(look)
        look = min(2 * look, MOST_LOOK)


if __name__ == "__main__":
    sys.exit(main())
