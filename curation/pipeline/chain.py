"""The roof: generation after generation; the student of one is the teacher of the next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curation import models
from curation.config import AskConfig, ModelConfig, RunConfig
from curation.hashing import derive
from curation.pipeline.asking import Asked, asked
from curation.pipeline.generation import Described, describe_generation
from curation.pipeline.given import Generation, Others
from curation.pipeline.learning import adapted, base_model
from curation.pipeline.preparing import preparing
from curation.rundir.graph import Model, Out, Stage, Table, ordered
from curation.sources import SourceFile, split_sizes

Files = Mapping[str, Sequence[SourceFile]]
"""The input files by source."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A run, described."""

    prepared: Stage
    generations: Sequence[Mapping[str, Any]]
    """The fields of each generation's ``report.GenerationRecord``, as outputs of stages."""
    first: Described
    """The first generation, whose search for a trust function is one of ``stages`` only with ``trust.search``."""

    @property
    def stages(self) -> list[Stage]:
        """All stages, each after those that it waits for."""
        return ordered([self.prepared.value("tables"), list(self.generations)])


def describe(config: RunConfig, files: Files) -> Chain:
    """The stages of a run over ``files``.

    Raises:
        ModelError: a model that is named is not there.
    """
    sizes, num = split_sizes(config, files), max(1, len(config.generations))
    limit = config.splits.max_error_rate
    settings = {"commit_seconds": config.commit_seconds, "fragment_mb": config.fragment_mb, "max_error_rate": limit}
    prepared = preparing(config.rows, files, settings=settings, num_rows=sum(sizes.values()))
    names = [*config.splits.named(), *(["audit"] if config.splits.audit else [])]
    tables: dict[str, Table] = {name: prepared.table("tables", name) for name in names}
    of_generation = {**sizes, "pool": sizes["pool"] // num}
    others = _others(config, tables, sizes)
    teacher = None if config.teacher.model is None else _teacher(config, tables, sizes, "teacher")
    needs: tuple[Out, ...] = ()
    generations: list[Described] = []
    for index in range(num):
        generation = Generation(
            config=config,
            index=index,
            teacher=teacher,
            others=others,
            tables=tables,
            sizes=of_generation,
            files=files[config.splits.source.source],
            needs=needs,
            tested=generations[-1].tested if generations else {},
        )
        generations.append(describe_generation(generation))
        if index + 1 < num:
            taught = generations[-1].students[config.chain_arm]
            teacher, needs = taught, (taught,)
    records = [described.record for described in generations]
    return Chain(prepared=prepared, generations=records, first=generations[0])


def check_models(config: RunConfig, *, loads: bool = False) -> None:
    """Refuse models that bring code, are pickled, missing or damaged: all of them, before hours of labelling.

    ``loads``: their configurations and tokenizers are loaded, too.
    """
    reward = config.signals.reward
    for role, model in config.models.items():
        if model.path is not None:
            head = role == "reward model" and reward is not None and reward.kind != "verifier"
            models.check(model, head=head, loads=loads)


def _teacher(config: RunConfig, tables: Mapping[str, Table], sizes: Mapping[str, int], role: str) -> Model:
    """A weak teacher: its base, adapted to the task's format where the configuration says so."""
    model = config.teacher.model if role == "teacher" else config.signals.second_teacher
    assert model is not None, "asked only where it is named"
    base = _base(config, model, role)
    recipe = config.teacher.adapt
    if recipe is None:
        return base
    return adapted(
        base,
        tables["adapt"],
        recipe,
        config.domain_of("adapt"),
        name=f"gen-0/{role}",
        seed=derive(config.seed, "gen-0"),
        rows=sizes.get("adapt"),
    )


def _others(config: RunConfig, tables: Mapping[str, Table], sizes: Mapping[str, int]) -> Others:
    ask, reward, judge = config.teacher.ask.model_copy(update=AskConfig.BARE), config.signals.reward, config.judge
    roles = {
        role: asked(_base(config, model, role), ask, name=f"gen-0/backend-{role}")
        for role, model in config.signals.models.items()
    }
    if config.signals.second_teacher is not None:
        second = _teacher(config, tables, sizes, "second-teacher")
        roles["second_teacher"] = asked(second, ask, name="gen-0/backend-second-teacher")
    if reward is not None:
        model = _base(config, reward.model, "reward")
        in_words = ask.model_copy(update={"chat_template": reward.chat_template})
        if reward.kind == "verifier":
            roles["reward"] = asked(model, in_words, name="gen-0/backend-reward")
        else:
            roles["reward"] = Asked(model=model, ask=in_words, engine=in_words, backend=ask.backend)
    judging = None
    if judge is not None:
        in_words = ask.model_copy(update={"chat_template": judge.chat_template})
        judging = asked(_base(config, judge.model, "judge"), in_words, name="gen-0/backend-judge")
    return Others(roles=roles, judge=judging)


def _base(config: RunConfig, model: ModelConfig, role: str) -> Model:
    name = f"gen-0/{role}-base"
    return base_model(model, config.domain, name=name, seed=derive(config.seed, name))
