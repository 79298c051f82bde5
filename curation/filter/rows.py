"""The library interface of filters: a trust package that labels and scores a user's rows."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import torch

from curation.config.filter import FilterTeacherConfig
from curation.domains import Domain, attempt, get_domain
from curation.errors import ConfigError, PackageError, RowError, SourceError
from curation.escaping import get_logger
from curation.filter.package.checks import check_content, check_package
from curation.filter.package.folder import TrustPackage, load
from curation.json_types import Json, JsonView
from curation.refs import ModelRef
from curation.sources.missing import replace_missing
from curation.stages.label_chunks import AskSettings, label_rows
from curation.stages.split_tables import find_schema_problem
from curation.teachers import load_teacher
from curation.teachers.wrapped import WrappedTeacher
from curation.trust import load_fitted
from curation.trust.states import StateTrust

if TYPE_CHECKING:
    import ray.data

Row = JsonView
BATCH_ROWS = 256
_log = get_logger(__name__)
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


def read(domain: Domain, raw: Row) -> Json:
    """Return the example of a row of a user's file, or the row itself if it is one; a ``RowError`` if it is neither."""
    if missing := find_missing_columns(domain, raw):
        raise RowError(f"missing_column: {', '.join(missing)}")
    is_example = not any(set(form) <= raw.keys() for form in domain.forms)
    example = {name: raw[name] for name in domain.columns.names} if is_example else dict(domain.read(raw))
    if problem := find_schema_problem(example, domain.columns):
        raise RowError(problem)
    return example


def find_missing_columns(domain: Domain, columns: Collection[str]) -> list[str]:
    """Return the columns that rows lack for a domain, in the form that lacks the fewest; empty if none is missing."""
    forms = [*domain.forms, tuple(domain.columns.names)]
    return min(([name for name in form if name not in columns] for form in forms), key=len)


def check_columns(domain: Domain, columns: Collection[str]) -> None:
    """Refuse rows that lack a column of the domain or have a column of ``RESULT``, by a ``SourceError``."""
    if missing := find_missing_columns(domain, columns):
        forms = " or ".join(", ".join(form) for form in (*domain.forms, domain.columns.names))
        raise SourceError(f"rows lack the column {', '.join(missing)} of the domain {domain.name}, which reads {forms}")
    check_names(columns)


def check_names(columns: Collection[str]) -> None:
    """Refuse rows that have a column of ``RESULT``, by a ``SourceError``."""
    if taken := [name for name in RESULT.names if name in columns]:
        raise SourceError(f"rows have a column {taken[0]} already, which is added; rename it")


def _hash(row: Row) -> int:
    """Return a 63-bit hash of a row's content, as its row id."""

    def plain(value: object) -> Any:
        return value.tolist() if hasattr(value, "tolist") else str(value)  # numpy's own text leaves numbers out

    text = json.dumps(row, sort_keys=True, default=plain)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


class Filter:
    """A filter that labels and scores rows with the teacher and the trust function of a package.

    ``Filter.load("package").score(rows)`` works on a stream in this process, ``.map(dataset)`` in actors of Ray Data.
    Rows keep their columns and get those of ``curation.filter.rows.RESULT``: ``label``, ``completion``, ``trust`` in
    [0, 1], ``trust_raw`` (the score that ranks rows) and ``error``. A row that cannot be read or labelled stays, with
    an ``error`` and no trust; a row whose answer states no label has no trust either. The user decides which to keep.
    """

    def __init__(
        self, package: TrustPackage, model: ModelRef | None, *, runs: FilterTeacherConfig | None = None
    ) -> None:
        self.package = package
        self._settings: dict[str, Any] = {"model": model, "runs": runs}
        self._domain = get_domain(package.description.domain)

    @classmethod
    def load(
        cls,
        package: str | Path | TrustPackage,
        *,
        teacher: ModelRef | str | None = None,
        runs: FilterTeacherConfig | None = None,
        allow_code: Sequence[str] = (),
        anyway: bool = False,
    ) -> Self:
        """Read a package and check that its teacher and domain are those here; the first row loads the weights.

        Args:
            package: a folder or URL that ``curate export-trust`` wrote.
            teacher: the current place of the teacher, if not the one that the package names; its content is checked.
            runs: how the teacher runs (engine, batches), as in ``teacher`` of a filter's configuration.
            allow_code: code that the package may name besides registered parts, each ``module:NAME``.
            anyway: whether to use the package even if the verdict of its run is "do not use".

        Raises:
            PackageError: the package is missing or incomplete, names code that is not allowed, has the verdict "do not
                use", does not fit the teacher, backend or domain, or its teacher reads answers of a server.
            ModelError: the teacher is no model.
        """
        found = package if isinstance(package, TrustPackage) else load(str(package), allow_code=allow_code)
        if found.description.bought is not None:
            raise PackageError(
                f"{found.uri}: its teacher reads answers that a server gives, which are to be bought and kept before; "
                "filter files by `curate filter`, which does both"
            )
        model, warning = check_package(found, runs or FilterTeacherConfig(), teacher, anyway=anyway)
        if warning is not None:
            _log.warning(warning)
        return cls(found, model, runs=runs)

    @cached_property
    def loaded(self) -> tuple[AskSettings, WrappedTeacher, StateTrust]:
        """Settings of the teacher, the teacher, and the trust function; a spending limit requires a folder for it."""
        check_content(self.package)
        description = self.package.description
        ask = (self._settings["runs"] or FilterTeacherConfig()).asking(description.ask)
        if ask.endpoint is not None and ask.endpoint.limit is not None and ask.endpoint.paid is None:
            raise ConfigError(
                f"teacher.endpoint.limit: {ask.endpoint.limit:g} would be that of each process, from its start on; "
                "name a folder in teacher.endpoint.paid, in which all of them count, or leave limit out"
            )
        num_gpus = ask.actors.num_gpus or float(torch.cuda.is_available())
        ask = ask.model_copy(update={"actors": ask.actors.model_copy(update={"num_gpus": num_gpus})})
        settings = AskSettings(teacher=ask, decoding=description.decoding, seed=description.seed)
        return settings, WrappedTeacher(load_teacher(ask, self._settings["model"])), load_fitted(self.package.trust)

    def score(
        self, rows: Iterable[Row], *, batch_rows: int = BATCH_ROWS, tell: Callable[[pa.Table], object] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield each row with its label and trust, in the order of ``rows``, as batches are labelled.

        Args:
            rows: rows as in the domain's files, or examples of the domain's own columns.
            batch_rows: the number of rows that are labelled together, by which the stream lags.
            tell: a function that gets the teacher's answers to each batch, with states: a labels table.

        Raises:
            SourceError: a row has a column with the name of an added one.
        """
        stream = iter(rows)
        while batch := list(islice(stream, batch_rows)):
            for row in batch:
                check_names(row)
            scored, answers = self._compute_scores(batch)
            if tell is not None:
                tell(answers)
            for row, found in zip(batch, scored.to_pylist(), strict=True):
                yield {**row, **found}

    def _compute_scores(self, rows: Sequence[Row]) -> tuple[pa.Table, pa.Table]:
        """Return ``RESULT``'s columns in the order of ``rows``, and the teacher's answers and states by row id."""
        settings, teacher, trust = self.loaded
        ids, examples = self._read_examples(rows)
        if not examples:
            return RESULT.empty_table(), pa.table({})
        answers = pa.Table.from_batches(list(label_rows(settings, self._domain, teacher, examples)))
        place_of = {row_id: place for place, row_id in enumerate(answers["row_id"].to_pylist())}
        (batch,) = answers.combine_chunks().to_batches()
        has_label_N = batch.column("label").is_valid().to_numpy(zero_copy_only=False)
        raw_N = np.where(has_label_N, trust.raw_score(batch), np.float32(np.nan))
        columns = {
            **{name: answers[name] for name in ("label", "completion", "error")},
            "trust": pa.array(trust.to_trust(raw_N), pa.float32(), from_pandas=True),
            "trust_raw": pa.array(raw_N, pa.float32(), from_pandas=True),
        }
        places = pa.array([place_of[row_id] for row_id in ids], pa.int64())
        return pa.table(columns).select(RESULT.names).take(places), answers

    def _read_examples(self, rows: Sequence[Row]) -> tuple[list[int], list[Json]]:
        """Return each row's id, a hash of its content, and the distinct examples as rows of an examples table."""
        ids: list[int] = []
        examples: dict[int, Json] = {}
        for row in rows:
            raw = replace_missing(row)
            example, problem = attempt(read, self._domain, raw)
            ids.append(_hash(example or raw))
            examples[ids[-1]] = {**(example or {}), "row_id": ids[-1], "error": problem or None}
        return ids, list(examples.values())

    def map(self, dataset: "ray.data.Dataset", *, batch_rows: int = BATCH_ROWS, **options: Any) -> "ray.data.Dataset":
        """Return the dataset with label and trust of each row, as one lazy operator of its pipeline.

        Args:
            dataset: rows as in the domain's files, or examples of the domain's own columns, and any further columns.
            batch_rows: the number of rows per call of an actor.
            options: further options of ``map_batches``, e.g. ``compute`` and ``num_gpus``; by default one actor, which
                holds the whole teacher. Ray replaces a process that died, and repeats its batch, twice; then the
                pipeline fails. Only ``curate filter`` finds the rows that kill a process.

        Raises:
            SourceError: the dataset lacks a column that is read, or has one with the name of an added one. If its
                schema is not known yet, the pipeline fails with this error later.
        """
        import ray.data

        schema = dataset.schema(fetch_if_missing=False)
        if schema is not None:
            check_columns(self._domain, schema.names)
        package = {name: getattr(self.package, name) for name in ("uri", "digest", "allow_code")}
        one_actor = ray.data.ActorPoolStrategy(min_size=1, max_size=1)
        defaults: dict[str, Any] = {"compute": one_actor, "num_cpus": 1, "max_restarts": 2, "max_task_retries": 2}
        return dataset.map_batches(
            _ScoringActor,
            fn_constructor_kwargs={**package, **self._settings},
            batch_size=batch_rows,
            batch_format="pyarrow",
            zero_copy_batch=True,
            **{**defaults, **options},
        )


class _ScoringActor:
    """An actor that scores batches of rows by the driver's package, read from a place that every node can read."""

    def __init__(self, uri: str, digest: str, allow_code: Sequence[str], **settings: Any) -> None:
        package = load(uri, allow_code=allow_code)
        if package.digest != digest:
            raise PackageError(f"{uri}: has the digest {package.digest} on this node, and {digest} on the driver's")
        self._filter = Filter(package, **settings)
        self._filter.loaded  # noqa: B018 (load the weights before the first batch)

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Return the batch with the columns of ``RESULT`` appended."""
        check_columns(self._filter._domain, batch.schema.names)
        scored, _ = self._filter._compute_scores(batch.to_pylist())
        for name in RESULT.names:
            batch = batch.append_column(name, scored[name])
        return batch
