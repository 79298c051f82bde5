"""The students of a generation, trained on the arms' selections from one base by one recipe, and tested beside it.

The students that teach, those that learned from the first teacher, and further ones (``generations[].students``) are
all described by :func:`describe_students`; a further student is the generation with another base, recipe and name.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from curation import arms
from curation.config import RunConfig, SftConfig
from curation.domains import get_domain, get_preference_function
from curation.errors import ConfigError
from curation.hashing import derive
from curation.json_types import JsonView
from curation.pipeline import roles
from curation.pipeline.generation_spec import GenerationSpec
from curation.pipeline.roles import describe_training
from curation.pipeline.testing import Tested, describe_tests
from curation.registry import METHODS
from curation.rundir.graph import Out, Stage
from curation.stages.asking import TeacherUse
from curation.stages.training import TrainStudent


class Students(NamedTuple):
    """Students of one base, by arm, and their tests."""

    models: dict[str, Out]
    training: dict[str, Out]
    tests: Tested


def check_students(config: RunConfig) -> None:
    """Refuse students that learn from pairs if rows are no pairs, or if a student would teach.

    Raises:
        ConfigError: the students are refused; the message names the domain, or the generations.
    """
    method = config.student.method
    if not config.generations or METHODS[method].learns != "pairs":
        return
    for split in ("pool", "test"):
        if (
            split in config.splits.named()
            and get_preference_function(get_domain(domain := config.domain_of(split))) is None
        ):
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


def describe_students(
    generation: GenerationSpec, teacher: TeacherUse, selected: Stage, of: Iterable[str], *, prefix: str = ""
) -> Students:
    """Return the students trained from a generation's base on the selections of these arms; empty without a base.

    ``prefix`` precedes the arm in the names of their stages.
    """
    if generation.base is None:
        return Students({}, {}, Tested({}, {}, {}))
    check_students(generation.config)
    stages = {arm: _describe_student(generation, selected, arm, prefix) for arm in of}
    models = {arm: stage.out("model") for arm, stage in stages.items()}
    tests = describe_tests(
        generation, teacher, generation.base, {f"{prefix}{arm}": model for arm, model in models.items()}
    )
    return Students(models, {arm: stage.out("training") for arm, stage in stages.items()}, tests)


def describe_further_students(generation: GenerationSpec, teacher: TeacherUse, selected: Stage) -> dict[str, JsonView]:
    """Return the further students, which do not teach, by name: their own fields of ``report.GenerationRecord``.

    Each is described only from the tests of the generation, so that none depends on the other further students.
    """
    config = generation.config
    if generation.branch or not config.generations:
        return {}
    found: dict[str, JsonView] = {}
    for name, student in config.generations[generation.index].students.items():
        own = replace(
            generation, branch=name, config=config.model_copy(update={"student": student.recipe or config.student})
        )
        own = replace(
            own, base=roles.describe_base_model(config, student.model, own.name("student-base"), generation.needs)
        )
        group = describe_students(own, teacher, selected, config.selection.arms)
        found[name] = {
            "student_base": own.base,
            "tests": group.tests.main,
            "further_tests": group.tests.further,
            "training": group.training,
        }
    return found


def _describe_student(generation: GenerationSpec, selected: Stage, arm: str, prefix: str) -> TrainStudent:
    """Return the student of an arm, which is trained again only if the digest of its rows changes."""
    config, recipe = generation.config, generation.config.student
    method, base = METHODS[recipe.method], generation.base
    assert base is not None, "students have a base"
    if isinstance(recipe, SftConfig) and isinstance(arms.TRUST[arms.ARMS[arm].trust], arms.Draw):
        recipe = recipe.without({"weight_by_trust"})
    return TrainStudent(
        name=generation.name(f"student-{prefix}{arm}"),
        at=generation.at(of=f"{prefix}{arm}"),
        base=base,
        digest=selected.out("arms", arm, "digest"),
        recipe=describe_training(recipe, base),
        seed=derive(config.seed, f"gen-{generation.index}"),  # one for all students of a generation
        trained_by=method.trained_by,
        read={"domain": config.domain_of("pool")} if "domain" in method.reads else {},
        rows=selected.out("rows_of", arm),
        examples={"examples": generation.tables["pool"]} if "examples" in method.reads else {},
        num_rows=config.selection.budget.n,
        needs=generation.needs,
    )
