"""Prometheus reads our metrics from the metrics agent of a node, with the right values (needs ``ray[default]``)."""

import json
import os
import subprocess
import sys

import lance
import pyarrow as pa
import pytest

from curation.config import DomainConfig
from curation.domains import get_domain
from curation.tables import schemas
from curation.telemetry import metrics

pytestmark = pytest.mark.long

NUM_ROWS, CHUNK_ROWS, FAILING = 400, 25, 3

SCRIPT = """
import json, sys, time, urllib.request
from prometheus_client.parser import text_string_to_metric_families
from curation.tables import io
from curation.config import ActorsConfig, DecodingConfig, DomainConfig, RayConfig, ScriptedConfig, TeacherConfig
from curation.cluster.session import local_or_cluster
from curation.stages.label import RowShare, label
from curation.stages.label_chunks import LabelJob
from curation.telemetry.metrics import Telemetry

examples, labels, failing, rows = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
job = LabelJob(
    examples=io.find_latest(examples), labels_uri=labels, domain=DomainConfig(name="chess"), model=None, seed=0,
    teacher=TeacherConfig(
        backend="scripted", scripted=ScriptedConfig(error_rows=failing), chunk_rows=25, actors=ActorsConfig(max=1)
    ),
    decoding=DecodingConfig(), telemetry=Telemetry(run="tiny", stage="gen-0/label-pool"),
)
with local_or_cluster(RayConfig(num_cpus=1)):
    import ray

    label(job, state_size=8, share=RowShare(), commit_seconds=0.1)
    (node,) = ray.nodes()
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    seen = {}  # an export may be late, and the agent forgets a gauge that was not exported for two seconds

    def read():
        for family in text_string_to_metric_families(urllib.request.urlopen(address, timeout=10).read().decode()):
            for sample in family.samples:
                if sample.name.startswith("ray_curation_"):
                    name = sample.name.removeprefix("ray_curation_")
                    seen[name, tuple(sorted(sample.labels.items()))] = sample.value

    def settled():
        last = {}
        for (name, tags), value in seen.items():
            last.setdefault(name, []).append(value)
        gauges = [last.get(name, [None]) for name in ("actors", "rows_left", "commit_lag_seconds")]
        done = [last.get(name, [None]) for name in ("rows_labelled_total", "rows_committed_total")]
        return all(value == 0 for values in gauges for value in values) and done == [[rows], [rows]]

    for _ in range(120):
        time.sleep(0.5)
        read()
        if settled():
            break
    time.sleep(1.5)  # what was counted beside the rows may come one export later
    read()
    print(json.dumps([("curation_" + name, dict(tags), value) for (name, tags), value in seen.items()]))
"""


@pytest.fixture(scope="module")
def samples(puzzles, tmp_path_factory):
    """What the agent exports of ours after a labelling pass: (name, tags, value)."""
    pytest.importorskip("prometheus_client", reason="the metrics agent needs ray[default]")
    directory = tmp_path_factory.mktemp("metrics")
    domain = get_domain(DomainConfig(name="chess"))
    rows = [domain.read(raw) | {"row_id": i, "error": None} for i, raw in enumerate(puzzles[:NUM_ROWS])]
    table = pa.Table.from_pylist(rows, schema=schemas.make_examples_schema(domain.columns, gold=False))
    lance.write_dataset(table, directory / "pool.lance")
    arguments = [
        str(directory / "pool.lance"),
        str(directory / "labels.lance"),
        json.dumps(list(range(FAILING))),
        str(NUM_ROWS),
    ]
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env={**os.environ, "RAY_metrics_report_interval_ms": "300"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    labels = lance.dataset(directory / "labels.lance").to_table(columns=["num_prompt_tokens", "num_output_tokens"])
    found = json.loads(ran.stdout.splitlines()[-1])
    return found, labels.to_pylist()


def test_the_agent_exports_the_right_values(samples):
    found, labels = samples
    values = {}
    for name, tags, value in found:
        assert (tags["run"], tags["stage"]) == ("tiny", "gen-0/label-pool")
        values[name, tags.get("kind") or tags.get("state")] = value
    assert values["curation_rows_labelled_total", None] == NUM_ROWS
    assert values["curation_rows_committed_total", None] == NUM_ROWS
    assert values["curation_error_rows_total", "scripted"] == FAILING
    assert values["curation_prompt_tokens_total", None] == sum(row["num_prompt_tokens"] or 0 for row in labels) > 0
    assert values["curation_output_tokens_total", None] == sum(row["num_output_tokens"] or 0 for row in labels) > 0
    assert values["curation_actors", "running"] == values["curation_actors", "pending"] == 0
    for gauge in ("curation_rows_left", "curation_commit_lag_seconds"):
        assert values[gauge, None] == 0


def test_each_metric_that_is_declared_is_emitted(samples):
    found, _ = samples
    names = {name for name, _, _ in found}
    served = (metrics.ROWS_SERVED, metrics.SHIFT_AUC_LOW, metrics.FOREIGN_SHARE_LOW)
    of_drivers = (metrics.DRIVER_ALIVE, metrics.VERDICT)
    still = (metrics.ACTOR_DEATHS,)  # nobody died
    quiet = {meter.name for meter in (*served, *of_drivers, *still)}
    assert {value.name for value in vars(metrics).values() if isinstance(value, metrics.Meter)} - quiet <= names
