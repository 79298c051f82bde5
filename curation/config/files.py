"""YAML files that may build on other files: the key ``base`` names them.

The files that ``base`` names are merged in order, then the file itself on top: mappings merge key by key, and any other
value replaces the one below it. A relative path is relative to the folder of the file in which it stands, so each text
of a file knows that folder (:class:`FileText`).

Values are those of JSON, with plain words and numbers as in YAML 1.2, and errors name their lines. PyYAML keeps the
last of two equal keys and reads ``no`` as false, ``01`` as 1 and ``12:30`` as 750, as YAML 1.1 does. Here two equal
keys are an error, such words are texts, and a value of yes, no, on or off has to say by quotes whether it is one.
Anchors may be used; a value may nest ``MAX_DEPTH`` levels and hold ``MAX_VALUES`` values with its anchors expanded.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BeforeValidator
from yaml.nodes import MappingNode, Node, ScalarNode

from curation.errors import ConfigError
from curation.escaping import format_error, quote_text
from curation.json_types import Json
from curation.storage.files import check_name, read_file
from curation.storage.paths import Place, Remote, to_place

BASE = "base"
"""The key that names one file, or a list of files, relative to the file."""
MEND = "`curate init` writes a commented one"


class FileText(str):
    """A text of a configuration file; a plain text once it is pickled."""

    folder: Place
    """The folder to which it is relative if it is a path."""

    def __deepcopy__(self, memo: object) -> "FileText":
        return self

    def __reduce__(self) -> Any:
        return str, (str(self),)

    @property
    def beside(self) -> Place | None:
        """The place that it names if it is a relative path, else ``None``."""
        return None if "://" in self or Path(self).is_absolute() else self.folder / str(self)


def with_folder(value: Any, folder: Place) -> Any:
    """Return a value of JSON whose texts, at any depth, are relative to a folder; those that have one keep it."""
    if isinstance(value, str) and not isinstance(value, FileText):
        value = FileText(value)
        value.folder = folder
    elif isinstance(value, dict):
        value = {key: with_folder(item, folder) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        value = type(value)(with_folder(item, folder) for item in value)
    return value


def make_absolute(value: object) -> Any:
    """Return a relative path of a file as an absolute one, and any other value as it is."""
    place = value.beside if isinstance(value, FileText) and check_name(value) else None
    return value if place is None else str(place)


BESIDE = BeforeValidator(make_absolute)
"""Validator of a key whose relative path starts at the folder of the file that holds it."""


def read(path: str | Place, mend: str = MEND, *, above: tuple[str, ...] = ()) -> Json:
    """Return the content of a YAML file merged onto its bases; ``above`` are the files that led to it as a base.

    Raises:
        ConfigError: a file is missing or no YAML mapping, or ``base`` names no files, or leads back to its own file.
    """
    path = to_place(path)
    file = path.resolve()
    raw: Json = with_folder(read_mapping(path, mend), file.parent)
    if BASE not in raw:
        return raw
    given = raw.pop(BASE)
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{path}: base: {given!r} is neither a file nor a list of files; name them by their paths")
    chain = (*above, str(file))
    below: Json = {}
    for name in names:
        other = to_place(make_absolute(name)).resolve()
        if str(other) in chain:
            circle = " -> ".join([*chain[chain.index(str(other)) :], str(other)])
            raise ConfigError(f"{path}: base: {name!r} leads back to itself ({circle}); take it out of one of them")
        mend = f"{path} names it as its base; correct base, or put the file there"
        below = merge_mappings(below, read(other, mend, above=chain))
    return merge_mappings(below, raw)


def read_mapping(path: Place, mend: str = MEND) -> Json:
    """Return the content of one YAML file; ``mend`` ends the message if the file cannot be read."""
    try:
        text = path.read_bytes() if isinstance(path, Remote) else read_file(path)
        raw = parse_yaml(text.decode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}); {mend}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text ({error}); {mend}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: is not a mapping; {mend}")
    return raw


def merge_mappings(below: Mapping[str, object], above: Mapping[str, object]) -> Json:
    """Return ``above``, completed from ``below`` by the keys that it lacks, at any depth of mappings."""
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        if isinstance(under, Mapping) and isinstance(value, Mapping):
            value = merge_mappings(under, value)
        result[key] = value
    return result


MAX_CHARACTERS = 1 << 20
MAX_DEPTH = 50
MAX_VALUES = 100_000
"""Maximum number of values of a text with its anchors expanded: ten levels of ten references would be 10^10."""
_TAG = "tag:yaml.org,2002:"
_PLAIN = {
    "null": ("~nN", r"~|null|Null|NULL|"),
    "bool": ("tTfF", r"true|True|TRUE|false|False|FALSE"),
    "int": ("-+0123456789", r"[-+]?(?:0|[1-9][0-9_]*)"),
    "float": ("-+.0123456789", r"(?:[-+]?[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?"),
    "merge": ("<", r"<<"),
}
"""Patterns of unquoted words that are not text, by YAML type, each after the characters that can begin such a word.
YAML 1.1 agrees on all of them, so that a file that PyYAML wrote reads back unchanged."""
_SWITCHES = {"yes": "true", "on": "true", "no": "false", "off": "false"}
"""Unquoted words that YAML 1.1 reads as switches, and that are refused: read as a text, ``no`` might name a folder."""


class _StrictLoader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        is_key = isinstance(parent, MappingNode) and index is None
        is_plain = isinstance(event, yaml.ScalarEvent) and event.implicit[0]
        if is_plain and not is_key and (word := _SWITCHES.get(event.value.lower())):
            raise ConfigError(
                f"line {event.start_mark.line + 1}: {quote_text(event.value)} is {word} to YAML; put it in quotes, or "
                f"write {word}"
            )
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> MappingNode:
        node: MappingNode = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.tag not in (f"{_TAG}str", f"{_TAG}merge"):
                raise ConfigError(f"line {line}: the key {quote_text(str(key.value))} is not a text; put it in quotes")
            if key.value in lines:
                first = lines[key.value]
                where = f"lines {first} and {line}" if first < line else f"line {line}"
                raise ConfigError(f"{where}: the key {quote_text(key.value)} occurs twice; remove one")
            lines[key.value] = line
        return node


for _kind, (_first, _pattern) in _PLAIN.items():
    _StrictLoader.add_implicit_resolver(
        f"{_TAG}{_kind}", re.compile(rf"(?:{_pattern})\Z"), [*_first, *[""] * (_kind == "null")]
    )


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text; ``ConfigError``, with the line if known, if it is not YAML or is refused."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"has {len(text):,} characters; a configuration may have {MAX_CHARACTERS:,}")
    try:
        loader = _StrictLoader(text)
        node = loader.get_single_node()
        _count_values(node, {})
        value = None if node is None else loader.construct_document(node)
        _require_json(value, MAX_DEPTH)
    except ConfigError:
        raise
    except RecursionError as error:
        raise ConfigError(f"nests deeper than {MAX_DEPTH} levels; make it flatter") from error
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"is not YAML: {format_error(error)}; correct the text there") from error
    return value


def _count_values(node: Node | None, sizes: dict[int, int]) -> int:
    """Return the number of values of a node, anchors expanded; ``sizes`` has counts by node, 0 while one is counted."""
    if node is None or isinstance(node, ScalarNode):
        return 1
    if sizes.get(id(node)) == 0:
        raise ConfigError(f"line {node.start_mark.line + 1}: an anchor stands within its own value; write it out")
    if id(node) not in sizes:
        sizes[id(node)] = 0
        parts = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
        sizes[id(node)] = 1 + sum(_count_values(part, sizes) for part in parts)
    if sizes[id(node)] > MAX_VALUES:
        raise ConfigError(
            f"line {node.start_mark.line + 1}: holds more than {MAX_VALUES:,} values; anchors multiply them"
        )
    return sizes[id(node)]


def _require_json(value: object, depth: int) -> None:
    """Refuse a value that JSON cannot express, or that nests more than ``depth`` levels."""
    if isinstance(value, dict | list):
        if not depth:
            raise ConfigError(f"nests deeper than {MAX_DEPTH} levels; make it flatter")
        for part in value.values() if isinstance(value, dict) else value:
            _require_json(part, depth - 1)
    elif isinstance(value, str):
        if not value.isascii() and re.search("[\ud800-\udfff]", value):
            raise ConfigError(f"{quote_text(value)} has half of a surrogate pair; write the character itself")
    elif not (value is None or isinstance(value, int) or (isinstance(value, float) and abs(value) < float("inf"))):
        raise ConfigError(f"{quote_text(str(value))} is a {type(value).__name__}, which no key takes; put it in quotes")
