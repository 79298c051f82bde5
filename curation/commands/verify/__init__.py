"""``curate verify``: reads all files of a run, a filter or a trust package, and reports which are damaged.

Like ``curation.cli``, it imports heavy modules only when it runs.
"""

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from curation.commands.options import ALLOW_CODE
from curation.escaping import echo
from curation.telemetry.console import progress
from curation.telemetry.standing import format_speed

if TYPE_CHECKING:
    from curation.commands.verify.check import Verified

NUM_SHOWN = 50


@click.command()
@click.argument("target", metavar="RUN_DIR | OUT | PACKAGE")
@ALLOW_CODE
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(target: str, allow_code: tuple[str, ...], as_json: bool) -> None:
    """Read all files of a run, and say which are damaged and how to make them again.

    It compares sizes and digests with those recorded when the files were written. It writes nothing. It also reads the
    output of `curate filter` and trust packages. The exit code is 1 if anything is damaged.
    """
    from curation.commands.verify.check import verify as verify_target

    with progress("verify") as update:
        found = verify_target(target, update, allow_code)
    echo(json.dumps(asdict(found), indent=1) if as_json else _format_page(found))
    sys.exit(1 if found.damage else 0)


def _format_page(found: "Verified") -> str:
    from curation.commands.inspect.facts import format_size

    lines = [f"damaged: {item.path}: {item.problem}" for item in found.damage[:NUM_SHOWN]]
    if len(found.damage) > NUM_SHOWN:
        lines.append(f"and {len(found.damage) - NUM_SHOWN:,} more (--json lists all)")
    for stage in dict.fromkeys(item.stage for item in found.damage):
        redo = next(item.redo for item in found.damage if item.stage == stage)
        lines.append(f"{stage}: restore its files, or make it again: {redo}" if stage else f"to mend it: {redo}")
    if found.unsealed:
        lines.append(f"without digests, not verified: {', '.join(found.unsealed)}")
    if found.only_sizes:
        lines.append(
            f"compared by size alone, not verified: {found.only_sizes:,} files that were uploaded to an object store "
            "in parts, whose tags are no digests; verify the original there"
        )
    rate = f", {format_speed(found.rows / found.seconds)} rows/s" if found.seconds and found.rows else ""
    read = f"{found.files:,} files, {format_size(found.bytes)}, {found.rows:,} rows in {found.seconds:.1f} s{rate}"
    intact = "all else as it was written" if found.only_sizes or found.unsealed else "all as they were written"
    outcome = f"{len(found.damage):,} damaged" if found.damage else intact
    lines.append(f"{found.target}: {read}: {outcome}")
    return "\n".join(lines)
