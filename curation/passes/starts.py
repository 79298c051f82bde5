"""Starts of actors' processes in a pass: how many in a row got nothing done, and where and why no model started.

A model that does not start in one process may start in the next one, on another node or on the same one when its memory
is free. So it counts as a death of the process.
"""

from collections import Counter
from dataclasses import dataclass, field

from curation.errors import RunFailedError


@dataclass(eq=False)
class Starts:
    """The starts of one pass, by actor."""

    most: int
    """How often in a row an actor may be restarted before it has done anything."""
    num: Counter[str] = field(default_factory=Counter)
    """Starts of each actor since it last got something done."""
    refused: dict[str, dict[str, str]] = field(default_factory=dict)
    """Why the model did not start, by actor and node, since then."""

    def begin(self, actor: str) -> None:
        """A process of an actor begins the pass.

        Raises:
            RunFailedError: the actor was started too often without getting anything done.
        """
        num = self.num[actor]
        if num > self.most and actor in self.refused:
            nodes = self.refused[actor]
            raise RunFailedError(
                f"the model did not start on {', '.join(nodes)} in {num} tries in a row (teacher.actors.max_restarts: "
                f"{self.most}); mend the node or take it away, or ask for a smaller model; the last try: "
                f"{[*nodes.values()][-1]}"
            )
        if num > self.most:
            raise RunFailedError(
                f"an actor's process died {num} times in a row before it had done anything "
                f"(teacher.actors.max_restarts: {self.most}); its last lines are in Ray's logs, worker-*.err"
            )
        self.num[actor] += 1

    def refuse(self, actor: str, node: str, why: str) -> None:
        """The model did not start in an actor's process, which ends."""
        nodes = self.refused.setdefault(actor, {})
        nodes.pop(node, None)  # the last one stands last
        nodes[node] = why

    def got_on(self, actor: str) -> None:
        """An actor's process has done something."""
        del self.num[actor]
        self.refused.pop(actor, None)

    @property
    def words(self) -> tuple[str, ...]:
        """A sentence for each actor whose model did not start in its last try."""
        return tuple(
            f"the model did not start on {node}, try {self.num[actor]} of {self.most + 1}: {why}"
            for actor, nodes in self.refused.items()
            for node, why in [[*nodes.items()][-1]]
        )
