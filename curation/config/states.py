"""Names of hidden states: a layer, and a position in a row.

A position alone means the last layer after the final norm. ``layer<L>_<position>`` means the output of block L, counted
as in transformers' ``hidden_states[L]`` (paper, App. "Layer choice"). In transformers the last block's entry is after
the final norm, too, so L goes up to one below the number of layers. If several layers of a token are kept, they are
concatenated in the order of ``layers_of``.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

POSITIONS = ("prompt_last", "output_first", "output_last", "output_mean")
"""``schemas.completions`` says what they mean."""

LAST = -1
"""The last layer, after the final norm, as an index into transformers' ``hidden_states``."""

_NAME = re.compile(rf"(?:layer([1-9][0-9]*)_)?({'|'.join(POSITIONS)})")


class State(NamedTuple):
    """One hidden state of a row."""

    layer: int
    """L, or ``LAST``."""
    position: str


def parse(name: str) -> State:
    """The state that a name means.

    Raises:
        ValueError: it is not the name of a state.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(
            f"{name!r} names no hidden state; write {', '.join(POSITIONS)} for the last layer's, "
            "layer<L>_<position> for those of layer L from 1 on, e.g. layer21_output_last"
        )
    layer, position = found.groups()
    return State(LAST if layer is None else int(layer), position)


def layers_of(names: Iterable[str]) -> tuple[int, ...]:
    """The layers of these states: the last layer first, the others ascending; the last layer if there are no states."""
    return tuple(sorted({parse(name).layer for name in names} or {LAST}))


def others_of(names: Iterable[str]) -> tuple[int, ...]:
    """The layers of these states except the last layer, ascending."""
    return tuple(layer for layer in layers_of(names) if layer != LAST)


def positions_of(names: Iterable[str]) -> tuple[str, ...]:
    """The positions of these states, each once."""
    return tuple(dict.fromkeys(parse(name).position for name in names))


def beyond(names: Iterable[str], num_layers: int) -> str | None:
    """Why a model with ``num_layers`` layers cannot give these states; None if it can."""
    for name in names:
        layer, position = parse(name)
        if layer >= num_layers:
            others = f"1 to {num_layers - 1}, or " if num_layers > 1 else ""
            return (
                f"{name!r} asks for layer {layer} of a model that has {num_layers}; "
                f"take {others}{position!r}, the last layer's after the final norm"
            )
    return None
