"""Every interface of Ray that Ray does not document, each behind one function with a plain name.

No other module of ``curation`` and ``train`` imports a private name of Ray. A release of Ray may change any of these;
``tests/curation/cluster/test_ray_private.py`` calls each against a real Ray and names the release that changed it.
Ray's documented counterparts do not serve: ``ray.init`` waits for minutes where nobody answers.
"""

import json
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def _replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """Replace the value of an attribute of Ray within the context."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def starting(tell: Callable[[str], None]) -> Iterator[None]:
    """Make a Ray that starts within the context leave SIGTERM to this process and send its messages to ``tell``.

    Ray's own handlers of SIGTERM (one in Python, one in C++) would end the process without a commit. Ray's messages to
    the driver about nodes and processes go to ``tell`` instead of the standard output. If the start fails, the
    processes that it began are ended.
    """
    from ray._private import utils, worker
    from ray._private.node import Node

    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
    worker.print_to_stdstream = lambda data, **how: tell("\n".join(data["lines"]))
    begun: list[Node] = []
    begin = Node.__init__

    def noted(node: Node, *arguments: Any, **named: Any) -> None:
        begun.append(node)
        begin(node, *arguments, **named)

    try:
        with _replaced(utils, "set_sigterm_handler", lambda handler: None), _replaced(Node, "__init__", noted):
            yield
    except BaseException:
        for node in begun:  # Ray ends what it began only with this process, and a next try begins it again
            if hasattr(node, "all_processes"):
                node.kill_all_processes(check_alive=False, wait=True)
        raise
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))  # over that of C++


@contextmanager
def alone() -> Iterator[None]:
    """Reserve a Ray that starts on this machine within the context for this process.

    Such a Ray listens on the loopback address, as it does by default only on macOS and Windows (``ray.init`` replaces a
    given loopback address by the network's). The process that forwards the workers' output to drivers is not started,
    because drivers do not listen here (``log_to_driver``).
    """
    from ray._private import ray_constants
    from ray._private.node import Node

    with (
        _replaced(ray_constants, "ENABLE_RAY_CLUSTER", False),
        _replaced(Node, "start_log_monitor", lambda node: None),
    ):
        yield


def find_head_address(address: str) -> str | None:
    """Return ``HOST:PORT`` of the Ray that an address means (``auto``, ``HOST:PORT``); None for ``local``.

    Raises:
        ConnectionError: the address is ``auto``, and no Ray runs on this machine.
        ValueError: the address is malformed.
        OSError: the address's host is unknown.
    """
    from ray._private import services

    found: str | None = services.canonicalize_bootstrap_address(address)
    return found


def take_token() -> None:
    """Let this process authenticate with the cluster's token, if one is available, as ``ray.init`` does."""
    from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


class Head:
    """A cluster's head at ``HOST:PORT``, asked by a process that has not joined it.

    Raises:
        ray.exceptions.RayError: the head does not answer or refuses the token; each method may raise this, too.
    """

    def __init__(self, address: str) -> None:
        from ray._raylet import GcsClient  # type: ignore[attr-defined]

        self._client = GcsClient(address=address)

    def ray_version(self) -> str | None:
        """Return the head's version of Ray, or None if the head does not report it. Heads of any version can answer."""
        from ray._common.usage.usage_lib import get_cluster_metadata

        version: str | None = (get_cluster_metadata(self._client) or {}).get("ray_version")
        return version

    def node_sockets(self, *, timeout: float) -> list[str]:
        """Return the path of each node's socket, on that node's own file system."""
        return [node.raylet_socket_name for node in self._client.get_all_node_info(timeout=timeout).values()]


def list_node_types() -> set[str]:
    """Return the names of the cluster's node types; "" stands for nodes without one."""
    import ray
    from ray.autoscaler.v2.sdk import get_cluster_status
    from ray.experimental.internal_kv import _internal_kv_get

    status = get_cluster_status(ray.get_runtime_context().gcs_address)
    types = {node.ray_node_type_name or "" for node in (*status.active_nodes, *status.idle_nodes)}
    if (report := _internal_kv_get("__autoscaling_status")) is not None:  # the autoscaler before version 2
        types |= set((json.loads(report).get("autoscaler_report", {}).get("node_type_mapping") or {}).values())
    return types


def find_spill_folder() -> str | None:
    """Return the folder to which this process's own Ray spills objects, or None if it joined another Ray or none."""
    from ray._private import worker

    node = worker._global_node
    if node is None or not node.is_head():
        return None
    folder: str = node._fallback_directory
    return folder


def find_draining_nodes() -> set[str]:
    """Return the ids of the nodes that are about to be removed, e.g. of a spot machine after its notice."""
    from ray.train.v2._internal.execution.preemption import _get_draining_nodes

    return set(_get_draining_nodes())
