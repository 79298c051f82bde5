"""How models are asked: the backend that ``teacher.backend: auto`` stands for, and what of the settings matters.

``auto`` is settled once for each model, and kept on record.
"""

from typing import Any

from curation.config import TeacherConfig
from curation.places import Place
from curation.refs import ModelRef
from curation.runs import Done, Generation, Run, say
from curation.states import others_of

# What changes how labels are made, not what they are: how rows are spread over actors. What is stored of the states
# goes into the inputs as the trust functions or the projection that it takes.
_SPREAD = {"actors", "chunk_rows", "max_error_rate", "store_states"}


def settled(run: Run, teacher: TeacherConfig, model: ModelRef | None, name: str) -> TeacherConfig:
    """``teacher`` with the backend that ``auto`` stands for with ``model``, found by the stage ``name``.

    The probe is a task with the resources of an actor, so that it runs where the actors will: the driver's machine
    says nothing of theirs.

    Raises:
        ConfigError: an engine argument of ``teacher.vllm`` that vLLM does not know.
    """
    if teacher.backend != "auto":
        return teacher
    assert model is not None, "TeacherConfig asks for a model"

    def work(directory: Place) -> Done:
        import ray

        from curation.teachers.vllm_choice import choose_backend

        probe = ray.remote(num_cpus=teacher.actors.num_cpus, num_gpus=teacher.actors.num_gpus)(choose_backend)
        try:
            choice = ray.get(probe.remote(teacher, model))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        say(f"{name}: {choice.backend}, since {choice.reason}")
        return Done(outputs=choice._asdict(), rows=0)

    inputs = {
        "model": model.to_json(),
        "engine": teacher.vllm.engine,
        "num_gpus": teacher.actors.num_gpus,
        "other_layers": bool(others_of(teacher.states)),
    }
    return teacher.model_copy(update={"backend": run.stage(name, inputs, work)["backend"]})


def own_teacher(run: Run, generation: Generation) -> TeacherConfig:
    """How a generation's teacher is asked."""
    return settled(run, run.config.teacher, generation.teacher, generation.name("backend-teacher"))


def identity(teacher: TeacherConfig) -> dict[str, Any]:
    """What of a teacher's settings its answers depend on, beside the model and the decoding."""
    return teacher.model_dump(mode="json", exclude={"model", "adapt", "decoding", *_SPREAD})
