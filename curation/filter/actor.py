"""The operator of ``Filter.map`` in an actor of Ray Data: a batch of rows in, the same rows with their trust out."""

from collections.abc import Sequence

import pyarrow as pa

from curation.config.filter import FilterTeacherConfig
from curation.domains import get_domain
from curation.errors import PackageError
from curation.filter.package import load
from curation.filter.scorer import Scorer, check_columns
from curation.refs import ModelRef


class ScoringActor:
    """Holds the teacher and the trust function of a package.

    Args:
        uri: the package, at a place that every node can read.
        digest: of the package that the driver read.
        allow_code: as it was given to the driver.
        model: its teacher; ``None`` for a backend without weights.
        runs: how it runs.
        id_column: as in :class:`~curation.filter.scorer.Scorer`.
        prefix: of the names of the columns that are added.

    Raises:
        PackageError: the package on this node is another one.
    """

    def __init__(
        self,
        uri: str,
        *,
        digest: str,
        allow_code: Sequence[str],
        model: ModelRef | None,
        runs: FilterTeacherConfig,
        id_column: str | None,
        prefix: str,
    ) -> None:
        package = load(uri, allow_code=allow_code)
        if package.digest != digest:
            raise PackageError(f"{uri}: has the digest {package.digest} on this node, and {digest} on the driver's")
        self._scorer = Scorer(package, model, runs=runs, id_column=id_column)
        self._domain, self._prefix = get_domain(package.description.domain), prefix

    def __call__(self, batch: pa.Table) -> pa.Table:
        """The batch with the columns of ``RESULT`` at its end, row by row."""
        check_columns(self._domain, batch.schema.names, self._prefix)
        scored, _ = self._scorer.scored(batch.to_pylist())
        for name in scored.schema.names:
            batch = batch.append_column(f"{self._prefix}{name}", scored[name])
        return batch
