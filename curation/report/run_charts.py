"""The figures of a run: training of the students, accuracy by generation of its chains, the graph of its stages."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from curation.json_types import JsonView
from curation.report.frame import (
    annotate_points,
    draw_estimates,
    get_arm_style,
    make_figure,
    render_svg,
    set_percent_ticks,
    use_chart_style,
)
from curation.report.headline import describe_name
from curation.report.record import PREDECESSOR

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
_STYLES: Mapping[str, JsonView] = {
    "chain": {"marker": "o", "linewidth": 1.8},
    "first_teacher": {"marker": "o", "linewidth": 1.0, "linestyle": (0, (4, 2)), "markerfacecolor": "white"},
    PREDECESSOR: {"marker": "D", "linewidth": 0, "markerfacecolor": "white"},
}
"""Styles by kind of line; lines of other kinds have the style of their arm."""
SPREAD = 0.06
"""Horizontal distance of two lines at one generation, which keeps their intervals apart."""
COLUMN_INCHES, ROW_INCHES = 1.9, 0.24
"""Size of a stage's place in the graph of stages."""


def draw_training_chart(trained: Mapping[str, JsonView], name: str) -> str:
    """Draw a panel for each measure, with a line for each arm by training step."""
    with use_chart_style():
        return render_svg(draw_training_figure(trained), name)


def draw_training_figure(trained: Mapping[str, JsonView]) -> "Figure":
    """Return the figure of :func:`draw_training_chart`."""

    def has_variation(key: str) -> bool:
        """Return whether an arm has at least two points of a measure that are not all 0."""
        known = [[y for y in found["curves"].get(key) or () if y is not None] for found in trained.values()]
        return any(len(values) > 1 and any(values) for values in known)

    shown = list(filter(has_variation, MEASURES))
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
                steps, values = [step for step, _ in points], [value for _, value in points]
                (colour, dashes), words = get_arm_style(arm, index), describe_name(arm)
                axes.plot(steps, values, color=colour, linestyle=dashes, linewidth=1.2, label=words)
                text = f"{words}, {MEASURES[key]}, step"
                annotate_points(axes, ((x, y, f"{text} {x:,.10g}: {y:,.4g}") for x, y in points))
            axes.set_title(MEASURES[key], fontsize=8.5, loc="left")
            axes.tick_params(labelsize=7.5)
        for axes in panels[len(shown) :]:
            axes.set_visible(False)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=names_beside, columnspacing=1.4)
        return figure


def draw_chain_chart(chain: JsonView, name: str) -> str:
    """Return the chart of accuracy by generation with 95 % intervals, and the first teacher's accuracy as a level."""
    with use_chart_style():
        figure = make_figure(7.6, 4.2)
        axes = figure.subplots()
        lines, num = chain["lines"], len(chain["bases"])
        for index, line in enumerate(lines):
            known = [(at, point) for at, point in enumerate(line["accuracy"]) if point is not None]
            if line["kind"] == "first_teacher":
                known = known[1:] if len(known) > 1 else known
            offset = SPREAD * (index - (len(lines) - 1) / 2)
            points = [(at + offset, point, f"{line['words']}, generation {at}, test accuracy") for at, point in known]
            style = {"marker": "s", **_STYLES.get(line["kind"], {})}
            arm = get_arm_style(line["arm"], index)
            draw_estimates(axes, points, arm, elinewidth=0.9, markersize=5, label=line["words"], **style)
        if chain["first_teacher"] is not None:
            level = chain["first_teacher"]["value"]
            axes.axhline(level, color="#000000", linewidth=0.9, linestyle=(0, (1, 2)), label="first teacher")
        axes.set_xticks(range(num), [f"{at}: {base or ''}" for at, base in enumerate(chain["bases"])])
        set_percent_ticks(axes.yaxis)
        axes.set(xlim=(-0.5, num - 0.5), xlabel="generation: the students' base", ylabel="test accuracy")
        if lines or chain["first_teacher"] is not None:
            figure.legend(loc="outside upper left", ncols=2, columnspacing=1.4)
        return render_svg(figure, name)


def draw_stage_graph(stages: Sequence[JsonView], name: str) -> str:
    """Draw stages from their ``name``, ``step``, ``after`` (names) and ``share`` of the time, which darkens the box."""
    columns: dict[int, list[JsonView]] = {}
    for stage in stages:
        columns.setdefault(stage["step"], []).append(stage)
    deepest = max(len(column) for column in columns.values())
    place = {
        stage["name"]: (number, row + (deepest - len(column)) / 2)
        for number, (_, column) in enumerate(sorted(columns.items()))
        for row, stage in enumerate(column)
    }
    prefix = "gen-0/" if not any(stage["name"].startswith("gen-1/") for stage in stages) else ""
    with use_chart_style():
        figure = make_figure(COLUMN_INCHES * len(columns), ROW_INCHES * (deepest + 1))
        axes = figure.subplots()
        for stage in stages:
            x, y = place[stage["name"]]
            for other in stage["after"]:
                if other in place:
                    left, height = place[other]
                    axes.plot([left + 0.44, x - 0.44], [height, y], color="#9a9a9a", linewidth=0.6, zorder=1)
            shade = 0.96 - 0.5 * min(1.0, 3 * stage["share"])
            box = {"boxstyle": "round,pad=0.25", "facecolor": (shade, shade, 0.98), "edgecolor": "#666666"}
            words = stage["name"].removeprefix(prefix)
            axes.text(x, y, words, ha="center", va="center", fontsize=6.5, bbox=box, zorder=2)
        axes.set(xlim=(-0.6, len(columns) - 0.4), ylim=(deepest - 0.3, -0.7))
        axes.set_axis_off()
        return render_svg(figure, name)
