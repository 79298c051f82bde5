"""The columns that the files of a source must have: those that its splits' domains read."""

from collections.abc import Sequence

from curation.config import RowsConfig
from curation.domains import get_domain
from curation.sources import SourceFile, require_columns


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
    given = config.domain_of("source").given_labels
    if given is not None and given.grade is not None and source == config.splits.source.source:
        require_columns(files, [[given.grade]])
