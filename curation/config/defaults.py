"""Defaults that depend on the domain: decoding, test runs, the trust function's preset.

Each domain's class holds its own (``curation.domains.Domain``): ``defaults`` is a mapping of the sections ``teacher``,
``evaluation`` and ``trust`` to their keys, and ``answering`` says how its rows are answered. The paper's values are in
its App. "Training Details", "Evaluation Details", and the table of NTF architectures.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

from curation.json_types import JsonView
from curation.label_columns import DOMAIN_NUMBERS
from curation.registry import DOMAINS, load_code

Defaults = Mapping[str, JsonView]

GENERIC: Defaults = MappingProxyType({})
"""Defaults of a domain that names none: the sections' own defaults apply."""

_DEFAULTS = TypeAdapter(dict[Literal["teacher", "evaluation", "trust"], dict[str, Any]])
Answering = Literal["by_row", "scored", "listed", "written", "reasoned"]
"""How the rows of a domain are answered.

``scored``: the likeliest of the options; ``listed``: written, and all possible answers are known (legal moves);
``written``: freely; ``reasoned``: in several lines of reasoning that end with the label; ``by_row``: known only when
the domain's method ``options`` has seen the row.
"""


class DomainTraits(NamedTuple):
    """Traits of a domain's class that a configuration uses before any row is read."""

    defaults: Defaults = GENERIC
    answering: Answering = "by_row"
    numbers: tuple[str, ...] = ()
    """Numbers that labels have beside those of all domains (``curation.label_columns.DOMAIN_NUMBERS``)."""
    once: JsonView = MappingProxyType({})
    """Options with which each row is asked once, as in tests."""
    needs: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Capabilities that a run must have (``curation.config.limits.CAPABILITIES``), by the option that needs them."""

    @property
    def reasons(self) -> bool:
        """Whether answers are several lines of reasoning that end with the label."""
        return self.answering == "reasoned"

    @property
    def generates(self) -> bool:
        """Whether a model writes the answers itself, as far as is known before a row is read."""
        return self.answering in ("listed", "written", "reasoned")

    @property
    def lists_answers(self) -> bool:
        """Whether the possible answers of a row may be listed (``curation.domains.Domain.candidates``)."""
        return self.answering in ("by_row", "scored", "listed")


def make_greedy_defaults(max_tokens: int, preset: str, *, stop: tuple[str, ...] = ()) -> Defaults:
    """Return defaults of a domain whose answers and tests are decoded greedily, once."""
    decoding = {"max_tokens": max_tokens, "temperature": 0.0, "stop": stop}
    return MappingProxyType(
        {
            "teacher": {"decoding": decoding},
            "evaluation": {"decoding": decoding, "num_runs": 1},
            "trust": {"preset": preset},
        }
    )


def find_traits(name: str, options: Mapping[str, object]) -> DomainTraits:
    """Return the traits of a domain with these options, or the general ones if its name cannot be imported.

    Raises:
        ValueError: the ``defaults`` of a user's class have the wrong shape.
    """
    try:
        made = load_code(DOMAINS.find(name))
    except ValueError:
        return DomainTraits(numbers=tuple(DOMAIN_NUMBERS))  # constructing the domain reports the error
    if not hasattr(made, "traits"):
        return DomainTraits()  # no domain, as constructing it reports
    traits: DomainTraits = made.traits(options)
    try:
        _DEFAULTS.validate_python(traits.defaults)
    except ValidationError as error:
        raise ValueError(
            f"domain: the defaults of {name!r} must be a mapping of the sections teacher, evaluation and trust, each a "
            f"mapping of its keys; found {traits.defaults!r}"
        ) from error
    return traits
