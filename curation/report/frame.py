"""Frame of a chart: size, style, colours of arms, axis labels, tooltips, and self-contained, deterministic SVG text.

A tooltip is an SVG ``<title>``, so a page needs no script and no network for it, and print shows the figure alone.
"""

import io
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from curation.arms import REFERENCE_ARM
from curation.json_types import Json, JsonView
from curation.report.headline import with_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.container import BarContainer
    from matplotlib.figure import Figure

SharePoint = tuple[float, JsonView, str]
"""A place on the x axis, a share with its interval, and words that describe it."""

# Okabe and Ito's palette, safe for all common kinds of colour blindness; lines also differ in dashes.
_ARMS = {
    "naive": ("#6b6b6b", (0, (4, 2))),
    "internal_confidence": ("#d98c00", (0, (1, 1))),
    REFERENCE_ARM: ("#0072b2", "solid"),
    "ground_truth": ("#009e73", (0, (6, 2, 1, 2))),
    "teacher": ("#000000", "solid"),
    "base": ("#a0a0a0", (0, (1, 1))),
}
_OTHERS = tuple(
    (colour, dashes)
    for dashes in ("solid", (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2)))
    for colour in ("#cc79a7", "#d55e00", "#56b4e9", "#000000")
)

_STYLE: Any = {
    "svg.fonttype": "path",  # the same widths in every browser, so that nothing overlaps
    "svg.hashsalt": "trust-curation",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
}

RADIUS = 5
"""Radius of the circle in which the text of a point appears, in points (1/72 inch)."""
_MARK, _BETWEEN = "pointed:", "|"
_POINTS = re.compile(rf'<g id="{_MARK}([^"]*)">(.*?)</g>\s*</g>', re.DOTALL)
_BAR = re.compile(rf'<g id="{_MARK}([^"]*)">(?=\s*<path)')
_PLACE = re.compile(r'<use [^>]*?\bx="([^"]+)" y="([^"]+)"')


def set_percent_ticks(axis: "Axis") -> None:
    """Show an axis's ticks in per cent, with all their decimals."""
    axis.set_major_formatter(lambda value, _: f"{100 * value:.10g} %")


def use_chart_style() -> Any:
    """Return a context in which figures have the report's style."""
    import matplotlib

    return matplotlib.rc_context(_STYLE)


def make_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of the given size, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def make_report_figure() -> "tuple[Figure, Axes]":
    """Return an empty figure of the report's size, and its axes."""
    figure = make_figure(5.6, 3.7)
    return figure, figure.subplots()


def get_arm_style(arm: str, index: int) -> tuple[str, Any]:
    """Return an arm's colour and dashes; ``index`` is the position of the arm in its figure."""
    return _ARMS.get(arm, _OTHERS[index % len(_OTHERS)])


def finish_chart(figure: "Figure", axes: "Axes", name: str, *, x: str, y: str) -> str:
    """Return the figure's SVG, with axis labels and a legend above the plot, outside the data."""
    axes.set(xlabel=x, ylabel=y)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3, borderaxespad=0.2, columnspacing=1.4)
    return render_svg(figure, name)


def render_svg(figure: "Figure", name: str) -> str:
    """Return the figure as one ``<svg>`` element without metadata, width or height; its ids start with ``name``."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing, transparent=True)
    text = buffer.getvalue()
    text = _BAR.sub(r'<g class="pointed"><title>\1</title>', text[text.index("<svg") :])
    text = _POINTS.sub(_as_circles, text)
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)


def annotate_points(axes: "Axes", points: Iterable[tuple[float, float, str]]) -> None:
    """Give each point of a plot, as x and y in its units, a text; points that are not finite are left out."""
    shown = [(x, y, text) for x, y, text in points if math.isfinite(x) and math.isfinite(y)]
    if not shown:
        return
    x, y, texts = zip(*shown, strict=True)
    style: Json = {"marker": "o", "markersize": 2 * RADIUS, "linestyle": "", "alpha": 0.01, "zorder": 10}
    axes.plot(x, y, scalex=False, scaley=False, gid=_make_id(texts), **style)


def annotate_shares(axes: "Axes", points: Iterable[SharePoint]) -> None:
    """Give points of a plot their texts, with the value and its interval."""
    annotate_points(axes, ((x, share["value"], f"{words}: {with_interval(share)}") for x, share, words in points))


def draw_estimates(
    axes: "Axes", points: Sequence[SharePoint], style: tuple[str, Any], *, has_bars: bool = True, **further: Any
) -> None:
    """Draw points with a colour and dashes, with bars of their 95 % intervals, and give them their texts."""
    (colour, dashes), values = style, [share["value"] for _, share, _ in points]
    below = [max(0.0, share["value"] - share["low"]) for _, share, _ in points]
    above = [max(0.0, share["high"] - share["value"]) for _, share, _ in points]
    bars = [below, above] if has_bars else None
    axes.errorbar([x for x, _, _ in points], values, yerr=bars, **{"color": colour, "linestyle": dashes, **further})
    annotate_shares(axes, points)


def annotate_bars(drawn: "BarContainer", texts: Sequence[str]) -> None:
    """Give each bar a text."""
    for bar, text in zip(drawn.patches, texts, strict=True):
        bar.set_gid(_make_id([text]))


def _make_id(texts: Sequence[str]) -> str:
    """Return the texts as an artist's id, which matplotlib escapes and writes into the SVG."""
    return _MARK + _BETWEEN.join(text.replace(_BETWEEN, "/").replace('"', "'") for text in texts)


def _as_circles(found: re.Match[str]) -> str:
    circle = f'<circle class="pointed" r="{RADIUS}" cx="%s" cy="%s"><title>%s</title></circle>'
    places = zip(_PLACE.findall(found[2]), found[1].split(_BETWEEN), strict=True)
    return "\n".join(circle % (*place, text) for place, text in places)
