"""A signal is never lost, wherever it comes, and stops the threads that it is meant for at their next look."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from curation import stopping
from curation.stopping import Stopped, check, deferred, iter_checked, stopped_by, stopped_by_signals, wait_for_call


@pytest.fixture(autouse=True)
def _nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Ray of other tests of this process may listen already; a context within it does nothing."""
    monkeypatch.setattr(stopping, "_listening", False)


class KillsOnDeletion:
    """Its finaliser runs the signal's handler, and Python ignores what a finaliser raises."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_in_a_finaliser_stops_the_next_wait():
    begun = time.monotonic()
    with pytest.raises(Stopped), stopped_by_signals() as signals:
        item = KillsOnDeletion()
        del item
        wait_for_call(lambda: time.sleep(60))
    assert signals.first == signal.SIGTERM and time.monotonic() - begun < 10


def test_a_deferred_signal_leaves_a_step_whole_and_stops_after_it():
    reached = []
    with pytest.raises(Stopped), stopped_by_signals():
        with deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            reached.append("end of the step")
        reached.append("after it")
    assert reached == ["end of the step"]


def test_the_first_signal_counts_and_one_without_a_command_ends_no_process():
    with pytest.raises(Stopped), stopped_by_signals() as signals, deferred():
        for number in (signal.SIGTERM, signal.SIGTERM):
            os.kill(os.getpid(), number)
    assert signals.first == signal.SIGTERM


def test_work_is_stopped_once_and_what_cleans_up_may_wait():
    event, done = threading.Event(), []
    with pytest.raises(Stopped), stopped_by(event):
        try:
            for number in iter_checked(range(5)):
                done.append(number)
                if number == 2:
                    event.set()
        finally:
            done.append(wait_for_call(lambda: 7))
    assert done == [0, 1, 2, 7]
    with pytest.raises(Stopped), stopped_by(event):  # other work of the same thread
        check()
    check()


def test_an_event_stops_its_own_threads_alone():
    mine, others, ended = threading.Event(), threading.Event(), []

    def work(name: str, event: threading.Event | None) -> None:
        try:
            with stopped_by(event) if event is not None else deferred():
                wait_for_call(lambda: time.sleep(1))
            ended.append(name)
        except Stopped:
            ended.append(f"{name} stopped")

    threads = [threading.Thread(target=work, args=item) for item in (("mine", mine), ("other", others), ("no", None))]
    for thread in threads:
        thread.start()
    mine.set()
    for thread in threads:
        thread.join()
    assert sorted(ended) == ["mine stopped", "no", "other"]


FORK = """
import logging, os, signal, threading, time
from curation.stopping import Stopped, deferred, stopped_by_signals

def kill():
    if armed:
        armed.clear()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)

armed = [True]
os.register_at_fork(**{when}=kill)
try:
    with stopped_by_signals(), deferred():
        if (child := os.fork()) == 0:
            os._exit(0)
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
def test_a_deferred_signal_around_a_fork_leaves_no_lock_locked(when: str):
    done = subprocess.run(
        [sys.executable, "-c", FORK.replace("**{when}", when)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["stopped", "free: True"] and not done.stderr
