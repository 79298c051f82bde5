"""The configuration that ``curate init --data`` writes, with comments that say what was guessed, and why."""

import json
import os
import re
import textwrap
from pathlib import Path
from typing import Any

from curation.config.inputs import COMMA
from curation.extras.init.table import TableFiles, is_id
from curation.extras.init.task import DetectedTask
from curation.json_types import Json
from curation.label_columns import make_given_column
from curation.tables.schemas import SELECTION

FEW_ROWS, MOST_ROWS = 0.4, 2_000
"""Share, and maximum number, of a single file's labelled rows on which trust is fitted."""
NO_TEXTS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
"""Words that YAML reads as other values."""


def draft_config(task: DetectedTask, config: Path, model: str, *, guessed_model: bool) -> str:
    """Return the text of a configuration file for the path ``config``, with paths relative to its folder."""
    folder = config.absolute().parent
    head = [
        _format_comment(
            f"Written by `curate init --data`; next: curate validate {config.name}, curate run {config.name}"
        ),
        _format_comment("What was guessed, and why (where it is wrong, change the line, or give the option):"),
        *(_format_comment(reason, "# - ") for reason in task.why),
    ]
    sources = [f"  labelled: {_format_source(task.labelled, folder)}"]
    num_pool = task.labelled.num_rows - min(MOST_ROWS, int(task.labelled.num_rows * FEW_ROWS))
    if task.unlabelled is not None:
        sources.append(f"  unlabelled: {_format_source(task.unlabelled, folder)}")
        num_pool = task.unlabelled.num_rows
    deal, rest = "", "unlabelled"
    if task.unlabelled is None:
        few, rest = task.labelled.num_rows * FEW_ROWS <= MOST_ROWS, "labelled"
        deal = f", fraction: {FEW_ROWS}" if few else f", rows: {MOST_ROWS}"
    audit = "\n  audit: true    # the pool's right answers are known: they measure what is selected"
    columns = (task.unlabelled or task.labelled).columns
    ids = [name for name in columns if is_id(name) and name not in SELECTION.names]  # they tell the pool's rows apart
    beside = f"\n# selected rows with your ids: curate export RUN_DIR -o DIR --columns {','.join(ids)}" if ids else ""
    arms = ["internal_confidence"] if task.given is None else [*map(make_given_column, task.given.confidence)]
    head_lines, source_lines = "\n".join(head), "\n".join(sources)
    return f"""\
{head_lines}
name: {_format_yaml(config.stem)}
domain: {_format_yaml(task.domain)}

sources:    # paths are relative to this file
{source_lines}

splits:
  source: {{from: labelled{deal}}}    # labelled rows, on which trust is learned
  pool: {{from: {rest}}}    # rows to label and select from{audit if task.audited else ""}

teacher:
{_draft_teacher(task, _format_yaml(_make_relative(model, folder)), is_guessed=guessed_model)}
selection:
  budget: {{n: {max(1, num_pool // 5)}}}    # rows to keep: a fifth of the pool
  arms: {_format_yaml(["naive", *arms, "trust"])}

generations: []    # no student; add one: - student: {{path: YOUR_BASE}}, with a split `test` of labelled rows{beside}
"""


def _draft_teacher(task: DetectedTask, model: str, *, is_guessed: bool) -> str:
    """Return the lines of ``teacher`` and ``trust``; a named model reads labels made elsewhere, if there are any."""
    states = "  states: [prompt_last, output_last]\n"
    guessed = "    # guessed: a small one; --model names yours" if is_guessed else ""
    given = task.given
    if given is None:
        long = "  # decoding: {max_tokens: 512}    # answers of reasoning models are long\n"
        more = (long if task.domain["name"] == "math" else "") + "  # actors: {num_gpus: 1}    # on GPUs\n"
        return f"  model: {{path: {model}}}{guessed}\n{states}{more}\ntrust:\n{states}"
    lines = f"  backend: given\n  completion: {_format_yaml(given.completion)}    # the label that came with each row\n"
    lines += f"  confidence: {_format_yaml(list(given.confidence))}    # larger is surer\n"
    if given.grade is not None:
        lines += f"  grade: {_format_yaml(given.grade)}    # is it right\n"
    if is_guessed:
        return f"{lines}  # reader: {{model: {{path: {model}}}}}    # reads each label, so that trust has its states\n"
    return f"{lines}  reader: {{model: {{path: {model}}}}}    # reads each label\n{states}\ntrust:\n{states}"


def _format_source(table: TableFiles, folder: Path) -> str:
    given: Json = {"path": _make_relative(table.path, folder)}
    if table.delimiter != COMMA:
        given["delimiter"] = table.delimiter
    listed = " ".join(table.listed.split())
    short = listed if len(listed) <= 60 else f"{listed[:57]}..."
    return f"{_format_yaml(given)}    # {table.num_rows:,} rows: {short}"


def _make_relative(path: str, folder: Path) -> str:
    """Return a local path relative to the configuration's folder, or a URL or a hub id unchanged."""
    if "://" in path or not (Path(path).exists() or "*" in path):
        return path
    relative = os.path.relpath(path, folder)
    return os.path.abspath(path) if relative.startswith("../..") else relative


def _format_yaml(value: Any) -> str:
    """Return a value as one line of YAML, with plain words unquoted."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_format_yaml(key)}: {_format_yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_format_yaml, value)) + "]"
    plain = isinstance(value, str) and re.sub("[_./-]", "", value).isalpha() and value[0].isalpha()
    return value if plain and value.casefold() not in NO_TEXTS else json.dumps(value, ensure_ascii=False)


def _format_comment(text: str, begin: str = "# ") -> str:
    later = "#" + " " * (len(begin) - 1)
    text = " ".join(text.split())
    return textwrap.fill(text, 120, initial_indent=begin, subsequent_indent=later, break_long_words=False)
