"""Divides the time in which a process works among the calls that it works on at once."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Shares:
    """Measures each call's share of the process's time: calls that work at once share a moment equally.

    So the shares of all calls add up to the time in which the process worked, without that in which it starts a model.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_calls = 0
        self._share = 0.0
        """What a call that has worked all the time would have."""
        self._at = time.monotonic()

    @contextmanager
    def measured(self) -> Iterator[Callable[[], float]]:
        """Within the context a call works; yield a function that gives its seconds so far."""
        begun = self._count(1)
        ended: list[float] = []
        try:
            yield lambda: (ended[0] if ended else self._count(0)) - begun
        finally:
            ended.append(self._count(-1))

    def _count(self, change: int) -> float:
        with self._lock:
            now = time.monotonic()
            if self._num_calls:
                self._share += (now - self._at) / self._num_calls
            self._at, self._num_calls = now, self._num_calls + change
            return self._share
