"""Prints what a command found: as JSON, by the text template beside the command's code, or as a table."""

import json
from functools import cache
from typing import TYPE_CHECKING

from curation.escaping import echo, escape_text
from curation.features import features
from curation.json_types import Json, JsonView
from curation.registry import load_code
from curation.telemetry.standing import format_speed

if TYPE_CHECKING:
    from jinja2 import Template


@cache
def _load_template(path: str) -> "Template":
    from jinja2 import Environment, PackageLoader, StrictUndefined  # `curate --help` does without

    package, _, file = path.partition(":")
    environment = Environment(
        loader=PackageLoader(package, "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: escape_text(str(value)),
    )
    environment.filters |= {"repr": repr, "size": format_size, "speed": format_speed}
    environment.filters["as"] = lambda value, form: "none" if value is None else format(value, form)
    return environment.get_template(file)


def render_text(template: str, facts: JsonView, **further: object) -> str:
    """Return facts as lines, by a template given as ``package:file``; control characters in values are escaped."""
    return _load_template(template).render(facts, **further).rstrip("\n")


def show(facts: JsonView, template: str, *, as_json: bool) -> None:
    """Print facts by a template (:func:`render_text`), or as JSON."""
    echo(json.dumps(facts, indent=1, default=str) if as_json else render_text(template, facts))


def format_size(num_bytes: int) -> str:
    """Return a number of bytes as text in binary units."""
    value = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "bytes" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def format_arms(content: Json) -> str:
    """Return one line each for teacher, base and the last generation's arms, in per cent with 95 % intervals."""
    lines = [f"{'':<26}{'rows':>8}  {'purity %':<24}{'test accuracy %':<24}{'recovery':>9}  {'p against GT':>13}"]
    for name in ("teacher", "base"):
        accuracy: Json = content.get(name) or {}
        if text := format_percent_interval(accuracy.get("test", accuracy)):
            lines.append(f"{name:<26}{'':>8}  {'':<24}{text}")
    for arm in content["arms"]:
        recovery, p_value = arm.get("recovery"), arm.get("p_value_vs_ground_truth")
        lines.append(
            f"{arm['name']:<26}{arm.get('num_selected') or '':>8}  {format_percent_interval(arm.get('purity')):<24}"
            f"{format_percent_interval(arm.get('accuracy')):<24}{'' if recovery is None else f'{recovery:.2f}':>9}  "
            f"{'' if p_value is None else f'{p_value:.3g}':>13}"
        )
    return "\n".join(lines)


def describe_verdict(content: Json) -> list[str]:
    """Return a run's verdict in a sentence, then findings and next steps; empty if no arm ranks by trust."""
    found = content.get("verdict")
    if found is None:
        return []
    lines = [f"{found['sign']} {found['sentence']}"]
    for item in found["findings"]:
        lines += [f"  - {item['finding']}", f"    next: {item['next']}"]
    return lines


def describe_features(content: Json) -> list[str]:
    """Return lines on the findings of each generation's features; features without lines are skipped."""
    lines = []
    for generation in content["generations"]:
        for name, found in generation["features"].items():
            if (by := features()[name].lines) is not None:
                lines += [f"generation {generation['index']}: {name}", *load_code(by)(found)]
    return lines


def format_percent_interval(value: Json | None) -> str:
    """Return an estimate in per cent with its interval, or an empty string if it is missing."""
    if value is None or value.get("value") is None:
        return ""
    return f"{100 * value['value']:.1f} ({100 * value['low']:.1f} to {100 * value['high']:.1f})"
