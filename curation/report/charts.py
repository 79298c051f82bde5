"""The figures of a generation, as self-contained, deterministic SVG text."""

import io
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from curation.arms import REFERENCE_ARM
from curation.json_types import Json, JsonView
from curation.report.headline import describe_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

P = ParamSpec("P")
SharePoint = tuple[float, JsonView]
"""A place on the x axis, and a share with its interval."""
MOST_BANDS, MOST_RELIABILITIES = 5, 3
"""Maximum numbers of overlaid items that a reader can tell apart; ``report.json`` has all items."""
MEASURES = {
    "loss": "loss",
    "reward": "share of right answers, the mean reward",
    "equal_groups": "share of groups of equal rewards",
    "kl": "KL from the base (k3)",
    "entropy": "entropy, nats a token",
    "length": "tokens of an answer",
    "truncated": "share of truncated answers",
    "grad_norm": "norm of the gradient",
    "gap": "gap of log-probabilities",
    "reward_errors": "share that could not be graded",
}
"""Names of the measures of a training that are drawn, in words; ``report.json`` has all of ``TrainingRecord``."""
COLUMNS, PANEL = 3, (2.5, 1.75)
"""Number of panels of a training side by side, and the size of a panel in inches."""
NAME_WIDTH, NAME_HEIGHT = 1.6, 0.2
"""Size of an arm's entry in the legend, in inches."""
GREY, _RIGHT, _WRONG = "#444444", "#0072b2", "#d55e00"

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


@contextmanager
def open_figure(width: float, height: float) -> Iterator["Figure"]:
    """Open an empty figure of the given size, in inches, to draw on it in the report's style."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def as_chart(x: str, y: str) -> Callable[[Callable[Concatenate["Axes", P], None]], Callable[Concatenate[str, P], str]]:
    """Turn a function that draws on axes into one that takes the name of an SVG instead, and returns the SVG.

    ``x`` and ``y`` are the labels of the axes, if the function sets no others. The legend is above the plot.
    """

    def wrap(draw: Callable[Concatenate["Axes", P], None]) -> Callable[Concatenate[str, P], str]:
        @wraps(draw)
        def render(name: str, /, *args: P.args, **kwargs: P.kwargs) -> str:
            with open_figure(5.6, 3.7) as figure:
                axes = figure.subplots()
                axes.set(xlabel=x, ylabel=y)
                draw(axes, *args, **kwargs)
                place: Any = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0), "ncols": 3}
                axes.legend(**place, borderaxespad=0.2, columnspacing=1.4)
            return render_svg(figure, name)

        return render

    return wrap


def get_arm_style(arm: str, index: int) -> Json:
    """Return the colour, dashes and label of an arm's line; ``index`` is the position of the arm in its figure."""
    colour, dashes = _ARMS.get(arm, _OTHERS[index % len(_OTHERS)])
    return {"color": colour, "linestyle": dashes, "label": describe_name(arm)}


def render_svg(figure: "Figure", name: str) -> str:
    """Return the figure as one ``<svg>`` element without metadata, width or height; its ids start with ``name``."""
    import matplotlib

    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, format="svg", metadata=nothing, transparent=True)
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)


def draw_curve(axes: "Axes", points: Sequence[SharePoint], style: JsonView, *, has_band: bool = True) -> None:
    """Draw a line through points, with a band of their 95 % intervals."""
    places = [x for x, _ in points]
    low, value, high = ([share[key] for _, share in points] for key in ("low", "value", "high"))
    if has_band:
        axes.fill_between(places, low, high, color=style["color"], alpha=0.13, linewidth=0)
    axes.plot(places, value, **style)


@as_chart("rows taken, most trusted first (log scale)", "share of right labels (purity)")
def draw_purity_chart(axes: "Axes", curves: JsonView, *, chance: float | None = None) -> None:
    """Draw purity by the number of rows taken, one line per arm, with 95 % bands (of many arms, only the method's)."""
    from matplotlib.ticker import LogLocator, NullLocator

    ticks = curves["points"]
    for index, (arm, estimates) in enumerate(curves["arms"].items()):
        has_band = arm == REFERENCE_ARM or len(curves["arms"]) <= MOST_BANDS
        points = list(zip(ticks, estimates, strict=True))
        draw_curve(axes, points, get_arm_style(arm, index), has_band=has_band)
    if n := curves["n"]:
        axes.axvline(n, color=GREY, linewidth=0.9, linestyle=(0, (2, 2)), label=f"n = {n:,}")
    _draw_chance(axes, chance)
    axes.set_xscale("log")
    axes.set(xlim=(ticks[0], max(ticks[-1], ticks[0] + 1)), ylim=(0, 1))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _draw_chance(axes: "Axes", chance: float | None) -> None:
    """Draw a line at the share of right labels of a uniform guess, if it is known."""
    if chance is not None:
        axes.axhline(chance, color=GREY, linewidth=0.9, linestyle=(0, (1, 2)), label="chance")


@as_chart("mean trust in the bin", "share of right labels")
def draw_reliability_chart(axes: "Axes", bins_of: JsonView, *, chance: float | None = None) -> None:
    """Draw the share of right labels by mean trust per bin, with 95 % intervals, for the first trust functions."""
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.9, linestyle=(0, (2, 2)), label="calibrated")
    for index, (arm, bins) in enumerate(itertools.islice(bins_of.items(), MOST_RELIABILITIES)):
        values = [item["share_right"]["value"] for item in bins]
        below = [max(0.0, item["share_right"]["value"] - item["share_right"]["low"]) for item in bins]
        above = [max(0.0, item["share_right"]["high"] - item["share_right"]["value"]) for item in bins]
        style: Json = {"marker": "os^D"[index % 4], "markersize": 4, "linewidth": 1.3, "elinewidth": 0.9}
        trusts = [item["mean_trust"] for item in bins]
        axes.errorbar(trusts, values, yerr=[below, above], **get_arm_style(arm, index), **style)
    _draw_chance(axes, chance)
    axes.set(xlim=(0, 1), ylim=(0, 1))


@as_chart("share of the pool kept, most trusted first", "share of wrong labels (noise)")
def draw_risk_chart(axes: "Axes", curves: JsonView) -> None:
    """Draw noise on calibration, its upper bound, and noise at deployment by the share of the pool that a cut keeps."""
    noises = []
    for field, style in (
        ("calibration", {"label": "noise on calibration", "color": _RIGHT, "linestyle": "solid"}),
        ("deployment", {"label": "noise at deployment", "color": "#009e73", "linestyle": (0, (6, 2, 1, 2))}),
    ):
        points = [(point["share"], point[field]) for point in curves["points"] if point[field] is not None]
        if points:
            draw_curve(axes, points, style)
            noises += [noise["value"] for _, noise in points]
    bounds = [(point["share"], point["bound"]) for point in curves["points"] if point["bound"] is not None]
    tried = [(p["share"], p["bound"]) for p in curves["points"] if p["bound"] is not None and p["tried"]]
    for shown, line in ((bounds, {"linestyle": (0, (1, 1)), "linewidth": 1.2}), (tried, {"label": "upper bound"})):
        axes.plot([share for share, _ in shown], [bound for _, bound in shown], color=_WRONG, **line)
    # Just above noise, alpha and the lowest bound; other bounds may lie outside.
    alpha, lowest = curves["alpha"], [min(bound for _, bound in bounds)] if bounds else []
    top = min(1.0, 1.15 * float(max([alpha, *noises, *lowest])))
    axes.axhline(alpha, color=GREY, linewidth=0.9, linestyle=(0, (1, 1)))
    place: Json = {"xycoords": ("axes fraction", "data"), "xytext": (0, 2), "textcoords": "offset points"}
    axes.annotate(f"alpha = {alpha:g}", (1, alpha), **place, ha="right", va="bottom", fontsize=8.5, color=GREY)
    if chosen := curves["chosen"]:
        axes.axvline(chosen["share"], color=GREY, linewidth=0.9, linestyle=(0, (4, 2)), label="chosen cut")
        axes.plot([chosen["share"]], [chosen["bound"]], "o", color=_WRONG, markersize=5)
    axes.set(xlim=(0, 1), ylim=(0, top))
    set_percent_ticks(axes.xaxis)


def draw_training_figure(trained: Mapping[str, JsonView]) -> "Figure":
    """Return a figure with a panel for each measure that varies, in it a line for each arm by training step."""
    shown = []
    for key in MEASURES:
        known = [[y for y in found["curves"].get(key) or () if y is not None] for found in trained.values()]
        if any(len(values) > 1 and any(values) for values in known):
            shown.append(key)
    num_rows, width = -(-len(shown) // COLUMNS), PANEL[0] * min(COLUMNS, len(shown))
    names_beside = max(1, int(width // NAME_WIDTH))
    height = PANEL[1] * num_rows + NAME_HEIGHT * -(-len(trained) // names_beside) + 0.15
    with open_figure(width, height) as figure:
        panels = figure.subplots(num_rows, min(COLUMNS, len(shown)), squeeze=False).ravel()
        for axes, key in zip(panels, shown, strict=False):
            for index, (arm, found) in enumerate(trained.items()):
                measured = zip(found["curves"]["step"], found["curves"].get(key, ()), strict=False)
                points = [(step, value) for step, value in measured if value is not None]
                line = [step for step, _ in points], [value for _, value in points]
                axes.plot(*line, linewidth=1.2, **get_arm_style(arm, index))
            axes.set_title(MEASURES[key], fontsize=8.5, loc="left")
            axes.tick_params(labelsize=7.5)
        for axes in panels[len(shown) :]:
            axes.set_visible(False)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=names_beside, columnspacing=1.4)
    return figure
