"""A chain whose driver is killed in the second generation, that gets a third one, or that loses its signal."""

import json
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import lance
import pytest
import yaml
from fading_teacher import RIGHT
from sums_run import NUM_SOURCE, SumsRun

from curation.rundir.manifest import Manifest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.long]

NUM_POOL, NUM_TEST, SHARES = 900, 20, 3
GENERATION = {"student": {"init": {"hidden_size": 16, "num_layers": 1}}}
PATH = {"PYTHONPATH": str(Path(__file__).parent)}
"""The tests' own modules."""


def make_run(directory: Path, num: int, **chain: Any) -> SumsRun:
    run = SumsRun(
        directory,
        num_pool=NUM_POOL,
        actors={"min": 1, "max": 1},
        seconds_per_row=0.01,
        splits={"test": {"from": "sums", "rows": NUM_TEST}, "audit": True},
        num_more=NUM_TEST,
        sections={
            "selection": {"budget": {"n": 40}, "arms": ["naive", "trust"]},
            "student": {"preset": "scratch", "epochs": 1},
            "generations": [GENERATION] * num,
            "evaluation": {"num_runs": 1, "decoding": {"temperature": 0, "max_tokens": 4}},
            "chain": {"arms": ["trust", "naive"], "shallow": ["first_teacher"], "shares": SHARES, **chain},
            "trust": {"validation_fraction": 0.4},
        },
    )
    config = yaml.safe_load(run.config.read_text())
    config["teacher"]["backend"] = "fading_teacher:BACKEND"
    config["teacher"]["scripted"]["completions"] = [RIGHT, " \\boxed{2}"]
    run.config.write_text(yaml.safe_dump(config))
    return run


def finish(run: SumsRun, *arguments: str) -> dict[str, Any]:
    assert run.start(*arguments, **PATH).wait(timeout=500) == 0, run.errors()[-5000:]
    return json.loads((run.directory / "report.json").read_text())


FINGERPRINT = re.compile(r"-[0-9a-f]{8}/")
"""A stage's directory has the versions of the tables that it read in its name: the same rows, committed in other steps,
are another version."""
REVISION = re.compile(r"[0-9a-f]{16}")
"""Of a teacher: a digest of its list of files, with sizes and times. Its weights are compared themselves."""


def selected(directory: Path) -> dict[str, Any]:
    """What all selections and students hold, by place, without fingerprints and revisions."""
    kept = [*directory.glob("gen-*/select-*/*.lance")]
    kept += directory.glob("gen-*/student-*/model/*.safetensors")
    places = [FINGERPRINT.sub("/", str(path.relative_to(directory))) for path in kept]
    assert len(set(places)) == len(places), places
    return {place: content(path) for place, path in zip(places, kept, strict=True)}


def content(path: Path) -> Any:
    if path.suffix == ".safetensors":
        return path.read_bytes()
    rows = json.dumps(lance.dataset(str(path)).to_table().to_pylist(), default=str)
    return REVISION.sub("", FINGERPRINT.sub("/", rows))  # a row names its teacher


def records(directory: Path) -> dict[str, Any]:
    return Manifest.load(directory).stages


def test_killed_in_the_second_generation_it_equals_the_undisturbed_one_and_a_third_does_nothing_again(tmp_path: Path):
    undisturbed = finish(make_run(tmp_path, 2, stop=None))
    expected, at = selected(tmp_path / "run"), tmp_path / "undisturbed"
    assert {name.split("/")[0] for name in expected} == {"gen-0", "gen-1", "gen-1-naive"}
    shutil.move(tmp_path / "run", at)  # rows name their teacher by its path, so that both have the same place
    (tmp_path / "labelled.log").unlink()

    run = make_run(tmp_path, 2, stop=None)
    process = run.start(**PATH)
    share = NUM_POOL // SHARES
    while process.poll() is None and len(run.labelled()) < 2 * NUM_SOURCE + share + share // 2:
        time.sleep(0.02)
    assert process.poll() is None, f"the run ended before it was killed: {run.errors()[-3000:]}"
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = records(run.directory)
    assert "gen-0/student-trust" in done and "gen-1/select" not in done
    resumed = finish(run)
    assert selected(run.directory) == expected
    assert {name: records(run.directory)[name] for name in done} == done
    for part in ("lines", "differences"):
        assert resumed["chain"][part] == undisturbed["chain"][part]
    assert [arm["purity"] for arm in resumed["arms"]] == [arm["purity"] for arm in undisturbed["arms"]]

    before, started = records(run.directory), len(run.events("started"))
    longer = finish(run, "--set", f"generations={json.dumps([GENERATION] * 3)}")
    after = records(run.directory)
    assert {name: after[name] for name in before} == before
    again = [event["stage"] for event in run.events("started")[started:]]
    assert again and {name.partition("/")[0] for name in again} == {"gen-2", "gen-2-naive"}
    assert {name: content for name, content in selected(run.directory).items() if name in expected} == expected
    assert longer["chain"]["lines"][0]["accuracy"][:2] == resumed["chain"]["lines"][0]["accuracy"]
    assert len(longer["generations"]) == 3 and longer["chain"]["ended"] is None


def test_a_chain_stops_before_a_teacher_without_signal_and_goes_on_when_told(tmp_path: Path):
    run = make_run(tmp_path, 3)
    report = finish(run)
    assert len(report["generations"]) == 2
    assert [bool(decision["reasons"]) for decision in report["chain"]["decisions"]] == [False, True]
    kept, lost = (decision["signs"]["auc"] for decision in report["chain"]["decisions"])
    assert kept["low"] > 0.7 and lost["low"] <= 0.5 and lost["value"] < 0.7
    assert "the chain stops after generation 1: trust has an AUC of" in report["chain"]["ended"]
    assert report["chain"]["ended"] in run.errors()
    assert "2 of 3 generations" in (run.directory / "report.html").read_text()
    before = records(run.directory)
    assert not [name for name in before if name.startswith("gen-2")]
    went_on = finish(run, "--set", "chain.stop=null")
    after = records(run.directory)
    assert {name: after[name] for name in before} == before and "gen-2/student-trust" in after
    assert len(went_on["generations"]) == 3 and went_on["chain"]["ended"] is None
