"""Tooltips: texts that a browser shows when the pointer rests on a point or a bar of a figure.

A text is an SVG ``<title>``, so a page needs no script and no network for it, and print shows the figure alone.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from curation.json_types import Json, JsonView
from curation.report.headline import with_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer

RADIUS = 5
"""Radius of the circle in which the text of a point appears, in points (1/72 inch)."""
_MARK, _BETWEEN = "pointed:", "|"
_POINTS = re.compile(rf'<g id="{_MARK}([^"]*)">(.*?)</g>\s*</g>', re.DOTALL)
_BAR = re.compile(rf'<g id="{_MARK}([^"]*)">(?=\s*<path)')
_PLACE = re.compile(r'<use [^>]*?\bx="([^"]+)" y="([^"]+)"')


def annotate_points(axes: "Axes", points: Iterable[tuple[float, float, str]]) -> None:
    """Give each point of a plot, as x and y in its units, a text; points that are not finite are left out."""
    shown = [(x, y, text) for x, y, text in points if math.isfinite(x) and math.isfinite(y)]
    if not shown:
        return
    x, y, texts = zip(*shown, strict=True)
    style: Json = {"marker": "o", "markersize": 2 * RADIUS, "linestyle": "", "alpha": 0.01, "zorder": 10}
    axes.plot(x, y, scalex=False, scaley=False, gid=_make_id(texts), **style)


def annotate_shares(axes: "Axes", points_of: Iterable[tuple[float, JsonView, str]]) -> None:
    """Give points of a plot a text, from x, a share with its interval, and words that describe it."""
    annotate_points(
        axes,
        ((x, share["value"], f"{words}: {with_interval(share)}") for x, share, words in points_of),
    )


def annotate_bars(drawn: "BarContainer", texts: Sequence[str]) -> None:
    """Give each bar a text."""
    for bar, text in zip(drawn.patches, texts, strict=True):
        bar.set_gid(_make_id([text]))


def add_titles(svg: str) -> str:
    """Return a figure's SVG, as matplotlib writes it, with the texts of its points and bars as titles."""
    return _POINTS.sub(_as_circles, _BAR.sub(r'<g class="pointed"><title>\1</title>', svg))


def _make_id(texts: Sequence[str]) -> str:
    """Return the texts as an artist's id, which matplotlib escapes and writes into the SVG."""
    return _MARK + _BETWEEN.join(text.replace(_BETWEEN, "/").replace('"', "'") for text in texts)


def _as_circles(found: re.Match[str]) -> str:
    circle = f'<circle class="pointed" r="{RADIUS}" cx="%s" cy="%s"><title>%s</title></circle>'
    places = zip(_PLACE.findall(found[2]), found[1].split(_BETWEEN), strict=True)
    return "\n".join(circle % (*place, text) for place, text in places)
