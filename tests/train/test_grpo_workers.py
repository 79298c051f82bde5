"""GRPO in Ray's workers: their number changes nothing, and neither does the death of one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from curation.config import DomainConfig
from curation.config.models import GrpoConfig
from curation.errors import RunFailedError
from curation.models import create, load_model
from curation.refs import ModelRef
from curation.tables import io
from train import trainer
from train.grpo import train_grpo
from train.models import TrainingResult, read_saved

SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
SHAPE |= {"head_dim": 8, "intermediate_size": 32, "max_position_embeddings": 128}
CONFIG = GrpoConfig(
    preset="scratch",
    global_batch_size=4,
    group_size=4,
    micro_batch_size=4,
    epochs=10,
    learning_rate=1e-2,
    warmup_steps=0,
    kl=0.01,
    rollouts={"max_tokens": 3},
)


class Rows:
    """Questions of two options, of which the first is right; a model that knows only the letters."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.base = create(directory / "base", family="qwen3", shape=SHAPE, words=("A", "B"), pattern="[AB]", seed=0)
        questions = [
            {"row_id": n, "question": "AB"[n % 2] * (1 + n), "choices": ["yes", "no"], "keys": ["A", "B"]}
            for n in range(8)
        ]
        self.examples = io.write(pa.Table.from_pylist(questions), str(directory / "examples.lance"))
        rows = [{"row_id": row["row_id"], "prompt": row["question"], "label": "A"} for row in questions]
        self.rows = io.write(pa.Table.from_pylist(rows), str(directory / "rows.lance"))

    def trained(self, output: Path, **changed: Any) -> TrainingResult:
        return train_grpo(
            self.base,
            self.rows,
            CONFIG.model_copy(update=changed),
            seed=3,
            output=output,
            name=output.name,
            domain=DomainConfig(name="mcqa"),
            examples=self.examples,
        )


def weights(model: ModelRef) -> dict[str, torch.Tensor]:
    return dict(load_model(model).state_dict())


def killed_once(mark: str) -> Any:
    """A worker's function, of which the first worker kills itself in its twelfth step, once."""

    def dying(task: dict[str, Any], notes: Any) -> None:
        import ray.train

        from train import grpo

        reward, calls = grpo.Game.reward, []

        def last(game: Any, **kwargs: Any) -> Any:
            calls.append(1)
            if len(calls) == 12 and ray.train.get_context().get_world_rank() == 0 and not Path(mark).exists():
                Path(mark).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return reward(game, **kwargs)

        grpo.Game.reward = last
        original(task, notes)

    original = trainer._train
    return dying


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return Rows(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def one(local_ray: Any, rows: Rows) -> TrainingResult:
    """By one worker, undisturbed."""
    return rows.trained(rows.directory / "one")


@pytest.mark.slow
def test_two_workers_of_which_one_dies_go_on_as_one(
    one: TrainingResult, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers draw and learn what one does, and a checkpoint of two is one for any number."""
    assert len(one.record.losses) == 20 and one.record.curves["reward"][-1] > one.record.curves["reward"][0]
    output = rows.directory / "two"
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "_train", killed_once(str(rows.directory / "died")))
        with pytest.raises(RunFailedError, match="training failed"):
            rows.trained(output, num_workers=2, max_failures=0)
    assert (rows.directory / "died").exists()
    (checkpoint,) = output.with_name("two.partial").glob("checkpoints/checkpoint-*")
    assert checkpoint.name == "checkpoint-10"
    two = rows.trained(output)
    np.testing.assert_allclose(two.record.curves["reward"], one.record.curves["reward"], atol=1e-6)
    np.testing.assert_allclose(two.record.losses, one.record.losses, atol=1e-5)
    wanted, found = weights(one.model), weights(two.model)
    assert all(torch.allclose(found[name], wanted[name], atol=1e-4) for name in wanted)


@pytest.mark.slow
def test_a_killed_driver_run_again_goes_on_bit_by_bit(one: TrainingResult, rows: Rows) -> None:
    program, file = Path(__file__).with_name("killed_driver.py"), rows.directory / "driver.json"
    task = {
        "method": "grpo",
        "base": rows.base.to_json(),
        "rows": rows.rows.to_json(),
        "examples": rows.examples.to_json(),
        "domain": "mcqa",
        "config": CONFIG.model_dump(mode="json"),
        "seed": 3,
        "output": str(rows.directory / "driven"),
    }
    file.write_text(json.dumps(task | {"kill_at": 12}))
    assert subprocess.run([sys.executable, program, file], timeout=300).returncode == -signal.SIGKILL
    time.sleep(5)  # until Ray has ended what the driver had started
    assert [path.name for path in rows.directory.glob("driven.partial/checkpoints/checkpoint-*")] == ["checkpoint-10"]
    file.write_text(json.dumps(task))
    subprocess.run([sys.executable, program, file], timeout=300, check=True)
    driven = read_saved(rows.base, None, rows.directory / "driven")
    assert driven.record.losses == one.record.losses and driven.record.curves == one.record.curves
    wanted, found = weights(one.model), weights(driven.model)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
