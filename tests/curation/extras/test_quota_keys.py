"""Places by class in a run's description: which stages a change of ``selection.quota`` does again, and what is told."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from curation.config.load import load_config
from curation.extras.quotas.division import describe_settings
from curation.pipeline.chain import describe
from curation.rundir.graph import to_plain_json, with_outs
from curation.sources import discover


def load(folder: Path, **selection: Any):
    rows = [f"text {number},{'ab'[number % 2]}" for number in range(90)]
    if not (folder / "rows.csv").exists():  # its time of change is in keys
        (folder / "rows.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    config = {
        "name": "quota",
        "run_dir": str(folder / "run"),
        "domain": {"name": "classification", "classes": ["a", "b"]},
        "sources": {"rows": {"path": str(folder / "rows.csv")}},
        "splits": {
            "source": {"from": "rows", "rows": 30},
            "calibration": {"from": "rows", "rows": 10},
            "pool": {"from": "rows", "rows": 50},
            "audit": True,
        },
        "teacher": {"backend": "scripted"},
        "selection": {"budget": {"n": 10}, **selection},
    }
    path = folder / "quota.yaml"
    path.write_text(yaml.safe_dump(config))
    return load_config(path)


def keys(config: Any) -> dict[str, Any]:
    """Inputs of each stage's key as JSON, by name."""
    chain = describe(config, {name: discover(source) for name, source in config.sources.items()})
    found = {stage.name: to_plain_json(with_outs(dict(stage.inputs), str), {}) for stage in chain.stages}
    return {name: json.loads(json.dumps(key)) for name, key in found.items()}


def test_trust_depends_on_the_classes_only_where_it_reads_the_prompt(tmp_path: Path):
    def fit_of(states: list[str], domain: str = "classification") -> dict[str, Any]:
        config = load(tmp_path)
        raw = yaml.safe_load((tmp_path / "quota.yaml").read_text())
        raw["teacher"]["states"], raw["trust"] = states, {"states": states}
        if domain != "classification":
            raw["domain"] = {"name": domain, "prompt": "{{ text }}", "reference": "label", "check": "equal"}
        (tmp_path / "quota.yaml").write_text(yaml.safe_dump(raw))
        config = load_config(tmp_path / "quota.yaml")
        return keys(config)["gen-0/trust"]

    of_answer, of_both = fit_of(["output_last"]), fit_of(["prompt_last", "output_last"])
    assert of_answer.get("closed") is None
    assert of_both["closed"]["names"] == ["a", "b"] and "source" in json.dumps(of_both["closed"]["examples"])
    assert fit_of(["prompt_last", "output_last"], "text").get("closed") is None


def test_quotas_change_the_selection_alone(tmp_path: Path):
    none, auto = (keys(load(tmp_path, quota=quota)) for quota in ("none", "auto"))
    assert auto == keys(load(tmp_path))
    of_scores = {"gen-0/select", "gen-0/rollouts"}  # trust_gold ranks, so that its rollouts are of the same rows
    assert {name for name in none if none[name] != auto[name]} == of_scores
    classes = auto["gen-0/select"]["choice"].pop("divided")["quota"]
    assert auto["gen-0/select"] == none["gen-0/select"]  # the key of a run that was finished before there were quotas
    assert classes["names"] == ["a", "b"]
    plain, by_label = (keys(load(tmp_path, budget={"risk": {"alpha": 0.1} | per})) for per in ({}, {"per": "label"}))
    changed = {name for name in plain if plain[name] != by_label[name]}
    assert changed == of_scores and by_label["gen-0/select"]["choice"]["divided"]["quota"]["names"] == ["a", "b"]
    assert "divided" not in plain["gen-0/select"]["choice"]
    drawn = {"arms": ["naive", "trust", "ground_truth"]}
    with_draw = [keys(load(tmp_path, quota=quota, **drawn))["gen-0/rollouts"] for quota in ("none", "auto")]
    assert with_draw[0] == with_draw[1]


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        (
            {},
            "the places of arms that rank go to 2 classes by their estimated shares in the pool (none: the best rows)",
        ),
        ({"arms": ["trust", "margin@stratified"]}, "in the pool, but for the rules of margin@stratified (none:"),
        ({"quota": "none"}, "none: the best rows are selected, whatever their class"),
        ({"budget": {"threshold": 0.5}}, "none, since budget.threshold takes all rows above a cut"),
    ],
)
def test_validate_says_what_happens_to_classes(tmp_path: Path, selection: dict[str, Any], words: str):
    config = load(tmp_path, **selection)
    (line,) = describe_settings(config, config.selection)
    assert line.startswith("selection.quota: ") and words in line
