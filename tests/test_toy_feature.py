"""A feature in an installed package, from its section to its part of the report: nothing of the engine names it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import lance
import pytest
import yaml

ROOT = Path(__file__).parents[1]
ANSWERS = [" \\boxed{1}", " It is \\boxed{1}", " I think that it is \\boxed{2}"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the package is installed."""
    target = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / "toy"
    subprocess.run(["cp", "-r", str(ROOT / "tests" / "toy_feature"), str(source)], check=True)
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*install, "--target", str(target), str(source)], check=True, timeout=120)
    return target


def call(installed: Path | None, *command: object) -> subprocess.CompletedProcess[str]:
    paths = [*([] if installed is None else [str(installed)]), str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run([*map(str, command)], env=env, capture_output=True, text=True, timeout=300, check=False)


CURATE = Path(sys.executable).with_name("curate")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    rows = [json.dumps({"problem": f"What is {n + 1} - {n}?", "answer": "1"}) for n in range(160)]
    (tmp_path / "sums.jsonl").write_text("\n".join(rows) + "\n")
    content = {
        "name": "toy",
        "run_dir": str(tmp_path / "run"),
        "domain": "math",
        "sources": {"sums": {"path": "sums.jsonl"}},
        "splits": {"source": {"from": "sums", "rows": 60}, "pool": {"from": "sums"}, "audit": True},
        "teacher": {"backend": "scripted", "scripted": {"completions": ANSWERS}},
        "selection": {"budget": {"n": 20}, "arms": ["naive", "brief"]},
        "brevity": {"longest": 50},
        "ray": {"num_cpus": 2},
    }
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.whole_run
def test_a_feature_of_an_installed_package_is_a_part_of_a_run_and_its_report(installed: Path, config: Path) -> None:
    done = call(installed, CURATE, "run", config)
    assert done.returncode == 0, done.stderr
    run = config.parent / "run"
    report = json.loads((run / "report.json").read_text())
    (path,) = run.glob("gen-0/select-*/brief.lance")
    brief = lance.dataset(str(path)).to_table()["completion"].to_pylist()
    assert set(brief) == {ANSWERS[0]}  # the column ranks: only the shortest of the three answers
    found = report["features"]["brevity"]
    assert found["characters"]["brief"] == sum(map(len, brief)) and 0 < found["mean_brevity"] < 1
    (metrics,) = run.glob("gen-0/numbers-*/metrics.json")
    assert json.loads(metrics.read_text())["numbers"]["features"]["brevity"] == found
    page = (run / "report.html").read_text()
    assert "How brief the selected answers are" in page and f"{found['characters']['brief']:,} characters" in page
    stages = json.loads((run / "manifest.json").read_text())["stages"]
    assert {"gen-0/brevity-pool", "gen-0/brevity-source", "gen-0/characters"} <= stages.keys()
    again = call(installed, CURATE, "plan", config)
    assert again.returncode == 0 and "gen-0/characters" in again.stdout
    # Another number of the section does its stages again, and no label.
    changed = call(installed, CURATE, "run", config, "--set", "brevity.longest=40")
    assert changed.returncode == 0, changed.stderr
    now = json.loads((run / "manifest.json").read_text())["stages"]
    assert now["gen-0/label-pool"] == stages["gen-0/label-pool"] != now["gen-0/brevity-pool"]


@pytest.mark.long
def test_its_section_is_checked_and_documented(installed: Path, config: Path, tmp_path: Path) -> None:
    lacking = call(installed, CURATE, "validate", config, "--set", "splits.audit=false")
    assert lacking.returncode == 2 and "brevity needs the pool's gold labels: set splits.audit: true" in lacking.stderr
    wrong = call(installed, CURATE, "validate", config, "--set", "brevity.longst=4")
    assert wrong.returncode == 2 and "brevity.longst" in wrong.stderr and "longest" in wrong.stderr
    without = call(None, CURATE, "validate", config)
    assert without.returncode == 2 and "brevity" in without.stderr
    lost = tmp_path / "lost" / "lost-1.dist-info"
    lost.mkdir(parents=True)
    (lost / "METADATA").write_text("Metadata-Version: 2.1\nName: lost\nVersion: 1\n")
    for line, words in (
        ("gone = no_such_module:GONE", "entry point gone of curation.features: no feature is at 'no_such_module:GONE'"),
        ("teacher = toy_feature:BREVITY", "entry point teacher of curation.features: every run has a key of that name"),
    ):
        (lost / "entry_points.txt").write_text(f"[curation.features]\n{line}\n")
        told = call(installed, "env", f"PYTHONPATH={lost.parent}:{installed}:{ROOT}", CURATE, "validate", config)
        assert told.returncode == 2 and words in told.stderr and "Traceback" not in told.stderr
    told = call(
        installed,
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(ROOT / 'docs')!r}); import keys; print(keys.draw())",
    )
    assert "Characters of an answer whose brevity is 0." in told.stdout, told.stderr
