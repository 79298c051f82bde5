"""Early end of a run: the driver commits what is done and exits.

SIGINT is Ctrl-C; SIGTERM comes from a spot machine's notice, Kubernetes and Slurm. Stages run in threads, which receive
no signals, so the main thread stops them. Long waits in a stage use :func:`waited_for` or :func:`arriving`.
"""

import ctypes
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

AGAIN_SECONDS = 0.05
"""After which a signal's error that was lost is raised again."""
LOOK_SECONDS = 0.2
"""The interval at which a wait checks whether it was interrupted."""


LIMIT_SECONDS = 28.0
"""A command that has not ended so long after a signal is ended as it is; what is committed stays."""


class Stopped(BaseException):
    """SIGTERM reached the driver; like KeyboardInterrupt, it is not an error of a stage."""


class Signals:
    """The signals that end the work: the first one raises in the main thread, further ones are ignored.

    With a ``farewell`` they end the process: a clock starts with the first one, a second SIGINT ends it at once, and
    ``farewell`` is called with the first signal before the process is ended from here.
    """

    def __init__(self, farewell: Callable[[signal.Signals], None] | None) -> None:
        self.first: signal.Signals | None = None
        """The signal that came first."""
        self._farewell = farewell
        self._clock: threading.Timer | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal.

        Raises:
            KeyboardInterrupt: it is the first one, SIGINT.
            Stopped: it is the first one, SIGTERM.
        """
        if self.first is not None:
            if number == signal.SIGINT and self._farewell is not None:
                self._end_at_once()
            return
        signal.alarm(0)  # Ray's C++ handler, if it was first, would abort the process 3 s later
        self.first = signal.Signals(number)
        if self._farewell is not None:
            self._clock = threading.Timer(LIMIT_SECONDS, self._end_at_once)
            self._clock.daemon = True
            self._clock.start()
        error = KeyboardInterrupt if number == signal.SIGINT else Stopped
        if _is_forking:
            _raise_soon(error)
        else:
            raise error

    def end(self) -> None:
        """End the process by the code of its signal: threads that still wait in C++ would abort a longer way out."""
        assert self.first is not None, "a signal has come"
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code(self.first))

    def close(self) -> None:
        """Stop the clock."""
        if self._clock is not None:
            self._clock.cancel()

    def _end_at_once(self) -> None:
        assert self.first is not None and self._farewell is not None, "a signal has come, and may end the process"
        self._farewell(self.first)
        self.end()


_listening = False
"""Whether a :class:`Signals` is in place in this process."""
_is_forking = False
"""Whether this process is within a fork, around which Python takes and releases logging's locks."""


def _set_forking(is_forking: bool) -> None:
    global _is_forking
    _is_forking = is_forking


os.register_at_fork(  # logging's own are within these: before it in the order of calls, and after it
    before=lambda: _set_forking(True),
    after_in_parent=lambda: _set_forking(False),
    after_in_child=lambda: _set_forking(False),
)


def exit_code(number: signal.Signals) -> int:
    """The exit code of a process that a signal ended, as shells count: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + number


@contextmanager
def stopped_by_signals(farewell: Callable[[signal.Signals], None] | None = None) -> Iterator[Signals]:
    """Within the context, signals are handled as :class:`Signals` says; a context within another one does nothing.

    A command of the command line gives a ``farewell``. SIGINT is then handled even where it was ignored, as it is for a
    background job of a shell script: who sends it there means it. A caller of the Python interface gives none: SIGTERM
    alone is handled, and the process is his.
    """
    global _listening
    signals = Signals(farewell)
    if _listening or threading.current_thread() is not threading.main_thread():
        yield signals
        return
    numbers = (signal.SIGTERM,) if farewell is None else (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signals.handle) for number in numbers}
    unraisable, sys.unraisablehook = sys.unraisablehook, _raised_again(sys.unraisablehook)
    _listening = True
    try:
        yield signals
    finally:
        _listening = False
        signals.close()
        sys.unraisablehook = unraisable
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def stop(thread: threading.Thread, error: type[BaseException] = Stopped) -> None:
    """Raise :class:`Stopped`, or another error, in a thread as soon as it runs Python code again."""
    assert thread.ident is not None, "a thread that was started"
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error))


def _raised_again(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A hook of ``sys.unraisablehook`` that raises a signal's error again where Python would only print it.

    It does where a handler ran in a finaliser: the signal would be lost.
    """

    def seen(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt | Stopped):
            _raise_soon(unraisable.exc_type)
        else:
            hook(unraisable)

    return seen


def _raise_soon(error: type[BaseException]) -> None:
    """Raise an error in the main thread a moment later, from another thread, and never within a fork.

    What is raised around a fork is ignored, and a lock that was to be released then would stay locked.
    """

    def throw() -> None:
        while _is_forking:
            time.sleep(AGAIN_SECONDS)
        stop(threading.main_thread(), error)

    again = threading.Timer(AGAIN_SECONDS, throw)
    again.daemon = True
    again.start()


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

    def give(is_item: bool, value: object) -> None:
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
        except BaseException as error:  # raised again where the items are taken
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
