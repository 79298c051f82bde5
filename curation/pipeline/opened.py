"""A run directory opened for a configuration: checked against it, with its manifest and the stages to be done.

Some options of a run's domains are decided by its labelled rows: classes, and how answers are written. They are decided
once, before the run directory has an identity, and are part of it and of all keys from then on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from curation.cluster import capacity
from curation.config import DomainConfig, RunConfig
from curation.domains import attempt, get_domain
from curation.domains.classification import parse_labels, with_words
from curation.errors import ConfigError, SourceError
from curation.escaping import quote_text
from curation.features import iter_found
from curation.json_types import JsonView
from curation.pipeline.chain import Chain, describe
from curation.pipeline.grading import require_checkers
from curation.pipeline.growth import Deals, Files, describe_growth, find_deals, get_rows_identity
from curation.pipeline.outlook import iter_type_lines
from curation.pipeline.roles import check_models
from curation.pipeline.work import Opened
from curation.redaction import redact_value
from curation.rundir.manifest import Manifest
from curation.selection.budget import check_pool
from curation.sources import (
    SourceFile,
    check_unchanged,
    compute_split_sizes,
    discover,
    find_nearest_column,
    make_assignment,
    read_rows_at,
)
from curation.stages import fit
from curation.stages.split_tables import POOL
from curation.storage import lease
from curation.storage.paths import write_atomically


@dataclass(frozen=True, kw_only=True)
class OpenedRun(Opened[RunConfig]):
    """A run directory, and the stages to run in it."""

    chain: Chain
    num_pool: int
    """Number of rows of the pool of one generation."""
    deals: Deals

    def save(self) -> None:
        """Write the definition of the run to its directory: its identity and files, and the configuration."""
        self.manifest.save()
        settings = redact_value(self.config.model_dump(mode="json", by_alias=True))  # null is a choice, too
        write_atomically(self.manifest.directory / "config.yaml", yaml.safe_dump(settings, sort_keys=False))

    def begin(self) -> Iterator[str]:
        """Yield lines on the type of each ``dtype: auto``; load configurations and tokenizers of models."""
        check_models(self.config, loads=True)
        yield from iter_type_lines(self.config)


def open_run(config: RunConfig, *, guard: lease.Guard = lease.guard_nothing) -> OpenedRun:
    """Open a configuration's run directory and check it against the configuration; nothing is written.

    ``guard`` is called before any permanent change of the directory.

    Raises:
        UserError: the directory belongs to other rows, an input changed, or something that is named does not exist.
    """
    check_models(config)
    config = settle(config)
    get_domain(config.domain)
    require_checkers(config)
    manifest = Manifest.load(config.directory, guard=guard)
    manifest.require_current()
    deals, known = find_deals(config, manifest), manifest.source_files
    files = {name: discover(source, known.get(name, ())) for name, source in config.sources.items()}
    for name in files:
        check_unchanged(known.get(name, ()), files[name])
    num_pool = config.pool_share(compute_split_sizes(config, files, deals.taken(files)))
    check_settings(config, files, num_pool)
    chain = describe(config, files, deals)
    recorded = {name: [file.recorded() for file in items] for name, items in files.items()}
    manifest.identify(get_rows_identity(config), recorded, deals=deals.to_json())
    return OpenedRun(
        config=config,
        manifest=manifest,
        name=config.name,
        stages=chain.stages,
        needs=capacity.list_needs(config),
        growth={"added": describe_growth(config, deals, manifest.source_files)},
        chain=chain,
        num_pool=num_pool,
        deals=deals,
    )


def check_settings(config: RunConfig, files: Files, num_pool: int) -> list[str]:
    """Refuse settings that do not fit a generation's ``num_pool`` rows, domain or files; describe the others."""
    check_pool(config.selection.budget, num_pool)
    fit.check_settings(config.trust)
    return [*iter_found(config, "settings")]


_ROWS = 50_000
"""Number of rows that are in memory at once."""
LABELLED = "source"
"""The split whose labels are the classes."""
MOST_CLASSES = 1_000
"""Maximum number of distinct labels in a column of classes."""

Classes = list[str] | dict[str, str]
"""Labels, or words by label."""


def settle(config: RunConfig) -> RunConfig:
    """Return the configuration with its classes and, by source, the options of the domain that labelled rows decide.

    A run directory that was opened before keeps the options that it began with, unless a source's rows are asked
    differently now. The run's own domain is that of the labelled split.

    Raises:
        ConfigError: the rows do not decide; the message names the key.
        SourceError: a file cannot be read.
    """
    config = with_split_classes(config)
    identity: JsonView = Manifest.load(config.directory).identity or {}
    found: dict[str, DomainConfig] = {}
    for name, source in config.sources.items():
        asked = source.domain or config.domain
        domain = get_domain(asked)
        splits = [split for split in config.domains_of(name) if split != POOL or config.splits.audit]
        if not splits or not set(domain.settles) - set(asked.options):
            continue
        if name in identity.get("sources", {}):
            begun = identity["sources"][name].get("domain") or identity["domain"]
            kept = {option: begun[option] for option in domain.settles if option in begun}
            found[name] = asked.with_options(**{**kept, **asked.options})
            if found[name].ungraded.to_key() == begun:
                continue
        decided = domain.settle(_iter_labelled(config, name, discover(source), splits), f"source {name}")
        found[name] = asked.with_options(**{**decided, **asked.options})
    labelled, common = config.splits.source.source, config.domain
    if labelled in found and config.sources[labelled].domain is None:
        common = found[labelled]
    sources = {}
    for name, source in config.sources.items():
        own = found.get(name, source.domain)
        is_common = source.domain is None and (own is None or own == common)
        sources[name] = source if is_common else source.model_copy(update={"domain": own})
    return config.model_copy(update={"domain": common, "sources": sources})


def _iter_labelled(
    config: RunConfig,
    source: str,
    files: Sequence[SourceFile],
    splits: Sequence[str],
    columns: Sequence[str] | None = None,
) -> Iterator[Any]:
    """Yield the rows of a source's ``splits`` with the given columns, or all columns if None."""
    assignment = make_assignment(config, source, files)
    num_rows = sum(assignment.counts[split] for split in splits)
    positions_N = np.sort(assignment.draw(splits, num_rows, 0))
    for start in range(0, num_rows, _ROWS):
        yield from (row.raw for row in read_rows_at(files, positions_N[start : start + _ROWS], columns))


def with_split_classes(config: RunConfig) -> RunConfig:
    """Return the configuration with all classes; if ``domain.classes`` is left out, they are from the labelled split.

    A run directory that was opened before keeps the classes that it began with.

    Raises:
        ConfigError: the labelled split's rows have no such classes, fewer than two labels, or too many.
        SourceError: a file cannot be read, or lacks the label's column.
    """
    own = [source.domain for source in config.sources.values() if source.domain is not None]
    if not any(domain.lacks_classes for domain in (config.domain, *own)):
        return config
    classes: Classes | None = None
    identity: JsonView = Manifest.load(config.directory).identity
    if identity:
        begun = identity["sources"].get(config.splits.source.source, {}).get("domain") or identity["domain"]
        recorded = begun.get("classes")
        asked = config.domain_of(LABELLED).with_options(classes=recorded).to_key()
        if begun == asked and isinstance(recorded, list | dict):  # else the labelled split was asked differently
            classes = recorded
    classes = classes or _read_row_classes(config)

    def fill(domain: DomainConfig) -> DomainConfig:
        return domain.with_options(classes=classes) if domain.lacks_classes else domain

    return config.model_copy(update=config.with_domains(fill))


def _read_row_classes(config: RunConfig) -> Classes:
    domain, source = config.domain_of(LABELLED), config.splits.source.source
    if not domain.lacks_classes:
        raise ConfigError(
            "domain.classes: is left out, and the labelled split is read by another domain with classes of its own; "
            "give the classes"
        )
    files = discover(config.sources[source])
    column = str(domain.options.get("label", "label"))
    for file in files:
        if column not in file.schema:
            close = find_nearest_column(column, file.schema)
            hint = f"did you mean {quote_text(close)}?" if close else f"it has {', '.join(file.schema)}"
            raise SourceError(
                f"{file.path}: has no column {quote_text(column)}, whose labels would be the classes; {hint} Set "
                "domain.label, or give domain.classes"
            )
    where = f"domain.classes: is left out, and column {quote_text(column)} of splits.{LABELLED} has"
    found: set[str] = set()
    for row in _iter_labelled(config, source, files, [LABELLED], [column]):
        labels = None if row[column] is None else attempt(parse_labels, row[column], domain.options)[0]
        found |= labels or set()  # unreadable rows are refused elsewhere
        if len(found) > MOST_CLASSES:
            some = ", ".join(quote_text(label, 20) for label in sorted(found)[:3])
            raise ConfigError(
                f"{where} more than {MOST_CLASSES:,} different labels ({some}, ...), so it holds no classes; name the "
                "column with the class as domain.label, or give the classes as a list or a file"
            )
    if len(found) < 2:
        raise ConfigError(
            f"{where} {'one label alone, ' + quote_text(min(found)) if found else 'no label'}; at least two are "
            "needed: give more labelled rows, or the classes as a list"
        )
    return with_words(sorted(found))
