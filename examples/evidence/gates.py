"""Gates, the conditions that a development split must meet before results are believed."""

from dataclasses import dataclass
from typing import Any

PARSED = 0.8
TEACHER = (0.3, 0.6)
GAIN = 0.1
SHARE_OF_RIGHT = 0.5


@dataclass(frozen=True, kw_only=True)
class Gate:
    """One condition, with the measured value and whether it passed."""

    words: str
    value: float
    wanted: str
    passed: bool


def gates(report: dict[str, Any], *, num_pool: int) -> list[Gate]:
    """Return the four gates of a finished run on a development split.

    Args:
        report: content of the run's ``report.json``, with the arm ``ground_truth``.
        num_pool: number of rows of the experiment's pool, which is larger than that of the development run.
    """
    labelled = report["funnel"]["generations"][0]["labelled"]["pool"]
    parsed = 1 - labelled["unparsed"] / labelled["rows"]
    teacher, right = (report["teacher"][where]["value"] for where in ("test", "pool"))
    truth = next(arm for arm in report["arms"] if arm["name"] == "ground_truth")["accuracy"]["value"]
    share = report["generations"][0]["n"] / (right * num_pool) if right else float("inf")
    low, high = TEACHER
    return [
        Gate(
            words="share of the pool's labels that can be read",
            value=parsed,
            wanted=f"at least {PARSED:.0%}",
            passed=parsed >= PARSED,
        ),
        Gate(
            words="teacher's accuracy",
            value=teacher,
            wanted=f"{low:.0%} to {high:.0%}",
            passed=low <= teacher <= high,
        ),
        Gate(
            words="ground-truth student minus teacher",
            value=truth - teacher,
            wanted=f"at least {GAIN:.0%}",
            passed=truth - teacher >= GAIN,
        ),
        Gate(
            words="n as a share of the right labels in the pool",
            value=share,
            wanted=f"below {SHARE_OF_RIGHT:.0%}",
            passed=share < SHARE_OF_RIGHT,
        ),
    ]


def told(task: str, found: list[Gate]) -> str:
    """Return the gates of a task as lines of text."""
    lines = [
        f"  {'passed' if gate.passed else 'FAILED'}: {gate.words} {gate.value:.1%} (wanted: {gate.wanted})"
        for gate in found
    ]
    return "\n".join([f"gates of {task}:", *lines])
