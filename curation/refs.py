"""References that stages pass to each other; they are pinned, hashable and convertible to JSON.

A reference never holds data. Equal references mean equal bytes, so that the manifest can fingerprint them.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, Self, TypeVar

from curation.json_types import Json

Leaf = TypeVar("Leaf")


@dataclass(frozen=True, kw_only=True)
class Ref:
    """The base class of all references."""

    def to_json(self) -> Json:
        """Return the reference as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Self:
        """Return the reference that :meth:`to_json` converted to ``value``."""
        return cls(**value)


@dataclass(frozen=True, kw_only=True)
class TableRef(Ref):
    """One version of one Lance table."""

    uri: str
    version: int


@dataclass(frozen=True, kw_only=True)
class ModelRef(Ref):
    """A causal language model: base weights at a revision, and optionally a LoRA adapter on top.

    ``revision`` is a hub commit for hub ids and a digest of the file list
    (:func:`curation.storage.digest.compute_directory_digest`) for local paths.
    """

    base: str
    revision: str | None = None
    adapter: str | None = None
    code: str | None = None
    """The commit (hub id) or digest (directory) of the model's own Python code that may run, or None if none may."""

    def to_json(self) -> Json:
        """Return the reference as a JSON object, which omits ``code`` if it is None."""
        return {name: value for name, value in asdict(self).items() if name != "code" or value is not None}


@dataclass(frozen=True, kw_only=True)
class TrustRef(Ref):
    """A fitted trust function: a directory of safetensors and JSON, and the digest of its content."""

    uri: str
    digest: str


def iter_table_refs(value: object) -> Iterator[TableRef]:
    """Yield the table references in a JSON value, at any depth."""
    if isinstance(value, dict) and value.keys() == {"uri", "version"}:
        yield TableRef.from_json(value)
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from iter_table_refs(item)


def iter_leaves(value: object, kind: type[Leaf]) -> Iterator[Leaf]:
    """Yield the values of type ``kind`` in mappings, lists, tuples and dataclasses, at any depth."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from iter_leaves(part, kind)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from iter_leaves(part, kind)
    elif is_dataclass(value):
        yield from iter_leaves([getattr(value, item.name) for item in fields(value)], kind)


def as_json(value: object) -> Any:
    """Return outputs of a stage as JSON: references, dataclasses, NamedTuples (``from_`` as ``from``) are objects."""
    if isinstance(value, Ref):
        return value.to_json()
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name.removesuffix("_"): as_json(part) for name, part in value._asdict().items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: as_json(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {key: as_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    return value


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def fingerprint(value: object) -> str:
    """Return a 16-digit hexadecimal digest of a JSON value, equal for equal values, or raise ``ValueError``."""
    return hashlib.sha256(_canonical(value).encode()).hexdigest()[:16]


class ListDigest:
    """The :func:`fingerprint` of a list, computed from its items in order without keeping them."""

    def __init__(self) -> None:
        self.num_items = 0
        self._hash = hashlib.sha256(b"[")

    def extend(self, items: Sequence[object]) -> None:
        """Append items, each a JSON value."""
        if items:
            self._hash.update((("," if self.num_items else "") + _canonical(items)[1:-1]).encode())
            self.num_items += len(items)

    @property
    def hexdigest(self) -> str:
        """The digest of the items so far."""
        closed = self._hash.copy()
        closed.update(b"]")
        return closed.hexdigest()[:16]
