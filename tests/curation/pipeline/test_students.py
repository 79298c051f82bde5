"""Further students of one selection: which stages they add, that they change no other's key, what is refused."""

import copy
from pathlib import Path
from typing import Any

import pytest

from curation.cluster import capacity
from curation.commands.export.run import Student
from curation.config import RunConfig
from curation.config.load import load_config, parse_config
from curation.errors import ConfigError
from curation.pipeline.chain import Chain, describe
from curation.rundir.graph import Stage, order_stages, to_plain_json, with_outs
from curation.rundir.manifest import Manifest
from curation.sources import discover

ROOT = Path(__file__).parents[3]
TEACHER, STUDENT = ({"path": str(ROOT / "examples/bases" / name)} for name in ("teacher", "student"))
TINY = {"init": {"hidden_size": 32, "num_layers": 1}}
CONFIG = {
    "name": "several",
    "sources": {"puzzles": {"path": str(ROOT / "examples/data/puzzles.parquet")}},
    "splits": {
        "source": {"from": "puzzles", "rows": 30},
        "test": {"from": "puzzles", "rows": 20},
        "pool": {"from": "puzzles", "rows": 80},
        "audit": True,
    },
    "teacher": {"model": TEACHER},
    "selection": {"budget": {"n": 10}, "arms": ["naive", "trust", "ground_truth"]},
    "student": {"preset": "scratch", "epochs": 1},
}
ARMS = {"naive", "trust", "ground_truth"}


def config(*students: dict[str, Any], **changes: Any) -> RunConfig:
    """A run with a generation for each mapping of further students."""
    generations = [{"student": STUDENT, **({"students": named} if named else {})} for named in students]
    return parse_config(copy.deepcopy(CONFIG) | {"generations": generations} | changes)


def described(of: RunConfig) -> Chain:
    return describe(of, {name: discover(source) for name, source in of.sources.items()})


def by_name(of: RunConfig) -> dict[str, Stage]:
    return {stage.name: stage for stage in described(of).stages}


def key(stage: Stage) -> Any:
    return to_plain_json(with_outs({"needs": list(map(str, stage.needs)), **stage.inputs}, str), {})


def keys(of: RunConfig) -> dict[str, Any]:
    return {name: key(stage) for name, stage in by_name(of).items()}


def of_students(name: str, arms: set[str] = ARMS) -> set[str]:
    """The stages of the students of a base that comes from scratch, and of their tests."""
    models = {"base", *arms}
    tests = {f"{name}/{kind}-{model}" for kind in ("test", "grade-test") for model in models}
    return {f"{name}/student-base", *(f"{name}/student-{arm}" for arm in arms), *tests}


def test_a_further_student_adds_its_own_stages_and_changes_no_key() -> None:
    before = keys(config({}))
    one = keys(config({"tiny": {"model": TINY}}))
    assert one.keys() - before.keys() == of_students("gen-0-tiny")
    assert {name: one[name] for name in before} == before
    # A third one, named first and on the same base as the second: the second's stages stay too.
    two = keys(config({"again": {"model": TINY}, "tiny": {"model": TINY}}))
    assert two.keys() - one.keys() == of_students("gen-0-again")
    assert {name: two[name] for name in one} == one
    # Nor does a student on the base of another take over the test of that base.
    pairs = [{"late": {"model": STUDENT}}, {"early": {"model": STUDENT}, "late": {"model": STUDENT}}]
    late, both = ({**keys(config({}, generations=[{"student": TEACHER, "students": named}]))} for named in pairs)
    assert "gen-0-late/test-base" in late and {name: both[name] for name in late} == late
    # All learn the same rows with the same seed, and are tested as the first is.
    for arm in ARMS:
        first, further = one[f"gen-0/student-{arm}"], one[f"gen-0-tiny/student-{arm}"]
        assert {**first, "base": 0} == {**further, "base": 0} and first["base"] != further["base"]
        tests = [one[f"gen-0{own}/test-{arm}"] for own in ("", "-tiny")]
        assert {**tests[0], "model": 0} == {**tests[1], "model": 0}


@pytest.mark.long
def test_a_recipe_has_the_keys_of_the_section_student_that_it_leaves_out() -> None:
    recipe = {"learning_rate": 5e-3}
    of = config({"fast": {"model": STUDENT, "recipe": recipe}})
    own = of.generations[0].students["fast"].recipe
    assert own == of.student.model_copy(update=recipe) and own.preset == "scratch"
    stages = by_name(of)
    assert stages["gen-0-fast/student-trust"].inputs["recipe"].learning_rate == 5e-3
    assert stages["gen-0/student-trust"].inputs["recipe"].learning_rate == of.student.learning_rate
    # Its base is that of the student that teaches, which is tested already.
    assert "gen-0-fast/test-trust" in stages and "gen-0-fast/test-base" not in stages
    assert [out.stage.name for out in described(of).generations[0]["students"]["fast"]["tests"]["base"]] == [
        "gen-0/grade-test-base"
    ]
    # Another key of it does only its students again; the configuration that a run keeps gives the same.
    other = config({"fast": {"model": STUDENT, "recipe": {"learning_rate": 4e-3}}})
    changed = {name for name, value in keys(of).items() if keys(other)[name] != value}
    assert changed == {f"gen-0-fast/student-{arm}" for arm in ARMS}
    assert parse_config(of.model_dump(mode="json", by_alias=True)) == of
    paper = config({"fast": {"model": STUDENT, "recipe": {"preset": "paper"}}}).generations[0].students["fast"].recipe
    assert (paper.preset, paper.epochs, paper.learning_rate) == ("paper", 1, 1e-4)


def test_students_of_a_chain_learn_from_the_main_chain_and_teach_nobody(tmp_path: Path) -> None:
    chain = {"arms": ["trust", "naive"], "shallow": ["first_teacher", "predecessor"]}
    before = keys(config({}, {}, chain=chain))
    of = config({"tiny": {"model": TINY}}, {"tiny": {"model": TINY}, "weak": {"model": TEACHER}}, chain=chain)
    after = keys(of)
    assert {name: after[name] for name in before} == before
    later = ARMS - {"naive"}  # which has a chain of its own from there on
    weak = {name for name in of_students("gen-1-weak", later) if not name.endswith("-base")}  # tested as the teacher
    assert after.keys() - before.keys() == of_students("gen-0-tiny") | of_students("gen-1-tiny", later) | weak
    stages = by_name(of)
    assert str(stages["gen-1/label-pool"].inputs["model"]) == "gen-0/student-trust: model"
    # A generation that is not reached has no further students either.
    assert stages["gen-1-tiny/student-trust"].needs == stages["gen-1/student-trust"].needs != []
    assert not {stage.name for stage in order_stages(described(of).branches)} & set(weak)
    students = [
        Student(config=of, manifest=Manifest.load(tmp_path), arm=arm, generation=index, name=name)
        for index, generation in enumerate(of.generations)
        for arm in of.selection.arms
        for name in ("", *generation.students)
    ]
    students = [student for student in students if not (student.name and student.branch)]
    named = {student.training for student in students}
    assert {student.home for student in students if student.name == "tiny"} == {"gen-0", "gen-1"}
    assert named == {name for name in after if "/student-" in name and "shallow" not in name} - {
        name for name in after if name.endswith("/student-base") or "predecessor" in name
    }


def test_models_and_needs_of_further_students_are_checked_with_the_others() -> None:
    recipe = {"gpus_per_worker": 1, "num_workers": 2, "compute_dtype": "auto"}
    of = config({"tiny": {"model": TINY, "recipe": recipe}, "weak": {"model": TEACHER}})
    assert {"student 0", "student 0 tiny", "student 0 weak"} < set(of.models)
    asked = {need.key: need.resources.get("GPU", 0) for need in capacity.list_needs(of)}
    assert asked["student"] == 0 and asked["generations.0.students.tiny.recipe"] == 1
    assert [key for key in asked if "weak" in key] == []  # it trains as the section student says


@pytest.mark.parametrize(
    ("students", "words"),
    [
        (
            {"naive": {"model": TINY}},
            "'naive' is the name of an arm; give the student another name, e.g. naive_student",
        ),
        ({"base": {"model": TINY}}, "'base' is the name of a model or a line that every run may have"),
        ({"my/one": {"model": TINY}}, "students.my/one.[key]: 'my/one': String should match pattern"),
        ({"_one": {"model": TINY}}, "'_one': String should match pattern"),
        ({"One": {"model": TINY}, "one": {"model": TINY}}, "'One' and 'one' differ only in upper and lower case"),
        ({"one": {}}, "generations.0.students.one.model: Field required"),
        ({"one": STUDENT}, "generations.0.students.one.path: unknown key"),
        (
            {"one": {"model": TINY, "recipe": {"method": "grpo"}}},
            "recipe needs student.method: grpo, as all",
        ),
        ({"one": {"model": TINY, "recipe": {"learning_rat": 1}}}, "did you mean 'learning_rate'?"),
        ({"one": {"model": TINY, "recipe": {"learning_rate": -1}}}, "students.one.recipe.learning_rate: -1"),
    ],
)
def test_a_student_that_cannot_be_is_refused_with_rule_value_and_mend(students: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config(students)
    assert words in str(refused.value)


def test_a_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("generations:\n- students:\n    one: {model: {path: a}}\n    one: {model: {path: b}}\n")
    with pytest.raises(ConfigError, match="lines 3 and 4: the key 'one' occurs twice; remove one"):
        load_config(path)
