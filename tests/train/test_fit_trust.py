"""Fitting networks as trust functions: loss, weights, stopping, shards, resuming; and a fit by two Ray workers."""

import os
import signal
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from curation.config import TrustConfig
from curation.errors import ConfigError, DegenerateSourceError, RunFailedError
from curation.hashing import derive, hash_unit
from curation.refs import TableRef
from curation.tables import io, schemas
from curation.telemetry.standing import Standing
from curation.trust import load_fitted
from curation.trust.attention import AttentionArchitecture, AttentionNet, AttentionTrust
from curation.trust.calibration import Calibration, fit_calibration
from curation.trust.deep_ensemble import DeepEnsemble
from curation.trust.neural import Architecture, NeuralTrust, NeuralTrustNet, TrustNet
from curation.trust.parts import FIT, REPEAT, UNUSED, VALIDATION, assign_parts
from train.launch import TrainProcess, trained_in
from train.trust import compute_logits_at, fit_rows, fit_trust, read_rows
from train.trust_loop import (
    LabelledRows,
    _iter_batches,
    compute_loss_weights,
    compute_moments,
    compute_weighted_loss,
    fit_arrays,
)

pytestmark = pytest.mark.long

SMALL = TrustConfig(
    kind="neural", width=32, depth=2, learning_rate=3e-3, batch_size=64, max_steps=360, patience=90, max_failures=0
)


TWO = ("prompt_last", "output_last")


def with_(config: TrustConfig, **changes: object) -> TrustConfig:
    return config.model_copy(update=changes)


def rows_of(hidden_ND: np.ndarray, correct_N: np.ndarray, part_N: np.ndarray, sizes: tuple[int, ...]) -> LabelledRows:
    """Rows of these states and no numbers, with ids that are no positions."""
    ids_N = 3 * np.arange(len(correct_N), dtype=np.int64) + 7
    return LabelledRows(hidden_ND, correct_N, part_N, sizes, ids_N, np.empty((len(correct_N), 0)))


def separable(num_rows: int = 2000, size: int = 16, seed: int = 0) -> LabelledRows:
    """A quarter of the rows is right, where a curved function of the state is large."""
    rng = np.random.default_rng(seed)
    hidden_ND = (rng.standard_normal((num_rows, size)) * rng.uniform(0.1, 20, size) + 5).astype(np.float16)
    unit_ND = (hidden_ND - hidden_ND.mean(0)) / hidden_ND.astype(np.float32).std(0)
    value_N = unit_ND[:, 0] + unit_ND[:, 1] * unit_ND[:, 2]
    part_N = rng.choice([FIT, VALIDATION], num_rows, p=[0.75, 0.25]).astype(np.int8)
    return rows_of(hidden_ND, value_N > np.quantile(value_N, 0.75), part_N, (size // 2, size - size // 2))


def fit_net(rows: LabelledRows, config: TrustConfig, kind: str = "neural", **how: Any) -> Any:
    if kind == "neural":
        new_net = partial(NeuralTrustNet, Architecture.of(config, rows.hidden_ND.shape[1]))
        return fit_arrays(rows, config, new_net, NeuralTrust, origin={}, **how)
    new_net = partial(AttentionNet, AttentionArchitecture.of(config, rows.sizes, 4))
    return fit_arrays(rows, config, new_net, AttentionTrust, origin={}, **how)


def line(calibration: Calibration) -> tuple[float, float, int]:
    return calibration.slope, calibration.intercept, calibration.num_rows


def logits(net: TrustNet, rows: LabelledRows) -> np.ndarray:
    with torch.no_grad():
        return net(torch.from_numpy(rows.hidden_ND)).numpy()


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_class_weights_in_closed_form(strength: float) -> None:
    correct_N = np.array([True] * 2 + [False] * 8)
    wrong, right = compute_loss_weights(correct_N, strength)
    assert wrong == pytest.approx((10 / 16) ** strength) and right == pytest.approx((10 / 4) ** strength)
    if strength == 1.0:
        assert 8 * wrong == pytest.approx(2 * right)


def test_loss_is_the_weighted_cross_entropy() -> None:
    rng = np.random.default_rng(0)
    logit_N, correct_N = rng.standard_normal(20), rng.random(20) < 0.3
    p_N = 1 / (1 + np.exp(-logit_N))
    expected = np.where(correct_N, -3 * np.log(p_N), -0.7 * np.log(1 - p_N)).mean()
    loss = compute_weighted_loss(torch.tensor(logit_N), torch.tensor(correct_N).double(), (0.7, 3.0))
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_moments_are_those_of_the_fit_rows() -> None:
    rows = separable(num_rows=9000)
    rows.hidden_ND[:, 3] = 7
    fit_F = rows.places(FIT)
    mean_D, scale_D = compute_moments(rows.hidden_ND, fit_F)
    wide_ND = rows.hidden_ND[fit_F].astype(np.float64)
    np.testing.assert_allclose(mean_D, wide_ND.mean(0), rtol=1e-6)
    np.testing.assert_allclose(np.delete(scale_D, 3), np.delete(wide_ND.std(0), 3), rtol=1e-6)
    assert scale_D[3] == 1


def test_separable_rows_are_told_apart_and_the_best_weights_kept() -> None:
    rows = separable()
    rows.part_N[[3, 500]] = REPEAT, UNUSED
    trust = fit_net(rows, SMALL, seed=0)
    net, calibration, held_out, record = trust.net, trust.calibration, trust.held_out, trust.fit
    validation_V = rows.places(VALIDATION)
    logit_N = logits(net, rows)
    auc = roc_auc_score(rows.correct_N[validation_V], logit_N[validation_V])
    assert auc > 0.95
    assert auc == pytest.approx(max(record["validation_aucs"]), abs=1e-6)
    assert record["best"] == int(np.argmax(record["validation_aucs"]))
    assert record["losses"][-1] < 0.7 * record["losses"][0]
    assert record["num_fit"] == len(rows.places(FIT)) and record["num_validation"] == len(validation_V)
    assert record["num_repeats"] == 1
    again = fit_calibration(logit_N[validation_V], rows.correct_N[validation_V])
    assert line(calibration) == pytest.approx(line(again), rel=1e-5)
    np.testing.assert_array_equal(held_out.row_ids_N, np.delete(rows.row_ids_N, 500))
    expected_N = np.where(rows.part_N == VALIDATION, logit_N, np.nan)
    np.testing.assert_allclose(held_out.raw_N, np.delete(expected_N, 500), rtol=1e-4, atol=1e-5)
    assert not net.training and record["seconds"] > 0
    plain = fit_net(rows, with_(SMALL, standardise=False, max_steps=20), seed=0).net
    assert "mean_D" not in plain.state_dict() and "mean_D" in net.state_dict()


def test_patience_stops_and_none_takes_all_steps() -> None:
    rng = np.random.default_rng(0)
    part_N = rng.choice([FIT, VALIDATION], 400, p=[0.65, 0.35]).astype(np.int8)
    noise = rows_of(rng.standard_normal((400, 4)).astype(np.float16), rng.random(400) < 0.5, part_N, (4,))
    config = with_(SMALL, max_steps=400, patience=40)
    stopped = fit_net(noise, config, seed=0).fit
    assert stopped["steps"][-1] < 400
    assert 40 <= stopped["steps"][-1] - stopped["steps"][stopped["best"]] < 40 + stopped["steps"][0]
    trust = fit_net(noise, with_(config, max_steps=65, patience=None), seed=0)
    net, whole = trust.net, trust.fit
    assert whole["steps"][-1] == 65 and whole["best"] == len(whole["losses"]) - 1
    validation_V = noise.places(VALIDATION)
    last = roc_auc_score(noise.correct_N[validation_V], logits(net, noise)[validation_V])
    assert last == pytest.approx(whole["validation_aucs"][-1], abs=1e-6)


@pytest.mark.parametrize("num_rows", [100, 1000])
def test_a_small_source_gets_as_many_steps_as_a_large_one(num_rows: int) -> None:
    config = with_(SMALL, max_steps=120, patience=None, batch_size=256)
    assert fit_net(separable(num_rows), config, seed=0).fit["steps"][-1] == 120


@pytest.mark.parametrize(("max_steps", "first"), [(400, 10), (60, 3)])
def test_a_small_source_is_validated_every_ten_steps_or_twenty_times(max_steps: int, first: int) -> None:
    config = with_(SMALL, max_steps=max_steps, patience=None, batch_size=256)
    assert fit_net(separable(100), config, seed=0).fit["steps"][0] == first


def test_batches_pass_over_all_rows_each_epoch_from_any_step_on() -> None:
    epochs = list(_iter_batches(np.arange(10, 31), 8, 4, 0, 6))
    for epoch in (epochs[:3], epochs[3:]):
        assert sorted(np.concatenate(epoch)) == list(range(10, 31)) and [len(batch) for batch in epoch] == [8, 8, 5]
    assert not np.array_equal(epochs[0], epochs[3])
    for one, other in zip(_iter_batches(np.arange(10, 31), 8, 4, 4, 6), epochs[4:], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", ["neural", "attention"])
def test_a_seed_defines_the_fit(kind: str) -> None:
    rows, config = separable(500), with_(SMALL, states=TWO, max_steps=30)
    fits = [fit_net(rows, config, kind, seed=seed) for seed in (1, 1, 2)]
    first, second, other = (trust.net for trust in fits)
    assert all(fits[0].fit[name] == fits[1].fit[name] for name in ("losses", "validation_aucs"))
    assert np.array_equal(logits(first, rows), logits(second, rows))
    assert not np.array_equal(logits(first, rows), logits(other, rows))


def test_a_fit_that_diverges_says_so() -> None:
    rows = separable(200)
    rows.hidden_ND[0] = np.inf
    with pytest.raises(RunFailedError, match=r"steps 1 to \d+: the loss is nan"):
        fit_net(rows, with_(SMALL, standardise=False), seed=0)


def tables(
    path: Path, rows: LabelledRows, *, states: tuple[str, ...] = ("output_last",), unparsed: Collection[int] = ()
) -> tuple[TableRef, TableRef]:
    """A labels table in shuffled order, two fragments, and its grades; one row in error, one without a state.

    Row 2 has no gold label, hence no grade.
    """
    order_N = np.random.default_rng(5).permutation(len(rows.correct_N))
    parts = np.array_split(rows.hidden_ND, len(states), axis=1)
    columns = {
        "row_id": pa.array(order_N),
        "label": pa.array([None if i in unparsed else "e2e4" for i in order_N], pa.string()),
        "error": pa.array(["poison: x" if i == 0 else None for i in order_N], pa.string()),
    }
    for state, part_ND in zip(states, parts, strict=True):
        values = [None if i <= 1 else part_ND[i] for i in order_N]
        columns[f"state_{state}"] = pa.array(values, pa.list_(pa.float16(), part_ND.shape[1]))
    lance.write_dataset(pa.table(columns), path / "labels.lance", max_rows_per_file=len(order_N) // 2 + 1)
    return io.find_latest(str(path / "labels.lance")), graded(path, "grades", rows)


def graded(
    path: Path, name: str, rows: LabelledRows, num_rows: int | None = None, questions: np.ndarray | None = None
) -> TableRef:
    ids_M = np.delete(np.arange(len(rows.correct_N)), [0, 2])[:num_rows]
    found = [{"row_id": int(i), "correct": bool(rows.correct_N[i]), "judged": False} for i in ids_M]
    for row in found if questions is not None else ():
        row["question"] = int(questions[row["row_id"]])
    return io.write(pa.Table.from_pylist(found, schema=schemas.GRADES), str(path / f"{name}.lance"))


def test_rows_are_read_by_id_whatever_their_order(tmp_path: Path) -> None:
    rows = separable(300)
    config = with_(SMALL, states=TWO)
    labels, grades = tables(tmp_path, rows, states=config.states)
    read = read_rows(labels, grades, config, seed=3)
    np.testing.assert_array_equal(read.hidden_ND, rows.hidden_ND[3:])
    assert read.sizes == (8, 8)
    np.testing.assert_array_equal(read.correct_N, rows.correct_N[3:])
    unit_N = hash_unit(np.arange(3, 300), 3)
    np.testing.assert_array_equal(read.part_N == VALIDATION, unit_N < 0.2)
    np.testing.assert_array_equal(read.part_N == FIT, unit_N >= 0.2)
    np.testing.assert_array_equal(read.row_ids_N, np.arange(3, 300))
    assert read.hidden_ND.dtype == np.float16 and read.numbers == () and read.numbers_NK.shape == (297, 0)


def test_rows_that_ask_the_same_question_are_on_one_side_and_only_the_first_is_used(tmp_path: Path) -> None:
    rows = separable(300)
    asked_N = hash_unit(np.arange(300) // 3, 9).view(np.int64)  # of every three rows in a row one question
    labels, _ = tables(tmp_path, rows)
    grades = graded(tmp_path, "asked", rows, questions=asked_N)
    read = read_rows(labels, grades, SMALL, seed=3)
    first_N = read.row_ids_N % 3 == 0
    np.testing.assert_array_equal(read.part_N == REPEAT, ~first_N)
    np.testing.assert_array_equal(read.part_N[first_N] == VALIDATION, hash_unit(asked_N[3::3], 3) < 0.2)
    found = fit_rows("linear_probe", read, SMALL, seed=3, origin={})
    assert found.fit["num_fit"] == len(read.places(FIT)) and found.fit["num_repeats"] == read.num_repeats == 198
    assert found.held_out is not None
    np.testing.assert_array_equal(found.held_out.row_ids_N, read.row_ids_N)
    np.testing.assert_array_equal(~np.isnan(found.held_out.raw_N), read.part_N == VALIDATION)


def test_numbers_of_the_table_are_read_beside_the_states(tmp_path: Path) -> None:
    rows = separable(300)
    labels, grades = tables(tmp_path, rows)
    table = io.open_table(labels).to_table()
    ids_N = table["row_id"].to_numpy()
    logprob = pa.array([None if i == 9 else -i / 8 for i in ids_N], pa.float32())
    table = table.append_column("mean_logprob", logprob).append_column("num_output_tokens", pa.array(ids_N, pa.int32()))
    config = with_(SMALL, columns=("num_output_tokens", "mean_logprob"))
    read = read_rows(io.write(table, str(tmp_path / "with.lance")), grades, config, seed=3)
    kept = [i for i in range(3, 300) if i != 9]  # without a number a row is left out, as without a state
    expected_ND = np.column_stack([rows.hidden_ND[kept].astype(np.float32), kept, -np.array(kept) / 8])
    np.testing.assert_array_equal(read.hidden_ND, expected_ND.astype(np.float32))
    assert read.hidden_ND.dtype == np.float32 and read.sizes == (16, 1, 1)
    net = fit_net(read, config, seed=3).net
    assert net.architecture.input_size == read.hidden_ND.shape[1]


@pytest.mark.parametrize("kind", ["neural", "linear_probe", "attention"])
def test_log_probabilities_of_tokens_are_read_beside_the_states(tmp_path: Path, kind: str) -> None:
    """Only the second token's says which labels are right, so that what ranks them has read it."""
    rows = separable(600)
    rng = np.random.default_rng(8)
    logprob_NK = -rng.random((600, 3)).astype(np.float16)
    logprob_NK[rows.correct_N, 1] -= 2
    noise_ND = rng.normal(size=rows.hidden_ND.shape).astype(np.float16)
    labels, grades = tables(tmp_path, rows._replace(hidden_ND=noise_ND))
    table = io.read(labels)
    values = pa.array(logprob_NK[table["row_id"].to_numpy()].reshape(-1))
    table = table.append_column("token_logprobs", pa.FixedSizeListArray.from_arrays(values, 3))
    config = with_(SMALL, columns=("token_logprobs",), kind=kind)
    read = read_rows(io.write(table, str(tmp_path / "with.lance")), grades, config, seed=3)
    np.testing.assert_array_equal(read.hidden_ND, np.hstack([noise_ND, logprob_NK])[3:])
    assert read.hidden_ND.dtype == np.float16 and read.sizes == (16, 3)
    found = fit_rows(kind, read, config, seed=3, origin={})
    held_M = read.places(VALIDATION)
    assert roc_auc_score(read.correct_N[held_M], compute_logits_at(found, read, held_M)) > 0.95


def test_unparsed_rows_are_left_out_unless_all_are_asked_for(tmp_path: Path) -> None:
    rows, unparsed = separable(300), set(range(100, 250))
    labels, grades = tables(tmp_path, rows, unparsed=unparsed)
    kept = [i for i in range(3, 300) if i not in unparsed]
    read = read_rows(labels, grades, SMALL, seed=3)
    np.testing.assert_array_equal(read.hidden_ND, rows.hidden_ND[kept])
    np.testing.assert_array_equal(read.correct_N, rows.correct_N[kept])
    whole = read_rows(labels, grades, with_(SMALL, fit_on="all"), seed=3)
    np.testing.assert_array_equal(whole.hidden_ND, rows.hidden_ND[3:])


fit_probe = partial(fit_trust, "linear_probe")


@pytest.mark.parametrize("kind", ["neural", "linear_probe"])
@pytest.mark.parametrize("right", [True, False])
def test_a_source_that_teaches_nothing_is_refused(kind: str, right: bool, tmp_path: Path) -> None:
    rows = separable(100)
    labels, grades = tables(tmp_path, rows._replace(correct_N=np.full(100, right)))
    with pytest.raises(
        DegenerateSourceError,
        match=r"trust: (\d+) of \d+ parsed weak labels are right in the fit part of the source, but both right and "
        r"wrong ones are needed",
    ):
        fit_trust(kind, labels, grades, SMALL, seed=0, output=tmp_path / "trust")
    only_fit = rows._replace(correct_N=np.where(hash_unit(np.arange(100), 0) < 0.2, False, rows.correct_N))
    with pytest.raises(DegenerateSourceError, match=r"0 of \d+ parsed weak labels are right in the validation part"):
        fit_trust(kind, labels, graded(tmp_path, "other", only_fit), SMALL, seed=0, output=tmp_path / "trust")
    with pytest.raises(DegenerateSourceError, match="0 of 0 parsed weak labels"):
        fit_trust(kind, labels, graded(tmp_path, "none", rows, 0), SMALL, seed=0, output=tmp_path / "trust")
    assert not (tmp_path / "trust").exists()


def test_a_linear_probe_fits_what_is_linear_on_the_fit_rows_alone(tmp_path: Path) -> None:
    rows = separable(1500)
    linear = rows._replace(correct_N=rows.hidden_ND[:, 3] > np.quantile(rows.hidden_ND[:, 3], 0.7))
    labels, grades = tables(tmp_path, linear)
    ref = fit_probe(labels, grades, SMALL, seed=3, output=tmp_path / "probe")
    probe = load_fitted(ref)
    read = read_rows(labels, grades, SMALL, seed=3)
    batch = pa.record_batch({"state_output_last": pa.array(list(read.hidden_ND), pa.list_(pa.float16(), 16))})
    raw_N = probe.raw_score(batch)
    validation_V = read.places(VALIDATION)
    assert roc_auc_score(read.correct_N[validation_V], raw_N[validation_V]) > 0.98
    again = fit_calibration(raw_N[validation_V], read.correct_N[validation_V])
    assert line(probe.calibration) == pytest.approx(line(again), rel=1e-6)
    expected_N = np.where(read.part_N == VALIDATION, raw_N, np.nan)
    np.testing.assert_allclose(probe.source_score(batch.append_column("row_id", pa.array(read.row_ids_N))), expected_N)
    here = fit_rows("linear_probe", read, SMALL, seed=3, origin={})
    np.testing.assert_array_equal(here.logits(torch.from_numpy(read.hidden_ND)), probe.raw_score(batch))
    assert here.calibration == probe.calibration
    assert probe.fit["num_fit"] == len(read.places(FIT)) and probe.fit["grades"] == grades.to_json()
    # Whatever the validation rows say, the probe is the same.
    other = linear._replace(correct_N=linear.correct_N ^ (hash_unit(np.arange(1500), 3) < SMALL.validation_fraction))
    again = fit_probe(labels, graded(tmp_path, "other", other), SMALL, seed=3, output=tmp_path / "again")
    np.testing.assert_array_equal(load_fitted(again).raw_score(batch), raw_N)


@pytest.mark.parametrize("kind", ["neural", pytest.param("attention", marks=pytest.mark.slow)])
def test_a_ray_worker_fits_what_this_process_fits(kind: str, local_ray: object, tmp_path: Path) -> None:
    labels, grades = tables(tmp_path, separable(1500), states=TWO)
    config = with_(SMALL, states=TWO, dropout=0.0, stochastic_depth=0.0, max_steps=48, patience=None)
    config = with_(config, calibration="isotonic") if kind == "attention" else config
    read = read_rows(labels, grades, config, seed=3)
    own = fit_net(read, config, kind, seed=3)
    expected, calibration, held_out, record = own.net, own.calibration, own.held_out, own.fit
    ref = fit_trust(kind, labels, grades, config, seed=3, output=tmp_path / "trust")
    assert ref.uri == str(tmp_path / "trust") and not list(tmp_path.glob("*.ray"))
    trust = load_fitted(ref)
    assert trust.kind == kind
    np.testing.assert_allclose(logits(trust.net, read), logits(expected, read), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(trust.fit["losses"], record["losses"], rtol=1e-4)
    assert sum(trust.fit[f"num_{part}"] for part in ("fit", "validation")) == 1497
    assert trust.fit["best"] == len(record["losses"]) - 1
    assert trust.calibration.slope == pytest.approx(calibration.slope, rel=1e-2)
    assert trust.calibration.num_rows == trust.fit["num_validation"]
    np.testing.assert_array_equal(trust.held_out.row_ids_N, read.row_ids_N)
    np.testing.assert_allclose(trust.held_out.raw_N, held_out.raw_N, rtol=1e-3, atol=1e-3)
    assert np.array_equal(np.isnan(held_out.raw_N), read.part_N != VALIDATION)
    raw_N = logits(expected, read)
    np.testing.assert_allclose(trust.to_trust(raw_N), calibration.to_trust(raw_N), atol=2e-2)
    assert trust.fit["labels"] == labels.to_json() and trust.fit["grades"] == grades.to_json()
    assert trust.fit["seed"] == 3


@pytest.fixture(scope="module")
def one_process(local_ray: object) -> Iterator[TrainProcess]:
    """The process in which a run fits by one worker."""
    process = TrainProcess(SMALL)
    yield process
    process.close()


def test_a_fit_tells_its_steps_and_the_validation_auc(one_process: TrainProcess, tmp_path: Path) -> None:
    labels, grades = tables(tmp_path, separable(500))
    config = with_(SMALL, max_steps=40, patience=None, options={"deep_ensemble": {"members": 2}})
    told: list[Standing] = []
    with trained_in(one_process):
        ref = fit_trust("deep_ensemble", labels, grades, config, seed=3, output=tmp_path / "trust", update=told.append)
    last, auc = told[-1], load_fitted(ref).fit["members"][1]["validation_aucs"][-1]
    assert (last.rows, last.total, last.unit) == (80, 80, "steps") and not list(tmp_path.glob("*.progress"))
    assert last.note == f"AUC {auc:.3f} on validation rows"


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_fits_again(
    local_ray: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "died"

    def dying(task: dict[str, Any], notes: Any) -> None:
        """Kills its own process after the second evaluation, once."""
        import train.trust as fitting

        note, calls = notes.note, []

        def dying_note(*args: Any) -> None:
            note(*args)
            calls.append(1)
            if len(calls) == 2 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        notes.note = dying_note
        fitting._fit_in_worker(task, notes)

    monkeypatch.setattr("train.trust._fit_in_worker", dying)
    labels, grades = tables(tmp_path, separable(500))
    config = with_(SMALL, max_steps=5, patience=None, max_failures=1)
    straight = fit_net(read_rows(labels, grades, config, seed=3), config, seed=3).fit
    ref = fit_trust("neural", labels, grades, config, seed=3, output=tmp_path / "trust")
    assert mark.exists()
    np.testing.assert_allclose(load_fitted(ref).fit["losses"], straight["losses"], rtol=1e-5)


@pytest.mark.slow
def test_a_fit_that_fails_names_the_cause(local_ray: object, tmp_path: Path) -> None:
    rows = separable(300)
    rows.hidden_ND[5] = np.inf
    labels, grades = tables(tmp_path, rows)
    with pytest.raises(
        RunFailedError, match=r"trust-\w+: training failed: .*the loss is nan; lower trust\.learning_rate"
    ):
        fit_trust("neural", labels, grades, SMALL, seed=0, output=tmp_path / "trust")


def test_a_deep_ensemble_is_the_mean_probability_of_its_members(one_process: TrainProcess, tmp_path: Path) -> None:
    labels, grades = tables(tmp_path, separable(600))
    config = with_(SMALL, max_steps=24, options={"deep_ensemble": {"members": 3}})
    read = read_rows(labels, grades, config, seed=3)
    nets = [fit_net(read, config, seed=derive(3, f"member {m}")).net for m in range(3)]
    with trained_in(one_process):
        ref = fit_trust("deep_ensemble", labels, grades, config, seed=3, output=tmp_path / "trust")
    trust = load_fitted(ref)
    assert isinstance(trust, DeepEnsemble) and {path.name for path in (tmp_path).glob("trust*")} == {"trust"}
    states = torch.from_numpy(read.hidden_ND)
    mean_N = np.mean([expit(logits(net, read).astype(np.float64)) for net in nets], axis=0)
    np.testing.assert_allclose(expit(trust.logits(states).astype(np.float64)), mean_N, rtol=1e-5)
    assert np.isfinite(trust.logits(1e4 * states.float())).all(), "where a probability rounds to 0 or 1, too"
    here = fit_rows("deep_ensemble", read, config, seed=3, origin={})
    np.testing.assert_allclose(here.logits(states), trust.logits(states), rtol=1e-4, atol=1e-4)
    assert line(here.calibration) == pytest.approx(line(trust.calibration), rel=1e-3)
    raw_V, correct_V = trust.logits(states[read.places(VALIDATION)]), read.correct_N[read.places(VALIDATION)]
    assert line(trust.calibration) == pytest.approx(line(fit_calibration(raw_V, correct_V)), rel=1e-6)
    np.testing.assert_array_equal(trust.held_out.raw_N[read.part_N == VALIDATION], raw_V)
    assert np.isnan(trust.held_out.raw_N[read.part_N == FIT]).all()
    assert trust.fit["num_validation"] == len(raw_V) and len(trust.fit["members"]) == 3
    assert trust.fit["members"][0]["losses"] != trust.fit["members"][1]["losses"]


def test_an_ensemble_of_one_is_refused(one_process: TrainProcess, tmp_path: Path) -> None:
    rows = separable(100)
    labels, grades = tables(tmp_path, rows)
    alone = with_(SMALL, options={"deep_ensemble": {"members": 1}})
    with trained_in(one_process), pytest.raises(ConfigError, match=r"deep_ensemble\.members: 1; give 2 or more"):
        fit_trust("deep_ensemble", labels, grades, alone, seed=3, output=tmp_path / "one")
    with pytest.raises(ConfigError, match=r"deep_ensemble\.members: 1; give 2 or more"):
        fit_rows("deep_ensemble", rows, alone, seed=3, origin={})


def test_rows_that_the_share_omits_change_no_fit(tmp_path: Path) -> None:
    rows = separable(900)
    config = with_(SMALL, source_share=0.4)
    omitted_N = assign_parts(np.arange(900), config, 3) == UNUSED
    scaled_N1 = np.where(omitted_N, 3, 1).astype(np.float16)[:, None]
    turned = rows._replace(hidden_ND=rows.hidden_ND * scaled_N1, correct_N=rows.correct_N ^ omitted_N)
    fits = []
    for name, written in (("one", rows), ("other", turned)):
        (tmp_path / name).mkdir()
        ref = fit_probe(*tables(tmp_path / name, written), config, seed=3, output=tmp_path / name / "probe")
        fits.append(load_fitted(ref))
    states = torch.from_numpy(rows.hidden_ND)
    np.testing.assert_array_equal(fits[0].logits(states), fits[1].logits(states))
    assert fits[0].calibration == fits[1].calibration
    counts = [
        int((~omitted_N & (assign_parts(np.arange(900), SMALL, 3) == part))[3:].sum()) for part in (FIT, VALIDATION)
    ]
    assert [fits[0].fit["num_fit"], fits[0].calibration.num_rows] == counts


@pytest.mark.parametrize("kind", ["neural", "attention", "deep_ensemble", "linear_probe", "boosted_trees"])
def test_calibrations_are_compared_on_the_same_fit(kind: str) -> None:
    rows = separable(400)
    own = {"deep_ensemble": {"members": 2}, "boosted_trees": {"num_trees": 5}}
    config = with_(SMALL, states=TWO, width=16, depth=1, max_steps=8, options=own)
    states, validation_V = torch.from_numpy(rows.hidden_ND), rows.places(VALIDATION)
    raws = []
    for method in ("platt", "isotonic", "none"):
        trust = fit_rows(kind, rows, with_(config, calibration=method), seed=3, origin={})
        raw_N = trust.raw(states)
        raws.append(raw_N)
        expected = fit_calibration(raw_N[validation_V], rows.correct_N[validation_V], method)
        np.testing.assert_allclose(trust.to_trust(raw_N), expected.to_trust(raw_N), atol=1e-5)
        assert trust.calibration.num_rows == (0 if method == "none" else len(validation_V))
        assert trust.held_out is not None and np.array_equal(trust.held_out.row_ids_N, rows.row_ids_N)
        expected_N = np.where(rows.part_N == VALIDATION, raw_N, np.nan)
        np.testing.assert_allclose(trust.held_out.raw_N, expected_N, rtol=1e-5, atol=1e-6)
    assert all(np.array_equal(raw_N, raws[0]) for raw_N in raws)
    np.testing.assert_allclose(trust.to_trust(raws[0]), expit(raws[0]), rtol=1e-6)  # none: the bare sigmoid


def test_attention_learns_what_two_states_say_together_and_neither_alone() -> None:
    rng = np.random.default_rng(4)
    hidden_ND = rng.standard_normal((4000, 14)).astype(np.float16)
    correct_N = (hidden_ND[:, 0] * hidden_ND[:, 6]).astype(np.float32) + 0.2 * rng.standard_normal(4000) > 0
    unseen = 9
    part_N = rng.choice([FIT, VALIDATION, unseen], 4000, p=[0.5, 0.25, 0.25]).astype(np.int8)
    rows = rows_of(hidden_ND, correct_N, part_N, (6, 8))  # a product of numbers of either state tells
    unseen_M = rows.places(unseen)
    config = with_(SMALL, states=TWO, max_steps=800, patience=200, options={"attention": {"num_heads": 2}})

    def auc(kind: str) -> float:
        trust = fit_rows(kind, rows, config, seed=3, origin={})
        return roc_auc_score(correct_N[unseen_M], trust.logits(torch.from_numpy(hidden_ND[unseen_M])))

    assert auc("attention") > 0.9
    assert abs(auc("linear_probe") - 0.5) < 0.08


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    rows = separable(100)
    config = with_(SMALL, states=TWO, options={"attention": {"num_heads": 5}})
    with pytest.raises(ConfigError, match=r"attention\.num_heads: 5; the heads divide trust\.width \(32\) evenly"):
        fit_rows("attention", rows, config, seed=3, origin={})
