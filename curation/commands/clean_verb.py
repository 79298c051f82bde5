"""The options of ``curate clean``, which imports what is heavy when it runs."""

import click

from curation.escaping import echo
from curation.storage.paths import to_place


@click.command()
@click.argument("run_dir")
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Keep files written in the last HOURS hours.",
)
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
def clean(run_dir: str, older_than: float, dry_run: bool) -> None:
    """Remove old versions, orphaned files and superseded results that the manifest of RUN_DIR does not name.

    RUN_DIR may be a filter's output: only its record is cleaned, since `curate filter` itself removes superseded data.
    """
    from curation.commands.clean import clean
    from curation.commands.inspect.text import format_size

    files = num_bytes = 0
    for item in clean(to_place(run_dir), older_than, dry=dry_run):
        versions = f"{item.versions:,} versions, " if item.versions else ""
        echo(f"{item.path}: {versions}{item.files:,} files, {format_size(item.bytes)}")
        files, num_bytes = files + item.files, num_bytes + item.bytes
    echo(f"{'to be removed' if dry_run else 'removed'}: {files:,} files, {format_size(num_bytes)}")
