"""The pages of a report and of a search: self-contained HTML files, with the same numbers as JSON beside them."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

import yaml
from jinja2 import ChoiceLoader, PackageLoader, Template
from markupsafe import Markup

from curation.escaping import escape_text
from curation.features import features
from curation.json_types import Json, JsonView
from curation.registry import load_code
from curation.report import charts
from curation.report.costs import describe_amount
from curation.report.headline import FILTERS, describe_name, format_duration, make_environment, render_sentences
from curation.report.rules import RULES
from curation.storage.paths import Place, to_place, write_atomically
from curation.telemetry.standing import format_speed

_HERE = "curation.report"
NUM_PRINTED = 10
"""Number of trials of the leaderboard that are printed."""


def write(report: JsonView, directory: Place) -> tuple[Place, Place]:
    """Write ``report.html`` and ``report.json`` to a directory, each atomically; return their paths."""
    return _write(render(report), "report", report, directory)


def write_page(template: str, name: str, content: JsonView, directory: Place) -> tuple[Place, Place]:
    """Write ``<name>.html`` and ``<name>.json`` to a directory, each atomically; return their paths.

    The Jinja ``template``, as ``package:file``, gets ``content``, which is also the JSON.
    """
    return _write(_find_template(template).render(content=content), name, content, directory)


def _write(text: str, name: str, content: JsonView, directory: Place) -> tuple[Place, Place]:
    page, numbers = directory / f"{name}.html", directory / f"{name}.json"
    write_atomically(page, escape_text(text, page=True))
    write_atomically(numbers, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return page, numbers


def render(report: JsonView) -> str:
    """Return the page as text, without external resources and deterministic for a report and a time zone."""
    figures = []
    for generation in report["generations"]:
        prefix, drawn = f"g{generation['index']}", dict[str, str]()
        chance = None if generation["evidence"] is None else generation["evidence"]["chance"]
        if (found := generation["risk_curves"]) is not None:
            drawn["risk_curves"] = charts.draw_risk_chart(f"{prefix}-risk_curves", found)
        if (found := generation["purity_curves"]) is not None:
            drawn["purity_curves"] = charts.draw_purity_chart(f"{prefix}-purity_curves", found, chance=chance)
        for where, bins in generation["reliability"].items():
            name = f"reliability_{where}"
            drawn[name] = charts.draw_reliability_chart(f"{prefix}-{name}", bins, chance=chance)
        if any(len(arm["curves"]["loss"]) > 1 for arm in generation["training"].values()):
            figure = charts.draw_training_figure(generation["training"])
            drawn["training"] = charts.render_svg(figure, f"{prefix}-training")
        figures.append({name: Markup(svg) for name, svg in drawn.items()})  # our own SVG, without user text
    return _find_template(f"{_HERE}:report.html.j2").render(
        report=report,
        rules=RULES,
        figures=figures,
        parts=[_render_parts(generation) for generation in report["generations"]],
    )


def describe_point(kind: str, drawn: Mapping[str, object]) -> str:
    """Return the settings of a trial on one line."""
    return ", ".join(f"{key} {format_drawn_value(value)}" for key, value in {"kind": kind, **drawn}.items())


def format_drawn_value(value: object) -> str:
    """Return a setting's value, in few characters."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


_PAGES = make_environment(_HERE, autoescape=True)
_PAGES.filters.update(
    **FILTERS,
    duration=format_duration,
    speed=format_speed,
    local=lambda moment: f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M:%S %Z}",
    arm=lambda arm: describe_name(arm["name"]),
    short=format_drawn_value,
    amount=lambda value, name: describe_amount(name, value),
    yaml=lambda value: yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False, allow_unicode=True),
)


@cache
def _find_template(path: str) -> Template:
    """Return a template, given as ``package:file``, which may include those of this package."""
    package, _, file = path.partition(":")
    loader = ChoiceLoader([PackageLoader(package, "."), PackageLoader(_HERE, ".")])
    return _PAGES.overlay(loader=loader).get_template(file)


def _render_parts(generation: JsonView) -> list[Json]:
    """Return ``name``, ``title`` and ``html`` of each part that a feature adds to the page."""
    parts: list[Json] = []
    for name, found in generation["features"].items():
        feature = features()[name]
        if feature.page is None:
            continue
        prefix = f"g{generation['index']}-{name}"
        figures = {} if feature.figures is None else load_code(feature.figures)(found, prefix)
        drawn = {key: Markup(svg) for key, svg in figures.items()}
        page = _find_template(feature.page).render(found=found, figures=drawn)
        parts.append({"name": name, "title": feature.title or name, "html": Markup(page)})
    return parts


def collect_search(found: JsonView, tune: JsonView, **facts: Any) -> Json:
    """Return the content of a search's page, from the outputs of the search stage and the section ``tune``.

    ``facts`` are ``name``, ``seed``, ``config_path``, ``command``, ``versions``, and ``seconds`` by stage.
    """
    directory, fits = to_place(found["directory"]), list[list[Json]]()
    for folder in (directory / "trials", directory / "finals"):
        files = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=str)
        fits.append([json.loads(file.read_text()) for file in files])
    trials, finals = fits
    done = [trial for trial in trials if trial["outcome"] is not None]
    ranked = sorted(done, key=lambda trial: (-trial["outcome"]["value"], trial["number"]))
    board = [*ranked, *(trial for trial in trials if trial["outcome"] is None)]
    values = [None if trial["outcome"] is None else trial["outcome"]["value"] for trial in finals]
    num, names = tune["folds"] * tune["seeds"], ["default", *map(str, found["finalists"])]
    keys = dict.fromkeys(key for trial in ranked for key in trial["drawn"])
    lines = [f"{'trial':>6}  {'AUC':>9}  {'seconds':>7}  settings"]
    for trial in board[:NUM_PRINTED]:
        value, seconds = "failed", ""
        if (outcome := trial["outcome"]) is not None:
            value, seconds = f"{outcome['value']:.4f}", f"{outcome['seconds']:.1f}"
        lines.append(f"{trial['number']:>6}  {value:>9}  {seconds:>7}  {describe_point(trial['kind'], trial['drawn'])}")
    return {
        **facts,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "tune": dict(tune),
        **{name: found[name] for name in ("num_rows", "choice", "kind", "best", "fit")},
        "trials": board,
        "dimensions": [key for key in keys if len({json.dumps(trial["drawn"].get(key)) for trial in ranked}) > 1],
        "finals": {name: values[k * num : (k + 1) * num] for k, name in enumerate(names)},
        "best_path": str(directory / "best.yaml"),
        "fit_seconds": sum(trial["outcome"]["seconds"] for trial in [*ranked, *finals] if trial["outcome"] is not None),
        "lines": [*lines, *render_sentences("choice", found["choice"])],
    }
