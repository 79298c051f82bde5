"""The charts of trust, purity, risk and difficulty, as SVG text."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from curation.arms import REFERENCE_ARM
from curation.json_types import Json, JsonView
from curation.metrics import compute_proportion
from curation.report import pointed
from curation.report.frame import finish_chart, get_arm_style, make_report_figure, set_percent_ticks, use_chart_style
from curation.report.headline import describe_name, format_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MOST_BANDS, MOST_RELIABILITIES, MOST_BARS = 5, 3, 6
"""Maximum numbers of overlaid items that a reader can tell apart; ``report.json`` has all items."""
LEAST_ROWS = 20
"""Minimum number of rows in a bin of trust; with this many its interval is narrower than 45 points."""

_RIGHT, _WRONG = "#0072b2", "#d55e00"


def draw_purity_chart(curves: JsonView, name: str, *, chance: float | None = None) -> str:
    """Draw purity by the number of rows taken, one line per arm, with 95 % bands (of many arms, only the method's).

    ``chance`` is the share of right labels of a uniform guess, drawn as a line.
    """
    with use_chart_style():
        figure, axes = make_report_figure()
        ticks = curves["points"]
        for index, (arm, estimates) in enumerate(curves["arms"].items()):
            colour, dashes = get_arm_style(arm, index)
            low, value, high = ([item[key] for item in estimates] for key in ("low", "value", "high"))
            if arm == REFERENCE_ARM or len(curves["arms"]) <= MOST_BANDS:
                axes.fill_between(ticks, low, high, color=colour, alpha=0.13, linewidth=0)
            axes.plot(ticks, value, color=colour, linestyle=dashes, label=describe_name(arm))
            pointed.annotate_shares(
                axes,
                zip(ticks, estimates, [f"{describe_name(arm)}, best {tick:,} rows" for tick in ticks], strict=True),
            )
        if n := curves["n"]:
            axes.axvline(n, color="#444444", linewidth=0.9, linestyle=(0, (2, 2)), label=f"n = {n:,}")
        _draw_chance(axes, chance)
        axes.set_xscale("log")
        axes.set_xlim(ticks[0], max(ticks[-1], ticks[0] + 1))
        _set_log_ticks(axes)
        axes.set_ylim(0, 1)
        return finish_chart(
            figure, axes, name, x="rows taken, most trusted first (log scale)", y="share of right labels (purity)"
        )


def draw_reliability_chart(bins_of: JsonView, name: str, *, chance: float | None = None) -> str:
    """Draw the share of right labels by mean trust per bin, with 95 % intervals, for the first trust functions.

    ``chance`` is as in :func:`draw_purity_chart`.
    """
    with use_chart_style():
        figure, axes = make_report_figure()
        axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.9, linestyle=(0, (2, 2)), label="calibrated")
        for index, (arm, all_bins) in enumerate(itertools.islice(bins_of.items(), MOST_RELIABILITIES)):
            colour, dashes = get_arm_style(arm, index)
            bins = join_bins(all_bins)
            trust = [item["mean_trust"] for item in bins]
            right = [item["share_right"]["value"] for item in bins]
            low = [item["share_right"]["value"] - item["share_right"]["low"] for item in bins]
            high = [item["share_right"]["high"] - item["share_right"]["value"] for item in bins]
            axes.errorbar(
                trust,
                right,
                yerr=[[max(0.0, gap) for gap in low], [max(0.0, gap) for gap in high]],
                color=colour,
                linestyle=dashes,
                marker="os^D"[index % 4],
                markersize=4,
                linewidth=1.3,
                elinewidth=0.9,
                label=describe_name(arm),
            )
            pointed.annotate_shares(
                axes,
                (
                    (
                        item["mean_trust"],
                        item["share_right"],
                        f"{describe_name(arm)}, {item['share_right']['n']:,} rows with a mean trust of "
                        f"{format_percent(item['mean_trust'])}",
                    )
                    for item in bins
                ),
            )
        _draw_chance(axes, chance)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
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
    return [
        {"mean_trust": trust / num_rows, "share_right": compute_proportion(round(right), num_rows).to_json()}
        for num_rows, trust, right in found
    ]


def draw_histogram_chart(histogram: JsonView, name: str) -> str:
    """Draw the number of rows by trust, with right and wrong labels stacked."""
    from matplotlib.ticker import MaxNLocator

    with use_chart_style():
        figure, axes = make_report_figure()
        edges = histogram["edges"]
        widths = [high - low for low, high in itertools.pairwise(edges)]
        style: Json = {"width": widths, "align": "edge", "edgecolor": "white", "linewidth": 0.5}
        right, wrong = histogram["right"], histogram["wrong"]
        stacked = (
            axes.bar(edges[:-1], right, color=_RIGHT, label="right", **style),
            axes.bar(edges[:-1], wrong, bottom=right, color=_WRONG, hatch="///", label="wrong", **style),
        )
        texts = [
            f"trust {low:.2f} to {high:.2f}: {number[0]:,} right, {number[1]:,} wrong"
            for (low, high), number in zip(itertools.pairwise(edges), zip(right, wrong, strict=True), strict=True)
        ]
        for bars in stacked:
            pointed.annotate_bars(bars, texts)
        axes.set_xlim(edges[0], edges[-1])
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))  # at whole numbers only, so that none is rounded
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        return finish_chart(figure, axes, name, x="trust", y="rows")


def draw_difficulty_chart(difficulty: JsonView, name: str) -> str:
    """Draw the share of rows by difficulty: the pool as an area, each arm as a stepped line."""
    with use_chart_style():
        figure, axes = make_report_figure()
        edges = difficulty["edges"]
        middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
        axes.stairs(difficulty["pool"]["shares"], edges, fill=True, color="#dddddd", label="pool")
        for index, (arm, profile) in enumerate(difficulty["arms"].items()):
            colour, dashes = get_arm_style(arm, index)
            axes.stairs(
                profile["shares"], edges, color=colour, linestyle=dashes, linewidth=1.5, label=describe_name(arm)
            )
            pointed.annotate_points(
                axes,
                (
                    (
                        at,
                        mine,
                        f"{describe_name(arm)}: {format_percent(mine)} of its rows, {format_percent(pool)} of the "
                        "pool's",
                    )
                    for at, mine, pool in zip(middles, profile["shares"], difficulty["pool"]["shares"], strict=True)
                ),
            )
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(bottom=0)
        set_percent_ticks(axes.yaxis)
        return finish_chart(figure, axes, name, x="difficulty", y="share of the rows")


def draw_risk_chart(curves: JsonView, name: str) -> str:
    """Draw noise on calibration, its upper bound, and noise at deployment by the share of the pool that a cut keeps."""
    with use_chart_style():
        figure, axes = make_report_figure()
        points = curves["points"]
        for field, label, (colour, dashes) in (
            ("calibration", "noise on calibration", (_RIGHT, "solid")),
            ("deployment", "noise at deployment", ("#009e73", (0, (6, 2, 1, 2)))),
        ):
            known = [point for point in points if point[field] is not None]
            if known:
                shares = [point["share"] for point in known]
                low, value, high = ([point[field][key] for point in known] for key in ("low", "value", "high"))
                axes.fill_between(shares, low, high, color=colour, alpha=0.13, linewidth=0)
                axes.plot(shares, value, color=colour, linestyle=dashes, label=label)
                pointed.annotate_shares(
                    axes,
                    ((p["share"], p[field], f"{label}, {format_percent(p['share'])} of the pool kept") for p in known),
                )
        bounds = [point for point in points if point["bound"] is not None]
        for tried, style in ((False, {"linestyle": (0, (1, 1)), "linewidth": 1.2}), (True, {"label": "upper bound"})):
            shown = [point for point in bounds if point["tried"] or not tried]
            axes.plot([p["share"] for p in shown], [p["bound"] for p in shown], color=_WRONG, **style)
        top = _find_top(curves, [point["bound"] for point in bounds])
        pointed.annotate_points(
            axes,
            (
                (
                    p["share"],
                    p["bound"],
                    f"upper bound, {format_percent(p['share'])} of the pool kept: {format_percent(p['bound'])}",
                )
                for p in bounds
                if p["bound"] <= top  # matplotlib moves or drops marks that are off the page
            ),
        )
        axes.axhline(curves["alpha"], color="#444444", linewidth=0.9, linestyle=(0, (1, 1)))
        axes.annotate(
            f"alpha = {curves['alpha']:g}",
            (1, curves["alpha"]),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=8.5,
            color="#444444",
        )
        if chosen := curves["chosen"]:
            axes.axvline(chosen["share"], color="#444444", linewidth=0.9, linestyle=(0, (4, 2)), label="chosen cut")
            axes.plot([chosen["share"]], [chosen["bound"]], "o", color=_WRONG, markersize=5)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, top)
        set_percent_ticks(axes.xaxis)
        return finish_chart(
            figure, axes, name, x="share of the pool kept, most trusted first", y="share of wrong labels (noise)"
        )


def _find_top(curves: JsonView, bounds: Sequence[float]) -> float:
    """Return the top of the axis: just above noise, alpha and the lowest bound; other bounds may lie outside."""
    noises: list[float] = [
        point[field]["value"]
        for point in curves["points"]
        for field in ("calibration", "deployment")
        if point[field] is not None
    ]
    return min(1.0, 1.15 * float(max([curves["alpha"], *noises, *([min(bounds)] if bounds else [])])))


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
            style: Json = {"color": "#444444", "linestyle": (0, (1, 1)), "linewidth": 1.2}
            axes.stairs(values, edges, label=label, **(style if index else {"fill": True, "color": "#dddddd"}))
        width = edges[1] - edges[0]
        for index, (line, shares) in enumerate(lines.items()):
            colour, dashes = get_arm_style(line, index)
            known = [(number, share) for number, share in enumerate(shares) if share is not None]
            # Side by side within their bin, so that no interval hides another.
            offset = 0.7 * width * ((index + 0.5) / len(lines) - 0.5)
            spread = None
            if len(lines) <= MOST_BARS or line == REFERENCE_ARM:
                low = [max(0.0, share["value"] - share["low"]) for _, share in known]
                spread = [low, [max(0.0, share["high"] - share["value"]) for _, share in known]]
            places = [edges[number] + width / 2 + offset for number, _ in known]
            axes.errorbar(
                places,
                [share["value"] for _, share in known],
                yerr=spread,
                color=colour,
                linestyle=dashes,
                marker="os^Dv"[index % 5],
                markersize=4,
                linewidth=1,
                elinewidth=0.8,
                label=describe_name(line),
            )
            pointed.annotate_shares(
                axes,
                (
                    (
                        place,
                        share,
                        f"{describe_name(line)}, difficulty {edges[at]:,.10g} to {edges[at + 1]:,.10g}, "
                        f"{share['n']:,} rows",
                    )
                    for place, (at, share) in zip(places, known, strict=True)
                ),
            )
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xticks(edges, [f"{edge:,.10g}" for edge in edges])
        axes.set_ylim(0, 1)
        set_percent_ticks(axes.yaxis)
        return finish_chart(figure, axes, name, x="difficulty", y=y)


def _draw_chance(axes: "Axes", chance: float | None) -> None:
    """Draw a line at the share of right labels of a uniform guess, if it is known."""
    if chance is not None:
        axes.axhline(chance, color="#444444", linewidth=0.9, linestyle=(0, (1, 2)), label="chance")


def _set_log_ticks(axes: "Axes") -> None:
    """Set ticks at 1, 2 and 5 times powers of ten, or only at powers of ten over three decades or more."""
    from matplotlib.ticker import FixedLocator, NullLocator

    low, high = axes.get_xlim()
    steps = (1, 2, 5) if high / max(low, 1) < 1e3 else (1,)
    ticks = [step * 10**power for power in range(math.ceil(math.log10(high)) + 1) for step in steps]
    axes.xaxis.set_major_locator(FixedLocator([float(tick) for tick in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
