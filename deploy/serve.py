"""A trust package behind HTTP, on Ray Serve: rows in, labels and trust out, and a watch over how the rows look.

    pip install "ray[serve]==2.60.*"
    export CURATION_TOKEN=$(openssl rand -hex 32)                         # on every node, before Ray starts there
    serve run deploy.serve:app package=s3://my-bucket/trust/mine          # in this checkout, or with it in the image
    curl -H "Authorization: Bearer $CURATION_TOKEN" -d '[{"fen": "...", "moves": "..."}]' http://localhost:8000/

The body is a row or a list of rows, as in the domain's files; the answer has the same shape. A request without the
token is refused, and so is one of more than 4 MiB, 4,096 rows or 32 levels of lists and objects. Rows of concurrent
requests are labelled together; where that fails, each request alone. Each replica compares the newest rows with the
package's sample of the teacher's states and emits the result as a metric; docs/operations.md has the alarm.

Arguments of ``app``, all but the first optional: ``package``; ``teacher``, where its weights are now; ``allow_code``,
names of code of your own that the package needs, with commas between; ``token_env``, the variable of the token where it
is not ``CURATION_TOKEN``; ``open=true``, no token is asked for; ``replicas``;
``num_cpus`` and ``num_gpus`` of a replica; ``batch_rows`` and ``batch_wait_seconds``; ``window`` and ``every`` of the
watch (rows).
"""

import asyncio
import json
from typing import Any

from ray import serve
from ray.serve import Application
from starlette.requests import Request
from starlette.responses import Response

from curation.errors import SourceError
from deploy.replica import MAX_BYTES, TOKEN, Door, Replica

Row = dict[str, Any]


@serve.deployment(max_ongoing_requests=256)
class TrustFilter:
    """One replica.

    Args:
        package: a folder or URL that ``curate export-trust`` wrote.
        batch_rows: requests that are labelled together at most.
        batch_wait_seconds: how long the first of them waits for others.
        token_env: the environment variable that holds the token of those who may ask.
        is_open: let everybody ask.
        settings: further ones of ``deploy.replica.Replica``.
    """

    def __init__(
        self,
        package: str,
        *,
        batch_rows: int = 64,
        batch_wait_seconds: float = 0.02,
        token_env: str = TOKEN,
        is_open: bool = False,
        **settings: Any,
    ) -> None:
        self._door = Door(token_env, is_open=is_open)
        self._replica = Replica(package, **settings)
        self._score.set_max_batch_size(batch_rows)
        self._score.set_batch_wait_timeout_s(batch_wait_seconds)

    @serve.batch
    async def _score(self, requests: list[list[Row]]) -> list[list[Row] | Exception]:
        """Label the rows of several requests together."""
        return await asyncio.to_thread(self._replica.answer_each, requests)  # Serve waits for one batch before the next

    async def __call__(self, request: Request) -> Response:
        """Answer a row or a list of rows, as JSON: 401 without the token, 400 with a message for anything else."""
        if not self._door.lets_in(request.headers.get("authorization")):
            return _json({"error": "the token is missing or wrong; send Authorization: Bearer TOKEN"}, 401)
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MAX_BYTES:
                break  # the rest is not read
        try:
            rows, is_list = self._replica.rows_of(bytes(body))
            found = await self._score(rows) if rows else []
            if isinstance(found, Exception):
                raise found
        except SourceError as error:
            return _json({"error": str(error)}, 400)
        return _json(found if is_list else found[0], 200)


def _json(content: object, status: int) -> Response:
    return Response(json.dumps(content), status, media_type="application/json")


def app(arguments: dict[str, str]) -> Application:
    """The application of ``serve run deploy.serve:app package=... [NAME=VALUE ...]``."""
    given = dict(arguments)
    resources = {name: float(given.pop(name)) for name in ("num_cpus", "num_gpus") if name in given}
    replicas = int(given.pop("replicas", 1))
    kinds: dict[str, Any] = {
        "allow_code": lambda names: names.split(","),
        "anyway": lambda value: value == "true",
        "open": lambda value: value == "true",
        "batch_rows": int,
        "batch_wait_seconds": float,
        "window": int,
        "every": int,
    }
    settings: dict[str, Any] = {name: kinds.get(name, str)(value) for name, value in given.items()}
    settings["is_open"] = settings.pop("open", False)
    return TrustFilter.options(num_replicas=replicas, ray_actor_options=resources).bind(**settings)
