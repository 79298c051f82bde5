"""A YAML reader for values of JSON: plain words and numbers as in YAML 1.2, and errors that name their lines.

PyYAML keeps the last of two equal keys and reads ``no`` as false, ``01`` as 1 and ``12:30`` as 750, as YAML 1.1 does.
Here two equal keys are an error, such words are texts, and a value of yes, no, on or off has to say by quotes whether
it is one. Anchors may be used; a value may nest ``MAX_DEPTH`` levels and hold ``MAX_VALUES`` values with its anchors
expanded.
"""

import re
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

from curation.errors import ConfigError
from curation.escaping import format_error, quote_text

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
"""Plain texts that are no text, by the type that they are, with their possible first characters. They are so to YAML
1.1, too, so that what PyYAML writes is read as it was."""
_SWITCHES = {"yes": "true", "on": "true", "no": "false", "off": "false"}
"""Plain words by what YAML 1.1 makes of them: as texts they would be the name of a folder, say, not a switch."""


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


def parse(text: str) -> Any:
    """Return the value of a YAML text.

    Raises:
        ConfigError: the text is not YAML, or is refused; the message names lines where it can, not the text's origin.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"has {len(text):,} characters; a configuration may have {MAX_CHARACTERS:,}")
    try:
        loader = _StrictLoader(text)
        node = loader.get_single_node()
        _measure(node, {})
        value = None if node is None else loader.construct_document(node)
        _check(value, MAX_DEPTH)
    except ConfigError:
        raise
    except RecursionError as error:
        raise ConfigError(f"nests deeper than {MAX_DEPTH} levels; make it flatter") from error
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"is not YAML: {format_error(error)}; correct the text there") from error
    return value


def _measure(node: Node | None, sizes: dict[int, int]) -> int:
    """Return the number of values of a node with its anchors expanded; in ``sizes`` an open node has 0."""
    if node is None or isinstance(node, ScalarNode):
        return 1
    if sizes.get(id(node)) == 0:
        raise ConfigError(f"line {node.start_mark.line + 1}: an anchor stands within its own value; write it out")
    if id(node) not in sizes:
        sizes[id(node)] = 0
        parts = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
        sizes[id(node)] = 1 + sum(_measure(part, sizes) for part in parts)
    if sizes[id(node)] > MAX_VALUES:
        raise ConfigError(
            f"line {node.start_mark.line + 1}: holds more than {MAX_VALUES:,} values; anchors multiply them"
        )
    return sizes[id(node)]


def _check(value: object, depth: int) -> None:
    """Refuse a value that JSON has not, or that nests more than ``depth`` levels."""
    if isinstance(value, dict | list):
        if not depth:
            raise ConfigError(f"nests deeper than {MAX_DEPTH} levels; make it flatter")
        for part in value.values() if isinstance(value, dict) else value:
            _check(part, depth - 1)
    elif isinstance(value, str):
        if not value.isascii() and re.search("[\ud800-\udfff]", value):
            raise ConfigError(f"{quote_text(value)} has half of a surrogate pair; write the character itself")
    elif not (value is None or isinstance(value, int) or (isinstance(value, float) and abs(value) < float("inf"))):
        raise ConfigError(f"{quote_text(str(value))} is a {type(value).__name__}, which no key takes; put it in quotes")
