"""Task interfaces: how a raw row becomes a prompt, and a completion becomes a label that is right or wrong.

A domain is one file with one class and one line in ``DOMAINS``; users' own come as ``module:Class``.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import pyarrow as pa

from curation.errors import ConfigError

Example = Mapping[str, Any]

DOMAINS = {
    "chess": "curation.domains.chess:Chess",
}


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What a word-level tokenizer of a domain knows: text outside ``pattern`` is dropped.

    ``words`` are the tokens in id order; ``pattern`` is a regular expression whose matches are the tokens of a text.
    """

    words: tuple[str, ...]
    pattern: str


class Domain(Protocol):
    """One task interface (paper, "Experimental Setup"). Methods raise ``RowError`` for a row they cannot take."""

    name: str
    required: tuple[str, ...]
    """Columns that the input files must have."""
    columns: pa.Schema
    """The domain's own columns in source, pool and test tables."""

    def read(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """The example of a raw row: a value per field of ``columns``, nothing that gives the gold label away."""
        ...

    def gold(self, raw: Mapping[str, Any]) -> str | None:
        """The gold label of a raw row; ``None`` where the row carries none."""
        ...

    def prompt(self, example: Example, *, shots: Sequence[Example] = ()) -> str:
        """The prompt's text, after ``shots`` demonstrations (examples that carry ``gold``)."""
        ...

    def answer(self, label: str) -> str:
        """The completion that states ``label``; training on gold labels uses it."""
        ...

    def parse(self, completion: str, example: Example) -> str | None:
        """The label that a completion states; ``None`` where it cannot be read (unparsed)."""
        ...

    def is_correct(self, label: str | None, gold: str) -> bool:
        """Whether a label is right; an unparsed one is wrong."""
        ...

    def difficulty(self, example: Example) -> float | None:
        """The difficulty on the domain's own scale, larger is harder; ``None`` where unknown."""
        ...

    def vocabulary(self) -> Vocabulary:
        """The tokens of a model made from scratch for this domain's prompts and answers."""
        ...


def get_domain(name: str) -> Domain:
    """The domain registered as ``name``, or the user's own class given as ``module:Class``.

    Raises:
        ConfigError: no such name or class.
    """
    target = DOMAINS.get(name, name)
    module_name, _, class_name = target.partition(":")
    try:
        return cast(Domain, getattr(importlib.import_module(module_name), class_name)())
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError(
            f"domain: {name!r} is neither one of {', '.join(sorted(DOMAINS))} "
            f"nor an importable 'module:Class' ({error})"
        ) from error
