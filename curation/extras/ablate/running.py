"""From an ablation to its tables: each seed has a run directory, in which stages of several variants run once.

An ablation is one graph per seed, with the stages of all variants; stages with equal inputs occur once.
"""

from collections.abc import Sequence

from curation.arms import REFERENCE_ARM
from curation.cluster.versions import find_versions
from curation.errors import ConfigError
from curation.extras.ablate import tables
from curation.extras.ablate.config import POOL, Ablation, Variant
from curation.json_types import Json
from curation.pipeline.chain import describe
from curation.pipeline.growth import Files
from curation.pipeline.opened import OpenedRun, settle
from curation.pipeline.running import hold_run
from curation.pipeline.work import session
from curation.redaction import redact_value
from curation.rundir.graph import Merged, Stage, order_stages, resolve_outputs
from curation.selection.budget import check_pool
from curation.storage.paths import Place
from curation.telemetry.console import say


def run(ablation: Ablation, directory: Place, *, command: str | None = None, wait: bool = False) -> Json:
    """Run the missing stages of all variants, seed after seed, and write the tables; return their numbers."""
    check(ablation)
    seeds, shares = {}, {}
    with session():
        for seed, variants in ablation.variants.items():
            home = directory / variants[0].config.name / f"seed-{seed}"
            config = settle(variants[0].config.model_copy(update={"run_dir": str(home)}))
            rows = {"domain": config.domain, "sources": config.sources}  # the same of all variants
            variants = tuple(variant._replace(config=variant.config.model_copy(update=rows)) for variant in variants)

            def of_seed(opened: OpenedRun, variants: Sequence[Variant] = variants) -> list[Stage]:
                return order_stages(describe_seed(ablation, variants, opened.manifest.source_files))

            with hold_run(config, of_seed, wait=wait) as (opened, driver):
                for variant in variants:
                    budget = variant.config.selection.budget
                    check_pool(budget, opened.num_pool)
                    share = ablation.config.share or budget.share or (budget.n or 0) / opened.num_pool
                    shares[variant.name] = share
                described = describe_seed(ablation, variants, opened.manifest.source_files)
                seeds[seed] = resolve_outputs(described, driver.do(order_stages(described)))
    read = redact_value(ablation.config.model_dump(mode="json", by_alias=True))
    content = tables.collect(ablation.name, read, shares, seeds, command=command, versions=find_versions())
    say(f"report: {tables.write(content, directory)}")
    return content


def check(ablation: Ablation) -> None:
    """Refuse an ablation that cannot be measured, by a ``ConfigError`` that names the key and the remedy."""
    for variant in (variant for variants in ablation.variants.values() for variant in variants):
        config, where = variant.config, f"variants.{variant.name}"
        if config.teacher.store_states is False:
            raise ConfigError(
                f"{where}: teacher.store_states: false would label the pool anew for every trust function; set it to "
                "true"
            )
        for name in ablation.config.sets:
            if name == POOL and not config.splits.audit:
                raise ConfigError(f"{where}: sets: the pool is graded only with splits.audit: true")
            if name != POOL and name not in config.splits.probes:
                known = ", ".join([POOL, *config.splits.probes])
                raise ConfigError(f"{where}: sets: {name!r} is none of {known}; add it to splits.probes")
        budget = config.selection.budget
        if ablation.config.share is None and budget.n is None and budget.share is None:
            raise ConfigError(f"{where}: purity needs a number of rows: set share, since selection.budget names none")
        if ablation.config.students and not config.generations:
            raise ConfigError(f"{where}: students: the run has no generations, so that nothing is trained")
        if ablation.config.students and config.splits.test is None:
            raise ConfigError(f"{where}: students: true needs a test split; add splits.test, or leave students out")


def describe_seed(ablation: Ablation, variants: Sequence[Variant], files: Files) -> dict[str, Json]:
    """Return the outputs of the merged stages of the variants with one seed, over ``files``.

    ``rows`` has labels and grades by variant and set, with the function that scores them; ``fits`` the trust functions
    by variant, of variants whose function is fitted; ``tests`` the grades of the test split by variant and model.
    """
    merged = Merged()
    found: dict[str, Json] = {"rows": {}, "fits": {}, "tests": {}}
    for variant in variants:
        generation = describe(variant.config, files).first
        record, name = generation.record, variant.name
        fitted = variant.function == REFERENCE_ARM
        found["rows"][name] = {}
        for rows in ablation.config.sets:
            split = rows if rows == POOL else f"probe-{rows}"
            found["rows"][name][rows] = {
                "labels": merged.out(generation.answers[split]),
                "grades": merged.out(record["grades"][split]),
                "trust": merged.out(record["trust"]) if fitted else None,
                "function": variant.function,
                "seed": variant.config.seed,
            }
        if fitted:
            found["fits"][name] = merged.out(record["trust"])
        if ablation.config.students:
            found["tests"][name] = {model: [merged.out(run) for run in runs] for model, runs in record["tests"].items()}
    return found
