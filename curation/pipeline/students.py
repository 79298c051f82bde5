"""The students of a generation, trained on the arms' selections from one base by one recipe, and tested beside it.

The students that teach, those that learned from the first teacher, and further ones (``generations[].students``) are
all described by :func:`describe_students`; a further student is the generation with another base, recipe and name.

Teacher, base and students answer the test split, by each decoding of ``evaluation``. A model that is asked the same way
in two generations, or as teacher and as base, is tested once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from curation import arms
from curation.config import AskConfig, DomainConfig, RunConfig, StudentConfig
from curation.config.evaluation import MAIN
from curation.config.models import LmStudentConfig
from curation.domains import get_domain, get_preference_function
from curation.errors import ConfigError
from curation.hashing import derive
from curation.json_types import JsonView
from curation.models.dtypes import resolve_compute_dtype
from curation.pipeline.grading import describe_grades
from curation.pipeline.roles import GenerationSpec, Known, describe_base_model, describe_teacher_use, find_checkpoint
from curation.refs import fingerprint
from curation.registry import BACKENDS, METHODS
from curation.rundir.graph import Model, Out, Stage, to_plain_json, with_outs
from curation.stages.asking import TeacherUse
from curation.stages.gold import Limit, MeasureLength
from curation.stages.label import Label
from curation.stages.training import TrainStudent

Grades = dict[str, list[Out]]
"""Grades of the test split by model, one table per test run."""


class Students(NamedTuple):
    """Students of one base, by arm, and the tests of their generation."""

    models: dict[str, Out]
    training: dict[str, Out]
    tests: Grades
    """Tests by ``evaluation.decoding``."""
    further_tests: dict[str, Grades]
    """Tests by the decodings of ``evaluation.also``."""
    tested: Known
    """Tests of this generation and of earlier generations."""


def check_students(config: RunConfig) -> None:
    """Refuse students that learn from pairs if rows are no pairs, or if a student would teach."""
    method = config.student.method
    if not config.generations or METHODS[method].learns != "pairs":
        return
    for split in [name for name in ("pool", "test") if name in config.splits.named()]:
        domain = config.domain_of(split)
        if get_preference_function(get_domain(domain)) is None:
            raise ConfigError(
                f"student.method: {method} learns from pairs of answers, but rows of domain {domain.name} "
                f"(splits.{split}) are not pairs; take the domain pair, or another method, e.g. sft"
            )
    if len(config.generations) > 1:
        raise ConfigError(
            f"generations: {len(config.generations)} are a chain, but a student of method {method} cannot be the next "
            "teacher: it compares answers by their likelihood, which no teacher of pairs is asked for; give one "
            "generation"
        )


def get_student_domain(config: RunConfig, split: str) -> DomainConfig:
    """Return a split's domain as students answer it: by the likelier of two answers if they learn from pairs."""
    domain = config.domain_of(split)
    return domain.by_likelihood if METHODS[config.student.method].learns == "pairs" else domain


def describe_lengths(generation: GenerationSpec, labels: Mapping[str, Out]) -> dict[str, MeasureLength]:
    """Return the stages, by split, that find rows that some arm cannot train on; all arms leave these rows out.

    Without students there are none.
    """
    config, base, recipe = generation.config, generation.base, generation.config.student
    if base is None:
        return {}
    learns = METHODS[recipe.method].learns
    limit = Limit(
        student=base,
        max_length=recipe.max_length,
        chat_template=recipe.chat_template,
        completions="both" if learns == "pairs" else learns == "completions",
    )
    by_gold = [arms.ARMS[arm].gold for arm in config.selection.arms]
    found = {}
    for split in [split for split in ("calibration", "pool") if split in labels]:
        gold = generation.tables.get("audit" if split == "pool" else split)
        gold = gold if any(by_gold) and limit.completions is True else None
        # These decide, with the labels and the gold labels, what the gold arms of the pool train on.
        rollouts = {"wanted": config.selection.gold_rollouts.source, "seed": config.seed}
        found[split] = MeasureLength(
            **generation.place(f"length-{split}", split),
            examples=generation.tables[split],
            labels=labels[split],
            weak=not all(by_gold) or limit.completions is not True,
            gold=gold,
            domain=get_student_domain(config, split),
            limit=limit,
            rollouts=rollouts if gold and split == "pool" else None,
            split=split,
        )
    return found


def describe_students(
    generation: GenerationSpec, teacher: TeacherUse, selected: Stage, of: Iterable[str], *, prefix: str = ""
) -> Students:
    """Return the students trained from a generation's base on the selections of these arms; empty without a base.

    ``prefix`` precedes the arm in the names of their stages. A student is trained again only if the digest of its rows
    changes.
    """
    config, base = generation.config, generation.base
    if base is None:
        return Students({}, {}, {}, {}, {})
    check_students(config)
    method = METHODS[config.student.method]
    models, training = {}, {}
    for arm in of:
        recipe: StudentConfig = config.student
        if isinstance(recipe, LmStudentConfig):  # fill in the type for computation
            recipe = resolve_compute_dtype(recipe, find_checkpoint(base))
        stage = TrainStudent(
            **generation.place(f"student-{prefix}{arm}", of=f"{prefix}{arm}", num_rows=config.selection.budget.n),
            base=base,
            digest=selected.out("arms", arm, "digest"),
            recipe=recipe,
            seed=derive(config.seed, f"gen-{generation.index}"),  # one for all students of a generation
            trained_by=method.trained_by,
            read={"domain": config.domain_of("pool")} if "domain" in method.reads else {},
            rows=selected.out("rows_of", arm),
            examples={"examples": generation.tables["pool"]} if "examples" in method.reads else {},
            needs=generation.needs,
        )
        models[arm], training[arm] = stage.out("model"), stage.out("training")
    return _describe_tests(generation, teacher, base, Students(models, training, {}, {}, generation.tested), prefix)


def describe_further_students(generation: GenerationSpec, teacher: TeacherUse, selected: Stage) -> dict[str, JsonView]:
    """Return the further students, which do not teach, by name: their own fields of ``report.GenerationRecord``.

    Each is described only from the tests of the generation, so that none depends on the other further students.
    """
    config = generation.config
    if generation.branch or not config.generations:
        return {}
    found: dict[str, JsonView] = {}
    for name, student in config.generations[generation.index].students.items():
        recipe = config.model_copy(update={"student": student.recipe or config.student})
        own = replace(generation, branch=name, config=recipe)
        base = describe_base_model(config, student.model, own.name("student-base"), generation.needs)
        group = describe_students(replace(own, base=base), teacher, selected, config.selection.arms)
        found[name] = {
            "student_base": base,
            "tests": group.tests,
            "further_tests": group.further_tests,
            "training": group.training,
        }
    return found


def _describe_tests(
    generation: GenerationSpec, teacher: TeacherUse, base: Model, students: Students, prefix: str
) -> Students:
    """Return the students with the tests of every model of the generation; without a test split, there are none."""
    if "test" not in generation.tables:
        return students
    config, evaluation = generation.config, generation.config.evaluation
    in_words = {"chat_template": evaluation.chat_template}
    ask = config.teacher.ask.of_weights(**in_words).model_copy(update=AskConfig.BARE)
    students_are = describe_teacher_use(base, ask)
    models: dict[str, Model | TeacherUse] = {"teacher": teacher, "base": base}
    models |= {f"{prefix}{arm}": model for arm, model in students.models.items()}
    if config.teacher.given is not None and config.domain_of("test").given_labels is None:
        del models["teacher"]  # no label of these rows was given
    found: dict[str, Grades] = {decoding: {} for decoding in evaluation.decodings}
    known = {what: dict(tests) for what, tests in generation.tested.items()}
    for name, model in models.items():
        answering = model if isinstance(model, TeacherUse) else replace(students_are, model=model)
        if answering.model is not None and not BACKENDS[answering.backend].weights:
            answering = answering.changed(backend="transformers")
        answering = answering.changed(**AskConfig.BARE, **({} if answering.is_served else in_words))
        own = config.domain_of("test").tested
        domain = own if name == "teacher" else get_student_domain(config, "test").tested

        what = fingerprint(to_plain_json(with_outs(answering.inputs, str), {}))
        what = what if domain == own else f"{what}, by likelihood"
        if what not in known:
            known[what] = {
                decoding: _describe_model_tests(generation, name, answering, decoding, domain) for decoding in found
            }
        for decoding, tests in found.items():
            tests[name] = list(known[what][decoding])
    return students._replace(tests=found.pop(MAIN), further_tests=found, tested=known)


def _describe_model_tests(
    generation: GenerationSpec, name: str, answering: TeacherUse, decoding: str, domain: DomainConfig
) -> list[Out]:
    """Return the grades of one model by one decoding, one table per test run."""
    evaluation = generation.config.evaluation
    settings, kind = evaluation.decodings[decoding], "" if decoding == MAIN else f"-{decoding}"
    num_runs, found = evaluation.runs(settings), []
    for number in range(num_runs):
        stage = f"test-{name}{kind}" if num_runs == 1 else f"test-{name}{kind}-{number}"
        test = Label(
            **generation.place(stage, "test", of=stage),
            examples=generation.tables["test"],
            teacher=answering,
            decoding=settings,
            fitted={},
            domain=domain,
            seed=generation.seed(stage),
            asks_teacher=name == "teacher" and generation.index == 0,
            needs=generation.needs,
            **generation.settings,
        )
        found.append(describe_grades(generation, stage, "test", test.out("labels")))
    return found
