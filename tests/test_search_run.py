"""``curate tune`` from the command line: killed and gone on, its page, its best.yaml in a run, and what is refused."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.recorded import planned
from curation.commands.validate import check
from curation.config.load import load_config
from curation.errors import ConfigError, DegenerateSourceError, SourceError
from curation.pipeline.running import run_part, run_search

pytestmark = pytest.mark.whole_run

TUNE = {
    "space": {"kind": ["linear_probe", "neural"], "class_weight": [0.0, 1.0], "learning_rate": {"log": [1e-3, 1e-1]}},
    "trials": 6,
    "folds": 3,
    "seeds": 1,
    "finalists": 1,
    "parallel": 1,  # so that one process is started
}

SPLITS = {"source": {"from": "sums", "rows": 600}, "pool": {"from": "sums"}}


def configuration(directory: Path, **sections: Any) -> Path:
    """A run over sums with the scripted teacher, half of whose labels are right."""
    rows = [{"problem": f"What is {n + 1} - {n}?", "answer": "1", "subject": str(n % 7)} for n in range(700)]
    (directory / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = {
        "name": "sums",
        "run_dir": str(directory / "run"),
        "domain": "math",
        "sources": {"sums": {"path": "sums.jsonl"}},
        "splits": SPLITS,
        "teacher": {"backend": "scripted", "scripted": {"completions": [" \\boxed{1}", " \\boxed{2}"]}},
        "trust": {"width": 8, "depth": 1, "max_steps": 20},
        "tune": TUNE,
        "selection": {"budget": {"n": 50}, "arms": ["trust"]},
        "ray": {"num_cpus": 2},
        **sections,
    }
    path = directory / "sums.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def records(directory: Path, folder: str) -> dict[str, Any]:
    """What the fits of a search gave, by file, without what a clock says."""
    found = {}
    for path in directory.glob(f"run/gen-0/search-*/{folder}/*.json"):
        content = json.loads(path.read_text())
        content["outcome"]["seconds"] = content["outcome"]["fit"]["seconds"] = None
        found[path.name] = content
    return found


def test_a_search_has_a_page_and_a_run_with_its_best_yaml_fits_the_same(local_ray: Any, tmp_path: Path) -> None:
    config = configuration(tmp_path)
    search = run_search(load_config(config), command="curate tune")
    assert len(search["trials"]) == 6 and search["lines"][0].split() == ["trial", "AUC", "seconds", "settings"]
    assert search == json.loads((tmp_path / "run" / "search.json").read_text())
    page = (tmp_path / "run" / "search.html").read_text()
    assert "<svg" not in page and "better than the default by" in page and "http" not in page

    best = yaml.safe_load(Path(search["best_path"]).read_text())
    config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), **best}))
    run_part(load_config(config), "trust")
    stages = planned(tmp_path / "run")
    mine, theirs = (Path(stages[f"gen-0/{name}"]["outputs"]["trust"]["uri"]) for name in ("trust", "search"))
    assert mine != theirs
    assert (mine / "weights.safetensors").read_bytes() == (theirs / "weights.safetensors").read_bytes()


@pytest.mark.slow  # tests/tune/test_search.py goes on from the files of a search that was cut off
@pytest.mark.timeout(600)
def test_a_search_whose_driver_is_killed_ends_with_the_same_leaderboard(local_ray: Any, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = run_search(load_config(configuration(tmp_path / "whole")))
    (tmp_path / "killed").mkdir()
    config = configuration(tmp_path / "killed")
    command = [str(Path(sys.executable).with_name("curate")), "tune", str(config)]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while driver.poll() is None and len(list(tmp_path.glob("killed/run/gen-0/search-*/trials/0*.json"))) < 2:
        time.sleep(0.05)
    assert driver.poll() is None, driver.communicate()[1]
    driver.kill()
    driver.communicate()
    assert 2 <= len(records(tmp_path / "killed", "trials")) < 6
    search = run_search(load_config(config))
    for folder, num in (("trials", 6), ("finals", 6)):
        assert records(tmp_path / "killed", folder) == records(tmp_path / "whole", folder)
        assert len(records(tmp_path / "whole", folder)) == num
    assert [trial["number"] for trial in search["trials"]] == [trial["number"] for trial in whole["trials"]]
    assert search["choice"] == whole["choice"] and search["best"] == whole["best"]


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({"space": {"depth": []}}, r"tune\.space\.depth: a list without values"),
        ({"space": {"states": [["prompt_last"]]}}, r"prompt_last is not stored \(stored: output_last\)"),
        ({"space": {"dropout": {"log": [0.0, 0.5]}}}, "the logarithm needs a lower end above 0"),
    ],
)
def test_a_search_that_cannot_begin_is_refused_before_anything_is_labelled(
    local_ray: Any, tmp_path: Path, tune: dict[str, Any], message: str
) -> None:
    config = load_config(configuration(tmp_path, tune=tune))
    with pytest.raises(ConfigError, match=message):
        run_search(config)
    with pytest.raises(ConfigError, match=message):
        list(check(config))
    assert not list((tmp_path / "run").glob("prepare-*"))


@pytest.mark.parametrize(
    ("sections", "error", "message"),
    [
        ({"tune": {**TUNE, "folds": 700}}, ConfigError, r"tune\.folds: 700 folds of 600 rows or groups; give fewer"),
        (
            {"tune": {**TUNE, "folds": 8}, "splits": {**SPLITS, "group": "subject"}},
            ConfigError,
            r"tune\.folds: 8 folds of \d rows or groups; give fewer",
        ),
        (
            {"splits": {**SPLITS, "group": "theme"}},
            SourceError,
            r"splits\.group: .*sums\.jsonl has no column 'theme' \(it has",
        ),
        (
            {"teacher": {"backend": "scripted", "scripted": {"completions": [" \\boxed{1}"]}}},
            DegenerateSourceError,
            r"tune: 2\d\d of 2\d\d parsed labels are right in fold 0 of 3, but both right and wrong ones are needed",
        ),
    ],
)
def test_rows_that_cannot_be_searched_on_are_refused_before_the_first_trial(
    local_ray: Any, tmp_path: Path, sections: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run_search(load_config(configuration(tmp_path, **sections)))
    assert not list(tmp_path.glob("run/gen-0/search-*/trials"))
