"""One run a domain from its YAML in examples/, in reduced size: all arms that apply, without students."""

from pathlib import Path

import pytest

from curation import run
from curation.arms import ARMS
from curation.config_file import load_config

EXAMPLES = Path(__file__).parents[1] / "examples"
REDUCED = {
    "mcqa": (
        "splits.adapt.rows=800",
        "splits.source.rows=400",
        "splits.probes.same.rows=100",
        "splits.probes.others.rows=100",
        "splits.probes.problems.rows=40",
        "splits.pool.rows=400",
        "teacher.adapt.epochs=4",
        "trust.max_epochs=5",
        "selection.budget.cap=100",
    ),
    "math": (
        "splits.adapt.rows=1000",
        "splits.source.rows=400",
        "splits.calibration.rows=300",
        "splits.pool.rows=400",
        "teacher.adapt.epochs=7",
        "trust.max_epochs=5",
        "selection.budget.risk.alpha=0.5",
        "signals.self_consistency.num_samples=2",
    ),
    "chess": (
        "splits.adapt.rows=800",
        "splits.source.rows=1500",
        "splits.probes.held_out.rows=300",
        "splits.pool.rows=1500",
        "trust.max_epochs=5",
        "selection.budget.cap=80",
        "signals.self_consistency.num_samples=2",
    ),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("domain", list(REDUCED))
def test_example_of_a_domain_runs_all_its_arms(local_ray, tmp_path, domain):
    overrides = (*REDUCED[domain], f"run_dir={tmp_path}", "generations=[]")
    config = load_config(EXAMPLES / f"{domain}.yaml", overrides)
    report = run(config)
    n, arms = report["budget"]["n"], {arm["name"]: arm for arm in report["arms"]}
    assert list(arms) == list(config.selection.arms) and n > 0
    page = (tmp_path / "report.html").read_text()
    for name, arm in arms.items():
        assert arm["num_selected"] == n and arm["purity"]["n"] == n, name
        assert arm["oracle"] == (ARMS[name].oracle or config.selection.budget.needs_gold), name
        assert ARMS[name].words in page, name
    assert arms["neural_gold"]["purity"]["value"] == 1
    assert {item["set"] for item in report["regimes"]} == {"validation", "pool", *config.splits.probes}
    assert report["shift"]["source"]["strength"] in ("none shown", "slight")  # parts of one source
    if domain == "mcqa":
        assert report["difficulty"] is None
    else:
        assert set(report["difficulty"]["arms"]) == set(arms)
        matched, neural = (report["difficulty"]["arms"][name] for name in ("naive_matched", "neural"))
        assert abs(matched["mean"] - neural["mean"]) < abs(report["difficulty"]["pool"]["mean"] - neural["mean"]) + 0.05
    if domain == "math":
        assert report["guarantee"]["claimed"] and "by construction" in report["guarantee"]["exchangeable"]


def test_examples_read_as_configurations():
    for path in EXAMPLES.glob("*.yaml"):
        assert load_config(path).name == path.stem
