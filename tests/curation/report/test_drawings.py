"""The curves of risk control, right and wrong by difficulty, the judge's share: against direct computation."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from computed import collect
from scipy.stats import beta
from test_report import (
    GOLD,
    HOPELESS,
    NUM_CALIBRATION,
    NUM_POOL,
    NUM_TEST,
    RISK,
    changed,
    is_too_long,
    make_run,
    rows_of,
    save,
    variant,
    with_risk,
)

from curation.domains.chess import Chess
from curation.domains.grading import Graded
from curation.report import RunRecord
from curation.report.by_difficulty import compute_accuracy_bins, compute_bin_edges
from curation.report.charts import draw_risk_chart, draw_training_figure, render_svg
from curation.report.html import render
from curation.report.tested import collect_trainings
from curation.tables import schemas


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def report(run: RunRecord) -> dict:
    return collect(run)


def healthy(run: RunRecord, split: str) -> list[dict]:
    return [row for row in rows_of(run.generations[0].labels[split]) if row["error"] is None]


def exact(num: int, n: int) -> dict:
    """A share and its interval by Clopper and Pearson."""
    low = beta.ppf(0.025, num, n - num + 1) if num else 0
    high = beta.ppf(0.975, num + 1, n - num) if num < n else 1
    return pytest.approx({"value": num / n, "low": low, "high": high, "n": n})


def noise(rows: list[dict], threshold: float, every: int) -> tuple[int, int]:
    """How many labels are wrong from a raw score on, and how many rows there are, over-long ones left out."""
    may = [row for row in rows if row["label"] is not None and not is_too_long(row, every)]
    kept = [row for row in may if row["trust_raw"] >= threshold]
    return sum(row["label"] != GOLD for row in kept), len(kept)


@pytest.mark.long
@pytest.mark.parametrize(("rule", "every"), [("fixed_sequence", 0), ("fixed_sequence", 7), ("hoeffding", 7)])
def test_risk_curves_equal_direct_counts_and_bounds(run: RunRecord, rule: str, every: int) -> None:
    risky = with_risk(run, {**RISK, "rule": rule}, every)
    curves = collect(risky)["risk_curves"]
    calibration, pool = healthy(risky, "calibration"), healthy(risky, "pool")
    assert curves["num_calibration"] == len(calibration) == NUM_CALIBRATION - 2
    assert curves["num_pool"] == curves["num_graded"] == len(pool) == NUM_POOL - 2
    assert len(curves["points"]) > 80
    for point in curves["points"]:
        wrong, kept = noise(calibration, point["threshold"], every)
        assert point["calibration"] == exact(wrong, kept)
        if rule == "fixed_sequence":
            bound = beta.ppf(1 - RISK["delta"], wrong + 1, kept - wrong)
        else:
            bound = wrong / kept + math.sqrt(math.log(1 / RISK["delta"]) / (2 * kept))
        assert point["bound"] == pytest.approx(bound)
        wrong, kept = noise(pool, point["threshold"], every)
        assert point["deployment"] == exact(wrong, kept) and point["share"] == pytest.approx(kept / len(pool))
        assert point["trust"] == pytest.approx(1 / (1 + math.exp(-point["threshold"])), rel=1e-5)
    chosen, budget = curves["chosen"], risky.generations[0].budget
    assert chosen["threshold"] == budget["threshold"] and chosen["bound"] == budget["risk"]["bound"] <= RISK["alpha"]
    assert chosen["share"] == pytest.approx(budget["n"] / len(pool))
    assert chosen["calibration"] == exact(*noise(calibration, chosen["threshold"], every))
    assert chosen["deployment"] == exact(*noise(pool, chosen["threshold"], every))


@pytest.mark.long
def test_risk_curves_show_why_nothing_is_certified(run: RunRecord) -> None:
    report = collect(with_risk(run, HOPELESS))
    curves = report["risk_curves"]
    tried = [point["bound"] for point in curves["points"] if point["tried"]]
    assert curves["chosen"] is None and len(tried) < len(curves["points"]) and min(tried) > HOPELESS["alpha"]
    text = render(report)
    assert "None was certified: nothing is selected." in text and f"starts at {100 * curves['start']:.1f}" in text


@pytest.mark.long
def test_risk_curves_without_an_audit_set_or_without_risk_control(run: RunRecord, report: dict) -> None:
    risky = with_risk(run, {**RISK, "kind": "top_k"})
    kept = {name: ref for name, ref in risky.generations[0].grades.items() if name != "pool"}
    blind = collect(variant(risky, grades=kept))
    curves = blind["risk_curves"]
    assert curves["num_graded"] is None and curves["chosen"] is not None
    assert all(point["deployment"] is None for point in [*curves["points"], curves["chosen"]])
    text = render(blind)
    assert "Noise at deployment is not known" in text and 'aria-label="Risk control"' in text
    assert report["risk_curves"] is None and "Risk control" not in render(report)


def test_the_reference_of_the_budget_needs_no_arm(run: RunRecord) -> None:
    risky = with_risk(run, RISK)
    budget = {**risky.generations[0].budget, "reference": "ensemble"}
    agree = [
        row for row in healthy(risky, "calibration") if row["label"] is not None and row["ensemble_agreement"] == 1
    ]
    point = collect(variant(risky, budget=budget))["risk_curves"]["points"][0]
    assert point["threshold"] == point["trust"] == 1
    assert point["calibration"] == exact(sum(row["label"] != GOLD for row in agree), len(agree))


@pytest.mark.long
def test_purity_by_difficulty_equals_direct_counts(run: RunRecord, report: dict) -> None:
    found = report["purity_by_difficulty"]
    assert found["edges"] == list(range(500, 2501, 500)) and found["num_unknown"] == 0
    ratings = {row["row_id"]: row["rating"] for row in rows_of(run.prepared["pool"])}
    selections = run.generations[0].selections
    assert list(found["arms"]) == ["naive", "internal_confidence", "trust"]
    pool = healthy(run, "pool")
    chosen = {arm: {row["row_id"] for row in rows_of(selections[arm])} for arm in found["arms"]}
    shares = {
        "all": (found["all"], pool),
        "parsed": (found["parsed"], [row for row in pool if row["label"] is not None]),
        **{arm: (found["arms"][arm], [row for row in pool if row["row_id"] in ids]) for arm, ids in chosen.items()},
    }
    for measured, rows in shares.values():
        assert sum(share["n"] for share in measured if share) == len(rows)
        for number, share in enumerate(measured):
            low = 500 + 500 * number
            right = [row["label"] == GOLD for row in rows if low <= ratings[row["row_id"]] < low + 500]
            assert share == (exact(sum(right), len(right)) if right else None)
    text = render(report)
    assert "Labels right by difficulty" in text and "[500, 1,000)" in text and "[2,000, 2,500)" in text
    assert collect(changed(run, audit=False, selections={}))["purity_by_difficulty"] is None


@pytest.mark.long
def test_accuracy_by_difficulty_equals_direct_counts(run: RunRecord, report: dict) -> None:
    found = report["accuracy_by_difficulty"]
    ratings = {row["row_id"]: row["rating"] for row in rows_of(run.prepared["test"])}
    assert list(found["models"]) == list(run.generations[0].tests) and found["edges"][0] == 600
    for name, shares in found["models"].items():
        rows = rows_of(run.generations[0].tests[name][0])
        assert sum(share["n"] for share in shares) == NUM_TEST
        for number, share in enumerate(shares):
            low, high = found["edges"][number : number + 2]
            right = [row["correct"] for row in rows if low <= ratings[row["row_id"]] < high]
            assert share == exact(sum(right), len(right))
    tests = run.generations[0].tests
    twice = {"trust": [*tests["trust"], *tests["naive"]]}
    trust, naive = (found["models"][name] for name in ("trust", "naive"))
    for number, share in enumerate(collect(changed(run, tests=twice))["accuracy_by_difficulty"]["models"]["trust"]):
        assert share["value"] == pytest.approx((trust[number]["value"] + naive[number]["value"]) / 2)
        assert share["n"] == trust[number]["n"]
    assert "weak teacher</th>" in (text := render(report)) and "student&#39;s base</th>" in text
    assert collect(changed(run, tests={}))["accuracy_by_difficulty"] is None


@pytest.mark.long
def test_test_rows_of_a_domain_without_difficulty_are_not_drawn(run: RunRecord, tmp_path: Path) -> None:
    plain = pa.table({"row_id": np.arange(NUM_TEST) + 5000, "gold": [GOLD] * NUM_TEST, "error": [None] * NUM_TEST})
    other = replace(run, prepared={**run.prepared, "test": save(tmp_path, "other", plain)})
    assert collect(other)["accuracy_by_difficulty"] is None
    unrated = pa.table(
        {
            "row_id": np.arange(NUM_POOL) + (7 << schemas.FILE_SHIFT),
            "fen": ["x"] * NUM_POOL,
            "rating": [None] * NUM_POOL,
        }
        | {"error": [None] * NUM_POOL},
        schema=schemas.make_examples_schema(Chess.columns, gold=False),
    )
    bare = replace(run, prepared={**run.prepared, "pool": save(tmp_path, "unrated", unrated)})
    assert collect(bare)["purity_by_difficulty"] is None and collect(bare)["difficulty"] is None


def test_rows_without_a_difficulty_are_counted_and_in_no_bin() -> None:
    ids = np.arange(6)
    right = np.array([True, False, True, True, False, True])
    graded = Graded(row_ids_N=ids, correct_N=right, question_N=ids)
    found = compute_accuracy_bins({"trust": [graded]}, (ids[::-1], np.array([1.0, 2.0, np.nan, 2.0, 5.0, 1.0])))
    assert found is not None and found["edges"] == [1, 2, 3, 4, 5, 6] and found["num_unknown"] == 1
    shares = found["models"]["trust"]  # ids 5 to 0 have the difficulties 1, 2, unknown, 2, 5, 1
    assert [share and (share["value"], share["n"]) for share in shares] == [(1, 2), (0.5, 2), None, None, (0, 1)]


@pytest.mark.parametrize(
    ("values", "edges"),
    [
        ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]),  # levels: a bin each
        (np.arange(1, 5.5, 0.5), np.arange(1, 6, 0.5)),
        (np.arange(1, 10, 0.5), np.arange(1, 11, 1)),  # more than ten levels
        ([600, 2399.9, *range(700, 2300, 7)], range(600, 2600, 200)),
        ([3], [3, 4]),
        ([0.1, 0.2, 0.3], [0.1, 0.2, 0.3, 0.4]),
        ([-1.5, 0, 2], [-2, 0, 2, 4]),
        ([1, 2, 100], [0, 20, 40, 60, 80, 100, 120]),
    ],
)
def test_bins_have_round_edges_and_hold_every_value(values: list, edges: list) -> None:
    found = compute_bin_edges(np.array([*values, np.nan], dtype=float), 1000)
    assert found == pytest.approx(np.array(edges, dtype=float))
    assert len(found) <= 11


def test_no_difficulty_makes_no_bins() -> None:
    assert compute_bin_edges(np.array([np.nan, np.nan]), 1000) is None and compute_bin_edges(np.zeros(0), 0) is None


@pytest.mark.parametrize(("num_rows", "edges"), [(107, [0, 500, 1000, 1500, 2000]), (250, range(0, 2001, 200))])
def test_few_rows_have_few_bins_and_levels_keep_theirs(num_rows: int, edges: list) -> None:
    assert compute_bin_edges(np.arange(0, 1999, 7.0), num_rows) == pytest.approx(np.array(edges, dtype=float))
    assert len(compute_bin_edges(np.arange(1.0, 6.0), num_rows)) == 6


@pytest.mark.long
def test_the_judges_share_of_what_it_was_asked(run: RunRecord, report: dict) -> None:
    assert report["judging"] is None and "The judge" not in render(report)
    asked = collect(variant(run, asked={"pool": 230, "test-trust": 90}))
    pool, trust = (asked["judging"][what] for what in ("pool", "test-trust"))
    right = sum(row["label"] == GOLD for row in healthy(run, "pool"))
    assert (pool["rows"], pool["asked"], pool["judged"]) == (NUM_POOL - 2, 230, 3)
    assert pool["by_rule"] == exact(right - 3, NUM_POOL - 2) and pool["together"] == exact(right, NUM_POOL - 2)
    assert pool["by_judge"] == exact(3, 230)
    assert trust["by_judge"] == exact(0, 90) and trust["rows"] == NUM_TEST
    text = render(asked)
    assert "The judge" in text and "test of trust" in text and "230" in text


@pytest.mark.long
def test_a_figure_is_the_same_for_the_same_numbers(run: RunRecord) -> None:
    report = json.loads(json.dumps(collect(with_risk(run, RISK))))
    curves = report["risk_curves"]
    assert draw_risk_chart("a", curves) == draw_risk_chart("a", curves)


def test_trainings_are_drawn_by_steps_or_by_logging_intervals():
    blocks = {"step": [2.0, 4.0, 6.0], "reward": [0.1, None, 0.3], "reward_errors": [0.0] * 3}
    trained = collect_trainings(
        {
            "naive": {"losses": [0.5, 0.4, 0.3], "seconds": 2.0, "curves": blocks},
            "trust": {"losses": [1.0, 0.5], "seconds": 2.0},
        }
    )
    assert trained["naive"]["curves"] == {**blocks, "loss": [0.5, 0.4, 0.3]}
    assert trained["trust"]["curves"] == {"step": [1.0, 2.0], "loss": [1.0, 0.5]}
    drawn = render_svg(draw_training_figure(trained), "x")
    assert drawn.startswith("<svg") and 'id="x-axes_2"' in drawn
    assert 'id="x-axes_3"' not in drawn, "two measures vary: loss and reward"
