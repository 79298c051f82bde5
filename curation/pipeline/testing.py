"""The tests of a generation: teacher, base and students answer the test split, by each decoding of ``evaluation``.

A model that is asked the same way in two generations, or as teacher and as base, is tested once. Answers of models
that the configuration names are kept beside the run directories (:mod:`curation.stages.answers`), so that no other run
asks them the same again.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from curation.config import AskConfig, DecodingConfig, DomainConfig
from curation.config.evaluation import MAIN
from curation.errors import REFUSALS
from curation.pipeline.asking import Asked, Running, asked, pass_of, whole
from curation.pipeline.given import Generation, Known
from curation.pipeline.labelling import label, labelling
from curation.pipeline.measuring import graded
from curation.refs import ModelRef, TableRef, fingerprint
from curation.registry import BACKENDS
from curation.rundir.graph import Done, Model, Out, plain
from curation.rundir.merging import with_outs
from curation.rundir.run import Task
from curation.storage.paths import place

Grades = dict[str, list[Out]]
"""Grades of the test split by model, a table a run."""


class Tested(NamedTuple):
    """The tests of a generation."""

    main: Grades
    """By ``evaluation.decoding``."""
    further: dict[str, Grades]
    """By the decodings of ``evaluation.also``."""
    known: Known
    """These, and those of earlier generations."""


def testing(generation: Generation, teacher: Asked, base: Model, students: Mapping[str, Model]) -> Tested:
    """The tests of every model of a generation."""
    config, evaluation = generation.config, generation.config.evaluation
    students_are = asked(
        base, config.teacher.ask.model_copy(update=AskConfig.BARE), name=generation.name("backend-student")
    )
    models = {"teacher": teacher, "base": base, **students}
    found: dict[str, Grades] = {decoding: {} for decoding in evaluation.decodings}
    known = {what: dict(tests) for what, tests in generation.tested.items()}
    for name, model in models.items():
        answering = model if isinstance(model, Asked) else replace(students_are, model=model)
        if answering.model is not None and _needs_no_weights(answering.backend):
            answering = replace(answering, backend="transformers")
        answering = answering.changed(**AskConfig.BARE, chat_template=evaluation.chat_template)
        what = _identity(answering)
        if what not in known:
            known[what] = {decoding: _tests(generation, name, answering, decoding) for decoding in found}
        for decoding, tests in found.items():
            tests[name] = list(known[what][decoding])
    return Tested(found.pop(MAIN), found, known)


def _needs_no_weights(backend: str | Out) -> bool:
    """Whether a backend answers without a model, so that students are asked by another; ``auto`` stands for others."""
    return isinstance(backend, str) and not BACKENDS[backend].weights


def _identity(answering: Asked) -> str:
    """Equal for models that are asked the same way; of two backends to be settled, for those settled alike."""
    backend = answering.backend if isinstance(answering.backend, str) else answering.backend.stage.inputs
    return fingerprint(plain(with_outs({**answering.inputs, "backend": backend}, str), {}))


def _tests(generation: Generation, name: str, answering: Asked, decoding: str) -> list[Out]:
    """The grades of one model by one decoding, a table a run."""
    evaluation = generation.config.evaluation
    drawn, kind = evaluation.decodings[decoding], "" if decoding == MAIN else f"-{decoding}"
    num_runs = evaluation.runs(drawn)
    runs = [""] if num_runs == 1 else [f"-{number}" for number in range(num_runs)]
    found = []
    for stage in [f"test-{name}{kind}{run}" for run in runs]:
        test = labelling(
            generation.name(stage),
            examples=generation.tables["test"],
            asked=answering,
            decoding=drawn,
            domain=generation.config.domain_of("test"),
            seed=generation.seed(stage),
            rows=generation.sizes["test"],
            settings=generation.settings,
            asks_teacher=name == "teacher" and generation.index == 0,
            needs=generation.needs,
        )
        kept_in = generation.config.evaluations
        if kept_in is not None and _is_pinned(answering):
            test = replace(test, work=answer_once, settings={**test.settings, "kept_in": str(kept_in)})
        found.append(graded(generation, stage, "test", test.table("labels")))
    return found


def _is_pinned(answering: Asked) -> bool:
    """Whether reference and backend say which answers a model gives, in any run.

    They do not of what a run trains or makes, of adapters, and of backends in a user's own module, whose code may
    change.
    """
    model, backend = answering.model, answering.backend
    is_ours = isinstance(backend, Out) or (":" not in backend and BACKENDS[backend].weights)
    return isinstance(model, ModelRef) and model.revision is not None and model.adapter is None and is_ours


def answer_once(
    task: Task,
    *,
    kept_in: str,
    examples: TableRef,
    model: ModelRef,
    ask: AskConfig,
    backend: str,
    running: Running,
    domain: DomainConfig,
    decoding: DecodingConfig,
    seed: int,
    **others: Any,
) -> Done:
    """Label the test split as ``label`` does, or with the answers that the model gave in an earlier run.

    A folder that cannot be read or written costs the answers kept there, not the run.
    """
    from ray.exceptions import RayError

    from curation.stages import answers
    from curation.stages.label import count_labels
    from curation.stages.label_chunks import LabelJob

    job = LabelJob(
        examples=examples,
        labels_uri=str(task.directory / "labels.lance"),
        domain=domain,
        teacher=whole(ask, backend, running, decoding),
        model=model,
        decoding=decoding,
        seed=seed,
        told=task.telemetry,
    )
    entry = None
    try:
        entry = answers.entry_of(job, place(kept_in), revision=task.stage.revision)
        if (kept := answers.find(entry)) is not None:
            result = answers.recall(job, kept)
            task.say(f"the answers are those of {kept.run}, kept in {entry.path}")
            task.manifest.event("recalled", stage=task.name, run=kept.run, entry=str(entry.path))
            told = {**pass_of(result, backend, model), "recalled": kept.run}
            counts = count_labels(result.table)
            outputs = {"labels": result.table.to_json(), "counts": asdict(counts), "pass": told}
            return Done(outputs=outputs, rows=counts.rows)
    except (*REFUSALS, RayError) as error:
        task.say(f"no answers are taken from {kept_in}: {error}")
    done = label(
        task,
        examples=examples,
        model=model,
        ask=ask,
        backend=backend,
        running=running,
        domain=domain,
        decoding=decoding,
        seed=seed,
        **others,
    )
    try:
        if entry is not None:
            answers.keep(entry, TableRef.from_json(done.outputs["labels"]), str(task.manifest.directory))
    except REFUSALS as error:
        task.say(f"the answers are not kept for other runs: {error}")
    return done
