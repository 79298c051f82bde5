"""YAML files that may build on other files: the key ``base`` names them.

The files that ``base`` names are merged in order, then the file itself on top: mappings merge key by key, and any other
value replaces the one below it. A relative path stays relative to the folder of the file in which it stands.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from curation.config import strict_yaml
from curation.errors import ConfigError
from curation.json_types import Json
from curation.storage.files import read_file
from curation.storage.paths import Place, Remote, to_place

BASE = "base"
"""The key that names one file, or a list of files, relative to the file."""
MEND = "`curate init` writes a commented one"

Roots = dict[tuple[str, ...], Place]
"""The folder of the base file that holds a value, by the value's location, e.g. ``("sources", "puzzles", "path")``."""


class MergedFile(NamedTuple):
    """The merged content of a file and its bases."""

    raw: Json
    roots: Roots


def read(path: str | Place, mend: str = MEND, *, above: tuple[str, ...] = ()) -> MergedFile:
    """Return the content of a YAML file merged onto its bases; ``above`` are the files that led to it as a base.

    Raises:
        ConfigError: a file is missing or no YAML mapping, or ``base`` names no files, or leads back to its own file.
    """
    path = to_place(path)
    raw = read_mapping(path, mend)
    if BASE not in raw:
        return MergedFile(raw, {})
    given = raw.pop(BASE)
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{path}: base: {given!r} is neither a file nor a list of files; name them by their paths")
    file = path.resolve()
    course = (*above, str(file))
    below: Json = {}
    roots: Roots = {}
    for name in names:
        other = (to_place(name) if "://" in name else file.parent / name).resolve()
        if str(other) in course:
            circle = " -> ".join([*course[course.index(str(other)) :], str(other)])
            raise ConfigError(f"{path}: base: {name!r} leads back to itself ({circle}); take it out of one of them")
        content = read(other, f"{path} names it as its base; correct base, or put the file there", above=course)
        below = merge_mappings(below, content.raw)
        roots |= {at: other.parent for at in _iter_places(content.raw)} | content.roots
    standing = set(_iter_places(raw))
    return MergedFile(merge_mappings(below, raw), {at: root for at, root in roots.items() if at not in standing})


def read_mapping(path: Place, mend: str = MEND) -> Json:
    """Return the content of one YAML file; ``mend`` ends the message if the file cannot be read."""
    try:
        text = path.read_bytes() if isinstance(path, Remote) else read_file(path)
        raw = strict_yaml.parse(text.decode())
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"{path}: cannot be read ({reason}); {mend}") from error
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


def _iter_places(item: object, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the locations of all values that are neither mappings nor lists."""
    if isinstance(item, Mapping):
        parts = list(item.items())
    elif isinstance(item, list):
        parts = list(enumerate(item))
    else:
        yield at
        return
    for key, part in parts:
        yield from _iter_places(part, (*at, str(key)))
