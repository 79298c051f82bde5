"""Every example of ``docs/extending.md``, run from the command line: as a file and a line, and as a constant."""

import csv
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import lance
import numpy as np
import pytest
import yaml
from safetensors.torch import load_file

from benchmarks.recorded import planned

pytestmark = pytest.mark.whole_run

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
FILE = re.compile(r"^`(?P<path>[\w/]+\.py)`:\n\n```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINE = re.compile(
    r"^One line in `(?P<table>\w+)` of `(?P<path>[\w/]+\.py)`:\n\n```python\n(?P<line>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
SEAMS = ("domain", "teacher", "trust function", "signal", "selection rule", "budget", "student method")
NUM_SOURCE, NUM_POOL, NUM_TEST = 200, 200, 20


class Example(NamedTuple):
    """One seam of the page."""

    path: str
    code: str
    table: str
    registry: str
    line: str

    @property
    def name(self) -> str:
        """By which the line registers it."""
        return re.match(r'\s*"(\w+)": ', self.line)[1]

    @property
    def module(self) -> str:
        """Of its file."""
        return self.path.removesuffix(".py").replace("/", ".")

    @property
    def as_constant(self) -> str:
        """Its file as a module of a user's own, ``own_<name>``, with what the line holds as the constant ``OWN``."""
        entry = self.line.strip().removesuffix(",").partition(": ")[2].replace(self.module, f"own_{self.name}")
        source = self.registry.removesuffix(".py").replace("/", ".")
        names = ", ".join(sorted(set(re.findall(r"\b(Arm|Rule|Signal|Fitted|Budget|Method|Backend)\(", entry))))
        constant = f"\nfrom {source} import {names}\n\nOWN = {entry}\n" if names else ""
        return self.code + constant


def examples() -> dict[str, Example]:
    found = {}
    for section in PAGE.split("\n## ")[1:]:
        seam = section.splitlines()[0].removeprefix("A ")
        if seam == "feature":  # a package of its own: tests/test_toy_feature.py
            continue
        files, lines = list(FILE.finditer(section)), list(LINE.finditer(section))
        assert len(files) == len(lines) == 1, f"one new file and one line: {section.splitlines()[0]}"
        file, line = files[0], lines[0]
        found[seam] = Example(file["path"], file["code"], line["table"], line["path"], line["line"])
    return found


EXAMPLES = examples()


def installed(directory: Path, seams: tuple[str, ...]) -> None:
    """The package's code in a directory, with the new files and a line for each."""
    ignored = shutil.ignore_patterns("__pycache__")
    for package in ("curation", "train"):
        shutil.copytree(ROOT / package, directory / package, ignore=ignored)
    for seam in seams:
        example = EXAMPLES[seam]
        new, registry = directory / example.path, directory / example.registry
        assert not new.exists()
        new.write_text(example.code)
        text = registry.read_text()
        (start,) = re.finditer(rf"^{example.table}\b", text, re.MULTILINE)
        place = text.index("{\n", start.end()) + 2
        registry.write_text(text[:place] + example.line + text[place:])
        assert example.line.count("\n") == 1 and len(example.line) <= 121


def named(own: bool, seams: tuple[str, ...]) -> dict[str, str]:
    """What the configuration calls each part by."""
    names = {seam: f"own_{EXAMPLES[seam].name}:OWN" if own else EXAMPLES[seam].name for seam in seams}
    if own and "domain" in names:
        names["domain"] = "own_texts:Texts"
    return names


def configuration(directory: Path, names: dict[str, str]) -> dict[str, Any]:
    """A run that uses the parts that are named, and what comes with the package in place of the others."""
    teacher: dict[str, Any] = {"backend": "scripted", "scripted": {"completions": [" positive", " negative"]}}
    if "teacher" in names:
        words = {"positive": ["good", "warm"], "negative": ["cold", "wait"], "Yes": ["good"]}
        teacher = {"backend": names["teacher"], "options": {"words": words}}
    config: dict[str, Any] = {
        "name": "extended",
        "run_dir": str(directory / "run"),
        "sources": {"texts": {"path": "texts.csv"}},
        "splits": {
            "source": {"from": "texts", "rows": NUM_SOURCE},
            "test": {"from": "texts", "rows": NUM_TEST},
            "pool": {"from": "texts"},
            "audit": True,
        },
        "domain": {"name": names["domain"], "labels": ["negative", "positive"]},
        "teacher": teacher,
        "trust": {"kind": "neural", "depth": 1, "width": 8, "max_steps": 20},
        "selection": {"budget": {"n": 40}, "arms": ["trust"]},
        "ray": {"num_cpus": 2},
    }
    if "trust function" in names:
        config["trust"]["options"] = {names["trust function"]: {"scale": 2.0}}
    if "signal" in names:
        config["signals"] = {"options": {"steadfast": {"question": "Is that so?"}}}
    config["selection"]["arms"] += [
        names[seam] for seam in ("trust function", "signal", "selection rule") if seam in names
    ]
    if "budget" in names:
        config["selection"]["budget"] = {names["budget"]: {"scale": 0.25}}
    if "student method" in names:
        init = {"hidden_size": 16, "num_layers": 1, "num_heads": 2}
        config["generations"] = [{"student": {"init": init}}]
        config["selection"]["arms"] = config["selection"]["arms"][:1]
        config["student"] = {"method": names["student method"], "preset": "scratch", "epochs": 1, "members": 2}
        config["student"] |= {"global_batch_size": 8, "micro_batch_size": 8}  # several steps, whose order is the seed's
        config["evaluation"] = {"decoding": {"max_tokens": 4}}
    return config


def run(directory: Path, config: dict[str, Any], *verb: str) -> subprocess.CompletedProcess[str]:
    with (directory / "texts.csv").open("w", newline="") as file:
        rows, rng = csv.writer(file), random.Random(0)
        rows.writerow(["text", "label"])
        for number in range(NUM_SOURCE + NUM_TEST + NUM_POOL):
            word = rng.choice(["good", "warm", "cold", "wait"])
            right = rng.random() < 0.8
            rows.writerow([f"{word} soup {number}", ["negative", "positive"][(word in ("good", "warm")) == right]])
    (directory / "extended.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "curation.cli", *(verb or ["run"]), str(directory / "extended.yaml")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(directory), str(ROOT), os.environ["PYTHONPATH"]])}
    return subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True, timeout=500)


def outputs(directory: Path, stage: str) -> dict[str, Any]:
    stages = planned(directory / "run")
    return stages[f"gen-0/{stage}"]["outputs"]


def read(ref: dict[str, Any]) -> dict[str, list[Any]]:
    return lance.dataset(ref["uri"], version=ref["version"]).to_table().to_pydict()


def check(directory: Path, names: dict[str, str]) -> None:
    """That each part took effect."""
    select = outputs(directory, "select")
    arms = {arm: read(found["table"]) for arm, found in select["arms"].items()}
    labels = read(outputs(directory, "score-pool")["labels"])
    if "teacher" in names:
        texts = dict(
            zip(*(read(outputs_of_prepare(directory)["pool"])[key] for key in ("row_id", "text")), strict=True)
        )
        for row_id, label in zip(labels["row_id"], labels["label"], strict=True):
            word = texts[row_id].split()[0]
            assert label == ("positive" if word in ("good", "warm") else "negative")
        assert len(labels["state_output_last"][0]) == 26
    if "trust function" in names:
        name = names["trust function"]
        stage = outputs(directory, f"trust-{name}")
        assert stage["fit"]["kind"] == "centroids" and stage["fit"]["calibration"]["num_rows"] > 0
        raw = labels[f"{name.replace(':', '_')}_raw"]
        chosen = arms[name]["row_id"]
        by_id = dict(zip(labels["row_id"], raw, strict=True))
        assert min(by_id[row] for row in chosen) >= sorted(raw, reverse=True)[len(chosen) - 1]
    if "signal" in names:
        values = labels["steadfast"]
        assert all(value is not None for value in values) and len(set(values)) > 1
        by_id = dict(zip(labels["row_id"], values, strict=True))
        chosen = arms[names["signal"]]["row_id"]
        assert min(by_id[row] for row in chosen) >= sorted(values, reverse=True)[len(chosen) - 1]
        trust = 1 / (1 + np.exp(-np.array([by_id[row] for row in chosen])))
        np.testing.assert_allclose(arms[names["signal"]]["trust"], trust, rtol=1e-5)
    if "selection rule" in names:
        raw, rule = labels["trust_raw"], arms[names["selection rule"]]
        by_id = dict(zip(labels["row_id"], raw, strict=True))
        n = select["budget"]["n"]
        passed = min(len(raw) // 10, len(raw) - n)
        found = sorted((by_id[row] for row in rule["row_id"]), reverse=True)
        assert found == sorted(raw, reverse=True)[passed : passed + n] and passed > 0
    if "budget" in names:
        assert select["budget"]["rule"] == names["budget"] and not select["budget"]["oracle"]
        assert select["budget"]["n"] == int(0.25 * np.sum(np.array(labels["trust_trust"], dtype=np.float64)))
    if "student method" in names:
        model = Path(outputs(directory, "student-trust")["model"]["base"])
        parts = [load_file(path / "model.safetensors") for path in sorted(model.parent.glob("model-*[01]"))]
        assert len(parts) == 2
        for key, mean in load_file(model / "model.safetensors").items():
            np.testing.assert_allclose(mean, (parts[0][key] + parts[1][key]) / 2, atol=1e-6)
            assert key.endswith("norm.weight") or not np.array_equal(parts[0][key], parts[1][key])


def outputs_of_prepare(directory: Path) -> dict[str, Any]:
    stages = planned(directory / "run")
    return stages["prepare"]["outputs"]["tables"]


def test_the_page_has_every_seam() -> None:
    assert tuple(EXAMPLES) == SEAMS


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seams",
    [
        SEAMS[:6],  # all but the student in one run, to be quick
        (SEAMS[0], SEAMS[6]),
        *(pytest.param((SEAMS[0], seam), marks=pytest.mark.slow) for seam in SEAMS[1:6]),
    ],
    ids=" and ".join,
)
def test_a_file_and_a_line_are_all(tmp_path: Path, seams: tuple[str, ...]) -> None:
    installed(tmp_path, seams)
    names = named(False, seams)
    config = configuration(tmp_path, names)
    del config["splits"]["test"]  # the test below has one
    done = run(tmp_path, config)
    assert done.returncode == 0, done.stderr[-3000:]
    check(tmp_path, names)


@pytest.mark.timeout(600)
@pytest.mark.slow  # a file and a line go through the same registry
@pytest.mark.parametrize("seams", [SEAMS[:6], (SEAMS[0], SEAMS[6])], ids=" and ".join)
def test_a_constant_of_an_own_module_does_as_well(tmp_path: Path, seams: tuple[str, ...]) -> None:
    for seam in seams:
        (tmp_path / f"own_{EXAMPLES[seam].name}.py").write_text(EXAMPLES[seam].as_constant)
    names = named(True, seams)
    done = run(tmp_path, configuration(tmp_path, names))
    assert done.returncode == 0, done.stderr[-3000:]
    check(tmp_path, names)
