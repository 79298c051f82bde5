"""The figures of ``curate analyze``: advantage gaps and coherence of gradients (paper, section "Mechanisms")."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from curation.arms import REFERENCE_ARM
from curation.extras.analyze.coherence import SHOWN
from curation.json_types import JsonView
from curation.report.charts import GREY, MOST_BANDS, as_chart, draw_curve, get_arm_style, set_percent_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POWERS = (1, 2, 4, 8, 16, 32)
"""Ticks of the axis of k (paper, figure of the gradients)."""


def figures(found: JsonView, prefix: str) -> dict[str, str]:
    """Return the SVG of each figure for which an analysis has numbers, by name."""
    made = {}
    if (moves := found.get("advantages")) is not None and any(arm["n"] for arm in moves["arms"].values()):
        made["gaps"] = draw_gaps(f"{prefix}-gaps", moves["arms"])
    if (same := found.get("coherence")) is not None:
        made["energies"] = draw_energies(f"{prefix}-energies", same["arms"])
        made["energy_rows"] = draw_row_shares(f"{prefix}-energy-rows", same["arms"])
    return made


def _iter_styled(arms: Mapping[str, JsonView]) -> Iterator[tuple[str, JsonView, dict[str, Any]]]:
    """Yield each arm with its findings and the style of its line."""
    for index, (arm, found) in enumerate(arms.items()):
        yield arm, found, get_arm_style(arm, index)


@as_chart("gold move minus weak move, pawns (below 0: the weak move is stronger)", "share of the rows")
def draw_gaps(axes: "Axes", arms: Mapping[str, JsonView]) -> None:
    """Draw each arm's histogram of advantage gaps, in pawns; the end bins include all larger gaps."""
    axes.axvline(0, color=GREY, linewidth=0.9, linestyle=(0, (2, 2)))
    for arm, found, style in _iter_styled(arms):
        if not found["n"]:
            continue
        edges = [edge / 100 for edge in found["edges"]]
        shares = [count / found["n"] for count in found["counts"]]
        if arm == REFERENCE_ARM:
            axes.stairs(shares, edges, color=style["color"], linewidth=0, fill=True, alpha=0.18)
        axes.stairs(shares, edges, linewidth=1.5, **style)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_xticks(edges[::2])
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    set_percent_ticks(axes.yaxis)


@as_chart("directions k (log scale)", "mean top-k energy")
def draw_energies(axes: "Axes", arms: Mapping[str, JsonView]) -> None:
    """Draw each arm's mean top-k energy against k with 95 % bands (of many arms, only the reference arm's)."""
    for arm, found, style in _iter_styled(arms):
        points = [(float(k), {**item, "high": min(item["high"], 1.0)}) for k, item in enumerate(found["energy"], 1)]
        has_band = arm == REFERENCE_ARM or len(arms) <= MOST_BANDS
        draw_curve(axes, points, style, has_band=has_band)
    last = max(len(found["energy"]) for found in arms.values())
    ticks = [k for k in POWERS if k <= last]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.set_xlim(1, last)
    axes.set_ylim(top=1)
    set_percent_ticks(axes.yaxis)


@as_chart(f"top-{SHOWN} energy of a row", "share of the rows with at most that")
def draw_row_shares(axes: "Axes", arms: Mapping[str, JsonView]) -> None:
    """Draw each arm's cumulative distribution of rows' top-8 energy."""
    for _, found, style in _iter_styled(arms):
        axes.plot(found["quantiles"], [number / 100 for number in range(101)], **style)
    axes.set(xlim=(min(found["quantiles"][1] for found in arms.values()), 1), ylim=(0, 1))
    set_percent_ticks(axes.xaxis)
    set_percent_ticks(axes.yaxis)
