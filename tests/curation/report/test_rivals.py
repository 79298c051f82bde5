"""Trust against free signals: held-out rows by hand, differences against scikit-learn, intervals, sentences."""

from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from computed import collect
from scipy.stats import norm
from sklearn.metrics import roc_auc_score
from test_report import GOLD, N, changed, make_run, rows_of

from curation.arms import FREE
from curation.domains.grading import read_grades
from curation.report import RunRecord
from curation.report.evidence import compare_with_signal, find_rivals
from curation.report.headline import render_sentences
from curation.report.html import render
from curation.report.rows import LOWEST, UNPARSED, FunctionScores, GradedRows, read_graded_rows, without_constant
from curation.tables import io, schemas


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def report(run: RunRecord) -> dict[str, Any]:
    return collect(run)


def rows(num: int = 2000, seed: int = 0, **gaps: float) -> GradedRows:
    """Rows whose scores are higher by their gap where the label is right; the scores share half of their noise."""
    rng = np.random.default_rng(seed)
    correct, shared = rng.random(num) < 0.4, rng.normal(size=num)
    raw = {name: gap * correct + (shared + rng.normal(size=num)) / np.sqrt(2) for name, gap in gaps.items()}
    return GradedRows(
        row_ids_N=np.arange(num),
        correct_N=correct,
        parsed_N=np.ones(num, dtype=bool),
        scores={name: FunctionScores(raw_N=of, trust_N=1 / (1 + np.exp(-of))) for name, of in raw.items()},
    )


def graded(judged: GradedRows) -> GradedRows:
    return judged


def test_held_out_rows_have_an_honest_score_and_ask_each_question_once() -> None:
    raw = np.array([LOWEST, 1.0, 2.0, 3.0, 4.0, LOWEST, LOWEST, 0.5])
    judged = GradedRows(
        row_ids_N=np.arange(8) + 10,
        correct_N=np.ones(8, dtype=bool),
        parsed_N=np.array([1, 1, 1, 1, 1, 0, 0, 1], dtype=bool),
        scores={
            "trust": FunctionScores(raw_N=raw, trust_N=np.full(8, 0.5)),
            "linear_probe": FunctionScores(raw_N=np.where(np.arange(8) == 4, LOWEST, 1.0), trust_N=np.full(8, 0.5)),
            "margin": FunctionScores(raw_N=np.full(8, LOWEST), trust_N=np.zeros(8)),  # not fitted: it hides no row
        },
        question_N=np.array([7, 7, 8, 8, 9, 1, 8, 2]),
    )
    # Row 10 was fitted on, and 13 repeats 12; 16 is unparsed and repeats 12, 15 asks a question of its own.
    found = [judged.held_out(names, seed).row_ids_N.tolist() for names in (["trust"], ["margin"]) for seed in range(40)]
    assert {tuple(ids) for ids in found[:40]} == {(11, 12, 14, 15, 17)}  # all four questions are held out: so is row 15
    assert found[40] == [10, 12, 14, 15, 17]
    both = {tuple(judged.held_out(["trust", "linear_probe"], seed).row_ids_N.tolist()) for seed in range(40)}
    assert both == {(11, 12, 17), (11, 12, 15, 17)}  # three of four questions, so that row 15 is drawn at times
    assert judged.distinct.row_ids_N.tolist() == [10, 12, 14, 15, 17]
    assert replace(judged, question_N=None).distinct.row_ids_N.tolist() == list(range(10, 18))


def test_unparsed_rows_keep_their_proportion_among_held_out_ones() -> None:
    rng, num = np.random.default_rng(0), 4000
    parsed, seen = rng.random(num) < 0.6, rng.random(num) < 0.75
    score = FunctionScores(raw_N=np.where(seen, LOWEST, 0.0), trust_N=np.zeros(num))
    judged = GradedRows(row_ids_N=np.arange(num), correct_N=parsed, parsed_N=parsed, scores={"trust": score})
    held = judged.held_out(["trust"], 1)
    assert held.num_right == (parsed & ~seen).sum() and held.parsed_N.mean() == pytest.approx(0.6, abs=0.03)
    assert UNPARSED and len(judged.held_out(["internal_confidence"], 1)) == num


def test_grades_name_questions_where_the_table_does(tmp_path: Path) -> None:
    table = {"row_id": [1, 2], "correct": [True, False], "judged": [False, False], "problem": [None, None]}
    import pyarrow as pa

    base = pa.schema([field for field in schemas.GRADES if field.name in table])
    plain = io.write(pa.table(table, schema=base), str(tmp_path / "plain.lance"))
    assert read_grades(plain).question_N.tolist() == [1, 2]
    asked = pa.table({**table, "question": [5, 5]}, schema=base.append(pa.field("question", pa.int64())))
    assert read_grades(io.write(asked, str(tmp_path / "asked.lance"))).question_N.tolist() == [5, 5]


def test_signals_that_say_nothing_are_left_out_and_functions_of_arms_stay(run: RunRecord) -> None:
    record = run.generations[0]
    found = read_graded_rows(record.labels["pool"], record.grades["pool"], ["trust", *FREE])
    assert {"margin", "min_logprob", "last_logprob"} <= set(found.scores)
    kept = without_constant(found, ["min_logprob"])
    assert set(kept.scores) == {"trust", "internal_confidence", "margin", "min_logprob"}
    assert "last_logprob" not in without_constant(found, []).scores


@pytest.mark.long
def test_differences_are_scikit_learns_and_those_of_the_first_rows() -> None:
    judged = rows(trust=1.0, margin=1.3)
    found = compare_with_signal(graded(judged), "pool", "trust", "margin", 300, 0, confidence=0.95)
    raw = {name: score.raw_N for name, score in judged.scores.items()}
    right = judged.correct_N
    assert found.auc is not None
    assert found.auc.value == pytest.approx(roc_auc_score(right, raw["trust"]) - roc_auc_score(right, raw["margin"]))
    tops = [right[np.argsort(-raw[name])[:300]].mean() for name in ("trust", "margin")]
    assert found.purity.value == pytest.approx(tops[0] - tops[1]) and found.purity.n == found.num_top == 300
    rng, draws = np.random.default_rng(1), []
    for _ in range(300):
        at = rng.integers(0, len(right), len(right))
        draws.append(roc_auc_score(right[at], raw["trust"][at]) - roc_auc_score(right[at], raw["margin"][at]))
    assert (found.auc.high - found.auc.low) / 3.92 == pytest.approx(np.std(draws), rel=0.15)
    wide = compare_with_signal(graded(judged), "pool", "trust", "margin", 300, 0, confidence=0.99)
    assert wide.auc is not None
    ratio = norm.ppf(0.995) / norm.ppf(0.975)
    assert wide.auc.high - wide.auc.value == pytest.approx(ratio * (found.auc.high - found.auc.value))
    assert wide.purity.low < found.purity.low and wide.purity.high > found.purity.high


def test_intervals_hold_for_all_signals_together_and_unparsed_rows_do_not_count() -> None:
    judged = rows(trust=1.0, margin=1.0, entropy=1.6)
    assert [rival.confidence for rival in find_rivals(graded(judged), "pool", "trust", 200, 0)] == [
        0.975,
        0.975,
    ]
    unparsed = replace(judged, parsed_N=np.arange(2000) < 1000)
    (one, two) = find_rivals(graded(unparsed), "pool", "trust", 200, 0)
    half = judged.subset(np.arange(2000) < 1000)
    assert two == find_rivals(graded(half), "pool", "trust", 200, 0)[1]
    assert not one.is_better and two.is_better and two.signal == "entropy"
    assert find_rivals(graded(judged), "pool", "entropy", 200, 0)[0].signal == "margin"
    assert find_rivals(graded(judged), "pool", "reward", 200, 0) == ()


def test_one_class_has_no_auc_and_no_winner() -> None:
    judged = rows(trust=1.0, margin=1.0)
    alike = replace(judged, correct_N=np.ones(2000, dtype=bool))
    (rival,) = find_rivals(graded(alike), "pool", "trust", 200, 0)
    assert rival.auc is None and rival.purity.value == 0 and not rival.is_better


@pytest.mark.parametrize(
    ("kind", "choice", "words"),
    [
        ("linear_probe", None, "Trust here is the function linear probe."),
        (
            "stacked",
            {"taken": "margin", "candidates": [], "reason": "no candidate beat it"},
            "Trust here is margin alone: no fitted function beat it in cross-validation.",
        ),
        (
            "stacked",
            {"taken": "stacked", "candidates": [], "reason": "it beats margin by 0.020."},
            "Trust here is stacked trust: it beats margin by 0.020.",
        ),
        ("stacked", {"taken": "fitted_confidence"}, "Trust here is fitted confidence, chosen in cross-validation."),
    ],
)
def test_a_sentence_says_which_function_trust_is(kind: str, choice: dict[str, Any] | None, words: str) -> None:
    assert render_sentences("trust", kind, choice) == [words]


@pytest.mark.long
def test_the_report_sets_trust_against_signals_that_are_no_arms(run: RunRecord, report: dict[str, Any]) -> None:
    seen = report["trust"]["pool"]["parsed"]["functions"]
    assert {name: found["is_arm"] for name, found in seen.items()} == {
        "trust": True,
        "internal_confidence": True,
        "margin": False,
    }
    parsed = [row for row in rows_of(run.generations[0].labels["pool"]) if row["label"] and row["error"] is None]
    right = np.array([row["label"] == GOLD for row in parsed])
    auc = {
        name: roc_auc_score(right, [row[column] for row in parsed])
        for name, column in (("trust", "trust_raw"), ("internal_confidence", "mean_logprob"), ("margin", "margin"))
    }
    assert report["trust"]["told"] == ["Trust here is the function linear probe."]
    page = unescape(render(report))
    assert report["trust"]["told"][0] in page and "measured only" in page and "Trust minus the free signal" in page
    rivals = {rival["signal"]: rival for rival in report["evidence"]["rivals"]}
    assert set(rivals) == {"internal_confidence", "margin"} and rivals["margin"]["confidence"] == 0.975
    for name, rival in rivals.items():
        assert rival["where"] == "pool" and rival["num_top"] == N
        assert rival["auc"]["value"] == pytest.approx(auc["trust"] - auc[name])


def test_without_gold_of_the_pool_the_labelled_rows_are_compared(run: RunRecord) -> None:
    blind = collect(changed(run, audit=False, tests={}, training={}))
    assert {rival["where"] for rival in blind["evidence"]["rivals"]} == {"validation"}


@pytest.mark.long
def test_a_source_without_held_out_rows_has_no_validation(tmp_path: Path) -> None:
    made = make_run(tmp_path, held_out=0.0)
    found = collect(changed(made, tests={}, training={}))
    assert "validation" not in found["trust"] and found["evidence"]["validation"] is None
    blind = collect(changed(made, audit=False, tests={}, training={}))
    assert blind["verdict"]["level"] == "do not use" and "minus the free signal" not in render(blind)


@pytest.mark.long
def test_candidates_of_the_choice_stand_on_the_page(run: RunRecord) -> None:
    choice = {
        "taken": "margin",
        "candidates": [
            {"name": "margin", "auc": 0.81, "loses_by": 0.0, "standard_error": 0.0},
            {"name": "stacked", "auc": 0.805, "loses_by": 0.005, "standard_error": 0.004},
        ],
        "reason": "no candidate beat the best free signal",
    }
    fit = {**run.generations[0].trust_fit, "choice": choice}
    page = unescape(render(collect(changed(run, trust_fit=fit, tests={}, training={}))))
    assert "Trust here is margin alone: no fitted function beat it in cross-validation." in page
    assert "<b>margin</b> 0.810, stacked trust 0.805 (behind by 0.005, standard error 0.004)" in page
