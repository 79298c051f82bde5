"""What the actors of a pass remember across restarts, in the key-value store of Ray's head.

For each chunk under way: which rows are suspected to kill the process. This outlives the driver too, so the next driver
need not search again. For each of the last few chunks that are done: what was written. For each actor: the number of
starts since it last got something done. A chunk takes some bytes.
"""

from collections import deque

import pyarrow as pa
import ray

from curation.cluster import nodes, ray_private
from curation.errors import RunFailedError
from curation.passes.bisection import Narrowing
from curation.refs import fingerprint

KEPT = 8
"""The number of an actor's last chunks whose result is kept; Ray replays no older ones."""


class Memory:
    """Reads what an actor's earlier processes left, and writes what its later ones need."""

    def __init__(self, pass_id: str, table: str) -> None:
        self._pass, self._table = _prefix(table, pass_id), _prefix(table)
        self._starts = f"{self._pass}actor-{ray.get_runtime_context().get_actor_id()}"
        self._is_new = True
        self._finished: deque[str] = deque()

    def count_start(self, max_restarts: int) -> None:
        """Count a start of this actor.

        Raises:
            RunFailedError: it was started too often without getting anything done.
        """
        num_starts = int(ray_private.kv_get(self._starts) or b"0")
        if num_starts > max_restarts:
            raise RunFailedError(
                f"an actor's process died {num_starts} times in a row before it had done anything "
                f"(teacher.actors.max_restarts: {max_restarts}); its last lines are in Ray's logs, worker-*.err"
            )
        ray_private.kv_put(self._starts, str(num_starts + 1).encode())

    def got_on(self) -> None:
        """Record that something is done."""
        if self._is_new:
            ray_private.kv_put(self._starts, b"0")
            self._is_new = False

    def recall(self, chunk: str) -> Narrowing | pa.Table | None:
        """The state of a chunk that is not done, or what was written of one that is; None for a new one."""
        if (written := ray_private.kv_get(f"{self._pass}{chunk}")) is not None:
            return pa.ipc.open_stream(written).read_all()
        known = ray_private.kv_get(f"{self._table}{chunk}")
        return None if known is None else Narrowing.from_json(known.decode())

    def keep(self, chunk: str, known: Narrowing) -> None:
        """Record the state of a chunk."""
        ray_private.kv_put(f"{self._table}{chunk}", known.to_json().encode())

    def finish(self, chunk: str, written: pa.Table) -> None:
        """Record what was written of a chunk."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, written.schema) as stream:
            stream.write_table(written)
        ray_private.kv_put(f"{self._pass}{chunk}", sink.getvalue().to_pybytes())
        ray_private.kv_delete(f"{self._table}{chunk}")
        self._finished.append(chunk)
        if len(self._finished) > KEPT:
            ray_private.kv_delete(f"{self._pass}{self._finished.popleft()}")


def here() -> str:
    """The node of this process."""
    return ray.get_runtime_context().get_node_id()


def is_gone(node: str) -> bool:
    """Whether a node has left the cluster; false if none is named."""
    return bool(node) and all(living["NodeID"] != node for living in nodes.living())


def forget(table: str, pass_id: str | None = None) -> None:
    """Remove the records of a pass; without a pass, all records of a table."""
    ray_private.kv_delete_prefix(_prefix(table, pass_id))


def _prefix(table: str, pass_id: str | None = None) -> str:
    return f"table-{fingerprint(table)}/{'' if pass_id is None else f'{pass_id}/'}"
