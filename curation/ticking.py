"""Something that is done again and again while something else goes on."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def every(seconds: float, look: Callable[[], None]) -> Iterator[None]:
    """Call ``look`` in a thread every so many seconds, as long as the context lasts; it is not to raise."""
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
