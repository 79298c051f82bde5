"""The check by a user's own command: JSON lines in, a verdict a line out, in processes with limits.

A command is run for a batch of rows. If that fails (it hangs, crashes, or prints another number of lines or an invalid
verdict), the batch's rows are run one by one, so that only the rows at fault are errors (``check_failed``).

Limits, by :mod:`curation.extras.checker.launch`: time for a batch, memory and processor time for a process, the number
of processes, the size of files and of what is printed, an environment of ``PATH`` alone; and in a sandbox, which is
required unless ``sandbox: none`` is set: no network, no other process, socket, pipe or device of the machine, files of
the system and of the folders that the command names alone, and a working folder in memory of limited size.
"""

import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from curation.config.base import check_arguments
from curation.domains.text import Check
from curation.errors import ConfigError, RowError
from curation.escaping import escape_text, get_logger, quote_text
from curation.json_types import Json

logger = get_logger(__name__)

FILE_BYTES, TOTAL_BYTES = 16 * 2**20, 64 * 2**20
"""Maximum size of one file that a command writes, and of all its files."""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix")
"""Folders of programs and their settings, which every command can read."""
EMPTY = ("/", "/tmp", "/run", "/dev", "/proc")
"""Folders in which a command sees only the files that it names."""
LINE_BYTES, MORE_BYTES = 1_000, 100_000
"""Maximum output of a command, in bytes: per row, and in addition."""
LEAST_ALONE, SHARE_ALONE = 10.0, 10
"""Minimum seconds of a row run alone if the batch has more, and factor of its share of the batch's time."""
SCRIPTS = (".py", ".sh", ".js", ".rb", ".pl", ".R")
"""Endings of a command's words that name a script."""
UNLIMITED = (
    "it can use the network, and it can write wherever its user can, and reach sockets, pipes and devices, and what it "
    "starts can outlive it"
)
"""Harm that a command can do without a sandbox."""
MOST_FAILED = 20
"""Number of consecutive rows failing alone after which the command itself is called broken."""
_LAUNCH = Path(__file__).with_name("launch.py")


class _Failed(Exception):
    """A failure of a command on some rows, described by its message."""


class CommandCheck(Check):
    """A check that grades completions by a command.

    Args:
        command: the program and its arguments; those that name a file beside the configuration become absolute paths.
        seconds: time for a batch; a row alone has ten times its share, and at least ten seconds of it.
        batch_rows: rows that one start of the command is given.
        memory_mb: address space of each of its processes, in MiB.
        processes: processes and threads that it may have at once.
        sandbox: ``full``, or ``none`` for a program that is trusted to use network, files and processes.
    """

    @check_arguments
    def __init__(
        self,
        *,
        command: Annotated[Sequence[Annotated[str, Field(pattern=r"^[^\x00]+$")]], Field(min_length=1)],
        seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0,
        batch_rows: Annotated[int, Field(ge=1)] = 100,
        memory_mb: Annotated[int, Field(ge=16)] = 1024,
        processes: Annotated[int, Field(ge=1)] = 32,
        sandbox: Literal["full", "none"] = "full",
    ) -> None:
        self.command, self._seconds, self._batch_rows = tuple(command), float(seconds), batch_rows
        self._is_boxed = sandbox == "full"
        self._num_failed = 0
        """Number of consecutive rows that failed alone, over all batches."""
        self._memory_bytes, self._processes = memory_mb * 2**20, processes

    @property
    def digest(self) -> str:
        """Digest of the command and the files that its words name; ``ConfigError`` if program or script is missing."""
        content = hashlib.blake2b(digest_size=16)
        for place, word in enumerate(self.command):
            path = Path(word)
            is_file = path.is_absolute() and path.is_file()
            if place == 0 and not is_file and shutil.which(word, path=_get_search_path()) is None:
                raise ConfigError(
                    f"check.command: {word!r} is not a program on this machine; correct its name, or install it"
                )
            if place and not is_file and (path.is_absolute() or path.suffix in SCRIPTS):
                raise ConfigError(f"check.command: the file {word!r} is not there; correct the path")
            data = path.read_bytes() if is_file else word.encode()
            content.update(f"{len(data)}:".encode() + data)
        return content.hexdigest()

    def __call__(
        self, completions: Sequence[str], references: Sequence[str], rows: Sequence[Mapping[str, object]]
    ) -> list[bool | RowError]:
        """Return a verdict for each completion, equal ones graded once; ``ConfigError`` if the command is broken."""
        items = [
            json.dumps({"completion": completion, "reference": reference, "row": dict(row)}, sort_keys=True)
            for completion, reference, row in zip(completions, references, rows, strict=True)
        ]
        each = list(dict.fromkeys(items))
        known: dict[str, bool | RowError] = {}
        for start in range(0, len(each), self._batch_rows):
            batch = each[start : start + self._batch_rows]
            known.update(zip(batch, self._check_batch(batch, self._seconds), strict=True))
        return [known[item] for item in items]

    def _check_batch(self, batch: Sequence[str], seconds: float) -> list[bool | RowError]:
        """Return a verdict for each row; the rows of a batch that fails are given alone, each with more time.

        ``ConfigError`` after ``MOST_FAILED`` rows alone in succession.
        """
        try:
            verdicts = self._run(batch, seconds)
            self._num_failed = 0
            return [*verdicts]
        except _Failed as error:
            if len(batch) > 1:
                logger.warning("check.command: %s; its %d rows are tried one by one", error, len(batch))
                alone = min(seconds, max(LEAST_ALONE, seconds * SHARE_ALONE / len(batch)))
                return [verdict for item in batch for verdict in self._check_batch([item], alone)]
            self._num_failed += 1
            if self._num_failed >= MOST_FAILED:
                raise ConfigError(
                    f"check.command: {' '.join(self.command)} fails on each of {MOST_FAILED} rows that it was given "
                    f"alone, the last time: {error}; mend the program (docs/data-forms.md says what it reads and "
                    "prints)"
                ) from error
            return [RowError(f"check_failed: the command was given this row alone, and {error}")]

    def _run(self, items: Sequence[str], seconds: float) -> list[bool]:
        """Return the verdicts of one start of the command; raise ``_Failed``, or ``ConfigError`` if it cannot start."""
        folder = Path(tempfile.mkdtemp(prefix="check-"))
        try:
            (folder / "work").mkdir()
            (folder / "root").mkdir()
            lines = (json.dumps({"id": place, **json.loads(item)}) for place, item in enumerate(items))
            (folder / "in").write_text("".join(f"{line}\n" for line in lines))
            code, is_late = self._launch(folder, seconds)
            written = (folder / "status").read_text().splitlines()
            facts: Json = dict(fact for line in written for fact in json.loads(line).items())
            if "cannot_start" in facts:
                raise ConfigError(f"check.command: {self.command[0]!r} cannot be started: {facts['cannot_start']}")
            if not self._is_boxed:
                _say_unlimited()
            elif not all(facts.get(name, True) for name in ("network", "files", "processes")):
                raise ConfigError(
                    f"check.command: this machine allows no sandbox, without which {UNLIMITED}; it needs Linux, user "
                    "namespaces (or root) and overlay mounts; give sandbox: none beside command for a program that you "
                    "trust"
                )
            if is_late:
                raise _Failed(f"it took longer than {seconds:g} s")
            if "why" in facts:
                raise _Failed(f"it {facts['why']}")
            if (folder / "out").stat().st_size > LINE_BYTES * len(items) + MORE_BYTES:
                raise _Failed(f"it printed more than {LINE_BYTES:,} bytes a row")
            if code:
                raise _Failed(f"it ended with {_describe_end(code, folder / 'err')}")
            verdicts = (folder / "out").read_bytes().decode(errors="replace").splitlines()
            if len(verdicts) != len(items):
                raise _Failed(f"it printed {len(verdicts):,} lines for {len(items):,} rows; print one verdict a line")
            return [_parse_verdict(line, place) for place, line in enumerate(verdicts)]
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _list_shown(self) -> list[str]:
        """Return what the command can read: the system, its program, and its files, as folders unless in ``EMPTY``."""
        program = os.path.realpath(shutil.which(self.command[0], path=_get_search_path()) or self.command[0])
        found = {*SYSTEM, *_get_search_path().split(os.pathsep), sys.prefix, sys.base_prefix}
        for path in (Path(program), *(Path(word) for word in self.command if Path(word).is_absolute())):
            found.add(str(path if path.is_dir() or str(path.parent) in EMPTY else path.parent))
        found |= {os.path.realpath(path) for path in found if path not in SYSTEM}
        mounts = {above for path in found for above in Path(path).parents if os.path.ismount(above)}
        found |= {str(mount) for mount in mounts if any(str(above) in found for above in mount.parents)}
        paths = (os.path.abspath(path) for path in found if os.path.isabs(path))
        return sorted(path for path in paths if os.path.isdir(path) or os.path.isfile(path))

    def _launch(self, folder: Path, seconds: float) -> tuple[int, bool]:
        """Run the command in ``folder``; return its exit code, and whether it ran out of time."""
        with (
            (folder / "in").open("rb") as stdin,
            (folder / "out").open("wb") as stdout,
            (folder / "err").open("wb") as stderr,
            (folder / "status").open("wb") as status,
        ):
            limits = {
                "memory_bytes": self._memory_bytes,
                "processes": self._processes,
                "file_bytes": FILE_BYTES,
                "total_bytes": TOTAL_BYTES,
                "seconds": math.ceil(seconds) + 1,
                "status": status.fileno(),
                "parent": os.getpid(),
                "sandbox": self._is_boxed,
                "root": str(folder / "root"),
                "read": self._list_shown(),
            }
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_LAUNCH), json.dumps(limits), *self.command],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=folder / "work",
                env={"PATH": _get_search_path()},
                pass_fds=[status.fileno()],
                start_new_session=True,
            )
            try:
                return process.wait(seconds), False
            except subprocess.TimeoutExpired:
                return 0, True
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also what it left behind
                process.wait()


@cache
def require_sandbox() -> None:
    """Raise ``ConfigError``, as a check would, if this machine grants commands no sandbox."""
    CommandCheck(command=["true"])._run([], 60.0)


def _get_search_path() -> str:
    """Return the search path of commands, on which ``python`` is this interpreter."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _describe_end(code: int, errors: Path) -> str:
    """Describe an exit code, with the last line of standard error; a signal's is 128 plus its number, or minus it."""
    try:
        ended = f"signal {signal.Signals(-code if code < 0 else code - 128).name}"
    except ValueError:
        ended = f"exit code {code}"
    with errors.open("rb") as file:
        file.seek(max(0, errors.stat().st_size - 2_000))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return ended + (f" ({escape_text(lines[-1][:200])})" if lines else "")


def _parse_verdict(line: str, place: int) -> bool:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        value = value.get("right") if value.get("id", place) == place else None
    if not isinstance(value, bool):
        raise _Failed(
            f"it printed {quote_text(line)} in line {place + 1}, which is not a verdict: true, false, or "
            '{"right": true}, with the row\'s own id if there is one'
        )
    return value


@cache
def _say_unlimited() -> None:
    """Say once in each process what a command without a sandbox can do."""
    logger.warning("check.sandbox: none, so %s; run trusted programs only", UNLIMITED)
