"""The point of a filter at which a feature (``curation.features``) drops rows before they are labelled."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curation.config.filter import FilterConfig
from curation.errors import ConfigError
from curation.features import parts
from curation.filter.package.folder import TrustPackage
from curation.json_types import Json, JsonView
from curation.stages.gating import GateRule


@dataclass(frozen=True, kw_only=True)
class FilterInputs:
    """The inputs from which a feature settles its gate of a filter."""

    section: Any
    """The feature's section of the configuration."""
    config: FilterConfig
    package: TrustPackage
    rounds: Mapping[str, int]
    """The number of rows of each round, by name."""
    cut_rounds: Sequence[str] | None
    """The rounds from which the recorded cut was made; None if a cut is to be made."""
    labelled: JsonView
    """The recorded inputs of the stage that labelled the first round; empty before there are labels."""


@dataclass(frozen=True, kw_only=True)
class FilterGate:
    """A gate before the labels of a filter, which is off by default."""

    rule: GateRule | None = None
    """The rule of the stages that label and compare, or None if the gate is off."""
    inputs: tuple[str, ...] = ()
    """States that the rule reads."""
    states: tuple[str, ...] = ()
    """States that the teacher keeps for the rule and the package's function."""
    words: tuple[str, ...] = ()
    """Lines for the terminal, also if the gate is off."""
    note: str | None = None
    """Effect of the gate that a forecast does not count, since its probe ignores the gate."""
    collect: Callable[[Sequence[JsonView], bool], Json] = lambda counts, of_all: {}
    """A function from the counts of labels to entries of ``filter.json``: for all rounds, or else for one."""


def settle_gate(**inputs: Any) -> FilterGate:
    """Return the gate of a filter's features, given the fields of :class:`FilterInputs` but the section.

    Raises:
        UserError: a feature refuses the filter, or several have a gate.
    """
    found = {name: (settle, section) for name, settle, section in parts(inputs["config"], "gate")}
    if len(found) > 1:
        raise ConfigError(f"{' and '.join(found)}: each drops rows before they are labelled; give one of them")
    gates = (settle(FilterInputs(section=section, **inputs)) for settle, section in found.values())
    return next(gates, FilterGate())
