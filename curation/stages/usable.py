"""Rows of the splits that cannot be used, which are counted by kind, reported, and refused if they are too many."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from curation.errors import SourceError, get_error_kind
from curation.refs import TableRef
from curation.stages.deal import AUDIT
from curation.stopping import iter_checked
from curation.tables import io

NO_AUDIT = (
    "keeps gold labels of the pool, but none of its {rows} rows has one; give rows with gold labels, or set audit: "
    "false (and drop what needs it: gold arms, oracle budgets)"
)


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """The counts of a split's rows, before rows with questions of other splits are dropped."""

    rows: int
    errors: dict[str, int]
    """Error rows by kind; in the audit table, remaining rows without a gold label or with an unusable solution."""


def check_usable(
    refs: Mapping[str, TableRef],
    counts: Mapping[str, SplitCounts],
    max_error_rate: float,
    shown: Callable[[str], str] = lambda split: "",
) -> None:
    """Refuse splits with too many error rows, and an audit table without gold labels, before anything is labelled.

    ``shown`` returns a description of the first bad rows of a split, for the message.

    Raises:
        SourceError: a split or the audit table is refused; for a split, the message names its table.
    """
    for name, count in counts.items():
        if name == AUDIT:
            if count.errors.get("no_gold", 0) == count.rows:
                raise SourceError(f"splits.audit: {shown(name)}{NO_AUDIT.format(rows=f'{count.rows:,}')}")
        else:
            check_share("splits", refs[name], count, max_error_rate, split=name, shown=shown)


def check_share(
    section: str,
    ref: TableRef,
    count: SplitCounts,
    max_error_rate: float,
    *,
    split: str = "",
    shown: Callable[[str], str] = lambda split: "",
) -> None:
    """Refuse a table with a larger share of error rows than ``max_error_rate`` of this section of the configuration.

    Raises:
        SourceError: the table is refused; the message names it.
    """
    num_bad = sum(count.errors.values())
    if num_bad > max_error_rate * count.rows:
        first = shown(split)
        raise SourceError(
            f"{section}{'.' if split else ''}{split}: {num_bad:,} of {count.rows:,} rows cannot be used "
            f"({describe_errors(count.errors)}), more than {section}.max_error_rate {max_error_rate}; "
            f"{first}{'; ' if first else ''}`curate inspect "
            f'{ref.uri} --where "error IS NOT NULL"` shows them; fix them, or raise the limit: then they are left out'
        )


def describe_unusable(counts: Mapping[str, SplitCounts]) -> Iterator[str]:
    """Yield a line for each split with rows that cannot be used."""
    for name, count in counts.items():
        if name != AUDIT and (num_bad := sum(count.errors.values())):
            yield f"{name}: {num_bad:,} of {count.rows:,} rows cannot be used ({describe_errors(count.errors)})"


def describe_errors(errors: Mapping[str, int]) -> str:
    """Return numbers of error rows by kind as text, the most frequent first."""
    return ", ".join(f"{kind} {number:,}" for kind, number in Counter(errors).most_common())


def count_split(ref: TableRef, name: str) -> SplitCounts:
    """Count the rows and errors of a split's table, or of the audit table."""
    rows, errors = 0, Counter[str]()
    problems = "solution_error" if name == AUDIT else "error"
    columns = [problems, *(["gold"] if name == AUDIT else [])]
    for batch in iter_checked(io.open_table(ref).scanner(columns=columns).to_batches()):
        rows += batch.num_rows
        if name == AUDIT and (num_unknown := batch.column("gold").null_count):
            errors["no_gold"] += num_unknown
        errors.update(map(get_error_kind, batch.column(problems).drop_null().to_pylist()))
    return SplitCounts(rows=rows, errors=dict(errors.most_common()))
