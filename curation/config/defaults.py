"""Defaults that depend on the domain: decoding, test runs, the trust function's preset.

A table for the first domains of this package; any other class may have an attribute ``defaults``, a mapping of the
same shape (sections ``teacher``, ``evaluation`` and ``trust``, with their keys). Values are the paper's (App. "Training
Details", "Evaluation Details", table of NTF architectures). The maximum length of a generated multiple-choice answer is
ours.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from curation.registry import DOMAINS, code

ENTRY_POINTS = "curation.domains"
"""The group of entry points under which domains are found by name."""

Defaults = Mapping[str, Mapping[str, Any]]

_SAMPLED = {"temperature": 0.6, "top_p": 0.8, "top_k": 20, "min_p": 0.0, "presence_penalty": 1.5}
_ONE_LINE = {"max_tokens": 8, "temperature": 0.0, "stop": ("\n",)}
_MATH = {"max_tokens": 4096, "stop": ()}
_REASONED = {"max_tokens": 512, "temperature": 0.0, "stop": ()}

CHESS: Defaults = {
    "teacher": {"decoding": _ONE_LINE},
    "evaluation": {"decoding": _ONE_LINE, "num_runs": 1},
    "trust": {"preset": "strategy_games"},
}
MATH: Defaults = {
    "teacher": {"decoding": {**_MATH, "temperature": 0.0}},
    "evaluation": {"decoding": {**_MATH, **_SAMPLED}, "num_runs": 5},
    "trust": {"preset": "quantitative_reasoning"},
}
MCQA: Defaults = {
    "teacher": {"decoding": _ONE_LINE},  # options are scored; only signals of some arms generate text
    "evaluation": {"decoding": _ONE_LINE, "num_runs": 1},
    "trust": {"preset": "world_knowledge"},
}
GENERATIVE_MCQA: Defaults = {
    "teacher": {"decoding": _REASONED},
    "evaluation": {"decoding": _REASONED, "num_runs": 1},
    "trust": {"preset": "world_knowledge"},
}
MOVES = ("chess", "chess_mate")
"""Domains whose answer is a move."""
GENERIC: Defaults = MappingProxyType({})
"""For a domain without defaults: the sections' own defaults apply."""


def defaults_of(name: str, options: Mapping[str, Any]) -> Defaults:
    """The defaults of a domain.

    Raises:
        ValueError: the ``defaults`` of a user's class have the wrong shape.
    """
    if name == "mcqa":
        return GENERATIVE_MCQA if options.get("generative") else MCQA
    if name in MOVES:
        return CHESS
    if name == "math":
        return MATH
    return _own(name)


def reasons(name: str, options: Mapping[str, Any]) -> bool:
    """Whether answers of this domain are several lines of reasoning that end with the label."""
    return name == "math" or (name == "mcqa" and bool(options.get("generative")))


def generates(name: str, options: Mapping[str, Any]) -> bool:
    """Whether a model writes the answers of this domain itself, as far as is known before a row is read.

    A domain of one's own may: its method ``options`` decides row by row.
    """
    return name in (*MOVES, "text") or reasons(name, options)


def lists_answers(name: str, options: Mapping[str, Any]) -> bool:
    """Whether a domain may list the possible answers of a row (``curation.domains.Domain.candidates``).

    One of one's own without a method ``candidates`` may have ``options``, which are only known row by row.
    """
    if name in DOMAINS:
        return name in (*MOVES, "classification", "pair") or (name == "mcqa" and not options.get("generative"))
    return True


def filled(given: Mapping[str, Any], domain: Defaults) -> dict[str, Any]:
    """The sections of a file, with the domain's defaults for keys that they leave out.

    A file that sets ``evaluation.decoding.temperature: 0`` wants a greedy test: it takes only the length and the stop
    strings from the domain's sampled test, and one run. A ``trust.preset`` in the file replaces all of the domain's
    trust defaults. A section that is not a mapping stays unchanged: validation refuses it later, or it was made in
    Python.
    """
    result = dict(given)
    for section, values in domain.items():
        own = given.get(section, {})
        if not isinstance(own, Mapping) or (section == "teacher" and section not in given):
            continue
        values = dict(values)
        decoding = own.get("decoding")
        if section == "evaluation" and isinstance(decoding, Mapping) and decoding.get("temperature") == 0:
            kept = {"max_tokens", "stop"}
            values["decoding"] = {key: item for key, item in values.get("decoding", {}).items() if key in kept}
            values.pop("num_runs", None)
        if section == "trust" and "preset" in own:
            values = {}
        if under := _under(own, values):
            result[section] = under
    return result


def class_named(name: str) -> Any:
    """The class of a domain: of ``DOMAINS``, of an entry point of that name or, as ``module:Class``, of any module.

    Raises:
        ImportError, AttributeError, ValueError: no such class exists.
    """
    if name not in DOMAINS and (found := entry_points(group=ENTRY_POINTS, name=name)):
        return next(iter(found)).load()
    return code(DOMAINS.get(name, name))


def _own(name: str) -> Defaults:
    try:
        values = getattr(class_named(name), "defaults", GENERIC)
    except (ImportError, AttributeError, ValueError):
        return GENERIC  # constructing the domain reports the error
    sections = {"teacher", "evaluation", "trust"}
    if (
        not isinstance(values, Mapping)
        or not set(values) <= sections
        or not all(isinstance(item, Mapping) for item in values.values())
    ):
        raise ValueError(
            f"domain: the defaults of {name!r} must be a mapping of the sections {', '.join(sorted(sections))}, each a "
            f"mapping of its keys; found {values!r}"
        )
    return values


def _under(given: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """``given``, completed from ``values`` by the keys that it lacks, recursively."""
    result = {**values, **given}
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(given.get(key), Mapping):
            result[key] = _under(given[key], value)
    return result
