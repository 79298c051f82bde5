"""First contact: a wheel in an empty environment, two CSV files, the commands of a first hour, by the stopwatch.

No step fails, prints a traceback, or is silent for longer than ``SILENT`` seconds (more beside other work). Beside the
files lie a ``train.py``, which has the name of a package here, and an ``own.py``, which is the domain.
"""

import csv
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[1]
SILENT = 15.0
IMPORTS = 5.0
"""Seconds that :func:`imports` takes on a machine without other work; where it takes longer, silences may, too."""
PACKAGES = ("curation", "train", "tune")
BASES = ROOT / "examples" / "bases"
OWN = """
from curation.domains.math import Math


class Sums(Math):
    defaults = {"teacher": {"decoding": {"max_tokens": 16, "stop": []}}}

    def __init__(self):
        super().__init__(instruction="")
"""
STUDENT = """\
generations:
  - student: {path: SUMS}
student: {preset: scratch, epochs: 1, global_batch_size: 8, micro_batch_size: 8}
"""


class Step(NamedTuple):
    """A command that was given."""

    words: str
    code: int
    seconds: float
    silent: float
    """The longest time in seconds between two lines, or before the first or after the last."""
    after: str
    """The line before that time."""
    text: str


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; its dependencies are those of the environment of the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip"]
    wheel = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), str(source)]
    subprocess.run(wheel, check=True, timeout=300)
    shutil.rmtree(source)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True, timeout=120)
    (made,) = folder.glob("*.whl")
    install = [*pip, "--python", str(folder / "env"), "install", "-q", "--no-deps", "--no-index", str(made)]
    subprocess.run(install, check=True, timeout=120)
    (packages,) = (folder / "env").glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # without the .pth files there
    return folder / "env"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: rows with ids of letters, and two modules."""
    folder = tmp_path_factory.mktemp("first")
    for name, number in (("labelled", 300), ("unlabelled", 600)):
        with (ROOT / f"examples/own_data/{name}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        for file_name, part in ((name, rows[:number]), (f"more_{name}", rows[number : number + 200])):
            with (folder / f"{file_name}.csv").open("w", newline="") as out:
                writer = csv.DictWriter(out, ["id", *rows[0]])
                writer.writeheader()
                writer.writerows({"id": f"{file_name}-{place:05}", **row} for place, row in enumerate(part))
    (folder / "more_labelled.csv").unlink()
    (folder / "train.py").write_text("raise SystemExit('the train.py of the user was imported')\n")
    (folder / "own.py").write_text(OWN)
    return folder


def given(environment: Path, folder: Path, *words: str, path: str = "") -> Step:
    """Give a command, with a ``PYTHONPATH`` or none, and listen when it says something."""
    command = [str(environment / "bin" / "curate"), *words]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    kept |= {"PYTHONPATH": path} if path else {}
    begun = time.monotonic()
    process = subprocess.Popen(
        command, cwd=folder, env=kept | {"PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    heard, lines = [begun], []

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            heard.append(time.monotonic())
            lines.append(line)

    listener = threading.Thread(target=listen)
    listener.start()
    code = process.wait(timeout=900)
    listener.join()
    heard.append(time.monotonic())
    gaps = [after - before for before, after in pairwise(heard)]
    place = gaps.index(max(gaps))
    before = lines[place - 1] if place else "(the start)"
    return Step(" ".join(words), code, heard[-1] - begun, gaps[place], before.strip(), "".join(lines))


def imports(environment: Path) -> float:
    """Seconds in which a new process imports what all commands import."""
    begun = time.monotonic()
    program = "import ray.data, torch, transformers, curation.pipeline.running"
    subprocess.run([str(environment / "bin" / "python"), "-c", program], check=True, capture_output=True, timeout=300)
    return time.monotonic() - begun


def own_ids(rows: Path, source: Path, number: int) -> None:
    """Assert that so many rows have the ids that their questions have in the user's file."""
    with source.open(newline="") as file:
        questions = {row["id"]: row["problem"] for row in csv.DictReader(file)}
    found = pq.read_table(rows).to_pylist()
    assert len(found) == number == len({row["id"] for row in found})
    assert all(questions[row["id"]] in row["prompt"] for row in found), found[:3]


def shown(steps: Sequence[Step]) -> str:
    return "\n".join(
        f"{step.seconds:7.1f} s, silent {step.silent:5.1f} s: curate {step.words} [after {step.after[:70]}]"
        for step in steps
    )


def test_from_two_files_to_filtered_rows(environment: Path, folder: Path) -> None:
    before = imports(environment)
    steps = [
        given(environment, folder, "init", "--data", "labelled.csv", "unlabelled.csv",
              "--domain", "own:Sums", "--model", str(BASES / "sums_teacher")),
    ]  # fmt: skip
    config = folder / "curation.yaml"
    text = config.read_text()
    assert "own:Sums" in text
    config.write_text(text[: text.index("generations:")] + STUDENT.replace("SUMS", str(BASES / "sums")))
    for words in (
        "validate curation.yaml",
        "plan curation.yaml",
        "run curation.yaml",
        "status curation.yaml",
        "report curation.yaml",
    ):
        steps.append(given(environment, folder, *words.split()))
    for words in (  # a run directory and a package bring no code: the domain's module is named as the pages say
        "export runs/curation --columns id -o rows",
        "export-trust runs/curation -o package",
        "export-student runs/curation --arm trust -o student",
        "filter package more_unlabelled.csv -o filtered --keep 0.2 --set pool.columns=[id] --anyway"
        " --allow-code own:Sums",
    ):
        steps.append(given(environment, folder, *words.split(), path="."))
    slowest = max(before, imports(environment))
    print(shown(steps), f"{slowest:7.1f} s: imports alone", sep="\n")
    for step in steps:
        assert step.code == 0, f"{step.words}: {step.text[-3000:]}"
        assert "Traceback" not in step.text and "train.py of the user" not in step.text, step.text[-3000:]
    assert (folder / "runs/curation/report.html").is_file() and (folder / "package/README.md").is_file()
    assert (folder / "student/README.md").is_file()
    (selected,) = folder.glob("rows/data/train-*.parquet")
    own_ids(selected, folder / "unlabelled.csv", 120)
    (passed,) = json.loads((folder / "filtered" / "filter.json").read_text())["files"]
    own_ids(folder / "filtered" / passed["path"], folder / "more_unlabelled.csv", 40)
    most = SILENT * max(1.0, slowest / IMPORTS)
    assert [(step.words, step.silent, step.after) for step in steps if step.silent > most] == []
