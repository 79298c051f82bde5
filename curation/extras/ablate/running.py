"""From an ablation to its tables: each seed has a run directory, in which stages of several variants run once."""

from collections.abc import Sequence

from curation.cluster.versions import find_versions
from curation.extras.ablate import tables
from curation.extras.ablate.config import Ablation, Variant
from curation.extras.ablate.stages import check, compute_shares, describe_seed
from curation.json_types import Json
from curation.pipeline.opened import OpenedRun
from curation.pipeline.running import hold_run
from curation.pipeline.session import session
from curation.pipeline.settling import settle
from curation.redaction import redact_value
from curation.rundir.graph import Stage, resolve_outputs
from curation.storage.paths import Place
from curation.telemetry.console import say


def run(ablation: Ablation, directory: Place, *, command: str | None = None, wait: bool = False) -> Json:
    """Run the missing stages of all variants, seed after seed, and write the tables; return the page's content.

    Each seed has a run directory in ``directory``, which it shares with other ablations of the same name.

    Raises:
        ConfigError: the ablation cannot be measured.
    """
    check(ablation)
    seeds, shares = {}, {}
    with session():
        for seed, variants in ablation.variants.items():
            home = directory / variants[0].config.name / f"seed-{seed}"
            config = settle(variants[0].config.model_copy(update={"run_dir": str(home)})).config
            rows = {"domain": config.domain, "sources": config.sources}  # the same of all variants
            variants = tuple(variant._replace(config=variant.config.model_copy(update=rows)) for variant in variants)

            def of_seed(opened: OpenedRun, variants: Sequence[Variant] = variants) -> list[Stage]:
                return describe_seed(ablation, variants, opened.manifest.source_files).stages

            with hold_run(config, of_seed, wait=wait) as (opened, driver):
                shares = compute_shares(ablation, variants, opened.num_pool)
                described = describe_seed(ablation, variants, opened.manifest.source_files)
                seeds[seed] = resolve_outputs(described._asdict(), driver.do(described.stages))
    content = tables.collect(
        tables.AblationRecord(
            name=ablation.name,
            command=command,
            config=redact_value(ablation.config.model_dump(mode="json", by_alias=True)),
            versions=find_versions(),
            shares=shares,
            seeds=seeds,
        )
    )
    page, _ = tables.write(content, directory)
    say(f"report: {page}")
    return content
