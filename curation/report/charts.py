"""The figures of a generation, a chain and a search, as self-contained, deterministic SVG text."""

import io
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from curation.arms import REFERENCE_ARM
from curation.json_types import Json, JsonView
from curation.metrics import compute_proportion
from curation.report.headline import describe_name
from curation.report.record import PREDECESSOR

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

P = ParamSpec("P")
SharePoint = tuple[float, JsonView]
"""A place on the x axis, and a share with its interval."""
MOST_BANDS, MOST_RELIABILITIES, MOST_BARS = 5, 3, 6
"""Maximum numbers of overlaid items that a reader can tell apart; ``report.json`` has all items."""
LEAST_ROWS = 20
"""Minimum number of rows in a bin of trust; with this many its interval is narrower than 45 points."""
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
SPREAD = 0.06
"""Horizontal distance of two lines at one generation, which keeps their intervals apart."""
_STYLES: Mapping[str, JsonView] = {
    "chain": {"marker": "o", "linewidth": 1.8},
    "first_teacher": {"marker": "o", "linewidth": 1.0, "linestyle": (0, (4, 2)), "markerfacecolor": "white"},
    PREDECESSOR: {"marker": "D", "linewidth": 0, "markerfacecolor": "white"},
}
"""Styles by kind of line of a chain; lines of other kinds have the style of their arm."""
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
    """Make a function that draws on axes one that takes an SVG's name in their place, and returns the SVG.

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


def draw_estimates(axes: "Axes", points: Sequence[SharePoint], *, has_bars: bool = True, **style: Any) -> None:
    """Draw points in a style, with bars of their 95 % intervals."""
    values = [share["value"] for _, share in points]
    below = [max(0.0, share["value"] - share["low"]) for _, share in points]
    above = [max(0.0, share["high"] - share["value"]) for _, share in points]
    axes.errorbar([x for x, _ in points], values, yerr=[below, above] if has_bars else None, **style)


@as_chart("rows taken, most trusted first (log scale)", "share of right labels (purity)")
def draw_purity_chart(axes: "Axes", curves: JsonView, *, chance: float | None = None) -> None:
    """Draw purity by the number of rows taken, one line per arm, with 95 % bands (of many arms, only the method's)."""
    from matplotlib.ticker import FixedLocator, NullLocator

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
    low, high = axes.get_xlim()
    steps = (1, 2, 5) if high / max(low, 1) < 1e3 else (1,)  # over three decades or more: only powers of ten
    places = [float(step * 10**power) for power in range(math.ceil(math.log10(high)) + 1) for step in steps]
    axes.xaxis.set_major_locator(FixedLocator(places))
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
        points = [(item["mean_trust"], item["share_right"]) for item in join_bins(bins)]
        style: Json = {"marker": "os^D"[index % 4], "markersize": 4, "linewidth": 1.3, "elinewidth": 0.9}
        draw_estimates(axes, points, **get_arm_style(arm, index), **style)
    _draw_chance(axes, chance)
    axes.set(xlim=(0, 1), ylim=(0, 1))


def join_bins(bins: Sequence[JsonView]) -> list[JsonView]:
    """Join neighbouring bins of trust until each has ``LEAST_ROWS`` rows, so that few rows do not give many points."""
    found: list[list[float]] = []  # numbers of rows, sums of trust, and of right rows
    for item in bins:
        share = item["share_right"]
        now = [share["n"], share["n"] * item["mean_trust"], share["n"] * share["value"]]
        if found and found[-1][0] < LEAST_ROWS:
            now = [a + b for a, b in zip(found.pop(), now, strict=True)]
        found.append(now)
    if len(found) > 1 and found[-1][0] < LEAST_ROWS:
        last = found.pop()
        found.append([a + b for a, b in zip(found.pop(), last, strict=True)])
    return [
        {"mean_trust": trust / n, "share_right": compute_proportion(round(right), int(n)).to_json()}
        for n, trust, right in found
    ]


@as_chart("trust", "rows")
def draw_histogram_chart(axes: "Axes", histogram: JsonView) -> None:
    """Draw the number of rows by trust, with right and wrong labels stacked."""
    from matplotlib.ticker import MaxNLocator

    edges, right, wrong = histogram["edges"], histogram["right"], histogram["wrong"]
    style: Json = {"width": [high - low for low, high in itertools.pairwise(edges)], "align": "edge"}
    style |= {"edgecolor": "white", "linewidth": 0.5}
    axes.bar(edges[:-1], right, color=_RIGHT, label="right", **style)
    axes.bar(edges[:-1], wrong, bottom=right, color=_WRONG, hatch="///", label="wrong", **style)
    axes.set_xlim(edges[0], edges[-1])
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))  # at whole numbers only, so that none is rounded
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


@as_chart("difficulty", "share of the rows")
def draw_difficulty_chart(axes: "Axes", difficulty: JsonView) -> None:
    """Draw the share of rows by difficulty: the pool as an area, each arm as a stepped line."""
    edges = difficulty["edges"]
    axes.stairs(difficulty["pool"]["shares"], edges, fill=True, color="#dddddd", label="pool")
    for index, (arm, profile) in enumerate(difficulty["arms"].items()):
        axes.stairs(profile["shares"], edges, linewidth=1.5, **get_arm_style(arm, index))
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(bottom=0)
    set_percent_ticks(axes.yaxis)


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


@as_chart("difficulty", "")
def draw_bins_chart(
    axes: "Axes",
    edges: Sequence[float],
    lines: Mapping[str, Sequence[JsonView | None]],
    *,
    y: str,
    behind: Mapping[str, Sequence[JsonView | None]] | None = None,
) -> None:
    """Draw shares by bin, one line with markers per item, with 95 % intervals (of many items, only the method's).

    The first item of ``behind`` is drawn as an area, the others as stepped lines without intervals.
    """
    for index, (label, shares) in enumerate((behind or {}).items()):
        values = [math.nan if share is None else share["value"] for share in shares]
        stepped: Json = {"color": GREY, "linestyle": (0, (1, 1)), "linewidth": 1.2}
        axes.stairs(values, edges, label=label, **(stepped if index else {"fill": True, "color": "#dddddd"}))
    width = edges[1] - edges[0]
    for index, (line, shares) in enumerate(lines.items()):
        # Side by side within their bin, so that no interval hides another.
        offset = width / 2 + 0.7 * width * ((index + 0.5) / len(lines) - 0.5)
        points = [(edges[at] + offset, share) for at, share in enumerate(shares) if share is not None]
        has_bars = len(lines) <= MOST_BARS or line == REFERENCE_ARM
        style: Json = {"marker": "os^Dv"[index % 5], "markersize": 4, "linewidth": 1, "elinewidth": 0.8}
        draw_estimates(axes, points, has_bars=has_bars, **get_arm_style(line, index), **style)
    axes.set_xticks(edges, [f"{edge:,.10g}" for edge in edges])
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1), ylabel=y)
    set_percent_ticks(axes.yaxis)


def draw_training_figure(trained: Mapping[str, JsonView]) -> "Figure":
    """Return a figure with a panel for each measure, in it a line for each arm by training step."""

    def has_variation(key: str) -> bool:
        """Return whether an arm has at least two points of a measure that are not all 0."""
        known = [[y for y in found["curves"].get(key) or () if y is not None] for found in trained.values()]
        return any(len(values) > 1 and any(values) for values in known)

    shown = list(filter(has_variation, MEASURES))
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


def draw_training_chart(name: str, trained: Mapping[str, JsonView]) -> str:
    """Return the figure of :func:`draw_training_figure` as SVG."""
    return render_svg(draw_training_figure(trained), name)


def draw_chain_chart(name: str, chain: JsonView) -> str:
    """Return the chart of accuracy by generation with 95 % intervals, and the first teacher's accuracy as a level."""
    with open_figure(7.6, 4.2) as figure:
        axes = figure.subplots()
        lines, num = chain["lines"], len(chain["bases"])
        for index, line in enumerate(lines):
            known = [(at, point) for at, point in enumerate(line["accuracy"]) if point is not None]
            if line["kind"] == "first_teacher":
                known = known[1:] if len(known) > 1 else known
            offset = SPREAD * (index - (len(lines) - 1) / 2)
            points = [(at + offset, point) for at, point in known]
            style = {**get_arm_style(line["arm"], index), "label": line["words"], "marker": "s"}
            style |= {"elinewidth": 0.9, "markersize": 5, **_STYLES.get(line["kind"], {})}
            draw_estimates(axes, points, **style)
        if chain["first_teacher"] is not None:
            level = chain["first_teacher"]["value"]
            axes.axhline(level, color="#000000", linewidth=0.9, linestyle=(0, (1, 2)), label="first teacher")
        axes.set_xticks(range(num), [f"{at}: {base or ''}" for at, base in enumerate(chain["bases"])])
        set_percent_ticks(axes.yaxis)
        axes.set(xlim=(-0.5, num - 0.5), xlabel="generation: the students' base", ylabel="test accuracy")
        if lines or chain["first_teacher"] is not None:
            figure.legend(loc="outside upper left", ncols=2, columnspacing=1.4)
    return render_svg(figure, name)
