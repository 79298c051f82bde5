"""A signal is never lost, wherever it comes."""

import os
import signal
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


def test_a_signal_around_a_fork_is_raised_after_it():
    def kill() -> None:
        if armed:
            armed.clear()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0)

    armed = [True]
    os.register_at_fork(before=kill)  # as logging's locks are taken and released
    with pytest.raises(Stopped), stopped_by_signals():
        child = os.fork()
        if child == 0:
            os._exit(0)
        for _ in range(1000):
            time.sleep(0.001)
    os.waitpid(child, 0)


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
