"""Columns of the files that may divide rows into groups; ``curation.stages.preview`` finds them."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PossibleGroups:
    """A column that may divide rows into groups, such as users."""

    column: str
    num_rows: int
    """Number of labelled rows examined."""
    num_values: int
    """Number of distinct values of the column in these rows."""
    others: float
    """Share of the pool's rows that have other values."""

    @property
    def words(self) -> str:
        """Description of the column and its values."""
        return (
            f"the column {self.column} may divide rows into groups ({self.num_rows:,} labelled rows that were looked "
            f"at have {self.num_values:,} values, and {100 * self.others:.0f} % of the pool's rows have others)"
        )
