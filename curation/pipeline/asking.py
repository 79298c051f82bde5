"""Models and how they are asked: the one that a stage asks, and the backend that ``teacher.backend: auto`` stands for.

``auto`` is settled once for each model, by a stage of its own.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from curation.cluster import nodes
from curation.config import AskConfig, DecodingConfig
from curation.config.states import others_of
from curation.refs import ModelRef, fingerprint
from curation.rundir.graph import Built, Done, Model, Out, Work, plain
from curation.rundir.hosts import Host
from curation.rundir.run import Task
from curation.stopping import waited_for
from curation.tasks import root
from curation.teachers import can_be_replaced

if TYPE_CHECKING:
    from curation.passes.run import PassOptions, PassResult
    from curation.teachers.vllm_choice import Choice


@dataclass(frozen=True, kw_only=True)
class Running:
    """How a model runs. No answer depends on it."""

    spread: Mapping[str, Any]
    """How rows are spread over actors: the keys ``AskConfig.SPREAD``."""
    engine: AskConfig
    """How the model is started, for all stages that ask it."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A model, and how it is asked."""

    model: Model | None
    """``None`` for the scripted teacher."""
    ask: AskConfig
    engine: AskConfig
    """How it is started, for all stages that ask it: with every state that one of them keeps."""
    backend: str | Out

    @property
    def inputs(self) -> dict[str, Any]:
        """What its answers depend on, besides the decoding."""
        answers = self.ask.without({*AskConfig.SPREAD, "backend", "decoding"})
        return {"model": self.model, "ask": answers, "backend": self.backend}

    @property
    def settings(self) -> dict[str, Any]:
        """How it runs."""
        spread = {key: getattr(self.ask, key) for key in AskConfig.SPREAD}
        return {"running": Running(spread=spread, engine=self.engine)}

    @property
    def host(self) -> Host:
        """Its actors, or those of another model that have equal resources and can replace their model."""
        model = str(self.model) if isinstance(self.model, Out) else plain(self.model, {})
        name = fingerprint([model, str(self.backend), plain(self.engine, {})])
        kind = name
        if isinstance(self.backend, str) and can_be_replaced(self.backend):
            kind = fingerprint(plain(self.engine.actors, {}))
        return Host(name=name, kind=kind, shared=True)

    def stage(
        self,
        name: str,
        work: Work,
        inputs: Mapping[str, Any],
        *,
        settings: Mapping[str, Any],
        rows: int | None,
        asks_teacher: bool = False,
        needs: Sequence[Out] = (),
        revision: int = 1,
    ) -> Built:
        """A stage whose ``work`` asks the model about ``rows`` rows."""
        return Built(
            name=name,
            work=work,
            inputs={**inputs, **self.inputs},
            settings={**self.settings, **settings},
            num_rows=rows,
            takes=self._takes(rows),
            host=self.host,
            asks_teacher=asks_teacher,
            needs=needs,
            revision=revision,
        )

    def _takes(self, rows: int | None) -> dict[str, float]:
        """The resources that a pass over ``rows`` rows occupies: one actor a chunk, at most ``actors.max``."""
        actors = self.ask.actors
        chunks = actors.max if rows is None else math.ceil(rows / self.ask.first_chunk_rows)
        num = max(actors.min, min(actors.max, chunks))
        # An open backend may turn out to be one that takes all cores.
        all_cores = actors.takes_all_cores("vllm" if isinstance(self.backend, Out) else self.backend)
        takes = {kind: num * amount for kind, amount in actors.each.items()}
        return takes | ({"CPU": math.inf} if all_cores else {})

    def changed(self, **changes: Any) -> "Asked":
        """The same model, started the same way, but asked differently."""
        return replace(self, ask=self.ask.model_copy(update=changes))


def asked(model: Model | None, ask: AskConfig, *, name: str) -> Asked:
    """A model asked as ``ask`` says; if the backend is ``auto``, the stage ``name`` settles it."""
    if ask.backend != "auto":
        return Asked(model=model, ask=ask, engine=ask, backend=ask.backend)
    stage = Built(
        name=name,
        work=settle,
        inputs={
            "model": model,
            "engine": ask.vllm.engine,
            "num_gpus": ask.actors.num_gpus,
            "other_layers": bool(others_of(ask.states)),
        },
        settings={"ask": ask},
        num_rows=0,
    )
    return Asked(model=model, ask=ask, engine=ask, backend=stage.value("backend"))


def whole(ask: AskConfig, backend: str, running: Running, decoding: DecodingConfig) -> AskConfig:
    """Rebuild how a model is asked from the arguments of a stage."""
    return ask.model_copy(update={**running.spread, "backend": backend, "decoding": decoding})


@contextmanager
def passing(
    task: Task, backend: str, running: Running, commit_seconds: float
) -> Iterator[tuple[AskConfig, "PassOptions"]]:
    """Yield how a stage's model is started and how its pass is done: by actors that already run, if there are any."""
    from curation.passes.run import PassOptions, make_dataset

    engine = running.engine.model_copy(update={"backend": backend})
    hold_cpus = task.hosts.hold_cpus
    hosted = task.hosted(
        lambda: make_dataset(engine, hold_cpus=hold_cpus), max_idle_seconds=engine.actors.max_idle_seconds
    )
    with task.progress() as update, hosted as dataset:
        yield engine, PassOptions(commit_seconds=commit_seconds, dataset=dataset, guard=task.guard, progress=update)


def pass_of(result: "PassResult", backend: str, model: ModelRef | None) -> dict[str, Any]:
    """What the stage records of its pass, for the report."""
    return {
        "model": "scripted" if model is None else model.adapter or model.base,
        "backend": backend,
        "rows": result.rows,
        "seconds": result.seconds,
        "deaths": result.deaths,
        "teachers": result.teachers,
    }


def settle(
    task: Task, model: ModelRef, engine: dict[str, Any], num_gpus: float, other_layers: bool, ask: AskConfig
) -> Done:
    """Choose the backend of a model.

    Raises:
        ConfigError: an engine argument of ``teacher.vllm`` that vLLM does not know.
    """
    choice = chosen(ask, model)
    task.say(f"{choice.backend}, since {choice.reason}")
    return Done(outputs=choice._asdict(), rows=0)


def chosen(ask: AskConfig, model: ModelRef | None) -> "Choice":
    """The backend of a model, for which Ray must run.

    The probe is a task with the resources of an actor, so it runs where the actors will run. The driver's machine may
    differ from theirs.

    Raises:
        ConfigError: an engine argument of ``teacher.vllm`` that vLLM does not know.
    """
    import ray

    from curation.teachers.vllm_choice import choose_backend

    probe = ray.remote(choose_backend).options(**nodes.held(ask.actors.each))
    try:
        choice: Choice = waited_for(lambda: ray.get(probe.remote(ask, model)))
    except ray.exceptions.RayTaskError as error:
        raise root(error) from None
    return choice
