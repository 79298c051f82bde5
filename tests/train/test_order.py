"""The order of rows: each epoch has every row once, whatever number of workers divides it."""

import numpy as np
import pytest

from train.stream import GROUPED_BATCHES, Division, Order

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("num_rows", [1, 7, 8, 61, 64])
@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_workers_divide_each_step_and_together_read_every_row_once(num_rows: int, num_workers: int) -> None:
    order = Order(lengths_N=RNG.integers(1, 100, num_rows).astype(np.int32), global_batch_size=8, seed=3)
    workers = [Division(order, 2, rank, num_workers) for rank in range(num_workers)]
    per_step, per_epoch = workers[0].num_per_step, workers[0].num_per_epoch
    assert order.num_steps == -(-num_rows // 8) == -(-per_epoch // per_step)
    for worker in workers:
        worker.set_epoch(1)
    batches, seen = [list(worker) for worker in workers], []
    for step in range(order.num_steps):
        numbers = range(step * per_step, min((step + 1) * per_step, per_epoch))
        parts = [of_worker[number] for number in numbers for of_worker in batches]
        assert all(len(part) <= 2 for part in parts)
        assert [row for part in parts for row in part] == order.step(1, step).tolist()
        seen += order.step(1, step).tolist()
    assert sorted(seen) == list(range(num_rows))


def test_rows_of_a_step_have_similar_lengths_and_steps_come_in_random_order() -> None:
    lengths_N = RNG.permutation(3_203).astype(np.int32)
    order = Order(lengths_N=lengths_N, global_batch_size=32, seed=0)
    assert len(lengths_N) > GROUPED_BATCHES * 32  # more than one group
    steps = [lengths_N[order.step(0, number)] for number in range(order.num_steps)]
    assert all((np.diff(step) < 0).all() for step in steps) and len(steps[-1]) == 3
    spreads = [np.ptp(step) for step in steps[:-1]]
    assert np.mean(spreads) < 3_203 / 25  # of a random batch it is near the whole range
    means = np.array([step.mean() for step in steps[:-1]])
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3


def test_order_follows_from_seed_and_epoch_alone() -> None:
    lengths_N = RNG.integers(1, 100, 100).astype(np.int32)
    first, same, other = (Order(lengths_N=lengths_N, global_batch_size=8, seed=seed) for seed in (0, 0, 1))
    assert same.step(1, 2).tolist() != same.step(0, 2).tolist()
    assert first.step(0, 2).tolist() == same.step(0, 2).tolist() != other.step(0, 2).tolist()
