"""Models and how they are asked; what ``auto`` stands for, of backends and types, is settled once for each."""

from typing import TypeVar

from curation.config import AskConfig, StudentConfig
from curation.config.models import LmStudentConfig
from curation.config.states import others_of
from curation.models.dtypes import settled, settled_training
from curation.refs import ModelRef
from curation.rundir.graph import Model, Out
from curation.stages.asking import SettleBackend, TeacherUse
from curation.stages.training import Training

Recipe = TypeVar("Recipe", bound=StudentConfig)


def asked(model: Model | None, ask: AskConfig, *, name: str) -> TeacherUse:
    """A model asked as ``ask`` says; if the backend is ``auto``, the stage ``name`` settles it."""
    ask = settled(ask, checkpoint(model))
    if ask.backend != "auto":
        return TeacherUse(model=model, ask=ask, engine=ask, backend=ask.backend)
    stage = SettleBackend(
        name=name,
        model=model,
        engine=ask.vllm.engine,
        num_gpus=ask.actors.num_gpus,
        other_layers=bool(others_of(ask.states)),
        ask=ask,
        num_rows=0,
    )
    return TeacherUse(model=model, ask=ask, engine=ask, backend=stage.out("backend"))


def trained(recipe: Recipe, base: Model | None) -> Recipe:
    """How a model is trained from ``base``, with the type that it computes in."""
    if not isinstance(recipe, LmStudentConfig):
        return recipe
    return settled_training(recipe, checkpoint(base))


def checkpoint(model: Model | None) -> ModelRef | None:
    """The checkpoint whose type a model has: of one that the run trains its base; ``None`` of one from scratch."""
    while isinstance(model, Out):
        model = model.stage.base if isinstance(model.stage, Training) else None
    return model
