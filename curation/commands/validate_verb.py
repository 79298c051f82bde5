"""The options of ``curate validate``, which imports what is heavy when it runs."""

import json

import click

from curation.activity import doing
from curation.commands.options import CONFIG, SET
from curation.errors import UserError
from curation.escaping import echo
from curation.redaction import redact_text


@click.command()
@CONFIG
@SET
@click.option("--json", "as_json", is_flag=True, help="Print JSON, also for an error.")
def validate(config: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check the configuration, the input files and the models without running anything.

    Read 1,000 rows of each source to estimate how many rows cannot be used.
    """
    with doing("importing curation.commands.validate"):
        from curation.cluster.capacity import check_machine, list_needs
        from curation.commands.validate import check
        from curation.config.load import load_config

    try:
        lines = []
        loaded = load_config(config, overrides)
        check_machine(loaded.ray, list_needs(loaded))
        for line in check(loaded):
            lines.append(line._asdict())
            if not as_json:
                echo(line.text)
    except UserError as error:
        if as_json:
            echo(json.dumps({"valid": False, "error": redact_text(str(error))}, indent=1))
        raise
    echo(json.dumps({"valid": True, "checked": lines}, indent=1) if as_json else f"{config}: is valid")
