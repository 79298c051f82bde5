"""A run directory opened for a configuration: checked against it, with its manifest and the stages to be done."""

from dataclasses import dataclass

import yaml

from curation.config import RunConfig
from curation.domains import get_domain
from curation.pipeline.chain import Chain, describe
from curation.pipeline.grading import require_checkers
from curation.pipeline.growth import Deals, Files, deals_of, identity_of
from curation.pipeline.roles import check_models
from curation.redaction import redacted_in
from curation.rundir.graph import Status, statuses
from curation.rundir.manifest import Manifest
from curation.selection.budget import check_pool
from curation.sources import check_unchanged, discover, split_sizes
from curation.stages.cap_keys import check_by
from curation.stages.class_quota import divided
from curation.stages.fit import check_settings
from curation.stages.keep import check_kept
from curation.storage import lease
from curation.storage.paths import write_atomically


@dataclass(frozen=True, kw_only=True)
class OpenedRun:
    """A run directory, and what is to be done in it."""

    config: RunConfig
    manifest: Manifest
    chain: Chain
    num_pool: int
    """Rows of the pool of one generation."""
    deals: Deals

    @property
    def statuses(self) -> list[Status]:
        """Where every stage stands."""
        return list(statuses(self.chain.stages, self.manifest.records))

    def save(self) -> None:
        """Write what defines the run into its directory: its identity and files, and the configuration."""
        self.manifest.save()
        settings = redacted_in(self.config.model_dump(mode="json", by_alias=True))  # null, too, is a choice
        write_atomically(self.manifest.directory / "config.yaml", yaml.safe_dump(settings, sort_keys=False))


def open_run(config: RunConfig, *, save: bool, guard: lease.Guard = lease.unguarded) -> OpenedRun:
    """The run directory of a configuration, checked against it, and its stages; ``save``: what is new is written.

    ``guard`` is called before anything there is changed for good.

    Raises:
        UserError: the directory belongs to other rows, an input changed, or something that is named is not there.
    """
    check_models(config)
    get_domain(config.domain)
    require_checkers(config)
    manifest = Manifest.load(config.directory, guard=guard)
    deals, known = deals_of(config, manifest), manifest.source_files
    files = {name: discover(source, known.get(name, ())) for name, source in config.sources.items()}
    for name in files:
        check_unchanged(known.get(name, ()), files[name])
    described = {name: [file.recorded() for file in items] for name, items in files.items()}
    opened = _opened(config, manifest, files, deals)
    manifest.identify(identity_of(config), described, deals=deals.to_json(), save=False)
    if save:
        opened.save()
    return opened


def _opened(config: RunConfig, manifest: Manifest, files: Files, deals: Deals) -> OpenedRun:
    num_pool = split_sizes(config, files, deals.taken(files))["pool"] // config.num_shares
    check_pool(config.selection.budget, num_pool)
    check_by(config.selection.max_per_label_by, get_domain(config.domain_of("pool")))
    divided(config.selection, get_domain(config.domain_of("pool")))
    check_settings(config.trust)
    check_kept(config.selection.keep, files[config.splits.pool.source])
    chain = describe(config, files, deals)
    return OpenedRun(config=config, manifest=manifest, chain=chain, num_pool=num_pool, deals=deals)


def as_recorded(config: RunConfig) -> OpenedRun | None:
    """A run as its record describes it, without a look at its sources; ``None`` where they are not all on record.

    Raises:
        RunDirError: the record is damaged.
    """
    manifest = Manifest.load(config.directory)
    if manifest.identity != identity_of(config) or manifest.files.keys() != config.sources.keys():
        return None
    check_models(config)
    return _opened(config, manifest, manifest.source_files, deals_of(config, manifest))
