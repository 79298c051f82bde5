"""The configuration that ``curate init --data`` writes, with comments that say what was guessed, and why."""

import math
import os
import textwrap
from pathlib import Path
from typing import Any

import yaml

from curation.config.inputs import COMMA
from curation.extras.init.table import TableFiles, is_id
from curation.extras.init.task import DetectedTask
from curation.json_types import Json
from curation.label_columns import make_given_column
from curation.report.headline import make_environment
from curation.tables.schemas import SELECTION

FEW_ROWS, MOST_ROWS = 0.4, 2_000
"""Share, and maximum number, of a single file's labelled rows on which trust is fitted."""


def draft_config(task: DetectedTask, config: Path, model: str, *, guessed_model: bool) -> str:
    """Return the text of a configuration file for the path ``config``, with paths relative to its folder."""
    folder = config.absolute().parent

    def describe_source(table: TableFiles) -> Json:
        path = {"path": _make_relative(table.path, folder)}
        return path if table.delimiter == COMMA else path | {"delimiter": table.delimiter}

    num_labelled = task.labelled.num_rows
    source_split: Json = {"from": "labelled"}
    num_pool = num_labelled - min(MOST_ROWS, int(num_labelled * FEW_ROWS))
    sources = {"labelled": task.labelled}
    if task.unlabelled is not None:
        sources["unlabelled"], num_pool = task.unlabelled, task.unlabelled.num_rows
    else:
        is_few = num_labelled * FEW_ROWS <= MOST_ROWS
        source_split |= {"fraction": FEW_ROWS} if is_few else {"rows": MOST_ROWS}
    columns = (task.unlabelled or task.labelled).columns
    environment = make_environment("curation.extras.init", keep_trailing_newline=True)
    environment.filters |= {"yaml": _format_yaml, "comment": _format_comment, "source": describe_source}
    return environment.get_template("config.yaml.j2").render(
        task=task,
        given=task.given,
        name=config.name,
        stem=config.stem,
        sources=sources,
        source_split=source_split,
        model=_make_relative(model, folder),
        is_guessed=guessed_model,
        num_pool=num_pool,
        arms=["internal_confidence"] if task.given is None else [*map(make_given_column, task.given.confidence)],
        ids=[name for name in columns if is_id(name) and name not in SELECTION.names],
    )


def _make_relative(path: str, folder: Path) -> str:
    """Return a local path relative to the configuration's folder, or a URL or a hub id unchanged."""
    if "://" in path or not (Path(path).exists() or "*" in path):
        return path
    relative = os.path.relpath(path, folder)
    return os.path.abspath(path) if relative.startswith("../..") else relative


class OneLine(yaml.SafeDumper):
    """A YAML writer that puts a text of several lines on one line, in quotes."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Return the node of a text."""
        return self.represent_scalar("tag:yaml.org,2002:str", data, style='"' if "\n" in data else None)


OneLine.add_representer(str, OneLine.represent_str)


def _format_yaml(value: Any) -> str:
    """Return a value as one line of YAML."""
    text = yaml.dump(value, None, OneLine, default_flow_style=True, width=math.inf, sort_keys=False, allow_unicode=True)
    return str(text).removesuffix("...\n").strip()


def _format_comment(text: str, begin: str = "# ") -> str:
    later = "#" + " " * (len(begin) - 1)
    text = " ".join(text.split())
    return textwrap.fill(text, 120, initial_indent=begin, subsequent_indent=later, break_long_words=False)
