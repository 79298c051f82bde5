"""Bootstraps: their draws, and metrics that do not depend on what is measured beside."""

import numpy as np
import pytest

from curation.metrics.calibration import resample
from curation.report.measures import measure_functions
from curation.report.rows import FunctionScores, GradedRows


@pytest.mark.parametrize("num_rows", [0, 200, 70_000])
def test_draws_are_those_of_one_multinomial(num_rows: int) -> None:
    counts = np.random.default_rng(5).multinomial(num_rows, np.full(30, 1 / 30)) + np.array([0, 0, 1] * 10)
    filled = counts[counts > 0]
    whole_RF = np.random.default_rng(9).multinomial(counts.sum(), filled / counts.sum(), size=1000)
    drawn_RC = resample(counts, lambda drawn_RC: drawn_RC, seed=9)
    assert drawn_RC.dtype == np.int64 and np.array_equal(drawn_RC[:, counts > 0], whole_RF)
    assert not drawn_RC[:, counts == 0].any()


def test_a_function_has_the_same_metrics_beside_others_and_alone() -> None:
    rng = np.random.default_rng(1)
    num_rows, names = 400, ["trust", "internal_confidence", "last_logprob", "linear_probe", "ensemble"]
    trust = {name: rng.random(num_rows) for name in names}

    def view(shown: list[str]) -> GradedRows:
        rows = GradedRows(
            row_ids_N=np.arange(num_rows),
            correct_N=np.random.default_rng(2).random(num_rows) < trust["trust"],
            parsed_N=np.ones(num_rows, dtype=np.bool_),
            scores={name: FunctionScores(raw_N=trust[name], trust_N=trust[name]) for name in shown},
        )
        return rows

    together = measure_functions(view(names), 50, 0.5, seed=7)["functions"]
    assert list(together) == names
    for name in names:
        assert measure_functions(view([name]), 50, 0.5, seed=7)["functions"] == {name: together[name]}
