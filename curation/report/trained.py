"""How the students of a generation were trained: what was measured on the way, as numbers and as one figure."""

from collections.abc import Mapping, Sequence
from typing import Any

from curation.report.charts import drawing, line_of, svg
from curation.report.headline import in_words

Json = Mapping[str, Any]

MEASURES = {
    "loss": "loss",
    "reward": "mean reward",
    "right": "share of right answers",
    "mixed_groups": "share of groups with both outcomes",
    "kl": "KL from the base (k3)",
    "entropy": "entropy, nats a token",
    "length": "tokens of an answer",
    "truncated": "share of truncated answers",
    "grad_norm": "norm of the gradient",
    "gap": "gap of log-probabilities",
    "reward_errors": "share that could not be graded",
}
"""What is drawn, in words; ``report.json`` has all that ``train.models.TrainingRecord`` has."""
COLUMNS, PANEL = 3, (2.5, 1.75)
"""Panels side by side, and the size of each in inches."""


def trainings(training: Mapping[str, Json]) -> dict[str, Json]:
    """By arm: the curves of its student's training with its loss, seconds and why it ended early, if it did."""
    return {
        arm: {
            "curves": {"loss": record["losses"], **record.get("curves", {})},
            "seconds": record["seconds"],
            "stopped": record.get("stopped"),
        }
        for arm, record in training.items()
    }


def training_chart(trained: Mapping[str, Json], name: str) -> str:
    """A panel a measure, each with a line an arm, against the share of the training's steps."""
    from matplotlib.figure import Figure

    shown = [key for key in MEASURES if any(_varies(found["curves"].get(key)) for found in trained.values())]
    with drawing():
        num_rows = -(-len(shown) // COLUMNS)
        size = (PANEL[0] * min(COLUMNS, len(shown)), PANEL[1] * num_rows + 0.35)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(num_rows, min(COLUMNS, len(shown)), squeeze=False).ravel()
        for axes, key in zip(panels, shown, strict=False):
            for index, (arm, found) in enumerate(trained.items()):
                values = found["curves"].get(key, ())
                steps = found["curves"].get("step", ())
                steps = steps if len(steps) == len(values) else range(1, 1 + len(values))
                points = [(step, value) for step, value in zip(steps, values, strict=True) if value is not None]
                colour, dashes = line_of(arm, index)
                axes.plot(
                    [step for step, _ in points],
                    [value for _, value in points],
                    color=colour,
                    linestyle=dashes,
                    linewidth=1.2,
                    label=in_words(arm),
                )
            axes.set_title(MEASURES[key], fontsize=8.5, loc="left")
            axes.tick_params(labelsize=7.5)
        for axes in panels[len(shown) :]:
            axes.set_visible(False)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=5, columnspacing=1.4)
        return svg(figure, name)


def _varies(values: Sequence[float | None] | None) -> bool:
    """Whether a measure has anything to show: two points, not all 0."""
    known = [value for value in values or () if value is not None]
    return len(known) > 1 and any(known)
