"""Actions of ``curate audit``: draw, serve, take verdicts, export, conclude; each says in words what was done."""

import getpass
from collections.abc import Callable
from pathlib import Path
from typing import Any

from curation.commands.audit import result
from curation.commands.audit.exchange import EXCHANGES, export
from curation.commands.audit.folder import Audit, audits_in, make_audit, open_audit
from curation.commands.audit.intake import Reader, read_csv, take
from curation.commands.audit.server import serve
from curation.commands.audit.source import find
from curation.commands.audit.words import standing_lines
from curation.errors import AuditError
from curation.storage.paths import Place

Json = dict[str, Any]

DEFAULT_NUM = 200


def home_of(run: Place, folder: str | None) -> Path:
    """Where the audits of a run are kept: ``<run>/audit`` unless a folder is given.

    Raises:
        AuditError: there is no such run, or it is in an object store, where no line can be appended, and no folder is
            given.
    """
    if folder is not None:
        return Path(folder)
    if isinstance(run, Path):
        if not run.is_dir():
            raise AuditError(f"{run}: there is no such directory; give the run_dir of a run")
        return run / "audit"
    raise AuditError(
        f"{run}: verdicts are appended to a file, which an object store cannot do; give a local --folder DIR"
    )


def start(run: Place, home: Path, *, name: str | None, arm: str | None, num: int | None, seed: int | None) -> list[str]:
    """Draw an audit if there is none of that name yet, which is the arm's unless given; in words, how far it is.

    Raises:
        AuditError: it cannot be drawn, or was drawn otherwise.
    """
    if name is None and (arm, num, seed) == (None, None, None) and len(audits_in(home)) == 1:
        return standing_lines(open_audit(home, None))
    origin = find(run, arm)
    name = name or origin.arm
    if name not in audits_in(home):
        return standing_lines(make_audit(home, name, origin, num=DEFAULT_NUM if num is None else num, seed=seed or 0))
    audit = open_audit(home, name)
    asked = {"arm": (arm, audit.origin.arm), "num": (num, audit.drawn["num"]), "seed": (seed, audit.drawn["seed"])}
    for key, (wanted, was) in asked.items():
        if wanted is not None and wanted != was:
            raise AuditError(
                f"{audit.folder}: was drawn with --{key} {was}, not {wanted}; leave it out, or draw another audit with "
                "--name"
            )
    return standing_lines(audit)


def serve_page(home: Path, name: str | None, *, port: int, person: str | None, say: Callable[[str], None]) -> None:
    """Serve the page of an audit until the process is interrupted."""
    audit = open_audit(home, name)
    serve(audit, port, person or user(), say)
    say(standing_lines(audit)[1])


def take_verdicts(home: Path, name: str | None, path: str, *, program: str | None, person: str | None) -> list[str]:
    """Take the verdicts of a CSV file, or of what a program exported; in words, what was taken and how far it is."""
    audit = open_audit(home, name)
    read: Reader = read_csv if program is None else EXCHANGES[program].read
    taken = take(audit, Path(path), read, via=program or "csv", person=person or user())
    known = f", {taken.num_known:,} were known already" if taken.num_known else ""
    return [f"{path}: {taken.num_new:,} verdicts taken{known}", standing_lines(audit)[1]]


def export_rows(home: Path, name: str | None, program: str, path: str) -> str:
    """Write the rows without a verdict in a program's format; what was written, in words."""
    return export(open_audit(home, name), program, Path(path))


def conclude(home: Path, name: str | None, *, alpha: float | None, delta: float | None) -> tuple[Audit, Json]:
    """The audit, and what its verdicts give (``curation.commands.audit.result.conclude``)."""
    audit = open_audit(home, name)
    return audit, result.conclude(audit, alpha=alpha, delta=delta)


def user() -> str:
    """The name of the user of this machine."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "someone"
