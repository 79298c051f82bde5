"""An ablation as one graph per seed, with the stages of all variants; stages with equal inputs occur once."""

from collections.abc import Sequence
from typing import NamedTuple

from curation.arms import REFERENCE_ARM
from curation.errors import ConfigError
from curation.extras.ablate.config import POOL, Ablation, Variant
from curation.pipeline.chain import describe
from curation.pipeline.growth import Files
from curation.rundir.graph import Out, Stage, order_stages
from curation.rundir.merging import Merged
from curation.selection.budget import check_pool
from curation.stages.score import ScoreGraded


class AblationStages(NamedTuple):
    """The outputs of an ablation's stages with one seed."""

    scored: dict[str, dict[str, Out]]
    """Scored rows (``schemas.SCORED``) by variant and set."""
    fits: dict[str, Out]
    """Fitted trust functions by variant, for variants whose function is fitted."""
    projections: dict[str, Out]
    """Projections of stored states by variant, for variants that have one."""
    tests: dict[str, dict[str, list[Out]]]
    """Grades of the test split by variant and model; empty without students."""

    @property
    def stages(self) -> list[Stage]:
        """All stages, each after the stages that it depends on."""
        return order_stages([*self])


def check(ablation: Ablation) -> None:
    """Refuse an ablation that cannot be measured.

    Raises:
        ConfigError: the ablation is refused; the message names the key and the remedy.
    """
    for variants in ablation.variants.values():
        for variant in variants:
            _check(ablation, variant)


def _check(ablation: Ablation, variant: Variant) -> None:
    config, where = variant.config, f"variants.{variant.name}"
    if config.teacher.store_states is False:
        raise ConfigError(
            f"{where}: teacher.store_states: false would label the pool anew for every trust function; set it to true"
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


def compute_shares(ablation: Ablation, variants: Sequence[Variant], num_pool: int) -> dict[str, float]:
    """Return the share of all rows of a set whose purity is measured, by variant.

    Raises:
        ConfigError: a budget exceeds the pool.
    """
    found = {}
    for variant in variants:
        budget = variant.config.selection.budget
        check_pool(budget, num_pool)
        found[variant.name] = ablation.config.share or budget.share or (budget.n or 0) / num_pool
    return found


def describe_seed(ablation: Ablation, variants: Sequence[Variant], files: Files) -> AblationStages:
    """Return the merged stages of the variants with one seed, over ``files``.

    Raises:
        ModelError: a configured model does not exist.
    """
    merged = Merged()
    found = AblationStages({}, {}, {}, {})
    for variant in variants:
        generation = describe(variant.config, files).first
        fitted = variant.function == REFERENCE_ARM
        trust = generation.record["trust"] if fitted else None
        found.scored[variant.name] = {
            name: merged.stage(
                ScoreGraded(
                    name=f"gen-0/scored-{name}",
                    labels=generation.answers[split],
                    grades=generation.record["grades"][split],
                    function=variant.function,
                    trust=trust,
                    seed=variant.config.seed,
                )
            ).out("scored")
            for name in ablation.config.sets
            for split in [name if name == POOL else f"probe-{name}"]
        }
        if fitted:
            found.fits[variant.name] = merged.out(generation.record["trust"])
        if generation.record["projection"] is not None:
            found.projections[variant.name] = merged.out(generation.record["projection"])
        if ablation.config.students:
            found.tests[variant.name] = {
                model: [merged.out(run) for run in runs] for model, runs in generation.record["tests"].items()
            }
    return found
