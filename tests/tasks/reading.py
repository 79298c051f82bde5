"""What a configuration and its run take for the right answers of labelled rows, to be held against a generator's."""

from pathlib import Path

import lance

from curation.config import DomainConfig, RunConfig
from curation.domains import Domain, Example, get_domain
from curation.domains.label_sets import split_names
from curation.sources import discover, read_rows, to_raw_rows


def domain_of(config: RunConfig) -> Domain:
    """Return the domain of the labelled rows; classes that are left out are those of the label column."""
    asked = config.domain_of("source")
    if not asked.lacks_classes:
        return get_domain(asked)
    column = asked.options["label"]
    is_multi = asked.options.get("multi", False)
    cells = [split_names(row[column]) if is_multi else [str(row[column])] for row in _labelled(config)]
    classes = sorted({name for cell in cells for name in cell})
    return get_domain(DomainConfig(name=asked.name, **asked.options, classes=classes))


def examples(config: RunConfig) -> list[tuple[Example, str]]:
    """Return the labelled rows as the domain reads them, each with its gold label."""
    domain = domain_of(config)
    found = [(domain.read(row), domain.gold(row)) for row in _labelled(config)]
    assert all(gold is not None for _, gold in found)
    return [(example, str(gold)) for example, gold in found]


def golds(config: RunConfig) -> list[str]:
    """Return what is right of each labelled row by the configuration; of a pair the better answer."""
    return [right(example, gold) for example, gold in examples(config)]


def golds_of_run(directory: Path) -> list[str]:
    """Return what is right of each labelled row by the table of a run."""
    (table,) = directory.glob("prepare-*/source.lance")
    rows = lance.dataset(str(table)).to_table().sort_by("row_id").to_pylist()
    return [right(row, row["gold"]) for row in rows]


def right(example: Example, gold: str) -> str:
    """Return the gold label; where it is the place of one of two answers, that answer."""
    return str(example[gold]) if gold in ("first", "second") and gold in example else gold


def _labelled(config: RunConfig) -> list[Example]:
    source = config.sources["labelled"]
    return [row for file in discover(source) for batch in read_rows(file) for row in to_raw_rows(batch)]
