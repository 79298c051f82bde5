"""Exports of students and of trust functions: what loads, what card, lineage and package say, what is refused."""

import hashlib
import json
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
import yaml
from click.testing import CliRunner
from huggingface_hub import DatasetCard, ModelCard
from object_store import ObjectStore, object_store
from transformers import AutoModelForCausalLM

import curation
from benchmarks.recorded import recorded
from curation import run
from curation.cli import main
from curation.config.load import load_config
from curation.errors import PackageError
from curation.extras.first_cut.threshold import read_held_out
from curation.filter import Filter
from curation.filter.package.folder import TrustPackage
from curation.filter.package.folder import load as load_package
from curation.hashing import derive, hash_unit
from curation.models import load_model
from curation.refs import ModelRef
from curation.report.rules import STOP
from curation.rundir.manifest import sign_text
from curation.storage import digest
from curation.storage.digest import compute_model_digest
from curation.storage.paths import Remote, to_place
from curation.trust import load_fitted
from curation.trust.parts import VALIDATION, assign_parts

pytestmark = pytest.mark.whole_run

ROOT = Path(__file__).parents[3]
BASE = str(ROOT / "examples/bases/student")
CONFIG = {
    "name": "exported",
    "sources": {"puzzles": {"path": str(ROOT / "examples/data/puzzles.parquet")}},
    "splits": {
        "source": {"from": "puzzles", "rows": 600},
        "test": {"from": "puzzles", "rows": 30},
        "pool": {"from": "puzzles", "rows": 200},
        "overlap": "drop",
        "audit": True,
    },
    "teacher": {
        "model": {"path": str(ROOT / "examples/bases/teacher")},
        "states": ["prompt_last", "output_last"],
        "decoding": {"max_tokens": 4},
    },
    "trust": {"kind": "linear_probe"},
    "selection": {"budget": {"n": 20}, "arms": ["naive", "trust", "ground_truth"]},
    "student": {"epochs": 1, "global_batch_size": 4, "learning_rate": 1e-2, "gradient_checkpointing": False},
    "generations": [{"student": {"path": BASE}}],
    "evaluation": {"decoding": {"max_tokens": 4}},
}
STAGE = "gen-0/student-trust"


@pytest.fixture(scope="module")
def finished(local_ray, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run directory and its report."""
    directory = tmp_path_factory.mktemp("runs")
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump(CONFIG | {"run_dir": str(directory / "run")}))
    return directory / "run", run(load_config(path))


def export(*arguments: object, verb: str = "export-student") -> str:
    found = CliRunner().invoke(main, [verb, *map(str, arguments)], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def refused(*arguments: object, verb: str = "export-student") -> str:
    found = CliRunner().invoke(main, [verb, *map(str, arguments)], catch_exceptions=False)
    assert found.exit_code == 2 and len(found.stderr.splitlines()) == 1, found.output
    return found.stderr


def changed(finished: tuple[Path, Any], directory: Path, change: Callable[[dict[str, Any], Path], None]) -> Path:
    """A copy of the run directory elsewhere, with another manifest; stages by name."""
    copy = directory / "elsewhere"
    shutil.copytree(finished[0], copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    change(manifest["stages"], copy)
    (copy / "manifest.json").write_text(sign_text(json.dumps(manifest, indent=1)))
    return copy


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.float().eval()(torch.arange(3, 40)[None]).logits


def trained(directory: Path, stage: str = STAGE) -> dict[str, Any]:
    return recorded(directory)[stage]


def test_an_adapter_loads_with_peft(finished, tmp_path: Path):
    from peft import AutoPeftModelForCausalLM

    ours = logits(load_model(ModelRef.from_json(trained(finished[0])["outputs"]["model"])))
    base = AutoModelForCausalLM.from_pretrained(BASE)
    dtype, step = base.dtype, (ours - logits(base)).abs().max().item()
    assert dtype == torch.float16 and step > 0.1
    assert "adapter of gen-0/student-trust" in export(finished[0], "-o", tmp_path / "adapter")
    adapter = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
    assert torch.allclose(logits(adapter), ours, atol=1e-3)
    assert torch.allclose(logits(adapter.merge_and_unload()), ours, atol=step / 10)  # as the card tells
    names = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert names == {"README.md", "lineage.json", "adapter_config.json", "adapter_model.safetensors"}
    folder = tmp_path / "adapter"
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1
    for name, found in json.loads((folder / "lineage.json").read_text())["student"]["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == found["sha256"]
    assert not list(tmp_path.glob("**/.*"))


def test_lineage_and_card_say_what_manifest_and_report_say(finished, tmp_path: Path):
    directory, report = finished
    export(directory, "--arm", "trust", "--generation", 0, "-o", tmp_path / "out")
    lineage = json.loads((tmp_path / "out/lineage.json").read_text())
    stages = recorded(directory)
    (own,) = [arm for arm in report["arms"] if arm["name"] == "trust"]
    selected = stages["gen-0/select"]["outputs"]["arms"]["trust"]
    assert lineage["selection"]["digest"] == selected["digest"] and lineage["selection"]["table"] == selected["table"]
    assert lineage["numbers"]["purity"] == own["purity"] and lineage["selection"]["num_rows"] == 20
    assert lineage["numbers"]["accuracy"] == {
        "student": own["accuracy"],
        "base": report["base"],
        "teacher": report["teacher"]["test"],
    }
    assert lineage["headline"] == report["headline"]
    assert lineage["recipe"]["learning_rate"] == 1e-2 and "cpus_per_worker" not in lineage["recipe"]
    assert lineage["base"]["base"] == BASE and lineage["teacher"]["base"] == str(ROOT / "examples/bases/teacher")
    card = ModelCard.load(tmp_path / "out/README.md")
    assert card.data.library_name == "peft" and card.data.base_model is None  # a folder is no hub id
    assert {"trust-curation", "sft", "trust", "lora"} <= set(card.data.tags)
    assert card.data.eval_results[0].metric_value == own["accuracy"]["value"]
    value, low, high = (100 * own["purity"][name] for name in ("value", "low", "high"))
    for words in (
        f"| right labels among the rows | {value:.1f} % ({low:.1f} to {high:.1f}, n = 20) |",
        "none was asked for: the budget's rule is n",
        report["headline"][0],
        "| learning_rate | 0.01 |",
        "curate export-student",
        "No share of wrong labels is guaranteed.",
    ):
        assert words in card.text, words
    export(directory, "--arm", "ground_truth", "-o", tmp_path / "gold")
    text = (tmp_path / "gold/README.md").read_text()
    assert "100 % by definition" in text and "Some labels are wrong" not in text


def test_a_base_on_the_hub_is_named_with_its_commit_and_a_guarantee_in_words(finished, tmp_path: Path):
    def published(stages: dict[str, Any], copy: Path) -> None:
        hub = {"base": "Qwen/Qwen3-1.7B-Base", "revision": "0123abc", "adapter": None}
        stages[STAGE]["inputs"]["base"] = hub
        stages[STAGE]["outputs"]["model"] |= {"base": hub["base"], "revision": hub["revision"]}
        stages["gen-0/select"]["outputs"]["budget"] |= {"rule": "risk", "risk": {"rule": "ours"}}
        path = copy / stages["gen-0/numbers"]["outputs"]["metrics"]
        content = json.loads(path.read_text())
        content["numbers"]["guarantee"] = {
            "claimed": True, "withheld": None, "text": "at most 10 % wrong", "exchangeable": "by construction",
        }  # fmt: skip
        path.write_text(json.dumps(content))

    directory = changed(finished, tmp_path, published)
    export(directory, "-o", tmp_path / "out")
    settings = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert (settings["base_model_name_or_path"], settings["revision"]) == ("Qwen/Qwen3-1.7B-Base", "0123abc")
    card = ModelCard.load(tmp_path / "out/README.md")
    assert card.data.base_model == "Qwen/Qwen3-1.7B-Base" and card.data.to_dict()["base_model_relation"] == "adapter"
    assert "claimed: at most 10 % wrong (exchangeable rows: by construction)" in card.text
    assert 'from_pretrained("Qwen/Qwen3-1.7B-Base", revision="0123abc")' in card.text
    export(directory, "--arm", "naive", "-o", tmp_path / "other")
    assert "none: it is of the rows of the arm trust" in (tmp_path / "other/README.md").read_text()


def test_full_weights_and_an_adapter_with_its_own_base_from_a_moved_run(finished, tmp_path: Path):
    model = Path(trained(finished[0])["outputs"]["model"]["adapter"])

    def full(stages: dict[str, Any], copy: Path) -> None:
        folder = copy / model.relative_to(finished[0])
        shutil.rmtree(folder)
        shutil.copytree(BASE, folder)
        (folder / "training.json").write_text("{}")
        stages[STAGE]["outputs"]["model"] = {
            "base": f"./{model.relative_to(finished[0])}",
            "revision": "x",
            "adapter": None,
        }

    moved = changed(finished, tmp_path / "full", full)
    assert "full model" in export(moved, "-o", tmp_path / "out")
    same = logits(AutoModelForCausalLM.from_pretrained(BASE))
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out")), same)
    assert not (tmp_path / "out/training.json").exists()

    def with_base(stages: dict[str, Any], copy: Path) -> None:
        shutil.copytree(BASE, copy / model.relative_to(finished[0]) / "base")
        stages[STAGE]["outputs"]["model"]["base"] = f"./{model.relative_to(finished[0])}/base"

    moved = changed(finished, tmp_path / "chained", with_base)
    export(moved, "-o", tmp_path / "pair")
    settings = json.loads((tmp_path / "pair/adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(tmp_path / "pair/base")
    assert (tmp_path / "pair/base/config.json").is_file() and (tmp_path / "pair/base/README.md").exists() is False


def test_what_is_not_there_or_not_trained_is_refused_with_what_is(finished, tmp_path: Path):
    directory, out = finished[0], tmp_path / "out"
    others = "trained students: gen-0/student-ground_truth, gen-0/student-naive, gen-0/student-trust"
    assert others in (line := refused(directory, "--arm", "nural", "-o", out)) and "naive, trust" in line
    assert others in (line := refused(directory, "--generation", 3, "-o", out)) and "generations are 0 to 0" in line
    assert "is not a run directory" in refused(tmp_path, "-o", out)

    def unfinished(stages: dict[str, Any], copy: Path) -> None:
        del stages[STAGE]

    line = refused(copy := changed(finished, tmp_path / "a", unfinished), "-o", out)
    assert f"is not trained yet; `curate run {copy} --until {STAGE}`" in line

    def selected_anew(stages: dict[str, Any], copy: Path) -> None:
        stages["gen-0/select"]["outputs"]["arms"]["trust"]["digest"] = "another"

    assert "select changed since" in refused(changed(finished, tmp_path / "b", selected_anew), "-o", out)

    assert not out.exists()


def test_without_a_report_of_it_the_card_says_that_nothing_was_measured(finished, tmp_path: Path):
    copy = changed(finished, tmp_path, lambda stages, copy: stages[STAGE].update(seconds=0.5))
    assert "warning: " in export(copy, "-o", tmp_path / "out")
    text = (tmp_path / "out/README.md").read_text()
    assert "no report of the run told of them" in text and "Nobody knows how many" in text
    assert ModelCard(text).data.eval_results is None


def test_a_folder_that_is_taken_is_kept_and_a_full_disk_leaves_nothing(finished, tmp_path: Path):
    directory, out = finished[0], tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("precious")
    for options in ([], ["--force"]):
        assert "is not empty and not an earlier export" in refused(directory, "-o", out, *options)
    assert (out / "mine").read_text() == "precious"
    (out / "mine").unlink()
    export(directory, "-o", out)
    assert "replace it with --force" in refused(directory, "-o", out)
    export(directory, "-o", out, "--arm", "naive", "--force")
    assert json.loads((out / "lineage.json").read_text())["arm"]["name"] == "naive"
    before = {path: path.read_bytes() for path in out.iterdir()}
    for options in (["-o", str(out), "--force"], ["-o", str(tmp_path / "new")]):
        done = subprocess.run(
            [sys.executable, "-m", "curation.cli", "export-student", str(directory), *options],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000)),
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2 and "cannot be written" in done.stderr and "Traceback" not in done.stderr
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as found:
        yield found


def test_a_run_in_an_object_store_is_exported_to_a_folder_and_to_a_url(finished, store, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run_dir, target = Remote(store.url("run")), Remote(store.url("models/ours"))
    for path in finished[0].rglob("*"):
        if path.is_file() and ".lance" not in str(path):
            (run_dir / str(path.relative_to(finished[0]))).put(path)
    export(run_dir, "-o", tmp_path / "out")
    weights = (tmp_path / "out/adapter_model.safetensors").read_bytes()
    export(run_dir, "-o", target)
    assert (target / "adapter_model.safetensors").read_bytes() == weights
    assert json.loads((target / "lineage.json").read_text())["run"]["directory"] == str(run_dir)
    assert "earlier export" in refused(run_dir, "-o", target)
    (target / "left").put(path := tmp_path / "out/README.md")
    export(run_dir, "-o", target, "--force")
    assert {entry.path for entry in target.entries()} == {file.name for file in path.parent.iterdir()}
    with store.writes_refused(403):
        assert "cannot be written" in refused(run_dir, "-o", store.url("models/new"))
    assert not to_place(store.url("models/new")).exists()


def export_trust(*arguments: object) -> str:
    return export(*arguments, verb="export-trust")


def test_a_trust_package_is_what_the_run_fitted_measured_and_held_out(finished, tmp_path: Path):
    directory, report = finished
    assert "trust (linear_probe) of gen-0/trust of exported" in (
        line := export_trust(directory, "-o", tmp_path / "trust")
    )
    package = package_of(tmp_path / "trust")
    told, stages = package.description, recorded(directory)
    fit = stages["gen-0/trust"]
    assert package.digest in line and told.made.fingerprint == fit["fingerprint"] and told.made.run == "exported"
    assert told.teacher == ModelRef.from_json(stages["gen-0/label-pool"]["inputs"]["model"])
    assert told.teacher_digests == {"base": compute_model_digest(to_place(told.teacher.base))}
    assert told.decoding.max_tokens == 4 and told.ask.states == ("output_last",) and told.domain.name == "chess"
    assert told.seed == stages["gen-0/label-pool"]["inputs"]["seed"] and told.fit == fit["outputs"]["fit"]
    assert [item["rows"] for item in told.evaluation] == ["validation", "pool"]
    for item in told.evaluation:
        measured = report["generations"][0]["trust"][item["rows"]]["parsed"]
        own = measured["functions"]["trust"]
        assert (item["num_rows"], item["num_top"]) == (measured["num_rows"], measured["num_top"])
        for name, theirs in (("auc", own["auc"]), ("purity", own["purity_at_n"]), ("brier", own["brier"])):
            assert item[name] == theirs
    text = (tmp_path / "trust/README.md").read_text()
    auc = told.evaluation[1]["auc"]
    assert f"{auc['value']:.3f} ({auc['low']:.3f} to {auc['high']:.3f}, n = {auc['n']:,})" in text
    assert "held out from the fit; they also took part in choosing the function" in text
    assert {path.name for path in (tmp_path / "trust").iterdir()} == {
        "README.md", "package.json", "trust", "calibration.parquet", "shift.safetensors", "cascade", "cascade.parquet"
    }  # fmt: skip
    # Calibration rows and sampled states, read from the tables of the run in another way.
    labels = read(stages["gen-0/score-source"]["outputs"]["labels"]).set_index("row_id")
    grades = read(stages["gen-0/grade-source"]["outputs"]["grades"]).set_index("row_id").sort_index()
    grades = grades[labels.loc[grades.index]["label"].notna()]  # the fit reads no others
    grades = grades[
        assign_parts(grades["question"].to_numpy(), load_config(directory / "config.yaml").trust, 0) == VALIDATION
    ]
    held = labels.loc[grades.index]
    rows, function = package.calibration(), load_fitted(package.trust)
    assert set(function.held_out.row_ids_N[~np.isnan(function.held_out.raw_N)]) == {*grades.index}
    assert told.calibration.split == "source" and told.calibration.chose and len(held) == told.calibration.num_rows > 20
    assert np.array_equal(rows.correct_M, grades["correct"])
    assert np.allclose(rows.raw_M, held["trust_raw"].astype(np.float32), atol=1e-6) and not np.isnan(rows.raw_M).any()
    sample = package.reference()["output_last"]
    stored = np.stack(labels.sort_index()["state_output_last"].to_list())
    assert sample.dtype == np.float16 and np.array_equal(sample, stored) and len(sample) == told.sample.num_rows == 600


def test_a_package_holds_a_first_cut_where_the_run_kept_the_state_of_the_prompt(finished, tmp_path: Path):
    directory, _ = finished
    line = export_trust(directory, "-o", tmp_path / "trust")
    package = package_of(tmp_path / "trust")
    told = package.description.parts["cascade"]
    assert (told.inputs, told.states, told.split) == (("prompt_last",), ("prompt_last", "output_last"), "source")
    off = rf"of {told.num_rows} held-out rows only \d+ are sure to be among the selected ones, and 309 are needed"
    assert re.search(f"first cut off: {off}", line) and "splits.source or splits.calibration" in line
    assert told.words in (tmp_path / "trust/README.md").read_text() and told.cut["threshold"] is None
    assert (told.cut["loss"], told.cut["confidence"]) == (0.01, 0.95)
    # Both scores of the rows that set it, in another way: the function's own by weights that have not seen the row.
    stages = recorded(directory)
    labels = read(stages["gen-0/score-source"]["outputs"]["labels"])
    held_out = load_fitted(package.trust).held_out
    known = labels["row_id"].isin(held_out.row_ids_N[~np.isnan(held_out.raw_N)])
    share = 0.3 * labels["error"].isna().sum() / known.sum()  # at most three in ten of all rows
    labels = labels[known & (hash_unit(labels["row_id"].to_numpy(), derive(0, "first cut held out")) < share)]
    assert 20 < len(labels) == told.num_rows
    first, rows = load_fitted(package.functions["cascade"]), read_held_out(package)
    score = np.stack(labels["state_prompt_last"].to_list()).astype(np.float64) @ first.weight_D.numpy()
    order = np.lexsort((labels["num_prompt_tokens"], score))
    own = np.lexsort((rows.prompt_tokens_M, rows.first_M))
    assert np.allclose(rows.first_M[own], (score + float(first.bias))[order], atol=1e-4)
    raw = np.where(labels["label"].isna(), np.nan, labels["trust_raw"].astype(np.float32))
    assert np.allclose(np.sort(rows.full_M), np.sort(raw), atol=1e-5, equal_nan=True)
    for tokens_M, name in ((rows.prompt_tokens_M, "num_prompt_tokens"), (rows.output_tokens_M, "num_output_tokens")):
        assert sorted(tokens_M) == sorted(labels[name])
    assert set(package.reference(told.inputs)) == {"prompt_last", "output_last"}

    def without(stages: dict[str, Any], _: Path) -> None:
        stages["gen-0/label-source"]["inputs"]["ask"]["states"] = ["output_last"]

    line = export_trust(changed(finished, tmp_path, without), "-o", tmp_path / "bare")
    assert "no first cut: the run kept no state of the last prompt token" in line
    assert "run again with teacher.states: [prompt_last, output_last]" in line
    bare = package_of(tmp_path / "bare")
    assert not bare.functions and not bare.description.parts and not (tmp_path / "bare/cascade").exists()


def test_the_verdict_travels_with_what_is_exported(finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    copy, report = finished
    assert report["generations"][0]["evidence"]["arm"] == "trust"
    said = "Do not use: a test says so."

    findings = [{"rule": "signal", "level": STOP, "finding": "a test says so", "next": "Label more rows."}]
    judged = {"level": STOP, "sign": "x", "sentence": said, "findings": findings}
    monkeypatch.setattr("curation.pipeline.numbers.with_verdict", lambda numbers, *_: {**numbers, "verdict": judged})
    for arguments in (["export-trust", copy, "-o", tmp_path / "t"], ["export-student", copy, "-o", tmp_path / "s"]):
        found = CliRunner().invoke(main, [*map(str, arguments)], catch_exceptions=False)
        assert found.exit_code == 0 and said in found.stderr and found.stderr.startswith("warning: "), found.output
        assert said in (tmp_path / str(arguments[-1]) / "README.md").read_text() and said not in found.stdout
    told = package_of(tmp_path / "t").description.verdict
    assert told is not None and (told.level, told.sentence, told.next) == (STOP, said, "Label more rows")
    lineage = json.loads((tmp_path / "s/lineage.json").read_text())
    assert lineage["verdict"] == {"arm": "trust", "level": STOP, "sentence": said}
    pool = tmp_path / "none.jsonl"
    assert "mend the run (Label more rows)" in refused(
        tmp_path / "t", pool, "-o", tmp_path / "out", "--keep", "3", verb="filter"
    )


def test_a_package_scores_rows_as_the_run_did(finished, tmp_path: Path):
    directory, _ = finished
    export_trust(directory, "--trust", "trust", "--generation", 0, "-o", tmp_path / "trust")
    stages = recorded(directory)
    pool = read(stages["prepare"]["outputs"]["tables"]["pool"])
    labels = read(stages["gen-0/score-pool"]["outputs"]["labels"]).set_index("row_id")
    rows = pool[pool["error"].isna()].drop(columns="error").head(60)
    rows["rating"] = rows["rating"].astype(object)
    chosen = Filter.load(tmp_path / "trust", anyway=True)  # this run is small and not to be used
    found = list(chosen.score(rows.to_dict("records")))
    expected = labels.loc[rows["row_id"].to_list()]
    assert [row["completion"] for row in found] == expected["completion"].to_list()
    assert [row["label"] for row in found] == [None if pd.isna(label) else label for label in expected["label"]]
    for row, raw, trust in zip(found, expected["trust_raw"], expected["trust_trust"], strict=True):
        if row["label"] is not None:
            assert row["trust_raw"] == pytest.approx(raw, abs=1e-3) and row["trust"] == pytest.approx(trust, abs=1e-3)
    assert sum(row["label"] is not None for row in found) > 10


def test_a_trust_function_that_is_not_there_is_refused_with_what_is(finished, tmp_path: Path):
    directory, out = finished[0], tmp_path / "out"

    def no(*arguments: object) -> str:
        return refused(*arguments, "-o", out, verb="export-trust")

    assert "is not a run directory" in no(tmp_path)
    assert "did you mean 'neural'?; fitted: gen-0/trust" in no(directory, "--trust", "nural")
    line = no(directory, "--arm", "internal_confidence")
    assert "internal confidence is not fitted, so there is nothing to export" in line
    assert "gen-0/trust-linear_probe is not done; `curate run" in no(directory, "--trust", "linear_probe")
    assert "generations are 0 to 0; fitted: gen-0/trust" in no(directory, "--generation", 1)

    def labelled_anew(stages: dict[str, Any], copy: Path) -> None:
        stages["gen-0/label-source"]["outputs"]["labels"]["version"] = 99

    line = no(changed(finished, tmp_path / "a", labelled_anew))
    assert "the labels of the source split changed since gen-0/trust was done" in line

    def emptied(stages: dict[str, Any], copy: Path) -> None:
        (copy / stages["gen-0/trust"]["outputs"]["trust"]["uri"] / "weights.safetensors").unlink()

    assert "has no weights.safetensors" in no(changed(finished, tmp_path / "b", emptied))

    def teacher_gone(stages: dict[str, Any], copy: Path) -> None:
        stages["gen-0/label-source"]["inputs"]["model"]["base"] = str(tmp_path / "nowhere/teacher")

    assert "the teacher's files are gone" in no(changed(finished, tmp_path / "c", teacher_gone))
    assert not out.exists()


def test_a_moved_run_without_numbers_gives_a_package_without_numbers(finished, tmp_path: Path):
    copy = changed(finished, tmp_path, lambda stages, copy: stages.pop("gen-0/numbers"))
    assert "warning: " in (line := export_trust(copy, "-o", tmp_path / "trust"))
    package = package_of(tmp_path / "trust")
    assert package.description.evaluation == () and package.description.made.directory == str(copy)
    assert "no report of the run told of this fit" in (tmp_path / "trust/README.md").read_text()
    assert "cannot be certified" not in line
    assert "replace it with --force" in refused(copy, "-o", tmp_path / "trust", verb="export-trust")
    export_trust(finished[0], "-o", tmp_path / "trust", "--force")
    assert package_of(tmp_path / "trust").description.evaluation != ()
    assert "not an earlier export" in refused(finished[0], "-o", tmp_path / "trust", "--force")  # of a student


def test_a_package_in_an_object_store_is_the_same_package(finished, store, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    target = store.url("trust/ours")
    export_trust(finished[0], "-o", target)
    export_trust(finished[0], "-o", tmp_path / "here")
    there, here = package_of(target), package_of(tmp_path / "here")
    assert there.digest == here.digest and there.uri == target and there.trust.uri == f"{target}/trust"
    assert np.array_equal(load_fitted(there.trust).raw_score(batch()), load_fitted(here.trust).raw_score(batch()))
    assert np.array_equal(there.reference()["output_last"], here.reference()["output_last"])
    for path in Path(BASE).iterdir():
        (to_place(store.url("teacher")) / path.name).put(path)
    for size in (digest.SMALL_BYTES, 1 << 10):  # as a whole, and by samples
        monkeypatch.setattr(digest, "SMALL_BYTES", size)
        monkeypatch.setattr(digest, "SAMPLE_BYTES", 1 << 8)
        assert compute_model_digest(to_place(store.url("teacher"))) == compute_model_digest(Path(BASE))
    (to_place(target) / "model.pkl").put(b"x")
    with pytest.raises(PackageError, match=r"holds model\.pkl"):
        package_of(target)


def package_of(where: object) -> TrustPackage:
    return load_package(str(where))


def read(ref: dict[str, Any]) -> pd.DataFrame:
    return lance.dataset(ref["uri"], version=ref["version"]).to_table().to_pandas()


def batch() -> pa.RecordBatch:
    states = pa.FixedSizeListArray.from_arrays(pa.array(np.linspace(-1, 1, 10 * 96).astype(np.float16)), 96)
    return pa.record_batch({"state_output_last": states})


def test_results_as_objects_are_those_of_report_and_tables(finished):
    directory, report = finished
    found = curation.open(directory)
    assert found.report == json.loads((directory / "report.json").read_text())
    assert found.verdict == report["verdict"]
    assert found.metrics["numbers"]["arms"] == report["generations"][0]["arms"]
    labels = found.labels()
    assert "state_output_last" in labels.schema.names and not any("state_" in name for name in labels.columns)
    assert len(labels) == len(found.rows()) == 200 and {"trust_raw", "trust_trust"} <= set(labels.columns)
    assert len(found.labels("source").to_arrow(columns=["state_output_last"])) == len(found.labels("source"))
    selected = found.selected("trust").to_arrow().to_pandas().merge(found.grades().to_arrow().to_pandas(), on="row_id")
    (own,) = [arm for arm in report["arms"] if arm["name"] == "trust"]
    assert len(selected) == own["purity"]["n"] and selected["correct"].mean() == pytest.approx(own["purity"]["value"])


def test_the_rows_of_an_arm_are_a_data_set_that_trl_trains_on(finished, tmp_path: Path):
    from datasets import load_dataset

    directory, report = finished
    assert "20 rows of the arm trust in 1 Parquet file" in export(directory, "-o", tmp_path / "rows", verb="export")
    rows = load_dataset(str(tmp_path / "rows"), split="train", cache_dir=str(tmp_path / "cache"))
    assert rows.to_list() == curation.open(directory).selected("trust").to_arrow().to_pylist()
    card = DatasetCard.load(tmp_path / "rows/README.md")
    (own,) = [arm for arm in report["arms"] if arm["name"] == "trust"]
    value, low, high = (100 * own["purity"][name] for name in ("value", "low", "high"))
    for words in (
        f"| right labels among the rows | {value:.1f} % ({low:.1f} to {high:.1f}, n = 20) |",
        f"| weak teacher | `{ROOT / 'examples/bases/teacher'}`",
    ):
        assert words in card.text, words
    script = [
        sys.executable,
        str(ROOT / "examples/plain_trl.py"),
        str(tmp_path / "rows"),
        BASE,
        "-o",
        str(tmp_path / "student"),
    ]
    done = subprocess.run([*script, "--batch", "4"], capture_output=True, text=True)
    assert done.returncode == 0 and "sft: 20 rows, 5 steps" in done.stdout, done.stderr
