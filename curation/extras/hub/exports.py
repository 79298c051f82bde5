"""Exports in the format of the Hugging Face Hub: a student with its model card, and an arm's rows as a data set."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
from huggingface_hub import CardData, DatasetCardData, EvalResult, HfApi, ModelCardData
from huggingface_hub.utils import HFValidationError, validate_repo_id  # type: ignore[attr-defined]  # public, not in __all__

from curation.arrays import Int64s
from curation.commands.export.files import LINEAGE, is_on_hub, load_template, write_folder
from curation.commands.export.run import Trained, choose_generation, find_selection, find_student, read_run
from curation.config import RunConfig
from curation.config.models import find_student_section
from curation.errors import ExportError
from curation.extras.hub.lineage import make_lineage, stop_lines
from curation.json_types import Json, JsonView
from curation.models.own_code import get_hub_revision
from curation.refs import ModelRef, TableRef
from curation.rundir.manifest import Manifest
from curation.sources import (
    SourceFile,
    as_kept,
    check_unchanged,
    discover,
    get_row_ids,
    make_kept_fields,
    read_rows,
    require_columns,
)
from curation.stages.rows import PART_ROWS, read_ids
from curation.storage.cache import fetch_folder
from curation.storage.digest import compute_sha256
from curation.storage.inside import require_enclosed
from curation.storage.paths import Place, list_files, to_place
from curation.tables import io, schemas
from curation.tables.files import write_file

CARD, PAPER = "README.md", "https://arxiv.org/abs/2606.01000"
METHODS = {"sft": "supervised fine-tuning", "grpo": "GRPO", "dpo": "DPO"}
LEFT_OUT = (CARD, "training.json")
"""Files of a saved student that are not exported: peft's empty card, and the record that is in the lineage."""
MARKER = "rows.json"
"""The file with the card's content for programs; written last."""
FILE_ROWS = 1 << 20
"""Maximum number of rows of a Parquet file."""


def export_student(
    run: Place,
    output: Place,
    *,
    arm: str | None,
    generation: int | None,
    student: str | None = None,
    force: bool,
    command: str,
) -> list[str]:
    """Write a student of a run to a folder; return sentences on what was written, and warnings.

    The arm is by default ``trust`` or the only one, the generation the last one, and the student the one that teaches
    the next generation. ``output`` is an empty or missing folder or, with ``force``, holds an earlier export.
    ``command`` is the command line, for the card.

    Raises:
        ExportError: there is no such student, the student is not trained, or ``output`` is taken or cannot be written.
    """
    found = find_student(run, arm, generation, student)
    with write_folder(output, force=force) as folder:
        written = write_model(found, folder, output)
        lineage = {**make_lineage(found, command), **describe_training(found, written)}
        method = METHODS.get(lineage["recipe"]["method"])
        describe(folder, lineage, _render_card(_make_front_matter(lineage), "card.md.j2", lineage, method=method))
    words = [f"{output}: {written['kind']} of {found.training} of {found.config.name}, with README.md and lineage.json"]
    if lineage["numbers"] is None:
        words.append(
            f"warning: {run} has no numbers of this student, so the card has none; when `curate run` has ended, export "
            "again with --force"
        )
    return words + stop_lines(lineage)


def write_model(student: Trained, folder: Path, output: Place) -> Json:
    """Write the student's weights to a folder that will become ``output``, and describe them.

    Return ``kind``, ``has_base`` (whether the adapter's base, which was merged for this run, is exported too, in
    ``base``), and ``files``.
    """
    model, has_base = student.model, False
    require_enclosed(student.folder)
    source = fetch_folder(str(student.folder))
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    if model.adapter is not None:
        base = model
        if has_base := to_place(model.base) == student.folder / "base":
            base = ModelRef(base=str(output.absolute() / "base"), adapter=model.adapter)
        revision = get_hub_revision(base) if is_on_hub(base) else None
        file = folder / "adapter_config.json"  # peft's own, which names the base
        settings = json.loads(file.read_text()) | {"base_model_name_or_path": base.base, "revision": revision}
        file.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    kind = "full model" if model.adapter is None else "adapter"
    return {"kind": kind, "has_base": has_base, "files": describe_files(folder)}


def describe(folder: Path, lineage: Mapping[str, object], card: str, marker: str = LINEAGE) -> None:
    """Write the card and, as the file ``marker``, the lineage."""
    (folder / CARD).write_text(card)
    (folder / marker).write_text(json.dumps(lineage, indent=1, allow_nan=False) + "\n")


def describe_files(folder: Path) -> Json:
    """Return ``bytes`` and ``sha256`` of every file in a folder, by relative path."""
    return {
        file.path: {"bytes": file.size, "sha256": compute_sha256(folder / file.path)} for file in list_files(folder)
    }


def describe_training(student: Trained, written: JsonView) -> Json:
    """Return the parts of a student's lineage that are not of its rows: what was ``written``, base and recipe."""
    inputs, record = student.record.inputs, student.record.outputs["training"]
    recipe, base = find_student_section(inputs["recipe"]).from_key(inputs["recipe"]), ModelRef.from_json(inputs["base"])
    settings = recipe.model_dump(mode="json", exclude=recipe.RESOURCES)  # all that the weights depend on
    return {
        "student": {"stage": student.training, "name": student.name or None, **written},
        "base": {**base.to_json(), "on_hub": is_on_hub(base)},
        "recipe": {**settings, "seed": inputs["seed"]},
        "training": {name: record[name] for name in ("num_rows", "num_dropped", "num_epochs")},
    }


def _render_card(metadata: CardData, template: str, lineage: JsonView, **further: object) -> str:
    text = load_template("curation.extras.hub", template).render(lineage, paper=PAPER, **further)
    return f"---\n{metadata.to_yaml()}\n---\n{text}"


def _make_front_matter(lineage: JsonView) -> ModelCardData:
    """Return the card's metadata, without the base if it is not on the hub."""
    student, base, recipe = lineage["student"], lineage["base"], lineage["recipe"]
    is_adapter = student["kind"] == "adapter"
    accuracy = lineage["numbers"] and lineage["numbers"]["accuracy"]["student"]
    parts = [lineage["run"]["name"], student["name"], lineage["arm"]["name"]]
    name = f"{'-'.join(part for part in parts if part)}-gen{lineage['generation']}"
    result = EvalResult(
        task_type="text-generation",
        dataset_type=lineage["domain"]["name"],
        dataset_name=f"test split of {lineage['run']['name']}",
        metric_type="accuracy",
        metric_value=None if accuracy is None else accuracy["value"],
    )
    return ModelCardData(
        base_model=base["base"] if base["on_hub"] else None,
        base_model_relation=("adapter" if is_adapter else "finetune") if base["on_hub"] else None,
        library_name="peft" if is_adapter else "transformers",
        pipeline_tag="text-generation",
        tags=[
            "trust-curation",
            "weak-to-strong",
            recipe["method"],
            lineage["arm"]["name"],
            *(["lora"] if is_adapter else []),
        ],
        model_name=name,
        eval_results=None if accuracy is None else [result],
    )


def export_rows(
    run: Place,
    output: Place,
    *,
    arm: str | None,
    generation: int | None,
    form: str = "parquet",
    columns: Sequence[str] = (),
    push: str | None,
    force: bool,
    command: str,
) -> list[str]:
    """Write an arm's selected rows to a folder; return sentences on what was written, and warnings.

    The default arm is ``trust`` or the only one, the default generation the last. ``form`` is ``parquet`` or ``jsonl``;
    ``columns`` of the pool's files are added to the rows. ``force`` replaces an earlier export.
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
    num_rows, is_measured = io.count(table), student.measured is not None
    if columns:
        rows = read_with_columns(config, manifest, table, columns)
    else:
        rows = io.open_table(table).scanner(batch_size=PART_ROWS, scan_in_order=True).to_reader()
    with write_folder(output, force=force, marker=MARKER) as folder:
        num_files = write_data(rows, folder / "data", form)
        lineage = {**make_lineage(student, command), "files": describe_files(folder)}
        card = _make_card(lineage, pairs="chosen" in io.open_table(table).schema.names)
        describe(folder, lineage, card, MARKER)
    kind = f"{'Parquet' if form == 'parquet' else 'JSONL'} file{'s' if num_files > 1 else ''}"
    words = [f"{output}: {num_rows:,} rows of the arm {student.arm} in {num_files} {kind}, with README.md"]
    if not is_measured:
        words.append(
            f"warning: {run} has no numbers of these rows, so the card has no purity; when `curate run` has ended, "
            "export again with --force"
        )
    words += stop_lines(lineage)
    return words if push is None else [*words, _push(fetch_folder(str(output)), push, output)]


def read_with_columns(
    config: RunConfig, manifest: Manifest, selection: TableRef, columns: Sequence[str]
) -> pa.RecordBatchReader:
    """Return a reader of a selection's rows by rank, each with these columns of its file.

    The files are read once; beside a batch of rows, only the ids of selected rows are held.

    Raises:
        ExportError: the selection has a column of that name.
        SourceError: a file changed or lacks a column, or the files disagree on its type.
    """
    columns = list(dict.fromkeys(columns))
    schema, source = io.open_table(selection).schema, config.splits.pool.source
    if taken := [name for name in columns if name in schema.names]:
        raise ExportError(
            f"--columns: {taken[0]!r} is a column that every selection has; rename it in the pool's files"
        )
    known = manifest.source_files[source]
    check_unchanged(known, discover(config.sources[source], known))
    require_columns(known, [columns])
    fields = make_kept_fields(known, columns)
    wide = pa.schema([*schema, *fields])

    def joined() -> Iterator[pa.RecordBatch]:
        parts = iter_found(known, fields, np.sort(read_ids(selection)), config.sources[source].id_column)
        with tempfile.TemporaryDirectory(prefix="curation-") as folder:
            kept = io.Lookup(io.write_parts(parts, pa.schema([schemas.ROW_ID, *fields]), f"{folder}/kept.lance"))
            for batch in io.open_table(selection).to_batches(batch_size=PART_ROWS):
                beside = kept.take(batch.column("row_id").to_numpy(), columns).combine_chunks()
                yield from pa.table([*batch.columns, *beside.columns], schema=wide).to_batches()

    return pa.RecordBatchReader.from_batches(wide, joined())


def iter_found(
    files: Sequence[SourceFile], fields: Sequence[pa.Field], wanted_M: Int64s, id_column: str | None
) -> Iterator[pa.Table]:
    """Yield the row ids and fields of the rows with these ascending ids, in the files' order."""
    for file in files:
        start = 0
        for batch in read_rows(file, columns=[field.name for field in fields]):
            ids_B = get_row_ids(file, start, start + batch.num_rows, id_column)
            start += batch.num_rows
            place_B = np.searchsorted(wanted_M, ids_B)  # `np.isin` would sort all wanted ids for each batch
            (inside_M,) = np.nonzero(place_B < len(wanted_M))
            at_M = inside_M[wanted_M[place_B[inside_M]] == ids_B[inside_M]]
            taken = batch.take(pa.array(at_M))
            columns = [as_kept(taken.column(field.name), field.type) for field in fields]
            yield pa.table([pa.array(ids_B[at_M]), *columns], schema=pa.schema([schemas.ROW_ID, *fields]))


def write_data(rows: pa.RecordBatchReader, folder: Path, form: str) -> int:
    """Write the rows in their order to Parquet files, or a JSONL file, with the hub's names; return their number."""
    if form == "jsonl":
        write_file(rows, rows.schema, folder / "train-00000-of-00001.jsonl", form)
        return 1
    pyarrow.dataset.write_dataset(
        rows,
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
    arm = lineage["arm"]["name"]
    metadata = DatasetCardData(
        pretty_name=f"{lineage['run']['name']}, rows of the arm {arm}",
        task_categories=["text-generation"],
        tags=["trust-curation", "weak-to-strong", arm],
        configs=[{"config_name": "default", "data_files": [{"split": "train", "path": "data/train-*"}]}],
    )
    return _render_card(metadata, "rows_card.md.j2", lineage, pairs=pairs)


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
