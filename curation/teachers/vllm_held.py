"""Constraints on the tokens that a vLLM step may draw for answers that must be an option.

VLLM's structured outputs constrain an answer to texts, by any tokens that spell them, and compile a grammar for every
list of texts. Here an answer is constrained to the options' own tokens, as by the transformers teacher, and every row
has its own list.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch

from curation.teachers.device_copy import Fetched
from curation.teachers.trie import Trie, Walk, bar_others

OPTIONS = "options"
"""Key of a request's ``extra_args`` for the tokens of each option; the answer must be one of these options."""


class HeldWalks:
    """The paths through the options' tries of the requests whose answers must be an option, on one worker."""

    def __init__(self) -> None:
        self._walks: dict[str, tuple[Walk, frozenset[int]]] = {}
        self._drawn: tuple[dict[int, Walk], Fetched] | None = None

    def begin(self, request_id: str, params: Any) -> None:
        """Begin the walk of a request whose ``SamplingParams`` have options."""
        options = (params.extra_args or {}).get(OPTIONS)
        if options is not None:
            self._walks[request_id] = Walk(Trie(options)), frozenset(params.stop_token_ids or ())

    def walks(self, ids: Sequence[str], *, without: Container[int]) -> dict[int, tuple[Walk, frozenset[int]]]:
        """Return walk and stop tokens of constrained requests by index in the batch, except those in ``without``."""
        self._go()
        if not self._walks:
            return {}
        found = {place: self._walks[name] for place, name in enumerate(ids) if name in self._walks}
        return {place: walk for place, walk in found.items() if place not in without}

    def bar(self, held: Mapping[int, tuple[Walk, frozenset[int]]], logits_BV: torch.Tensor) -> None:
        """Set the logits of tokens that must not be drawn to -inf, in place; token 0 stays where none may be drawn."""
        if held:
            bar_others(logits_BV, {place: walk.allowed(stop_ids) or [0] for place, (walk, stop_ids) in held.items()})

    def go(self, held: Mapping[int, tuple[Walk, frozenset[int]]], token_B1: torch.Tensor) -> None:
        """Record the tokens that the step drew; the walks follow them when the next step calls :meth:`walks`."""
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
        """Forget a request, if it is known."""
        self._walks.pop(request_id, None)
