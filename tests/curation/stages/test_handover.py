"""Between two generations: the signs of a trust function, what they decide, and rows that trained the teacher."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import roc_auc_score

from curation.config import TrustConfig
from curation.config.run import StopConfig
from curation.errors import SourceError
from curation.metrics import Estimate
from curation.metrics.shift import compare_samples
from curation.refs import TableRef
from curation.stages.handover import GoOn, HoldOut, Signs, find_stop_reasons
from curation.stages.label import RowShare
from curation.tables import io, schemas
from curation.trust.parts import VALIDATION, assign_parts

NONE_SHOWN = compare_samples(np.zeros((5, 2)), np.zeros((5, 2)), seed=0).to_json()  # too few rows for a test
SIGNS = Signs(
    function="trust",
    auc=Estimate(value=0.8, low=0.7, high=0.9, n=200),
    compared="source",
    shift=NONE_SHOWN,
)
NO_AUC = Estimate(value=math.nan, low=math.nan, high=math.nan, n=9)


def shifted(value: float, low: float) -> dict:
    return NONE_SHOWN | {"auc": {"value": value, "low": low, "high": 1.0, "n": 50}}


@pytest.mark.parametrize(
    ("changes", "stop", "told"),
    [
        ({}, {}, []),
        ({}, {"min_auc": 0.69}, []),
        ({}, {"min_auc": 0.7}, ["trust has an AUC of 0.800 [0.700, 0.900] on 200 parsed validation rows"]),
        ({"auc": Estimate(value=0.6, low=0.49, high=0.7, n=50)}, {}, ["chain.stop.min_auc 0.5"]),
        ({"auc": NO_AUC}, {}, ["trust has no AUC on 9 parsed validation rows"]),
        ({"function": "trust", "auc": NO_AUC}, {}, ["trust has no AUC on 9 parsed validation rows"]),
        ({"shift": shifted(0.9, 0.79)}, {}, []),
        ({"shift": shifted(0.9, 0.81)}, {}, ["from those of the source rows with an AUC of 0.900 [0.810, 1.000]"]),
        ({"shift": shifted(0.9, 0.81)}, {"max_shift": 1}, []),
        ({"auc": NO_AUC, "shift": shifted(0.9, 0.81)}, {}, ["no AUC", "hidden states"]),
    ],
)
def test_what_stops_a_chain(changes: dict, stop: dict, told: list[str]) -> None:
    reasons = find_stop_reasons(replace(SIGNS, **changes), StopConfig(**stop))
    assert len(reasons) == len(told)
    assert all(words in reason for words, reason in zip(told, reasons, strict=True)), reasons
    assert not any("trust trust" in reason for reason in reasons)


def save(directory: Path, name: str, columns: dict, schema: pa.Schema | None = None) -> TableRef:
    return io.write(pa.table(columns, schema=schema), str(directory / f"{name}.lance"))


def labels(directory: Path, name: str, ids_N: np.ndarray, raw_N: np.ndarray, parsed_N: np.ndarray) -> TableRef:
    label = pa.array(["e2e4"] * len(ids_N), mask=~parsed_N)
    error = pa.nulls(len(ids_N), pa.string())
    return save(directory, name, {"row_id": ids_N, "label": label, "error": error, "mean_logprob": raw_N})


def test_signs_are_those_of_the_validation_rows(tmp_path: Path) -> None:
    rng, trust, seed = np.random.default_rng(0), TrustConfig(validation_fraction=0.3), 5
    ids_N = rng.permutation(900).astype(np.int64)
    raw_N, parsed_N = rng.normal(-2, 1, 900).astype(np.float32), rng.random(900) < 0.8
    correct_N = parsed_N & (rng.random(900) < 1 / (1 + np.exp(-3 * (raw_N + 2))))
    source = labels(tmp_path, "source", ids_N, raw_N, parsed_N)
    order_N = np.argsort(ids_N)
    graded = {
        "row_id": ids_N[order_N],
        "correct": correct_N[order_N],
        "judged": np.zeros(900, dtype=bool),
        "problem": pa.nulls(900, pa.string()),
        "question": pa.nulls(900, pa.int64()),
    }
    grades = save(tmp_path, "grades", graded, schemas.GRADES)
    arguments = {
        "name": "gen-0/go-on",
        "functions": ("trust", "internal_confidence"),  # the labels have no trust scores
        "source": source,
        "grades": grades,
        "trust": trust,
        "seed": seed,
        "generation": 0,
        "shift": {"source": NONE_SHOWN | {"num_pool": 1}, "calibration": NONE_SHOWN | {"num_pool": 2}},
    }

    signs = GoOn(**arguments, stop=StopConfig()).read_signs()
    held_N = assign_parts(ids_N, trust, seed) == VALIDATION
    seen_N = held_N & parsed_N
    assert signs.function == "internal_confidence" and signs.auc.n == seen_N.sum() > 100
    assert signs.auc.value == pytest.approx(roc_auc_score(correct_N[seen_N], raw_N[seen_N]), abs=1e-12)
    assert (signs.compared, signs.shift["num_pool"]) == ("calibration", 2)


def test_rows_that_trained_a_student_are_refused_where_the_trust_in_it_is_measured(tmp_path: Path) -> None:
    pool_N, share = np.arange(1000, dtype=np.int64), RowShare(index=1, of=2, seed=3)
    mine_N, other_N = pool_N[share.takes(pool_N)], pool_N[~share.takes(pool_N)]

    def table(name: str, ids_N: np.ndarray) -> TableRef:
        return save(tmp_path, name, {"row_id": ids_N})

    trained = {"the trust student of generation 0": table("first", other_N[:40])}
    splits = {"source": table("source", 5000 + pool_N), "test": table("test", 9000 + pool_N[:7])}

    def check(trained: dict[str, TableRef], splits: dict[str, TableRef], teacher: str = "the teacher") -> Any:
        stage = HoldOut(name="held-out", trained=trained, splits=splits, share=asdict(share), teacher=teacher)
        return stage.run(SimpleNamespace()).outputs

    found = check(trained, splits, "the teacher of generation 1")
    assert found.num_trained == 40 and found.num_rows == {"source": 1000, "test": 7}
    for split in ("calibration", "probe-near"):
        ids_N = np.append(5000 + pool_N, other_N[[3, 7]])
        with pytest.raises(
            SourceError, match=rf"splits\.{split}: 2 of its rows \(e\.g\. row {other_N[3]}\) have trained"
        ):
            check(trained, {**splits, split: table(split, ids_N)})
    gone = trained | {"the trust student of generation 1": table("second", np.append(other_N[50:60], mine_N[0]))}
    with pytest.raises(
        SourceError, match=r"share of the pool: 1 of its rows .* trained the trust student of generation 1"
    ):
        check(gone, splits, "the teacher of generation 2")
    nothing = {"no row": table("nothing", np.zeros(0, dtype=np.int64))}
    assert check(nothing, splits).num_trained == 0
