"""Labels and scores rows with a package's teacher and trust function, in this process.

A row is either a row of the user's files, which the domain reads, or an example of the domain's own columns. A row that
cannot be read or labelled gets an error and no score. A row whose label cannot be read gets no score, either.
"""

import hashlib
import json
from collections.abc import Collection, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from curation.config.filter import FilterTeacherConfig
from curation.domains import Domain, attempt, get_domain
from curation.errors import ConfigError, RowError, SourceError
from curation.filter.package.content import check_content
from curation.filter.package.folder import TrustPackage
from curation.json_types import Json, JsonView
from curation.refs import ModelRef
from curation.sources.missing import replace_missing
from curation.stages.deal import find_schema_problem
from curation.stages.label_chunks import AskSettings, label_rows
from curation.teachers import load_teacher
from curation.teachers.wrapped import WrappedTeacher
from curation.trust import load_fitted

Row = JsonView

RESULT = pa.schema(
    [
        pa.field("label", pa.string()),  # the weak label; null: error, or the answer states none
        pa.field("completion", pa.string()),  # what the teacher answered
        pa.field("trust", pa.float32()),  # in [0, 1]; null where there is no label
        pa.field("trust_raw", pa.float32()),  # the score that ranks rows: a float32 sigmoid saturates at 1
        pa.field("error", pa.string()),  # ``kind: detail``; null for a healthy row
    ]
)
"""Columns of a row's result."""


class Scorer:
    """A loaded teacher and trust function.

    Args:
        package: a trust package.
        model: the package's teacher on this machine, or ``None`` for a backend without weights.
        runs: how the teacher runs.
        id_column: a column of integers, the rows' ids, which seed sampled answers. If unset, ids are hashes of the
            examples, so that equal rows have equal answers at any position.

    Raises:
        ConfigError: spending is limited, but no folder is configured that records it.
    """

    def __init__(
        self,
        package: TrustPackage,
        model: ModelRef | None,
        *,
        runs: FilterTeacherConfig | None = None,
        id_column: str | None = None,
    ) -> None:
        check_content(package)
        description = package.description
        ask = (runs or FilterTeacherConfig()).asking(description.ask)
        if ask.endpoint is not None and ask.endpoint.limit is not None and ask.endpoint.paid is None:
            raise ConfigError(
                f"teacher.endpoint.limit: {ask.endpoint.limit:g} would be that of each process, from its start on; "
                "name a folder in teacher.endpoint.paid, in which all of them count, or leave limit out"
            )
        num_gpus = ask.actors.num_gpus or float(torch.cuda.is_available())
        ask = ask.model_copy(update={"actors": ask.actors.model_copy(update={"num_gpus": num_gpus})})
        self._asked = AskSettings(teacher=ask, decoding=description.decoding, seed=description.seed)
        self._domain = get_domain(description.domain)
        self._teacher = WrappedTeacher(load_teacher(ask, model))
        self._trust = load_fitted(package.trust)
        self._id_column = id_column

    def scored(self, rows: Sequence[Row]) -> tuple[pa.Table, pa.Table]:
        """Return ``RESULT``'s columns in the order of ``rows``, and the teacher's answers and states by row id."""
        ids, examples = self._read_examples(rows)
        if not examples:
            return RESULT.empty_table(), pa.table({})
        answers = pa.Table.from_batches(list(label_rows(self._asked, self._domain, self._teacher, examples)))
        place_of = {row_id: place for place, row_id in enumerate(answers["row_id"].to_pylist())}
        (batch,) = answers.combine_chunks().to_batches()
        raw_N = self._trust.raw_score(batch)
        raw_N = np.where(batch.column("label").is_valid().to_numpy(zero_copy_only=False), raw_N, np.float32(np.nan))
        columns = {
            **{name: answers[name] for name in ("label", "completion", "error")},
            "trust": pa.array(self._trust.to_trust(raw_N), pa.float32(), from_pandas=True),
            "trust_raw": pa.array(raw_N, pa.float32(), from_pandas=True),
        }
        places = pa.array([place_of[row_id] for row_id in ids], pa.int64())
        return pa.table(columns).select(RESULT.names).take(places), answers

    def _read_examples(self, rows: Sequence[Row]) -> tuple[list[int], list[Json]]:
        """Return each row's id, and the distinct examples as rows of an examples table."""
        ids: list[int] = []
        examples: dict[int, Json] = {}
        for row in rows:
            raw = replace_missing({name: value for name, value in row.items() if name != self._id_column})
            example, problem = attempt(read, self._domain, raw)
            row_id = _hash(example or raw) if self._id_column is None else self._read_id(row)
            entry = {**(example or {}), "row_id": row_id, "error": problem or None}
            if examples.setdefault(row_id, entry) != entry and self._id_column is not None:
                raise SourceError(
                    f"{self._id_column}: {row_id} is the id of two different rows; give a column of unique integers"
                )
            ids.append(row_id)
        return ids, list(examples.values())

    def _read_id(self, row: Row) -> int:
        value = row.get(self._id_column or "")
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise SourceError(f"{self._id_column}: {value!r} is not an integer; give a column of unique integers")
        return int(value)


def read(domain: Domain, raw: Row) -> Json:
    """Return the example of a row of a user's file, or the row itself if it is an example.

    Raises:
        RowError: the domain cannot read the row, ``missing_column``, or ``bad_value``.
    """
    if missing := find_missing_columns(domain, raw):
        raise RowError(f"missing_column: {', '.join(missing)}")
    own = not any(set(form) <= raw.keys() for form in domain.forms)
    example = {name: raw[name] for name in domain.columns.names} if own else dict(domain.read(raw))
    if problem := find_schema_problem(example, domain.columns):
        raise RowError(problem)
    return example


def find_missing_columns(domain: Domain, columns: Collection[str]) -> list[str]:
    """Return the columns that rows lack for a domain, in the form that lacks the fewest; empty if none is missing."""
    forms = [*domain.forms, tuple(domain.columns.names)]
    return min(([name for name in form if name not in columns] for form in forms), key=len)


def check_columns(domain: Domain, columns: Collection[str], prefix: str) -> None:
    """Refuse rows that lack a column that is read, or have one with the name of an added one.

    Raises:
        SourceError: rows do; the message names the column.
    """
    if missing := find_missing_columns(domain, columns):
        forms = " or ".join(", ".join(form) for form in (*domain.forms, domain.columns.names))
        raise SourceError(f"rows lack the column {', '.join(missing)} of the domain {domain.name}, which reads {forms}")
    check_names(columns, prefix)


def check_names(columns: Collection[str], prefix: str) -> None:
    """Refuse rows that have a column with the name of an added one.

    Raises:
        SourceError: rows do; the message names the column.
    """
    if taken := [name for name in RESULT.names if f"{prefix}{name}" in columns]:
        raise SourceError(
            f"rows have a column {prefix}{taken[0]} already; give a prefix for the added columns, e.g. prefix='weak_'"
        )


def _hash(row: Row) -> int:
    """Return a 63-bit hash of a row's content, as its row id."""

    def plain(value: object) -> Any:
        return value.tolist() if hasattr(value, "tolist") else str(value)  # numpy's own text leaves numbers out

    text = json.dumps(row, sort_keys=True, default=plain)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
