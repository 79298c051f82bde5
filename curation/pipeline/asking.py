"""Models and how they are asked; the backend that ``teacher.backend: auto`` stands for is settled once for each."""

from curation.config import AskConfig
from curation.config.states import others_of
from curation.rundir.graph import Model
from curation.stages.asking import SettleBackend, TeacherUse


def asked(model: Model | None, ask: AskConfig, *, name: str) -> TeacherUse:
    """A model asked as ``ask`` says; if the backend is ``auto``, the stage ``name`` settles it."""
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
