"""The command ``curate ablate``, which imports heavy modules only when it runs."""

import click

from curation.commands.options import SET, WAIT, Overrides, format_command, with_own_modules
from curation.escaping import echo
from curation.storage.paths import to_place


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
    from curation.extras.ablate import config, running, tables

    loaded = config.load(ablation, overrides)
    command = format_command("ablate", ablation, overrides)
    content = running.run(loaded, to_place(output), command=command, wait=wait)
    echo(tables.format_markdown(content))
