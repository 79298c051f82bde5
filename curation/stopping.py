"""SIGTERM, as a spot machine's notice, Kubernetes and Slurm send it: the driver commits what is done and leaves."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """SIGTERM reached the driver; like KeyboardInterrupt no error of a stage."""


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Within, the first SIGTERM raises :class:`Stopped` in the main thread; later ones do not disturb what that ends.

    To be entered once Ray is started, which sets a handler of its own: that one kills Ray's processes and exits.
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
