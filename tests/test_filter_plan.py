"""``curate plan`` and ``curate status`` of a filter, and what ``clean`` and ``inspect`` make of its output."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from filter_package import COMPLETIONS, make_package, write_pool

from curation.cli import main

NUM_ROWS, NUM_NEW = 600, 150


def curate(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def lines_of(path: Path, num_rows: int, words: int, first: int = 0) -> None:
    rows = [{"problem": f"Sum {first + row}: " + "and " * words} for row in range(num_rows)]
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def planned(local_ray: Any, tmp_path_factory: pytest.TempPathFactory):
    """A filter whose files are sorted by length, planned, done, with a new file, and planned again."""
    directory = tmp_path_factory.mktemp("plan")
    for number, words in enumerate((2, 20, 60)):
        lines_of(directory / "pool" / f"{number}.jsonl", NUM_ROWS // 3, words)
    scripted = {"completions": list(COMPLETIONS), "start_seconds": 0.3, "seconds_per_token": 0.0001}
    config = {
        "package": make_package(directory).uri,
        "pool": {"path": str(directory / "pool")},
        "output": {"path": str(directory / "out")},
        "keep": {"share": 0.1},
        "teacher": {"chunk_rows": 25, "scripted": scripted},
        "prices": {"currency": "EUR", "cpu_hour": 1.0},
        "ray": {"num_cpus": 2},
    }
    path = directory / "filter.yaml"
    path.write_text(yaml.safe_dump(config))
    told = {"none": curate("status", path)}
    told["plan"] = curate("plan", path, "--probe", 300)
    assert not (directory / "out").exists()  # a plan leaves nothing there
    told["filter"] = curate("filter", path)
    told["done"] = curate("status", directory / "out")
    lines_of(directory / "pool" / "3.jsonl", NUM_NEW, 5)
    told["again"] = curate("plan", path, "--json", "--probe", 100)
    return directory, told


@pytest.mark.slow
def test_a_plan_shows_the_stages_and_forecasts_what_is_left(planned):
    _, told = planned
    first, second, *_ = told["plan"].splitlines()
    assert first == "pool: 600 rows in 3 files"
    assert second.split() == ["stage", "rows", "seconds", "state"]
    for name in ("pool-0000", "label-0000", "shift-0000", "cut", "write-0000"):
        assert f"\n{name} " in told["plan"]
    assert "for label-0000, by 1 actors at most" in told["plan"] and "300 rows drawn at random" in told["plan"]
    assert "EUR together " in told["plan"]


@pytest.mark.slow
def test_only_new_files_are_drawn_and_forecast(planned):
    _, told = planned
    again = json.loads(told["again"])
    assert again["pool"] == f"pool: {NUM_ROWS + NUM_NEW} rows in 4 files, of which {NUM_NEW} rows in 1 file new"
    (stage,) = again["forecast"]["stages"]
    assert (stage["name"], stage["rows"]) == ("label-0001", NUM_NEW)
    states = {item["name"]: item["state"] for item in again["stages"]}
    assert states["label-0000"] == states["cut"] == states["write-0000"] == "done"
    assert states["pool-0001"] == "new" and states["label-0001"] == states["write-0001"] == "waits"
    assert again["forecast"]["total"]["prompt_tokens"]["value"] == 23 * NUM_NEW  # those of the old files are longer


@pytest.mark.slow
def test_the_status_tells_rounds_and_cut(planned):
    directory, told = planned
    assert told["none"] == f"{directory / 'out'}: no filter here yet; `curate filter` starts it\n"
    home, *_ = told["done"].splitlines()
    assert home == f"{directory / 'out'}: not running"
    assert "round 0000: 600 rows in 3 files, 600 labelled, 0 error rows; 60 pass cut" in told["done"]
    found = json.loads(curate("status", directory / "out", "--json"))
    assert found["written"]["kept"] == 60 and found["written"]["cut"]["rule"] == {"share": 0.1}
    assert found["driver"] is None and found["unknown"] is None
    (directory / "pool" / "0.jsonl").write_text("{}\n")
    told_changed = curate("status", directory / "out")
    assert "cannot tell which stages have to run again" in told_changed and "0.jsonl" in told_changed
    assert "label-0000 " in told_changed and "round 0000" in told_changed
    lines_of(directory / "pool" / "0.jsonl", NUM_ROWS // 3, 2)


@pytest.mark.slow
def test_inspect_and_clean_work_on_the_record_of_an_output(planned):
    directory, _ = planned
    out = directory / "out"
    assert "label-0000" in curate("inspect", out) and "600 rows" in curate("inspect", out, "label-0000")
    before = sorted((out / "data").iterdir())
    assert "0 files" in curate("clean", out, "--older-than", 0, "--dry-run")
    curate("clean", out, "--older-than", 0)
    assert sorted((out / "data").iterdir()) == before and "nothing to do" not in curate("status", out)


def test_options_of_a_filter_are_refused_for_a_run(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("name: mine\n")
    assert "No such option" in curate("plan", path, "--keep", "5", code=2)
    path.write_text("name: mine\nsources: {}\n")
    assert "run.yaml: configures a run, as it has sources" in curate("filter", path, code=2)
    (tmp_path / "filter.yaml").write_text("package: mine\n")
    assert "filter.yaml: configures a filter, as it names a package" in curate("run", tmp_path / "filter.yaml", code=2)
    write_pool(tmp_path / "pool.jsonl", 3)
    command = ("filter", tmp_path, tmp_path / "pool.jsonl", "-o", tmp_path / "o", "--keep", "2")
    assert "No such option" in curate(*command, "--json", code=2)
    no_package = curate(*command, "--plan", code=2)
    (tmp_path / "begun" / "_curation").mkdir(parents=True)
    assert "begun: no filter has started here yet" in curate("status", tmp_path / "begun", code=2)
    assert "is not a trust package" in no_package and not (tmp_path / "o").exists()
