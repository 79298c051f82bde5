"""Writes ``docs/reference/configuration.md``: every key, from the pydantic models. Run it as ``python docs/keys.py``.

Types, ranges and defaults are those of the models' JSON schema; the words are the docstrings under their fields.
"""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from curation.config import RunConfig
from curation.config.ablation import AblationConfig
from curation.config.base import PresetSection, Section
from curation.config.filter import FilterConfig
from curation.config.models import StudentConfig
from curation.registry import METHODS, load_code

PAGE = Path(__file__).resolve().parent / "reference" / "configuration.md"
ROOTS = {
    RunConfig: (
        "A run",
        "The file that `curate run`, `plan`, `validate`, `tune`, `status`, `report` and `analyze` take.",
        "",
    ),
    FilterConfig: ("A filter", "The file that `curate filter` and `curate plan` take.", " of a filter"),
    AblationConfig: ("An ablation", "The file that `curate ablate` takes.", " of an ablation"),
}
NO_BOUND = 2**32
"""Bounds from here on are those of the machine's integers."""
INTRO = f"""\
# Every configuration key

<!-- written by docs/{Path(__file__).name} -->

Sections are YAML mappings. An unknown key is an error that names the nearest known one.
[Configuration](../configuration.md) shows a whole file and says how files build on each other. Where the table says
*see presets*, the section's `preset` gives the value; what the file itself sets always wins. The domain changes some
defaults of `teacher`, `evaluation` and `trust`: `curate validate CONFIG` prints what a file comes to.
"""

Places = dict[type[BaseModel], tuple[str, list[str]]]
"""By section: its heading, and all the places where it may stand."""


def children(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """The sections that stand under a section, with their keys: ``probes.NAME``, ``generations[]``."""
    for name, field in model.model_fields.items():
        key = field.alias or name
        for suffix, found in _sections(field.annotation):
            if found is StudentConfig:
                yield from ((f"{key}{suffix} {method}", load_code(METHODS[method].config)) for method in METHODS)
            else:
                yield key + suffix, found


def _sections(annotation: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield "", annotation
        return
    origin = getattr(annotation, "__origin__", None)
    mark = {dict: ".NAME", tuple: "[]", list: "[]"}.get(origin, "") if isinstance(origin, type) else ""
    for part in get_args(annotation):
        for suffix, found in _sections(part):
            yield mark + suffix, found


def placed(root: type[BaseModel], of: str, known: Places) -> Places:
    """The sections of a file that no earlier file has, ordered by the root's keys; the highest place names each."""
    found: Places = {}
    paths: dict[type[BaseModel], str] = {}
    level = [("", root)]
    while level:
        below = [(f"{path}.{key}" if path else key, child) for path, model in level for key, child in children(model)]
        level = []
        for place, child in below:
            path, _, method = place.partition(" ")
            if child in known or child in found:
                (known if child in known else found)[child][1].append(f"`{path}`{of}")
                continue
            found[child] = (f"`{path}`, `method: {method}`" if method else f"`{path}`{of}", [])
            paths[child] = path
            level.append((path, child))
    tops = [field.alias or name for name, field in root.model_fields.items()]
    order = sorted(found, key=lambda model: tops.index(re.split(r"[.[]", paths[model])[0]))
    return {model: found[model] for model in order}


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings under the fields of a section, its own and those that it has from others."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not issubclass(base, Section) or base is RunConfig:  # which is made of CoreConfig and features' sections
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for field, text in zip(definition.body, [*definition.body[1:], None], strict=True):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[field.target.id] = markdown(str(text.value.value))
    return found


def of_section(field: FieldInfo) -> str:
    """What a section is, where its field says nothing more."""
    for _, found in _sections(field.annotation):
        return markdown(inspect.cleandoc(found.__doc__ or "").partition("\n\n")[0])
    return ""


def markdown(text: str) -> str:
    """A docstring as Markdown of one line: single backticks, links to pages."""
    text = re.sub(r":\w+:`~?([^`]+)`|``([^`]+)``", lambda found: f"`{found[1] or found[2]}`", " ".join(text.split()))
    return re.sub(r"\bdocs/(\w+)\.md", r"[\1](../\1.md)", text)


def kind(schema: Mapping[str, Any], links: Mapping[str, str]) -> str:
    """The type of a value in words."""
    if "$ref" in schema:
        return links[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(kind(part, links) for part in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{json.dumps(value).strip(chr(34))}`" for value in schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "null":
            return "`null`"
        case "array":
            if "prefixItems" in schema:
                return f"list of {len(schema['prefixItems'])} {kind(schema['prefixItems'][0], links)}s"
            return f"list of {kind(schema.get('items', {}), links)}"
        case "object":
            of = schema.get("additionalProperties", True)
            (of,) = schema.get("patternProperties", {"": of}).values()
            return f"mapping of names to {kind({} if of is True else of, links)}"
        case None:
            return "any value"
        case name:
            return f"{name}{_bounds(schema)}"


def _bounds(schema: Mapping[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    found = [f"{sign} {schema[key]:g}" for key, sign in signs.items() if key in schema and schema[key] < NO_BOUND]
    return f" {', '.join(found)}" if found else ""


def default(model: type[BaseModel], name: str) -> str:
    """The default of a field: ``required``, a value, or what else decides."""
    value = model.model_fields[name].default
    if value is PydanticUndefined:
        return "**required**"
    if isinstance(value, BaseModel):
        given = value.model_dump(mode="json", exclude_defaults=True)
        return f"`{_value(given)}`" if given else "its defaults"
    if issubclass(model, PresetSection) and any(name in preset for preset in model.presets().values()):
        return f"`{_value(value)}`, see presets"
    return f"`{_value(value)}`"


def _value(value: Any) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True)
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value


def section(model: type[BaseModel], links: Mapping[str, str]) -> list[str]:
    """A section's docstring, its keys as a table, and its presets."""
    paragraphs = inspect.cleandoc(model.__doc__ or "").split("\n\n")
    properties, words = model.model_json_schema()["properties"], meanings(model)
    lines = [
        *(f"{markdown(text)}\n" for text in paragraphs),
        "| key | type | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for name, field in model.model_fields.items():
        key = field.alias or name
        cells = (f"`{key}`", kind(properties[key], links), default(model, name), words.get(name) or of_section(field))
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    presets = model.presets() if issubclass(model, PresetSection) else {}
    if any(presets.values()):
        lines += [
            "",
            f"| preset | {' | '.join(f'`{name}`' for name in presets)} |",
            "| --- |" + " --- |" * len(presets),
        ]
        for key in dict.fromkeys(key for preset in presets.values() for key in preset):
            usual = model.model_fields[key].default
            values = [f"`{_value(preset.get(key, usual))}`" for preset in presets.values()]
            lines.append(f"| `{key}` | {' | '.join(values)} |")
    return [*lines, ""]


def draw() -> str:
    """The page; equal models give equal text."""
    places: Places = {}
    by_root = {}
    for root, (_, _, of) in ROOTS.items():
        by_root[root] = placed(root, of, places)
        places |= by_root[root]
    links = {model.__name__: f"[section](#{slug(heading)})" for model, (heading, _) in places.items()}
    methods = {method: links[load_code(METHODS[method].config).__name__] for method in METHODS}
    links["StudentConfig"] = " or ".join(f"{link} with `method: {method}`" for method, link in methods.items())
    parts = [INTRO]
    for root, (title, words, _) in ROOTS.items():
        parts += [f"## {title}\n", f"{words}\n", *section(root, links)[1:]]
        for model, (heading, also) in by_root[root].items():
            parts.append(f"### {heading}\n")
            parts += [f"Also {', '.join(dict.fromkeys(also))}.\n"] if also else []
            parts += section(model, links)
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(draw())
    print(PAGE)
