"""Starts a user's checking command within limits; a script of the standard library alone.

Run as ``launch.py LIMITS COMMAND...``. ``LIMITS`` is a JSON object: ``parent``, the process whose end ends all,
``seconds`` (of processor time a process), ``memory_bytes`` (of address space a process), ``file_bytes`` (of each file
written), ``processes`` (alive at once), and ``status``, the number of an open file in which this writes what was
limited and why the command was ended, as JSON.

Where the system lets it (Linux, user namespaces or root), the command has a network without any interface, sees no
other processes, and may write to its working folder alone. Killing the first process of its process table kills all of
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
PROC_FLAGS = 0b1111  # read-only, without devices, programs and rights by set-user-id
PRIVATE, BIND, READ_ONLY = 1 << 18 | 1 << 14, 1 << 12, 1
MOUNT_SETATTR, HERE, RECURSIVE = 442, -100, 0x8000
LEAST_LOOK, MOST_LOOK = 0.002, 0.05
NOBODY = 65534
CANNOT_START = 127


def call(name: str, *arguments: object) -> bool:
    """A function of the C library; whether it succeeded."""
    try:
        return bool(getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) == 0)
    except (OSError, AttributeError):
        return False


def write(path: str, text: str) -> None:
    """Write a setting of the kernel, where it lets this process."""
    with suppress(OSError), open(path, "w") as file:
        file.write(text)


def hurry() -> int:
    """Come before the command's processes, so that they are counted however many they are; returns the old niceness."""
    before = os.nice(0)
    with suppress(OSError):
        os.nice(-20)  # root may, for whom the kernel's limit does not hold
    return before


def isolate() -> dict[str, bool]:
    """Leave network and process table; returns which were left."""
    uid, gid = os.geteuid(), os.getegid()
    if call("unshare", NEWUSER | ALL):
        inside = uid or NOBODY  # not root there: a root of its own namespace has capabilities
        maps = ("gid_map", f"{gid or NOBODY} {gid} 1"), ("uid_map", f"{inside} {uid} 1")
        for name, text in (("setgroups", "deny"), *maps):
            write(f"/proc/self/{name}", text)  # without it, it is nobody all the same
        return {"network": True, "processes": True}
    if call("unshare", ALL):  # root without user namespaces
        return {"network": True, "processes": True}
    return {"network": call("unshare", NEWNET), "processes": False}


def set_read_only(path: bytes, flags: int, read_only: bool) -> bool:
    """Set or clear that a mount is read-only."""
    attributes = (ctypes.c_uint64 * 4)(READ_ONLY * read_only, READ_ONLY * (not read_only), 0, 0)
    return call("syscall", MOUNT_SETATTR, HERE, path, flags, ctypes.byref(attributes), ctypes.sizeof(attributes))


def close_files() -> bool:
    """Make all files read-only but for the working folder, and show no other process; whether that was possible."""
    folder = os.getcwd().encode()
    is_done = (
        call("unshare", NEWNS)
        and call("mount", None, b"/", None, PRIVATE, None)
        and call("mount", folder, folder, None, BIND, None)
        and set_read_only(b"/", RECURSIVE, True)
        and set_read_only(folder, 0, False)
    )
    if is_done:
        os.chdir(folder)  # into the mount
        call("mount", b"proc", b"/proc", b"proc", PROC_FLAGS, None)
    return is_done


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
    for capability in range(MOST_CAPABILITIES):  # root could undo what is read-only
        call("prctl", DROP_CAPABILITY, capability, 0, 0, 0)
    call("prctl", NO_NEW_PRIVS, 1, 0, 0, 0)


def pids() -> list[int]:
    """All processes that are seen."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def num_of_user() -> int:
    """The processes and threads of this user, which the kernel counts against the limit."""
    found = 0
    for pid in pids():
        try:
            task = os.stat(f"/proc/{pid}/task")
        except OSError:
            continue
        found += (task.st_nlink - 2) if task.st_uid == os.getuid() else 0
    return found


def of_command(pid: int, table: str | None, first: int) -> bool:
    """Whether a process is the command's: of its process table, or else of this session."""
    try:
        if table is not None:
            return os.readlink(f"/proc/{pid}/ns/pid") == table
        return pid not in (os.getpid(), first) and os.getsid(pid) == os.getsid(0)
    except OSError:
        return False


def too_many(table: str | None, first: int, most: int) -> bool:
    """Whether the command has more processes than allowed; counting ends there."""
    found = 0
    for pid in reversed(pids()):
        found += of_command(pid, table, first)
        if found > most + 2:  # its first process and the one that waits for it
            return True
    return False


def start(limits: Limits, command: list[str], others: int, niceness: int, is_alone: bool) -> None:
    """The command's process: in a process table of its own the second one, for whose end the first one waits."""
    call("prctl", PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    tell(limits, files=is_alone and close_files())
    if not is_alone or not (child := os.fork()):
        try:
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
            limit(limits, others)
            for name in (signal.SIGXFSZ, signal.SIGPIPE):  # which Python ignores, and a command inherits
                signal.signal(name, signal.SIG_DFL)
            os.execvp(command[0], command)
        except (OSError, ValueError) as error:
            tell(limits, cannot_start=str(error))
            os._exit(CANNOT_START)
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(code_of(status))


def tell(limits: Limits, **facts: object) -> None:
    """Write to the file of the status."""
    os.write(limits["status"], json.dumps(facts).encode() + b"\n")


def code_of(status: int) -> int:
    """The exit code of a wait status; of a signal as a shell has it."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def main() -> int:
    """Run the command, and exit as it does."""
    limits, command = json.loads(sys.argv[1]), sys.argv[2:]
    call("prctl", PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != limits["parent"]:
        return CANNOT_START  # it ended before this could be noticed
    os.set_inheritable(limits["status"], False)
    others, niceness = num_of_user(), hurry()
    isolated = isolate()
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
            return code_of(ended)
        if too_many(table, first, limits["processes"]):
            tell(limits, why=f"had more than {limits['processes']} processes")
            os.kill(first, signal.SIGKILL)
            os.waitpid(first, 0)
            os.killpg(0, signal.SIGKILL)  # without a process table of its own
        time.sleep(look)
        look = min(2 * look, MOST_LOOK)


if __name__ == "__main__":
    sys.exit(main())
