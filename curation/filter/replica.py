"""The server's work on a trust package: checks a request, answers its rows, watches them, emits metrics.

``deploy/serve.py`` puts it behind Ray Serve; it needs neither Serve nor Ray itself.
"""

import json
from collections import Counter
from collections.abc import Sequence

from curation.errors import RowError, SourceError
from curation.filter.rows import Filter
from curation.json_types import Json
from curation.telemetry import metrics
from curation.telemetry.metrics import Telemetry

Row = Json

MAX_ROWS = 4096
"""Rows of the largest request."""


class Replica:
    """A loaded package: a teacher, its trust function, a watch over the rows.

    Args:
        package: a folder or URL that ``curate export-trust`` wrote.
        teacher: where the teacher is now, if not where the package says.
        allow_code: code that the package may name besides registered parts, each ``module:NAME``.
        anyway: use it although the verdict of its run is "do not use".
        window: rows that are compared with the package's sample.
        every: new rows between two comparisons.
        telemetry: emits the metrics; unset, under the name of the package's run.

    Raises:
        PackageError: as :meth:`Filter.load`.
    """

    def __init__(
        self,
        package: str,
        teacher: str | None = None,
        *,
        allow_code: Sequence[str] = (),
        anyway: bool = False,
        window: int = 2000,
        every: int = 500,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._filter = Filter.load(package, teacher=teacher, allow_code=allow_code, anyway=anyway)
        found = self._filter.package
        has_states = bool(found.description.sample.states)
        self.watch = self._filter.watch(window=window, every=every) if has_states else None
        self._telemetry = telemetry or Telemetry(run=found.description.made.run, stage="serve")
        self._filter.scorer  # noqa: B018 (load the weights before the first request)

    def rows_of(self, body: bytes) -> tuple[list[Row], bool]:
        """The rows of a request's body, a JSON object or a list of them, and whether it was a list.

        Raises:
            SourceError: it is neither, has too many rows, or a row has a column of the name of one that is added.
        """
        try:
            found = json.loads(body)
        except ValueError as error:
            raise SourceError(f"the body is not JSON: {error}") from error
        is_list = isinstance(found, list)
        rows = found if is_list else [found]
        if not all(isinstance(row, dict) for row in rows):
            raise SourceError("a row is a JSON object; give one, or a list of them")
        if len(rows) > MAX_ROWS:
            raise SourceError(f"{len(rows):,} rows are more than {MAX_ROWS:,} in one request; divide them")
        if taken := {name for row in rows for name in row} & set(self._filter.added):
            raise SourceError(f"rows have the columns {', '.join(sorted(taken))} already, which are added; rename them")
        return rows, is_list

    def answer(self, rows: list[Row]) -> list[Row]:
        """Each row with its label and trust."""
        before = None if self.watch is None else self.watch.last
        found = list(self._filter.score(rows, batch_rows=max(1, len(rows)), watch=self.watch))
        self._telemetry.add(metrics.ROWS_SERVED, len(found))
        for kind, number in Counter(RowError(row["error"]).kind for row in found if row["error"]).items():
            self._telemetry.add(metrics.ERROR_ROWS, number, kind=kind)
        if self.watch is not None and (last := self.watch.last) is not None and last is not before:
            self._telemetry.tell_shift(last.to_json())
        return found
