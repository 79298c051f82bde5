"""The charts of trust, purity, risk and difficulty, as SVG text."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from curation.arms import REFERENCE_ARM
from curation.json_types import Json, JsonView
from curation.metrics import compute_proportion
from curation.report.frame import (
    SharePoint,
    annotate_bars,
    annotate_points,
    annotate_shares,
    draw_estimates,
    finish_chart,
    get_arm_style,
    make_report_figure,
    set_percent_ticks,
    use_chart_style,
)
from curation.report.headline import describe_name, format_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MOST_BANDS, MOST_RELIABILITIES, MOST_BARS = 5, 3, 6
"""Maximum numbers of overlaid items that a reader can tell apart; ``report.json`` has all items."""
LEAST_ROWS = 20
"""Minimum number of rows in a bin of trust; with this many its interval is narrower than 45 points."""

_RIGHT, _WRONG = "#0072b2", "#d55e00"


def draw_purity_chart(curves: JsonView, name: str, *, chance: float | None = None) -> str:
    """Draw purity by the number of rows taken, one line per arm, with 95 % bands (of many arms, only the method's)."""
    from matplotlib.ticker import FixedLocator, NullLocator

    with use_chart_style():
        figure, axes = make_report_figure()
        ticks = curves["points"]
        for index, (arm, estimates) in enumerate(curves["arms"].items()):
            words = describe_name(arm)
            points = [(tick, of, f"{words}, best {tick:,} rows") for tick, of in zip(ticks, estimates, strict=True)]
            has_band = arm == REFERENCE_ARM or len(curves["arms"]) <= MOST_BANDS
            _draw_curve(axes, points, get_arm_style(arm, index), words, has_band=has_band)
        if n := curves["n"]:
            axes.axvline(n, color="#444444", linewidth=0.9, linestyle=(0, (2, 2)), label=f"n = {n:,}")
        _draw_chance(axes, chance)
        axes.set_xscale("log")
        axes.set_xlim(ticks[0], max(ticks[-1], ticks[0] + 1))
        low, high = axes.get_xlim()
        steps = (1, 2, 5) if high / max(low, 1) < 1e3 else (1,)  # over three decades or more: only powers of ten
        places = [float(step * 10**power) for power in range(math.ceil(math.log10(high)) + 1) for step in steps]
        axes.xaxis.set_major_locator(FixedLocator(places))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_ylim(0, 1)
        x, y = "rows taken, most trusted first (log scale)", "share of right labels (purity)"
        return finish_chart(figure, axes, name, x=x, y=y)


def _draw_curve(
    axes: "Axes", points: Sequence[SharePoint], style: tuple[str, Any], label: str, *, has_band: bool = True
) -> None:
    """Draw a line through points, with a band of their 95 % intervals."""
    places, (colour, dashes) = [x for x, _, _ in points], style
    low, value, high = ([share[key] for _, share, _ in points] for key in ("low", "value", "high"))
    if has_band:
        axes.fill_between(places, low, high, color=colour, alpha=0.13, linewidth=0)
    axes.plot(places, value, color=colour, linestyle=dashes, label=label)
    annotate_shares(axes, points)


def _draw_chance(axes: "Axes", chance: float | None) -> None:
    """Draw a line at the share of right labels of a uniform guess, if it is known."""
    if chance is not None:
        axes.axhline(chance, color="#444444", linewidth=0.9, linestyle=(0, (1, 2)), label="chance")


def draw_reliability_chart(bins_of: JsonView, name: str, *, chance: float | None = None) -> str:
    """Draw the share of right labels by mean trust per bin, with 95 % intervals, for the first trust functions."""
    with use_chart_style():
        figure, axes = make_report_figure()
        axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.9, linestyle=(0, (2, 2)), label="calibrated")
        for index, (arm, bins) in enumerate(itertools.islice(bins_of.items(), MOST_RELIABILITIES)):
            words = describe_name(arm)
            points = []
            for item in join_bins(bins):
                trust, right = item["mean_trust"], item["share_right"]
                text = f"{words}, {right['n']:,} rows with a mean trust of {format_percent(trust)}"
                points.append((trust, right, text))
            style: Json = {"marker": "os^D"[index % 4], "markersize": 4, "linewidth": 1.3, "elinewidth": 0.9}
            draw_estimates(axes, points, get_arm_style(arm, index), label=words, **style)
        _draw_chance(axes, chance)
        axes.set(xlim=(0, 1), ylim=(0, 1))
        return finish_chart(figure, axes, name, x="mean trust in the bin", y="share of right labels")


def join_bins(bins: Sequence[JsonView]) -> list[JsonView]:
    """Join neighbouring bins of trust until each has ``LEAST_ROWS`` rows, so that few rows do not give many points."""
    found: list[tuple[int, float, float]] = []
    for item in bins:
        num_rows = item["share_right"]["n"]
        now = (num_rows, num_rows * item["mean_trust"], num_rows * item["share_right"]["value"])
        if found and found[-1][0] < LEAST_ROWS:
            now = (now[0] + found[-1][0], now[1] + found[-1][1], now[2] + found.pop()[2])
        found.append(now)
    if len(found) > 1 and found[-1][0] < LEAST_ROWS:
        last, before = found.pop(), found.pop()
        found.append((before[0] + last[0], before[1] + last[1], before[2] + last[2]))
    shares = [(trust / n, compute_proportion(round(right), n).to_json()) for n, trust, right in found]
    return [{"mean_trust": mean, "share_right": share} for mean, share in shares]


def draw_histogram_chart(histogram: JsonView, name: str) -> str:
    """Draw the number of rows by trust, with right and wrong labels stacked."""
    from matplotlib.ticker import MaxNLocator

    with use_chart_style():
        figure, axes = make_report_figure()
        edges, right, wrong = histogram["edges"], histogram["right"], histogram["wrong"]
        bins = list(itertools.pairwise(edges))
        style: Json = {"width": [high - low for low, high in bins], "align": "edge"}
        style |= {"edgecolor": "white", "linewidth": 0.5}
        stacked = (
            axes.bar(edges[:-1], right, color=_RIGHT, label="right", **style),
            axes.bar(edges[:-1], wrong, bottom=right, color=_WRONG, hatch="///", label="wrong", **style),
        )
        texts = [
            f"trust {low:.2f} to {high:.2f}: {num_right:,} right, {num_wrong:,} wrong"
            for (low, high), num_right, num_wrong in zip(bins, right, wrong, strict=True)
        ]
        for bars in stacked:
            annotate_bars(bars, texts)
        axes.set_xlim(edges[0], edges[-1])
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))  # at whole numbers only, so that none is rounded
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        return finish_chart(figure, axes, name, x="trust", y="rows")


def draw_difficulty_chart(difficulty: JsonView, name: str) -> str:
    """Draw the share of rows by difficulty: the pool as an area, each arm as a stepped line."""
    with use_chart_style():
        figure, axes = make_report_figure()
        edges, pool = difficulty["edges"], difficulty["pool"]["shares"]
        axes.stairs(pool, edges, fill=True, color="#dddddd", label="pool")
        for index, (arm, profile) in enumerate(difficulty["arms"].items()):
            (colour, dashes), words, shares = get_arm_style(arm, index), describe_name(arm), profile["shares"]
            axes.stairs(shares, edges, color=colour, linestyle=dashes, linewidth=1.5, label=words)
            texts = [
                f"{words}: {format_percent(mine)} of its rows, {format_percent(all_rows)} of the pool's"
                for mine, all_rows in zip(shares, pool, strict=True)
            ]
            middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
            annotate_points(axes, zip(middles, shares, texts, strict=True))
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(bottom=0)
        set_percent_ticks(axes.yaxis)
        return finish_chart(figure, axes, name, x="difficulty", y="share of the rows")


def draw_risk_chart(curves: JsonView, name: str) -> str:
    """Draw noise on calibration, its upper bound, and noise at deployment by the share of the pool that a cut keeps."""
    with use_chart_style():
        figure, axes = make_report_figure()
        noises = []
        for field, label, style in (
            ("calibration", "noise on calibration", (_RIGHT, "solid")),
            ("deployment", "noise at deployment", ("#009e73", (0, (6, 2, 1, 2)))),
        ):
            points = [
                (point["share"], point[field], f"{label}, {format_percent(point['share'])} of the pool kept")
                for point in curves["points"]
                if point[field] is not None
            ]
            if points:
                _draw_curve(axes, points, style, label)
                noises += [noise["value"] for _, noise, _ in points]
        bounds = [(point["share"], point["bound"]) for point in curves["points"] if point["bound"] is not None]
        tried = [(p["share"], p["bound"]) for p in curves["points"] if p["bound"] is not None and p["tried"]]
        for shown, line in ((bounds, {"linestyle": (0, (1, 1)), "linewidth": 1.2}), (tried, {"label": "upper bound"})):
            axes.plot([share for share, _ in shown], [bound for _, bound in shown], color=_WRONG, **line)
        # Just above noise, alpha and the lowest bound; other bounds may lie outside.
        lowest = [min(bound for _, bound in bounds)] if bounds else []
        top = min(1.0, 1.15 * float(max([curves["alpha"], *noises, *lowest])))
        annotate_points(
            axes,
            [
                (share, bound, f"upper bound, {format_percent(share)} of the pool kept: {format_percent(bound)}")
                for share, bound in bounds
                if bound <= top  # matplotlib moves or drops marks that are off the page
            ],
        )
        alpha, grey = curves["alpha"], "#444444"
        axes.axhline(alpha, color=grey, linewidth=0.9, linestyle=(0, (1, 1)))
        place: Json = {"xycoords": ("axes fraction", "data"), "xytext": (0, 2), "textcoords": "offset points"}
        axes.annotate(f"alpha = {alpha:g}", (1, alpha), **place, ha="right", va="bottom", fontsize=8.5, color=grey)
        if chosen := curves["chosen"]:
            axes.axvline(chosen["share"], color=grey, linewidth=0.9, linestyle=(0, (4, 2)), label="chosen cut")
            axes.plot([chosen["share"]], [chosen["bound"]], "o", color=_WRONG, markersize=5)
        axes.set(xlim=(0, 1), ylim=(0, top))
        set_percent_ticks(axes.xaxis)
        x, y = "share of the pool kept, most trusted first", "share of wrong labels (noise)"
        return finish_chart(figure, axes, name, x=x, y=y)


def draw_bins_chart(
    edges: Sequence[float],
    lines: Mapping[str, Sequence[JsonView | None]],
    name: str,
    *,
    y: str,
    behind: Mapping[str, Sequence[JsonView | None]] | None = None,
) -> str:
    """Draw shares by bin, one line with markers per item, with 95 % intervals (of many items, only the method's).

    The first item of ``behind`` is drawn as an area, the others as stepped lines without intervals.
    """
    with use_chart_style():
        figure, axes = make_report_figure()
        for index, (label, shares) in enumerate((behind or {}).items()):
            values = [math.nan if share is None else share["value"] for share in shares]
            stepped: Json = {"color": "#444444", "linestyle": (0, (1, 1)), "linewidth": 1.2}
            axes.stairs(values, edges, label=label, **(stepped if index else {"fill": True, "color": "#dddddd"}))
        width, texts = edges[1] - edges[0], [f"{edge:,.10g}" for edge in edges]
        for index, (line, shares) in enumerate(lines.items()):
            words = describe_name(line)
            # Side by side within their bin, so that no interval hides another.
            offset = 0.7 * width * ((index + 0.5) / len(lines) - 0.5)
            points = []
            for at, share in enumerate(shares):
                if share is not None:
                    text = f"{words}, difficulty {texts[at]} to {texts[at + 1]}, {share['n']:,} rows"
                    points.append((edges[at] + width / 2 + offset, share, text))
            has_bars = len(lines) <= MOST_BARS or line == REFERENCE_ARM
            style: Json = {"marker": "os^Dv"[index % 5], "markersize": 4, "linewidth": 1, "elinewidth": 0.8}
            draw_estimates(axes, points, get_arm_style(line, index), has_bars=has_bars, label=words, **style)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xticks(edges, texts)
        axes.set_ylim(0, 1)
        set_percent_ticks(axes.yaxis)
        return finish_chart(figure, axes, name, x="difficulty", y=y)
