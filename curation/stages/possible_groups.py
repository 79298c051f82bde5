"""Columns that may divide rows into groups, such as users: rows of one group are alike, and tell less than others.

Where the labelled rows are of some groups and the pool's of others, trust that is measured on the first need not hold
on the others, and intervals of so many rows are too narrow.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from curation.config import RunConfig
from curation.domains import get_domain
from curation.report.groups import PossibleGroups
from curation.stages.deal import POOL
from curation.stages.preview import Looked

MIN_VALUES, MIN_REPEATED, MIN_ROWS, MIN_OTHERS = 5, 3.0, 50, 0.9
"""The fewest values of a column, rows a value and rows of either split, and the share of the pool's rows with values
that no labelled row has."""


def possible_groups(config: RunConfig, seen: Mapping[str, Looked]) -> list[PossibleGroups]:
    """Return columns whose values repeat within the labelled rows and differ from the pool's, by rows looked at.

    None where ``splits.group`` names one.
    """
    if "source" not in seen or POOL not in seen or config.splits.group is not None:
        return []
    domain, found = get_domain(config.domain_of("source")), list[PossibleGroups]()
    read = {*domain.columns.names, *(name for form in domain.forms for name in form)}
    for column, of_source in seen["source"].values.items():
        of_pool = seen[POOL].values.get(column, Counter[str]())
        if column not in read and differ(of_source, of_pool):
            others = sum(rows for value, rows in of_pool.items() if value not in of_source) / of_pool.total()
            found.append(
                PossibleGroups(column=column, num_rows=of_source.total(), num_values=len(of_source), others=others)
            )
    return found


def warnings_of(groups: Iterable[PossibleGroups]) -> Iterator[str]:
    """Say what groups of rows mean for a run."""
    for found in groups:
        yield (
            f"{found.words}. If rows of one value are alike (a user, a document, a day), trust is worth less on others "
            f"than the report can tell, and its intervals are too narrow: set splits.group: {found.column}, label rows "
            "of more values, or check 200 selected rows (curate review draw)"
        )


def differ(of_source: Counter[str], of_pool: Counter[str]) -> bool:
    """Whether values repeat within the labelled rows, and are others than the pool's."""
    if min(of_source.total(), of_pool.total()) < MIN_ROWS or len(of_source) < MIN_VALUES:
        return False
    others = sum(rows for value, rows in of_pool.items() if value not in of_source)
    return of_source.total() >= MIN_REPEATED * len(of_source) and others >= MIN_OTHERS * of_pool.total()
