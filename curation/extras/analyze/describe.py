"""The stages of ``curate analyze``, their requirements, and the lines that it prints."""

from collections.abc import Iterator

from curation.arms import ARMS, REFERENCE_ARM
from curation.commands.printing import format_percent_interval
from curation.config import RunConfig
from curation.domains import get_domain, get_position_function
from curation.errors import ConfigError
from curation.extras.analyze.config import AnalyzeConfig
from curation.extras.analyze.gradients import CompareGradients, TakeGradients
from curation.extras.analyze.value_moves import ValueMoves, find_engine
from curation.hashing import derive
from curation.json_types import JsonView
from curation.models.dtypes import HALF_TRAINING, choose_dtype
from curation.pipeline.extending import FeatureInputs
from curation.pipeline.roles import find_checkpoint
from curation.rundir.graph import Out


def describe(inputs: FeatureInputs) -> dict[str, Out]:
    """Return the outputs of a generation's analysis: ``advantages`` and ``coherence``."""
    section, config, record, outs = inputs.section, inputs.config, inputs.record, dict[str, Out]()
    is_valued = config.splits.audit and get_position_function(get_domain(config.domain_of("pool"))) is not None
    if section.engine is not None and is_valued:
        weak = {arm: table for arm, table in record["selections"].items() if not ARMS[arm].gold}
        valued = ValueMoves(
            name=f"gen-{record['index']}/advantages",
            digests={arm: table.stage.out("arms", arm, "digest") for arm, table in weak.items()},
            grades=record["grades"]["pool"],
            examples=inputs.tables["pool"],
            audit=inputs.tables["audit"],
            domain=config.domain_of("pool"),
            engine=section.engine,
            seed=derive(config.seed, "advantages"),
            selections=weak,
            labels=record["labels"]["pool"],
        )
        outs["advantages"] = valued.out("found")
    if section.gradients is not None and record["student_base"] is not None:
        seed, gradients = derive(config.seed, "gradients"), section.gradients
        checkpoint, on_gpu = find_checkpoint(record["student_base"]), gradients.gpus > 0
        dtype = choose_dtype(gradients.dtype, checkpoint, on_gpu=on_gpu, half=HALF_TRAINING)
        taken = {
            arm: TakeGradients(
                name=f"gen-{record['index']}/gradients-{arm}",
                digest=table.stage.out("arms", arm, "digest"),
                base=record["student_base"],
                gradients=gradients.model_copy(update={"dtype": dtype}),
                max_length=config.student.max_length,
                chat_template=config.student.chat_template,
                seed=seed,
                rows=table.stage.out("rows_of", arm),
            )
            for arm, table in record["selections"].items()  # later generations lack arms with chains of their own
        }
        compared = CompareGradients(
            name=f"gen-{record['index']}/coherence",
            tables={arm: stage.out("gradients").or_none for arm, stage in taken.items()},
            reference=REFERENCE_ARM,
            seed=seed,
        )
        outs["coherence"] = compared.out("found")
    return outs


def check(config: RunConfig, section: AnalyzeConfig) -> Iterator[str]:
    """Yield a sentence for each part of the analysis that does not apply to the run; a ``ConfigError`` if none does."""
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


def lines(found: JsonView) -> Iterator[str]:
    """Yield the lines of a generation's analysis."""
    if (moves := found.get("advantages")) is not None:
        yield f"weak moves that differ from gold, by {moves['engine']}, {moves['nodes']:,} nodes"
        yield f"{'':<26}{'asked':>7}  {'stronger %':<24}{'equal or stronger %':<24}{'winning mates %':<24}"
        for name, arm in moves["arms"].items():
            shares = (format_percent_interval(arm[key]) for key in ("stronger", "equal_or_stronger", "winning_mates"))
            yield f"{name:<26}{arm['n']:>7}  " + "".join(f"{share:<24}" for share in shares)
    if (same := found.get("coherence")) is not None:
        yield f"gradients of {same['n']:,} rows of each arm"
        yield f"{'':<26}{'top-8 energy %':<24}{'mean over k %':<24}{'dimension':>9}"
        for name, arm in same["arms"].items():
            top = arm["energy"][min(8, len(arm["energy"])) - 1]
            shares = (format_percent_interval(value) for value in (top, arm["mean_energy"]))
            yield f"{name:<26}" + "".join(f"{share:<24}" for share in shares) + f"{arm['dimension']:>9.1f}"
