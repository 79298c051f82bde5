"""Estimates the hours of the runs in ``examples/paper`` and writes them where they are told.

Run it as ``python docs/paper_hours.py``: it prints a table, and writes each run's hours into the second line of its
file and into its line of ``docs/log/paper-tables.md``. The numbers are estimates from tokens and operations, not
measurements; all assumptions are the constants of this file. ``--check`` writes nothing and fails where a number is out
of date.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from curation.config.files import read

ROOT = Path(__file__).resolve().parents[1]
RUNS, PAGE = ROOT / "examples" / "paper", ROOT / "docs" / "log" / "paper-tables.md"

BF16 = 312e12
"""Peak operations per second of an A100 in bfloat16, in which labels are made and students compute."""
PREFILL_SHARE, TRAIN_SHARE = 0.40, 0.35
"""What of the peak is assumed to be reached, in a prompt's pass and in training."""
DECODED, DECODED_MOST = 24e12, 20_000
"""Tokens that vLLM writes in a second on one A100: ``DECODED`` / parameters, at most ``DECODED_MOST``."""
START, FIT = 150, 600
"""Seconds of a start of an engine or a training, and of a fit of the trust function."""
LORA_PASS, FULL_PASS, SCORE_PASS = 6, 8, 2
"""Operations per parameter and token: a step of LoRA or of all weights (activations computed twice), a forward pass."""
GROUP_SIZE, GRPO_EPOCHS = 8, 20

BILLIONS = {
    "allenai/OLMo-2-0425-1B": 1.5,
    "allenai/OLMo-2-1124-7B": 7.3,
    "allenai/OLMo-2-1124-13B": 13.7,
    "Qwen/Qwen3-0.6B-Base": 0.6,
    "Qwen/Qwen3-1.7B-Base": 1.7,
    "Qwen/Qwen3-4B-Base": 4.0,
    "Qwen/Qwen3-8B-Base": 8.2,
    "Qwen/Qwen3-14B-Base": 14.8,
    "google/gemma-3-1b-it": 1.0,
    "meta-llama/Llama-3.1-8B-Instruct": 8.0,
    "Skywork/Skywork-Reward-V2-Qwen3-8B": 8.2,
    "KbsdJames/Omni-Judge": 8.0,
}
"""Parameters, in billions."""
TOKENS = {"mcqa": (90, 0, 0), "chess": (150, 6, 6), "math": (130, 1000, 1500)}
"""By domain: tokens of a prompt, of a teacher's answer, of a student's."""
ROWS = {
    "mmlu": 99_842,
    "ai2_arc/ARC-Challenge/train": 1_119,
    "ai2_arc/ARC-Challenge/test": 1_172,
    "ai2_arc/ARC-Easy/train": 2_251,
    "ai2_arc/ARC-Easy/test": 2_376,
    "openbookqa/main/train": 4_957,
    "openbookqa/main/test": 500,
    "sciq/data/train": 11_679,
    "sciq/data/test": 1_000,
    "social_i_qa/default/train": 33_410,
    "social_i_qa/default/validation": 1_954,
    "data/math/": 7_500,
    "omni_math": 2_749,
    "aime": 933,
    "gsm8k": 7_473,
    "math_500": 500,
}
"""Rows of a source, by a part of its path."""
SELECTED = {"Qwen/Qwen3-1.7B-Base": 416, "Qwen/Qwen3-4B-Base": 543, "Qwen/Qwen3-8B-Base": 561}
"""The paper's budgets in mathematics, by teacher (Table 22)."""


class Hours(NamedTuple):
    """Of a run on its GPUs."""

    gpus: int
    hours: float

    def __str__(self) -> str:
        return f"about {_short(self.hours)} hours"


def hours_of(path: Path) -> Hours:
    """The estimate for the run in a file."""
    run = read(path)
    return Hours(run["student"]["num_workers"], _seconds(run) / 3600)


def _seconds(run: Mapping[str, Any]) -> float:
    domain, gpus, arms = run["domain"], run["student"]["num_workers"], run["selection"]["arms"]
    prompt, answer, tested = TOKENS[domain]
    teacher, students = (
        run["teacher"]["model"]["path"],
        [step["student"]["path"] for step in run.get("generations", [])],
    )
    splits = run["splits"]
    others = sum(_rows(run, split) for split in (splits["source"], splits.get("calibration"), *_probes(splits)))
    chain = run.get("chain", {})
    pool = _rows(run, splits["pool"]) / chain.get("shares", 1)
    selected = _selected(run, teacher, pool)

    def asked(model: str, rows: float, read_tokens: float, written: float) -> float:
        size = BILLIONS[model] * 1e9
        reading = SCORE_PASS * size * read_tokens / (BF16 * PREFILL_SHARE)
        writing = written / min(DECODED_MOST, DECODED / size)
        return START + rows * (reading + writing) / gpus

    def trained(model: str, tokens: float, per_token: float) -> float:
        return START + per_token * BILLIONS[model] * 1e9 * tokens / (BF16 * TRAIN_SHARE * gpus)

    total = 0.0
    later = students[:-1]
    chains, shallow = chain.get("arms", ["trust"]), chain.get("shallow", [])
    before_last = later[-1:] if "predecessor" in shallow else []
    teachers = [teacher, *later * len(chains), *before_last]
    if "adapt" in run["teacher"]:
        for adapted in (teacher, *before_last):
            total += trained(adapted, splits["adapt"]["rows"] * (prompt + answer), LORA_PASS)
    for weak in teachers:
        total += asked(weak, others + pool, prompt, answer) + FIT
        total += ("verbalized_confidence" in arms) * asked(weak, pool, prompt + answer + 30, 16)
        total += ("icl_confidence" in arms) * asked(weak, pool, 6 * prompt, 0)
    signals = run.get("signals", {})
    if "ensemble" in arms:
        total += asked(signals["second_teacher"]["path"], pool, prompt, 0)
    if "reward" in arms:
        total += asked(signals["reward"]["model"]["path"], pool, prompt, 0)
    if run.get("judge"):
        total += asked(run["judge"]["model"]["path"], pool, prompt + 600, 100)
    tests = (_rows(run, splits["test"]) if students else 0) * (5 if domain == "math" else 1)
    for place, student in enumerate(students):
        beside = len(chains) * ("first_teacher" in shallow) * (place > 0)
        beside += len(before_last) * (place > 0 and student == students[-1])
        total += (len(arms) + beside + 1) * asked(student, tests, prompt, tested)
        for _ in range(len(arms) + beside):
            if run["student"].get("method") == "grpo":
                rollouts = selected * GROUP_SIZE * GRPO_EPOCHS
                total += asked(student, rollouts, prompt, tested)
                total += trained(student, rollouts * (prompt + tested), FULL_PASS + SCORE_PASS)
            else:
                epochs = 3 if selected < 2_000 else 1
                total += trained(student, selected * epochs * (prompt + answer + 1), LORA_PASS)
    return total + (asked(teacher, tests, prompt, tested) if students else 0)


def _selected(run: Mapping[str, Any], teacher: str, pool: float) -> float:
    budget = run["selection"]["budget"]
    if budget.get("n"):
        return float(budget["n"])
    return min(2_000, pool / 2) if run["domain"] == "mcqa" else SELECTED.get(teacher, 0)  # half of the labels right


def _probes(splits: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(splits.get("probes", {}).values())


def _rows(run: Mapping[str, Any], split: Mapping[str, Any] | None) -> int:
    if split is None or "rows" in split:
        return 0 if split is None else int(split["rows"])
    path = run["sources"][split["from"]]["path"]
    return next(rows for part, rows in ROWS.items() if part in path)


def _short(hours: float) -> str:
    return f"{hours:.1f}" if hours < 10 else f"{hours:.0f}"


def written(text: str, hours: Hours) -> str:
    """A text with the hours in place of those that stand in it."""
    return re.sub(r"about [\d.]+ hours", str(hours), text)


def main() -> int:
    """Print the estimates; write them, or with ``--check`` compare them."""
    check, stale = "--check" in sys.argv, []
    lines = PAGE.read_text().splitlines(keepends=True)
    print("| run | GPUs | hours |\n| --- | --- | --- |")
    for path in sorted(RUNS.glob("*.yaml")):
        hours = hours_of(path)
        print(f"| {path.stem} | {hours.gpus} | {_short(hours.hours)} |")
        text = path.read_text()
        new = [written(line, hours) if f"({_link(path)})" in line else line for line in lines]
        if written(text, hours) != text or new != lines:
            stale.append(path.name)
        if not check:
            path.write_text(written(text, hours))
        lines = new
    if not check:
        PAGE.write_text("".join(lines))
    elif stale:
        print(f"out of date: {', '.join(stale)}; run python docs/paper_hours.py", file=sys.stderr)
    return int(check and bool(stale))


def _link(path: Path) -> str:
    return f"../../examples/paper/{path.name}"


if __name__ == "__main__":
    sys.exit(main())
