"""The options of a row as a trie of tokens: what several options begin with stands there once."""

from collections.abc import Sequence


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

    def path(self, node: int) -> list[int]:
        """The nodes from the root's child to ``node``."""
        nodes = []
        while node:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]
