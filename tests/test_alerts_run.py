"""deploy/alerts.yaml on what Ray's agents export of real runs: silent on a whole run, and heard where a driver dies."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from alert_rules import Scrape, firing, rules
from ray_nodes import cluster_of
from sums_run import SumsRun

pytestmark = [pytest.mark.timeout(600), pytest.mark.whole_run]
RULES = rules(Path(__file__).parents[1] / "deploy" / "alerts.yaml")
EVERY = 5.0
"""Seconds that a scrape stands for; one is made each second, whatever a busy machine does meanwhile."""
LONGEST = 200
"""The most scrapes until something is seen."""
AFTERWARDS = 20
"""Scrapes after a driver's end: 100 s by the rules, of which the longest that may fire then waits for 60."""
ENDPOINTS = """
import json, sys
import ray
ray.init(sys.argv[1], log_to_driver=False)
print(json.dumps([f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics" for node in ray.nodes()]))
"""


class Scraped:
    """The series of all nodes."""

    def __init__(self, endpoints: list[str]) -> None:
        self._endpoints = endpoints
        self.scrapes: list[Scrape] = []

    def once(self) -> None:
        from prometheus_client.parser import text_string_to_metric_families

        time.sleep(1)
        values = {}
        for endpoint in self._endpoints:
            text = urllib.request.urlopen(endpoint, timeout=60).read().decode()
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.name.startswith("ray_curation_"):
                        labels = {key: value for key, value in sample.labels.items() if key in LABELS}
                        values[sample.name, frozenset(labels.items())] = sample.value
        self.scrapes.append((EVERY * len(self.scrapes), values))

    def until(self, reached: Callable[[], bool], run: SumsRun) -> None:
        first = len(self.scrapes)
        while not reached():
            assert len(self.scrapes) - first < LONGEST, run.errors()
            self.once()

    def shows(self, name: str, run: str, value: float) -> bool:
        """Whether the newest scrape has this value of a run's gauge."""
        newest = self.scrapes[-1][1] if self.scrapes else {}
        return any(key == f"ray_curation_{name}" and ("run", run) in labels and found == value
                   for (key, labels), found in newest.items())  # fmt: skip


LABELS = ("run", "stage", "state", "kind")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """The address of a cluster, and where its nodes export metrics."""
    pytest.importorskip("prometheus_client", reason="the metrics agent needs ray[default]")
    monkeypatch.setenv("RAY_metrics_report_interval_ms", "2000")
    with cluster_of(1, monkeypatch, num_cpus=2) as nodes:
        found = subprocess.run(
            [sys.executable, "-c", ENDPOINTS, nodes.address], check=True, capture_output=True, text=True, timeout=120
        )
        yield nodes.address, json.loads(found.stdout.splitlines()[-1])


def make_run(folder: Path, name: str) -> SumsRun:
    folder.mkdir()
    return SumsRun(folder, num_pool=150, actors={}, seconds_per_row=0.05, sections={"name": name})


def test_no_rule_fires_on_a_whole_run_and_one_on_a_driver_that_is_killed(
    cluster: tuple[str, list[str]], tmp_path: Path
) -> None:
    address, endpoints = cluster
    seen, healthy = Scraped(endpoints), make_run(tmp_path / "healthy", "healthy")
    driver = healthy.start("--address", address)
    seen.until(lambda: driver.poll() is not None, healthy)
    assert driver.returncode == 0, healthy.errors()
    for _ in range(AFTERWARDS):
        seen.once()
    exported = {name for _, values in seen.scrapes for name, _ in values}
    assert {
        f"ray_curation_{name}" for name in ("driver_alive", "rows_left", "rows_committed_total", "verdict")
    } <= exported
    (generation,) = json.loads((healthy.directory / "report.json").read_text())["generations"]
    told = {"DoNotUse"} if generation["verdict"]["level"] == "do not use" else set()
    assert firing(RULES, seen.scrapes) == told

    killed = make_run(tmp_path / "killed", "killed")
    seen, driver = Scraped(endpoints), killed.start("--address", address)
    seen.until(lambda: driver.poll() is not None or seen.shows("driver_alive", "killed", 1.0), killed)
    assert driver.poll() is None, killed.errors()
    assert firing(RULES, seen.scrapes) == set()
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    for _ in range(AFTERWARDS):
        seen.once()
    assert firing(RULES, seen.scrapes) == {"DriverGone"}
