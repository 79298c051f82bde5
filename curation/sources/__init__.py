"""Input files: find and number them, read them in a fixed order, assign row ids, and split rows into disjoint parts."""

from curation.sources.files import check_unchanged as check_unchanged
from curation.sources.files import discover as discover
from curation.sources.files import find_nearest_column as find_nearest_column
from curation.sources.files import require_columns as require_columns
from curation.sources.missing import as_kept as as_kept
from curation.sources.missing import make_kept_fields as make_kept_fields
from curation.sources.missing import to_raw_rows as to_raw_rows
from curation.sources.readers import read_rows as read_rows
from curation.sources.readers import read_rows_at as read_rows_at
from curation.sources.source_file import SourceFile as SourceFile
from curation.sources.source_file import Stretch as Stretch
from curation.sources.source_file import group_stretches as group_stretches
from curation.sources.source_file import iter_stretches as iter_stretches
from curation.sources.splits import NOTHING as NOTHING
from curation.sources.splits import Assignment as Assignment
from curation.sources.splits import GroupedPermutation as GroupedPermutation
from curation.sources.splits import Permutation as Permutation
from curation.sources.splits import assign as assign
from curation.sources.splits import check_unique as check_unique
from curation.sources.splits import compute_cluster as compute_cluster
from curation.sources.splits import compute_split_sizes as compute_split_sizes
from curation.sources.splits import get_row_ids as get_row_ids
from curation.sources.splits import make_assignment as make_assignment
