"""The graph of a run's stages as SVG: one column per step, and a line from each stage to those that wait for it."""

from collections.abc import Sequence

from curation.json_types import Json, JsonView
from curation.report.frame import make_figure, render_svg, use_chart_style

COLUMN_INCHES, ROW_INCHES = 1.9, 0.24


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
            field: Json = {
                "boxstyle": "round,pad=0.25",
                "facecolor": (shade, shade, 0.98),
                "edgecolor": "#666666",
            }
            axes.text(
                x, y, stage["name"].removeprefix(prefix), ha="center", va="center", fontsize=6.5, bbox=field, zorder=2
            )
        axes.set_xlim(-0.6, len(columns) - 0.4)
        axes.set_ylim(deepest - 0.3, -0.7)
        axes.set_axis_off()
        return render_svg(figure, name)
