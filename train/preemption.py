"""Detects that this worker is about to be taken away: by SIGTERM, or with a draining node (a spot machine's notice).

Ray Train tells a group of workers about draining nodes; a lone worker asks Ray. The handler of SIGTERM must be set
in a process's main thread, where a worker of a group does not train: there, its actor is called to set it.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
import ray.train

from curation.cluster import ray_private

_noticing = threading.Event()
_terminated = threading.Event()


def is_terminated() -> bool:
    """Return whether this process received SIGTERM since :func:`noticing` began."""
    return _terminated.is_set()


def is_preempted() -> bool:
    """Return whether a worker's node drains; False outside :func:`noticing`. All workers must call this together."""
    if not _noticing.is_set():
        return False
    if ray.train.get_context().get_world_size() > 1:
        return ray.train.get_preemption_info() is not None
    return ray.get_runtime_context().get_node_id() in ray_private.find_draining_nodes()


@contextmanager
def noticing() -> Iterator[None]:
    """Let SIGTERM within the context make :func:`is_terminated` true; it ends the worker with the context."""
    _terminated.clear()
    _call_in_main_thread(_set_handler)
    _noticing.set()
    try:
        yield
    finally:
        _noticing.clear()
        _call_in_main_thread(_restore_handler)


def _call_in_main_thread(call: Callable[[], None]) -> None:
    """Call a function in the main thread of this process: from another thread, through the worker's actor."""
    if threading.current_thread() is threading.main_thread():
        call()
    else:
        actor: Any = ray.get_runtime_context().current_actor
        ray.get(actor.execute.remote(call))


_previous: list[Any] = []


def _set_handler() -> None:
    _previous.append(signal.signal(signal.SIGTERM, lambda number, frame: _terminated.set()))


def _restore_handler() -> None:
    signal.signal(signal.SIGTERM, _previous.pop())
    if _terminated.is_set():
        os.kill(os.getpid(), signal.SIGTERM)
