"""The inputs of a generation's description, and the models that a run asks by role: teacher, signals, judge, reader."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from curation import models
from curation.activity import doing
from curation.config import AskConfig, ModelConfig, RunConfig
from curation.hashing import derive
from curation.json_types import Json
from curation.models.dtypes import resolve_compute_dtype, resolve_dtype
from curation.refs import ModelRef
from curation.rundir.graph import Model, Out, Position, Table
from curation.stages.asking import TeacherUse
from curation.stages.overlap import FindRepeats
from curation.stages.training import Adapt, MakeBase, Training

JUDGE, READER = "the judge", "the reader of a server's answers"
"""Roles of helper models; their spaces keep them apart from the names in ``signals.models``."""
Known = Mapping[str, Mapping[str, Sequence[Out]]]
"""Grades of tests described so far, by the model's questions (``pipeline.students``) and by decoding."""


@dataclass(frozen=True, kw_only=True)
class GenerationSpec:
    """The inputs from which a generation's stages are described."""

    config: RunConfig
    index: int
    teacher: Model | None
    """The teacher, or None if it has no weights."""
    helpers: Mapping[str, TeacherUse]
    """The models that a run asks besides its teacher, the same in every generation: ``JUDGE``, ``READER``, and those
    that signals ask, by the name in ``curation.arms.Signal.asks``."""
    tables: Mapping[str, Table]
    """Tables of the splits, by name."""
    repeats: FindRepeats
    """The stage that finds the pool rows that repeat a question."""
    sizes: Mapping[str, int]
    """The number of rows of each split; for the pool, of the generation's share."""
    base: Model | None = None
    """The base model of the generation's students, or None if none are trained."""
    branch: str = ""
    """Name of the branch in stage names; "" for the main chain."""
    needs: Sequence[Out] = ()
    """Outputs without which there is no generation: the student that teaches, the decision to go on, a check."""
    tested: Known = field(default_factory=dict)
    """Tests of earlier generations; a model that is asked the same way again is not tested again."""

    def name(self, stage: str) -> str:
        """Return the name of a stage of the generation, e.g. ``gen-0/select``."""
        return f"gen-{self.index}-{self.branch}/{stage}" if self.branch else f"gen-{self.index}/{stage}"

    def at(self, split: str | None = None, *, of: str = "") -> Position:
        """Return the position of a stage of the generation: its split, and ``of``, which tells it from others."""
        return Position(generation=self.index, branch=self.branch, split=split, of=of)

    def place(self, stage: str, split: str | None = None, *, of: str = "", **rows: int | None) -> Json:
        """Return name, position and number of rows of a stage: all of a split or, if it is given, ``num_rows``."""
        known = rows or {"num_rows": None if split is None else self.sizes[split]}
        return {"name": self.name(stage), "at": self.at(split, of=of), **known}

    def seed(self, what: str) -> int:
        """Return the seed of a draw of this generation only, equal in all chains."""
        return derive(self.config.seed, f"gen-{self.index}/{what}")

    @property
    def pool_share(self) -> Json:
        """The generation's share of the pool (``curation.stages.label.RowShare``) as JSON, the same in all chains."""
        return {"index": self.index, "of": self.config.num_shares, "seed": derive(self.config.seed, "share")}

    @property
    def unadapted(self) -> Model | None:
        """The teacher before this run or an adapter taught it the task, or the teacher itself if neither did."""
        teacher = self.teacher
        if isinstance(teacher, Out) and isinstance(teacher.stage, Training):
            teacher = teacher.stage.base
        return replace(teacher, adapter=None) if isinstance(teacher, ModelRef) and teacher.adapter else teacher

    @property
    def settings(self) -> Json:
        """Settings of how passes write tables."""
        return {"commit_seconds": self.config.commit_seconds, "fragment_mb": self.config.fragment_mb}


def describe_teacher_use(model: Model | None, ask: AskConfig) -> TeacherUse:
    """Return a model with its settings ``ask``."""
    ask = resolve_dtype(ask, find_checkpoint(model))
    return TeacherUse(model=model, ask=ask, engine=ask)


def find_checkpoint(model: Model | None) -> ModelRef | None:
    """Return the checkpoint whose type a model has: its base if the run trains it, or None for a model from scratch."""
    while isinstance(model, Out):
        model = model.stage.base if isinstance(model.stage, Training) else None
    return model


def check_models(config: RunConfig, *, loads: bool = False) -> None:
    """Refuse models that bring code, are pickled, missing or damaged, before hours of labelling.

    ``loads``: whether to load their configurations and tokenizers too.
    """
    reward = config.signals.reward
    for role, model in config.models.items():
        if model.path is not None:
            head = role == "reward model" and reward is not None and reward.kind != "verifier"
            with doing(f"reading the {role} {model.path}"):
                models.check(model, head=head, loads=loads)


def describe_base_model(config: RunConfig, model: ModelConfig, name: str, needs: Sequence[Out] = ()) -> Model:
    """Return a model; a model from scratch is made by the stage ``name``."""
    if model.path is not None:
        return models.pin_model(model)
    assert model.init is not None, "a model has a path or comes from scratch"
    stage = MakeBase(name=name, init=model.init, domain=config.domain, seed=derive(config.seed, name), needs=needs)
    return stage.out("model")


def describe_adapted_teacher(
    config: RunConfig,
    base: Model,
    tables: Mapping[str, Table],
    sizes: Mapping[str, int],
    *,
    name: str,
    needs: Sequence[Out] = (),
) -> Model:
    """Return a weak teacher: its base, adapted to the task's format if configured."""
    recipe = config.teacher.adapt
    if recipe is None:
        return base
    stage = Adapt(
        name=name,
        base=base,
        examples=tables["adapt"],
        recipe=resolve_compute_dtype(recipe, find_checkpoint(base)),
        domain=config.domain_of("adapt"),
        seed=derive(config.seed, "gen-0"),
        num_rows=sizes.get("adapt"),
        needs=needs,
    )
    return stage.out("model")


def describe_helper_models(
    config: RunConfig, tables: Mapping[str, Table], sizes: Mapping[str, int]
) -> dict[str, TeacherUse]:
    """Return the models that signals ask, the judge, and the reader of answers (``GenerationSpec.helpers``)."""
    teacher, signals, reward, judge = config.teacher, config.signals, config.signals.reward, config.judge
    ask = teacher.ask.of_weights(chat_template=config.evaluation.chat_template).model_copy(update=AskConfig.BARE)
    if teacher.given is not None and teacher.reader is None:
        ask = ask.model_copy(update={"backend": "transformers"})

    def describe(role: str, model: ModelConfig, ask: AskConfig = ask) -> TeacherUse:
        return describe_teacher_use(describe_base_model(config, model, f"gen-0/{role}-base"), ask)

    roles = {role: describe(role, model) for role, model in signals.models.items()}
    if signals.second_teacher is not None:
        base = describe_base_model(config, signals.second_teacher, "gen-0/second-teacher-base")
        second = describe_adapted_teacher(config, base, tables, sizes, name="gen-0/second-teacher")
        roles["second_teacher"] = describe_teacher_use(second, ask)
    if reward is not None:
        ask_reward = ask.model_copy(update={"chat_template": reward.chat_template})
        roles["reward"] = describe("reward", reward.model, ask_reward)
    if judge is not None:
        roles[JUDGE] = describe("judge", judge.model, ask.model_copy(update={"chat_template": judge.chat_template}))
    if teacher.reading is not None and teacher.loaded is not None:
        roles[READER] = describe("reader", teacher.loaded, teacher.reading)
    return roles
