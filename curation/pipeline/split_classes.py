"""Classes of the domain ``classification`` that a configuration leaves out: the labels of the labelled split.

An underscore of a label is a space in the words that are scored. The classes are read once, before the run directory
has an identity, and stand in it from then on, so that all keys hold them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from curation.config import DomainConfig, RunConfig
from curation.domains import attempt
from curation.domains.classification import labels_of, with_words
from curation.errors import ConfigError, SourceError
from curation.escaping import quoted
from curation.json_types import JsonView
from curation.rundir.manifest import Manifest
from curation.sources import SourceFile, assignment_of, discover, nearest, rows_at

LABELLED = "source"
"""The split whose labels are the classes."""
MOST_CLASSES = 1_000
"""Different labels from which on a column is taken for one that holds no classes."""
_ROWS = 50_000
"""Rows that are in memory at once."""

Classes = list[str] | dict[str, str]
"""Labels, or the words of each."""


def with_split_classes(config: RunConfig) -> RunConfig:
    """The configuration with all classes: where ``domain.classes`` is left out, those of the labelled split.

    Of a run directory that has been opened before they are those that it began with.

    Raises:
        ConfigError: the labelled split's rows have no such classes, fewer than two labels, or too many.
        SourceError: a file cannot be read, or lacks the label's column.
    """
    own = {name: source.domain for name, source in config.sources.items() if source.domain is not None}
    if not any(domain.lacks_classes for domain in (config.domain, *own.values())):
        return config
    classes = _recorded(config) or _read(config)

    def filled(domain: DomainConfig) -> DomainConfig:
        return domain.with_options(classes=classes) if domain.lacks_classes else domain

    sources = {
        name: source.model_copy(update={"domain": filled(own[name])}) if name in own else source
        for name, source in config.sources.items()
    }
    return config.model_copy(update={"domain": filled(config.domain), "sources": sources})


def _recorded(config: RunConfig) -> Classes | None:
    """The classes with which a run directory began, where its labelled split was asked in the same way."""
    identity: JsonView = Manifest.load(config.directory).identity
    if not identity:
        return None
    begun = identity["sources"].get(config.splits.source.source, {}).get("domain") or identity["domain"]
    classes: Classes | None = begun.get("classes")
    asked = config.domain_of(LABELLED).with_options(classes=classes).to_key()
    return classes if begun == asked and isinstance(classes, list | dict) else None


def _read(config: RunConfig) -> Classes:
    domain, source = config.domain_of(LABELLED), config.splits.source.source
    if not domain.lacks_classes:
        raise ConfigError(
            "domain.classes: is left out, and the labelled split is read by another domain with classes of its own; "
            "give the classes"
        )
    files = discover(config.sources[source])
    column = str(domain.options.get("label", "label"))
    for file in files:
        if column not in file.schema:
            close = nearest(column, file.schema)
            hint = f"did you mean {quoted(close)}?" if close else f"it has {', '.join(file.schema)}"
            raise SourceError(
                f"{file.path}: has no column {quoted(column)}, whose labels would be the classes; {hint} Set "
                "domain.label, or give domain.classes"
            )
    where = f"domain.classes: is left out, and column {quoted(column)} of splits.{LABELLED} has"
    found: set[str] = set()
    for value in _values(config, source, files, column):
        labels, _ = attempt(labels_of, value, domain.options)
        found |= labels or set()  # a row that cannot be read is refused as such
        if len(found) > MOST_CLASSES:
            some = ", ".join(quoted(label, 20) for label in sorted(found)[:3])
            raise ConfigError(
                f"{where} more than {MOST_CLASSES:,} different labels ({some}, ...), so it holds no classes; name the "
                "column with the class as domain.label, or give the classes as a list or a file"
            )
    if len(found) < 2:
        raise ConfigError(
            f"{where} {'one label alone, ' + quoted(min(found)) if found else 'no label'}; two classes are the least: "
            "give more labelled rows, or the classes as a list"
        )
    return with_words(sorted(found))


def _values(config: RunConfig, source: str, files: Sequence[SourceFile], column: str) -> Iterator[Any]:
    """The labelled split's values of a column; missing ones are left out."""
    assignment = assignment_of(config, source, files)
    positions_N = np.sort(assignment.draw([LABELLED], assignment.counts[LABELLED], 0))
    for start in range(0, len(positions_N), _ROWS):
        for row in rows_at(files, positions_N[start : start + _ROWS], [column]):
            if (value := row.raw[column]) is not None:
                yield value
