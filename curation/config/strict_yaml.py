"""A strict YAML reader: it takes the values of JSON, and refuses what would be dropped, endless or too deep.

PyYAML keeps the last of two equal keys, follows an anchor into itself, recurses as deep as the text nests, and lets
other exceptions than its own out of values such as ``2020-13-01``. Here each of these is an error that names its lines.
So are dates, sets, infinity and keys that are not text: a run writes its configuration down, and reads it again. So
are words and numbers that YAML 1.1 alone reads as something else: ``no`` as false, ``01`` as 1, ``12:30`` as 750.
"""

import math
import re
from collections.abc import Hashable
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

from curation.errors import ConfigError
from curation.escaping import format_error, quote_text

MAX_CHARACTERS = 1 << 20
MAX_DEPTH = 50
MAX_VALUES = 100_000
"""Maximum number of values of a text with its anchors expanded: ten levels of ten references would be 10^10."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"
_WORDS = ("yes", "no", "on", "off")
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)")
_KINDS = ("null", "bool", "int", "float", "str", "seq", "map", "merge")
"""YAML types whose values a run can write as JSON; not dates and sets."""


def parse(text: str) -> Any:
    """Return the value of a YAML text.

    Raises:
        ConfigError: the text is not YAML, or is refused; the message names lines, not the text's origin.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"has {len(text):,} characters; a configuration may have {MAX_CHARACTERS:,}")
    try:
        return _StrictLoader(text).get_single_data()
    except yaml.YAMLError as error:
        raise ConfigError(f"is not YAML: {format_error(error)}; correct the text there") from error


class _StrictLoader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        self._open: list[str | None] = []
        """Anchors of the nodes that enclose the current position."""
        self._sizes: dict[int, tuple[int, int]] = {}
        """Number of values and depth of each complete node, by its ``id``."""
        self._checked: set[int] = set()
        """``id`` of the mappings whose keys were compared, each once: merging adds keys to the node itself."""
        self._at_key = False
        super().__init__(text)

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in self._open:
                raise ConfigError(
                    f"line {_get_line(event)}: *{event.anchor} stands within &{event.anchor} itself, "
                    "so the value would have no end; write it out"
                )
            node = super().compose_node(parent, index)
        else:
            self._open.append(getattr(event, "anchor", None))
            if len(self._open) > MAX_DEPTH:
                raise ConfigError(f"line {_get_line(event)}: nests deeper than {MAX_DEPTH} levels; make it flatter")
            node = super().compose_node(parent, index)
            self._open.pop()
        if node is not None and id(node) not in self._sizes:
            self._sizes[id(node)] = self._measure(node)
        return node

    def _measure(self, node: Node) -> tuple[int, int]:
        """Return the number of values and the depth of a node whose parts were measured."""
        children = [] if isinstance(node, ScalarNode) else node.value
        parts = [child for pair in children for child in (pair if isinstance(pair, tuple) else (pair,))]
        values = 1 + sum(self._sizes[id(part)][0] for part in parts)
        depth = 1 + max((self._sizes[id(part)][1] for part in parts), default=0)
        if values > MAX_VALUES:
            raise ConfigError(f"line {_get_line(node)}: holds more than {MAX_VALUES:,} values; anchors multiply them")
        if depth > MAX_DEPTH:
            raise ConfigError(f"line {_get_line(node)}: nests deeper than {MAX_DEPTH} levels; make it flatter")
        return values, depth

    def flatten_mapping(self, node: MappingNode) -> None:
        if id(node) not in self._checked:
            self._checked.add(id(node))
            self._compare_keys(node)
        super().flatten_mapping(node)

    def _compare_keys(self, node: MappingNode) -> None:
        seen: dict[Hashable, Node] = {}
        for key_node, _ in node.value:
            self._at_key = True
            key = "<<" if key_node.tag == _MERGE else self.construct_object(key_node, deep=True)
            self._at_key = False
            if isinstance(key, Hashable):  # another is refused when the mapping is made
                if not isinstance(key, str):
                    raise ConfigError(
                        f"line {_get_line(key_node)}: the key {quote_text(str(key))} is not a text; put it in quotes"
                    )
                if key in seen:
                    first, second = _get_line(seen[key]), _get_line(key_node)
                    where = f"lines {first} and {second}" if first < second else f"line {first}"
                    raise ConfigError(f"{where}: the key {quote_text(str(key))} occurs twice; remove one")
                seen[key] = key_node

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        kind = node.tag.removeprefix(_TAG)
        if kind not in _KINDS:
            what = f"{quote_text(str(node.value))} is" if isinstance(node, ScalarNode) else "this is"
            raise ConfigError(
                f"line {_get_line(node)}: {what} a {quote_text(kind)}, which no key takes; write it as a text"
            )
        try:
            value = super().construct_object(node, deep=deep)
        except ConfigError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ConfigError(
                f"line {_get_line(node)}: {quote_text(str(node.value))} is not a {kind}; correct it, or put it in "
                "quotes"
            ) from error
        if isinstance(node, ScalarNode) and not self._at_key and _is_misread(kind, str(node.value)):
            word = str(value).lower()
            raise ConfigError(
                f"line {_get_line(node)}: {quote_text(str(node.value))} is {word} to YAML; put it in quotes, or write "
                f"{word}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(
                f"line {_get_line(node)}: {quote_text(str(node.value))} is not a finite number; leave the key out"
            )
        if isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
            raise ConfigError(
                f"line {_get_line(node)}: {quote_text(value)} has half of a surrogate pair; write the character itself"
            )
        return value


def _is_misread(kind: str, text: str) -> bool:
    """Return whether YAML 1.1 reads a text as another value than it looks like."""
    if kind == "bool":
        return text.lower() in _WORDS
    return (kind == "int" and not _INTEGER.fullmatch(text)) or (kind == "float" and ":" in text)


def _get_line(item: Any) -> int:
    return int(item.start_mark.line) + 1
