"""Why an arm's rows teach well (paper, section "Mechanisms"): stages over a finished run, for ``curate analyze``."""

from curation.arms import ARMS, REFERENCE_ARM
from curation.config import EngineConfig, GradientsConfig, RunConfig
from curation.domains import get_domain, position_of
from curation.domains.uci import find_engine
from curation.errors import ConfigError
from curation.hashing import derive
from curation.json_types import JsonView
from curation.models.dtypes import HALF_TRAINING, taken
from curation.pipeline.chain import Chain
from curation.pipeline.roles import checkpoint
from curation.rundir.graph import Out
from curation.stages.advantage import ValueMoves
from curation.stages.gradients import CompareGradients, TakeGradients

ADVANTAGES, COHERENCE = "advantages", "coherence"
"""Parts of a generation's analysis that the report reads."""


def describe_analysis(config: RunConfig, chain: Chain) -> list[dict[str, Out]]:
    """Return outputs of the analysis by generation and name."""
    domain = get_domain(config.domain_of("pool"))
    found: list[dict[str, Out]] = []
    for record in chain.generations:
        outs: dict[str, Out] = {}
        engine, gradients = config.analyze.engine, config.analyze.gradients
        if engine is not None and config.splits.audit and position_of(domain) is not None:
            outs[ADVANTAGES] = _advantages(config, chain, record, engine)
        if gradients is not None and record["student_base"] is not None:
            outs[COHERENCE] = _coherence(config, record, gradients)
        found.append(outs)
    return found


def check_analysis(config: RunConfig) -> list[str]:
    """Return parts of the analysis that are left out although the configuration does not say so, in words.

    Raises:
        ConfigError: the run lacks what a stage reads, the engine is not there, or nothing is left to be measured.
    """
    engine, gradients = config.analyze.engine, config.analyze.gradients
    has_moves = position_of(get_domain(config.domain_of("pool"))) is not None
    left_out = []
    if engine is not None and not has_moves:
        left_out.append(f"no engine is asked: labels of the domain {config.domain.name} are no chess moves")
        engine = None
    if engine is not None and not config.splits.audit:
        raise ConfigError(
            "analyze.engine: compares weak labels of the pool with gold ones, and the run has none (splits.audit is "
            "false); leave it out by analyze.engine: null, or run with splits.audit: true"
        )
    if gradients is not None and not config.generations:
        left_out.append("no gradients are taken: the run trains no student (generations is empty)")
        gradients = None
    if engine is None and gradients is None:
        why = "; ".join(left_out) or "analyze.engine and analyze.gradients are null"
        raise ConfigError(f"analyze: there is nothing to measure in this run ({why})")
    if engine is not None:
        find_engine(engine.path)
    return left_out


def _advantages(config: RunConfig, chain: Chain, record: JsonView, engine: EngineConfig) -> Out:
    tables = {arm: table for arm, table in record["selections"].items() if not ARMS[arm].gold}
    stage = ValueMoves(
        name=f"gen-{record['index']}/advantages",
        digests={arm: table.stage.out("arms", arm, "digest").or_none for arm, table in tables.items()},
        grades=record["grades"]["pool"],
        examples=chain.tables["pool"],
        audit=chain.tables["audit"],
        domain=config.domain_of("pool"),
        engine=engine,
        seed=derive(config.seed, "advantages"),
        selections={arm: table.or_none for arm, table in tables.items()},
        labels=record["labels"]["pool"],
    )
    return stage.out("found")


def _coherence(config: RunConfig, record: JsonView, gradients: GradientsConfig) -> Out:
    recipe, seed = config.student, derive(config.seed, "gradients")
    dtype = taken(gradients.dtype, checkpoint(record["student_base"]), on_gpu=gradients.gpus > 0, half=HALF_TRAINING)
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
