"""Labels made elsewhere: how rows are read, which completions they become, and how grades stand for gold labels."""

from typing import Any

import pytest

from curation.config import DomainConfig
from curation.domains import Domain, get_domain
from curation.domains.given import RIGHT, WRONG, get_given_completion, get_given_numbers
from curation.errors import ConfigError, RowError

IRONY = {"name": "classification", "classes": {"1": "ironic", "0": "not ironic"}}
MATH = {"name": "math", "instruction": ""}
MCQA = {"name": "mcqa"}


def domain(of: dict[str, Any], **given: Any) -> Domain:
    columns = {"completion": "answer", "confidence": "confidence", **given}
    return get_domain(DomainConfig.model_validate({**of, "given_labels": columns}))


@pytest.mark.parametrize(
    ("of", "own", "given", "completion", "label"),
    [
        (IRONY, {"text": "So nice"}, "ironic", " ironic", "1"),
        (IRONY, {"text": "So nice"}, 1, " ironic", "1"),
        (IRONY, {"text": "So nice"}, 0.0, " not ironic", "0"),  # a column of whole numbers with gaps
        (IRONY, {"text": "So nice"}, "sarcasm", "sarcasm", None),
        (MCQA, {"question": "Which?", "choices": ["red", "blue"]}, "B", " B", "B"),
        (MATH, {"problem": "1 + 1"}, "It is \\boxed{2}.", "It is \\boxed{2}.", "2"),
        (MATH, {"problem": "1 + 1"}, 2, None, "2"),
        (MATH, {"problem": "1 + 1"}, "**2**", None, "2"),
        (MATH, {"problem": "1 + 1"}, "#### 2", None, "2"),
        (MATH, {"problem": "1 + 1"}, "1 + 1 is\n#### 2", " 1 + 1 is The final answer is \\boxed{2}.", "2"),
        (
            MATH,
            {"problem": "1 + 1"},
            "So the answer is 2.",
            " So the answer is 2. The final answer is \\boxed{2}.",
            "2",
        ),
        (MATH, {"problem": "1 + 1"}, "It is \\boxed{2", "It is \\boxed{2", None),
        (MATH, {"problem": "1 + 1"}, "I would say it is two or more", "I would say it is two or more", None),
    ],
)
def test_a_given_label_becomes_the_domains_completion(
    of: dict[str, Any], own: dict[str, Any], given: Any, completion: str | None, label: str | None
) -> None:
    made = domain(of)
    example = made.read({**own, "answer": given, "confidence": "0.5"})
    found = get_given_completion(made, example)
    assert found is not None and made.parse(found, example) == label
    assert found == (made.answer("2", example) if completion is None else completion)


def test_columns_travel_only_when_they_are_named() -> None:
    plain, made = get_domain(DomainConfig.model_validate(IRONY)), domain(IRONY, confidence=["confidence", "votes.of 3"])
    assert plain.columns.names == ["text"] and get_given_completion(plain, {"text": "a"}) is None
    assert made.columns.names == ["text", "weak_completion", "given_confidence", "given_votes_of_3"]
    assert made.forms == (("text", "answer", "confidence", "votes.of 3"),)
    assert get_given_numbers(made) == ("given_confidence", "given_votes_of_3") and get_given_numbers(plain) == ()
    assert made.prompt({"text": "a"}) == plain.prompt({"text": "a"}) and made.num_answers({"text": "a"}) == 2


@pytest.mark.parametrize(
    ("cell", "number"), [(None, None), ("", None), ("0.25", 0.25), (True, 1.0), (3, 3.0), ("inf", None), ("nan", None)]
)
def test_an_empty_cell_is_a_missing_number(cell: Any, number: float | None) -> None:
    example = domain(IRONY).read({"text": "a", "answer": "ironic", "confidence": cell})
    assert example["given_confidence"] == number


def test_bad_cells_are_error_rows() -> None:
    made = domain(IRONY, grade="ok")
    with pytest.raises(RowError, match="null_field: answer is empty"):
        made.read({"text": "a", "answer": None, "confidence": 1})
    with pytest.raises(RowError, match="bad_value: confidence is 'high', not a number"):
        made.read({"text": "a", "answer": "ironic", "confidence": "high"})
    with pytest.raises(RowError, match="bad_grade: ok is 'maybe', not one of 1, true, 0, false"):
        made.gold({"ok": "maybe"})


@pytest.mark.parametrize(
    ("grade", "gold"),
    [(1, RIGHT), ("1", RIGHT), (1.0, RIGHT), (True, RIGHT), ("True", RIGHT), (0, WRONG), (False, WRONG)],
)
def test_a_grade_stands_for_the_gold_label(grade: Any, gold: str) -> None:
    made = domain(IRONY, grade="ok")
    assert made.gold({"ok": grade, "label": 0}) == gold
    assert made.is_correct("1", gold) is made.is_correct("0", gold) is (gold == RIGHT)
    assert not made.is_correct(None, gold)


def test_without_a_grade_the_gold_label_counts() -> None:
    made = domain(IRONY, grade="ok")
    assert made.gold({"ok": None, "label": 0}) == made.gold({"label": 0}) == "0"
    assert made.gold({"ok": None}) is None
    assert made.is_correct("0", "0") and not made.is_correct("1", "0")


def test_grades_and_gold_labels_are_checked_together() -> None:
    made = domain(IRONY, grade="ok")
    assert made.check(["0", "0", None, "1", "1"], [RIGHT, WRONG, RIGHT, "1", "0"], [{}] * 5) == [
        True,
        False,
        False,
        True,
        False,
    ]


def test_a_column_of_the_domain_is_not_overwritten() -> None:
    class Own(Domain):
        name = "own"
        columns = get_domain(DomainConfig.model_validate(IRONY)).columns.append(
            get_domain(DomainConfig.model_validate({**IRONY, "given_labels": {"completion": "a"}})).columns[1]
        )

        def prompt(self, example: Any, *, shots: Any = ()) -> str:
            return ""

    from curation.config.external import GivenConfig
    from curation.domains.given import GivenLabels

    with pytest.raises(ConfigError, match="own has a column 'weak_completion' of its own"):
        GivenLabels(Own(), GivenConfig(completion="a"))
