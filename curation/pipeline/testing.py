"""The tests of a generation: teacher, base and students answer the test split, by each decoding of ``evaluation``.

A model that is asked the same way in two generations, or as teacher and as base, is tested once. Answers of models
that the configuration names are kept beside the run directories (:mod:`curation.stages.answers`), so that no other run
asks these models the same questions again.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from curation.config import AskConfig, DomainConfig, RunConfig
from curation.config.evaluation import MAIN
from curation.pipeline.generation_spec import GenerationSpec, Known
from curation.pipeline.grading import describe_grades
from curation.pipeline.roles import describe_teacher_use
from curation.refs import ModelRef, fingerprint
from curation.registry import BACKENDS, METHODS
from curation.rundir.graph import Model, Out, to_plain_json, with_outs
from curation.stages.answers import AnswerOnce
from curation.stages.asking import TeacherUse
from curation.stages.label import Label

Grades = dict[str, list[Out]]
"""Grades of the test split by model, one table per test run."""


class Tested(NamedTuple):
    """The tests of a generation."""

    main: Grades
    """Tests by ``evaluation.decoding``."""
    further: dict[str, Grades]
    """Tests by the decodings of ``evaluation.also``."""
    known: Known
    """Tests of this generation and of earlier generations."""


def describe_tests(
    generation: GenerationSpec, teacher: TeacherUse, base: Model, students: Mapping[str, Model]
) -> Tested:
    """Return the tests of every model of a generation; empty without a test split."""
    if "test" not in generation.tables:
        return Tested({}, {}, generation.tested)
    config, evaluation = generation.config, generation.config.evaluation
    in_words = {"chat_template": evaluation.chat_template}
    ask = config.teacher.ask.of_weights(**in_words).model_copy(update=AskConfig.BARE)
    students_are = describe_teacher_use(base, ask, name=generation.name("backend-student"))
    models = {"teacher": teacher, "base": base, **students}
    if config.teacher.given is not None and config.domain_of("test").given_labels is None:
        del models["teacher"]  # no label of these rows was given
    found: dict[str, Grades] = {decoding: {} for decoding in evaluation.decodings}
    known = {what: dict(tests) for what, tests in generation.tested.items()}
    for name, model in models.items():
        answering = model if isinstance(model, TeacherUse) else replace(students_are, model=model)
        if answering.model is not None and _needs_no_weights(answering.backend):
            answering = replace(answering, backend="transformers")
        answering = answering.changed(**AskConfig.BARE, **({} if answering.is_served else in_words))
        own = config.domain_of("test").tested
        domain = own if name == "teacher" else get_taught_domain(config, "test").tested
        what = _make_identity(answering) if domain == own else f"{_make_identity(answering)}, by likelihood"
        if what not in known:
            known[what] = {
                decoding: _describe_model_tests(generation, name, answering, decoding, domain) for decoding in found
            }
        for decoding, tests in found.items():
            tests[name] = list(known[what][decoding])
    return Tested(found.pop(MAIN), found, known)


def _needs_no_weights(backend: str | Out) -> bool:
    """Return whether a backend answers without weights, so that students need another backend; False for ``auto``."""
    return isinstance(backend, str) and not BACKENDS[backend].weights


def _make_identity(answering: TeacherUse) -> str:
    """Return a value that is equal for models asked the same way, by backends that are chosen the same way."""
    backend = answering.backend if isinstance(answering.backend, str) else answering.backend.stage.inputs
    return fingerprint(to_plain_json(with_outs({**answering.inputs, "backend": backend}, str), {}))


def get_taught_domain(config: RunConfig, split: str) -> DomainConfig:
    """Return a split's domain as students answer it: by the likelier of two answers if they learn from pairs."""
    domain = config.domain_of(split)
    return domain.by_likelihood if METHODS[config.student.method].learns == "pairs" else domain


def _describe_model_tests(
    generation: GenerationSpec, name: str, answering: TeacherUse, decoding: str, domain: DomainConfig
) -> list[Out]:
    """Return the grades of one model by one decoding, one table per test run."""
    evaluation = generation.config.evaluation
    drawn, kind = evaluation.decodings[decoding], "" if decoding == MAIN else f"-{decoding}"
    num_runs = evaluation.runs(drawn)
    runs = [""] if num_runs == 1 else [f"-{number}" for number in range(num_runs)]
    found = []
    kept_in = generation.config.evaluations
    for stage in [f"test-{name}{kind}{run}" for run in runs]:
        arguments = {
            "name": generation.name(stage),
            "at": generation.at("test", of=stage),
            "examples": generation.tables["test"],
            "teacher": answering,
            "decoding": drawn,
            "fitted": {},
            "domain": domain,
            "seed": generation.seed(stage),
            "asks_teacher": name == "teacher" and generation.index == 0,
            "num_rows": generation.sizes["test"],
            "needs": generation.needs,
            **generation.settings,
        }
        is_kept = kept_in is not None and _is_pinned(answering)
        test = AnswerOnce(kept_in=str(kept_in), **arguments) if is_kept else Label(**arguments)
        found.append(describe_grades(generation, stage, "test", test.out("labels")))
    return found


def _is_pinned(answering: TeacherUse) -> bool:
    """Return whether reference and backend determine a model's answers in any run.

    They do not for models that a run trains or makes, for adapters, for labels that are only read, and for backends in
    a user's own module, whose code may change.
    """
    model, backend = answering.model, answering.backend
    is_ours = isinstance(backend, Out) or (":" not in backend and BACKENDS[backend].weights)
    is_pinned = isinstance(model, ModelRef) and model.revision is not None and model.adapter is None
    return is_pinned and is_ours and not answering.ask.reads_given
