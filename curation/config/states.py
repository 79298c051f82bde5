"""Names of hidden states: a layer, a position in a row, and an answer option.

A position alone means the last layer after the final norm. ``layer<L>_<position>`` means the output of block L, counted
as in transformers' ``hidden_states[L]`` (paper, App. "Layer choice"). In transformers the last block's entry is after
the final norm, too, so L goes up to one below the number of layers. If several layers of a token are kept, they are
concatenated in the order of ``layers_of``.

``option<R>_output_last``, R from 2 on, means the last token of the row's R-th likeliest option (paper, App. "Using
embeddings from all answer choices"); the first is the chosen one, whose states have the plain names. A layer prefix
comes first: ``layer3_option2_output_last``. A row with fewer options has zeros there. Rows without options have no such
state.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

POSITIONS = ("prompt_last", "output_first", "output_last", "output_mean")
"""Positions of a hidden state in a row, as ``schemas.make_completions_schema`` defines them."""

LAST = -1
"""The last layer, after the final norm, as an index into transformers' ``hidden_states``."""

_NAME = re.compile(rf"(?:layer([1-9][0-9]*)_)?(?:({'|'.join(POSITIONS)})|option([2-9]|[1-9][0-9]+)_(output_last))")


class State(NamedTuple):
    """One hidden state of a row."""

    layer: int
    """Index L into transformers' ``hidden_states``, or ``LAST``."""
    position: str
    rank: int = 1
    """Rank of the row's option by likelihood; 1 is the answer itself."""


def parse(name: str) -> State:
    """Return the state that a name means, or raise ``ValueError`` if it is not the name of a state."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(
            f"{name!r} names no hidden state; write {', '.join(POSITIONS)} for the last layer's, "
            "layer<L>_<position> for those of layer L from 1 on, e.g. layer21_output_last, option<R>_output_last "
            "for the R-th likeliest option's, R from 2 on"
        )
    layer, position, rank, of_option = found.groups()
    return State(LAST if layer is None else int(layer), position or of_option, int(rank or 1))


def check_state(name: str) -> str:
    """Return the name of a state, or raise as :func:`parse` does."""
    parse(name)
    return name


def is_of_prompt(name: str) -> bool:
    """Return whether a state depends on the prompt alone and not on the answer, at any layer."""
    return name.endswith("prompt_last")


def find_layers(names: Iterable[str]) -> tuple[int, ...]:
    """Return the layers of the named states: the last layer first (also without names), then the others ascending."""
    return tuple(sorted({parse(name).layer for name in names} or {LAST}))


def find_other_layers(names: Iterable[str]) -> tuple[int, ...]:
    """Return the layers of the named states, except the last layer, in ascending order."""
    return tuple(layer for layer in find_layers(names) if layer != LAST)


def find_positions(names: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct positions of the named states."""
    return tuple(dict.fromkeys(parse(name).position for name in names))


def find_ranks(names: Iterable[str]) -> tuple[int, ...]:
    """Return the ranks of the named states' options in ascending order, without the chosen option's rank 1."""
    return tuple(sorted({parse(name).rank for name in names} - {1}))


def find_generated_problem(names: Iterable[str], where: str) -> str | None:
    """Return why a model's own answers at ``where`` lack one of the named states, or None if they have all."""
    named = next((name for name in names if parse(name).rank > 1), None)
    if named is None:
        return None
    return (
        f"teacher.states: {named!r} is the state of an answer option, but {where} has no options to choose from (its "
        "answer is generated); leave it out of teacher.states and trust.states, or take a domain that scores options"
    )


def find_depth_problem(names: Iterable[str], num_layers: int) -> str | None:
    """Return why a model with ``num_layers`` layers lacks one of the named states, or None if it has all."""
    for name in names:
        layer = parse(name).layer
        if layer >= num_layers:
            others = f"1 to {num_layers - 1}, or " if num_layers > 1 else ""
            return (
                f"{name!r} asks for layer {layer} of a model that has {num_layers}; "
                f"take {others}{name.partition('_')[2]!r}, the last layer's after the final norm"
            )
    return None
