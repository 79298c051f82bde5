"""Frame of a chart: size, style, colours of arms, axis labels, and self-contained, deterministic SVG text."""

import io
import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from curation.arms import REFERENCE_ARM
from curation.json_types import JsonView

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

P = ParamSpec("P")
SharePoint = tuple[float, JsonView]
"""A place on the x axis, and a share with its interval."""
GREY = "#444444"

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
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
}


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


def as_chart(x: str, y: str) -> Callable[[Callable[Concatenate["Axes", P], None]], Callable[Concatenate[str, P], str]]:
    """Make a function that draws on axes one that takes an SVG's name in their place, and returns the SVG.

    ``x`` and ``y`` are the labels of the axes, if the function sets no others. The legend is above the plot.
    """

    def wrap(draw: Callable[Concatenate["Axes", P], None]) -> Callable[Concatenate[str, P], str]:
        @wraps(draw)
        def render(name: str, /, *args: P.args, **kwargs: P.kwargs) -> str:
            with use_chart_style():
                figure = make_figure(5.6, 3.7)
                axes = figure.subplots()
                axes.set(xlabel=x, ylabel=y)
                draw(axes, *args, **kwargs)
                place: Any = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0), "ncols": 3}
                axes.legend(**place, borderaxespad=0.2, columnspacing=1.4)
                return render_svg(figure, name)

        return render

    return wrap


def get_arm_style(arm: str, index: int) -> tuple[str, Any]:
    """Return an arm's colour and dashes; ``index`` is the position of the arm in its figure."""
    return _ARMS.get(arm, _OTHERS[index % len(_OTHERS)])


def render_svg(figure: "Figure", name: str) -> str:
    """Return the figure as one ``<svg>`` element without metadata, width or height; its ids start with ``name``."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing, transparent=True)
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)


def draw_curve(
    axes: "Axes", points: Sequence[SharePoint], style: tuple[str, Any], label: str, *, has_band: bool = True
) -> None:
    """Draw a line through points, with a band of their 95 % intervals."""
    places, (colour, dashes) = [x for x, _ in points], style
    low, value, high = ([share[key] for _, share in points] for key in ("low", "value", "high"))
    if has_band:
        axes.fill_between(places, low, high, color=colour, alpha=0.13, linewidth=0)
    axes.plot(places, value, color=colour, linestyle=dashes, label=label)


def draw_estimates(
    axes: "Axes", points: Sequence[SharePoint], style: tuple[str, Any], *, has_bars: bool = True, **further: Any
) -> None:
    """Draw points with a colour and dashes, with bars of their 95 % intervals."""
    (colour, dashes), values = style, [share["value"] for _, share in points]
    below = [max(0.0, share["value"] - share["low"]) for _, share in points]
    above = [max(0.0, share["high"] - share["value"]) for _, share in points]
    bars = [below, above] if has_bars else None
    axes.errorbar([x for x, _ in points], values, yerr=bars, **{"color": colour, "linestyle": dashes, **further})
