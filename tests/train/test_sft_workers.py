"""Fine-tuning by several workers: equal to a loop written out by hand; killed, it goes on as if it were not."""

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file
from tiny_shape import TINY
from worker_group import train, train_until_killed

from curation.config import SftConfig
from curation.models import create, load_model, load_tokenizer
from curation.refs import ModelRef, TableRef
from train.models import read_saved
from train.stream import Order
from train.tokens import Pair, tokenize

pytestmark = pytest.mark.long

WORDS = tuple("abcdefgh")
SHAPE = TINY
RECIPE: dict[str, Any] = {
    "preset": "scratch",
    "global_batch_size": 8,
    "micro_batch_size": 2,
    "learning_rate": 3e-3,
    "weight_decay": 0.1,
    "epochs": 3,
}
SEED = 5
NUM_ROWS = 45  # five steps of eight rows and one of five an epoch


class Case:
    """A base, rows and where trainings of it go."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.base = create(directory / "base", family="qwen3", shape=SHAPE, words=WORDS, pattern="[a-h]", seed=0)
        rng = np.random.default_rng(0)
        prompts = ["".join(rng.choice(list(WORDS), size=rng.integers(2, 12))) for _ in range(NUM_ROWS)]
        self.pairs = [Pair(prompt, prompt[-1:] * (1 + n % 3)) for n, prompt in enumerate(prompts)]
        order = rng.permutation(NUM_ROWS)
        data = pa.table(
            {
                "row_id": pa.array(order, pa.int64()),
                "prompt": [self.pairs[i].prompt for i in order],
                "completion": [self.pairs[i].completion for i in order],
            }
        )
        uri = str(directory / "rows.lance")
        self.rows = TableRef(uri=uri, version=lance.write_dataset(data, uri).version)

    def task(self, output: str, **changes: Any) -> dict[str, Any]:
        return {
            "base": self.base.to_json(),
            "rows": self.rows.to_json(),
            "config": RECIPE | changes,
            "seed": SEED,
            "output": str(self.directory / output),
        }

    def trained(self, output: str, num_workers: int = 1, **changes: Any) -> "Case":
        task = self.task(output, num_workers=num_workers, **changes)
        train(task, num_workers, self.directory / f"{output}.work")
        return self

    def weights(self, output: str) -> dict[str, torch.Tensor]:
        return load_model(ModelRef(base=str(self.directory / output))).state_dict()

    def record(self, output: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / output / "training.json").read_text())
        return found


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    case = Case(tmp_path_factory.mktemp("sft"))
    return case.trained("one").trained("two", num_workers=2)


def by_hand(case: Case) -> tuple[dict[str, torch.Tensor], dict[str, list[float]]]:
    """Every row alone, the sum of its losses; Adam with decoupled decay, cosine and clipping, in formulas."""
    config = SftConfig.model_validate(RECIPE)
    rows = tokenize(load_tokenizer(case.base), case.pairs, max_length=256)
    lengths_N = np.array([len(row["input_ids"]) for row in rows], np.int32)
    order = Order(lengths_N=lengths_N, global_batch_size=config.global_batch_size, seed=SEED)
    model = load_model(case.base).train()
    weights = dict(model.named_parameters())
    first, second = ({name: torch.zeros_like(weight) for name, weight in weights.items()} for _ in range(2))
    (beta1, beta2), num_steps, step = config.adam_betas, order.num_steps * 3, 0
    warmup, curves = math.ceil(config.warmup_ratio * num_steps), {"losses": [], "learning_rate": [], "grad_norm": []}
    for epoch in range(3):
        for number in range(order.num_steps):
            total, num_tokens = torch.zeros(()), 0
            for index in order.step(epoch, number):
                ids, num_prompt = torch.tensor(rows[index]["input_ids"]), rows[index]["num_prompt"]
                logprobs = model(ids[None]).logits[0].log_softmax(-1)
                logprob = logprobs[torch.arange(num_prompt - 1, len(ids) - 1), ids[num_prompt:]].sum()
                total = total - logprob
                num_tokens += len(ids) - num_prompt
            loss = total / num_tokens
            model.zero_grad()
            loss.backward()
            grads = {name: weight.grad for name, weight in weights.items()}
            norm = math.sqrt(sum(float((grad.double() ** 2).sum()) for grad in grads.values() if grad is not None))
            rate = config.learning_rate * (
                (step + 1) / (warmup + 1)
                if step < warmup
                else 0.5 * (1 + math.cos(math.pi * (step - warmup) / (num_steps - warmup)))
            )
            step += 1
            with torch.no_grad():
                for name, weight in weights.items():
                    grad = grads[name] * min(1.0, config.max_grad_norm / (norm + 1e-6))
                    first[name] = beta1 * first[name] + (1 - beta1) * grad
                    second[name] = beta2 * second[name] + (1 - beta2) * grad**2
                    if weight.ndim > 1:  # no decay of norms
                        weight -= rate * config.weight_decay * weight
                    mean, square = first[name] / (1 - beta1**step), second[name] / (1 - beta2**step)
                    weight -= rate * mean / (square.sqrt() + 1e-8)
            for name, value in {"losses": loss.item(), "learning_rate": rate, "grad_norm": norm}.items():
                curves[name].append(value)
    return model.state_dict(), curves


def assert_close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], atol: float = 1e-5) -> None:
    assert one.keys() == other.keys()
    worst = max((one[key] - other[key]).abs().max().item() for key in one)
    assert worst <= atol, worst


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("output", ["one", "two"])
def test_losses_and_weights_equal_those_of_a_loop_written_by_hand(case: Case, output: str) -> None:
    weights, curves = by_hand(case)
    record = case.record(output)
    assert record["curves"]["step"] == list(range(1, 19))
    np.testing.assert_allclose(record["losses"], curves["losses"], atol=1e-5, rtol=0)
    np.testing.assert_allclose(record["curves"]["learning_rate"], curves["learning_rate"], atol=1e-9)
    np.testing.assert_allclose(record["curves"]["grad_norm"], curves["grad_norm"], atol=1e-4)
    assert max(curves["grad_norm"]) > 1  # some were clipped
    assert_close(case.weights(output), weights)


def test_one_and_two_workers_train_the_same_student(case: Case) -> None:
    np.testing.assert_allclose(case.record("one")["losses"], case.record("two")["losses"], atol=1e-5, rtol=0)
    assert_close(case.weights("one"), case.weights("two"))


def test_a_killed_worker_alone_goes_on_bit_by_bit(case: Case) -> None:
    task = case.task("killed")
    train_until_killed(task, 1, case.directory / "killed.work", step=12)
    assert [path.name for path in case.directory.glob("killed.partial/checkpoints/*")] == ["checkpoint-10"]
    case.trained("killed")
    assert_equal(case.weights("killed"), case.weights("one"))
    assert case.record("killed")["losses"] == case.record("one")["losses"]
    assert read_saved(case.base, None, case.directory / "killed").record.num_rows == NUM_ROWS


@pytest.mark.slow
def test_two_workers_one_killed_go_on_as_two_and_as_one(case: Case) -> None:
    for output, num_workers in (("again", 2), ("alone", 1)):
        train_until_killed(case.task(output, num_workers=2), 2, case.directory / f"{output}.work", step=12)
        case.trained(output, num_workers=num_workers)
        assert_close(case.weights(output), case.weights("two"))
        np.testing.assert_allclose(case.record(output)["losses"], case.record("two")["losses"], atol=1e-5, rtol=0)


def test_sharded_workers_train_the_same_student_and_resume_from_sharded_checkpoints(case: Case) -> None:
    task = case.task("sharded", num_workers=2, sharding="fsdp")
    train_until_killed(task, 2, case.directory / "sharded.work", step=12)
    (kept,) = case.directory.glob("sharded.partial/checkpoints/*")
    assert [*kept.glob("pytorch_model_fsdp_0/__1_0.distcp")] and not [*kept.glob("model.safetensors")]
    case.trained("sharded", num_workers=2, sharding="fsdp")
    np.testing.assert_allclose(case.record("sharded")["losses"], case.record("two")["losses"], atol=1e-5, rtol=0)
    assert_close(case.weights("sharded"), case.weights("two"))


LORA: dict[str, Any] = {"lora": {"rank": 4}, "gradient_checkpointing": True}


@pytest.mark.slow
def test_sharded_adapters_equal_whole_ones(case: Case) -> None:
    case.trained("adapter", **LORA).trained("sharded-adapter", num_workers=2, sharding="fsdp", **LORA)
    whole, sharded = (
        load_file(case.directory / name / "adapter_model.safetensors") for name in ("adapter", "sharded-adapter")
    )
    assert len({name.split(".")[-3] for name in whole}) == 7 and len(whole) == 28
    assert max(weight.abs().max().item() for name, weight in whole.items() if "lora_B" in name) > 1e-3
    assert_close(whole, sharded)
    np.testing.assert_allclose(
        case.record("adapter")["losses"], case.record("sharded-adapter")["losses"], atol=1e-5, rtol=0
    )


@pytest.mark.slow
def test_adapters_on_a_base_in_bfloat16_are_sharded_too(case: Case) -> None:
    half = LORA | {"compute_dtype": "bfloat16"}
    case.trained("half-adapter", **half).trained("half-sharded", num_workers=2, sharding="fsdp", **half)
    whole, sharded = (
        load_file(case.directory / name / "adapter_model.safetensors") for name in ("half-adapter", "half-sharded")
    )
    assert {weight.dtype for weight in (*whole.values(), *sharded.values())} == {torch.float32}
    losses = np.array([case.record(name)["losses"] for name in ("half-adapter", "half-sharded")])
    assert np.abs(losses[0] - losses[1]).max() < 2e-3
    assert max(weight.abs().max().item() for name, weight in sharded.items() if "lora_B" in name) > 1e-3


def test_bfloat16_computes_and_float32_weights_are_trained(case: Case) -> None:
    case.trained("half", compute_dtype="bfloat16")
    assert {weight.dtype for weight in case.weights("half").values()} == {torch.float32}
    losses = np.array([case.record(name)["losses"] for name in ("half", "one")])
    assert 1e-5 < np.abs(losses[0] - losses[1]).max() < 0.05


@pytest.mark.slow
def test_a_killed_driver_run_again_goes_on_bit_by_bit(case: Case) -> None:
    program, file = Path(__file__).with_name("killed_driver.py"), case.directory / "driver.json"
    task = case.task("driven")
    file.write_text(json.dumps(task | {"kill_at": 12}))
    assert subprocess.run([sys.executable, program, file], timeout=300).returncode == -signal.SIGKILL
    time.sleep(5)  # until Ray has ended what the driver had started
    assert [path.name for path in case.directory.glob("driven.partial/checkpoints/*")] == ["checkpoint-10"]
    file.write_text(json.dumps(task))
    subprocess.run([sys.executable, program, file], timeout=300, check=True)
    assert_equal(case.weights("driven"), case.weights("one"))
    assert case.record("driven")["losses"] == case.record("one")["losses"]
