"""Near-copies among selected rows, against pairs compared one by one, and what the labelled rows let expect."""

import numpy as np
import pytest

from benchmarks.verdict_pools import edited, patterns, sums, words
from curation.report.checks import SIMILAR, NearCopies, Question, cluster_rows, find_near_copies
from curation.report.evidence import predict_purity
from curation.report.rows import FunctionScores, GradedRows

NONE = np.zeros(0, dtype=np.uint64)


def texts(rows: list[str], labels: list[str] | None = None) -> list[Question]:
    return list(zip(rows, labels or ["a"] * len(rows), strict=True))


def similarity(one: str, other: str) -> float:
    ones, others = ({text[n : n + 5] for n in range(len(text) - 4)} for text in (one, other))
    return len(ones & others) / len(ones | others)


def test_near_copies_are_those_of_pairs_compared_one_by_one() -> None:
    rng = np.random.default_rng(3)
    bases = [" ".join(words(rng).split()[5:25]) for _ in range(30)]
    rows = [edited(bases[n % 30], rng) if n % 3 else bases[n % 30] for n in range(90)]
    rows += [" ".join(words(rng).split()[5:]) for _ in range(60)]
    found = cluster_rows(texts(rows), NONE)
    together = wrong = 0
    for one in range(150):
        for other in range(one):
            like = similarity(rows[one], rows[other])
            if like > SIMILAR + 0.15:
                together += 1
                wrong += found[one] != found[other]
            elif like < 0.3:
                assert found[one] != found[other]
    assert together > 60 and wrong <= together // 50


def test_rows_of_two_labels_and_unknown_ones_are_no_near_copies() -> None:
    row = "the same question is asked of all of these rows"
    labels = ["a", "b", "a", "b"]
    found = cluster_rows(texts([f"{row} {n}" for n in range(4)], labels), NONE)
    assert found[0] == found[2] != found[1] == found[3]
    assert len(set(cluster_rows(texts(["", "", ""]), NONE).tolist())) == 3
    assert len(cluster_rows(texts([]), NONE)) == 0
    assert len(set(cluster_rows(texts(["ja", "ja", "no"]), NONE).tolist())) == 2  # shorter than five characters


@pytest.mark.parametrize("edits", [1, 2])
def test_copies_of_one_row_are_one_question_and_honest_rows_are_not(edits: int) -> None:
    rng = np.random.default_rng(edits)
    labelled, base = texts([words(rng) for _ in range(200)]), words(rng) + " " + words(rng)
    copies = []
    for _ in range(60):
        row = base
        for _ in range(edits):
            row = edited(row, rng)
        copies.append(row)
    found, cluster_M = find_near_copies(texts(copies), labelled, seed=0)
    assert found.num_rows == 60 and found.num_questions <= 3 and found.is_more_than_expected
    assert found.num_compared == 60 and found.expected == 0 and len(set(cluster_M.tolist())) == found.num_questions
    honest, _ = find_near_copies(texts([words(rng) for _ in range(60)]), labelled, seed=0)
    assert honest.num_questions == 60  # the frame that all of them have does not count
    for pattern in (sums, patterns):  # questions by few patterns are alike in both sets
        rows = texts([pattern(rng) for _ in range(400)])
        found, _ = find_near_copies(rows, texts([pattern(rng) for _ in range(200)]), seed=0)
        assert not found.is_more_than_expected


def test_more_than_expected_is_twice_as_many_and_five_points() -> None:
    found = NearCopies(num_rows=100, num_questions=60, num_compared=50, share=0.4, expected=0.3)
    assert not found.is_more_than_expected
    of_none = NearCopies(num_rows=100, num_questions=60, num_compared=50, share=0.06, expected=0.0)
    assert of_none.is_more_than_expected


def test_purity_foreseen_of_few_clusters_has_the_chance_of_each() -> None:
    """Of rows themselves: over 2,000 draws of 5 rows of one bin, the interval holds their share right."""
    rng = np.random.default_rng(0)
    right_N = rng.random(4000) < 0.7
    rows = GradedRows(
        row_ids_N=np.arange(4000),
        correct_N=right_N,
        parsed_N=np.ones(4000, dtype=bool),
        scores={"trust": FunctionScores(raw_N=np.zeros(4000), trust_N=np.full(4000, 0.7))},
    )
    few, all_rows = (predict_purity(rows, "trust", 400, np.full(5, 0.7), are_all=are_all) for are_all in (True, False))
    assert few is not None and all_rows is not None and few.purity.value == all_rows.purity.value
    assert few.purity.high - few.purity.low > 10 * (all_rows.purity.high - all_rows.purity.low)
    shares = rng.binomial(5, 0.7, 2000) / 5
    assert np.mean((shares >= few.purity.low) & (shares <= few.purity.high)) >= 0.93
