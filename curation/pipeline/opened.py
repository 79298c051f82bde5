"""A run directory opened for a configuration: checked against it, with its manifest and the stages to be done."""

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from curation.cluster import capacity
from curation.config import RunConfig
from curation.domains import get_domain
from curation.features import iter_found
from curation.models.dtypes import settle_cpus
from curation.pipeline.chain import Chain, describe
from curation.pipeline.grading import require_checkers
from curation.pipeline.growth import Deals, Files, describe_growth, find_deals, get_rows_identity
from curation.pipeline.outlook import iter_student_steps, iter_type_lines
from curation.pipeline.roles import check_models
from curation.pipeline.settling import settle
from curation.pipeline.work import Opened
from curation.redaction import redact_value
from curation.rundir.manifest import Manifest
from curation.selection.budget import check_pool
from curation.sources import check_unchanged, compute_split_sizes, discover
from curation.stages import fit
from curation.stages.preview import check_preview, preview
from curation.storage import lease
from curation.storage.paths import write_atomically


@dataclass(frozen=True, kw_only=True)
class OpenedRun(Opened[RunConfig]):
    """A run directory, and the stages to run in it."""

    chain: Chain
    num_pool: int
    """Number of rows of the pool of one generation."""
    deals: Deals
    warnings: tuple[str, ...] = ()
    """Warnings on how the labelled rows are read."""

    def save(self) -> None:
        """Write the definition of the run to its directory: its identity and files, and the configuration."""
        self.manifest.save()
        settings = redact_value(self.config.model_dump(mode="json", by_alias=True))  # null, too, is a choice
        write_atomically(self.manifest.directory / "config.yaml", yaml.safe_dump(settings, sort_keys=False))

    def begin(self) -> Iterator[str]:
        """Yield lines on the type of each ``dtype: auto``; load configurations and tokenizers of models."""
        check_models(self.config, loads=True)
        yield from iter_type_lines(self.config)

    def checks(self) -> Iterator[str]:
        """Yield lines on checks and students' steps, on models, and on rows of the sources not yet prepared."""
        config, files = self.config, self.manifest.source_files
        yield from (f"warning: {line}" for line in self.warnings)
        check_models(config, loads=True)
        capacity.check_machine(config.ray, self.needs)
        yield from (f"warning: {line}" for line in iter_found(config, "warnings"))
        yield from iter_student_steps(config, self.num_pool)
        if self.is_settled(self.chain.preparing):
            return  # rows are prepared, and were looked at
        taken = self.deals.taken(files)
        yield from check_preview(preview(config, files, taken), config)
        yield from iter_type_lines(config)


def open_run(config: RunConfig, *, guard: lease.Guard = lease.guard_nothing) -> OpenedRun:
    """Open a configuration's run directory and check it against the configuration; nothing is written.

    ``guard`` is called before any permanent change of the directory.

    Raises:
        UserError: the directory belongs to other rows, an input changed, or something that is named does not exist.
    """
    check_models(config)
    config, warnings = settle(config)
    get_domain(config.domain)
    require_checkers(config)
    manifest = Manifest.load(config.directory, guard=guard)
    manifest.require_current()
    manifest.bfloat16_on_cpus = settle_cpus(manifest.bfloat16_on_cpus)
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
        warnings=warnings,
    )


def check_settings(config: RunConfig, files: Files, num_pool: int) -> list[str]:
    """Refuse settings that do not fit a generation's ``num_pool`` rows, domain or files; describe the others."""
    check_pool(config.selection.budget, num_pool)
    fit.check_settings(config.trust)
    return [*iter_found(config, "settings")]
