"""The bench of a real teacher on drawn rows: its arms, its numbers against scikit-learn, and its tables."""

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, roc_auc_score

from benchmarks.real.arms import BASELINE, arms, drawn
from benchmarks.real.tasks import Classes
from curation.arms import FREE
from curation.tables.schemas import NUMBERS
from curation.trust.parts import FIT, UNUSED
from train.trust_loop import LabelledRows

pytestmark = pytest.mark.long

main = pytest.importorskip("benchmarks.real.__main__")
STATES = ("prompt_last", "output_last")


def rows(num_rows: int, seed: int) -> LabelledRows:
    """Rows whose margin and first state tell whether the label is right."""
    rng = np.random.default_rng(seed)
    hidden_ND, numbers_NK = rng.normal(size=(num_rows, 24)), rng.normal(size=(num_rows, len(NUMBERS)))
    value_N = numbers_NK[:, NUMBERS.index("margin")] + hidden_ND[:, 0] + rng.logistic(size=num_rows)
    return LabelledRows(
        hidden_ND=hidden_ND.astype(np.float16),
        correct_N=value_N > 0,
        part_N=np.full(num_rows, FIT, dtype=np.int8),
        sizes=(12, 12),
        row_ids_N=np.arange(num_rows),
        numbers_NK=numbers_NK,
        numbers=NUMBERS,
    )


def test_all_arms_score_a_pool_and_the_tables_say_so() -> None:
    source, pool = rows(400, 0), rows(2_000, 1)
    lines = {}
    for name, score in arms(STATES, None).items():
        scored = score(drawn(source, 300, 0), pool, 0)
        lines[name] = found = main.measured(scored, pool, 0.5)
        assert found["auc"] == pytest.approx(roc_auc_score(pool.correct_N, scored.raw_N))
        assert (scored.trust_N is None) == (name in FREE)
        if scored.trust_N is not None:
            assert found["brier"] == pytest.approx(brier_score_loss(pool.correct_N, scored.trust_N))
            assert found["brier_constant"] == pytest.approx(0.25)
    assert lines["stacked"]["auc"] > max(lines[name]["auc"] for name in FREE) + 0.03
    assert lines["stacked"]["auc"] > lines[BASELINE]["auc"] - 0.02
    shown = {"dtype": "bfloat16", "source_rows": 400, "pool_rows": 2_000, "share_right": 0.5, "sizes": {"300": lines}}
    text = main.tables({"drawn": shown})
    assert f"| **stacked** | {lines['stacked']['auc']:.3f}, " in text and text.count("\n| ") == len(lines) + 2


def test_the_tables_go_from_few_rows_to_all_and_say_where_the_rule_does_not_hold() -> None:
    def lines(own: float, brier: float) -> dict[str, dict[str, float]]:
        stacked = {"auc": own, "purity_25": 0.5, "brier": brier, "brier_constant": 0.2}
        sure = {"promise_less_right": 0.02, "promise_error": 0.01, "num_sure": 100.0}
        others = {arm: {"auc": 0.6, "purity_25": 0.4} for arm in (*FREE, BASELINE)}
        return {"stacked": stacked | sure, **others}

    sizes = {"100": lines(0.586, 0.21), "1000": lines(0.65, 0.18), "1200": lines(0.66, 0.17), "300": lines(0.594, 0.19)}
    found = {"dtype": "bfloat16", "source_rows": 1_200, "pool_rows": 2_000, "share_right": 0.5, "sizes": sizes}
    line = "| drawn | -0.0140, **+0.0100** | **-0.0060**, -0.0100 | +0.0500, -0.0200 | +0.0600, -0.0300 |"
    assert line in main.summary({"drawn": found}) and "hold in 2 of 4 cells" in main.summary({"drawn": found})
    text = main.tables({"drawn": found})
    assert "| arm | 100 rows | 300 rows | 1000 rows | 1200 rows |" in text
    assert "0.210 (constant 0.200) | 0.170 (constant 0.200) | +2.0 ± 2.0 of 100 |" in text


def test_the_promise_is_told_of_several_deals_that_have_such_rows() -> None:
    deals = {"deals": 20, "labelled": 1_000}
    both = {"mean": -0.02, "error": 0.01, "of_rows": 0.01, "of_rows_error": 0.005}
    (line,) = main._promised({**deals, "rows": 50.0, **both})
    assert "promises -2.0 ± 2.0 points" in line and "and +1.0 ± 1.0 of all such rows" in line
    for rows, told in ((0.0, "no row's"), (0.2, "hardly a row's"), (1.5, "in one alone")):
        (line,) = main._promised({**deals, "rows": rows})
        assert told in line


def test_a_draw_takes_so_many_rows_and_another_seed_others() -> None:
    source = rows(400, 0)
    first, again, other = (drawn(source, 100, seed).part_N for seed in (0, 0, 1))
    assert (first != UNUSED).sum() == 100 and np.array_equal(first, again) and not np.array_equal(first, other)
    assert (drawn(source, None, 0).part_N != UNUSED).all()


def test_a_class_is_read_from_its_own_completion() -> None:
    domain = Classes(labels=["card_arrival", "age_limit"], cue="About:")
    example = domain.read({"text": " when? "})
    assert domain.prompt(example) == "Text: when?\nAbout:" and domain.options(example) == (
        " card arrival",
        " age limit",
    )
    assert domain.parse(" age limit", example) == "age_limit" and domain.parse(" age", example) is None
