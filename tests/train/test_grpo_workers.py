"""GRPO in Ray's workers: their number changes nothing, and neither does the death of one."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from curation.config import DomainConfig
from curation.config.grpo import GrpoConfig
from curation.models import create, load_model
from curation.refs import ModelRef
from curation.tables import io
from train import student
from train.grpo import train_grpo
from train.models import TrainingResult

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

    def dying(task: dict[str, Any]) -> None:
        import ray.train

        from train import grpo_trainer

        reward, calls = grpo_trainer.Game.reward, []

        def last(game: Any, **kwargs: Any) -> Any:
            calls.append(1)
            if len(calls) == 12 and ray.train.get_context().get_world_rank() == 0 and not Path(mark).exists():
                Path(mark).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return reward(game, **kwargs)

        grpo_trainer.Game.reward = last
        original(task)

    original = student._train
    return dying


@pytest.mark.usefixtures("local_ray")
def test_neither_the_number_of_workers_nor_a_kill_changes_the_student(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows(tmp_path)
    one = rows.trained(tmp_path / "one")
    assert len(one.record.losses) == 20 and one.record.curves["reward"][-1] > one.record.curves["reward"][0]
    monkeypatch.setattr(student, "_train", killed_once(str(tmp_path / "died")))
    two = rows.trained(tmp_path / "two", num_workers=2)
    assert (tmp_path / "died").exists()
    np.testing.assert_allclose(two.record.curves["reward"], one.record.curves["reward"], atol=1e-6)
    np.testing.assert_allclose(two.record.losses, one.record.losses, atol=1e-5)
    wanted, found = weights(one.model), weights(two.model)
    assert all(torch.allclose(found[name], wanted[name], atol=1e-4) for name in wanted)
