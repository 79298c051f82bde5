"""The library interface of filters: a trust package that labels and scores a user's rows."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from curation.config.filter import FilterTeacherConfig
from curation.domains import get_domain
from curation.errors import PackageError
from curation.escaping import get_logger
from curation.filter.package.checks import check_fits, check_runs, check_verdict, find_teacher
from curation.filter.package.folder import TrustPackage, load
from curation.filter.scorer import RESULT, Row, Scorer, check_columns, check_names
from curation.filter.watch import ShiftWatch
from curation.refs import ModelRef

if TYPE_CHECKING:
    import ray.data

BATCH_ROWS = 256
_log = get_logger(__name__)


class Filter:
    """A filter that labels and scores rows with the teacher and the trust function of a package.

    ``Filter.load("package").score(rows)`` works on a stream in this process, ``.map(dataset)`` in actors of Ray Data.
    Rows keep their columns and get those of ``curation.filter.scorer.RESULT``: ``label``, ``completion``, ``trust`` in
    [0, 1], ``trust_raw`` (the score that ranks rows) and ``error``. A row that cannot be read or labelled stays, with
    an ``error`` and no trust; a row whose answer states no label has no trust either. The user decides which to keep.
    """

    def __init__(
        self,
        package: TrustPackage,
        model: ModelRef | None,
        *,
        runs: FilterTeacherConfig | None = None,
        id_column: str | None = None,
        prefix: str = "",
    ) -> None:
        self.package = package
        self._settings: dict[str, Any] = {"model": model, "runs": runs, "id_column": id_column}
        self._prefix = prefix
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
        id_column: str | None = None,
        prefix: str = "",
    ) -> Self:
        """Read a package and check that its teacher and domain are those here; the first row loads the weights.

        Args:
            package: a folder or URL that ``curate export-trust`` wrote.
            teacher: the current place of the teacher, if not the one that the package names; its content is checked.
            runs: how the teacher runs (engine, batches), as in ``teacher`` of a filter's configuration.
            allow_code: code that the package may name besides registered parts, each ``module:NAME``.
            anyway: whether to use the package even if the verdict of its run is "do not use".
            id_column: a column of unique integers, the rows' ids, which seed sampled answers. If unset, ids are a hash
                of the row's content.
            prefix: the prefix of the names of added columns.

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
        if (warning := check_verdict(found, anyway=anyway)) is not None:
            _log.warning(warning)
        check_fits(found)
        if runs is not None:
            check_runs(found, runs)
        return cls(found, find_teacher(found, teacher), runs=runs, id_column=id_column, prefix=prefix)

    @property
    def added(self) -> tuple[str, ...]:
        """The names of the added columns."""
        return tuple(f"{self._prefix}{name}" for name in RESULT.names)

    @cached_property
    def scorer(self) -> Scorer:
        """The loaded teacher and trust function of this process."""
        return Scorer(self.package, **self._settings)

    def score(
        self, rows: Iterable[Row], *, batch_rows: int = BATCH_ROWS, watch: ShiftWatch | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield each row with its label and trust, in the order of ``rows``, as batches are labelled.

        Args:
            rows: rows as in the domain's files, or examples of the domain's own columns.
            batch_rows: the number of rows that are labelled together, by which the stream lags.
            watch: a watch that gets every batch (``curation.filter.watch``).

        Raises:
            SourceError: a row has a column with the name of an added one, or an invalid id.
        """
        stream = iter(rows)
        while batch := list(islice(stream, batch_rows)):
            for row in batch:
                check_names(row, self._prefix)
            scored, answers = self.scorer.scored(batch)
            if watch is not None:
                watch.add(answers)
            for row, found in zip(batch, scored.to_pylist(), strict=True):
                yield {**row, **dict(zip(self.added, found.values(), strict=True))}

    def _append_scores(self, batch: pa.Table) -> pa.Table:
        check_columns(self._domain, batch.schema.names, self._prefix)
        scored, _ = self.scorer.scored(batch.to_pylist())
        for name, column in zip(self.added, scored.columns, strict=True):
            batch = batch.append_column(name, column)
        return batch

    def watch(self, *, window: int = 2000, every: int = 500) -> ShiftWatch:
        """Return a watch that compares the rows of a stream with the package's sample.

        Raises:
            ValueError: the trust function reads no hidden states.
        """
        return ShiftWatch(self.package.reference(), window=window, every=every, seed=self.package.description.made.seed)

    def map(
        self,
        dataset: "ray.data.Dataset",
        *,
        batch_rows: int = BATCH_ROWS,
        min_actors: int = 1,
        max_actors: int = 1,
        num_cpus: float = 1,
        num_gpus: float = 0,
        memory_gib: float = 0,
        max_restarts: int = 2,
        max_task_retries: int = 2,
    ) -> "ray.data.Dataset":
        """Return the dataset with label and trust of each row, as one lazy operator of its pipeline.

        Args:
            dataset: rows as in the domain's files, or examples of the domain's own columns, and any further columns.
            batch_rows: the number of rows per call of an actor.
            min_actors: the minimum number of actors.
            max_actors: the maximum number of actors, each of which holds the whole teacher.
            num_cpus: the number of CPUs of an actor, and of threads of its model.
            num_gpus: the number of GPUs of an actor.
            memory_gib: the memory of an actor, in GiB; 0 declares none.
            max_restarts: how often Ray replaces a process that died.
            max_task_retries: how often Ray repeats a batch whose process died, before the pipeline fails with an
                ``ActorDiedError``. Only ``curate filter`` finds the rows that kill a process.

        Raises:
            SourceError: the dataset lacks a column that is read, or has one with the name of an added one. If its
                schema is not known yet, the pipeline fails with this error later.
        """
        import ray.data

        schema = dataset.schema(fetch_if_missing=False)
        if schema is not None:
            check_columns(self._domain, schema.names, self._prefix)
        return dataset.map_batches(
            _ScoringActor,
            fn_constructor_kwargs={
                "uri": self.package.uri,
                "digest": self.package.digest,
                "allow_code": self.package.allow_code,
                "prefix": self._prefix,
                **self._settings,
            },
            batch_size=batch_rows,
            batch_format="pyarrow",
            zero_copy_batch=True,
            compute=ray.data.ActorPoolStrategy(min_size=min_actors, max_size=max_actors),
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            memory=memory_gib * 2**30 or None,
            max_restarts=max_restarts,
            max_task_retries=max_task_retries,
        )


class _ScoringActor:
    """An actor that scores batches of rows; it reads the package from a place that every node can read.

    Raises:
        PackageError: the package on this node has another digest than the driver's.
    """

    def __init__(self, uri: str, digest: str, allow_code: Sequence[str], **settings: Any) -> None:
        package = load(uri, allow_code=allow_code)
        if package.digest != digest:
            raise PackageError(f"{uri}: has the digest {package.digest} on this node, and {digest} on the driver's")
        self._filter = Filter(package, **settings)
        self._filter.scorer  # noqa: B018 (load the weights before the first batch)

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Return the batch with the columns of ``RESULT`` appended."""
        return self._filter._append_scores(batch)
