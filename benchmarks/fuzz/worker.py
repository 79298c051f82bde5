"""A process of its own in which inputs are tried: one that ends or hangs it is seen, and another takes its place.

Lance reads a changed byte of its files as data, which may end the process.
"""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from curation.stopping import Stopped


class Ended(Exception):
    """The process died, or took too long."""


class _Running(NamedTuple):
    process: BaseProcess
    pipe: Connection


class Worker:
    """Calls functions of importable modules in one process, as long as that lives."""

    def __init__(self, start: Callable[[], object]) -> None:
        """Call ``start`` first in each process; its result is kept until the process ends."""
        self._start = start
        self._running: _Running | None = None

    def __call__(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
        """Return the function's result.

        Raises:
            Ended: it ended the process, or took longer than ``seconds``; the next call has a new process.
        """
        process, pipe = self._running or self._begin()
        pipe.send((function, arguments))
        try:
            if pipe.poll(seconds):
                return pipe.recv()
        except (EOFError, ConnectionResetError):
            process.join()
            self.close()
            raise Ended(f"the process ended with {process.exitcode}") from None
        self.close()
        raise Ended(f"no answer in {seconds:.0f} s")

    def close(self) -> None:
        """End the process."""
        if self._running is not None:
            self._running.process.kill()
            self._running.process.join()
            self._running.pipe.close()
            self._running = None

    def _begin(self) -> _Running:
        pipe, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, self._start), daemon=True)
        process.start()
        theirs.close()
        pipe.recv()
        self._running = _Running(process, pipe)
        return self._running


def _serve(pipe: Connection, start: Callable[[], object]) -> None:
    kept = start()
    pipe.send(None)
    while kept is not _serve:
        try:
            function, arguments = pipe.recv()
        except (EOFError, Stopped):
            return
        pipe.send(function(*arguments))
