"""A trust package behind HTTP, on Ray Serve: rows in, labels and trust out, and a watch over how the rows look.

    pip install "ray[serve]==2.60.*"
    serve run deploy.serve:app package=s3://my-bucket/trust/mine          # in this checkout, or with it in the image
    curl -d '[{"fen": "...", "moves": "..."}]' http://localhost:8000/

The body is a row or a list of rows, as in the domain's files; the answer has the same shape. Rows of concurrent
requests are labelled together. Each replica compares the newest rows with the package's sample of the teacher's states
and emits the result as a metric; docs/operations.md has the alarm.

Arguments of ``app``, all but the first optional: ``package``; ``teacher``, where its weights are now; ``allow_code``,
names of code of your own that the package needs, with commas between; ``replicas``;
``num_cpus`` and ``num_gpus`` of a replica; ``batch_rows`` and ``batch_wait_seconds``; ``window`` and ``every`` of the
watch (rows).
"""

import asyncio
from typing import Any

from ray import serve
from ray.serve import Application
from starlette.requests import Request
from starlette.responses import JSONResponse

from curation.errors import SourceError
from curation.filter import Replica

Row = dict[str, Any]


@serve.deployment(max_ongoing_requests=256)
class TrustFilter:
    """One replica.

    Args:
        package: a folder or URL that ``curate export-trust`` wrote.
        batch_rows: requests that are labelled together at most.
        batch_wait_seconds: how long the first of them waits for others.
        settings: further ones of ``curation.filter.Replica``.
    """

    def __init__(
        self, package: str, *, batch_rows: int = 64, batch_wait_seconds: float = 0.02, **settings: Any
    ) -> None:
        self._replica = Replica(package, **settings)
        self._score.set_max_batch_size(batch_rows)
        self._score.set_batch_wait_timeout_s(batch_wait_seconds)

    @serve.batch
    async def _score(self, requests: list[list[Row]]) -> list[list[Row]]:
        """Label the rows of several requests together."""
        rows = [row for request in requests for row in request]
        found = iter(await asyncio.to_thread(self._replica.answer, rows))  # Serve waits for one batch before the next
        return [[next(found) for _ in request] for request in requests]

    async def __call__(self, request: Request) -> JSONResponse:
        """A row or a list of rows, as JSON; 400 with a message for anything else."""
        try:
            rows, is_list = self._replica.rows_of(await request.body())
        except SourceError as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        found = await self._score(rows) if rows else []
        return JSONResponse(found if is_list else found[0])


def app(arguments: dict[str, str]) -> Application:
    """The application of ``serve run deploy.serve:app package=... [NAME=VALUE ...]``."""
    given = dict(arguments)
    resources = {name: float(given.pop(name)) for name in ("num_cpus", "num_gpus") if name in given}
    replicas = int(given.pop("replicas", 1))
    kinds: dict[str, Any] = {
        "allow_code": lambda names: names.split(","),
        "anyway": lambda value: value == "true",
        "batch_rows": int,
        "batch_wait_seconds": float,
        "window": int,
        "every": int,
    }
    settings: dict[str, Any] = {name: kinds.get(name, str)(value) for name, value in given.items()}
    return TrustFilter.options(num_replicas=replicas, ray_actor_options=resources).bind(**settings)
