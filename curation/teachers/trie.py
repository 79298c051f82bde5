"""The options of a row as a trie of tokens: what several options begin with stands there once."""

from collections.abc import Iterable, Mapping, Sequence

from curation.heavy import torch
from curation.teachers.device_copy import send_arrays


class Trie:
    """Nodes are numbered from the root, 0, which stands for the prompt's last token; parents before children.

    Args:
        options: tokens of each option, at least one each.
    """

    def __init__(self, options: Sequence[Sequence[int]]) -> None:
        self.tokens, self.parents, self.depths = [-1], [-1], [0]
        self.children: list[dict[int, int]] = [{}]
        """Of each node: the child of a token."""
        self.ends: list[int] = []
        """The last node of each option."""
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
        """Nodes but the root that have children: fed after the prompt, they give all other log-probabilities."""

        self.complete = frozenset(self.ends)
        """The nodes at which an option ends."""

    def path(self, node: int) -> list[int]:
        """Return the nodes from the root's child to ``node``."""
        nodes = []
        while node:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def along(self, values: Sequence[float]) -> list[list[float]]:
        """Return the values of the nodes of each option, of a value for each node."""
        return [[values[node] for node in self.path(end)] for end in self.ends]


class Walk:
    """Where an answer stands that may only go on with tokens that lead to an option."""

    def __init__(self, trie: Trie) -> None:
        self.trie, self.node = trie, 0

    def allowed(self, stop_ids: Iterable[int]) -> list[int]:
        """Return the tokens that may be drawn: ``stop_ids`` too where an option ends."""
        following = list(self.trie.children[self.node])
        return [*following, *stop_ids] if self.node in self.trie.complete else following

    def go(self, token: int) -> bool:
        """Take a drawn token; whether the answer has it, as an end token it has not."""
        child = self.trie.children[self.node].get(token)
        if child is not None:
            self.node = child
        return child is not None

    @property
    def is_over(self) -> bool:
        """Whether no option goes on."""
        return not self.trie.children[self.node]

    def option_of(self, options: Sequence[str]) -> str:
        """Return the one of the trie's options at whose end it stands; of those with the same tokens the first."""
        return options[self.trie.ends.index(self.node)]


def bar_others(logits_BV: "torch.Tensor", allowed: Mapping[int, Sequence[int]]) -> None:
    """Make all other tokens than those in ``allowed``, which has some rows, impossible, in place."""
    pairs = [(place, token) for place, tokens in allowed.items() for token in tokens]
    places, tokens = zip(*pairs, strict=True)
    row_H, place_P, token_P = send_arrays([list(allowed), places, tokens], logits_BV.device)
    kept_P = logits_BV[place_P, token_P]
    logits_BV.index_fill_(0, row_H, -torch.inf)
    logits_BV[place_P, token_P] = kept_P
