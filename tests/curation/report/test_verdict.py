"""The verdict's evidence against independent computation, its rules one by one, and how often it is wrong."""

import json
import math
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from computed import collect
from scipy.stats import beta, norm
from test_report import GOLD, N, changed, make_run, rows_of

from benchmarks import verdicts
from curation.commands.printing import describe_verdict
from curation.domains.class_counts import UnseenLabels
from curation.metrics import Estimate, compute_finite_share, compute_proportion
from curation.metrics.estimates import compute_difference
from curation.metrics.foreign import Foreign
from curation.report import RunRecord
from curation.report.checks import NearCopies
from curation.report.evidence import (
    CONFIDENCE,
    Evidence,
    PredictedPurity,
    Quality,
    ReviewedPurity,
    Rival,
    compute_brier_excess,
    predict_purity,
)
from curation.report.html import render
from curation.report.record import PossibleGroups, ReviewRecord
from curation.report.rows import FunctionScores, GradedRows
from curation.report.rules import CARE, RULES, STOP, USE
from curation.report.samples import collect_samples
from curation.report.verdict import find_gravest, find_reviewed_purity, reach_verdict
from curation.stages.shift import describe_foreign

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def report(run: RunRecord) -> dict[str, Any]:
    return collect(replace(run, config={**run.config, "report_rows": 3}))


def about(value: float, low: float, high: float, n: int = 1000) -> Estimate:
    return Estimate(value=value, low=low, high=high, n=n)


GOOD = Quality(
    rows=1000,
    rarer=400,
    auc=about(0.8, 0.77, 0.83),
    share_right=about(0.6, 0.56, 0.64),
    brier_excess=about(-0.05, -0.06, -0.04),
    top=about(0.85, 0.8, 0.9),
    top_trust=0.86,
    believed=about(0.75, 0.7, 0.8),
    believed_trust=0.76,
)
HEALTHY = Evidence(
    arm="trust",
    num_selected=2000,
    validation=GOOD,
    pool=None,
    teacher=about(0.6, 0.56, 0.64),
    chance=0.25,
    foreseen=PredictedPurity(purity=about(0.84, 0.8, 0.88), drop=about(0.01, -0.01, 0.03)),
    shift={"differs": False, "strength": "none shown"},
)
POOL = replace(GOOD, rows=4000, rarer=1600, top=about(0.84, 0.82, 0.86))
DIFFERENT = {"differs": True, "strength": "severe"}
FOREIGN = describe_foreign(Foreign(share=about(0.12, 0.07, 0.18), p_value=1e-4, by="distance"))
UNSEEN = UnseenLabels(num_seen=5, expected=0.02, num_read=1000, num_rows=50, num_labels=1, most={"bird": 60})


def by_people(purity: Estimate, *, rows: int = 200, trust: float = 0.84, **fields: Any) -> Evidence:
    """Without gold labels of the pool; people checked some selected rows."""
    found = ReviewedPurity(review="trust", rows=rows, open=0, people=1, purity=purity, decisive=purity, trust=trust)
    return replace(HEALTHY, **{"checked": found, **fields})


def test_a_healthy_run_is_to_be_used_with_and_without_an_audit_set() -> None:
    blind, audited = reach_verdict(HEALTHY, "d"), reach_verdict(replace(HEALTHY, pool=POOL), "d")
    assert blind.level == audited.level == USE and not blind.findings and not audited.findings
    assert blind.sentence.startswith("Use it: ") and "validation foresees that 84.0" in blind.sentence
    assert "84.0\u00a0% of the 2,000 selected labels are right" in audited.sentence
    assert reach_verdict(replace(HEALTHY, chance=None, shift=None), "d").level == USE


@pytest.mark.parametrize(("low", "level"), [(-0.012, CARE), (0.0, CARE), (0.001, USE)])
def test_students_that_learned_nothing_are_a_finding(low: float, level: str) -> None:
    gold = {"rows": 200, "epochs": 1, "steps": 2, "learning_rate": 1e-4}
    gold["gain"] = {"difference": 0.004, "low": low, "high": 0.02, "n": 1000}
    found = reach_verdict(replace(HEALTHY, gold_student=gold), "d")
    assert found.level == level
    if level == CARE:
        assert [item["rule"] for item in found.findings] == ["students"]
        assert "after 200 rows, 1 epoch, 2 optimizer steps, a learning rate of 0.0001 that of ground truth differs" in (
            found.sentence
        )
        assert "student.global_batch_size" in found.findings[0]["next"]


def test_what_people_said_stands_in_place_of_what_validation_foresees() -> None:
    people = reach_verdict(by_people(POOL.top), "d")
    assert people.level == USE and "people found 84.0\u00a0% [82, 86] of the 2,000 selected labels right (200 rows" in (
        people.sentence
    )
    for few, rules in ((100, []), (99, ["shift"])):  # a shift that people looked at does not matter by itself
        for fields in ({"shift": DIFFERENT}, {"foreign": FOREIGN}):
            found = reach_verdict(by_people(POOL.top, rows=few, **fields), "d")
            assert [item["rule"] for item in found.findings] == rules
    alone = by_people(POOL.top, validation=None, foreseen=None)
    assert reach_verdict(alone, "d").level == USE and reach_verdict(replace(alone, checked=None), "d").level == STOP
    gold = replace(by_people(about(0.2, 0.1, 0.3)), pool=POOL)  # of all selected rows, not of some
    assert reach_verdict(gold, "d").level == USE


def test_the_purity_that_people_found_is_that_of_the_strata(run: RunRecord) -> None:
    selection = run.generations[-1].selections["trust"]

    def review(name: str, *strata: tuple[int, bool, int, int, int], **fields: Any) -> ReviewRecord:
        names = ("right", "wrong", "unsure")
        given = [
            {
                "num_rows": size,
                "selected": is_selected,
                "answers": dict(zip(names, said, strict=True)),
            }
            for size, is_selected, *said in strata
        ]
        last = {"generation": 0, "arm": "trust", "selection": selection, "people": {"a": 3, "b": 1}}
        return ReviewRecord(name=name, strata=given, **{**last, **fields})

    def of(*reviews: ReviewRecord) -> ReviewedPurity | None:
        return find_reviewed_purity(reviews, 0, "trust", selection, 0.7)

    one = of(review("one", (10**9, True, 80, 20, 3), (500, False, 0, 9, 0)))
    assert one is not None and (one.rows, one.open, one.people, one.purity.value) == (100, 3, 2, 0.8)
    for level, found in ((0.95, one.purity), (0.99, one.decisive)):  # Clopper and Pearson's
        tail = (1 - level) / 2
        assert found.low == pytest.approx(beta.ppf(tail, 80, 21), abs=1e-4)
        assert found.high == pytest.approx(beta.ppf(1 - tail, 81, 20), abs=1e-4)
    two = of(review("two", (300, True, 9, 1, 0), (100, True, 5, 5, 0)))
    assert two is not None and two.purity.value == pytest.approx(0.75 * 0.9 + 0.25 * 0.5) and two.rows == 20
    assert of(review("two", (300, True, 9, 1, 0)), review("more", (300, True, 20, 1, 0))).review == "more"
    assert of(review("open", (300, True, 9, 1, 0), (100, True, 0, 0, 5))) is None
    other = replace(selection, version=selection.version + 1)
    strangers = ({"selection": other}, {"generation": 1}, {"arm": "naive"})
    assert of(*(review("other", (300, True, 9, 1, 0), **fields) for fields in strangers)) is None


def test_people_seldom_raise_a_false_alarm_and_seldom_miss_a_fall() -> None:
    """200 rows checked of 1,000 selected ones, next to 200 validation rows: equal purity, and 25 points less of it."""
    rng = np.random.default_rng(0)
    alarms = {}
    for fall in (0.0, 0.25):
        found = 0
        for _ in range(200):
            top = compute_proportion(int(rng.binomial(200, 0.85)), 200, confidence=CONFIDENCE)
            right = int(rng.hypergeometric(int(1000 * (0.85 - fall)), int(1000 * (0.15 + fall)), 200))
            people = compute_finite_share(right, 200, 1000, confidence=CONFIDENCE)
            given = by_people(people, validation=replace(GOOD, top=top), trust=0.6)
            found += any(item["rule"] == "purity" for item in reach_verdict(given, "d").findings)
        alarms[fall] = found
    assert alarms[0.0] <= 10 and alarms[0.25] >= 190


def test_the_page_says_what_people_found(run: RunRecord) -> None:
    blind = changed(run, audit=False)
    selection = blind.generations[-1].selections["trust"]
    answers = {"right": 40, "wrong": 10, "unsure": 2, "none": 0}
    strata = [{"num_rows": 60, "selected": True, "answers": answers}]
    known = ReviewRecord(
        name="trust", generation=0, arm="trust", selection=selection, strata=strata, people={"ada": 52}
    )
    page = render(collect(replace(blind, reviews=(known,))))
    page = " ".join(unescape(page).replace("<b>", "").replace("</b>", "").split())
    assert "Nobody has checked" not in page
    assert re.search(
        r"People checked 50 of the [\d,]+ selected rows \(review <code>trust</code>, by 1 person\): 80.0", page
    )
    assert "2 further rows, on which they were unsure" in page and "Validation had foreseen" in page


def of(quality: Quality = GOOD, **fields: Any) -> Evidence:
    return replace(HEALTHY, validation=replace(quality, **fields))


def rival(signal: str, auc: Estimate | None, purity: Estimate, where: str = "validation") -> Rival:
    return Rival(signal=signal, where=where, num_top=400, auc=auc, purity=purity, confidence=0.99)


NONE_BETTER = (
    rival("internal_confidence", about(0.08, 0.05, 0.11), about(0.1, 0.02, 0.18)),
    rival("margin", about(-0.01, -0.03, 0.01), about(0.0, -0.05, 0.05)),
)
BEATEN = (
    *NONE_BETTER,
    rival("entropy", about(-0.03, -0.05, -0.01), about(-0.04, -0.1, 0.02)),
    rival("min_logprob", about(-0.02, -0.035, -0.005), about(-0.1, -0.15, -0.05)),
)


@pytest.mark.parametrize(
    ("evidence", "rule", "level", "words"),
    [
        (replace(HEALTHY, num_selected=0), "selection", STOP, "nothing was selected"),
        (of(auc=about(0.52, 0.46, 0.58)), "signal", STOP, "is not shown to tell right labels from wrong"),
        (of(auc=about(0.40, 0.36, 0.44)), "signal", STOP, "does not tell right labels from wrong"),
        (replace(HEALTHY, pool=replace(POOL, auc=about(0.5, 0.4, 0.6))), "signal", STOP, "in the pool"),
        (replace(HEALTHY, teacher=about(0.2, 0.18, 0.22)), "chance", STOP, "below chance"),
        (replace(HEALTHY, teacher=about(0.27, 0.24, 0.3)), "chance", STOP, "not shown to be above chance"),
        (
            replace(HEALTHY, rivals=BEATEN),
            "free signal",
            CARE,
            "entropy alone ranks the labels better than trust (its AUC is higher by 3.0 points [1.0, 5.0], on 1,000 "
            "parsed validation rows)",
        ),
        (
            replace(HEALTHY, pool=POOL, rivals=(rival("margin", None, about(-0.1, -0.15, -0.05), "pool"),)),
            "free signal",
            CARE,
            "(the purity of its first 400 rows by 10.0 points [5.0, 15.0], on 4,000 parsed pool rows)",
        ),
        (
            replace(of(auc=about(0.52, 0.46, 0.58)), rivals=BEATEN),
            "free signal",
            STOP,
            "entropy alone ranks the labels better",
        ),
        (
            replace(HEALTHY, foreseen=PredictedPurity(purity=about(0.4, 0.35, 0.45), drop=about(0.0, -0.1, 0.1))),
            "useful",
            CARE,
            "fewer than half of the selected labels are foreseen to be right (40.0",
        ),
        (by_people(about(0.3, 0.2, 0.4)), "useful", CARE, "fewer than half of the selected labels are right (30.0"),
        (
            replace(HEALTHY, pool=replace(POOL, share_right=about(0.1, 0.09, 0.11), top=about(0.225, 0.2, 0.25))),
            "useful",
            CARE,
            "fewer than half of the selected labels are right (22.5",
        ),
        (
            replace(HEALTHY, pool=replace(POOL, share_right=about(0.83, 0.8, 0.86))),
            "useful",
            CARE,
            "not shown to be purer than the pool (84.0\u00a0% of the selected labels are right, 83.0\u00a0% of all",
        ),
        (
            replace(HEALTHY, repeats={"num_rows": 1000, "num_questions": 690}),
            "repeats",
            CARE,
            "31.0\u00a0% of the labelled rows repeat a question: 1,000 rows ask only 690 different ones",
        ),
        (
            replace(HEALTHY, groups=(PossibleGroups(column="user", num_rows=600, num_values=30, others=0.98),)),
            "groups",
            CARE,
            "the column user may divide rows into groups (600 labelled rows that were looked at have 30 values",
        ),
        (
            replace(HEALTHY, near=NearCopies(num_rows=60, num_questions=1, num_compared=60, share=0.98, expected=0.02)),
            "near-copies",
            CARE,
            "98.3\u00a0% of the selected rows are near-copies: 60 rows ask only 1 different questions",
        ),
        (
            replace(HEALTHY, unseen=replace(UNSEEN, num_rows=60)),
            "unseen",
            CARE,
            "6.0\u00a0% of the pool's labels are such that no labelled row has them (bird 60)",
        ),
        (of(rows=60, rarer=25), "rows", CARE, "too few rows to tell (60 parsed rows"),
        (of(rows=500, rarer=5, auc=None), "rows", CARE, "5 of the rarer outcome"),
        (replace(HEALTHY, validation=None, foreseen=None), "rows", STOP, "no parsed row outside the fit"),
        (of(brier_excess=about(0.02, 0.01, 0.03)), "probability", CARE, "worse than a constant"),
        (of(top_trust=0.97), "promise", CARE, "promises too much (on average 97.0"),
        (of(believed_trust=0.88), "promise", CARE, "that it calls right"),
        (
            replace(HEALTHY, pool=replace(POOL, top=about(0.77, 0.75, 0.79))),
            "purity",
            CARE,
            "85.0\u00a0% on validation",
        ),
        (replace(HEALTHY, pool=replace(POOL, top=about(0.48, 0.46, 0.5))), "purity", STOP, "48.0\u00a0% in the pool"),
        (replace(HEALTHY, shift=DIFFERENT), "shift", CARE, "no checked row says whether that matters"),
        (
            replace(HEALTHY, foreign=FOREIGN),
            "shift",
            CARE,
            "12 % [7, 18] of 1,000 rows looked at that pass the cut are unlike the labelled rows that pass it",
        ),
        (
            replace(HEALTHY, foreseen=replace(HEALTHY.foreseen, drop=about(0.2, 0.1, 0.3))),
            "shift",
            CARE,
            "less trusted than validation's, by 20 points",
        ),
        (by_people(about(0.77, 0.75, 0.79)), "purity", CARE, "77.0\u00a0% in the pool, where people checked it"),
        (by_people(about(0.48, 0.46, 0.5)), "purity", STOP, "48.0\u00a0% in the pool, where people checked it"),
        (
            by_people(POOL.top, trust=0.95),
            "promise",
            CARE,
            "95.0\u00a0% for the selected rows, of which people found 84.0",
        ),
    ],
)
def test_each_rule_finds_its_own_sickness(evidence: Evidence, rule: str, level: str, words: str) -> None:
    found = reach_verdict(evidence, "runs/mine")
    (finding,) = [item for item in found.findings if item["rule"] == rule]
    assert finding["level"] == level and words in finding["finding"] and finding["next"]
    assert found.level == max((item["level"] for item in found.findings), key=["use it", CARE, STOP].index)
    assert found.sentence.startswith(f"{found.level.capitalize()}: ") and found.sign in "!✕"
    assert not re.search(r"\{\w*\}|\{\{", finding["next"])


def test_what_does_no_harm_is_no_finding() -> None:
    """States that differ, where an audit set shows the purity; a slight difference that costs no purity; a small set
    beside a large audit set."""
    assert reach_verdict(replace(HEALTHY, pool=POOL, shift=DIFFERENT, foreign=FOREIGN), "d").level == USE
    assert reach_verdict(replace(HEALTHY, shift={"differs": True, "strength": "slight"}), "d").level == USE
    few = describe_foreign(Foreign(share=about(0.009, 0.001, 0.02), p_value=1e-3, by="distance"))
    assert few["warning"] is None and reach_verdict(replace(HEALTHY, foreign=few), "d").level == USE
    few = replace(GOOD, rows=30, rarer=9, auc=about(0.6, 0.4, 0.8), top=about(0.8, 0.5, 0.95))
    assert reach_verdict(replace(HEALTHY, validation=few, pool=POOL), "d").level == USE


def test_a_signal_that_is_not_shown_to_be_better_and_a_few_copies_are_no_finding() -> None:
    assert reach_verdict(replace(HEALTHY, rivals=NONE_BETTER), "d").level == USE
    assert reach_verdict(replace(HEALTHY, repeats={"num_rows": 1000, "num_questions": 800}), "d").level == USE
    wide = PredictedPurity(
        purity=about(0.45, 0.4, 0.49), drop=about(0.0, -0.1, 0.1)
    )  # the interval that decides has 99 %
    assert reach_verdict(replace(HEALTHY, foreseen=wide), "d").level == USE
    everything = replace(POOL, share_right=about(0.84, 0.8, 0.88), top=about(0.84, 0.8, 0.88, 4000))
    (finding,) = reach_verdict(replace(HEALTHY, pool=everything), "d").findings
    assert finding["rule"] == "useful"  # all parsed rows are selected: nothing was told apart


def test_a_beaten_trust_is_told_which_line_to_write() -> None:
    found = reach_verdict(replace(HEALTHY, rivals=BEATEN), "d")
    (finding,) = found.findings
    assert finding["next"].endswith("selection: {arms: [entropy]}.") and found.sentence.startswith("Use with care: ")
    assert "least log-probability" not in found.sentence  # the signal with the highest AUC is named


def test_under_a_cap_purity_is_set_against_validation_rows_of_the_same_trust() -> None:
    pool = replace(POOL, top=about(0.7, 0.68, 0.72))  # far below validation's top
    low = PredictedPurity(purity=about(0.71, 0.66, 0.76), drop=about(0.14, 0.1, 0.18))
    free = replace(HEALTHY, pool=replace(pool, top_trust=0.7), foreseen=low)
    assert reach_verdict(free, "d").level == CARE
    assert reach_verdict(replace(free, is_divided=True), "d").level == USE
    assert (
        reach_verdict(replace(free, is_divided=True, pool=None, shift={**DIFFERENT, "differs": False}), "d").level
        == USE
    )
    fallen = replace(free, is_divided=True, foreseen=replace(low, purity=about(0.8, 0.76, 0.84)))
    (finding,) = reach_verdict(fallen, "d").findings
    assert finding["rule"] == "purity" and "80.0\u00a0% on validation rows of the same trust" in finding["finding"]


def test_an_auc_that_is_not_known_to_a_tenth_is_of_too_few_rows() -> None:
    few = replace(GOOD, rows=100, rarer=20)
    for low, high, rules in ((0.65, 0.86, ["rows"]), (0.68, 0.87, [])):
        found = reach_verdict(replace(HEALTHY, validation=replace(few, auc=about(0.78, low, high, 100))), "d")
        assert [item["rule"] for item in found.findings] == rules
    assert (
        "an interval of at most 0.2 is needed"
        in reach_verdict(replace(HEALTHY, validation=replace(few, auc=about(0.78, 0.65, 0.86, 100))), "d").sentence
    )
    audited = replace(HEALTHY, validation=replace(few, auc=about(0.78, 0.6, 0.9, 100)), pool=POOL)  # the pool tells
    assert reach_verdict(audited, "d").level == USE


def test_as_many_unseen_labels_as_are_expected_are_no_finding() -> None:
    assert reach_verdict(replace(HEALTHY, unseen=UNSEEN), "d").level == USE  # 5 %
    expected = replace(UNSEEN, num_rows=80, expected=0.08)  # few labelled rows, some of them with labels of their own
    assert reach_verdict(replace(HEALTHY, unseen=expected), "d").level == USE
    assert reach_verdict(replace(HEALTHY, unseen=replace(expected, num_rows=81)), "d").level == CARE


def test_next_steps_name_the_run_and_the_gravest_of_a_chain_decides() -> None:
    found = reach_verdict(replace(HEALTHY, shift=DIFFERENT), "runs/mine")
    assert found.findings[0]["next"].endswith("curate review draw runs/mine --num 200.")
    good, bad = reach_verdict(HEALTHY, "d")._asdict(), found._asdict()
    assert find_gravest([bad, good])["generation"] == 0 and find_gravest([good, good])["generation"] == 1
    assert find_gravest([good])["generation"] is None and find_gravest([None]) is None
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_the_evidence_equals_direct_computation(run: RunRecord, report: dict[str, Any]) -> None:
    evidence = report["evidence"]
    pool = {row["row_id"]: row for row in rows_of(run.generations[0].labels["pool"])}
    parsed = [row for row in pool.values() if row["label"] is not None and row["error"] is None]
    right = np.array([row["label"] == GOLD for row in parsed])
    trust = np.array([row["trust_trust"] for row in parsed], dtype=np.float64)
    source = [row for row in rows_of(run.generations[0].labels["source"]) if row["error"] is None and row["label"]]
    hits = sum(row["label"] == GOLD for row in source)
    teacher = evidence["teacher"]
    assert teacher["value"] == hits / len(source)
    assert teacher["low"] == pytest.approx(beta.ppf(0.005, hits, len(source) - hits + 1))
    constant = report["trust"]["pool"]["parsed"]["constant"]["value"]
    excess = (trust - right) ** 2 - (constant - right) ** 2
    margin = norm.ppf(0.995) * excess.std(ddof=1) / math.sqrt(len(excess))
    found = evidence["pool"]["brier_excess"]
    assert found["value"] == pytest.approx(excess.mean())
    assert (found["low"], found["high"]) == pytest.approx((excess.mean() - margin, excess.mean() + margin), abs=1e-4)
    ids = [row["row_id"] for row in rows_of(run.generations[0].selections["trust"])]
    assert evidence["pool"]["top"]["value"] == np.mean([pool[row_id]["label"] == GOLD for row_id in ids])
    assert evidence["pool"]["believed_trust"] == pytest.approx(trust[trust >= 0.5].mean())
    assert evidence["pool"]["believed"]["value"] == right[trust >= 0.5].mean()
    assert evidence["chance"] == pytest.approx(1 / 7)  # two pawns with two moves each, a king with three
    assert evidence["num_selected"] == N


def test_the_purity_foreseen_is_that_of_validation_rows_of_the_same_trust() -> None:
    rng = np.random.default_rng(0)
    trust_N = rng.random(4000)
    right_N = rng.random(4000) < trust_N
    rows = GradedRows(
        row_ids_N=np.arange(4000),
        correct_N=right_N,
        parsed_N=np.ones(4000, dtype=bool),
        scores={"trust": FunctionScores(raw_N=trust_N, trust_N=trust_N)},
    )
    edges = np.quantile(trust_N, np.linspace(0, 1, 11)[1:-1])
    for low in (0.0, 0.3, 0.9):
        chosen = low + (1 - low) * rng.random(500)
        expected = sum(
            np.mean(np.digitize(chosen, edges) == b) * right_N[np.digitize(trust_N, edges) == b].mean()
            for b in range(10)
        )
        found = predict_purity(rows, "trust", 400, chosen)
        assert found.purity.value == pytest.approx(expected, abs=2e-3)
        assert found.purity.low < (1 + low) / 2 < found.purity.high
    assert predict_purity(rows, "trust", 400, rng.random(500)).drop.low > 0.3  # validation's top is 95 % right
    assert predict_purity(rows, "trust", 400, np.zeros(0)) is None


def test_the_intervals_that_decide_have_their_level() -> None:
    """Of paired Brier differences and of differences of shares, 99 %, over 2,000 draws."""
    rng, outside, wide = np.random.default_rng(1), 0, 0
    truth = 1 / 6 - 0.25  # trust uniform and calibrated, against the constant one half
    for _ in range(2000):
        trust = rng.random(200)
        judged = GradedRows(
            row_ids_N=np.arange(200), correct_N=rng.random(200) < trust, parsed_N=np.ones(200, bool), scores={}
        )
        found = compute_brier_excess(trust, judged, 0.5)
        outside += not found.low <= truth <= found.high
    assert outside <= 40
    first, second = (rng.binomial(100, share, 2000) for share in (0.8, 0.7))
    low, high = ({k: beta.ppf(p, k + (p > 0.5), 100 - k + (p < 0.5)) for k in range(1, 100)} for p in (0.005, 0.995))
    for a, b in zip(first, second, strict=True):
        one, other = (about(k / 100, low[k], high[k], 100) for k in (int(a), int(b)))
        found = compute_difference(one, other)
        wide += not found.low <= 0.1 <= found.high
    assert wide <= 30


def test_false_alarms_and_misses_of_a_few_simulated_runs() -> None:
    """The full counts are those of ``python -m benchmarks.verdicts``."""
    alarms, _ = verdicts.false_alarms(8, seed=7)
    assert alarms <= 1
    for kind in verdicts.SICK:
        missed, usable, _ = verdicts.misses(kind, 3, seed=7)
        assert missed <= 1 and usable <= 1, kind
    for kind in verdicts.RIVALS:
        found, usable, _ = verdicts.found_better(kind, 20, seed=7)
        assert found + usable == 20 and (found >= 18 if kind.startswith("beaten") else found <= 2), kind
    for kind, (_, rule) in verdicts.POOLS.items():
        usable, rules = verdicts.in_pools(kind, 10, seed=7, wrong=True)
        assert not usable and rules[rule] == 10, kind
        usable, rules = verdicts.in_pools(kind, 10, seed=7, wrong=False)
        assert usable >= 9 and not rules[rule], kind


@pytest.mark.slow
def test_false_alarms_and_misses_are_at_most_one_in_twenty() -> None:
    alarms, _ = verdicts.false_alarms(200, seed=1)
    assert alarms <= 10
    for kind in verdicts.SICK:
        missed, usable, _ = verdicts.misses(kind, 200, seed=1)
        assert missed <= 10 and usable <= 10, kind
    for kind in verdicts.RIVALS:
        found, _, _ = verdicts.found_better(kind, 200, seed=1)
        assert found >= 190 if kind.startswith("beaten") else found <= 10, kind
    for kind in verdicts.POOLS:
        assert verdicts.in_pools(kind, 200, seed=1, wrong=True)[0] <= 10, kind
        assert verdicts.in_pools(kind, 200, seed=1, wrong=False)[0] >= 190, kind


def test_the_verdict_is_the_first_thing_everywhere(run: RunRecord, report: dict[str, Any]) -> None:
    page, sentence = render(report), report["verdict"]["sentence"]
    body = unescape(page.partition("<body>")[2]).lstrip()
    assert body.startswith('<section class="verdict') and body.index(sentence) < body.index("<h1>")
    assert report["verdict"]["sign"] in body[: body.index(sentence)]
    assert list(report).index("verdict") < 3 and describe_verdict(report)[0].endswith(sentence)
    shifted = {"source": DIFFERENT | {"warning": None}}
    found = collect(changed(run, audit=False, tests={}, training={}, shift=shifted, foreign={"trust": FOREIGN}))
    lines, page = describe_verdict(found), unescape(render(found))
    assert found["verdict"]["level"] != USE and any("next: " in line for line in lines)
    assert found["evidence"]["foreign"] == FOREIGN and f"selected by trust.</b> {FOREIGN['warning']}" in page
    for finding in found["verdict"]["findings"]:
        assert finding["next"] in page
    assert "Nobody has checked the pool's labels" in page and "curate review draw RUN_DIR --num 200" in page
    assert "curate review import RUN_DIR csv rows.csv" in page and "review serve" not in page
    assert describe_verdict({"verdict": None}) == []


SHOUTING = {
    "no signal": ({"of_all": {"signal": 0.0}}, {}, STOP, "right labels from wrong ones"),
    "teacher below chance": ({"of_all": {"share": 0.04}}, {}, STOP, "below chance"),
    "over-confident": ({"of_all": {"steep": 6.0, "signal": 1.0}}, {}, CARE, "promises too much"),
    "shifted pool": ({"of_pool": {"share": 0.1, "signal": 0.4}}, {}, STOP, "purity falls from"),
    "too few rows": ({"held_out": 0.1}, {}, CARE, "too few rows to tell"),
    "half copies": ({}, {"num_fit": 150, "num_repeats": 150}, CARE, "300 rows ask only 150 different ones"),
}
"""How a run by hand is made sick: changes of its labels, of the summary of its fit; the verdict, and words of it."""


def sick(kind: str, folder: Path) -> dict[str, Any]:
    """The report of a sick run."""
    rows, fit, _, _ = SHOUTING[kind]
    made = make_run(folder, 1, **rows)
    made = replace(made, config={**made.config, "report_rows": 3})
    fit = {**made.generations[0].trust_fit, **fit}
    return collect(changed(made, audit=kind != "too few rows", tests={}, training={}, trust_fit=fit))


@pytest.mark.parametrize("kind", SHOUTING)
def test_the_first_line_of_a_sick_run_shouts(kind: str, tmp_path: Path) -> None:
    found = sick(kind, tmp_path)
    _, _, level, words = SHOUTING[kind]
    assert found["verdict"]["level"] == level and words in found["verdict"]["sentence"], found["verdict"]


def test_rows_to_look_at(run: RunRecord, report: dict[str, Any]) -> None:
    kinds, pool = report["rows"]["kinds"], {row["row_id"]: row for row in rows_of(run.generations[0].labels["pool"])}
    ids = {row["row_id"] for row in rows_of(run.generations[0].selections["trust"])}
    assert {kind: len(rows) for kind, rows in kinds.items()} == dict.fromkeys(kinds, 3)
    assert all(row["row_id"] in ids and row["gold"] == GOLD for row in kinds["selected"])
    assert all(row["row_id"] not in ids and row["label"] is not None for row in kinds["rejected"])
    assert all(row["label"] is None and row["right"] is False for row in kinds["unparsed"])
    for rows in kinds.values():
        for row in rows:
            kept = pool[row["row_id"]]
            assert (row["completion"], row["label"]) == (kept["completion"], kept["label"])
            assert row["trust"] == pytest.approx(kept["trust_trust"]) and row["prompt"].startswith(
                "Side to move: White"
            )
    wrong = sorted((r for r in pool.values() if r["label"] not in (None, GOLD) and not r["error"]), key=_raw)[-3:]
    assert [row["row_id"] for row in kinds["wrong"]] == [row["row_id"] for row in wrong[::-1]]
    assert report["rows"]["wrong_in"] == "pool"
    fewer = replace(run, config={**run.config, "report_rows": 2})
    blind = collect(changed(fewer, audit=False, tests={}, training={}))
    assert blind["rows"]["wrong_in"] == "validation" and all(
        row["right"] is False for row in blind["rows"]["kinds"]["wrong"]
    )
    assert all(row["gold"] is None for row in blind["rows"]["kinds"]["selected"])
    assert collect_samples(run, run.generations[0], "trust", np.zeros(0), {}) is None  # report_rows is 0 or missing


def test_the_texts_of_rows_are_escaped_and_cut(report: dict[str, Any]) -> None:
    hostile = json.loads(json.dumps(report))
    for row in hostile["generations"][0]["rows"]["kinds"]["selected"]:
        row["prompt"], row["completion"] = "<script>alert(1)</script>", "</pre><img src=x>"
    page = render(hostile)
    assert "<script>" not in page and "<img" not in page and "&lt;script&gt;" in page


def _raw(row: dict[str, Any]) -> float:
    return row["trust_raw"]
