"""A preview of the sources, without Ray: rows that cannot be used, and columns that may divide rows into groups."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from curation.activity import doing
from curation.config import RowsConfig, RunConfig
from curation.domains import Domain, attempt, get_domain
from curation.domains.given import get_given_completion
from curation.errors import SourceError, get_error_kind
from curation.escaping import quote_text
from curation.json_types import Json
from curation.metrics import compute_proportion
from curation.report.record import PossibleGroups
from curation.sources import (
    NOTHING,
    SourceFile,
    find_nearest_column,
    make_assignment,
    read_rows_at,
)
from curation.sources.readers import SampledRow
from curation.sources.splits import convert_ids
from curation.stages.split_tables import NO_AUDIT, POOL, describe_errors, make_example_table

RUNS, RUN_ROWS = 20, 50
"""Number and length of the runs of consecutive rows read of a source, so that little of large files is read."""
MAX_CHARACTERS = 60
"""Maximum length of the values that are counted, and of those that messages show."""
NUM_SHOWN = 3
"""Number of unreadable labels that a message shows."""
MIN_VALUES, MIN_REPEATED, MIN_ROWS, MIN_OTHERS = 5, 3.0, 50, 0.9
"""Minimum number of a column's values, rows per value and rows of either split, and minimum share of pool rows with
values that no labelled row has, for possible groups."""


@dataclass(kw_only=True)
class SplitPreview:
    """The previewed rows of a split."""

    rows: int = 0
    size: int
    errors: Counter[str] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)
    """Number of rows by unreadable label that was made elsewhere, cut to ``MAX_CHARACTERS`` characters."""
    first: dict[str, str] = field(default_factory=dict)
    """Description of the first row by kind of error: its place, its columns' values and the domain's message."""
    values: dict[str, Counter[str]] = field(default_factory=dict)
    """Number of rows by value, for each column of texts or integers of at most ``MAX_CHARACTERS`` characters."""


def preview(
    config: RowsConfig, files: Mapping[str, Sequence[SourceFile]], taken: Mapping[str, int] = NOTHING
) -> dict[str, SplitPreview]:
    """Return some rows of each split, or all of a small source, as ``prepare`` will read them after ``taken`` rows.

    ``SourceError``: none of the rows of an audited pool has a gold label.
    """
    found: dict[str, SplitPreview] = {}
    for source, items in files.items():
        if source not in {split.source for split in config.splits.named().values()}:
            continue
        assignment = make_assignment(config, source, items, taken)
        if (num_rows := sum(file.num_rows for file in items)) <= RUNS * RUN_ROWS:
            positions_N = np.arange(num_rows)
        else:
            drawn_R = np.random.default_rng(config.seed).choice(num_rows // RUN_ROWS, RUNS, replace=False)
            positions_N = (np.sort(drawn_R)[:, None] * RUN_ROWS + np.arange(RUN_ROWS)).ravel()
        split_N = assignment.split_of(positions_N)
        with doing(f"reading {len(positions_N):,} rows of the source {source}"):
            drawn = read_rows_at(items, positions_N)
        if (id_column := config.sources[source].id_column) is not None:
            for file in items:
                if values := [row.raw.get(id_column) for row in drawn if row.file == file.index]:
                    convert_ids(file, values, id_column)
        for place, (name, size) in enumerate(assignment.counts.items()):
            rows = [drawn[row] for row in np.flatnonzero(split_N == place)]
            domain = get_domain(config.domain_of(name))
            split = found[name] = _look_at_rows(rows, items, domain, name, size)
            if name == POOL and config.splits.audit:  # read as a split that needs gold labels
                refused = _look_at_rows(rows, items, domain, "test", size)
                if refused.errors.total() == len(rows) > split.errors.total():
                    why = [f"{refused.first[kind]}; it " for kind in refused.first if kind not in split.errors]
                    words = NO_AUDIT.format(rows=f"{len(rows):,} (of {size:,}, looked at)")
                    raise SourceError(f"splits.audit: {''.join(why[:1])}{words}")
    return found


def _look_at_rows(
    rows: Sequence[SampledRow], files: Sequence[SourceFile], domain: Domain, split: str, size: int
) -> SplitPreview:
    found, paths = SplitPreview(size=size, rows=len(rows)), {file.index: file.path for file in files}
    examples = make_example_table(domain, split, range(len(rows)), [row.raw for row in rows])
    errors = examples["error"].to_pylist()
    for row in rows:
        for column, value in row.raw.items():
            if isinstance(value, str | int) and not isinstance(value, bool) and len(str(value)) <= MAX_CHARACTERS:
                found.values.setdefault(column, Counter())[str(value)] += 1
    for example in (row for row in examples.to_pylist() if row["error"] is None):
        completion = get_given_completion(domain, example)
        if completion is not None and attempt(domain.parse, completion, example)[0] is None:
            found.unread[completion.strip()[:MAX_CHARACTERS]] += 1
    found.errors.update(get_error_kind(text) for text in errors if text is not None)
    for row, text in zip(rows, errors, strict=True):
        if text is not None and (kind := get_error_kind(text)) not in found.first:
            known = {name: value for name, value in row.raw.items() if value is not None}
            words = ", ".join(f"{name}: {quote_text(str(value), MAX_CHARACTERS)}" for name, value in known.items())
            if empty := [name for name in row.raw if name not in known]:
                words += f"; empty: {', '.join(empty)}"
            problem = f"{text}{_describe_sought(domain, row.raw, kind)} (its columns: {words})"
            found.first[kind] = f"the first: row {row.row + 1} of {paths[row.file]}: {problem}"
    return found


def check_preview(found: Mapping[str, SplitPreview], config: RunConfig) -> Iterator[str]:
    """Yield lines on splits with rows that cannot be used.

    Raises:
        SourceError: more than ``splits.max_error_rate`` of a split's rows cannot be used: with 95 % confidence or, if
            all were looked at, for certain.
    """
    limit = config.splits.max_error_rate
    for name, split in found.items():
        if num_bad := split.errors.total():
            share, is_all = compute_proportion(num_bad, split.rows), split.rows == split.size
            of = "all" if is_all else f"{split.rows:,} of {split.size:,}"
            kinds = describe_errors(split.errors)
            words = f"splits.{name}: of {of} rows looked at {num_bad:,} cannot be used ({kinds})"
            first = "; ".join(split.first[kind] for kind, _ in split.errors.most_common())
            if (share.value if is_all else share.low) > limit:
                raise SourceError(
                    f"{words}, more than splits.max_error_rate {limit}; {first}; fix them, or raise the limit"
                )
            may = ", which may be too many: see splits.max_error_rate" if share.high > limit else ""
            yield f"{words}: {share.low:.1%} to {share.high:.1%}{may}; {first}"
        if split.unread:
            more = ", ..." if len(split.unread) > NUM_SHOWN else ""
            commonest = ", ".join(quote_text(text) for text, _ in split.unread.most_common(NUM_SHOWN)) + more
            yield (
                f"splits.{name}: {split.unread.total():,} of {split.rows:,} labels made elsewhere, looked at, cannot "
                f"be read ({commonest}); they count as wrong, and arms that rank leave them "
                f"out: write them as answers of {config.domain.name} are written, or add the words of classes to "
                "domain.classes"
            )


class _WatchedRow(Json):
    """A raw row that records which missing columns are looked up."""

    def __init__(self, raw: Mapping[str, object]) -> None:
        super().__init__(raw)
        self.sought: dict[str, None] = {}

    def __missing__(self, name: str) -> Any:
        self.sought[name] = None
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name):
            self.sought[str(name)] = None
            return False
        return True

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a column, or the default."""
        return super().get(name) if name in self else default


def _describe_sought(domain: Domain, raw: Mapping[str, object], kind: str) -> str:
    """Return a sentence on missing columns that the domain reads for a gold label, with the nearest existing column."""
    if kind not in ("no_gold", "domain_failed"):
        return ""
    watched, form = _WatchedRow(raw), {column for form in domain.forms for column in form}
    attempt(domain.gold, watched)
    names = [name for name in watched.sought if name not in form]  # these tell one form of rows from another
    if not names:
        return ""
    close = next((column for name in names if (column := find_nearest_column(name, raw)) is not None), None)
    hint = "; rename or add it" if close is None else f"; did you mean {quote_text(close)}? Rename it"
    return f"; the label was looked for in {' or '.join(names)}, which the row does not have{hint}"


def find_possible_groups(config: RunConfig, seen: Mapping[str, SplitPreview]) -> list[PossibleGroups]:
    """Return columns that may divide rows into groups, such as users; empty if ``splits.group`` names a column.

    In the previewed rows, their values repeat among the labelled rows and differ from the pool's. Rows of one group are
    alike: trust that is measured on some groups need not hold on others, and intervals by row counts are too narrow.
    """
    if "source" not in seen or POOL not in seen or config.splits.group is not None:
        return []
    domain, found = get_domain(config.domain_of("source")), list[PossibleGroups]()
    read = {*domain.columns.names, *(name for form in domain.forms for name in form)}
    for column, of_source in seen["source"].values.items():
        of_pool = seen[POOL].values.get(column, Counter[str]())
        if column not in read and is_possible_group(of_source, of_pool):
            others = sum(rows for value, rows in of_pool.items() if value not in of_source) / of_pool.total()
            counts = {"num_rows": of_source.total(), "num_values": len(of_source)}
            found.append(PossibleGroups(column=column, **counts, others=others))
    return found


def iter_group_warnings(groups: Iterable[PossibleGroups]) -> Iterator[str]:
    """Yield a warning for each possible grouping of rows."""
    for found in groups:
        yield (
            f"{found.words}. If rows of one value are alike (a user, a document, a day), trust is worth less on others "
            f"than the report can tell, and its intervals are too narrow: set splits.group: {found.column}, label rows "
            "of more values, or check 200 selected rows (curate review draw)"
        )


def is_possible_group(of_source: Counter[str], of_pool: Counter[str]) -> bool:
    """Return whether values repeat within the labelled rows and mostly differ from the pool's."""
    if min(of_source.total(), of_pool.total()) < MIN_ROWS or len(of_source) < MIN_VALUES:
        return False
    others = sum(rows for value, rows in of_pool.items() if value not in of_source)
    return of_source.total() >= MIN_REPEATED * len(of_source) and others >= MIN_OTHERS * of_pool.total()
