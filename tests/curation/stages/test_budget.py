"""What each budget rule comes to over a scored pool, against counts by hand and SciPy's binomial."""

from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import expit
from scipy.stats import binom

from curation.config import BudgetConfig, DomainConfig, SelectionConfig
from curation.errors import BudgetError
from curation.refs import TableRef
from curation.selection.risk import calibrate
from curation.stages.chooser import SelectJob, apply_budget_rule
from curation.stages.gold import GoldTexts
from curation.stages.pool_scores import ComputedBudget, PoolScores, ScoredSplit
from curation.tables import io, schemas
from curation.trust.parts import find_first_of_each

NUM_POOL, NUM_SOURCE, NUM_CALIBRATION = 900, 400, 600


def rows(rng: np.random.Generator, num_rows: int, start: int) -> dict[str, Any]:
    """Two in three right; scores tell right from wrong; unparsed rows score best, some rewards are missing."""
    right = rng.random(num_rows) < 2 / 3
    parsed = rng.random(num_rows) < 0.95
    raw = (3 * right + rng.normal(size=num_rows) - 1).astype(np.float32)
    raw[~parsed] = 50
    return {
        "row_id": rng.permutation(num_rows) + start,
        "label": [("yes" if hit else "no") if ok else None for hit, ok in zip(right, parsed, strict=True)],
        "trust_raw": raw,
        "trust_trust": expit(raw / 2 - np.float32(0.3)),  # calibrated: not the sigmoid of the raw score
        "reward": pa.array(raw.astype(np.float64), pa.float32(), mask=rng.random(num_rows) < 0.2),
        "error": ["bad: x" if index % 50 == 49 else None for index in range(num_rows)],
        "state_output_last": [[0.0]] * num_rows,
    }


def scored(folder: Path, columns: dict[str, Any]) -> ScoredSplit:
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    healthy = [row for row in table.to_pylist() if row["error"] is None]
    healthy.sort(key=lambda row: row["row_id"])
    graded = [{"row_id": row["row_id"], "correct": row["label"] == "yes", "judged": False} for row in healthy]
    grades = io.write(pa.Table.from_pylist(graded, schema=schemas.GRADES), str(folder / "grades.lance"))
    return ScoredSplit(labels=io.write(table, str(folder / "labels.lance")), grades=grades)


def long_table(long: frozenset[int], folder: Path) -> TableRef:
    out = pa.table({"row_id": sorted(long, reverse=True), "weak": [True] * len(long), "gold": [False] * len(long)})
    return io.write(out.cast(schemas.TOO_LONG), str(folder / "too_long.lance"))


def resolve(config: BudgetConfig, labels: TableRef, *, seed: int, **tables: Any) -> ComputedBudget:
    """The budget of a pool with these ``labels``, in a domain whose labels are an open set."""
    selection = SelectionConfig(arms=("trust",), budget=config)
    domain, texts = DomainConfig(name="chess"), GoldTexts(source="answer")
    asked = {"pool": labels, "labels": labels, "audit": None, "domain": domain, "selection": selection, "seed": seed}
    return apply_budget_rule(SelectJob(**asked, texts=texts, teacher=None, generation=0, **tables))


class Case:
    """A pool, a source and a calibration split, as tables and as healthy rows in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder, rng = folder, np.random.default_rng(4)
        sizes = {"pool": NUM_POOL, "source": NUM_SOURCE, "calibration": NUM_CALIBRATION}
        made = {name: rows(rng, size, 10_000 * place) for place, (name, size) in enumerate(sizes.items())}
        self.splits = {name: scored(folder / name, columns) for name, columns in made.items()}
        self.rows = {
            name: [row for row in pa.table(columns).to_pylist() if row["error"] is None]
            for name, columns in made.items()
        }

    def resolve(self, *, long: frozenset[int] = frozenset(), folder: Path | None = None, **rule: Any) -> ComputedBudget:
        """``long``: ids of pool and calibration rows that no student can be trained on; ``folder``: for their table."""
        config = BudgetConfig.model_validate(rule)
        calibration, too_long = self.splits["calibration"], None
        if long:
            too_long = long_table(long, self._folder / f"long-{len(long)}")
        if folder is not None:
            calibration = replace(calibration, too_long=too_long)
        return resolve(
            config,
            self.splits["pool"].labels,
            grades=self.splits["pool"].grades if config.needs_gold else None,
            measured=self.splits["source"],
            calibration=calibration if config.risk else None,
            too_long=too_long,
            seed=7,
        )


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("budget"))


def trust(row: dict[str, Any], reference: str) -> float | None:
    """Of a row that may be selected; None of another."""
    if row["label"] is None or (row["reward"] is None and reference == "reward"):
        return None
    return float(row["trust_trust"] if reference == "trust" else expit(np.float64(row["reward"])))


def num_right(found: list[dict[str, Any]]) -> int:
    return sum(row["label"] == "yes" for row in found)


def test_fixed_numbers_and_shares(case: Case) -> None:
    assert case.resolve(n=12) == ComputedBudget(n=12, rule="n", reference="trust", oracle=False)
    healthy = len(case.rows["pool"])
    assert healthy == NUM_POOL - NUM_POOL // 50
    assert case.resolve(share=0.3) == ComputedBudget(
        n=int(0.3 * healthy), rule="share", reference="trust", oracle=False
    )
    with pytest.raises(BudgetError, match=rf"share: 0\.001 of {healthy} labelled rows is less than one"):
        case.resolve(share=0.001)


def test_an_oracle_counts_the_right_labels_of_the_pool_up_to_its_cap(case: Case) -> None:
    right = num_right(case.rows["pool"])
    assert 100 < right < 2000
    for cap, n in ((2000, right), (100, 100)):
        found = case.resolve(oracle=True, cap=cap)
        assert found == ComputedBudget(n=n, rule="oracle", reference="trust", oracle=True)


@pytest.mark.parametrize("reference", ["trust", "reward"])
def test_fit_purity_is_of_the_source_rows_that_the_reference_accepts(case: Case, reference: str) -> None:
    accepted = [row for row in case.rows["source"] if (found := trust(row, reference)) is not None and found >= 0.5]
    purity = num_right(accepted) / len(accepted)
    assert 0.7 < purity < 1 and len(accepted) < NUM_SOURCE
    found = case.resolve(fit_purity=True, reference=reference)
    assert (found.n, found.oracle) == (int(purity * num_right(case.rows["pool"])), True)


def test_fit_purity_without_an_accepted_row_is_refused(case: Case, tmp_path: Path) -> None:
    columns = rows(np.random.default_rng(0), 50, 0)
    columns["trust_trust"] = np.full(50, 0.49, dtype=np.float32)
    with pytest.raises(BudgetError, match=r"fit_purity: purity 0/0 on the fit set"):
        resolve(
            BudgetConfig(fit_purity=True),
            case.splits["pool"].labels,
            grades=case.splits["pool"].grades,
            measured=scored(tmp_path, columns),
            calibration=None,
            seed=0,
        )


@pytest.mark.parametrize("reference", ["trust", "reward"])
def test_a_threshold_counts_the_rows_that_reach_it(case: Case, reference: str) -> None:
    values = [found for row in case.rows["pool"] if (found := trust(row, reference)) is not None]
    for level in (0.0, 0.5, 0.9):
        found = case.resolve(threshold=level, reference=reference)
        assert found.n == sum(value >= level for value in values) and found.threshold is None and not found.oracle
    with pytest.raises(BudgetError, match=r"threshold: no row has a trust of at least 1\.0"):
        case.resolve(threshold=1.0, reference=reference)


def test_risk_takes_the_pool_rows_above_a_certified_threshold(case: Case) -> None:
    found = case.resolve(risk={"alpha": 0.2, "delta": 0.1})
    assert found.threshold is not None and found.risk is not None and not found.oracle
    above = [row for row in case.rows["pool"] if row["label"] is not None and row["trust_raw"] >= found.threshold]
    assert found.n == len(above) > 100
    kept = [r for r in case.rows["calibration"] if r["label"] is not None and r["trust_raw"] >= found.threshold]
    wrong = len(kept) - num_right(kept)
    assert binom.cdf(wrong, len(kept), 0.2) <= 0.1  # the exact test rejects a noise above alpha
    assert (found.risk["num_kept"], found.risk["num_calibration"]) == (len(kept), len(case.rows["calibration"]))
    assert found.risk["noise"] == pytest.approx(wrong / len(kept)) and found.risk["bound"] <= 0.2
    assert found.risk["alpha"] == 0.2 and found.risk["rule"] == "fixed_sequence" and found.risk["needed"] is None
    assert case.resolve(risk={"alpha": 0.2, "delta": 0.1}) == found
    stricter = case.resolve(risk={"alpha": 0.1, "delta": 0.1})
    assert stricter.n < found.n


def test_risk_reads_the_reference_arm_and_never_its_unread_rows(case: Case) -> None:
    found = case.resolve(risk={"alpha": 0.25}, reference="reward")
    values = [row["reward"] for row in case.rows["pool"] if row["label"] is not None and row["reward"] is not None]
    assert found.reference == "reward" and found.threshold is not None
    assert found.n == sum(value >= found.threshold for value in values) > 100


@pytest.mark.parametrize("rule", ["fixed_sequence", "hoeffding", "hoeffding_bonferroni", "hoeffding_grid"])
def test_risk_that_cannot_be_certified_selects_nothing(case: Case, rule: str) -> None:
    found = case.resolve(risk={"alpha": 0.001, "rule": rule})
    assert (found.n, found.threshold) == (0, None)
    assert found.risk is not None and found.risk["guarantee"].startswith("none: no cut is certified")
    assert found.risk["needed"] is None or found.risk["needed"] > NUM_CALIBRATION


def test_risk_counts_no_unparsed_calibration_row(case: Case) -> None:
    """They have the best scores and would all be errors at the top; the pool's are never selected either."""
    found = case.resolve(risk={"alpha": 0.2, "kind": "top_k"})
    assert found.n > 100 and found.risk is not None and found.risk["kind"] == "top_k"
    assert found.risk["noise"] < 0.2


def test_rows_that_are_too_long_are_not_counted_but_by_a_share(case: Case, tmp_path: Path) -> None:
    """What no arm may select is no part of an n that every arm has to meet."""
    best = sorted(case.rows["pool"], key=lambda row: -row["trust_raw"])[:200]
    chosen = [row for row in case.rows["pool"] if row not in best]
    long = frozenset(row["row_id"] for row in best)
    assert case.resolve(long=long, oracle=True).n == num_right(chosen) < num_right(case.rows["pool"])
    scores = [found for row in chosen if (found := trust(row, "trust")) is not None]
    assert case.resolve(long=long, threshold=0.5).n == sum(value >= 0.5 for value in scores)
    assert case.resolve(long=long, share=0.3) == case.resolve(share=0.3)
    fit = case.resolve(fit_purity=True).n / num_right(case.rows["pool"])
    assert case.resolve(long=long, fit_purity=True).n == pytest.approx(fit * num_right(chosen), abs=2)
    too_long = long_table(long, tmp_path)
    found = PoolScores(labels=case.splits["pool"].labels, trust="trust", too_long=too_long).candidates()
    missing = set(found.row_ids_N[np.isnan(found.raw_score_N)].tolist())
    assert missing == long | {row["row_id"] for row in case.rows["pool"] if row["label"] is None}


def test_risk_leaves_the_same_rows_out_of_calibration_and_pool(case: Case, tmp_path: Path) -> None:
    """Where right labels are long, a threshold that was calibrated on all rows would promise what the others break."""
    long_of = {
        split: {row["row_id"] for row in case.rows[split] if row["label"] == "yes" and row["row_id"] % 4}
        for split in ("pool", "calibration")
    }
    long = frozenset(long_of["pool"] | long_of["calibration"])
    found = case.resolve(long=long, folder=tmp_path, risk={"alpha": 0.4})
    assert found.risk is not None and found.threshold is not None
    rest = {
        split: [r for r in case.rows[split] if r["label"] is not None and r["row_id"] not in long] for split in long_of
    }
    above = [row for row in rest["pool"] if row["trust_raw"] >= found.threshold]
    kept = [row for row in rest["calibration"] if row["trust_raw"] >= found.threshold]
    assert found.n == len(above) > 0 and found.risk["num_kept"] == len(kept)
    assert found.risk["num_calibration"] == len(case.rows["calibration"])  # the others lie below every cut
    assert binom.cdf(len(kept) - num_right(kept), len(kept), 0.4) <= 0.1
    careless = case.resolve(long=long, risk={"alpha": 0.4})
    assert careless.n > found.n


def test_calibration_rows_that_repeat_a_question_count_once(case: Case, tmp_path: Path) -> None:
    """Each question three times: the cut, its bound and its n are those of the first row of each."""
    once = [row for row in case.rows["calibration"] if row["label"] is not None]
    schema = io.open_table(case.splits["calibration"].labels).schema
    tables = {}
    for name, copies in (("once", 1), ("thrice", 3)):
        labelled = [{**row, "row_id": row["row_id"] + 100_000 * n} for n in range(copies) for row in once]
        graded = [
            {"row_id": row_id, "correct": row["label"] == "yes", "judged": False, "question": row_id % 100_000}
            for row_id, row in sorted(((row["row_id"], row) for row in labelled), key=itemgetter(0))
        ]
        tables[name] = ScoredSplit(
            labels=io.write(pa.Table.from_pylist(labelled, schema=schema), str(tmp_path / name / "labels.lance")),
            grades=io.write(pa.Table.from_pylist(graded, schema=schemas.GRADES), str(tmp_path / name / "grades.lance")),
        )
    config = BudgetConfig.model_validate({"risk": {"alpha": 0.2, "delta": 0.1}})
    pool = case.splits["pool"].labels
    found = {
        name: resolve(config, pool, grades=None, measured=None, calibration=calibration, seed=7)
        for name, calibration in tables.items()
    }
    assert found["once"].risk["num_calibration"] == len(once) and found["thrice"] == found["once"]


def test_repeated_rows_break_the_guarantee_and_distinct_questions_keep_it() -> None:
    """400 calibrations of 100 questions, each four times, at alpha 0.5 where no cut is right."""
    alpha, delta = 0.5, 0.1
    rng, fails = np.random.default_rng(0), {"rows": 0, "questions": 0}
    pool_N = rng.random(2000)
    for _ in range(400):
        score_Q, right_Q = rng.random(100), rng.random(100) < 0.45  # noise 0.55 everywhere
        question_M = np.repeat(np.arange(100), 4)
        first_M = find_first_of_each(question_M)
        for name, keep_M in (("rows", np.ones(400, dtype=bool)), ("questions", first_M)):
            at_M = question_M[keep_M]
            cut = calibrate(score_Q[at_M], right_Q[at_M], pool_N, alpha=alpha, delta=delta)
            fails[name] += cut.threshold is not None
    assert binom.sf(fails["questions"] - 1, 400, delta) > 0.01, fails
    assert binom.sf(fails["rows"] - 1, 400, delta) < 1e-6, fails
