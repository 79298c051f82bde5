"""A driver that is paused while it trains, and whose run directory another driver takes meanwhile."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sums_run import SumsRun
from test_fenced_driver import SHORT_LEASE

from benchmarks.recorded import recorded
from curation.storage import conditional, lease
from train import launch

pytestmark = pytest.mark.whole_run

LONG = {
    "student": {"preset": "scratch", "epochs": 4000, "global_batch_size": 16, "micro_batch_size": 8},
    "generations": [{"student": {"init": {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "max_positions": 256}}}],
    "selection": {"budget": {"n": 50}, "arms": ["naive"]},
}
"""Its training takes several minutes."""


class Paused:
    """A run that trains for long, and its driver."""

    def __init__(self, directory: Path, **recipe: Any) -> None:
        sections = LONG | {"student": LONG["student"] | recipe}
        self.run = SumsRun(
            directory,
            num_pool=200,
            actors={"max": 1},
            seconds_per_row=0,
            sections=sections,
        )
        command = [sys.executable, "-c", SHORT_LEASE, "run", str(self.run.config)]
        self.driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def close(self) -> None:
        """End the driver, paused or not."""
        self.driver.kill()
        self.driver.wait()

    def until(self, happened: Callable[[], bool], seconds: float = 300) -> None:
        end = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < end and self.driver.poll() is None
            time.sleep(0.1)

    def num_trained(self) -> int:
        """Rows that the training has worked on, as its worker notes them."""
        (*_, note) = [0, *self.run.directory.glob("gen-0/student-naive-*/model.progress")]
        return json.loads(note.read_text())[0] if isinstance(note, Path) else 0

    def files(self) -> set[str]:
        """What the training has written but for its notes."""
        found = self.run.directory.glob("gen-0/student-naive-*/**/*")
        return {str(path) for path in found if "model.progress" not in path.name}

    def take(self) -> None:
        """Take the directory as a driver on another host does."""
        register = conditional.make_register(self.run.directory / "lease")
        found = register.read()
        assert found is not None
        other = {"owner": "another", "host": "node-7", "expires": time.time() + 600}
        assert register.put_if_match(json.dumps(json.loads(found.text) | other), found.token)

    def ended(self) -> str:
        """The last line of the driver, which ends because it lost the directory."""
        _, errors = self.driver.communicate(timeout=60)
        assert self.driver.returncode == 1, errors
        assert not [line for line in errors.splitlines() if "ignored" in line or "Traceback" in line], errors
        return errors.splitlines()[-1]


@pytest.fixture
def paused(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Paused]:
    run = Paused(tmp_path, num_workers=request.param)
    yield run
    run.close()


@pytest.mark.parametrize("paused", [1, pytest.param(2, marks=pytest.mark.slow)], indirect=True)
@pytest.mark.timeout(900)
def test_a_training_stops_where_its_driver_was_paused_and_another_took_over(paused: Paused) -> None:
    paused.until(lambda: paused.num_trained() > 0)
    seen, begun = paused.num_trained(), time.monotonic()
    paused.until(lambda: paused.num_trained() > seen)
    still = 2 * launch.LOOK_SECONDS + 3 * (time.monotonic() - begun)  # no note for so long: nobody trains
    paused.driver.send_signal(signal.SIGSTOP)
    time.sleep(3.5)  # longer than its lease
    paused.take()
    seen, still_since = paused.num_trained(), time.monotonic()
    end = time.monotonic() + 60 + 2 * still
    while time.monotonic() - still_since < still:  # its workers are not paused: they stop by themselves
        assert time.monotonic() < end, "the workers train on under the lost lease"
        if (now := paused.num_trained()) != seen:
            seen, still_since = now, time.monotonic()
        time.sleep(0.2)
    files = paused.files()
    paused.driver.send_signal(signal.SIGCONT)
    last = paused.ended()
    assert last.startswith("curate: stage gen-0/student-naive failed: ") and " on node-7, since " in last
    assert "the lease was lost to process" in last and "; this driver commits nothing more" in last
    assert paused.files() == files and not any(path.endswith(("/model", "sealed.json")) for path in files)
    assert "gen-0/student-naive" not in recorded(paused.run.directory)
    assert not [event for kind in ("failed", "stopped") for event in paused.run.events(kind)], "the log is another's"
    holder = lease.find_holder(paused.run.directory)
    assert holder is not None and holder.owner == "another"
