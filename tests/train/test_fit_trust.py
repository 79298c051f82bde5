"""Fitting the neural trust function: loss, weights, stopping, shards, resuming; and a fit by two Ray workers."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.metrics import roc_auc_score

from curation import store
from curation import tables as schemas
from curation.config import TrustConfig
from curation.errors import DegenerateSourceError, RunFailedError
from curation.hashing import hash_unit
from curation.refs import TableRef, TrustRef
from curation.trust import load_fitted
from curation.trust.neural import Architecture, NeuralTrust, NeuralTrustNet
from train.trust import FITS, fit_probe, fit_trust, read_rows
from train.trust_loop import Rows, Shard, class_weights, fit_arrays, moments, shard_loss

SMALL = TrustConfig(width=32, depth=2, learning_rate=3e-3, batch_size=64, max_epochs=12, patience=3, max_failures=0)


def with_(config: TrustConfig, **changes: object) -> TrustConfig:
    return config.model_copy(update=changes)


def separable(num_rows: int = 2000, size: int = 16, seed: int = 0) -> Rows:
    """A quarter of the rows is right, where a curved function of the state is large."""
    rng = np.random.default_rng(seed)
    hidden_ND = (rng.standard_normal((num_rows, size)) * rng.uniform(0.1, 20, size) + 5).astype(np.float16)
    unit_ND = (hidden_ND - hidden_ND.mean(0)) / hidden_ND.astype(np.float32).std(0)
    value_N = unit_ND[:, 0] + unit_ND[:, 1] * unit_ND[:, 2]
    return Rows(hidden_ND, value_N > np.quantile(value_N, 0.75), rng.random(num_rows) < 0.2)


def logits(net: NeuralTrustNet, rows: Rows) -> np.ndarray:
    with torch.no_grad():
        return net(torch.from_numpy(rows.hidden_ND)).numpy()


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_class_weights_in_closed_form(strength: float) -> None:
    correct_N = np.array([True] * 2 + [False] * 8)
    wrong, right = class_weights(correct_N, strength)
    assert wrong == pytest.approx((10 / 16) ** strength) and right == pytest.approx((10 / 4) ** strength)
    if strength == 1.0:
        assert 8 * wrong == pytest.approx(2 * right)


def test_loss_is_the_weighted_cross_entropy() -> None:
    rng = np.random.default_rng(0)
    logit_N, correct_N = rng.standard_normal(20), rng.random(20) < 0.3
    p_N = 1 / (1 + np.exp(-logit_N))
    expected = np.where(correct_N, -3 * np.log(p_N), -0.7 * np.log(1 - p_N)).mean()
    loss = shard_loss(torch.tensor(logit_N), torch.tensor(correct_N).double(), (0.7, 3.0), batch_size=20, num_shards=1)
    assert loss.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("num_rows", [17, 2, 1])
def test_shards_give_the_gradient_of_the_whole_batch(num_rows: int) -> None:
    rows = Rows(*(array[:num_rows] for array in separable(size=8)))
    torch.manual_seed(0)
    net = NeuralTrustNet(Architecture.of(with_(SMALL, dropout=0.0, stochastic_depth=0.0), 8)).double()

    def gradient(num_shards: int) -> torch.Tensor:
        gradients = []
        for rank in range(num_shards):
            net.zero_grad()
            own = slice(rank, None, num_shards)
            correct_N = torch.from_numpy(rows.correct_N[own]).double()
            logit_N = net(torch.from_numpy(rows.hidden_ND[own]))
            shard_loss(logit_N, correct_N, (0.6, 2.0), batch_size=num_rows, num_shards=num_shards).backward()
            gradients.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
        return torch.stack(gradients).mean(0)

    for num_shards in (2, 3):
        torch.testing.assert_close(gradient(num_shards), gradient(1), rtol=1e-10, atol=1e-12)


def test_moments_are_those_of_the_fit_rows() -> None:
    rows = separable(num_rows=9000)
    rows.hidden_ND[:, 3] = 7
    fit_F = np.flatnonzero(~rows.validation_N)
    mean_D, scale_D = moments(rows.hidden_ND, fit_F)
    wide_ND = rows.hidden_ND[fit_F].astype(np.float64)
    np.testing.assert_allclose(mean_D, wide_ND.mean(0), rtol=1e-6)
    np.testing.assert_allclose(np.delete(scale_D, 3), np.delete(wide_ND.std(0), 3), rtol=1e-6)
    assert scale_D[3] == 1


def test_separable_rows_are_told_apart_and_the_best_weights_kept() -> None:
    rows = separable()
    net, record = fit_arrays(rows, SMALL, seed=0)
    held_out = separable(seed=0)
    auc = roc_auc_score(rows.correct_N[rows.validation_N], logits(net, held_out)[rows.validation_N])
    assert auc > 0.95
    assert auc == pytest.approx(max(record.validation_aucs), abs=1e-6)
    assert record.best_epoch == 1 + int(np.argmax(record.validation_aucs))
    assert record.losses[-1] < 0.7 * record.losses[0]
    assert (record.num_fit, record.num_validation) == (int((~rows.validation_N).sum()), int(rows.validation_N.sum()))
    assert not net.training and record.seconds > 0
    plain, _ = fit_arrays(rows, with_(SMALL, standardise=False, max_epochs=1), seed=0)
    assert "mean_D" not in plain.state_dict() and "mean_D" in net.state_dict()


def test_patience_stops_and_none_runs_all_epochs() -> None:
    rng = np.random.default_rng(0)
    noise = Rows(rng.standard_normal((400, 4)).astype(np.float16), rng.random(400) < 0.5, rng.random(400) < 0.3)
    config = with_(SMALL, max_epochs=40, patience=2)
    stopped = fit_arrays(noise, config, seed=0).record
    assert len(stopped.losses) == stopped.best_epoch + 2 < 40
    whole_net, whole = fit_arrays(noise, with_(config, max_epochs=6, patience=None), seed=0)
    assert len(whole.losses) == whole.best_epoch == 6
    last = roc_auc_score(noise.correct_N[noise.validation_N], logits(whole_net, noise)[noise.validation_N])
    assert last == pytest.approx(whole.validation_aucs[-1], abs=1e-6)


def test_a_seed_defines_the_fit() -> None:
    rows, config = separable(500), with_(SMALL, max_epochs=3)
    (first, record), (second, again), (other, _) = (fit_arrays(rows, config, seed=seed) for seed in (1, 1, 2))
    assert record.losses == again.losses and record.validation_aucs == again.validation_aucs
    assert np.array_equal(logits(first, rows), logits(second, rows))
    assert not np.array_equal(logits(first, rows), logits(other, rows))


def test_a_fit_that_was_cut_off_goes_on_as_it_would_have(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    class Dying(Shard):
        """Keeps a checkpoint an epoch in a directory; dies after the second of a first life."""

        def __init__(self, lives: int) -> None:
            self.lives = lives

        def keep(self, write: Callable[[Path], None]) -> None:
            write(tmp_path)
            if self.lives == 1 and len(json.loads((tmp_path / "fit.json").read_text())["losses"]) == 2:
                raise Killed

        def restore(self, read: Callable[[Path], None]) -> None:
            if (tmp_path / "fit.json").exists():
                read(tmp_path)

    rows, config = separable(500), with_(SMALL, max_epochs=5, patience=5)
    straight, record = fit_arrays(rows, config, seed=1)
    with pytest.raises(Killed):
        fit_arrays(rows, config, seed=1, shard=Dying(lives=1))
    resumed, again = fit_arrays(rows, config, seed=1, shard=Dying(lives=2))
    assert again.losses == record.losses and again.validation_aucs == record.validation_aucs
    assert np.array_equal(logits(resumed, rows), logits(straight, rows))
    finished, _ = fit_arrays(rows, config, seed=1, shard=Dying(lives=2))
    assert np.array_equal(logits(finished, rows), logits(straight, rows))


def test_a_fit_that_diverges_says_so() -> None:
    rows = separable(200)
    rows.hidden_ND[0] = np.inf
    with pytest.raises(RunFailedError, match="epoch 1: the loss is nan"):
        fit_arrays(rows, with_(SMALL, standardise=False), seed=0)


def tables(path: Path, rows: Rows, *, states: tuple[str, ...] = ("output_last",)) -> tuple[TableRef, TableRef]:
    """A labels table in shuffled order, two fragments, and its grades; one row in error, one without a state.

    Row 2 has no gold label, hence no grade.
    """
    order_N = np.random.default_rng(5).permutation(len(rows.correct_N))
    parts = np.array_split(rows.hidden_ND, len(states), axis=1)
    columns = {
        "row_id": pa.array(order_N),
        "error": pa.array(["poison: x" if i == 0 else None for i in order_N], pa.string()),
    }
    for state, part_ND in zip(states, parts, strict=True):
        values = [None if i <= 1 else part_ND[i] for i in order_N]
        columns[f"state_{state}"] = pa.array(values, pa.list_(pa.float16(), part_ND.shape[1]))
    lance.write_dataset(pa.table(columns), path / "labels.lance", max_rows_per_file=len(order_N) // 2 + 1)
    return store.latest(str(path / "labels.lance")), graded(path, "grades", rows)


def graded(path: Path, name: str, rows: Rows, num_rows: int | None = None) -> TableRef:
    ids_M = np.delete(np.arange(len(rows.correct_N)), [0, 2])[:num_rows]
    found = [{"row_id": int(i), "correct": bool(rows.correct_N[i]), "judged": False} for i in ids_M]
    return store.write(pa.Table.from_pylist(found, schema=schemas.GRADES), str(path / f"{name}.lance"))


def test_rows_are_read_by_id_whatever_their_order(tmp_path: Path) -> None:
    rows = separable(300)
    config = with_(SMALL, states=("prompt_last", "output_last"))
    labels, grades = tables(tmp_path, rows, states=config.states)
    read = read_rows(labels, grades, config, seed=3)
    np.testing.assert_array_equal(read.hidden_ND, rows.hidden_ND[3:])
    np.testing.assert_array_equal(read.correct_N, rows.correct_N[3:])
    np.testing.assert_array_equal(read.validation_N, hash_unit(np.arange(3, 300), 3) < config.validation_fraction)
    assert read.hidden_ND.dtype == np.float16


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
@pytest.mark.parametrize("right", [True, False])
def test_a_source_that_teaches_nothing_is_refused(fit: Callable[..., TrustRef], right: bool, tmp_path: Path) -> None:
    rows = separable(100)
    labels, grades = tables(tmp_path, rows._replace(correct_N=np.full(100, right)))
    with pytest.raises(DegenerateSourceError, match=r"trust: (\d+) of \d+ weak labels are right in the fit part"):
        fit(labels, grades, SMALL, seed=0, output=tmp_path / "trust")
    only_fit = rows._replace(correct_N=np.where(hash_unit(np.arange(100), 0) < 0.2, False, rows.correct_N))
    with pytest.raises(DegenerateSourceError, match=r"0 of \d+ weak labels are right in the validation part"):
        fit(labels, graded(tmp_path, "other", only_fit), SMALL, seed=0, output=tmp_path / "trust")
    with pytest.raises(DegenerateSourceError, match="0 of 0 weak labels"):
        fit(labels, graded(tmp_path, "none", rows, 0), SMALL, seed=0, output=tmp_path / "trust")
    assert not (tmp_path / "trust").exists()


def test_a_linear_probe_fits_what_is_linear_on_the_fit_rows_alone(tmp_path: Path) -> None:
    rows = separable(1500)
    linear = rows._replace(correct_N=rows.hidden_ND[:, 3] > np.quantile(rows.hidden_ND[:, 3], 0.7))
    labels, grades = tables(tmp_path, linear)
    ref = fit_probe(labels, grades, SMALL, seed=3, output=tmp_path / "probe")
    probe = load_fitted("linear_probe", ref)
    read = read_rows(labels, grades, SMALL, seed=3)
    batch = pa.record_batch({"state_output_last": pa.array(list(read.hidden_ND), pa.list_(pa.float16(), 16))})
    raw_N = probe.raw_score(batch)
    assert roc_auc_score(read.correct_N[read.validation_N], raw_N[read.validation_N]) > 0.98
    assert probe.fit["num_fit"] == int((~read.validation_N).sum()) and probe.fit["grades"] == grades.to_json()
    # Whatever the validation rows say, the probe is the same.
    other = linear._replace(correct_N=linear.correct_N ^ (hash_unit(np.arange(1500), 3) < SMALL.validation_fraction))
    again = fit_probe(labels, graded(tmp_path, "other", other), SMALL, seed=3, output=tmp_path / "again")
    np.testing.assert_array_equal(load_fitted("linear_probe", again).raw_score(batch), raw_N)


def test_two_ray_workers_fit_what_one_process_fits(local_ray: object, tmp_path: Path) -> None:
    labels, grades = tables(tmp_path, separable(1500))
    config = with_(SMALL, dropout=0.0, stochastic_depth=0.0, max_epochs=3, patience=None, num_workers=2)
    read = read_rows(labels, grades, config, seed=3)
    expected, record = fit_arrays(read, config, seed=3)
    ref = fit_trust(labels, grades, config, seed=3, output=tmp_path / "trust")
    assert ref.uri == str(tmp_path / "trust") and not list(tmp_path.glob("*.ray"))
    trust = NeuralTrust.load(ref)
    np.testing.assert_allclose(logits(trust.net, read), logits(expected, read), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(trust.fit["losses"], record.losses, rtol=1e-4)
    assert trust.fit["num_fit"] + trust.fit["num_validation"] == 1497 and trust.fit["best_epoch"] == 3
    assert trust.fit["labels"] == labels.to_json() and trust.fit["grades"] == grades.to_json()
    assert trust.fit["seed"] == 3


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_the_fit_goes_on(
    local_ray: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(task: dict[str, Any]) -> None:
        """Keeps a checkpoint an epoch; kills its own process after the second, once."""
        import train.trust as fitting

        keep, epochs = fitting._RayShard.keep, []

        def dying_keep(shard: Shard, write: Callable[[Path], None]) -> None:
            keep(shard, write)
            epochs.append(1)
            mark = Path(task["output"] + ".died")
            if len(epochs) == 2 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            mark.with_suffix(".epochs").write_text(str(len(epochs)))

        fitting.CHECKPOINT_SECONDS, fitting._RayShard.keep = -1.0, dying_keep
        fitting._train(task)

    monkeypatch.setattr("train.trust._train", dying)
    labels, grades = tables(tmp_path, separable(500))
    config = with_(SMALL, max_epochs=5, patience=None, max_failures=1)
    straight = fit_arrays(read_rows(labels, grades, config, seed=3), config, seed=3).record
    ref = fit_trust(labels, grades, config, seed=3, output=tmp_path / "trust")
    # The last report of the dead worker may not have been taken in: one epoch again, not all of them.
    assert (tmp_path / "trust.died").exists() and (tmp_path / "trust.epochs").read_text() in ("3", "4")
    np.testing.assert_allclose(NeuralTrust.load(ref).fit["losses"], straight.losses, rtol=1e-5)


@pytest.mark.slow
def test_a_fit_that_fails_names_the_cause(local_ray: object, tmp_path: Path) -> None:
    rows = separable(300)
    rows.hidden_ND[5] = np.inf
    labels, grades = tables(tmp_path, rows)
    with pytest.raises(
        RunFailedError, match=r"trust-\w+: training failed: .*the loss is nan; lower trust\.learning_rate"
    ):
        fit_trust(labels, grades, SMALL, seed=0, output=tmp_path / "trust")
