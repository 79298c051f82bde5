"""The endpoint teacher of a test's server, and rows labelled by it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from endpoint_server import Server

from curation.config import AskConfig, DecodingConfig
from curation.config.external import EndpointConfig
from curation.teachers import Request, load_teacher
from curation.teachers.endpoint import EndpointTeacher

DECODING = DecodingConfig(max_tokens=8)
Rows = dict[int, dict[str, Any]]


@contextmanager
def teaching(
    server: Server, *, chat: bool = True, token_logprobs: int = 0, **settings: Any
) -> Iterator[EndpointTeacher]:
    config = AskConfig(
        backend="endpoint",
        states=(),
        chat_template=chat,
        token_logprobs=token_logprobs,
        endpoint=EndpointConfig(**{"url": server.url, "model": "m", "concurrency": 4, **settings}),
    )
    teacher = load_teacher(config, None)
    assert isinstance(teacher, EndpointTeacher)
    try:
        yield teacher
    finally:
        teacher.close()


def requests(num: int, **more: Any) -> list[Request]:
    return [Request(row_id=k, prompt=f"question {k}: {'x' * (k % 7)}", **more) for k in range(num)]


def labelled(teacher: EndpointTeacher, asked: list[Request], decoding: DecodingConfig = DECODING) -> Rows:
    """The rows by id; each comes once."""
    found = [row for batch in teacher.label(asked, decoding, seed=0) for row in batch.to_pylist()]
    assert len(found) == len({row["row_id"] for row in found})
    return {row["row_id"]: row for row in found}
