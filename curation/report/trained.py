"""Curves of the training of a generation's students, as numbers and as one figure."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from curation.json_types import JsonView
from curation.report import pointed
from curation.report.frame import get_arm_style, make_figure, render_svg, use_chart_style
from curation.report.headline import describe_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
"""Names of the measures that are drawn, in words; ``report.json`` has all of ``train.models.TrainingRecord``."""
COLUMNS, PANEL = 3, (2.5, 1.75)
"""Number of panels side by side, and the size of a panel in inches."""
NAME_WIDTH, NAME_HEIGHT = 1.6, 0.2
"""Size of an arm's entry in the legend, in inches."""


def collect_trainings(training: Mapping[str, JsonView]) -> dict[str, JsonView]:
    """Return each arm's training: its curves with the loss, its seconds, and why it stopped early, if it did.

    All curves of an arm have a value, or ``None``, at each ``step``: an optimizer step, or the number of the logging
    interval if the method records no steps.
    """
    return {
        arm: {"curves": _collect_curves(record), "seconds": record["seconds"], "stopped": record.get("stopped")}
        for arm, record in training.items()
    }


def _collect_curves(record: JsonView) -> dict[str, Sequence[float | None]]:
    """Return the record's curves, with its losses averaged between steps so that they have the same steps."""
    losses, curves = record["losses"], dict(record.get("curves", {}))
    steps = curves.pop("step", None) or [float(number) for number in range(1, 1 + len(losses))]
    if len(losses) != len(steps):
        ends = [round(len(losses) * step / steps[-1]) for step in steps]
        parts = [losses[start:end] for start, end in pairwise([0, *ends])]
        losses = [sum(part) / len(part) if part else None for part in parts]
    return {"step": steps, "loss": losses, **curves}


def draw_training_chart(trained: Mapping[str, JsonView], name: str) -> str:
    """Draw a panel for each measure, with a line for each arm by training step."""
    with use_chart_style():
        return render_svg(draw_training_figure(trained), name)


def draw_training_figure(trained: Mapping[str, JsonView]) -> "Figure":
    """Return the figure of :func:`draw_training_chart`."""
    shown = [key for key in MEASURES if any(_has_variation(found["curves"].get(key)) for found in trained.values())]
    with use_chart_style():
        num_rows = -(-len(shown) // COLUMNS)
        width = PANEL[0] * min(COLUMNS, len(shown))
        names_beside = max(1, int(width // NAME_WIDTH))
        size = (width, PANEL[1] * num_rows + NAME_HEIGHT * -(-len(trained) // names_beside) + 0.15)
        figure = make_figure(*size)
        panels = figure.subplots(num_rows, min(COLUMNS, len(shown)), squeeze=False).ravel()
        for axes, key in zip(panels, shown, strict=False):
            for index, (arm, found) in enumerate(trained.items()):
                measured = zip(found["curves"]["step"], found["curves"].get(key, ()), strict=False)
                points = [(step, value) for step, value in measured if value is not None]
                colour, dashes = get_arm_style(arm, index)
                axes.plot(
                    [step for step, _ in points],
                    [value for _, value in points],
                    color=colour,
                    linestyle=dashes,
                    linewidth=1.2,
                    label=describe_name(arm),
                )
                words = f"{describe_name(arm)}, {MEASURES[key]}"
                pointed.annotate_points(
                    axes, ((step, value, f"{words}, step {step:,.10g}: {value:,.4g}") for step, value in points)
                )
            axes.set_title(MEASURES[key], fontsize=8.5, loc="left")
            axes.tick_params(labelsize=7.5)
        for axes in panels[len(shown) :]:
            axes.set_visible(False)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=names_beside, columnspacing=1.4)
        return figure


def _has_variation(values: Sequence[float | None] | None) -> bool:
    """Return whether a measure has at least two points that are not all 0."""
    known = [value for value in values or () if value is not None]
    return len(known) > 1 and any(known)
