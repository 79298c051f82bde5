"""Errors of servers: what they say, and which of them a further try may not meet."""

import json
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

LONGEST_RETRY_AFTER = 3600.0
OF_ROWS = frozenset({400, 413, 422})
"""Refusals of one question."""
OF_ALL = frozenset({401, 402, 403, 404, 405, 501})
"""Refusals that every question would meet."""
REDIRECTS = range(300, 400)
UNBILLED = OF_ROWS | OF_ALL | {429, 503}
"""Refusals for which no server asks money: it has written nothing. After others, as 504, it may have."""


class RefusedError(Exception):
    """A question that the server does not answer, as the error of its row."""


class TryError(Exception):
    """A try without an answer.

    Args:
        words: what the server said, or what became of the connection.
        status: of the answer, if one came.
        code: the error's name, as the server gives it.
        retry_after: seconds that the server asks to wait.
        kind: of the row's error, if no try brings an answer.
    """

    def __init__(
        self,
        words: str,
        *,
        status: int | None = None,
        code: object = None,
        retry_after: float | None = None,
        kind: str = "endpoint_failed",
    ) -> None:
        super().__init__(words if status is None else f"{status}: {words}")
        self.status, self.code, self.retry_after, self.kind = status, code, retry_after, kind


def error_of(content: bytes) -> tuple[str, object]:
    """Return the words of an error's body, and the error's name where it has one."""
    try:
        found = json.loads(content)
        error = found.get("error", found)
        return str(error["message"]), error.get("code")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return content.decode(errors="replace"), None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait; ``None`` if it does not say (RFC 9110, section 10.2.3)."""
    text = headers.get("retry-after-ms")
    try:
        if text is not None:
            return min(max(0.0, float(text) / 1000), LONGEST_RETRY_AFTER)
        if (text := headers.get("retry-after")) is None:
            return None
        try:
            seconds = float(text)
        except ValueError:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(0.0, seconds), LONGEST_RETRY_AFTER) if seconds == seconds else None
