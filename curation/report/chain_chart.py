"""The compounding curve: test accuracy of students by generation, with a line for each chain and each comparison."""

from collections.abc import Mapping

from curation.json_types import JsonView
from curation.report import pointed
from curation.report.frame import get_arm_style, make_figure, render_svg, set_percent_ticks, use_chart_style
from curation.report.record import PREDECESSOR

_STYLES: Mapping[str, JsonView] = {
    "chain": {"marker": "o", "linewidth": 1.8},
    "first_teacher": {"marker": "o", "linewidth": 1.0, "linestyle": (0, (4, 2)), "markerfacecolor": "white"},
    PREDECESSOR: {"marker": "D", "linewidth": 0, "markerfacecolor": "white"},
}
"""Styles by kind of line; lines of other kinds have the style of their arm."""
SPREAD = 0.06
"""Horizontal distance of two lines at one generation, which keeps their intervals apart."""


def draw_chain_chart(chain: JsonView, name: str) -> str:
    """Return the chart of accuracy by generation with 95 % intervals, and the first teacher's accuracy as a level."""
    with use_chart_style():
        figure = make_figure(7.6, 4.2)
        axes = figure.subplots()
        lines, num = chain["lines"], len(chain["bases"])
        for index, line in enumerate(lines):
            colour, dashes = get_arm_style(line["arm"], index)
            known = [(at, point) for at, point in enumerate(line["accuracy"]) if point is not None]
            if line["kind"] == "first_teacher":
                known = known[1:] if len(known) > 1 else known
            offset = SPREAD * (index - (len(lines) - 1) / 2)
            values = [point["value"] for _, point in known]
            axes.errorbar(
                [at + offset for at, _ in known],
                values,
                yerr=[
                    [max(0.0, point["value"] - point["low"]) for _, point in known],
                    [max(0.0, point["high"] - point["value"]) for _, point in known],
                ],
                color=colour,
                elinewidth=0.9,
                markersize=5,
                label=line["words"],
                **{"linestyle": dashes, "marker": "s", **_STYLES.get(line["kind"], {})},
            )
            pointed.annotate_shares(
                axes,
                ((at + offset, point, f"{line['words']}, generation {at}, test accuracy") for at, point in known),
            )
        if chain["first_teacher"] is not None:
            level = chain["first_teacher"]["value"]
            axes.axhline(level, color="#000000", linewidth=0.9, linestyle=(0, (1, 2)), label="first teacher")
        axes.set_xticks(range(num), [f"{at}: {base or ''}" for at, base in enumerate(chain["bases"])])
        axes.set_xlim(-0.5, num - 0.5)
        set_percent_ticks(axes.yaxis)
        axes.set_xlabel("generation: the students' base")
        axes.set_ylabel("test accuracy")
        if lines or chain["first_teacher"] is not None:
            figure.legend(loc="outside upper left", ncols=2, columnspacing=1.4)
        return render_svg(figure, name)
