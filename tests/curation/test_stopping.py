"""A signal is never lost, wherever it comes."""

import os
import signal
import subprocess
import sys
import time

import pytest

from curation import stopping
from curation.stopping import Stopped, stopped_by_signals


@pytest.fixture(autouse=True)
def _nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Ray of other tests of this process may listen already; a context within it does nothing."""
    monkeypatch.setattr(stopping, "_listening", False)


class KillsOnDeletion:
    """Its finaliser runs the signal's handler, and Python ignores what a finaliser raises."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)


def test_a_signal_in_a_finaliser_is_raised_after_it(capfd: pytest.CaptureFixture[str]):
    reached = []
    with pytest.raises(Stopped), stopped_by_signals() as signals:
        item = KillsOnDeletion()
        del item
        for _ in range(1000):  # raised as soon as Python code runs again
            time.sleep(0.001)
        reached.append("the end")
    assert signals.first == signal.SIGTERM and not reached
    assert "ignored" not in capfd.readouterr().err


FORK = """
import logging, os, signal, threading, time
from curation.stopping import Stopped, stopped_by_signals

def slow():
    if armed:
        armed.clear()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)  # longer than the time after which the error is raised again

armed = [True]
os.register_at_fork(**{when}=slow)
try:
    with stopped_by_signals():
        if (child := os.fork()) == 0:
            os._exit(0)
        for _ in range(1000):
            time.sleep(0.001)
except Stopped:
    print("stopped")
os.waitpid(child, 0)


def look():
    is_free = logging._lock.acquire(timeout=1)
    print("free:", is_free)
    if is_free:
        logging._lock.release()

thread = threading.Thread(target=look)
thread.start()
thread.join()
"""


@pytest.mark.parametrize("when", ["before", "after_in_parent"])
def test_a_signal_around_a_fork_is_raised_after_it_and_leaves_no_lock_locked(when: str):
    done = subprocess.run(
        [sys.executable, "-c", FORK.replace("**{when}", when)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["stopped", "free: True"] and not done.stderr


def test_errors_of_other_finalisers_are_told_as_ever(monkeypatch: pytest.MonkeyPatch):
    class Broken:
        def __del__(self) -> None:
            raise ValueError("mine")

    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: told.append(str(found.exc_value)))
    with stopped_by_signals():
        item = Broken()
        del item
    assert told == ["mine"]
