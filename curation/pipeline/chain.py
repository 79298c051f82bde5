"""The whole run as chains of generations, in which the student of one generation is the teacher of the next.

The first generation is common to all chains (``chain.arms``); from the second on each chain has its own generations.
Their stages are named after the chain's arm, except in the main chain: ``gen-1/select``, ``gen-1-naive/select``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from curation.arms import ARMS, REFERENCE_ARM
from curation.config import RunConfig
from curation.config.run import StopConfig
from curation.config.trust import ROW_KEYS
from curation.errors import ConfigError
from curation.json_types import JsonView
from curation.pipeline.generation import GenerationStages, describe_generation
from curation.pipeline.growth import Deals, Files, format_prepare_name, get_rows_identity, make_first_deal
from curation.pipeline.roles import (
    GenerationSpec,
    describe_adapted_teacher,
    describe_base_model,
    describe_helper_models,
)
from curation.report.record import PREDECESSOR
from curation.rundir.graph import Model, Out, Position, Stage, Table, order_stages
from curation.sources import compute_split_sizes
from curation.stages.handover import GoOn, HoldOut
from curation.stages.overlap import FindRepeats
from curation.stages.prepare import Prepare

Fields = JsonView
"""The fields of a ``report.GenerationRecord``, as outputs of stages."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """The stages of a run, as a description of its graph."""

    preparing: Sequence[Stage]
    """The stages that assign rows to splits: to those with which the run began, and to those added later."""
    tables: Mapping[str, Table]
    """Tables of the splits and the audit, by name."""
    generations: Sequence[Fields]
    """Generations of the main chain."""
    branches: Mapping[str, Sequence[Fields]]
    """The other chains' generations from the second on, by arm, and the one generation of ``predecessor``."""
    shallow: Sequence[JsonView]
    """``tests`` and ``training`` by arm of the students without a chain, for each generation of the main chain."""
    decisions: Sequence[Out]
    """Whether the chain goes on after each generation but the last; empty without a rule."""
    first: GenerationStages
    """The first generation; its search for a trust function is among ``stages`` only with ``trust.search``."""

    @property
    def stages(self) -> list[Stage]:
        """All stages, each after the stages that it depends on."""
        described = [list(self.generations), dict(self.branches), list(self.shallow), list(self.decisions)]
        return order_stages([*(stage.value("tables") for stage in self.preparing), *described])


def describe(config: RunConfig, files: Files, deals: Deals | None = None) -> Chain:
    """Return the stages of a run over ``files``, whose splits are assigned by ``deals`` or, if None, all at once.

    Raises:
        ModelError: a configured model does not exist.
        ConfigError: two splits of a chain are from different sources that share a file.
    """
    deals = deals or Deals(deals=(make_first_deal(get_rows_identity(config)),), rows=(config.rows,))
    sizes = compute_split_sizes(config, files, deals.taken(files))
    preparing, tables = _describe_preparing(config, files, deals)
    if len(config.generations) > 1:
        _check_files(config, files)

    # A server's model has no weights here; the reader of its answers is among the helper models.
    model, teacher = config.teacher.loaded, None
    if model is not None and config.teacher.endpoint is None:
        base = describe_base_model(config, model, f"gen-0/{config.teacher.role}-base")
        teacher = describe_adapted_teacher(config, base, tables, sizes, name="gen-0/teacher")
    first = GenerationSpec(
        config=config,
        index=0,
        teacher=teacher,
        helpers=describe_helper_models(config, tables, sizes),
        tables=tables,
        repeats=FindRepeats(
            name="repeats",
            at=Position(split="pool"),
            pool=tables["pool"],
            domain=config.domain_of("pool").ungraded,
            num_rows=sizes["pool"],
        ),
        sizes={**sizes, "pool": config.pool_share(sizes)},
        base=_describe_student_base(config, 0) if config.generations else None,
    )
    leading, *others = config.chain.arms
    described = describe_generation(first)
    lines, tested, bases = {arm: [described] for arm in config.chain.arms}, described.tested, [first.base]
    main, predecessor = lines[leading], list[Fields]()
    decisions: list[Stage] = []
    for index in range(1, len(config.generations)):
        needs: list[Out] = [main[-1].students[leading]]
        if (stop := config.chain.stop) is not None:
            decisions.append(_describe_decision(config, stop, leading, main[-1].record))
            needs.append(decisions[-1].value("go_on"))
        bases.append(_describe_student_base(config, index, needs))

        # All chains have their own next generation, the main chain with the arms that have no chain.
        for arm, line in lines.items():
            spec = replace(first, index=index, base=bases[-1], needs=needs, tested=tested)
            arms, shallow = tuple(name for name in config.selection.arms if name not in others), None
            if line is not main:
                spec, arms = replace(spec, branch=arm, needs=(*needs, line[-1].students[arm])), (arm,)
            elif "first_teacher" in config.chain.shallow:
                shallow = described.selected
            line.append(describe_generation(_describe_next(spec, arm, line, arms), shallow))
            tested = line[-1].tested

        # The last base, taught by the base before it, on the rows of the last generation.
        if index + 1 == len(config.generations) and PREDECESSOR in config.chain.shallow:
            before = bases[index - 1]
            assert before is not None, "a chain has bases"
            spec = replace(first, index=index, base=bases[-1], needs=needs, tested=tested, branch=PREDECESSOR)
            name = spec.name("teacher")
            teacher = describe_adapted_teacher(config, before, tables, sizes, name=name, needs=needs)
            spec = replace(spec, config=_select_arms(config, (leading,)), teacher=teacher)
            predecessor = [describe_generation(spec).record]
    branches = {arm: [described.record for described in lines[arm][1:]] for arm in others} | {PREDECESSOR: predecessor}
    return Chain(
        preparing=preparing,
        tables=tables,
        generations=[described.record for described in main],
        branches={name: fields for name, fields in branches.items() if fields},
        shallow=[described.shallow for described in main],
        decisions=[stage.value() for stage in decisions],
        first=main[0],
    )


def _describe_preparing(config: RunConfig, files: Files, deals: Deals) -> tuple[list[Stage], dict[str, Table]]:
    """Return the stages that assign rows to splits, and the tables of splits and audit, in the splits' order."""
    stages: list[Stage] = []
    made: dict[str, Out] = {}
    for number, (deal, rows) in enumerate(zip(deals.deals, deals.rows, strict=True)):
        named, taken = rows.splits.named(), deals.taken(files, number)
        read = list(rows.sources) if number == 0 else [named[name].source for name in deal.splits]
        stage = Prepare(
            name=format_prepare_name(number),
            config=rows,
            files={name: [file.to_json() for file in files[name]] for name in read},
            contents={name: [file.content for file in files[name]] for name in read},
            before={name: made[name] for name in named if name in made},
            taken=taken,
            commit_seconds=config.commit_seconds,
            fragment_mb=config.fragment_mb,
            max_error_rate=config.splits.max_error_rate,
            num_rows=sum(compute_split_sizes(rows, files, taken).values()) - sum(taken.values()),
        )
        audit = ["audit"] if number == 0 and config.splits.audit else []
        made |= {name: stage.out("tables", name) for name in (*deal.splits, *audit)}
        stages.append(stage)
    return stages, {name: made[name] for name in (*config.splits.named(), "audit") if name in made}


def _check_files(config: RunConfig, files: Files) -> None:
    """Refuse splits of another source that shares a file with the pool's: row ids are unique only within a source."""
    pool = config.splits.pool.source
    of_pool = {file.path for file in files[pool]}
    for name, split in config.splits.named().items():
        shared = [] if split.source == pool else [file.path for file in files[split.source] if file.path in of_pool]
        if shared:
            raise ConfigError(
                f"splits.{name}.from: source {split.source!r} and the pool's source {pool!r} both read {shared[0]}, so "
                f"that a row which trains a student may be in splits.{name} too; take both splits from one source"
            )


def _describe_student_base(config: RunConfig, index: int, needs: Sequence[Out] = ()) -> Model:
    """Return the base model of a generation's students in all chains."""
    return describe_base_model(config, config.generations[index].student, f"gen-{index}/student-base", needs)


def _describe_decision(config: RunConfig, stop: StopConfig, arm: str, record: JsonView) -> Stage:
    """Return the stage that decides whether the main chain goes on after the generation of ``record``."""
    ranks = ARMS[arm].ranked and not ARMS[arm].gold
    return GoOn(
        name=f"gen-{record['index']}/go-on",
        at=Position(generation=record["index"]),
        functions=list(dict.fromkeys([*([ARMS[arm].trust] if ranks else []), REFERENCE_ARM])),
        source=record["labels"]["source"],
        grades=record["grades"]["source"],
        shift=record["shift"],
        trust=config.trust.only(ROW_KEYS),
        stop=stop,
        seed=config.seed,
        generation=record["index"],
        num_rows=0,
    )


def _describe_next(
    spec: GenerationSpec, arm: str, line: Sequence[GenerationStages], arms: tuple[str, ...]
) -> GenerationSpec:
    """Return the next generation of a chain, taught by the student of ``arm``, on no row that trained its teachers."""
    pool = spec.config.splits.pool.source
    held_out = HoldOut(
        **spec.place("held-out", "pool", num_rows=0),
        trained={
            f"the {arm} student of generation {at}": described.record["selections"][arm]
            for at, described in enumerate(line)
        },
        splits={
            name: table
            for name, table in spec.tables.items()
            if name not in ("pool", "audit", "adapt", "shots") and spec.config.splits.named()[name].source == pool
        },
        share=spec.pool_share,
        teacher=f"the teacher of generation {spec.index}",
        needs=spec.needs,
    )
    return replace(
        spec,
        config=_select_arms(spec.config, arms),
        teacher=line[-1].students[arm],
        needs=(*spec.needs, held_out.value("num_trained")),
    )


def _select_arms(config: RunConfig, arms: tuple[str, ...]) -> RunConfig:
    return config.model_copy(update={"selection": config.selection.model_copy(update={"arms": arms})})
