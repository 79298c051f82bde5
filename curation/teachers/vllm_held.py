"""vLLM's answers that are held to options: which tokens a step may draw for them.

VLLM's structured outputs hold an answer to texts, by any tokens that spell them, and compile a grammar for every list
of texts. Here an answer is held to the options' own tokens, as the transformers teacher holds it, and every row has a
list of its own.
"""

from collections.abc import Container, Mapping
from typing import Any

import torch

from curation.teachers.device_copy import Fetched
from curation.teachers.trie import Trie, Walk, barred

OPTIONS = "options"
"""Key of a request's ``extra_args``: the tokens of each option that its answer is held to. Its stop tokens end it."""


class HeldWalks:
    """The walks of a worker's requests that are held to options."""

    def __init__(self) -> None:
        self._walks: dict[str, Walk | None] = {}  # None: of a request that is free
        self._drawn: tuple[dict[int, Walk], Fetched] | None = None

    def walks(self, runner: Any, *, without: Container[int]) -> dict[int, tuple[Walk, frozenset[int]]]:
        """The walks and stop tokens of the step's held requests by place in the batch, those ``without`` left out."""
        self._go()
        found = {}
        for place, request_id in enumerate(runner.input_batch.req_ids):
            params = runner.requests[request_id].sampling_params
            if request_id not in self._walks:
                options = (params.extra_args or {}).get(OPTIONS)
                self._walks[request_id] = None if options is None else Walk(Trie(options))
            walk = self._walks[request_id]
            if walk is not None and place not in without:
                found[place] = walk, frozenset(params.stop_token_ids or ())
        return found

    def bar(self, held: Mapping[int, tuple[Walk, frozenset[int]]], logits_BV: torch.Tensor) -> None:
        """Make all other tokens than those that may be drawn impossible, in place; after the end any will do."""
        if held:
            allowed = {place: walk.allowed(stop_ids) or [0] for place, (walk, stop_ids) in held.items()}
            logits_BV.masked_fill_(barred(allowed, logits_BV), -torch.inf)

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
