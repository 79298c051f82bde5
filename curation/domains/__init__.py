"""Task interfaces: how a raw row becomes a prompt, and a completion becomes a label that is right or wrong.

A domain is one file with one class and one line in ``curation.registry.DOMAINS``; users' own come as ``module:Class``,
or by name through an entry point of the group ``curation.domains``.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import pyarrow as pa

from curation import own_modules
from curation.config import DomainConfig
from curation.config.defaults import ENTRY_POINTS, class_named
from curation.domains.identity import Identity, plain_identity
from curation.errors import ConfigError, RowError
from curation.escaping import message
from curation.registry import DOMAINS

__all__ = [
    "DOMAINS",
    "ENTRY_POINTS",
    "Domain",
    "Example",
    "Identity",
    "Vocabulary",
    "attempt",
    "candidates",
    "get_domain",
    "num_answers",
    "plain_identity",
    "position_of",
]

Example = Mapping[str, Any]
T = TypeVar("T")
PARTS = ("read", "gold", "prompt", "parse", "is_correct")
"""What a class has that is made with options from a configuration or a trust package, which may be a stranger's."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The vocabulary of a domain's word-level tokenizer.

    ``words`` are the tokens in id order. ``pattern`` is a regular expression whose matches are the tokens of a text;
    other text is dropped.
    """

    words: tuple[str, ...]
    pattern: str


class Domain(Protocol):
    """One task interface (paper, "Experimental Setup"), constructed with its options from the configuration.

    A class may also have ``defaults`` for decoding, tests and trust (``curation.config.defaults``); a method
    ``candidates`` if it can list the possible answers of a row (:func:`candidates`), or ``num_answers`` if it can only
    count them (:func:`num_answers`); and ``position`` if its labels are chess moves in UCI notation
    (:func:`position_of`). Methods raise ``RowError`` for a row that they cannot handle.
    """

    name: str
    forms: tuple[tuple[str, ...], ...]
    """The row formats that it reads, each given by its columns; an input file must have all columns of one of them."""
    columns: pa.Schema
    """The domain's own columns in source, pool and test tables."""

    def read(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """The example of a raw row: a value per field of ``columns``. It must not reveal the gold label.

        Values missing in the file (``curation.sources.missing``: null, NaN, empty text) are None in ``raw``.
        """
        ...

    def gold(self, raw: Mapping[str, Any]) -> str | None:
        """The gold label of a raw row; ``None`` if the row has none."""
        ...

    def solution(self, raw: Mapping[str, Any]) -> str | None:
        """The worked solution of a raw row as a completion that states the gold label; ``None`` if it has none.

        Gold arms train on it if the teacher writes whole solutions. It must not reach any column of an example.
        """
        ...

    def prompt(self, example: Example, *, shots: Sequence[Example] = ()) -> str:
        """The prompt's text, after the demonstrations ``shots`` (examples with ``gold``)."""
        ...

    def identity(self, example: Example) -> Identity:
        """What identifies the question: equal for two rows that ask the same question, however they are written.

        :func:`plain_identity` of a text is enough for most domains. It must keep what distinguishes two questions.
        """
        ...

    def options(self, example: Example) -> tuple[str, ...] | None:
        """The completions from which the teacher chooses the most likely; ``None`` if it writes its own."""
        ...

    def answer(self, label: str, example: Example) -> str:
        """The completion that states ``label``; training on gold labels and demonstrations use it."""
        ...

    def parse(self, completion: str, example: Example) -> str | None:
        """The label that a completion states; ``None`` if it cannot be read (unparsed)."""
        ...

    def is_correct(self, label: str | None, gold: str) -> bool:
        """Whether a label is right; an unparsed one is wrong."""
        ...

    def difficulty(self, example: Example) -> float | None:
        """The difficulty on the domain's own scale, larger is harder; ``None`` if unknown."""
        ...

    def vocabulary(self) -> Vocabulary:
        """The tokens of a model made from scratch for this domain's prompts and answers."""
        ...


def get_domain(config: DomainConfig) -> Domain:
    """The domain of a configuration, constructed with its options.

    Raises:
        ConfigError: there is no such name or class, or the class does not accept the options.
    """
    name = config.name
    try:
        made = class_named(name)
    except (ImportError, AttributeError, ValueError) as error:
        near = difflib.get_close_matches(name, DOMAINS, n=1)
        raise ConfigError(
            f"domain: {name!r} is neither one of {', '.join(sorted(DOMAINS))}, nor the name of an entry point of "
            f"{ENTRY_POINTS}, nor an importable 'module:Class' ({error})"
            + (f"; did you mean {near[0]!r}?" if near else "")
            + own_modules.hint(name, error)
        ) from error
    if lacks := [part for part in PARTS if not hasattr(made, part)]:  # before anything of it is called
        raise ConfigError(f"domain: {name!r} is no domain: it has no {', '.join(lacks)} (docs/extending.md)")
    try:
        return cast(Domain, made(**config.options))
    except (TypeError, ValueError) as error:
        given = ", ".join(f"{key}: {value!r}" for key, value in config.options.items()) or "no options"
        raise ConfigError(f"domain: {name!r} cannot be made with {given}: {error}") from error


def candidates(domain: Domain, example: Example) -> tuple[str, ...] | None:
    """All completions that answer a row, for constrained decoding; ``None`` if the domain does not list them.

    ``domain.candidates(example)``, of a domain without this method its ``options``. None of them has to be the
    beginning of another, but one that is can still be chosen (docs/method.md).
    """
    listed: Callable[[Example], tuple[str, ...] | None] | None = getattr(domain, "candidates", None)
    return domain.options(example) if listed is None else listed(example)


def num_answers(domain: Domain, example: Example) -> int | None:
    """Among how many answers a uniform guess chooses: ``domain.num_answers(example)``, else the candidates."""
    count: Callable[[Example], int | None] | None = getattr(domain, "num_answers", None)
    if count is not None:
        return count(example)
    listed = candidates(domain, example)
    return None if listed is None else len(listed)


def position_of(domain: Domain) -> Callable[[Example], str] | None:
    """What gives the position (FEN) in which a row's labels are moves; ``None`` if the domain's labels are no moves."""
    position: Callable[[Example], str] | None = getattr(domain, "position", None)
    return position


def attempt(function: Callable[..., T], *arguments: Any) -> tuple[T | None, str]:
    """The result and "", or None and the error on one line; a domain is users' code, so it may raise anything."""
    try:
        return function(*arguments), ""
    except RowError as error:
        return None, message(error) if error.has_kind else message(RowError(f"domain_failed: RowError: {error}"))
    except (Exception, SystemExit) as error:
        return None, message(RowError(f"domain_failed: {type(error).__name__}: {error}"))
