"""Prints the facts that a command found: as JSON, or by the text template beside the command's code."""

import json
from functools import cache
from typing import TYPE_CHECKING

from curation.escaping import echo, escape_text
from curation.json_types import JsonView
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
    environment.filters |= {"as": format_as, "repr": repr, "size": format_size, "speed": format_speed}
    return environment.get_template(file)


def render_text(template: str, facts: JsonView, **further: object) -> str:
    """Return facts as lines, by a template given as ``package:file``; acting characters in values are escaped."""
    return _load_template(template).render(facts, **further).rstrip("\n")


def show(facts: JsonView, template: str, *, as_json: bool) -> None:
    """Print facts by a template (:func:`render_text`), or as JSON."""
    echo(json.dumps(facts, indent=1, default=str) if as_json else render_text(template, facts))


def format_as(value: object, form: str) -> str:
    """Return a value by a format of Python, or ``none``."""
    return "none" if value is None else format(value, form)


def format_size(num_bytes: int) -> str:
    """Return a number of bytes as text in binary units."""
    value = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "bytes" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"
