"""The rows of an arm as a folder that ``datasets.load_dataset`` reads: Parquet files, a card and ``rows.json``."""

from pathlib import Path

import pyarrow.dataset
from huggingface_hub import DatasetCard, DatasetCardData, HfApi
from huggingface_hub.utils import HFValidationError, validate_repo_id  # type: ignore[attr-defined]  # public, not in __all__

from curation.commands.export.files import PAPER, describe, describe_files, load_template, write_folder
from curation.commands.export.lineage import describe_rows_lineage, stop_lines
from curation.commands.export.run import choose_generation, read_run
from curation.commands.export.student import find_selection
from curation.errors import ExportError
from curation.json_types import JsonView
from curation.pipeline.numbers import read_numbers_after
from curation.refs import TableRef
from curation.stages.selected import PART_ROWS
from curation.storage.cache import fetch_folder
from curation.storage.paths import Place
from curation.tables import io

MARKER = "rows.json"
"""The file with the card's content for programs; written last."""
FILE_ROWS = 1 << 20
"""Maximum number of rows of a Parquet file."""
SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B")
"""The hub's size categories by number of rows, each ten times larger than the previous one."""


def export_rows(
    run: Place,
    output: Place,
    *,
    arm: str | None,
    generation: int | None,
    push: str | None,
    force: bool,
    command: str,
) -> list[str]:
    """Write an arm's selected rows to a folder; return sentences on what was written, and warnings.

    The default arm is ``trust`` or the only one, the default generation the last. ``force`` replaces an earlier export.
    ``push`` names a dataset repository on the hub for the folder, private if it is new. ``command`` is for the card.

    Raises:
        ExportError: there are no such rows, ``output`` is taken or cannot be written, or the hub refuses the upload.
    """
    if push is not None:
        try:
            validate_repo_id(push)
        except HFValidationError as error:
            raise ExportError(f"--push {push}: is not the name of a repository, such as USER/NAME ({error})") from error
    config, manifest = read_run(run)
    generation = choose_generation(config, generation, "leave it out for the last one")
    student, table = find_selection(config, manifest, arm, generation)
    assert student.selecting is not None, "its table was found"
    measured = read_numbers_after(manifest, student.selecting, generation)
    num_rows = io.count(table)
    with write_folder(output, force=force, marker=MARKER) as folder:
        num_files = _write_parquet(table, folder / "data")
        lineage = describe_rows_lineage(student, measured, num_rows, describe_files(folder), command)
        card = _make_card(lineage, pairs="chosen" in io.open_table(table).schema.names)
        describe(folder, lineage, card, MARKER)
    many = "s" if num_files > 1 else ""
    words = [f"{output}: {num_rows:,} rows of the arm {student.arm} in {num_files} Parquet file{many}, with README.md"]
    if measured is None:
        words.append(
            f"warning: {run} has no numbers of these rows, so the card has no purity; when `curate run` has ended, "
            "export again with --force"
        )
    words += stop_lines(lineage)
    return words if push is None else [*words, _push(fetch_folder(str(output)), push, output)]


def _write_parquet(table: TableRef, folder: Path) -> int:
    """Write the table in stored order to Parquet files with the hub's names, and return their number."""
    scanner = io.open_table(table).scanner(batch_size=PART_ROWS, scan_in_order=True)
    pyarrow.dataset.write_dataset(
        scanner.to_reader(),
        folder,
        basename_template="{i}.parquet",
        format="parquet",
        max_rows_per_file=FILE_ROWS,
        max_rows_per_group=PART_ROWS,
        preserve_order=True,
    )
    files = sorted(folder.iterdir(), key=lambda path: int(path.stem))
    for number, path in enumerate(files):
        path.rename(folder / f"train-{number:05d}-of-{len(files):05d}.parquet")
    return len(files)


def _make_card(lineage: JsonView, *, pairs: bool) -> str:
    rows = lineage["rows"]
    metadata = DatasetCardData(
        pretty_name=f"{lineage['run']['name']}, rows of the arm {rows['arm']}",
        size_categories=SIZES[min(max(len(str(rows["num_rows"])) - 3, 0), len(SIZES) - 1)],
        task_categories=["text-generation"],
        tags=["trust-curation", "weak-to-strong", rows["arm"]],
        configs=[{"config_name": "default", "data_files": [{"split": "train", "path": "data/train-*.parquet"}]}],
    )
    card = DatasetCard.from_template(metadata, template_str="---\n{{ card_data }}\n---\n")
    card.text = load_template("rows_card.md.j2").render(lineage, paper=PAPER, pairs=pairs)
    return str(card)


def _push(folder: Path, name: str, output: Place) -> str:
    """Upload the folder to a dataset repository of the hub; return a sentence with its address."""
    hub = HfApi()
    try:
        address = hub.create_repo(name, repo_type="dataset", private=True, exist_ok=True)
        hub.upload_folder(
            repo_id=name, repo_type="dataset", folder_path=folder, commit_message="Rows selected by trust-curation"
        )
    except Exception as error:  # the hub's client raises httpx's exceptions, OSError and classes of its own
        raise ExportError(
            f"--push {name}: {output} is written, and {hub.endpoint} did not take it ({' '.join(str(error).split())}); "
            f"run `hf auth login` with a token that may write, then `hf upload {name} {output} --repo-type dataset`"
        ) from error
    return f"{address}: has it too, in a repository that is private where it is new"
