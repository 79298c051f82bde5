"""Small real runs that need a warning in the report, and one that needs none: ``python -m benchmarks.sick_runs OUT``.

Each is a whole ``curate run`` on two cores, without students. Printed are the first line of its report, and the rules
with findings:

- ``healthy``: the quickstart's puzzles and teacher;
- ``no signal``: sums whose answer is 7 or 8 at random, and a teacher that says 7, whose states are independent of the
  answer;
- ``teacher at chance``: five options, of which teacher and gold label each take one at random;
- ``over-confident``: the puzzles, with a network that has memorised its 300 rows, and no calibration;
- ``shifted pool``: the puzzles, and a pool of harder ones;
- ``too few rows``: the puzzles with 60 labelled rows;
- ``beaten by a signal``: the puzzles, with a network of two steps, which ranks worse than the teacher's own confidence;
- ``copies``: sums that are each asked four times;
- ``one label``: texts of four classes that are all labelled as one class;
- ``one class``: the same, labelled better, with a confidence that is high for only one class, and no class quotas;
- ``control wins``: the same, with random labels in two of five rows, whose words reveal the class;
- ``nothing learned``: the puzzles, and students with a learning rate of 1e-9.

``--teacher MODEL`` uses the model of an earlier quickstart instead of adapting one for each run.
"""

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parents[1]
DATA = HERE / "examples" / "data"


def puzzles(teacher: str | None, **changes: Any) -> dict[str, Any]:
    """Return a run of the quickstart, smaller and without students."""
    config: dict[str, Any] = yaml.safe_load((HERE / "examples" / "quickstart.yaml").read_text())
    for unread in ("tune", "student", "generations"):
        config.pop(unread)
    config["sources"] = {"puzzles": {"path": str(DATA / "puzzles.parquet")}}
    config["splits"] |= {"source": {"from": "puzzles", "rows": 5000}, "pool": {"from": "puzzles", "rows": 4000}}
    config["splits"].pop("test")
    config["teacher"]["model"] = {"path": teacher or str(HERE / "examples" / "bases" / "teacher")}
    if teacher is not None:
        config["teacher"].pop("adapt")
        config["splits"].pop("adapt")
    config["selection"] = {"budget": {"n": 400}, "arms": ["naive", "naive_parsed", "trust"]}
    return _changed(config, changes)


def scripted(path: Path, rows: list[dict[str, Any]], domain: str, script: dict[str, Any]) -> dict[str, Any]:
    """Return a run of the scripted teacher on rows that are written to ``path``."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    third = len(rows) // 3
    return {
        "domain": domain,
        "sources": {"rows": {"path": str(path)}},
        "splits": {"source": {"from": "rows", "rows": 2 * third}, "pool": {"from": "rows"}, "audit": True},
        "teacher": {"backend": "scripted", "scripted": script, "states": ["output_last"]},
        "selection": {"budget": {"n": third // 4}, "arms": ["naive", "trust"]},
    }


def texts(path: Path, *, kind: str, selection: dict[str, Any]) -> dict[str, Any]:
    """Return a run on given labels of texts whose words tell their class; 600 labelled rows and a pool of 1,400."""
    draw, classes = random.Random(1), ["cards", "loans", "savings", "transfers"]
    lines = ["key,text,label,answer,sure"]
    for number in range(2000):
        gold = draw.choice(classes)
        right = draw.random() < (0.6 if kind == "control wins" else 0.8)
        answer = gold if right else draw.choice(classes)
        sure = draw.gauss(0.6 if right else 0.5, 0.2)
        if kind == "one label":
            answer = classes[0]
        if kind == "one class":
            sure = (0.6 if answer == classes[0] else 0.1) + (0.25 if right else 0.0) + draw.gauss(0, 0.05)
        words = " ".join(draw.sample(["my", "please", "why", "today", "again", "still", gold, gold[:-1]], 6))
        lines.append(f"{number},{words} {number},{gold},{answer},{sure:.4f}")
    path.write_text("\n".join(lines) + "\n")
    return {
        "domain": {"name": "classification", "classes": classes},
        "sources": {"rows": {"path": str(path)}},
        "splits": {"source": {"from": "rows", "rows": 600}, "pool": {"from": "rows"}, "audit": True},
        "teacher": {"backend": "given", "completion": "answer", "confidence": "sure"},
        "selection": {"budget": {"n": 150}, "arms": ["naive", "trust"], **selection},
    }


def unlearned(teacher: str | None) -> dict[str, Any]:
    """Return a run of the puzzles with students, whose learning rate is next to none."""
    whole = yaml.safe_load((HERE / "examples" / "quickstart.yaml").read_text())
    config = puzzles(teacher, splits={"test": {"from": "puzzles", "rows": 500}})
    config["selection"]["arms"] = ["naive", "trust", "ground_truth"]
    student = whole["student"] | {"learning_rate": 1e-9, "epochs": 1}
    bases = [
        {**item, "student": {**item["student"], "path": str(HERE / "examples" / item["student"]["path"])}}
        for item in whole["generations"]
    ]
    return config | {"student": student, "generations": bases}


def runs(folder: Path, teacher: str | None) -> dict[str, dict[str, Any]]:
    """Return the configurations by name."""
    coin = random.Random(0)
    sums = [{"problem": f"{number} + 7 = ?", "answer": str(coin.choice([7, 8]))} for number in range(3000)]
    words = ["red", "green", "blue", "white", "black"]
    choices = [
        {"question": f"Which colour has number {number}?", "choices": words, "answer": coin.randrange(5)}
        for number in range(3000)
    ]
    network = {"kind": "neural", "preset": None, "width": 256, "dropout": 0.0, "weight_decay": 0.0, "max_steps": 600}
    by_heart = network | {"patience": None, "calibration": "none", "learning_rate": 3e-4}
    untaught = network | {"patience": None, "learning_rate": 1e-6, "max_steps": 2}
    few = [{"problem": f"{number % 750} + 7 - {number % 750} = ?", "answer": "7"} for number in range(3000)]
    copies = scripted(folder / "copies.jsonl", few, "math", {"completions": [r" \boxed{7}", r" \boxed{9}"]})
    hard = {"hard": {"path": str(DATA / "puzzles_hard.parquet")}}
    return {
        "healthy": puzzles(teacher),
        "no signal": scripted(folder / "coins.jsonl", sums, "math", {"completions": [r" \boxed{7}"]}),
        "teacher at chance": scripted(folder / "colours.jsonl", choices, "mcqa", {}),
        "over-confident": puzzles(teacher, trust=by_heart | {"source_share": 0.5, "validation_fraction": 0.4}),
        "shifted pool": puzzles(teacher, sources=hard, splits={"pool": {"from": "hard", "rows": 3000}}),
        "too few rows": puzzles(teacher, splits={"source": {"from": "puzzles", "rows": 60}, "audit": False}),
        "beaten by a signal": puzzles(teacher, trust=untaught),
        "copies": _changed(copies, {"splits": {"overlap": "report"}}),
        **{
            name: texts(folder / f"{name.replace(' ', '-')}.csv", kind=name, selection=selection)
            for name, selection in {"one label": {}, "one class": {"quota": "none"}, "control wins": {}}.items()
        },
        "nothing learned": unlearned(teacher),
    }


def _changed(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return sections with some keys replaced; a key that is None is taken out."""
    for section, keys in changes.items():
        config[section] |= keys
        config[section] = {
            key: value for key, value in config[section].items() if value is not None or key == "patience"
        }
    return config


def main() -> None:
    """Do the runs, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--teacher", help="folder of the quickstart's adapted teacher")
    parser.add_argument("--only", nargs="*", help="names of runs")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, config in runs(options.out, options.teacher).items():
        if options.only and name not in options.only:
            continue
        directory = options.out / name.replace(" ", "-")
        path = directory.with_suffix(".yaml")
        path.write_text(yaml.safe_dump({**config, "name": directory.name, "run_dir": str(directory)}))
        done = subprocess.run(
            [sys.executable, "-m", "curation.cli", "run", str(path)], cwd=HERE, capture_output=True, text=True
        )
        if done.returncode:
            print(f"{name}: failed: {done.stderr.splitlines()[-1:]}", flush=True)
            continue
        verdict = json.loads((directory / "report.json").read_text())["verdict"]
        rules = ", ".join(finding["rule"] for finding in verdict["findings"])
        print(f"{name}: {verdict['sign']} {verdict['sentence']}{f' [{rules}]' if rules else ''}", flush=True)


if __name__ == "__main__":
    main()
