"""Pairs of answers: which column is the better one, in which order they are shown, and what is refused."""

import pytest

from curation.config import DomainConfig
from curation.domains import get_domain, get_preference_function
from curation.domains.identity import match_questions
from curation.errors import ConfigError, RowError


def made(**options):
    return get_domain(DomainConfig(name="pair", **options))


def rows(num):
    return [{"prompt": f"Name a number {n}.", "chosen": f"good {n}", "rejected": f"bad {n}"} for n in range(num)]


def test_the_order_of_a_labelled_row_does_not_tell_which_answer_is_better():
    domain = made()
    golds = []
    for raw in rows(400):
        example, gold = domain.read(raw), domain.gold(raw)
        assert example[gold] == raw["chosen"] and {example["first"], example["second"]} == {*list(raw.values())[1:]}
        turned = {**raw, "chosen": raw["rejected"], "rejected": raw["chosen"]}
        assert domain.read(turned) == example, "what the teacher sees does not depend on the label"
        assert {gold, domain.gold(turned)} == {"first", "second"}
        golds.append(gold)
    assert 160 < golds.count("first") < 240


def test_an_unlabelled_row_keeps_its_order_and_may_be_labelled_by_a_column():
    domain = made(first="a", second="b", preferred="winner")
    raw = {"prompt": "p", "a": " x ", "b": 2.0}
    assert domain.read(raw) == {"question": "p", "first": "x", "second": "2"} and domain.gold(raw) is None
    named = [domain.gold({**raw, "winner": value}) for value in ("first", "second", "a", "b", None)]
    assert named == ["first", "second", "first", "second", None]
    with pytest.raises(RowError, match="bad_label: 'c' is neither first nor second"):
        domain.gold({**raw, "winner": "c"})


def test_the_teacher_scores_a_letter_and_the_label_is_a_column():
    domain = made(guidelines=" Shorter is better. ")
    example = {"question": "Why?", "first": "long", "second": "s"}
    shot = {"question": "Who?", "first": "I", "second": "you", "gold": "second"}
    asked = "Question: Why?\n\nAnswer A: long\n\nAnswer B: s\n\nThe better answer is"
    shown = "Question: Who?\n\nAnswer A: I\n\nAnswer B: you\n\nThe better answer is B"
    assert domain.prompt(example, shots=[shot]) == f"Shorter is better.\n\n{shown}\n\n{asked}"
    assert domain.options(example) == (" A", " B") and domain.num_answers(example) == 2
    assert [domain.parse(text, example) for text in (" A", "B\n", "C", "")] == ["first", "second", None, None]
    assert domain.other_order("first", example) == ("second", {"question": "Why?", "first": "s", "second": "long"})
    assert domain.preference("second", example) == ("Why?", "s", "long")
    assert domain.defaults["trust"] == {"preset": "world_knowledge"} and DomainConfig(name="pair").traits.lists_answers


def test_by_likelihood_the_answers_themselves_are_scored_after_the_prompt():
    domain = made(by="likelihood")
    example = {"question": "2 + 2 =", "first": "4", "second": "5 or so"}
    assert domain.prompt(example) == "2 + 2 =" and domain.options(example) == (" 4", " 5 or so")
    assert domain.parse(" 5  or so", example) == "second" and domain.parse(" A", example) is None
    assert domain.options({**example, "question": "2 + 2 =\n"}) == ("4", "5 or so")
    assert domain.identity(example) == made().identity(example)


def test_a_pair_is_the_same_question_in_either_order():
    domain = made()
    example = {"question": "Why?", "first": "x", "second": "y"}
    assert (
        match_questions(domain.identity(example), domain.identity(domain.other_order("first", example)[1]))
        == "permuted"
    )
    assert match_questions(domain.identity(example), domain.identity({**example, "question": "How?"})) is None


def test_a_row_of_both_forms_is_read_by_the_columns_that_have_values():
    domain = made()
    raw = {"prompt": "p", "chosen": None, "rejected": " ", "first": "x", "second": "y", "preferred": "second"}
    assert domain.read(raw) == {"question": "p", "first": "x", "second": "y"} and domain.gold(raw) == "second"
    ordered = {**raw, "chosen": "good", "rejected": "bad"}
    assert set(domain.read(ordered).values()) == {"p", "good", "bad"}
    for change in ({"chosen": "good"}, {"first": None, "second": None}):  # half a pair is a row with an error
        with pytest.raises(RowError, match=r"null_field: (rejected|chosen) is empty"):
            domain.read({**raw, **change})


def test_a_label_made_elsewhere_means_the_column_that_it_names():
    """Also in a row that has ``chosen`` and ``rejected``, which are shown in an order of their own."""
    domain = made(given_labels={"completion": "answer", "grade": "ok"})
    assert domain.forms == (("prompt", "first", "second", "answer"),)
    for n in range(20):
        raw = {**rows(20)[n], "first": f"x {n}", "second": f"y {n}", "answer": "first", "preferred": "second"}
        example = domain.read(raw)
        label = domain.parse(domain.given_completion(example), example)
        assert domain.preference(label, example) == (raw["prompt"], raw["first"], raw["second"])
        assert domain.gold(raw) == "second"
    by_text = made(by="likelihood", given_labels={"completion": "answer"})
    for raw in rows(20):
        example = by_text.read({**raw, "answer": raw["chosen"]})
        assert by_text.parse(by_text.given_completion(example), example) == by_text.gold(raw)


def test_pairs_are_known_where_labels_were_made_elsewhere():
    domain = made(given_labels={"completion": "answer"})
    example = domain.read({"prompt": "Why?", "first": "x", "second": "y", "answer": "second"})
    assert domain.given_completion(example) == " B"
    found = get_preference_function(domain)
    assert found is not None and found("second", example) == ("Why?", "y", "x")
    assert get_preference_function(get_domain(DomainConfig(name="mcqa"))) is None


def test_a_template_makes_the_prompt():
    domain = made(prompt="{{ title }}: {{ body }}")
    assert domain.forms == (("body", "title", "chosen", "rejected"), ("body", "title", "first", "second"))
    raw = {"title": "T", "body": "b", "chosen": "x", "rejected": "y"}
    assert domain.read(raw)["question"] == "T: b"
    with pytest.raises(
        ConfigError, match=r"domain\.chosen and rejected: chosen, rejected, beside the columns chosen, title"
    ):
        made(prompt="{{ title }} {{ chosen }}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rejected": "good  0 "}, "same_answers: chosen and rejected hold the same answer"),
        ({"chosen": None}, "null_field: chosen is empty"),
        ({"rejected": ""}, "null_field: rejected is empty"),
        ({"prompt": None}, "null_field: prompt is empty"),
        ({"chosen": [{"role": "assistant", "content": "x"}]}, "not_a_text: chosen is list, not a text"),
    ],
)
def test_a_row_without_two_answers_is_refused(change, words):
    raw = {**rows(1)[0], **change}
    for method in (made().read, made().gold):
        with pytest.raises(RowError, match=words):
            method(raw)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chosen": "a", "rejected": "a"}, r"domain\.chosen and rejected: a, a, beside the columns prompt"),
        ({"first": "a", "second": "a"}, r"domain\.first, second and preferred: a, a, preferred"),
        ({"chosen": "prompt"}, r"domain\.chosen and rejected: prompt, rejected, beside the columns prompt"),
        ({"preferred": "first"}, r"domain\.first, second and preferred: first, second, first"),
        ({"chosen": ""}, r"chosen: '': String should have at least 1 character"),
        ({"first": 3}, r"first: 3: Input should be a valid string"),
        ({"by": "vote"}, r"by: 'vote': Input should be 'judge' or 'likelihood'"),
        ({"both_orders": "yes"}, r"both_orders: 'yes': Input should be a valid boolean"),
        ({"guidelines": None}, r"guidelines: None: Input should be a valid string"),
        ({"prompt": "{{ a"}, r"domain\.prompt: line 1"),
        ({"choosen": "a"}, "cannot be made with choosen"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        made(**options)
