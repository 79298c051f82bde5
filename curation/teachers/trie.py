"""A trie of the tokens of a row's options, which shares the common beginnings of options, and answers held to it.

An answer is constrained to the options' own tokens, and every row has its own list. (VLLM's structured outputs
constrain an answer to texts, by any tokens that spell them, and compile a grammar for every list of texts.)
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from curation.heavy import torch

OPTIONS = "options"
"""Key of a request's ``extra_args`` for the tokens of each option; the answer must be one of these options."""


class Trie:
    """A trie of options' tokens; nodes are numbered from the root, 0 (the prompt's last token), parents first."""

    def __init__(self, options: Sequence[Sequence[int]]) -> None:
        self.tokens, self.parents, self.depths = [-1], [-1], [0]
        self.children: list[dict[int, int]] = [{}]  # children of each node, by token
        self.ends: list[int] = []  # last node of each option
        for option in options:
            node = 0
            for token in option:
                child = self.children[node].get(token)
                if child is None:
                    child = self.children[node][token] = len(self.tokens)
                    self.tokens.append(token)
                    self.parents.append(node)
                    self.depths.append(self.depths[node] + 1)
                    self.children.append({})
                node = child
            self.ends.append(node)
        self.inner = [node for node, children in enumerate(self.children) if node and children]
        """Nodes other than the root that have children; feeding them gives all log-probabilities beyond the root's."""

        self.complete = frozenset(self.ends)  # nodes at which an option ends

    def path(self, node: int) -> list[int]:
        """Return the nodes from the root's child to ``node``."""
        nodes = []
        while node:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def along(self, values: Sequence[float]) -> list[list[float]]:
        """Return the values of each option's nodes, given a value for each node of the trie."""
        return [[values[node] for node in self.path(end)] for end in self.ends]


class Walk:
    """The path through the trie of an answer that may continue only with tokens that lead to an option."""

    def __init__(self, trie: Trie) -> None:
        self.trie, self.node = trie, 0

    def allowed(self, stop_ids: Iterable[int]) -> list[int]:
        """Return the tokens that may be drawn next, including ``stop_ids`` where an option ends."""
        following = list(self.trie.children[self.node])
        return [*following, *stop_ids] if self.node in self.trie.complete else following

    def go(self, token: int) -> bool:
        """Follow a drawn token, and return whether it is part of the answer, which an end token is not."""
        child = self.trie.children[self.node].get(token)
        if child is not None:
            self.node = child
        return child is not None

    @property
    def is_over(self) -> bool:
        """Whether no option continues from the current node."""
        return not self.trie.children[self.node]

    def option_of(self, options: Sequence[str]) -> str:
        """Return the option that ends at the current node, the first one if several have the same tokens."""
        return options[self.trie.ends.index(self.node)]


def bar_others(logits_BV: "torch.Tensor", allowed: Mapping[int, Sequence[int]]) -> None:
    """Set the logits of all tokens but the ``allowed`` ones to -inf, in place, for the rows in ``allowed``."""
    pairs = [(place, token) for place, tokens in allowed.items() for token in tokens]
    places, tokens = zip(*pairs, strict=True)
    row_H, place_P, token_P = send_arrays([list(allowed), places, tokens], logits_BV.device)
    kept_P = logits_BV[place_P, token_P]
    logits_BV.index_fill_(0, row_H, -torch.inf)
    logits_BV[place_P, token_P] = kept_P


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
        if self._drawn is not None:
            walks, fetched = self._drawn
            self._drawn = None
            for place, token in enumerate(fetched.wait().tolist()):
                if place in walks:
                    walks[place].go(token)
        if not self._walks:
            return {}
        found = {place: self._walks[name] for place, name in enumerate(ids) if name in self._walks}
        return {place: walk for place, walk in found.items() if place not in without}

    def bar(self, held: Mapping[int, tuple[Walk, frozenset[int]]], logits_BV: "torch.Tensor") -> None:
        """Set the logits of tokens that must not be drawn to -inf, in place; token 0 stays where none may be drawn."""
        if held:
            bar_others(logits_BV, {place: walk.allowed(stop_ids) or [0] for place, (walk, stop_ids) in held.items()})

    def go(self, held: Mapping[int, tuple[Walk, frozenset[int]]], token_B1: "torch.Tensor") -> None:
        """Record the tokens that the step drew; the walks follow them when the next step calls :meth:`walks`."""
        if held:
            self._drawn = {place: walk for place, (walk, _) in held.items()}, Fetched(token_B1[:, 0])

    def forget(self, request_id: str) -> None:
        """Forget a request, if it is known."""
        self._walks.pop(request_id, None)


def send_arrays(arrays: Sequence[npt.ArrayLike], device: "torch.device") -> "list[torch.Tensor]":
    """Return arrays of integers on the device, int64, sent in one copy from pinned memory, reused when it is done."""
    parts = [np.asarray(array, dtype=np.int64) for array in arrays]
    flat = torch.from_numpy(np.concatenate([part.ravel() for part in parts]))
    if device.type == "cuda":
        flat = flat.pin_memory().to(device, non_blocking=True)
    pieces = torch.split(flat, [part.size for part in parts])
    return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]


class Fetched:
    """An asynchronous copy of a tensor to the host."""

    def __init__(self, tensor: "torch.Tensor") -> None:
        self._event: Any = None
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._host = tensor.clone()

    def wait(self) -> "torch.Tensor":
        """Return the tensor on the host after the copy has finished."""
        if self._event is not None:
            self._event.synchronize()
        return self._host
