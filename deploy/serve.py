"""A trust package behind HTTP, on Ray Serve: rows in, labels and trust out, and a watch over how the rows look.

    pip install "ray[serve]==2.60.*"
    serve run deploy.serve:app package=s3://my-bucket/trust/mine          # in this checkout, or with it in the image
    curl -d '[{"fen": "...", "moves": "..."}]' http://localhost:8000/

The body is a row or a list of rows, as in the domain's files; the answer has the same shape. Rows of concurrent
requests are labelled together. Each replica compares the newest rows with the package's sample of the teacher's states
and emits the result as a metric; docs/operations.md has the alarm.

Arguments of ``app``, all but the first optional: ``package``; ``teacher``, where its weights are now; ``replicas``;
``num_cpus`` and ``num_gpus`` of a replica; ``batch_rows`` and ``batch_wait_seconds``; ``window`` and ``every`` of the
watch (rows).
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve import Application
from starlette.requests import Request
from starlette.responses import JSONResponse

from curation import Filter
from curation.errors import RowError
from curation.telemetry import metrics

Row = dict[str, Any]

MAX_ROWS = 4096
"""Rows of the largest request."""


@serve.deployment(max_ongoing_requests=256)
class TrustFilter:
    """One replica: a teacher, its trust function, a watch.

    Args:
        package: a folder or URL that ``curate export-trust`` wrote.
        teacher: where the teacher is now, if not where the package says.
        batch_rows: requests of one row that are labelled together at most.
        batch_wait_seconds: how long the first of them waits for others.
        window: rows that are compared with the package's sample.
        every: new rows between two comparisons.
    """

    def __init__(
        self,
        package: str,
        teacher: str | None = None,
        *,
        batch_rows: int = 64,
        batch_wait_seconds: float = 0.02,
        window: int = 2000,
        every: int = 500,
    ) -> None:
        self._filter = Filter.load(package, teacher=teacher)
        self._watch = self._filter.watch(window=window, every=every) if self._filter.package.reference() else None
        self._told = metrics.Telemetry(run=self._filter.package.description.made.run, stage="serve")
        self._filter.scorer  # noqa: B018 (load the weights before the first request)
        self._score.set_max_batch_size(batch_rows)
        self._score.set_batch_wait_timeout_s(batch_wait_seconds)

    @serve.batch
    async def _score(self, requests: list[list[Row]]) -> list[list[Row]]:
        """Label the rows of several requests together."""
        rows = [row for request in requests for row in request]
        found = iter(await asyncio.to_thread(self._work, rows))  # Serve waits for one batch before the next
        return [[next(found) for _ in request] for request in requests]

    def _work(self, rows: list[Row]) -> list[Row]:
        before = None if self._watch is None else self._watch.last
        found = list(self._filter.score(rows, batch_rows=max(1, len(rows)), watch=self._watch))
        self._told.add(metrics.ROWS_SERVED, len(found))
        for kind, number in Counter(RowError(row["error"]).kind for row in found if row["error"]).items():
            self._told.add(metrics.ERROR_ROWS, number, kind=kind)
        if self._watch is not None and (last := self._watch.last) is not None and last is not before:
            self._told.set(metrics.SHIFT_AUC, last.auc.value)
            self._told.set(metrics.SHIFT_AUC_LOW, last.auc.low)
        return found

    async def __call__(self, request: Request) -> JSONResponse:
        """A row or a list of rows, as JSON; 400 with a message for anything else."""
        try:
            body = await request.json()
        except ValueError as error:
            return _refused(f"the body is not JSON: {error}")
        rows = body if isinstance(body, list) else [body]
        if not all(isinstance(row, Mapping) for row in rows):
            return _refused("a row is a JSON object; give one, or a list of them")
        if len(rows) > MAX_ROWS:
            return _refused(f"{len(rows):,} rows are more than {MAX_ROWS:,} in one request; divide them")
        taken = {name for row in rows for name in row} & set(self._filter.added)
        if taken:
            return _refused(f"rows have the columns {', '.join(sorted(taken))} already, which are added; rename them")
        found = await self._score(rows) if rows else []
        return JSONResponse(found if isinstance(body, list) else found[0])


def _refused(why: str) -> JSONResponse:
    return JSONResponse({"error": why}, status_code=400)


def app(arguments: dict[str, str]) -> Application:
    """The application of ``serve run deploy.serve:app package=... [NAME=VALUE ...]``."""
    given = dict(arguments)
    resources = {name: float(given.pop(name)) for name in ("num_cpus", "num_gpus") if name in given}
    replicas = int(given.pop("replicas", 1))
    kinds = {"batch_rows": int, "batch_wait_seconds": float, "window": int, "every": int}
    settings: dict[str, Any] = {name: kinds.get(name, str)(value) for name, value in given.items()}
    return TrustFilter.options(num_replicas=replicas, ray_actor_options=resources).bind(**settings)
