"""Detects columns whose cells hold several labels: lists, or texts with a separator between recurring labels."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curation.domains import attempt, to_one_line
from curation.domains.label_sets import SetFormat, split_names
from curation.domains.turns import parse_list
from curation.extras.init.table import MOST_VALUES, TableFiles
from curation.sources import read_rows, to_raw_rows

SEPARATORS = (";", "|", ",")
JOINTS = (*SEPARATORS, "||", ";;")
EMPTIES = ("none", "no label", "n/a", "-")
"""Words for a row without labels, if they never occur beside another label."""
LEAST_SHARE = 0.02
"""Minimum share of cells that contain a sign for it to be a separator of labels."""


@dataclass(frozen=True, kw_only=True)
class LabelColumn:
    """A column of sets of labels."""

    form: SetFormat
    counts: Counter[str]
    """Number of rows by label."""
    num_rows: int
    is_list: bool
    """Whether the cells are lists, which leaves no doubt."""

    @property
    def why(self) -> str:
        """The reason why the column is read as sets of labels, in words."""
        if self.is_list:
            return "the cells are lists"
        return f"{self.form.separator!r} stands between labels that occur in other cells, too"

    @property
    def multi(self) -> bool | dict[str, str]:
        """The value of the option ``domain.multi`` with which the domain reads the column."""
        usual = SetFormat()._asdict()
        return {name: sign for name, sign in self.form._asdict().items() if sign != usual[name]} or True


def label_column(table: TableFiles, column: str) -> LabelColumn | None:
    """Return the labels of a column whose cells hold several labels each, or ``None`` if they do not."""
    sample = table.values(column)
    if not sample:
        return None
    if is_list_column(table, column):
        return _read_column(table, column, SetFormat(), is_list=True)
    for separator in SEPARATORS:
        form = SetFormat(separator=separator)
        joint = [value for value in sample if isinstance(value, str) and separator in value]
        if len(joint) < max(2, LEAST_SHARE * len(sample)):
            continue
        found = _read_column(table, column, form, is_list=False)
        if found is not None and _come_again(sample, form):
            return found
    return None


def is_list_column(table: TableFiles, column: str) -> bool:
    """Return whether all filled cells of a column are lists of labels, as values or as JSON text.

    Lists with objects, such as turns of a conversation, do not count.
    """
    lists = [parse_list(value) if isinstance(value, str) else value for value in table.values(column)]
    return bool(lists) and all(
        isinstance(items, list) and not any(isinstance(item, Mapping) for item in items) for items in lists
    )


def _read_column(table: TableFiles, column: str, form: SetFormat, *, is_list: bool) -> LabelColumn | None:
    """Return the labels of all rows; ``None`` if a row repeats a label or cannot be split, or there are too many."""
    counts: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    num_rows = 0
    cells = (raw for file in table.files for batch in read_rows(file, columns=[column]) for raw in to_raw_rows(batch))
    for value in (raw[column] for raw in cells if raw.get(column) is not None):
        names, _ = attempt(split_names, value, form)
        if names is None or len({*names}) < len(names):
            return None
        counts.update(names)
        alone.update(names if len(names) == 1 else ())
        num_rows += 1
        if len(counts) > MOST_VALUES:
            return None
    for name in counts:
        if name.casefold() in EMPTIES and alone[name] == counts[name]:
            form = form._replace(empty=name)
            del counts[name]
            break
    if len(counts) < 2:
        return None
    if form.empty in counts:
        form = form._replace(empty=_find_unused(EMPTIES, counts))
    if is_list and any(form.separator in name for name in counts):
        form = form._replace(separator=_find_unused(JOINTS, counts))
    return LabelColumn(form=form, counts=counts, num_rows=num_rows, is_list=is_list)


def _find_unused(signs: Sequence[str], names: Iterable[str]) -> str:
    """Return the first sign that no name contains; if there is none, the first sign, which the domain then refuses."""
    return next((sign for sign in signs if not any(sign in name for name in names)), signs[0])


def _come_again(sample: list[Any], form: SetFormat) -> bool:
    """Return whether most labels of cells with several labels recur in other sets, unlike parts of a name."""
    sets_of: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    joint = set()
    for value in sample:
        names = split_names(to_one_line(value), form)
        for name in names:
            sets_of[name].add(tuple(sorted(names)))
        joint |= {*names} if len(names) > 1 else set()
    return 2 * sum(len(sets_of[name]) > 1 for name in joint) > len(joint)
