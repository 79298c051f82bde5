"""Parts in a package of its own, installed outside the repository, that a run finds by name through entry points."""

import json
import os
import subprocess
import sys
from pathlib import Path

import lance
import pytest
import yaml

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "their-parts"
version = "1.0"
[project.entry-points."curation.domains"]
their_sums = "their_parts:Sums"
[project.entry-points."curation.readers"]
tsv = "their_parts:TSV"
[project.entry-points."curation.trust"]
brief = "their_parts:BRIEF"
[project.entry-points."curation.signals"]
steadfast = "their_parts:STEADFAST"
[project.entry-points."curation.rules"]
below_top = "their_parts:BELOW_TOP"
[project.entry-points."curation.arms"]
passed_over = "their_parts:PASSED_OVER"
[tool.setuptools]
py-modules = ["their_parts", "their_code"]
"""
PARTS = """
from curation.arms import Arm, Column, Rule, Signal
from curation.domains.math import Math
from curation.registry import Reader

TSV = Reader("their_code:Tsv", (".tsv",))
BRIEF = Column("brief answers", "num_output_tokens")
STEADFAST = Signal("steadfastness", "steadfast", "their_code:Steadfast", "logit")
BELOW_TOP = Rule("their_code:BelowTop")
PASSED_OVER = Arm(words="passed over", trust="internal_confidence", rule=BELOW_TOP)


class Sums(Math):
    pass
"""
CODE = """
import numpy as np
import pyarrow as pa

from curation.selection import Cut
from curation.selection.top_n import TopN
from curation.sources.readers import Shape
from curation.teachers import Request


class Tsv:
    def measure(self, path):
        lines = open(path).read().splitlines()
        return Shape(num_rows=len(lines) - 1, schema=dict.fromkeys(lines[0].split("\\t"), "text"))

    def read(self, file, start, stop, columns):
        head, *lines = [line.split("\\t") for line in open(file.path).read().splitlines()]
        rows = lines[start:stop]
        yield pa.RecordBatch.from_pydict({name: [row[head.index(name)] for row in rows] for name in columns})


class BelowTop:
    def cut(self, candidates, budget, seed):
        num_eligible = int(np.isfinite(candidates.raw_score_N).sum())
        num_passed = max(0, min(num_eligible // 10, num_eligible - budget))
        cut = TopN().cut(candidates, budget + num_passed, seed)
        return Cut(row_ids_n=cut.row_ids_n[num_passed:], threshold=cut.threshold)


class Steadfast:
    name = "steadfast"

    def requests(self, domain, row_id, example, weak):
        return [Request(row_id=row_id, prompt=domain.prompt(example) + weak.completion, options=(" Yes", " No"))]

    def decoding(self, base):
        return base

    def value(self, domain, example, weak, answers):
        yes, no = answers[0].option_logprobs
        return yes - no
"""
ARMS = ["naive", "brief", "steadfast", "passed_over", "internal_confidence@below_top", "internal_confidence"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the package is installed."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name, text in (("pyproject.toml", PROJECT), ("their_parts.py", PARTS), ("their_code.py", CODE)):
        (source / name).write_text(text)
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*install, "--target", str(target), str(source)], check=True, timeout=120)
    return target


def write(folder: Path) -> Path:
    lines = ["problem\tanswer", *(f"What is {n + 1} - {n}?\t1" for n in range(160))]
    (folder / "sums.tsv").write_text("\n".join(lines) + "\n")
    config = {
        "name": "theirs",
        "run_dir": str(folder / "run"),
        "domain": "their_sums",
        "sources": {"sums": {"path": "sums.tsv"}},
        "splits": {"source": {"from": "sums", "rows": 60}, "pool": {"from": "sums"}, "audit": True},
        "teacher": {"backend": "scripted", "scripted": {"completions": [" \\boxed{1}", " \\boxed{2}"]}},
        "selection": {"budget": {"n": 20}, "arms": ARMS},
        "ray": {"num_cpus": 2},
    }
    path = folder / "theirs.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def curate(installed: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH", "")]))
    command = [str(Path(sys.executable).with_name("curate")), *map(str, arguments)]
    return subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.slow
def test_a_run_finds_parts_of_an_installed_package_by_name(installed: Path, tmp_path: Path) -> None:
    config = write(tmp_path)
    checked = curate(installed, "validate", config)
    assert checked.returncode == 0 and "source sums: 1 files, 160 rows" in checked.stdout, checked.stderr
    done = curate(installed, "run", config)
    assert done.returncode == 0, done.stderr
    arms = {arm["name"]: arm for arm in json.loads((tmp_path / "run" / "report.json").read_text())["arms"]}
    assert list(arms) == ARMS and all(arm["num_selected"] == 20 for arm in arms.values())
    chosen = {}
    for arm in ARMS:
        (path,) = (tmp_path / "run").glob(f"gen-0/select-*/{arm}.lance")
        chosen[arm] = lance.dataset(str(path)).to_table()["row_id"].to_pylist()
    assert chosen["passed_over"] == chosen["internal_confidence@below_top"]
    assert set(chosen["internal_confidence"][10:]) < set(chosen["passed_over"])  # a tenth of 100 is passed over
    wrong = curate(installed, "validate", config, "--set", "selection.arms=[steadfest]")
    assert wrong.returncode == 2 and "did you mean 'steadfast'?" in wrong.stderr
    assert curate(tmp_path, "validate", config).returncode == 2  # without the package
