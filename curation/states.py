"""Names of hidden states: which layer's, at which position of a row.

A position by itself is of the last layer after the final norm; ``layer<L>_<position>`` is of the output of block L, as
transformers' ``hidden_states[L]`` counts (paper, App. "Layer choice"). There the last block's is after the final norm,
too, so that L goes up to one below the number of layers. Where several layers of a token are kept, their numbers stand
side by side, in the order of ``layers_of``.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

POSITIONS = ("prompt_last", "output_first", "output_last", "output_mean")
"""What they mean is said in ``tables.completions``."""

LAST = -1
"""The last layer, after the final norm, as an index into transformers' ``hidden_states``."""

_NAME = re.compile(rf"(?:layer([1-9][0-9]*)_)?({'|'.join(POSITIONS)})")


class State(NamedTuple):
    """One hidden state of a row."""

    layer: int
    """L, or ``LAST``."""
    position: str


def parse(name: str) -> State:
    """What a name means.

    Raises:
        ValueError: it is none.
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
    """The layers of these states, the last one first, the others ascending; the last one where no state is named."""
    return tuple(sorted({parse(name).layer for name in names} or {LAST}))


def others_of(names: Iterable[str]) -> tuple[int, ...]:
    """The layers of these states but the last, ascending."""
    return tuple(layer for layer in layers_of(names) if layer != LAST)


def positions_of(names: Iterable[str]) -> tuple[str, ...]:
    """The positions of these states, each once."""
    return tuple(dict.fromkeys(parse(name).position for name in names))


def beyond(names: Iterable[str], num_layers: int) -> str | None:
    """What is wrong with asking these states of a model of ``num_layers``; None: nothing."""
    for name in names:
        layer, position = parse(name)
        if layer >= num_layers:
            others = f"1 to {num_layers - 1}, or " if num_layers > 1 else ""
            return (
                f"{name!r} asks for layer {layer} of a model that has {num_layers}; "
                f"take {others}{position!r}, the last layer's after the final norm"
            )
    return None
