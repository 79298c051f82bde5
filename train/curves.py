"""Curves of a GRPO training's measures at each step, and whether its rewards still teach anything."""

from collections.abc import Mapping, Sequence

import numpy as np

from curation.config.grpo import GrpoConfig
from curation.json_types import JsonView

NUM_POINTS = 200
"""Points of a curve in the record; those of more steps are averaged."""
CURVES = {
    "reward": "reward",
    "right": "right",
    "parsed": "parsed",
    "mixed_groups": "mixed_groups",
    "kl": "kl",
    "entropy": "entropy",
    "length": "completions/mean_length",
    "truncated": "truncated",
    "grad_norm": "grad_norm",
    "gap": "gap",
    "learning_rate": "learning_rate",
    "reward_errors": "reward_errors",
}
"""Curves of the record, and the measures of TRL and of :class:`train.grpo_trainer.Game` that they are."""


def steps_of(log_history: Sequence[Mapping[str, object]]) -> list[JsonView]:
    """The entries of a ``transformers.TrainerState`` that stand for a step each."""
    return [entry for entry in log_history if "reward" in entry]


def without_signal(history: Sequence[Mapping[str, float]], config: GrpoConfig) -> str | None:
    """Why the training ends early: the last ``patience`` steps taught nothing; ``None`` where they did."""
    last = history[-config.patience :]
    if len(last) < config.patience or any(entry["mixed_groups"] > 0 for entry in last):
        return None
    low, high = (find(entry["reward"] for entry in last) for find in (min, max))
    always = f"was always {low:.3g}" if low == high else f"was {low:.3g} to {high:.3g}, but equal within each group,"
    return (
        f"the reward {always} in the last {config.patience} steps (student.patience), so nothing was learnt: no group "
        "of answers had both outcomes; give a base that is right now and then, a larger group_size or other rows"
    )


def curves(history: Sequence[Mapping[str, float]]) -> dict[str, list[float | None]]:
    """The measures at each step, or the means of equal blocks of steps where there are many."""
    size = max(1, -(-len(history) // NUM_POINTS))
    blocks = [history[start : start + size] for start in range(0, len(history), size)]
    found: dict[str, list[float | None]] = {"step": [float(block[-1]["step"]) for block in blocks]}
    for name, key in CURVES.items():
        means: list[float | None] = []
        for block in blocks:
            values = [entry[key] for entry in block if entry.get(key) is not None]
            means.append(float(np.mean(values)) if values else None)
        if any(value is not None for value in means):
            found[name] = means
    return found
