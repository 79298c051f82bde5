"""The stages of ``curate analyze``, and their requirements."""

from collections.abc import Iterator

from curation.arms import ARMS, REFERENCE_ARM
from curation.config import RunConfig
from curation.domains import get_domain, get_position_function
from curation.errors import ConfigError
from curation.extras.analyze.config import AnalyzeConfig, EngineConfig, GradientsConfig
from curation.extras.analyze.gradients import CompareGradients, TakeGradients
from curation.extras.analyze.uci import find_engine
from curation.extras.analyze.value_moves import ValueMoves
from curation.hashing import derive
from curation.models.dtypes import HALF_TRAINING, choose_dtype
from curation.pipeline.extending import FeatureInputs
from curation.pipeline.outlook import TypedModels
from curation.pipeline.roles import find_checkpoint
from curation.rundir.graph import Out


def describe(inputs: FeatureInputs) -> dict[str, Out]:
    """Return the outputs of a generation's analysis: ``advantages`` and ``coherence``."""
    section, config, outs = inputs.section, inputs.config, dict[str, Out]()
    is_valued = config.splits.audit and get_position_function(get_domain(config.domain_of("pool"))) is not None
    if section.engine is not None and is_valued:
        outs["advantages"] = _describe_advantages(inputs, section.engine)
    if section.gradients is not None and inputs.record["student_base"] is not None:
        outs["coherence"] = _describe_coherence(inputs, section.gradients)
    return outs


def dtypes(config: RunConfig, section: AnalyzeConfig) -> Iterator[TypedModels]:
    """Yield the number type of the base students if their gradients are computed on GPUs."""
    gradients = section.gradients
    if gradients is not None and gradients.gpus:
        bases = {role: model for role, model in config.models.items() if role.startswith("student ")}
        yield TypedModels("analyze.gradients.dtype", gradients.dtype, "gpus", gradients.gpus, bases, HALF_TRAINING)


def check(config: RunConfig, section: AnalyzeConfig) -> Iterator[str]:
    """Yield a sentence for each configured part of the analysis that does not apply to the run.

    Raises:
        ConfigError: the run has no gold labels for the engine, the engine is not installed, or no part applies.
    """
    engine, gradients = section.engine, section.gradients
    has_moves = get_position_function(get_domain(config.domain_of("pool"))) is not None
    left_out = []
    if engine is not None and not has_moves:
        left_out.append(f"no engine is asked: labels of the domain {config.domain.name} are not chess moves")
        engine = None
    if engine is not None and not config.splits.audit:
        raise ConfigError(
            "analyze.engine: compares weak labels of the pool with gold ones, and the run has none (splits.audit is "
            "false); turn it off by analyze.engine: null, or run with splits.audit: true"
        )
    if gradients is not None and not config.generations:
        left_out.append("no gradients are taken: the run trains no student (generations is empty)")
        gradients = None
    if engine is None and gradients is None:
        why = "; ".join(left_out) or "analyze.engine and analyze.gradients are null"
        raise ConfigError(f"analyze: there is nothing to measure in this run ({why})")
    if engine is not None:
        find_engine(engine.path)
    yield from left_out


def _describe_advantages(inputs: FeatureInputs, engine: EngineConfig) -> Out:
    config, record = inputs.config, inputs.record
    tables = {arm: table for arm, table in record["selections"].items() if not ARMS[arm].gold}
    stage = ValueMoves(
        name=f"gen-{record['index']}/advantages",
        digests={arm: table.stage.out("arms", arm, "digest").or_none for arm, table in tables.items()},
        grades=record["grades"]["pool"],
        examples=inputs.tables["pool"],
        audit=inputs.tables["audit"],
        domain=config.domain_of("pool"),
        engine=engine,
        seed=derive(config.seed, "advantages"),
        selections={arm: table.or_none for arm, table in tables.items()},
        labels=record["labels"]["pool"],
    )
    return stage.out("found")


def _describe_coherence(inputs: FeatureInputs, gradients: GradientsConfig) -> Out:
    record, recipe, seed = inputs.record, inputs.config.student, derive(inputs.config.seed, "gradients")
    dtype = choose_dtype(
        gradients.dtype, find_checkpoint(record["student_base"]), on_gpu=gradients.gpus > 0, half=HALF_TRAINING
    )
    gradients = gradients.model_copy(update={"dtype": dtype})
    stages = {
        arm: TakeGradients(
            name=f"gen-{record['index']}/gradients-{arm}",
            digest=table.stage.out("arms", arm, "digest"),
            base=record["student_base"],
            gradients=gradients,
            max_length=recipe.max_length,
            chat_template=recipe.chat_template,
            seed=seed,
            rows=table.stage.out("rows_of", arm),
        )
        for arm, table in record["selections"].items()  # later ones lack arms with a chain of their own
    }
    stage = CompareGradients(
        name=f"gen-{record['index']}/coherence",
        tables={arm: stage.out("gradients").or_none for arm, stage in stages.items()},
        reference=REFERENCE_ARM,
        seed=seed,
    )
    return stage.out("found")
