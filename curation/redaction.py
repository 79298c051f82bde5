"""Finds and hides credentials in text: a URL's password or signature.

What is printed, logged or written to a run directory passes through :func:`redact_text`; in a configuration
:func:`iter_secrets` finds what must not be there at all.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from curation.json_types import map_texts

HIDDEN = "***"
_PASSWORD = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<user>[^/\s@:]*)(?P<password>:[^/\s]*)?@")
_PARAMETER = re.compile(
    r"(?P<name>[?&;](?:x-(?:amz|goog)-(?:signature|credential|security-token)|sig|signature|sas|(?:access_?|auth_?)?token"
    r"|(?:aws_?)?(?:api_?|account_?|(?:secret_?)?access_?|secret_?)?key|secret|password|passwd|pwd)=)[^&;#\s'\"]+",
    re.IGNORECASE,
)
_KEY = re.compile(
    r"password|passwd|secret|credential|api_?key|access_?key|account_?key|hf_token|auth_token", re.IGNORECASE
)


def redact_text(text: str) -> str:
    """Return the text without passwords and signatures of URLs; a user's name alone is hidden only in http(s) URLs."""

    def hide(found: re.Match[str]) -> str:
        is_secret = found["password"] is not None or (found["scheme"].lower() in ("http", "https") and found["user"])
        return f"{found['scheme']}://{HIDDEN if is_secret else found['user']}@"

    return _PARAMETER.sub(rf"\g<name>{HIDDEN}", _PASSWORD.sub(hide, text))


def redact_value(value: object) -> Any:
    """Return a JSON value with :func:`redact_text` applied to all its strings."""
    return map_texts(redact_text, value)


def iter_secrets(value: object, at: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the dotted keys of a mapping whose value is a credential, and whether by the key's name alone.

    A value that is not so by its key's name has a URL with a credential in it.
    """
    if isinstance(value, str):
        has_secret = redact_text(value) != value
        if has_secret or (value and _KEY.search(at.rpartition(".")[2])):
            yield at, not has_secret
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from iter_secrets(item, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from iter_secrets(item, f"{at}.{place}")
