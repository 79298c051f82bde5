"""A warning of few optimizer steps of students, and the warm-up of a short training."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from curation.config import RunConfig
from curation.pipeline.outlook import iter_few_steps
from train.models import count_warm_up_steps

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart.yaml"


def config(budget: dict[str, Any], student: dict[str, Any], **further: Any) -> RunConfig:
    raw = yaml.safe_load(QUICKSTART.read_text())
    raw["selection"]["budget"] = budget
    raw["student"] = student
    raw["generations"][0] |= further
    return RunConfig.model_validate(raw)


@pytest.mark.parametrize(
    ("student", "steps"),
    [
        ({"epochs": 1}, 2),
        ({"epochs": 1, "global_batch_size": 128, "micro_batch_size": 8}, 2),
        ({"epochs": 10}, 20),
        ({"epochs": 10, "global_batch_size": 32}, 70),
        ({"method": "grpo", "global_batch_size": 32, "micro_batch_size": 256}, 125),
    ],
)
def test_few_optimizer_steps_are_a_warning_that_names_the_batch(student: dict[str, Any], steps: int) -> None:
    lines = [*iter_few_steps(config({"n": 200}, student), 10_000)]
    assert bool(lines) == (steps < 50)
    for line in lines:
        assert f"200 rows, global_batch_size {student.get('global_batch_size', 128)}: {steps} optimizer steps" in line
        assert "; lower global_batch_size, give it more epochs" in line


def test_a_share_is_of_the_pool_and_what_labels_decide_is_not_named() -> None:
    (found,) = iter_few_steps(config({"share": 0.01}, {"epochs": 1}), 100_000)
    assert found.startswith("student: 1,000 rows, global_batch_size 128: 8 optimizer steps")
    assert not [*iter_few_steps(config({"share": 0.29}, {"epochs": 3}), 100_000)]
    assert not [*iter_few_steps(config({"threshold": 0.9}, {}), 100_000)]


def test_each_further_student_has_its_line() -> None:
    large = {"large": {"model": {"path": str(QUICKSTART.parent / "bases" / "teacher")}, "recipe": {"epochs": 2}}}
    first, further = iter_few_steps(config({"n": 200}, {"epochs": 1}, students=large), 10_000)
    assert first.startswith("student: ") and further.startswith("student large: ")


@pytest.mark.parametrize(
    ("wanted", "num_steps", "taken"), [(1, 2, 0), (1, 3, 0), (1, 4, 1), (20, 30, 9), (20, 400, 20)]
)
def test_warm_up_takes_less_than_a_third_of_the_steps(wanted: int, num_steps: int, taken: int) -> None:
    assert count_warm_up_steps(wanted, num_steps) == taken < num_steps / 3
