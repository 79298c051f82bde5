"""Writes the pages of ``docs/reference`` that have every key, from the pydantic models: ``python docs/keys.py``.

Types, ranges and defaults are those of the models' JSON schema; the words are the docstrings under their fields.
``PARTS`` says which sections have a page of their own. All others are on the main page, which takes ``MOST_KEYS``.
"""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from curation.config import RunConfig, SelectionConfig
from curation.config.base import PresetSection, Section
from curation.config.filter import FilterConfig
from curation.config.models import StudentConfig
from curation.extras.ablate.config import AblationConfig
from curation.features import features
from curation.registry import METHODS, load_code

REFERENCE = Path(__file__).resolve().parent / "reference"
MAIN = "configuration"
MOST_KEYS = 250
"""The most keys of the main page."""


class Root(NamedTuple):
    """A file that has sections: its heading, who reads it, what follows its sections' names, and its page."""

    title: str
    words: str
    of: str = ""
    page: str = MAIN


class Part(NamedTuple):
    """A page for the keys of a part that few runs need: its title, its first words, and the sections that go there."""

    title: str
    words: str
    sections: tuple[str, ...] = ()
    """A section takes those within it along. A file's own are all on its page."""


ROOTS = {
    RunConfig: Root(
        "A run", "The file that `curate run`, `plan`, `validate`, `tune`, `status`, `report` and `analyze` take."
    ),
    FilterConfig: Root("A filter", "The file that `curate filter` and `curate plan` take.", " of a filter", "filter"),
    AblationConfig: Root("An ablation", "The file that `curate ablate` takes.", " of an ablation", "ablation"),
}
PARTS = {
    "teachers": Part(
        "Keys of teachers of other kinds",
        "A server ([Endpoints](../endpoints.md)), vLLM ([GPUs](../gpus.md)), a script, a model made from scratch, or "
        "[labels made elsewhere](../data-forms.md#labels-made-elsewhere) with a reader.",
        (
            "teacher.endpoint",
            "teacher.reader",
            "teacher.vllm",
            "teacher.scripted",
            "teacher.model.init",
            "domain.given_labels",
        ),
    ),
    "students": Part(
        "Keys of GRPO and DPO",
        "Students trained by `method: grpo` or `dpo` ([Students](../students.md)), and rollouts as their test.",
        ("student, method: grpo", "student, method: dpo", "student.rollouts"),
    ),
    "signals": Part(
        "Keys of signals and the judge",
        "What arms rank by beside trust ([Arms and budgets](../budget.md)), and a model that grades labels.",
        ("signals", "judge", "selection.gold_rollouts"),
    ),
    "chain": Part("Keys of a chain", "How generations follow each other ([Chains](../chain.md)).", ("chain",)),
    "tune": Part("Keys of a search", "What `curate tune` and `trust.search` try ([Trust](../trust.md)).", ("tune",)),
    "cluster": Part(
        "Keys of a cluster and its prices",
        "Where Ray runs, and what an hour costs ([Operations](../operations.md)).",
        ("ray", "prices"),
    ),
    "features": Part(
        "Keys of features",
        "The [check of the best rows](../data-forms.md), [why an arm's rows teach](../analysis.md), trackers.",
        tuple(name for name, feature in features().items() if feature.of == "run" and feature.within is None),
    ),
    "filter": Part("Keys of a filter", "[Exports and filtering](../exports.md) has an example."),
    "ablation": Part("Keys of an ablation", "[Trust](../trust.md) has an example."),
}
"""The pages beside the main one, by file name."""
NO_BOUND = 2**32
"""Bounds from here on are those of the machine's integers."""
WRITTEN = f"<!-- written by docs/{Path(__file__).name} -->"
INTRO = f"""\
# Configuration keys

{WRITTEN}

Sections are YAML mappings. An unknown key is an error that names the nearest known one.
[Configuration](../configuration.md) shows a whole file and says how files build on each other. Where the table says
*see presets*, the section's `preset` gives the value; what the file itself sets always wins. The domain changes some
defaults of `teacher`, `evaluation` and `trust`: `curate validate CONFIG` prints what a file comes to.

What only some runs need has a page of its own:

| page | sections |
| --- | --- |
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
        if not issubclass(base, Section) or base in (RunConfig, FilterConfig, SelectionConfig):  # made with features
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
    if issubclass(model, PresetSection) and any(name in preset for preset in model.PRESETS.values()):
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
    presets = model.PRESETS if issubclass(model, PresetSection) else {}
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


def page_of(heading: str, root: Root) -> str:
    """Return the name of the page that has a section."""
    place = heading.replace("`", "")
    found = (name for name, part in PARTS.items() for key in part.sections if f"{place}.".startswith(f"{key}."))
    return root.page if root.of else next(found, MAIN)


def draw() -> dict[Path, str]:
    """Return the text of each page; equal models give equal text.

    Raises:
        ValueError: the main page has more than ``MOST_KEYS`` keys.
    """
    places: Places = {}
    pages: dict[type[BaseModel], str] = {}
    for model, root in ROOTS.items():
        found = placed(model, root.of, places)
        pages |= {model: root.page} | {child: page_of(heading, root) for child, (heading, _) in found.items()}
        places |= found
    if (number := sum(len(model.model_fields) for model, page in pages.items() if page == MAIN)) > MOST_KEYS:
        raise ValueError(f"{MAIN}.md has {number} keys, at most {MOST_KEYS} may be; name a part's sections in PARTS")
    texts = {}
    for page in (MAIN, *PARTS):
        links = links_from(page, places, pages)
        lines = [head(page)]
        for model in (model for model, found in pages.items() if found == page):
            if root := ROOTS.get(model):
                lines += [f"## {root.title}\n", f"{root.words}\n", *section(model, links)[1:]]
                continue
            heading, also = places[model]
            lines += [f"## {heading}\n", *([f"Also {', '.join(dict.fromkeys(also))}.\n"] if also else [])]
            lines += section(model, links)
        texts[REFERENCE / f"{page}.md"] = "\n".join(lines).rstrip() + "\n"
    return texts


def links_from(page: str, places: Places, pages: Mapping[type[BaseModel], str]) -> dict[str, str]:
    """Return links from a page to the sections, by the names of their classes."""
    links = {
        model.__name__: f"[section]({'' if pages[model] == page else f'{pages[model]}.md'}#{slug(heading)})"
        for model, (heading, _) in places.items()
    }
    methods = {method: links[load_code(METHODS[method].config).__name__] for method in METHODS}
    return links | {"StudentConfig": " or ".join(f"{link} with `method: {name}`" for name, link in methods.items())}


def head(page: str) -> str:
    """Return the beginning of a page; that of the main page lists the others."""
    if page != MAIN:
        return f"# {PARTS[page].title}\n\n{WRITTEN}\n\n{PARTS[page].words} [All other keys]({MAIN}.md).\n"
    rows = (
        f"| [{part.title}]({name}.md) | {', '.join(f'`{key}`' for key in part.sections) or 'the whole file'} |\n"
        for name, part in PARTS.items()
    )
    return INTRO + "".join(rows)


if __name__ == "__main__":
    REFERENCE.mkdir(exist_ok=True)
    for path, text in draw().items():
        path.write_text(text)
        print(path)
