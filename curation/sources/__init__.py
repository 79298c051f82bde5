"""Input files: find and number them, read them in a fixed order, assign row ids, and split rows into disjoint parts."""

from curation.sources.files import check_unchanged, describe_left_out, discover, find_nearest_column, require_columns
from curation.sources.ids import check_unique, get_row_ids
from curation.sources.missing import as_kept, make_kept_fields, to_raw_rows
from curation.sources.readers import read_rows
from curation.sources.sample import read_rows_at
from curation.sources.source_file import SourceFile, Stretch, group_stretches, iter_stretches
from curation.sources.splits import (
    NOTHING,
    Assignment,
    GroupedPermutation,
    Permutation,
    assign,
    compute_cluster,
    compute_split_sizes,
    make_assignment,
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
    "check_unchanged",
    "check_unique",
    "compute_cluster",
    "compute_split_sizes",
    "describe_left_out",
    "discover",
    "find_nearest_column",
    "get_row_ids",
    "group_stretches",
    "iter_stretches",
    "make_assignment",
    "make_kept_fields",
    "read_rows",
    "read_rows_at",
    "require_columns",
    "to_raw_rows",
]
