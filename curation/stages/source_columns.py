"""The columns that the files of a source must have: those that its splits' domains read."""

from collections.abc import Sequence

from curation.config import RowsConfig
from curation.domains import get_domain
from curation.errors import SourceError
from curation.escaping import quoted
from curation.sources import SourceFile, nearest, require_columns

GROUPED = ("source", "calibration", "pool")
"""The splits whose files must have the column ``splits.group``."""


def check_columns(config: RowsConfig, source: str, files: Sequence[SourceFile]) -> None:
    """Refuse files of a source that lack a column which one of its splits needs.

    A column of grades must be in the files of the source split; those of other splits may have gold labels instead.

    Raises:
        SourceError: names the file, the column, and the nearest one that the file has.
    """
    own = config.sources[source]
    ids = [] if own.id_column is None else [own.id_column]
    for domain in config.domains_of(source).values() or [own.domain or config.domain]:
        require_columns(files, [[*form, *ids] for form in get_domain(domain).forms])
    group, named = config.splits.group, config.splits.named()
    if group is not None and any(named[name].source == source for name in GROUPED if name in named):
        for file in files:
            if group not in file.schema:
                close = nearest(group, file.schema)
                raise SourceError(
                    f"splits.group: {file.path} has no column {quoted(group)} (it has: {', '.join(file.schema)}), and "
                    f"the files of {', '.join(GROUPED)} must; "
                    + (f"did you mean {quoted(close)}?" if close else "name a column of theirs, or add it")
                )
    given = config.domain_of("source").given_labels
    if given is not None and given.grade is not None and source == config.splits.source.source:
        require_columns(files, [[given.grade]])
