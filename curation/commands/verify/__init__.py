"""``curate verify``: reads all files of a run, a filter or a trust package, and reports which are damaged.

Like ``curation.cli``, it imports heavy modules only when it runs.
"""

import sys
from dataclasses import asdict

import click

from curation.commands.options import ALLOW_CODE
from curation.telemetry.console import progress


@click.command()
@click.argument("target", metavar="RUN_DIR | OUT | PACKAGE")
@ALLOW_CODE
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(target: str, allow_code: tuple[str, ...], as_json: bool) -> None:
    """Read all files of a run, and say which are damaged and how to make them again.

    It compares sizes and digests with those recorded when the files were written. It writes nothing. It also reads the
    output of `curate filter` and trust packages. The exit code is 1 if anything is damaged.
    """
    from curation.commands.printing import show
    from curation.commands.verify.check import verify as verify_target

    with progress("verify") as update:
        found = verify_target(target, update, allow_code)
    show(asdict(found), "curation.commands.verify:page.j2", as_json=as_json)
    sys.exit(1 if found.damage else 0)
