r"""Escapes invisible characters that act on a terminal, on a log or on the order of a line's text.

Column names, keys, error kinds and values come from users' files, so whatever prints them escapes them first. These
characters are the controls C0, DEL and C1 (ESC and U+009B begin a terminal's commands), marks that change the direction
of text (Unicode's bidirectional algorithm, UAX #9), invisible tags and byte order marks, line and paragraph separators,
and lone surrogates, which no encoding can write. They become ``\u001b`` and so on, which JSON reads back.
"""

import logging
import re
import sys

import click

_ACTING = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_ACTING_IN_PAGE = re.compile(_ACTING.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
"""Pattern of the characters that are escaped in text of several lines: all but tab and line end."""
LONGEST = 1_000
"""Maximum length of a message about a row, in characters."""


def escape_text(text: str, *, page: bool = False) -> str:
    """Return the text on one line with acting characters escaped; a ``page`` keeps its line ends and tabs."""
    acting = _ACTING_IN_PAGE if page else _ACTING
    return acting.sub(lambda at: f"\\u{ord(at[0]):04x}" if at[0] < "\U00010000" else f"\\U{ord(at[0]):08x}", text)


def quote_text(text: str, most: int = 60) -> str:
    """Return the text in quotes on one line, cut after ``most`` characters, for a value within a message."""
    return f"'{escape_text(text[:most])}{'...' if len(text) > most else ''}'"


def format_error(error: BaseException) -> str:
    """Return an exception's text on one line, cut to ``LONGEST`` characters because it may quote a row."""
    text = escape_text(" ".join(str(error).split()))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def echo(text: str = "", *, err: bool = False) -> None:
    """Print to the terminal; escape acting characters and those that the terminal's encoding lacks."""
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    click.echo(escape_text(text, page=True).encode(encoding, "backslashreplace").decode(encoding), err=err)


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module, whose messages are escaped before any handler receives them."""
    logger = logging.getLogger(name)
    logger.addFilter(_escape)
    return logger


def _escape(record: logging.LogRecord) -> bool:
    record.msg, record.args = escape_text(record.getMessage(), page=True), ()
    return True
