"""What a command may do with any input: give its result, or refuse it as the command line prints it."""

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from curation.errors import UserError
from curation.escaping import escape_text

T = TypeVar("T")

COUNTS: Counter[str] = Counter()
"""How many inputs were tried, read and refused, by kind of input."""


def attempt(kind: str, function: Callable[[], T]) -> T | None:
    """Return the function's result, or ``None`` if it refuses its input in one line; raise any other exception."""
    COUNTS[f"{kind}: tried"] += 1
    try:
        found = function()
    except UserError as error:
        line = escape_text(" ".join(str(error).split()))
        assert line and len(line) < 10_000, f"a refusal of {len(line)} characters"
        assert "Traceback" not in line and ".rs:" not in line, line
        COUNTS[f"{kind}: refused"] += 1
        return None
    COUNTS[f"{kind}: read"] += 1
    return found
