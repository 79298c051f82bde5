"""The figures of a search's page, in the style of the report."""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from curation.json_types import Json, JsonView
from curation.report import pointed
from curation.report.frame import finish_chart, make_figure, make_report_figure, render_svg, use_chart_style

MOST_CURVES = 8
"""Maximum number of learning curves in a figure."""
_BEHIND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
"""Background of a text, which keeps it readable on lines."""
_BLUE, _GREY, _ORANGE = "#0072b2", "#b8b8b8", "#d55e00"


def draw_search_figures(search: JsonView) -> dict[str, str]:
    """Return the SVG of each figure that the search has numbers for, by name."""
    trials = [trial for trial in search["trials"] if trial["outcome"] is not None]
    found = {"course": draw_course_chart(trials, search["metric"]), "finals": draw_finals_chart(search)}
    if search["dimensions"]:
        found["coordinates"] = draw_coordinates_chart(trials, search["dimensions"], search["metric"])
    if search["importance"] is not None:
        found["importance"] = draw_importance_chart(search["importance"]["of"])
    curves = [trial for trial in trials if len(trial["outcome"]["fit"].get("validation_aucs", ())) > 1]
    if curves:
        found["curves"] = draw_curves_chart(curves[:MOST_CURVES])
    return found


def draw_course_chart(trials: Sequence[JsonView], metric: str) -> str:
    """Draw the metric of every trial by the trial's number, and the best value so far."""
    with use_chart_style():
        figure, axes = make_report_figure()
        by_number = sorted(trials, key=lambda trial: trial["number"])
        better = max if trials[0]["outcome"]["value"] >= by_number[0]["outcome"]["value"] else min
        numbers = [trial["number"] for trial in by_number]
        values = [trial["outcome"]["value"] for trial in by_number]
        axes.plot(numbers, values, "o", color=_GREY, markersize=3.5, label="trial")
        pointed.annotate_points(
            axes,
            (
                (number, value, f"trial {number}: {metric} {value:.4g}")
                for number, value in zip(numbers, values, strict=True)
            ),
        )
        axes.step(numbers, list(accumulate(values, better)), where="post", color=_BLUE, label="best until then")
        return finish_chart(figure, axes, "search-course", x="trial", y=f"{metric} on the held-out fold")


def draw_curves_chart(trials: Sequence[JsonView]) -> str:
    """Draw the validation AUC of the best networks by optimizer step."""
    with use_chart_style():
        figure, axes = make_report_figure()
        for index, trial in enumerate(trials):
            fit = trial["outcome"]["fit"]
            axes.plot(
                fit["steps"],
                fit["validation_aucs"],
                color=_BLUE if index == 0 else _GREY,
                linewidth=1.8 if index == 0 else 1.0,
                zorder=3 if index == 0 else 2,
                label=f"trial {trial['number']}" if index == 0 else "the next ones" if index == 1 else None,
            )
        return finish_chart(figure, axes, "search-curves", x="optimizer steps", y="AUC on validation rows")


def draw_importance_chart(of: Mapping[str, float]) -> str:
    """Draw the fall of R2 when a setting is permuted, by setting."""
    with use_chart_style():
        figure, axes = make_report_figure()
        names = list(of)[::-1]
        bars = axes.barh(names, [of[name] for name in names], color=_BLUE, label="fall of R2")
        pointed.annotate_bars(bars, [f"{name}: {of[name]:.3f}" for name in names])
        return finish_chart(figure, axes, "search-importance", x="fall of R2 when the setting is permuted", y="")


def draw_finals_chart(search: JsonView) -> str:
    """Draw each finalist's difference to the default, with intervals that hold for all finalists at once."""
    with use_chart_style():
        figure, axes = make_report_figure()
        differences, winner = search["choice"]["differences"], search["choice"]["winner"]
        for place, (name, found) in enumerate(reversed(list(differences.items()))):
            axes.errorbar(
                [found["value"]],
                [place],
                xerr=[[found["value"] - found["low"]], [found["high"] - found["value"]]],
                fmt="o",
                color=_BLUE if name == winner else "#444444",
                capsize=3,
            )
            text = f"trial {name}: {found['value']:+.4f} [{found['low']:+.4f}, {found['high']:+.4f}]"
            pointed.annotate_points(axes, [(found["value"], place, text)])
        axes.axvline(0, color=_ORANGE, linewidth=1.0, linestyle=(0, (4, 2)), label="the default")
        axes.set_yticks(range(len(differences)), [f"trial {name}" for name in reversed(list(differences))])
        axes.set_ylim(-0.6, len(differences) - 0.4)
        return finish_chart(figure, axes, "search-finals", x=f"better than the default by ({search['metric']})", y="")


def draw_coordinates_chart(trials: Sequence[JsonView], dimensions: Sequence[str], metric: str) -> str:
    """Draw parallel coordinates: a line per trial through its settings to its metric, the best tenth highlighted."""
    with use_chart_style():
        figure = make_figure(1.6 + 1.15 * len(dimensions), 3.9)
        axes = figure.subplots()
        axes.grid(visible=False)
        scales = [_Scale([trial["drawn"].get(name) for trial in trials]) for name in dimensions]
        scales.append(_Scale([trial["outcome"]["value"] for trial in trials]))
        num_best = max(1, len(trials) // 10)
        for rank in reversed(range(len(trials))):  # trials come the best first, which is drawn last
            trial = trials[rank]
            values = [*(trial["drawn"].get(name) for name in dimensions), trial["outcome"]["value"]]
            height = [scale.height(value) for scale, value in zip(scales, values, strict=True)]
            best = rank < num_best
            style: Json = {"color": _BLUE if best else _GREY, "linewidth": 1.4 if best else 0.6}
            axes.plot(range(len(height)), height, zorder=3 if best else 2, **style)
        for place, scale in enumerate(scales):
            axes.axvline(place, color="#444444", linewidth=0.9)
            for height_of, text in scale.ticks:
                axes.annotate(
                    text,
                    (place, height_of),
                    xytext=(3, 0),
                    textcoords="offset points",
                    va="center",
                    bbox=_BEHIND,
                    fontsize=7,
                    zorder=4,
                )
        names = [name.removeprefix("options.").replace(".", ".\n") for name in dimensions]
        axes.set_xticks(range(len(scales)), [*names, metric], rotation=20, ha="right", fontsize=8)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        return render_svg(figure, "search-coordinates")


class _Scale:
    """The scale of a setting's axis: logarithmic for positive numbers of a wide range, sorted for other values."""

    def __init__(self, values: Sequence[Any]) -> None:
        given = [value for value in values if value is not None]
        self._log, self._order = False, None
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in given):
            self._log = min(given) > 0 and max(given) / min(given) > 20
            self._low, self._high = self._scale_value(min(given)), self._scale_value(max(given))
            middle = (self._low + self._high) / 2
            middle = math.exp(middle) if self._log else middle
            self.ticks = [(self.height(value), f"{value:.3g}") for value in (min(given), middle, max(given))]
        else:
            self._order = sorted({str(value) for value in given})
            self.ticks = [(self.height(text), text if len(text) < 22 else f"{text[:20]}…") for text in self._order]

    def height(self, value: Any) -> float:
        """Return the height of a value, from 0 to 1, or -0.1 for a setting that the trial's kind does not read."""
        if value is None:
            return -0.1
        if self._order is not None:
            return self._order.index(str(value)) / max(1, len(self._order) - 1)
        return (self._scale_value(value) - self._low) / ((self._high - self._low) or 1.0)

    def _scale_value(self, value: float) -> float:
        return math.log(value) if self._log else float(value)
