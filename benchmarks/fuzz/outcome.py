"""What a command says and what a run directory holds, as a worker process tells them."""

import importlib
import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner

from curation.refs import TableRef, iter_leaves, iter_table_refs
from curation.rundir.manifest import Manifest
from curation.tables import io

Content = dict[str, list[Any]]
DIGITS = 5
"""Digits of a number that a fit that is done again gives again."""


class Told(NamedTuple):
    """The end of a command."""

    code: int
    out: str
    err: str
    trace: str
    """Of an exception that escaped; "" where none did."""

    @property
    def line(self) -> str:
        """Its refusal."""
        return next((line for line in self.err.splitlines() if line.startswith("curate: ")), "")


def tell(command: str, arguments: list[str]) -> Told:
    """Call a command, ``module:name``, in this process."""
    module, _, name = command.partition(":")
    try:
        done = CliRunner().invoke(getattr(importlib.import_module(module), name), arguments)
    except BaseException as error:  # a panic of Rust code is no Exception
        return Told(1, "", "", "".join(traceback.format_exception(error)))
    escaped = done.exception is not None and not isinstance(done.exception, SystemExit)
    trace = "".join(traceback.format_exception(done.exception)) if escaped and done.exception else ""
    return Told(done.exit_code, done.stdout, done.stderr, trace)


def content_of(home: str) -> Content | str:
    """Return the rows of all tables and exports that a run directory's records name, or why they cannot be read."""
    try:
        return _content(Path(home))
    except BaseException as error:  # whatever a damaged file makes of its reader
        return f"{type(error).__name__}: {error}"


def _content(home: Path) -> Content:
    found: Content = {}
    readers: dict[str, Callable[[Path], list[Any]]] = {
        ".jsonl": lambda path: [json.loads(line) for line in path.read_text().split("\n") if line],
        ".parquet": lambda path: pq.read_table(path).to_pylist(),
    }
    if (report := home / "report.json").is_file():
        found["report"] = _rounded(json.loads(report.read_text())["arms"])
    for stage, record in Manifest.load(home).stages.items():
        for ref in iter_table_refs(record.outputs):
            found[f"{stage}: {Path(ref.uri).name}"] = _rows(ref)
        for text in iter_leaves(record.outputs, str):
            path = Path(text)
            if path.suffix in readers and path.is_absolute():
                found[f"{stage}: {path.name}"] = [_rounded(row) for row in readers[path.suffix](path)]
    return found


def _rows(ref: TableRef) -> list[Any]:
    table = io.read(ref)
    states = [field.name for field in table.schema if pa.types.is_fixed_size_list(field.type)]
    rows = table.drop_columns(states).to_pylist()
    return [_rounded(row) for row in sorted(rows, key=lambda row: row.get("row_id", 0))]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return round(value, DIGITS) if isinstance(value, float) else value
