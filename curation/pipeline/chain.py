"""The whole run as chains of generations, in which the student of one generation is the teacher of the next.

The first generation is common to all chains (``chain.arms``); from the second on each chain has its own generations.
Their stages are named after the chain's arm, except in the main chain: ``gen-1/select``, ``gen-1-naive/select``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from curation.arms import ARMS, REFERENCE_ARM
from curation.config import RunConfig
from curation.config.trust import ROW_KEYS
from curation.errors import ConfigError
from curation.json_types import JsonView
from curation.pipeline import roles
from curation.pipeline.generation import GenerationStages, describe_generation, get_pool_share
from curation.pipeline.generation_spec import GenerationSpec
from curation.pipeline.growth import Deals, Files, format_prepare_name, make_first_deals
from curation.report.record import PREDECESSOR
from curation.rundir.graph import Model, Out, Position, Stage, Table, order_stages
from curation.sources import compute_split_sizes
from curation.stages.handover import GoOn, HoldOut
from curation.stages.prepare import Prepare
from curation.stages.repeats import FindRepeats

Fields = JsonView
"""The fields of a ``report.GenerationRecord``, as outputs of stages."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """The stages of a run, as a description of its graph."""

    prepared: Stage
    """The stage that assigns rows to the splits with which the run began."""
    added: Sequence[Stage]
    """The stages that assign rows to the splits that were added later."""
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

    @property
    def preparing(self) -> list[Stage]:
        """The stages that assign rows to splits, in the order of the deals."""
        return [self.prepared, *self.added]


def describe(config: RunConfig, files: Files, deals: Deals | None = None) -> Chain:
    """Return the stages of a run over ``files``, whose splits are assigned in these ``deals`` or, if None, all at once.

    Raises:
        ModelError: a configured model does not exist.
        ConfigError: two splits of a chain are from different sources that share a file.
    """
    deals = make_first_deals(config) if deals is None else deals
    sizes, num = compute_split_sizes(config, files, deals.taken(files)), max(1, len(config.generations))
    preparing, tables = _describe_preparing(config, files, deals)
    if num > 1:
        check_files(config, files)
    first = GenerationSpec(
        config=config,
        index=0,
        teacher=roles.describe_first_teacher(config, tables, sizes),
        helpers=roles.describe_helper_models(config, tables, sizes),
        tables=tables,
        repeats=FindRepeats(
            name="repeats",
            at=Position(split="pool"),
            pool=tables["pool"],
            domain=config.domain_of("pool").ungraded,
            num_rows=sizes["pool"],
        ),
        sizes={**sizes, "pool": config.pool_share(sizes)},
        pool_files=files[config.splits.pool.source],
    )
    return _Describing(config, replace(first, base=_describe_base(first, 0, ()))).chain(preparing, tables)


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


def check_files(config: RunConfig, files: Files) -> None:
    """Refuse splits of another source that shares a file with the pool's: row ids are unique only within a source.

    Raises:
        ConfigError: a file is in both sources.
    """
    pool = config.splits.pool.source
    of_pool = {file.path for file in files[pool]}
    for name, split in config.splits.named().items():
        shared = [] if split.source == pool else [file.path for file in files[split.source] if file.path in of_pool]
        if shared:
            raise ConfigError(
                f"splits.{name}.from: source {split.source!r} and the pool's source {pool!r} both read {shared[0]}, so "
                f"that a row which trains a student may be in splits.{name} too; take both splits from one source"
            )


class _Describing:
    def __init__(self, config: RunConfig, first: GenerationSpec) -> None:
        self._config, self._first = config, first
        self._bases: list[Model | None] = [first.base]
        self._tested = first.tested
        self._main = [self._describe(first)]
        self._decisions: list[Stage] = []

    def chain(self, preparing: Sequence[Stage], tables: Mapping[str, Table]) -> Chain:
        """Return all generations of all chains."""
        config, main = self._config, self._main
        leading, *others = config.chain.arms
        lines = {arm: [main[0]] for arm in others}
        branches: dict[str, list[Fields]] = {arm: [] for arm in others}
        for index in range(1, len(config.generations)):
            needs = (main[-1].students[leading], *self._go_on(leading))
            self._bases.append(_describe_base(self._first, index, needs))
            arms = tuple(arm for arm in config.selection.arms if arm not in others)
            shallow = main[0] if "first_teacher" in config.chain.shallow else None
            main.append(self._describe_next(leading, main, needs, arms=arms, branch="", shallow=shallow))
            for arm, line in lines.items():
                line.append(self._describe_next(arm, line, (*needs, line[-1].students[arm]), arms=(arm,), branch=arm))
                branches[arm].append(line[-1].record)
            if index + 1 == len(config.generations) and PREDECESSOR in config.chain.shallow:
                branches[PREDECESSOR] = [self._describe_predecessor(leading, needs).record]
        return Chain(
            prepared=preparing[0],
            added=preparing[1:],
            tables=tables,
            generations=[described.record for described in main],
            branches={name: fields for name, fields in branches.items() if fields},
            shallow=[described.shallow for described in main],
            decisions=[stage.value() for stage in self._decisions],
            first=main[0],
        )

    def _go_on(self, arm: str) -> tuple[Out, ...]:
        """Return outputs that exist only if the rule lets the main chain go on after its last generation."""
        config, described = self._config, self._main[-1]
        if config.chain.stop is None:
            return ()
        record, ranks = described.record, ARMS[arm].ranked and not ARMS[arm].gold
        stage = GoOn(
            name=f"gen-{len(self._main) - 1}/go-on",
            at=Position(generation=len(self._main) - 1),
            functions=list(dict.fromkeys([*([ARMS[arm].trust] if ranks else []), REFERENCE_ARM])),
            source=record["labels"]["source"],
            grades=record["grades"]["source"],
            pool=record["labels"]["pool"],
            budget=record["budget"],
            shift=record["shift"],
            trust=config.trust.only(ROW_KEYS),
            stop=config.chain.stop,
            seed=config.seed,
            generation=record["index"],
            num_rows=0,
        )
        self._decisions.append(stage)
        return (stage.value("go_on"),)

    def _describe_next(
        self,
        arm: str,
        line: Sequence[GenerationStages],
        needs: Sequence[Out],
        *,
        arms: tuple[str, ...],
        branch: str,
        shallow: GenerationStages | None = None,
    ) -> GenerationStages:
        """Return the next generation of a chain, taught by the student of ``arm``.

        ``shallow``: the first generation, if the base is to be trained on its selections too.
        """
        index = len(line)
        generation = replace(
            self._first,
            config=self._select_arms(arms),
            index=index,
            branch=branch,
            teacher=line[-1].students[arm],
            base=self._bases[index],
            needs=needs,
            tested=self._tested,
        )
        pool = self._config.splits.pool.source
        held_out = HoldOut(
            name=generation.name("held-out"),
            at=generation.at("pool"),
            trained={
                f"the {arm} student of generation {at}": line[at].record["selections"][arm] for at in range(index)
            },
            splits={
                name: table
                for name, table in generation.tables.items()
                if name not in ("pool", "audit", "adapt", "shots") and self._config.splits.named()[name].source == pool
            },
            share=get_pool_share(generation),
            teacher=f"the teacher of generation {index}",
            needs=needs,
            num_rows=0,
        )
        checked = replace(generation, needs=(*needs, held_out.value("num_trained")))
        return self._describe(checked, shallow)

    def _describe_predecessor(self, arm: str, needs: Sequence[Out]) -> GenerationStages:
        """Return the last base, taught by the base before it, on the rows of the last generation."""
        index = len(self._bases) - 1
        generation = replace(
            self._first,
            config=self._select_arms((arm,)),
            index=index,
            branch=PREDECESSOR,
            base=self._bases[index],
            needs=needs,
            tested=self._tested,
        )
        before = self._bases[index - 1]
        assert before is not None, "a chain has bases"
        teacher = roles.describe_adapted_teacher(
            self._config, before, self._first.tables, self._first.sizes, name=generation.name("teacher"), needs=needs
        )
        return self._describe(replace(generation, teacher=teacher))

    def _select_arms(self, arms: tuple[str, ...]) -> RunConfig:
        selection = self._config.selection.model_copy(update={"arms": arms})
        return self._config.model_copy(update={"selection": selection})

    def _describe(self, generation: GenerationSpec, shallow: GenerationStages | None = None) -> GenerationStages:
        described = describe_generation(generation, None if shallow is None else shallow.selected)
        self._tested = described.tested
        return described


def _describe_base(first: GenerationSpec, index: int, needs: Sequence[Out]) -> Model | None:
    """Return the base model of a generation's students in all chains, or None if the run trains no students."""
    config = first.config
    if not config.generations:
        return None
    name = f"gen-{index}/student-base"
    return roles.describe_base_model(config, config.generations[index].student, name, needs)
