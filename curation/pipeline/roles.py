"""The models that a run asks, by role: its first teacher, and those of signals and the judge."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from curation import models
from curation.activity import doing
from curation.config import AskConfig, ModelConfig, RunConfig, StudentConfig
from curation.config.models import LmStudentConfig
from curation.config.states import find_other_layers
from curation.hashing import derive
from curation.models.dtypes import settle_ask, settle_training
from curation.pipeline.generation_spec import HelperModels
from curation.refs import ModelRef
from curation.rundir.graph import Model, Out, Table
from curation.stages.asking import SettleBackend, TeacherUse
from curation.stages.training import Adapt, MakeBase, Training

Recipe = TypeVar("Recipe", bound=StudentConfig)


def describe_teacher_use(model: Model | None, ask: AskConfig, *, name: str) -> TeacherUse:
    """Return a model with its settings ``ask``; if the backend is ``auto``, the stage ``name`` chooses it."""
    ask = settle_ask(ask, find_checkpoint(model))
    if ask.backend != "auto":
        return TeacherUse(model=model, ask=ask, engine=ask, backend=ask.backend)
    stage = SettleBackend(
        name=name,
        model=model,
        engine=ask.vllm.engine,
        num_gpus=ask.actors.num_gpus,
        other_layers=bool(find_other_layers(ask.states)),
        ask=ask,
        num_rows=0,
    )
    return TeacherUse(model=model, ask=ask, engine=ask, backend=stage.out("backend"))


def describe_training(recipe: Recipe, base: Model | None) -> Recipe:
    """Return the recipe for training from ``base``, with the type for computation filled in."""
    return settle_training(recipe, find_checkpoint(base)) if isinstance(recipe, LmStudentConfig) else recipe


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


def describe_first_teacher(config: RunConfig, tables: Mapping[str, Table], sizes: Mapping[str, int]) -> Model | None:
    """Return the configured weak teacher, or the reader of given labels, or None for a teacher without weights.

    A server has no weights here; the reader of its answers is among the helper models.
    """
    model = config.teacher.loaded
    if model is None or config.teacher.endpoint is not None:
        return None
    role = "teacher" if config.teacher.reader is None else "reader"
    return describe_adapted_teacher(config, _describe_base(config, model, role), tables, sizes, name="gen-0/teacher")


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
        recipe=describe_training(recipe, base),
        domain=config.domain_of("adapt"),
        seed=derive(config.seed, "gen-0"),
        num_rows=sizes.get("adapt"),
        needs=needs,
    )
    return stage.out("model")


def describe_helper_models(config: RunConfig, tables: Mapping[str, Table], sizes: Mapping[str, int]) -> HelperModels:
    """Return the models that signals ask, the judge, and the reader of answers."""
    ask = config.teacher.ask.of_weights(chat_template=config.evaluation.chat_template)
    ask, reward, judge = ask.model_copy(update=AskConfig.BARE), config.signals.reward, config.judge
    if config.teacher.given is not None and config.teacher.reader is None:
        ask = ask.model_copy(update={"backend": "transformers"})
    roles = {
        role: describe_teacher_use(_describe_base(config, model, role), ask, name=f"gen-0/backend-{role}")
        for role, model in config.signals.models.items()
    }
    if config.signals.second_teacher is not None:
        base = _describe_base(config, config.signals.second_teacher, "second-teacher")
        second = describe_adapted_teacher(config, base, tables, sizes, name="gen-0/second-teacher")
        roles["second_teacher"] = describe_teacher_use(second, ask, name="gen-0/backend-second-teacher")
    if reward is not None:
        model = _describe_base(config, reward.model, "reward")
        in_words = ask.model_copy(update={"chat_template": reward.chat_template})
        if reward.kind == "verifier":
            roles["reward"] = describe_teacher_use(model, in_words, name="gen-0/backend-reward")
        else:
            in_words = settle_ask(in_words, find_checkpoint(model))
            roles["reward"] = TeacherUse(model=model, ask=in_words, engine=in_words, backend=ask.backend)
    judging = None
    if judge is not None:
        in_words = ask.model_copy(update={"chat_template": judge.chat_template})
        judging = describe_teacher_use(
            _describe_base(config, judge.model, "judge"), in_words, name="gen-0/backend-judge"
        )
    reads, reader = config.teacher.reading, None
    if reads is not None and config.teacher.loaded is not None:
        reader = describe_teacher_use(
            _describe_base(config, config.teacher.loaded, "reader"), reads, name="gen-0/backend-reader"
        )
    return HelperModels(roles=roles, judge=judging, reader=reader)


def describe_base_model(config: RunConfig, model: ModelConfig, name: str, needs: Sequence[Out] = ()) -> Model:
    """Return a model; a model from scratch is made by the stage ``name``."""
    if model.path is not None:
        return models.pin_model(model)
    assert model.init is not None, "a model has a path or comes from scratch"
    stage = MakeBase(name=name, init=model.init, domain=config.domain, seed=derive(config.seed, name), needs=needs)
    return stage.out("model")


def _describe_base(config: RunConfig, model: ModelConfig, role: str) -> Model:
    return describe_base_model(config, model, f"gen-0/{role}-base")
