"""Options of a run's domains that its labelled rows decide: classes, and how answers are written.

It is decided once, before the run directory has an identity, and stands in it from then on, so that all keys hold it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from curation.config import DomainConfig, RunConfig
from curation.domains import get_domain
from curation.json_types import Json, JsonView
from curation.pipeline.split_classes import with_split_classes
from curation.rundir.manifest import Manifest
from curation.sources import SourceFile, assignment_of, discover, rows_at
from curation.stages.deal import POOL

_ROWS = 50_000
"""Rows that are in memory at once."""


class SettledRun(NamedTuple):
    """A configuration with all that its labelled rows decide, and warnings about it."""

    config: RunConfig
    warnings: tuple[str, ...] = ()


def settle(config: RunConfig) -> SettledRun:
    """The configuration with its classes, and for each source the options of its domain that its labelled rows decide.

    Of a run directory that has been opened before they are those that it began with.

    Raises:
        ConfigError: the rows do not decide; the message names the key.
        SourceError: a file cannot be read.
    """
    config = with_split_classes(config)
    identity: JsonView = Manifest.load(config.directory).identity or {}
    found: dict[str, DomainConfig] = {}
    warnings: list[str] = []
    for name, source in config.sources.items():
        asked = source.domain or config.domain
        domain = get_domain(asked)
        splits = [split for split in config.domains_of(name) if split != POOL or config.splits.audit]
        if not splits or not set(domain.settles) - set(asked.options):
            continue
        kept = _recorded(identity, name, asked, domain.settles)
        if kept is None:
            files = discover(source)
            decided = domain.settle(_labelled(config, name, files, splits), f"source {name}")
            kept = dict(decided.options)
            warnings += filter(None, [decided.warning])
        found[name] = asked.with_options(**{**kept, **asked.options})
    return SettledRun(_with_domains(config, found), tuple(warnings))


def _recorded(identity: JsonView, source: str, asked: DomainConfig, settles: Sequence[str]) -> Json | None:
    """The options with which a run began, where its rows of this source were asked in the same way."""
    if source not in identity.get("sources", {}):
        return None
    begun = identity["sources"][source].get("domain") or identity["domain"]
    kept = {name: begun[name] for name in settles if name in begun}
    same = asked.with_options(**{**kept, **asked.options}).ungraded.to_key() == begun
    return kept if same else None


def _with_domains(config: RunConfig, found: dict[str, DomainConfig]) -> RunConfig:
    """The configuration with the domains of its sources; the run's own is that of the labelled split."""
    labelled = config.splits.source.source
    common = config.domain
    if labelled in found and config.sources[labelled].domain is None:
        common = found[labelled]
    sources = {}
    for name, source in config.sources.items():
        own = found.get(name, source.domain)
        is_common = source.domain is None and (own is None or own == common)
        sources[name] = source if is_common else source.model_copy(update={"domain": own})
    return config.model_copy(update={"domain": common, "sources": sources})


def _labelled(config: RunConfig, source: str, files: Sequence[SourceFile], splits: Sequence[str]) -> Iterator[Any]:
    """The rows of a source's splits that have gold labels."""
    assignment = assignment_of(config, source, files)
    num_rows = sum(assignment.counts[split] for split in splits)
    positions_N = np.sort(assignment.draw(splits, num_rows, 0))
    for start in range(0, num_rows, _ROWS):
        yield from (row.raw for row in rows_at(files, positions_N[start : start + _ROWS]))
