"""vLLM's answers that are held to options: which tokens a step may draw for them.

VLLM's structured outputs hold an answer to texts, by any tokens that spell them, and compile a grammar for every list
of texts. Here an answer is held to the options' own tokens, as the transformers teacher holds it, and every row has a
list of its own.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch

from curation.teachers.device_copy import Fetched
from curation.teachers.trie import Trie, Walk, bar_others

OPTIONS = "options"
"""Key of a request's ``extra_args``: the tokens of each option that its answer is held to. Its stop tokens end it."""


class HeldWalks:
    """The paths through the options' tries of the requests whose answers must be an option, on one worker."""

    def __init__(self) -> None:
        self._walks: dict[str, tuple[Walk, frozenset[int]]] = {}
        self._drawn: tuple[dict[int, Walk], Fetched] | None = None

    def begin(self, request_id: str, params: Any) -> None:
        """Take up a request with its ``SamplingParams``."""
        options = (params.extra_args or {}).get(OPTIONS)
        if options is not None:
            self._walks[request_id] = Walk(Trie(options)), frozenset(params.stop_token_ids or ())

    def walks(self, ids: Sequence[str], *, without: Container[int]) -> dict[int, tuple[Walk, frozenset[int]]]:
        """Return walks and stop tokens of a step's held requests by place in the batch, those ``without`` left out."""
        self._go()
        if not self._walks:
            return {}
        found = {place: self._walks[name] for place, name in enumerate(ids) if name in self._walks}
        return {place: walk for place, walk in found.items() if place not in without}

    def bar(self, held: Mapping[int, tuple[Walk, frozenset[int]]], logits_BV: torch.Tensor) -> None:
        """Make all other tokens than those that may be drawn impossible, in place; after the end any will do."""
        if held:
            bar_others(logits_BV, {place: walk.allowed(stop_ids) or [0] for place, (walk, stop_ids) in held.items()})

    def go(self, held: Mapping[int, tuple[Walk, frozenset[int]]], token_B1: torch.Tensor) -> None:
        """Take the tokens that the step drew: the walks go on when the next step asks for them."""
        if held:
            self._drawn = {place: walk for place, (walk, _) in held.items()}, Fetched(token_B1[:, 0])

    def _go(self) -> None:
        if self._drawn is not None:
            walks, fetched = self._drawn
            self._drawn = None
            tokens = fetched.wait().tolist()
            for place, walk in walks.items():
                walk.go(tokens[place])

    def forget(self, request_id: str) -> None:
        """Forget a request; an unknown one is none."""
        self._walks.pop(request_id, None)
