"""The page of a search for a trust function: its trials, the finalists' differences to the default, and its choice."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from curation.config.trust import LARGER_IS_BETTER
from curation.json_types import Json, JsonView
from curation.report.frame import GREY, as_chart
from curation.report.headline import say
from curation.storage.paths import Place, to_place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NUM_TOLD = 10
"""Number of trials of the leaderboard that are printed."""
_BLUE, _LIGHT, _ORANGE = "#0072b2", "#b8b8b8", "#d55e00"


def collect_search(found: JsonView, tune: JsonView, **facts: Any) -> Json:
    """Return the page's content as JSON, from the outputs of the search stage and the section ``tune``.

    ``facts`` are ``name``, ``seed``, ``config_path``, ``command``, ``versions``, and ``seconds`` by stage.
    """
    directory, metric = to_place(found["directory"]), found["metric"]
    trials, finals = _read(directory / "trials"), _read(directory / "finals")
    sign = -1 if LARGER_IS_BETTER[metric] else 1
    done = [trial for trial in trials if trial["outcome"] is not None]
    ranked = sorted(done, key=lambda trial: (sign * trial["outcome"]["value"], trial["number"]))
    board = [*ranked, *(trial for trial in trials if trial["outcome"] is None)]
    values = [None if trial["outcome"] is None else trial["outcome"]["value"] for trial in finals]
    num, names = tune["folds"] * tune["seeds"], ["default", *map(str, found["finalists"])]
    keys = dict.fromkeys(key for trial in ranked for key in trial["drawn"])
    return {
        **facts,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "tune": dict(tune),
        **{name: found[name] for name in ("metric", "num_rows", "choice", "kind", "best", "fit")},
        "trials": board,
        "dimensions": [key for key in keys if len({json.dumps(trial["drawn"].get(key)) for trial in ranked}) > 1],
        "finals": {name: values[k * num : (k + 1) * num] for k, name in enumerate(names)},
        "best_path": str(directory / "best.yaml"),
        "fit_seconds": sum(trial["outcome"]["seconds"] for trial in [*ranked, *finals] if trial["outcome"] is not None),
        "lines": [*format_board(board[:NUM_TOLD], metric), *say("choice", found["choice"], metric)],
    }


def format_board(trials: Sequence[Json], metric: str) -> list[str]:
    """Return a leaderboard as lines of text."""
    lines = [f"{'trial':>6}  {metric:>9}  {'seconds':>7}  settings"]
    for trial in trials:
        value, seconds = "failed", ""
        if (outcome := trial["outcome"]) is not None:
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


def _read(directory: Place) -> list[Json]:
    """Return the recorded fits of a folder, by number."""
    paths = sorted((path for path in directory.iterdir() if path.name.endswith(".json")), key=lambda path: path.name)
    return [json.loads(path.read_text()) for path in paths]


@as_chart("trial", "")
def draw_course(axes: "Axes", trials: Sequence[JsonView], metric: str) -> None:
    """Draw the metric of every trial by the trial's number, and the best value so far."""
    done = [trial for trial in trials if trial["outcome"] is not None]
    by_number = sorted(done, key=lambda trial: trial["number"])
    better = max if done[0]["outcome"]["value"] >= by_number[0]["outcome"]["value"] else min
    numbers = [trial["number"] for trial in by_number]
    values = [trial["outcome"]["value"] for trial in by_number]
    axes.plot(numbers, values, "o", color=_LIGHT, markersize=3.5, label="trial")
    axes.step(numbers, list(accumulate(values, better)), where="post", color=_BLUE, label="best until then")
    axes.set_ylabel(f"{metric} on the held-out fold")


@as_chart("", "")
def draw_finals(axes: "Axes", choice: JsonView, metric: str) -> None:
    """Draw each finalist's difference to the default, with intervals that hold for all finalists at once."""
    differences = list(choice["differences"].items())[::-1]
    for place, (name, found) in enumerate(differences):
        bars = [[found["value"] - found["low"]], [found["high"] - found["value"]]]
        colour = _BLUE if name == choice["winner"] else GREY
        axes.errorbar([found["value"]], [place], xerr=bars, fmt="o", color=colour, capsize=3)
    axes.axvline(0, color=_ORANGE, linewidth=1.0, linestyle=(0, (4, 2)), label="the default")
    axes.set_yticks(range(len(differences)), [f"trial {name}" for name, _ in differences])
    axes.set(ylim=(-0.6, len(differences) - 0.4), xlabel=f"better than the default by ({metric})")
