"""The page of a search for a trust function: its trials, the importance of its settings, and its choice."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from curation.config.tune import LARGER_IS_BETTER
from curation.json_types import Json, JsonView
from curation.report.frame import GREY, chart
from curation.storage.paths import Place, to_place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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


_BLUE, _GREY, _ORANGE = "#0072b2", "#b8b8b8", "#d55e00"


def draw_search_figures(search: JsonView) -> dict[str, str]:
    """Return the SVG of each figure that the search has numbers for, by name."""
    trials = [trial for trial in search["trials"] if trial["outcome"] is not None]
    found = {"course": _draw_course("search-course", trials, search["metric"])}
    found["finals"] = _draw_finals("search-finals", search)
    if search["importance"] is not None:
        found["importance"] = _draw_importance("search-importance", search["importance"]["of"])
    return found


@chart("trial", "")
def _draw_course(axes: "Axes", trials: Sequence[JsonView], metric: str) -> None:
    """Draw the metric of every trial by the trial's number, and the best value so far."""
    by_number = sorted(trials, key=lambda trial: trial["number"])
    better = max if trials[0]["outcome"]["value"] >= by_number[0]["outcome"]["value"] else min
    numbers = [trial["number"] for trial in by_number]
    values = [trial["outcome"]["value"] for trial in by_number]
    axes.plot(numbers, values, "o", color=_GREY, markersize=3.5, label="trial")
    axes.step(numbers, list(accumulate(values, better)), where="post", color=_BLUE, label="best until then")
    axes.set_ylabel(f"{metric} on the held-out fold")


@chart("fall of R2 when the setting is permuted", "")
def _draw_importance(axes: "Axes", of: Mapping[str, float]) -> None:
    """Draw the fall of R2 when a setting is permuted, by setting."""
    names = list(of)[::-1]
    axes.barh(names, [of[name] for name in names], color=_BLUE, label="fall of R2")


@chart("", "")
def _draw_finals(axes: "Axes", search: JsonView) -> None:
    """Draw each finalist's difference to the default, with intervals that hold for all finalists at once."""
    differences, winner = search["choice"]["differences"], search["choice"]["winner"]
    for place, (name, found) in enumerate(reversed(list(differences.items()))):
        bars = [[found["value"] - found["low"]], [found["high"] - found["value"]]]
        colour = _BLUE if name == winner else GREY
        axes.errorbar([found["value"]], [place], xerr=bars, fmt="o", color=colour, capsize=3)
    axes.axvline(0, color=_ORANGE, linewidth=1.0, linestyle=(0, (4, 2)), label="the default")
    axes.set_yticks(range(len(differences)), [f"trial {name}" for name in reversed(list(differences))])
    axes.set(ylim=(-0.6, len(differences) - 0.4), xlabel=f"better than the default by ({search['metric']})")
