"""Calls a function periodically in the background."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def every(seconds: float, look: Callable[[], None]) -> Iterator[None]:
    """Call ``look`` in a thread every ``seconds``, as long as the context lasts; ``look`` must not raise."""
    ended = threading.Event()

    def keep_looking() -> None:
        while not ended.wait(seconds):
            look()

    thread = threading.Thread(target=keep_looking, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
