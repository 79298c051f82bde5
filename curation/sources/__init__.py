"""Input files: find and number them, read them in a fixed order, assign row ids, and deal rows into disjoint splits."""

from curation.sources.files import check_unchanged, discover, left_out_words, nearest, require_columns
from curation.sources.ids import check_unique, row_ids
from curation.sources.missing import as_kept, kept_fields, raw_rows
from curation.sources.readers import read_rows
from curation.sources.sample import rows_at
from curation.sources.source_file import SourceFile, Stretch, grouped, stretches
from curation.sources.splits import (
    NOTHING,
    Assignment,
    GroupedPermutation,
    Permutation,
    assign,
    assignment_of,
    cluster_of,
    split_sizes,
)

__all__ = [
    "NOTHING",
    "Assignment",
    "GroupedPermutation",
    "Permutation",
    "SourceFile",
    "Stretch",
    "as_kept",
    "assign",
    "assignment_of",
    "check_unchanged",
    "check_unique",
    "cluster_of",
    "discover",
    "grouped",
    "kept_fields",
    "left_out_words",
    "nearest",
    "raw_rows",
    "read_rows",
    "require_columns",
    "row_ids",
    "rows_at",
    "split_sizes",
    "stretches",
]
