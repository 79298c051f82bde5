"""Further students of a selection: numbers of their own, and paired differences from those that teach."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_report import TRAINED, by_name, graded, make_run, variant

from curation.metrics import compute_runs_recovery
from curation.refs import ModelRef
from curation.report import RunRecord
from curation.report.tested import collect_further_students

IDS = np.arange(500) + 5000
ARMS = ("naive", "internal_confidence", "trust", "ground_truth")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return make_run(tmp_path_factory.mktemp("run"))


def right(num: int) -> np.ndarray:
    """Which of the test rows a model answers right: the first ``num``."""
    return np.arange(len(IDS)) < num


def answers(folder: Path, **correct: np.ndarray) -> dict[str, list[Any]]:
    return {name: [graded(folder, name, IDS, flags.tolist())] for name, flags in correct.items()}


def chosen_of(run: RunRecord) -> dict[str, dict[str, Any]]:
    """The facts of the arms' selections that the numbers of students go with."""
    return {arm: {"name": arm, "format": "answer", "num_selected": 120} for arm in run.generations[0].selections}


def test_further_students_have_numbers_of_their_own(run: RunRecord, tmp_path: Path) -> None:
    """The base has 100 rows right, its students 200 to 290; those of the first student 376."""
    own = {arm: right(200 + 30 * place) for place, arm in enumerate(ARMS)}
    tests = answers(tmp_path / "tiny", base=right(100), teacher=right(300), **own)
    first = answers(tmp_path / "first", base=right(374), teacher=right(300), **dict.fromkeys(ARMS, right(376)))
    training = {arm: TRAINED | {"num_rows": 110, "num_dropped": 10} for arm in ARMS}
    tiny = {"student_base": ModelRef(base="bases/tiny"), "tests": tests, "further_tests": {}, "training": training}
    beside = variant(run, tests=first, students={"tiny": tiny})
    (found,) = collect_further_students(beside, beside.generations[0], chosen_of(beside))
    assert found["name"] == "tiny" and found["student_base"]["name"] == "bases/tiny"
    assert found["base"]["value"] == 0.2 and set(found["training"]) == set(ARMS)
    for arm in found["arms"]:
        flags = own[arm["name"]]
        assert arm["accuracy"]["value"] == flags.mean() and arm["accuracy"]["n"] == 500
        assert (arm["rows_trained"], arm["rows_dropped"]) == (110, 10)
        expected = compute_runs_recovery(*(of[:, None] for of in (flags, right(100), own["ground_truth"])))
        assert expected is not None and arm["recovery"] == expected.value == pytest.approx((flags.sum() - 100) / 190)
        pair = found["against_first"][arm["name"]]
        assert pair["difference"] == pytest.approx(flags.mean() - 376 / 500) and pair["n"] == 500


def test_a_further_student_that_was_not_tested_is_set_against_nothing(run: RunRecord, tmp_path: Path) -> None:
    tests = answers(tmp_path, base=right(100), teacher=right(300), **dict.fromkeys(ARMS, right(300)))
    untested = {name: refs for name, refs in tests.items() if name != "trust"}
    tiny = {"student_base": ModelRef(base="bases/tiny"), "tests": untested, "further_tests": {}}
    bare = variant(run, tests=tests, students={"tiny": {**tiny, "training": dict.fromkeys(ARMS, TRAINED)}})
    (found,) = collect_further_students(bare, bare.generations[0], chosen_of(bare))
    assert "trust" not in found["against_first"] and by_name(found)["trust"]["accuracy"] is None
    assert not collect_further_students(run, run.generations[0], chosen_of(run))
