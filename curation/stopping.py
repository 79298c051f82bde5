"""Early end of a run: the driver commits what is done and exits.

SIGINT is Ctrl-C; SIGTERM comes from a spot machine's notice, Kubernetes and Slurm. A signal or a lost lease sets an
event, and nothing is raised in another thread: each thread looks at its own event, between the steps of its work and
while it waits (:func:`check`). Long waits in a stage use :func:`wait_for_call`, which looks too.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

LOOK_SECONDS = 0.2
"""The interval at which a wait checks whether it was stopped."""
LIMIT_SECONDS = 28.0
"""Seconds that a command has to end after a signal before its process is ended; what is committed stays."""


class Stopped(BaseException):
    """A request to end the work of this thread; like KeyboardInterrupt, it is not an error of a stage."""


class _Own(threading.local):
    """The state of a thread: its event, and whether a stop was raised."""

    event: threading.Event | None = None
    is_raised = False
    """Whether :func:`check` has raised; it does so only once, so that cleanup may call it again."""
    is_deferred = False


_own = _Own()


def check() -> None:
    """Raise ``Stopped`` once if the work of this thread is to end: its event is set."""
    if _own.event is not None and _own.event.is_set() and not _own.is_raised:
        _own.is_raised = True
        raise Stopped


def iter_checked(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items, with a :func:`check` before each, for work that a stage does in its own thread."""
    for item in items:
        check()
        yield item


@contextmanager
def stopped_by(event: threading.Event) -> Iterator[None]:
    """End the work of this thread, within the context, once ``event`` is set."""
    before = _own.event, _own.is_raised
    _own.event, _own.is_raised = event, False
    try:
        yield
    finally:
        _own.event, _own.is_raised = before


@contextmanager
def deferred() -> Iterator[None]:
    """Let a signal within the context raise nothing by itself; :func:`check` raises, at the latest at its end.

    An exception could leave a lock of Ray's start locked, or half of a stage's record.
    """
    before, _own.is_deferred = _own.is_deferred, True
    try:
        yield
    finally:
        _own.is_deferred = before
    check()


class Signals:
    """A handler of the signals that end the work: the first one stops the main thread, further ones are ignored.

    With a ``farewell``, called before, the process ends ``LIMIT_SECONDS`` after the first signal or at a second SIGINT.
    """

    def __init__(self, farewell: Callable[[signal.Signals], None] | None) -> None:
        self.first: signal.Signals | None = None
        """The signal that came first."""
        self.event = threading.Event()
        """The event that the first signal sets."""
        self._farewell = farewell
        self.clock = threading.Timer(LIMIT_SECONDS, self._end_at_once)
        self.clock.daemon = True

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: set the event and, unless :func:`deferred`, raise ``KeyboardInterrupt`` or ``Stopped``.

        If Python ignores the exception, as in a finaliser, the next :func:`check` raises.
        """
        if self.first is not None:
            if number == signal.SIGINT and self._farewell is not None:
                self._end_at_once()
            return
        signal.alarm(0)  # Ray's C++ handler, if it was first, would abort the process 3 s later
        self.first = signal.Signals(number)
        self.event.set()
        if self._farewell is not None:
            self.clock.start()
        if not _own.is_deferred:
            raise KeyboardInterrupt if number == signal.SIGINT else Stopped

    def end(self) -> None:
        """End the process at once with its signal's exit code: threads that wait in C++ would abort a normal exit."""
        assert self.first is not None, "a signal has come"
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(compute_exit_code(self.first))

    def _end_at_once(self) -> None:
        assert self.first is not None and self._farewell is not None, "a signal has come, and may end the process"
        self._farewell(self.first)
        self.end()


_listening = False
"""Whether a :class:`Signals` is in place in this process."""


def compute_exit_code(number: signal.Signals) -> int:
    """Return the exit code of a process that a signal ended, as shells count: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + number


@contextmanager
def stopped_by_signals(farewell: Callable[[signal.Signals], None] | None = None) -> Iterator[Signals]:
    """Handle signals within the context as :class:`Signals` describes; a nested context changes nothing.

    Commands give a ``farewell``; SIGINT is then handled even if it was ignored, as in a background job of a shell
    script, because whoever sends it there wants the job to stop. Without one only SIGTERM is handled: SIGINT stays with
    the caller.
    """
    global _listening
    signals = Signals(farewell)
    if _listening or threading.current_thread() is not threading.main_thread():
        yield signals
        return
    numbers = (signal.SIGTERM,) if farewell is None else (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signals.handle) for number in numbers}
    _listening = True
    try:
        with stopped_by(signals.event):
            yield signals
    finally:
        _listening = False
        signals.clock.cancel()
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def wait_for_call(call: Callable[[], Result]) -> Result:
    """Return the result of ``call``, made in a daemon thread, so that the wait can end by ``Stopped``."""
    future: Future[Result] = Future()

    def make_call() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # raised again where the result is taken
            future.set_exception(error)

    threading.Thread(target=make_call, daemon=True).start()
    while True:
        check()
        if wait([future], timeout=LOOK_SECONDS).done:
            return future.result()
