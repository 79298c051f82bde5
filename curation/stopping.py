"""Early end of a run: the driver commits what is done and exits.

SIGTERM comes from a spot machine's notice, Kubernetes and Slurm. Stages run in threads, which receive no signals, so
the main thread stops them. Long waits in a stage use :func:`waited_for` or :func:`arriving`.
"""

import ctypes
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

LOOK_SECONDS = 0.2
"""The interval at which a wait checks whether it was interrupted."""


class Stopped(BaseException):
    """SIGTERM reached the driver; like KeyboardInterrupt, it is not an error of a stage."""


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Within the context, the first SIGTERM raises :class:`Stopped` in the main thread; later ones are ignored.

    Enter it after Ray has started, because Ray sets its own handler, which kills Ray's processes and exits.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Stopped

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def stop(thread: threading.Thread) -> None:
    """Raise :class:`Stopped` in another thread, as soon as it runs Python code again."""
    assert thread.ident is not None, "a thread that was started"
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stopped))


def waited_for(call: Callable[[], Result]) -> Result:
    """Return what ``call`` returns. :func:`stop` and signals can interrupt the wait, but not ``call`` itself.

    A call that waits outside Python, as most of Ray's do, notices neither. So it runs in a separate thread, which ends
    with the process.
    """
    (found,) = arriving(call() for _ in range(1))
    return found


def arriving(items: Iterable[Item]) -> Iterator[Item]:
    """The items as they arrive; the wait for the next one can be interrupted, as in :func:`waited_for`."""
    given: queue.Queue[tuple[bool, Any]] = queue.Queue(maxsize=1)
    ended = threading.Event()

    def give(is_item: bool, value: Any) -> None:
        while not ended.is_set():
            with suppress(queue.Full):
                given.put((is_item, value), timeout=LOOK_SECONDS)
                return

    def give_all() -> None:
        try:
            for item in items:
                give(True, item)
                if ended.is_set():
                    return
        except BaseException as error:
            give(False, error)
        else:
            give(False, None)

    threading.Thread(target=give_all, daemon=True).start()
    try:
        while True:
            try:
                is_item, value = given.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                continue
            if is_item:
                yield value
            elif value is None:
                return
            else:
                raise value
    finally:
        ended.set()
