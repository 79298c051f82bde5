"""The command ``curate explain`` and what it prints, one fact per line; heavy modules are imported when it runs."""

import json
from collections.abc import Iterator

import click

from curation.errors import ConfigError
from curation.escaping import echo, escape_text, quote_text
from curation.json_types import JsonView
from curation.storage.paths import to_place

LONGEST = 160
"""Maximum length of prompt and completion in the list of a student's rows, in characters."""
MOST_INPUTS = 5
"""Maximum number of a stack's inputs that are shown for a row."""


@click.command()
@click.argument("run_dir")
@click.argument("row_id", required=False)
@click.option("--split", metavar="NAME", help="The split of the row, if rows of several sources have its id.")
@click.option("--student", metavar="ARM | STAGE", help="Show which rows taught a student, instead of one row.")
@click.option(
    "--generation",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="The generation of the student (default: the last).",
)
@click.option("--rows", type=click.IntRange(min=0), help="Rows of the student to show (default: 5).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(
    run_dir: str,
    row_id: str | None,
    split: str | None,
    student: str | None,
    generation: int | None,
    rows: int | None,
    as_json: bool,
) -> None:
    """Show everything that the run in RUN_DIR knows about the row ROW_ID, or which rows taught a student.

    For a row, it shows the source file, the prompt, each teacher's answer, trust and rank, and what every arm did with
    the row. Row ids are in every table and export of a run.
    """
    from curation.extras.explain.facts import explain_row, explain_student

    if (row_id is None) == (student is None):
        raise ConfigError("explain: give a ROW_ID, or --student with an arm or a stage; not both")
    if student is not None:
        if split is not None:
            raise ConfigError("--split: applies to a row; leave it out with --student")
        content = explain_student(to_place(run_dir), student, generation, 5 if rows is None else rows)
        lines = _describe_student(content)
    else:
        if generation is not None or rows is not None:
            raise ConfigError("--generation, --rows: apply to --student only; a row is shown with all its generations")
        text = str(row_id)
        if not text.isdecimal() or len(text) > 19 or int(text) >= 2**63:
            raise ConfigError(f"ROW_ID: {quote_text(text)} is not a row id, a whole number from 0 to 2^63 - 1")
        content = explain_row(to_place(run_dir), int(text), split)
        lines = _describe_row(content)
    if as_json:
        echo(json.dumps(content, indent=1, default=str))
        return
    for line in lines:
        echo(line)


def _describe_row(found: JsonView) -> Iterator[str]:
    """Yield the lines about a row."""
    yield _format_fact("row", f"{found['row_id']} of the split {found['split']}")
    if found["also_in"]:
        yield _format_fact("the same id", f"of other files, in {', '.join(found['also_in'])}: see them by --split")
    yield _format_fact("from", _describe_origin(found["origin"], found["row_id"]))
    if found["error"] is not None:
        yield _format_fact("error", found["error"])
    if found["prompt"] is not None:
        yield "prompt"
        yield from (f"    {line}" for line in found["prompt"].splitlines())
    gold = found["gold"] if found["has_audit"] else "not known (the run has no audit set)"
    yield _format_fact("gold", "none" if gold is None else gold)
    if not found["generations"]:
        yield _format_fact("labels", "none yet: no stage has labelled rows")
    for generation in found["generations"]:
        yield f"generation {generation['generation']}"
        yield from (f"  {line}" for line in _describe_generation(generation))


def _describe_student(found: JsonView) -> Iterator[str]:
    """Yield the lines about a student and its rows."""
    yield _format_fact("student", f"{found['student']}, from the base {_describe_model(found['base'])}")
    yield _format_fact("model", _describe_model(found["model"]))
    yield _format_fact("teacher", _describe_model(found["teacher"]))
    dropped = f", {found['rows_dropped']:,} dropped" if found["rows_dropped"] else ""
    yield _format_fact("rows", f"{found['num_rows']:,} selected, {found['rows_trained']:,} trained on{dropped}")
    yield _format_fact("epochs", f"{found['epochs']:,}")
    yield _format_fact("table", f"{found['table']['uri']} version {found['table']['version']}")
    yield _format_fact("read all", f"`{found['read_all']}`")
    for row in found["rows"]:
        label = f"{row['label_source']} label {_format_label(row['label'])}, trust {_format_number(row['trust'])}"
        yield f"rank {row['rank']}: row {row['row_id']}, {_describe_origin(row['origin'], row['row_id'])}: {label}"
        text = escape_text(" ".join(f"{row['prompt']} {row['completion']}".split()))
        yield f"    {text[:LONGEST]}{'...' if len(text) > LONGEST else ''}"


def _describe_generation(found: JsonView) -> Iterator[str]:
    if found["teacher"] is not None or found["why"] is None:
        yield _format_fact("teacher", _describe_model(found["teacher"]))
    weak = found["weak"]
    if weak is None:
        yield _format_fact("label", f"none: {found['why']}")
        return
    if weak.get("dropped"):
        yield _format_fact("label", "none: the first cut dropped the row by its prompt; the teacher was not asked")
        return
    if weak["error"] is not None:
        yield _format_fact("error", weak["error"])
        return
    graded = "" if found["correct"] is None else ", right" if found["correct"] else ", wrong"
    mean = _format_number(weak["mean_logprob"])
    yield _format_fact("completion", f"{weak['completion']!r}, mean log-probability {mean}")
    yield _format_fact("weak label", f"{_format_label(weak['label'])}{graded}")
    for name, scores in found["trust"].items():
        trust, raw = _format_number(scores["trust"]), _format_number(scores["raw"])
        yield _format_fact("trust", f"{name} {trust} (raw score {raw})")
    if found.get("weighed"):
        words = ", ".join(f"{item['input']} {item['adds']:+.2f}" for item in found["weighed"][:MOST_INPUTS])
        yield _format_fact("what weighed", f"{words} (added to the logit, against the mean row)")
    if found["arms"] is None:
        yield _format_fact("selection", found["unselected"])
        return
    for name, arm in found["arms"].items():
        cut = f"of {arm['num_selected']:,} selected"
        if arm["threshold"] is not None:
            cut += f", cut at raw score {_format_number(arm['threshold'])}"
        if arm["place"] is not None:
            cut += f"; by score {arm['place']:,} of {arm['num_scored']:,} rows with a label"
            cut += f", raw {_format_number(arm['raw'])}"
        if arm["left_out"] is not None:
            by, why = arm["left_out"]["by"], arm["left_out"]["why"]
            yield _format_fact(name, f"not selected, since {by} leaves it out: {why} ({cut})")
        elif not arm["selected"]:
            yield _format_fact(name, f"not selected ({cut})")
        else:
            learns = f"learns the {arm['label_source']} label {_format_label(arm['label'])}"
            yield _format_fact(name, f"selected, rank {arm['rank']:,} ({cut}); {learns}")


def _describe_origin(origin: JsonView, row_id: int) -> str:
    if origin["id_column"] is not None:
        where = origin["file"] or f"the files of source {origin['source']}"
        return f"{where}, where {origin['id_column']} is {row_id}"
    if origin["file"] is None:
        return f"source {origin['source']}, row {origin['row']:,} of a file that is not on record"
    return f"{origin['file']}, row {origin['row']:,} (the first is 0)"


def _describe_model(ref: JsonView | None) -> str:
    if ref is None:
        return "none: its backend has no weights"
    adapter = f" with adapter {ref['adapter']}" if ref.get("adapter") else ""
    return f"{ref['base']}{adapter}, fingerprint {ref['revision'] or 'none'}"


def _format_fact(name: str, value: str) -> str:
    return f"{name:<20} {escape_text(value)}"


def _format_label(label: str | None) -> str:
    return "unparsed" if label is None else label


def _format_number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
