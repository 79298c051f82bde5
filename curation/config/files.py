"""YAML files that may build on other files: the key ``base`` names them.

The files that ``base`` names are merged in order, then the file itself on top: mappings merge key by key, and any other
value replaces the one below it. A relative path is relative to the folder of the file in which it stands, so each text
of a file knows that folder (:class:`FileText`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BeforeValidator

from curation.config import strict_yaml
from curation.errors import ConfigError
from curation.json_types import Json
from curation.storage.files import read_file
from curation.storage.names import check_name
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
    course = (*above, str(file))
    below: Json = {}
    for name in names:
        other = to_place(make_absolute(name)).resolve()
        if str(other) in course:
            circle = " -> ".join([*course[course.index(str(other)) :], str(other)])
            raise ConfigError(f"{path}: base: {name!r} leads back to itself ({circle}); take it out of one of them")
        mend = f"{path} names it as its base; correct base, or put the file there"
        below = merge_mappings(below, read(other, mend, above=course))
    return merge_mappings(below, raw)


def read_mapping(path: Place, mend: str = MEND) -> Json:
    """Return the content of one YAML file; ``mend`` ends the message if the file cannot be read."""
    try:
        text = path.read_bytes() if isinstance(path, Remote) else read_file(path)
        raw = strict_yaml.parse(text.decode())
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
