"""Bare answers, rollouts, worked solutions: what counts as which, and what gold arms are to train on."""

import pytest

from curation.domains.chess import Chess
from curation.domains.given import choose_format, choose_gold_source, is_bare
from curation.domains.math import Math
from curation.domains.mcqa import Mcqa

QUESTION = {"question": "Which?", "choices": ["this", "that"]}
PROBLEM = {"problem": "2 + 2", "difficulty": None}
START = {"fen": "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", "rating": 900}


@pytest.mark.parametrize(
    ("domain", "completion", "label", "example", "bare"),
    [
        (Math(), r" The final answer is \boxed{4}.", "4", PROBLEM, True),
        (Math(), r"The final answer is \boxed{4}." + "\n", "4", PROBLEM, True),
        (Math(), r" Two and two. The final answer is \boxed{4}.", "4", PROBLEM, False),
        (Math(), r" \boxed{4}", "4", PROBLEM, False),
        (Mcqa(generative=True), " The answer is (A).", "A", QUESTION, True),
        (Mcqa(generative=True), " It is this. The answer is (A).", "A", QUESTION, False),
        (Mcqa(), " A", "A", QUESTION, True),
        (Mcqa(option_style="texts"), " that", "B", QUESTION, True),
        (Chess(), " e2e4", "e2e4", START, True),
        (Chess(), " e4", "e2e4", START, False),
    ],
)
def test_a_bare_answer_is_the_domains_sentence_for_its_label(domain, completion, label, example, bare):
    assert domain.parse(completion, example) == label
    assert is_bare(domain, completion, label, example) is bare


def test_nearly_all_completions_decide_the_format():
    counts = [(95, 100), (94, 100), (100, 100), (0, 100), (0, 0), (19, 20), (18, 20)]
    assert [choose_format(*given) for given in counts] == [
        "answer",
        "rollout",
        "answer",
        "rollout",
        "answer",
        "answer",
        "rollout",
    ]


@pytest.mark.parametrize("wanted", ["auto", "solutions", "samples", "answers"])
def test_gold_trains_on_bare_answers_where_the_weak_arms_do(wanted):
    assert choose_gold_source("answer", wanted, num_gold=10, num_solved=10) == "answer"


@pytest.mark.parametrize(
    ("wanted", "num_solved", "source"),
    [
        ("auto", 100, "solution"),
        ("auto", 95, "solution"),
        ("auto", 94, "sample"),
        ("auto", 0, "sample"),
        ("solutions", 3, "solution"),
        ("samples", 100, "sample"),
        ("answers", 100, "answer"),
    ],
)
def test_beside_rollouts_gold_trains_on_solutions_or_samples_and_never_on_both(wanted, num_solved, source):
    assert choose_gold_source("rollout", wanted, num_gold=100, num_solved=num_solved) == source
    assert choose_gold_source("rollout", "auto", num_gold=0, num_solved=0) == "sample"
