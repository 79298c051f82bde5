"""The command ``curate ablate``, which imports heavy modules only when it runs."""

from typing import TYPE_CHECKING

import click

from curation.commands.options import SET, WAIT, Overrides, format_command, with_own_modules
from curation.escaping import echo
from curation.heavy import Lazy
from curation.storage.paths import to_place

if TYPE_CHECKING:
    from curation.extras.ablate import config, running, tables
else:
    config, running, tables = (Lazy(f"curation.extras.ablate.{name}") for name in ("config", "running", "tables"))


@click.command()
@click.argument("ablation", type=click.Path(dir_okay=False), callback=with_own_modules)
@SET
@click.option("-o", "--output", default="runs/ablations", show_default=True, metavar="DIR", help="Output folder.")
@WAIT
def ablate(ablation: str, overrides: Overrides, output: str, wait: bool) -> None:
    """Run the variants of a run that the file ABLATION names, and compare them in a table.

    Stages that variants, or ablations in the same DIR, have in common are run once. After a kill, the same command goes
    on. --set changes the base of all variants.
    """
    loaded = config.load(ablation, overrides)
    command = format_command("ablate", ablation, overrides)
    content = running.run(loaded, to_place(output), command=command, wait=wait)
    echo(tables.format_markdown(content))
