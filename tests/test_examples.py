"""One run a domain from its YAML in examples/, in reduced size: all arms that apply, without students."""

import csv
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from curation import run
from curation.arms import ARMS
from curation.config.load import load_config
from tests import golden

pytestmark = pytest.mark.whole_run

EXAMPLES = Path(__file__).parents[1] / "examples"
REDUCED = {
    "mcqa": (
        "splits.adapt.rows=500",
        "splits.source.rows=400",
        "splits.probes.same.rows=100",
        "splits.probes.others.rows=100",
        "splits.probes.problems.rows=40",
        "splits.pool.rows=400",
        "teacher.adapt.epochs=3",
        "selection.budget.risk.alpha=0.8",
    ),
    "math": (
        "splits.adapt.rows=1000",
        "splits.source.rows=400",
        "splits.pool.rows=400",
        "teacher.adapt.epochs=7",
        "teacher.adapt.cpus_per_worker=1",
        "trust.cpus_per_worker=1",
        "signals.self_consistency.num_samples=2",
        "selection.budget={n: 20}",  # so small a teacher is right too seldom for a trust of one half
    ),
    "scripted": (
        "teacher={backend: scripted, scripted: {completions: ['\\boxed{0}', '\\boxed{0}', '\\boxed{1}']}, "
        "states: [prompt_last, output_last]}",  # one answer in twenty is 0
        "splits.adapt=null",
        "splits.source.rows=400",
        "splits.pool.rows=400",
        "trust.cpus_per_worker=1",
        "signals.self_consistency.num_samples=2",
        "selection.budget={n: 10}",
        "selection.gold_rollouts.source=answers",  # of its own it has too few right ones
    ),
    "scripted_choices": (
        "teacher={backend: scripted, states: [output_last]}",
        "splits.adapt=null",
        "splits.source.rows=400",
        "splits.probes={same: {from: questions, rows: 100, regime: ID}, "
        "others: {from: others, rows: 100, regime: OOD-dist}}",
        "splits.pool.rows=400",
        "trust.cpus_per_worker=1",
        "signals={}",
        "selection.arms=[naive, internal_confidence, icl_confidence, linear_probe, trust, trust_gold, ground_truth]",
        "selection.budget={n: 40}",
    ),
    "chess": (
        "teacher.adapt=null",
        "splits.source.rows=1500",
        "splits.probes.held_out.rows=300",
        "splits.pool.rows=1500",
        "selection.budget.cap=80",
        "signals.self_consistency.num_samples=2",
    ),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "domain",
    # Those of chess and mcqa are run to the selection, with fewer arms and two backends each, by make test-vllm; the
    # one of math with a scripted teacher here.
    [
        "scripted",
        "scripted_choices",
        *(pytest.param(domain, marks=pytest.mark.slow) for domain in ("math", "chess", "mcqa")),
    ],
)
def test_example_of_a_domain_runs_all_its_arms(local_ray, tmp_path, domain):
    overrides = (*REDUCED[domain], f"run_dir={tmp_path}", "generations=[]", "teacher.actors={min: 1, max: 1}")
    example = {"scripted": "math", "scripted_choices": "mcqa"}.get(domain, domain)
    config = load_config(EXAMPLES / f"{example}.yaml", overrides)
    report = run(config)
    if domain != example:
        golden.check(domain, tmp_path)
    n, arms = report["budget"]["n"], {arm["name"]: arm for arm in report["arms"]}
    assert list(arms) == list(config.selection.arms) and n > 0
    page = (tmp_path / "report.html").read_text()
    for name, arm in arms.items():
        assert arm["num_selected"] == n and arm["purity"]["n"] == n, name
        assert arm["oracle"] == (ARMS[name].oracle or config.selection.budget.needs_gold), name
        assert ARMS[name].words in page, name
    assert arms["trust_gold"]["purity"]["value"] == 1
    sets = {item["set"] for item in report["regimes"]}  # a probe of which nothing is right, as another task's, has none
    assert {"validation", "pool"} <= sets <= {"validation", "pool", *config.splits.probes}
    assert report["shift"]["source"]["strength"] in ("none shown", "slight")  # parts of one source
    if example == "mcqa":
        assert report["difficulty"] is None
    if domain == "mcqa":
        assert report["guarantee"]["claimed"] and "by construction" in report["guarantee"]["exchangeable"]
    if example != "mcqa":
        assert set(report["difficulty"]["arms"]) == set(arms)
        matched, trust = (report["difficulty"]["arms"][name] for name in ("naive_matched", "trust"))
        assert abs(matched["mean"] - trust["mean"]) < abs(report["difficulty"]["pool"]["mean"] - trust["mean"]) + 0.05


def test_examples_read_as_configurations():
    for path in (*EXAMPLES.glob("*.yaml"), EXAMPLES / "own_data" / "own.yaml"):
        assert load_config(path).name == path.stem


def test_own_domain_of_the_page_runs_from_the_command_line(tmp_path):
    section = (EXAMPLES.parent / "docs" / "extending.md").read_text().split("\n## ")[1]
    blocks = dict(reversed(re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)))
    (tmp_path / "own_texts.py").write_text(blocks["python"])
    rng = random.Random(0)
    with (tmp_path / "texts.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        rows.writerows([f"text {number}", rng.choice(["negative", "positive"])] for number in range(400))
    config = {
        "name": "own",
        "run_dir": str(tmp_path / "run"),
        **yaml.safe_load(blocks["yaml"]),
        "sources": {"texts": {"path": "texts.csv"}},
        "splits": {"source": {"from": "texts", "rows": 200}, "pool": {"from": "texts"}, "audit": True},
        # Chooses an option, or what it says of its confidence, by the row's hash.
        "teacher": {"backend": "scripted", "scripted": {"completions": [" 85%", " very low", " 0.4"]}},
        "selection": {
            "budget": {"share": 0.25},
            "arms": ["naive", "verbalized_confidence", "self_consistency", "trust"],
        },
        "ray": {"num_cpus": 2},
    }
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "curation.cli", "run", str(tmp_path / "own.yaml")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert {arm["name"]: arm["num_selected"] for arm in report["arms"]} == dict.fromkeys(
        config["selection"]["arms"], 50
    )
