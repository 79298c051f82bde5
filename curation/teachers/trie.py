"""A trie of the tokens of a row's options, which shares the common beginnings of options."""

from collections.abc import Iterable, Mapping, Sequence

from curation.heavy import torch
from curation.teachers.device_copy import send_arrays


class Trie:
    """A trie whose nodes are numbered from the root, 0 (the prompt's last token), with parents before children.

    Args:
        options: tokens of each option, at least one each.
    """

    def __init__(self, options: Sequence[Sequence[int]]) -> None:
        self.tokens, self.parents, self.depths = [-1], [-1], [0]
        self.children: list[dict[int, int]] = [{}]
        """Children of each node, by token."""
        self.ends: list[int] = []
        """Last node of each option."""
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

        self.complete = frozenset(self.ends)
        """Nodes at which an option ends."""

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
