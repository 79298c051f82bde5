"""Classes of the domain ``classification`` in a file, read with the configuration so that cache keys hold them."""

import csv
import difflib
import io
import json
from collections.abc import Iterator
from pathlib import PurePosixPath

from curation.config.inputs import DomainConfig
from curation.errors import ConfigError
from curation.json_types import JsonView
from curation.storage.files import read_file
from curation.storage.paths import Place, Remote

MOST_CLASSES = 10_000
"""Maximum number of different labels of a column that holds classes."""
WORDS, DESCRIPTION = "words", "description"
"""Columns that a file of classes may have beside that of labels."""


def with_classes(domain: DomainConfig, path: Place) -> DomainConfig:
    """Return the domain with the classes, words and descriptions of a file in place of its name.

    The file is CSV with a header, or JSON lines. Its column of labels has the name of the labelled rows'
    (``domain.label``), so a file of labelled rows works, too: each different label is a class, in file order.

    Raises:
        ConfigError: the file is missing, of another kind or broken; it has no such column, too many labels, or one
            label with two words or descriptions.
    """
    where, column = f"domain.classes: {path}", str(domain.options.get("label", "label"))
    found: dict[str, tuple[str, str]] = {}
    columns: dict[str, None] = {}
    for number, row in _iter_rows(path, where):
        columns |= dict.fromkeys(row)
        if any(isinstance(row.get(name), list | dict) for name in (column, WORDS, DESCRIPTION)):
            raise ConfigError(
                f"{where}: line {number} has a list or an object instead of a text; write a line for each label"
            )
        label, words, description = (_to_text(row.get(name)) for name in (column, WORDS, DESCRIPTION))
        if not label and not words and not description:
            continue
        if not label:
            raise ConfigError(f"{where}: line {number} has words or a description, but no label; give it one")
        first = found.setdefault(label, (words, description))
        if first != (words, description):
            raise ConfigError(
                f"{where}: line {number}: {label!r} has other words or another description than on an earlier line; "
                f"give each class one line, or leave the columns {WORDS} and {DESCRIPTION} out of a file of labelled "
                "rows"
            )
        if len(found) > MOST_CLASSES:
            raise ConfigError(
                f"{where}: {column!r} has more than {MOST_CLASSES:,} different labels, so it holds no classes; name "
                "the column with the class as domain.label"
            )
    if column not in columns:
        near = difflib.get_close_matches(column, columns, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(columns) or 'no rows'}"
        raise ConfigError(f"{where}: has no column {column!r} (domain.label); {hint}")
    if len(found) < 2:
        raise ConfigError(f"{where}: holds {len(found)} labels in column {column!r}; give at least two classes")
    described = {label: description for label, (_, description) in found.items() if description}
    worded = any(words for words, _ in found.values())
    classes = {label: words or label for label, (words, _) in found.items()} if worded else [*found]
    given = domain.options.get("descriptions") or {}
    if described and given:
        raise ConfigError(f"{where}: has descriptions, and domain.descriptions, too; keep them in one of the two")
    return domain.with_options(classes=classes, **({"descriptions": described} if described else {}))


def _iter_rows(path: Place, where: str) -> Iterator[tuple[int, JsonView]]:
    """Yield the rows of a file with the numbers of their lines."""
    suffix = PurePosixPath(path.name).suffix.lower()
    if suffix not in (".csv", ".jsonl"):
        raise ConfigError(f"{where}: is neither .csv nor .jsonl; give the classes as one of them, or as a list")
    try:
        text = (path.read_bytes() if isinstance(path, Remote) else read_file(path)).decode("utf-8-sig")
        if suffix == ".csv":
            reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
            for cells in reader:
                if any(cells.pop(None, ())) or None in cells.values():
                    raise ValueError(f"line {reader.line_num} has more or fewer fields than the header")
                yield reader.line_num, cells
            return
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"line {number} is not an object")
                yield number, row
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read ({error.strerror or error}); put the file there") from error
    except (UnicodeDecodeError, csv.Error, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{where}: cannot be read as {suffix[1:]} ({error}); mend the file") from error


def _to_text(value: object) -> str:
    """Return a cell as text on one line: whole numbers without a decimal point, null as an empty string."""
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    return "" if value is None else " ".join(str(number).split())
