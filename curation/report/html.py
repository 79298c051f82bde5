"""The report's page: one self-contained HTML file, with the same numbers as JSON beside it."""

import json
from collections.abc import Callable
from datetime import datetime
from functools import cache

import yaml
from jinja2 import ChoiceLoader, PackageLoader, Template
from markupsafe import Markup

from curation.escaping import escape_text
from curation.features import features
from curation.json_types import Json, JsonView
from curation.registry import load_code
from curation.report import charts
from curation.report.costs import describe_amount
from curation.report.headline import FILTERS, describe_name, format_duration, make_environment
from curation.report.searched import draw_course, draw_finals, format_drawn_value
from curation.report.verdict import RULES
from curation.storage.paths import Place, write_atomically
from curation.telemetry.standing import format_speed

_HERE = "curation.report"


def write(report: JsonView, directory: Place) -> tuple[Place, Place]:
    """Write ``report.html`` and ``report.json`` to a directory, each atomically; return their paths."""
    return _write(render(report), "report", report, directory)


def write_search(search: JsonView, directory: Place) -> tuple[Place, Place]:
    """Write ``search.html`` and ``search.json`` to a directory, each atomically; return their paths."""
    course = draw_course("search-course", search["trials"], search["metric"])
    finals = draw_finals("search-finals", search["choice"], search["metric"])
    figures = {"course": Markup(course), "finals": Markup(finals)}
    return write_page(f"{_HERE}:search.html.j2", "search", search, directory, figures=figures)


def write_page(template: str, name: str, content: JsonView, directory: Place, **further: object) -> tuple[Place, Place]:
    """Write ``<name>.html`` and ``<name>.json`` to a directory, each atomically; return their paths.

    The Jinja ``template``, as ``package:file``, gets ``content``, which is also the JSON, and ``further`` names.
    """
    return _write(_find_template(template).render(content=content, **further), name, content, directory)


def _write(text: str, name: str, content: JsonView, directory: Place) -> tuple[Place, Place]:
    page, numbers = directory / f"{name}.html", directory / f"{name}.json"
    write_atomically(page, escape_text(text, page=True))
    write_atomically(numbers, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return page, numbers


def render(report: JsonView) -> str:
    """Return the page as text, without external resources and deterministic for a report and a time zone."""
    figures = [_draw_figures(generation) for generation in report["generations"]]
    return _find_template(f"{_HERE}:report.html.j2").render(
        report=report,
        rules=RULES,
        figures=figures,
        parts=[_render_parts(generation) for generation in report["generations"]],
        compounding=Markup(charts.draw_chain_chart("chain", report["chain"])) if report["chain"] is not None else "",
    )


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


def _draw_figures(generation: JsonView) -> dict[str, Markup]:
    """Return the SVG of each figure that the generation has numbers for."""
    chance = None if generation["evidence"] is None else generation["evidence"]["chance"]
    drawn: dict[str, Markup] = {}

    def add(name: str, draw: Callable[..., str], *args: object, **kwargs: object) -> None:
        drawn[name] = Markup(draw(f"g{generation['index']}-{name}", *args, **kwargs))  # our own SVG, without user text

    for name, draw, kwargs in (
        ("purity_curves", charts.draw_purity_chart, {"chance": chance}),
        ("difficulty", charts.draw_difficulty_chart, {}),
        ("risk_curves", charts.draw_risk_chart, {}),
    ):
        if generation[name] is not None:
            add(name, draw, generation[name], **kwargs)
    for where, bins in generation["reliability"].items():
        add(f"reliability_{where}", charts.draw_reliability_chart, bins, chance=chance)
        add(f"histogram_{where}", charts.draw_histogram_chart, generation["histogram"][where])
    if (found := generation["purity_by_difficulty"]) is not None:
        behind = {"all pool rows": found["all"]}
        if found["parsed"] != found["all"]:
            behind["parsed pool rows"] = found["parsed"]
        of_arms = found["edges"], found["arms"]
        add("purity_by_difficulty", charts.draw_bins_chart, *of_arms, y="share of right labels", behind=behind)
    if (found := generation["accuracy_by_difficulty"]) is not None:
        add("accuracy_by_difficulty", charts.draw_bins_chart, found["edges"], found["models"], y="test accuracy")
    if any(len(arm["curves"]["loss"]) > 1 for arm in generation["training"].values()):
        add("training", charts.draw_training_chart, generation["training"])
    return drawn
