"""The page of a search for a trust function: its trials, the importance of its settings, and its choice."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

import numpy as np

from curation.config.tune import LARGER_IS_BETTER
from curation.json_types import Json, JsonView
from curation.report.frame import (
    annotate_bars,
    annotate_points,
    finish_chart,
    make_figure,
    make_report_figure,
    render_svg,
    use_chart_style,
)
from curation.storage.paths import Place, to_place

NUM_TOLD = 10
"""Number of trials of the leaderboard that are printed."""
LEAST_TRIALS = 10
"""Minimum number of trials for an estimate of settings' importance."""
REPEATS = 20
"""Number of permutations of a setting."""


@dataclass(frozen=True, kw_only=True)
class SearchRecord:
    """A search that has ended."""

    name: str
    seed: int
    config_path: str | None
    command: str | None
    tune: JsonView
    """Section ``tune`` of the configuration."""
    versions: Mapping[str, str]
    seconds: Mapping[str, float]
    """Duration of each stage, in seconds."""
    found: JsonView
    """Outputs of the search stage."""


def collect_search(record: SearchRecord) -> Json:
    """Return the page's content as JSON."""
    found = record.found
    directory, metric = to_place(found["directory"]), found["metric"]
    trials = _read(directory / "trials")
    sign = -1 if LARGER_IS_BETTER[metric] else 1
    ranked = sorted(
        (trial for trial in trials if trial["outcome"] is not None),
        key=lambda trial: (sign * trial["outcome"]["value"], trial["number"]),
    )
    board = [*ranked, *(trial for trial in trials if trial["outcome"] is None)]
    finals = _read(directory / "finals")
    values = [None if trial["outcome"] is None else trial["outcome"]["value"] for trial in finals]
    num = record.tune["folds"] * record.tune["seeds"]
    names = ["default", *map(str, found["finalists"])]
    return {
        "name": record.name,
        "seed": record.seed,
        "config_path": record.config_path,
        "command": record.command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": dict(record.versions),
        "tune": dict(record.tune),
        "seconds": dict(record.seconds),
        "metric": metric,
        "num_rows": found["num_rows"],
        "trials": board,
        "dimensions": _list_dimensions(ranked),
        "importance": compute_importance(ranked),
        "finals": {name: values[k * num : (k + 1) * num] for k, name in enumerate(names)},
        "choice": found["choice"],
        "kind": found["kind"],
        "best": found["best"],
        "best_path": str(directory / "best.yaml"),
        "fit": found["fit"],
        "fit_seconds": sum(trial["outcome"]["seconds"] for trial in [*ranked, *finals] if trial["outcome"] is not None),
        "lines": [*format_board(board[:NUM_TOLD], metric), describe_choice(found["choice"], metric)],
    }


def format_board(trials: Sequence[Json], metric: str) -> list[str]:
    """Return a leaderboard as lines of text."""
    lines = [f"{'trial':>6}  {metric:>9}  {'seconds':>7}  settings"]
    for trial in trials:
        outcome = trial["outcome"]
        value, seconds = ("failed", "")
        if outcome is not None:
            value, seconds = f"{outcome['value']:.4f}", f"{outcome['seconds']:.1f}"
        lines.append(f"{trial['number']:>6}  {value:>9}  {seconds:>7}  {describe_point(trial['kind'], trial['drawn'])}")
    return lines


def describe_point(kind: str, drawn: Mapping[str, object]) -> str:
    """Return the settings of a trial on one line."""
    values = {"kind": kind, **drawn}
    return ", ".join(f"{key} {format_drawn_value(value)}" for key, value in values.items())


def format_drawn_value(value: object) -> str:
    """Return a setting's value, in few characters."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def describe_choice(choice: JsonView, metric: str) -> str:
    """Return the choice and its reason, in a sentence."""
    differences = choice["differences"]
    best = choice["winner"] or max(differences, key=lambda name: differences[name]["value"])
    found = differences[best]
    interval = f"{found['value']:+.4f} ({found['low']:+.4f} to {found['high']:+.4f})"
    interval = f"{interval} over {found['num_pairs']} pairs of fits, positive is better"
    optimism = f"the best trial's {metric} in the search was {choice['optimism']:+.4f} better than in these fits"
    if choice["winner"] is None:
        stays = "the default stays, no finalist is shown to be better"
        return f"{stays}: the nearest, trial {best}, {interval}; {optimism}"
    return f"trial {best} replaces the default: {metric} {interval}; {optimism}"


def compute_importance(trials: Sequence[JsonView]) -> Json | None:
    """Return how much of the metric each setting explains; ``None`` with too few trials or fewer than two settings.

    A random forest learns the metric from the settings. A setting's importance is the fall of the forest's R2 when the
    values of the setting are permuted over the trials (Breiman, "Random Forests", 2001), averaged over ``REPEATS``
    permutations. ``r2`` is the forest's out-of-bag R2; near or below 0, the importances mean nothing.
    """
    keys = _list_dimensions(trials)
    if len(trials) < LEAST_TRIALS or len(keys) < 2:
        return None
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance

    columns = np.stack([_encode_values([trial["drawn"].get(key) for trial in trials]) for key in keys], axis=1)
    value_T = np.array([trial["outcome"]["value"] for trial in trials])
    forest = RandomForestRegressor(300, oob_score=True, min_samples_leaf=2, random_state=0).fit(columns, value_T)
    found = permutation_importance(forest, columns, value_T, scoring="r2", n_repeats=REPEATS, random_state=0)
    by_key = {key: float(value) for key, value in zip(keys, found.importances_mean, strict=True)}
    r2 = float(forest.oob_score_)
    return {"r2": r2 if math.isfinite(r2) else None, "of": dict(sorted(by_key.items(), key=lambda item: -item[1]))}


def _encode_values(values: Sequence[Any]) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return numbers unchanged (a tree needs no logarithms), other values by their order, and -1 for missing ones."""
    if all(value is None or isinstance(value, int | float) for value in values):
        return np.array([-1.0 if value is None else float(value) for value in values])
    order = sorted({json.dumps(value) for value in values if value is not None})
    return np.array([-1.0 if value is None else float(order.index(json.dumps(value))) for value in values])


def _list_dimensions(trials: Sequence[JsonView]) -> list[str]:
    """Return the settings that differ between trials, in the order of the search space."""
    keys = dict.fromkeys(key for trial in trials for key in trial["drawn"])
    return [key for key in keys if len({json.dumps(trial["drawn"].get(key)) for trial in trials}) > 1]


def _read(directory: Place) -> list[Json]:
    """Return the recorded fits of a folder, by number."""
    paths = sorted((path for path in directory.iterdir() if path.name.endswith(".json")), key=lambda path: path.name)
    return [json.loads(path.read_text()) for path in paths]


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
        texts = [f"trial {number}: {metric} {value:.4g}" for number, value in zip(numbers, values, strict=True)]
        annotate_points(axes, zip(numbers, values, texts, strict=True))
        axes.step(numbers, list(accumulate(values, better)), where="post", color=_BLUE, label="best until then")
        return finish_chart(figure, axes, "search-course", x="trial", y=f"{metric} on the held-out fold")


def draw_curves_chart(trials: Sequence[JsonView]) -> str:
    """Draw the validation AUC of the best networks by optimizer step."""
    with use_chart_style():
        figure, axes = make_report_figure()
        best: Json = {"color": _BLUE, "linewidth": 1.8, "zorder": 3, "label": f"trial {trials[0]['number']}"}
        for index, trial in enumerate(trials):
            label = "the next ones" if index == 1 else None
            style = {"color": _GREY, "linewidth": 1.0, "zorder": 2, "label": label} if index else best
            fit = trial["outcome"]["fit"]
            axes.plot(fit["steps"], fit["validation_aucs"], **style)
        return finish_chart(figure, axes, "search-curves", x="optimizer steps", y="AUC on validation rows")


def draw_importance_chart(of: Mapping[str, float]) -> str:
    """Draw the fall of R2 when a setting is permuted, by setting."""
    with use_chart_style():
        figure, axes = make_report_figure()
        names = list(of)[::-1]
        bars = axes.barh(names, [of[name] for name in names], color=_BLUE, label="fall of R2")
        annotate_bars(bars, [f"{name}: {of[name]:.3f}" for name in names])
        return finish_chart(figure, axes, "search-importance", x="fall of R2 when the setting is permuted", y="")


def draw_finals_chart(search: JsonView) -> str:
    """Draw each finalist's difference to the default, with intervals that hold for all finalists at once."""
    with use_chart_style():
        figure, axes = make_report_figure()
        differences, winner = search["choice"]["differences"], search["choice"]["winner"]
        for place, (name, found) in enumerate(reversed(list(differences.items()))):
            bars = [[found["value"] - found["low"]], [found["high"] - found["value"]]]
            colour = _BLUE if name == winner else "#444444"
            axes.errorbar([found["value"]], [place], xerr=bars, fmt="o", color=colour, capsize=3)
            text = f"trial {name}: {found['value']:+.4f} [{found['low']:+.4f}, {found['high']:+.4f}]"
            annotate_points(axes, [(found["value"], place, text)])
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
                beside: Json = {"xytext": (3, 0), "textcoords": "offset points", "va": "center", "bbox": _BEHIND}
                axes.annotate(text, (place, height_of), **beside, fontsize=7, zorder=4)
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
