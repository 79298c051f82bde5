"""A whole run of the quickstart with the paper's trust function in place of the default, by one line of the file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from benchmarks.recorded import planned
from curation import run
from curation.config.load import load_config
from curation.refs import TableRef
from curation.tables import io
from tests import golden

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.whole_run
SMALL = (
    "teacher.adapt=null",
    "splits.adapt=null",
    "splits.source.rows=1200",
    "splits.test.rows=60",
    "splits.pool.rows=600",
    "teacher.actors={min: 1, max: 1}",
    "trust.max_steps=60",
    "trust.options={stacked: {network_rows: 2000}}",  # networks would differ by more than a record may
    "selection.budget.n=60",
    "selection.max_per_label=null",
    "selection.arms=[internal_confidence, stacked, trust, ground_truth]",
    "student.epochs=1",
    "student.cpus_per_worker=1",
)


def network(weights: dict[str, np.ndarray], state_ND: np.ndarray) -> np.ndarray:
    """The paper's network by hand, with its dropout and stochastic depth off: states to logits [N]."""

    def norm(x_NW: np.ndarray, scale_W: np.ndarray) -> np.ndarray:
        return x_NW / np.sqrt(np.square(x_NW).mean(axis=1, keepdims=True) + 1e-6) * scale_W

    x_NW = state_ND @ weights["input.weight"].T + weights["input.bias"]
    for block in range(4):
        named = {key.removeprefix(f"blocks.{block}."): value for key, value in weights.items()}
        y_NW = norm(x_NW, named["norm.weight"])
        gate_NI = y_NW @ named["w1.weight"].T
        x_NW = x_NW + (gate_NI / (1 + np.exp(-gate_NI)) * (y_NW @ named["w3.weight"].T)) @ named["w2.weight"].T
    return (norm(x_NW, weights["norm.weight"]) @ weights["head.weight"].T + weights["head.bias"])[:, 0]


@pytest.mark.timeout(600)
def test_the_quickstart_with_the_papers_trust_function(local_ray: Any, tmp_path: Path):
    text = (ROOT / "examples/quickstart.yaml").read_text()
    line = next(line for line in text.splitlines() if line.startswith("trust: "))
    path = tmp_path / "ntf.yaml"
    path.write_text(text.replace(line, "trust: {kind: ntf, cpus_per_worker: 1}"))
    raw = yaml.safe_load(path.read_text())
    places = [f"sources.puzzles.path={ROOT / 'examples' / raw['sources']['puzzles']['path']}"]
    places += [f"teacher.model.path={ROOT / 'examples/bases/teacher'}", f"run_dir={tmp_path / 'run'}"]
    places += [f"generations=[{{student: {{path: {ROOT / 'examples/bases/student'}}}}}]"]
    config = load_config(path, [*SMALL, *places])
    report = run(config)

    golden.check("quickstart", tmp_path / "run", exact=False)
    arms = {arm["name"]: arm for arm in report["arms"]}
    assert all(arm["num_selected"] == 60 and arm["accuracy"]["n"] == 60 for arm in arms.values())
    assert {"trust", "stacked"} <= set(report["trust"]["pool"]["parsed"]["functions"])
    stages = planned(tmp_path / "run")
    outputs = {name.removeprefix("gen-0/"): stage["outputs"] for name, stage in stages.items()}
    (fitted,) = [place for place in (tmp_path / "run").rglob("description.json") if "blocks" in weights_at(place)]
    description, weights = json.loads(fitted.read_text()), load_file(fitted.with_name("weights.safetensors"))
    assert description["architecture"] | {"standardise": False} == description["architecture"]
    assert (description["architecture"]["depth"], description["architecture"]["width"]) == (4, 512)
    assert description["architecture"]["input_size"] == 96  # the state of one position

    # All labelled rows of the source, and their last answer tokens' raw states.
    labelled = io.open_table(TableRef.from_json(outputs["label-source"]["labels"])).to_table().to_pydict()
    fit = description["fit"]
    assert fit["num_fit"] + fit["num_validation"] + fit["num_repeats"] == sum(e is None for e in labelled["error"])
    assert fit["config"]["fit_on"] == "all" and fit["steps"][-1] == 60
    scored = io.open_table(TableRef.from_json(outputs["score-pool"]["labels"])).to_table()
    logit_N = network({key: value.astype(np.float64) for key, value in weights.items()}, states_of(outputs, scored))
    raw_N, trust_N = (scored[name].to_numpy() for name in ("trust_raw", "trust_trust"))
    assert raw_N == pytest.approx(logit_N, abs=3e-3) and np.ptp(logit_N) > 0.1  # scored in float32
    assert trust_N == pytest.approx(1 / (1 + np.exp(-raw_N)), abs=1e-6)  # the bare sigmoid


def weights_at(description: Path) -> str:
    """The names of the weights beside a description, as one text."""
    return " ".join(load_file(description.with_name("weights.safetensors")))


def states_of(outputs: dict[str, Any], scored: Any) -> np.ndarray:
    """The last answer token's state of the scored rows, float64 [N, D]."""
    table = io.open_table(TableRef.from_json(outputs["label-pool"]["labels"])).to_table()
    assert table["row_id"].to_pylist() == scored["row_id"].to_pylist()
    return np.array(table["state_output_last"].to_pylist(), dtype=np.float64)
