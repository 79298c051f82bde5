"""What the actors of a pass leave to their successors, in the key-value store of Ray's head, where it outlives them.

Of a chunk: which piece of it is under way, and later what was written of it. Of an actor: how often it was started
without getting anything done. Some bytes a row of the chunks that are worked on, and of the last few that are done.
"""

from collections import deque

import pyarrow as pa
import ray
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put

from curation import nodes
from curation.errors import RunFailedError
from curation.stages.narrowing import Narrowing

KEPT = 8
"""Chunks of an actor of which it is kept what was written; Ray replays no older ones, they have long been taken."""


class Memory:
    """What an actor knows of its predecessors and leaves to its successors."""

    def __init__(self, pass_id: str) -> None:
        self._pass = pass_id
        self._starts = f"actor-{ray.get_runtime_context().get_actor_id()}"
        self._is_new = True
        self._finished: deque[str] = deque()

    def count_start(self, max_restarts: int) -> None:
        """Count a start of this actor.

        Raises:
            RunFailedError: it was started too often without getting anything done.
        """
        num_starts = int(self._get(self._starts) or b"0")
        if num_starts > max_restarts:
            raise RunFailedError(
                f"an actor's process died {num_starts} times in a row before it had done anything "
                f"(teacher.actors.max_restarts: {max_restarts}); its last words are in Ray's logs, worker-*.err"
            )
        self._put(self._starts, str(num_starts + 1).encode())

    def got_on(self) -> None:
        """Something is done."""
        if self._is_new:
            self._put(self._starts, b"0")
            self._is_new = False

    def recall(self, chunk: int) -> Narrowing | pa.Table | None:
        """What is known of a chunk that is not done; what was written of one that is; None of a new one."""
        found = self._get(f"chunk-{chunk}")
        if found is None:
            return None
        return Narrowing.from_json(found.decode()) if found[:1] == b"{" else pa.ipc.open_stream(found).read_all()

    def keep(self, chunk: int, known: Narrowing) -> None:
        """Note what is known of a chunk."""
        self._put(f"chunk-{chunk}", known.to_json().encode())

    def finish(self, chunk: int, written: pa.Table) -> None:
        """Note what was written of a chunk."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, written.schema) as stream:
            stream.write_table(written)
        self._put(f"chunk-{chunk}", sink.getvalue().to_pybytes())
        self._finished.append(f"chunk-{chunk}")
        if len(self._finished) > KEPT:
            _internal_kv_del(self._key(self._finished.popleft()))

    def _get(self, name: str) -> bytes | None:
        return _internal_kv_get(self._key(name))

    def _put(self, name: str, value: bytes) -> None:
        _internal_kv_put(self._key(name), value)

    def _key(self, name: str) -> str:
        return f"{self._pass}/{name}"


def here() -> str:
    """The node of this process."""
    return ray.get_runtime_context().get_node_id()


def is_gone(node: str) -> bool:
    """Whether a node, where one is named, has left the cluster."""
    return bool(node) and all(living["NodeID"] != node for living in nodes.living())


def forget_pass(pass_id: str) -> None:
    """Remove what the actors of a pass left behind."""
    _internal_kv_del(f"{pass_id}/", del_by_prefix=True)
