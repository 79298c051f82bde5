"""Checkpoints: by time, sealed when complete, one kept; a full disk and a loss that is not finite."""

import errno
import json
import pickle
import time
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from transformers import TrainerControl, TrainerState, TrainingArguments

import train.callbacks
import train.sft
from benchmarks.hostile_case import RAN
from benchmarks.hostile_models import Payload
from curation.config import SftConfig
from curation.errors import CommitError, TrainingError
from curation.models import create, load_model
from curation.refs import ModelRef, TableRef
from curation.storage.conditional import make_register
from curation.storage.lease import Lease
from train import launch
from train.callbacks import SEAL, Checkpointing, Partial
from train.sft import compute_completion_loss, fine_tune, train_sft

pytestmark = pytest.mark.long

WORDS = tuple("abcdefgh")
SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
SHAPE |= {"intermediate_size": 32, "max_position_embeddings": 64}
RECIPE = SftConfig(preset="scratch", global_batch_size=8, micro_batch_size=4, learning_rate=1e-2, epochs=2)  # 10 steps


class Killed(Exception):
    pass


class Case:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.base = create(directory / "base", family="qwen3", shape=SHAPE, words=WORDS, pattern="[a-h]", seed=0)
        letters = np.random.default_rng(0).integers(0, 8, 40)
        data = pa.table(
            {
                "row_id": pa.array(range(1000, 1040), pa.int64()),
                "prompt": [WORDS[letter] * 3 for letter in letters],
                "completion": [WORDS[letter] for letter in letters],
            }
        )
        uri = str(directory / "rows.lance")
        self.rows = TableRef(uri=uri, version=lance.write_dataset(data, uri).version)

    def train(self, output: str, config: SftConfig = RECIPE) -> dict[str, torch.Tensor]:
        fine_tune(self.base, self.rows, config, seed=1, output=self.directory / output)
        return load_model(ModelRef(base=str(self.directory / output))).state_dict()

    def dies(self, output: str, calls: int, patch: pytest.MonkeyPatch, result: Any = Killed) -> None:
        """Train until the loss has been computed ``calls`` times; then it raises, or returns what is given."""
        counted: list[int] = []

        def dying(*args: Any) -> torch.Tensor:
            counted.append(1)
            if len(counted) > calls and result is Killed:
                raise Killed
            return compute_completion_loss(*args) * (result if len(counted) > calls else 1)

        patch.setattr(train.sft, "compute_completion_loss", dying)
        try:
            self.train(output)
        finally:
            patch.undo()

    def checkpoints(self, output: str) -> list[str]:
        return sorted(path.name for path in (self.directory / f"{output}.partial" / "checkpoints").iterdir())


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[key], other[key]) for key in one)


def checkpoint(partial: Partial, step: int, content: str = "weights") -> Path:
    path = partial.checkpoints / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_text(content)
    return path


def test_only_sealed_checkpoints_with_all_their_bytes_are_good(tmp_path: Path) -> None:
    partial = Partial(tmp_path / "model", "stamp")
    partial.prepare()
    assert partial.last_checkpoint is None
    first, second, half = (checkpoint(partial, step) for step in (9, 10, 11))
    partial.seal(first)
    partial.seal(second)
    assert partial.last_checkpoint == str(second)
    (second / "model.safetensors").write_text("weigh")
    assert partial.last_checkpoint == str(first)
    (first / SEAL).write_text('{"model.safe')
    assert partial.last_checkpoint is None
    partial.seal(second)
    Partial(tmp_path / "model", "stamp").prepare()
    assert [*partial.checkpoints.iterdir()] == [second] and not half.exists()
    Partial(tmp_path / "model", "another").prepare()
    assert partial.last_checkpoint is None


def test_a_truncated_checkpoint_is_passed_over_and_the_result_is_the_same(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = case.train("straight")
    with pytest.raises(Killed):
        case.dies("killed", 14, monkeypatch)  # of 20 micro-batches, in the 8th step
    assert case.checkpoints("killed") == ["checkpoint-6"]
    optimizer = case.directory / "killed.partial" / "checkpoints" / "checkpoint-6" / "optimizer.pt"
    optimizer.write_bytes(optimizer.read_bytes()[:-100])
    assert equal(case.train("killed"), straight)
    assert not (case.directory / "killed.partial").exists()


@pytest.mark.parametrize("hidden", [False, True])
def test_a_full_disk_names_the_step_and_the_last_good_checkpoint_stays(
    case: Case, monkeypatch: pytest.MonkeyPatch, hidden: bool
) -> None:
    straight = case.train("straight")
    saved: list[int] = []
    save = torch.save

    def full(content: Any, path: Any, **settings: Any) -> None:
        if str(path).endswith("optimizer.pt"):
            saved.append(1)
            if len(saved) == 2:
                Path(path).write_bytes(b"half")
                problem = OSError(errno.ENOSPC, "No space left on device", str(path))
                raise (
                    RuntimeError("[enforce fail at inline_container.cc] PytorchStreamWriter failed")
                    if hidden
                    else problem
                )
        save(content, path, **settings)

    with (
        monkeypatch.context() as patch,
        pytest.raises(OSError, match="the checkpoint of step 6 was not saved") as raised,
    ):
        patch.setattr(transformers.trainer.torch, "save", full)
        case.train("full")
    assert ("No space left on device" in str(raised.value)) != hidden and "make room there" in str(raised.value)
    assert case.checkpoints("full") == ["checkpoint-3"]
    partial = Partial(case.directory / "full", "")
    assert partial.last_checkpoint == str(partial.checkpoints / "checkpoint-3")
    assert equal(case.train("full"), straight)


def test_a_step_takes_the_last_reading_of_the_lease_and_a_save_reads_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "LOOK_SECONDS", 0.05)
    lease = Lease(tmp_path)
    lease.acquire()
    with launch.claiming(lease.claim):
        assert launch.find_claim_error(read=False) is None
        register = make_register(tmp_path / "lease")
        found = register.read()
        assert found is not None
        taken = json.loads(found.text) | {"owner": "another", "host": "node-7", "expires": time.time() + 600}
        assert register.put_if_match(json.dumps(taken), found.token)
        time.sleep(1)  # it is read in a thread
        assert "node-7" in str(launch.find_claim_error(read=False))
        launch._loss = None
        assert "node-7" in str(launch.find_claim_error(read=True))
    with pytest.raises(CommitError, match="node-7"), launch.claiming(lease.claim):
        pass
    lease.release()


def test_checkpoints_come_by_time_too_and_one_is_kept(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[list[str]] = []

    class Watching(Checkpointing):
        def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
            super().on_save(args, state, control, **kwargs)
            steps.append(case.checkpoints("out"))

    monkeypatch.setattr(train.sft, "Checkpointing", Watching)
    case.train("out")
    assert steps == [[f"checkpoint-{step}"] for step in (3, 6, 9, 10)]
    steps.clear()
    monkeypatch.setattr(train.callbacks, "CHECKPOINT_SECONDS", 0.0)
    case.train("out")
    assert steps == [[f"checkpoint-{step}"] for step in range(1, 11)]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_keeps_the_checkpoint(
    case: Case, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    with pytest.raises(TrainingError, match="step 8: the loss or a gradient is not finite"):
        case.dies("broken", 14, monkeypatch, result=value)
    assert case.checkpoints("broken") == ["checkpoint-6"]
    state = json.loads((case.directory / "broken.partial/checkpoints/checkpoint-6/trainer_state.json").read_text())
    assert state["global_step"] == 6


@pytest.mark.usefixtures("local_ray")
def test_ray_does_not_try_again_where_every_try_would_fail(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RECIPE.model_copy(update={"learning_rate": 1e38, "max_grad_norm": 1e38})
    start = time.monotonic()
    with pytest.raises(TrainingError, match=r"student x: step \d: the loss or a gradient is not finite"):
        train_sft(case.base, case.rows, config, seed=1, output=case.directory / "student", name="x")
    assert time.monotonic() - start < 120 and not (case.directory / "student.failure").exists()


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"])
@pytest.mark.parametrize("write", [torch.save, lambda what, path: path.write_bytes(pickle.dumps(what))])
def test_a_pickle_in_place_of_a_checkpoints_file_does_not_run(
    case: Case, monkeypatch: pytest.MonkeyPatch, name: str, write: Any
) -> None:
    with pytest.raises(Killed):
        case.dies("killed", 14, monkeypatch)
    partial = Partial(case.directory / "killed", "")
    checkpoint = partial.checkpoints / "checkpoint-6"
    write(Payload(case.directory), checkpoint / name)
    partial.seal(checkpoint)
    if name == "training_args.bin":  # nobody reads it
        case.train("killed")
    else:
        with pytest.raises(TrainingError, match=r"checkpoint-6: holds a file that no training wrote.*give the same"):
            case.train("killed")
    assert not (case.directory / RAN).exists()
