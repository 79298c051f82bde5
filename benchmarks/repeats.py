"""Predictions of a run whose labelled questions repeat: ``python -m benchmarks.repeats OUT``.

There are 500 labelled sums, each once, twice or five times. Half of all gold answers are replaced by wrong ones, so
only what the teacher knows of its own sums tells which labels count as right. The pool's 2,000 other sums have the same
noise. If copies of a question were on both sides of a fit, trust would memorise it and predict too much (97.5 % with
500 sums twice, when 38 % were right). Printed are the run's predictions from the labelled rows, the results by the
pool's gold answers, with 95 % intervals, and whether the intervals overlap.
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
NUM_LABELLED, NUM_POOL = 500, 2_000
COPIES = (1, 2, 5)


def noisy(rows: list[dict[str, Any]], draw: random.Random) -> list[dict[str, Any]]:
    """Return the rows, half of which, drawn at random, have an answer that is wrong by 1 to 9."""
    wrong = set(draw.sample(range(len(rows)), len(rows) // 2))
    return [
        row | {"answer": str(int(row["answer"]) + draw.randint(1, 9))} if place in wrong else row
        for place, row in enumerate(rows)
    ]


def configuration(out: Path, copies: int) -> dict[str, Any]:
    """Return a run without students on labelled sums that each occur ``copies`` times."""
    draw = random.Random(0)
    rows = [json.loads(line) for line in (HERE / "examples" / "data" / "sums.jsonl").read_text().splitlines()]
    draw.shuffle(rows)
    labelled, pool = (noisy(part, draw) for part in (rows[:NUM_LABELLED], rows[NUM_LABELLED:][:NUM_POOL]))
    for name, part in ((f"labelled-{copies}", labelled * copies), ("pool", pool)):
        (out / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in part))
    config: dict[str, Any] = yaml.safe_load((HERE / "examples" / "grpo.yaml").read_text())
    return {
        "name": f"repeats-{copies}",
        "run_dir": str(out / f"repeats-{copies}"),
        "domain": config["domain"],
        "sources": {
            "labelled": {"path": str(out / f"labelled-{copies}.jsonl")},
            "unlabelled": {"path": str(out / "pool.jsonl")},
        },
        "splits": {"source": {"from": "labelled"}, "pool": {"from": "unlabelled"}, "audit": True},
        "teacher": config["teacher"] | {"model": {"path": str(HERE / "examples" / "bases" / "sums_teacher")}},
        "trust": {"states": config["trust"]["states"]},
        "selection": {"budget": {"share": 0.25}, "arms": ["naive", "trust"]},
    }


def line(copies: int, report: dict[str, Any]) -> str:
    """Return what was foreseen beside what was found."""
    evidence = report["evidence"]
    purity = next(arm["purity"] for arm in report["arms"] if arm["name"] == "trust")
    pairs = {
        "AUC": (evidence["validation"]["auc"], evidence["pool"]["auc"]),
        "purity of the selection": (evidence["foreseen"]["purity"], purity),
    }
    told = [f"{name} {_estimate(a)} foreseen, {_estimate(b)} found: {_meet(a, b)}" for name, (a, b) in pairs.items()]
    repeats = evidence["repeats"]
    return f"{repeats['num_rows']:,} rows of {repeats['num_questions']:,} questions (x{copies}): {'; '.join(told)}"


def _estimate(found: dict[str, float]) -> str:
    return f"{found['value']:.3f} ({found['low']:.3f}-{found['high']:.3f})"


def _meet(first: dict[str, float], second: dict[str, float]) -> str:
    is_met = first["low"] <= second["high"] and second["low"] <= first["high"]
    return "within the intervals" if is_met else "OUTSIDE the intervals"


def main() -> None:
    """Do the runs, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    for copies in COPIES:
        config = configuration(out, copies)
        path = out / f"{config['name']}.yaml"
        path.write_text(yaml.safe_dump(config))
        subprocess.run([sys.executable, "-m", "curation.cli", "run", str(path)], cwd=HERE, check=True)
        report = json.loads((Path(config["run_dir"]) / "report.json").read_text())
        print(line(copies, report), report["verdict"]["sentence"], flush=True)


if __name__ == "__main__":
    main()
