"""The look at a fine-tuning's first step: numbers against scipy's, and trainings that it stops or lets go on."""

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy.special import log_softmax
from tiny_shape import TINY

from curation.config import SftConfig
from curation.errors import TrainingError
from curation.models import create, load_model, load_tokenizer
from curation.refs import ModelRef, TableRef
from train import trainer
from train.sft import IGNORED, fine_tune
from train.trainer import FirstStep

pytestmark = pytest.mark.long

WORDS = tuple("abcdefgh")
SHAPE = TINY | {"tie_word_embeddings": False}
RECIPE: dict[str, Any] = {"preset": "scratch", "global_batch_size": 16, "micro_batch_size": 8, "learning_rate": 1e-2}


def rows(path: Path, completions: str) -> TableRef:
    """64 rows of all letters but the first, whose answer repeats the letter, or names another."""
    prompts = [WORDS[1 + number % 7] for number in range(64)]
    answers = [completions[WORDS.index(prompt)] for prompt in prompts]
    data = pa.table({"row_id": pa.array(range(64), pa.int64()), "prompt": prompts, "completion": answers})
    return TableRef(uri=str(path), version=lance.write_dataset(data, path, mode="overwrite").version)


@pytest.fixture(scope="module")
def sure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base that repeats a letter and ends, and is sure of it: its logits are multiplied by 8."""
    folder = tmp_path_factory.mktemp("first step")
    base = create(folder / "base", family="qwen3", shape=SHAPE, words=WORDS, pattern="[a-h]", seed=0)
    recipe = SftConfig(**RECIPE, epochs=30)
    fine_tune(base, rows(folder / "repeat.lance", "abcdefgh"), recipe, seed=0, output=folder / "sure")
    model = load_model(ModelRef(base=str(folder / "sure")))
    with torch.no_grad():
        model.get_output_embeddings().weight *= 8
    model.save_pretrained(folder / "sure")
    return folder / "sure"


def trained(base: Path, output: Path, completions: str = "abcdefgh", **changes: Any) -> None:
    table = rows(output.with_suffix(".lance"), completions)
    recipe = SftConfig(**(RECIPE | {"epochs": 1} | changes))
    fine_tune(ModelRef(base=str(base)), table, recipe, seed=0, output=output)


def other_end(base: Path) -> None:
    path = base / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token": "a"}))


def test_a_base_that_knows_its_rows_is_trained(sure: Path, tmp_path: Path) -> None:
    trained(sure, tmp_path / "student")
    assert (tmp_path / "student" / "training.json").exists()


def test_an_end_token_that_the_base_never_writes_stops_the_training(sure: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(sure, base)
    end = load_tokenizer(ModelRef(base=str(base))).eos_token
    other_end(base)
    with pytest.raises(TrainingError) as stopped:
        trained(base, tmp_path / "student")
    said = str(stopped.value)
    assert said.startswith("student: the tokenizer ends a completion with 'a', which the base does not write: its ")
    assert f"the likeliest token there is {end!r} (-" in said and "set student.check_first_step: false" in said
    assert float(said.split("first rows is ")[1].split(" nats")[0]) < -20
    trained(base, tmp_path / "student", check_first_step=False)


def test_a_loss_above_a_uniform_draw_stops_the_training_of_a_large_vocabulary(
    sure: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(sure, tmp_path / "small", "bhbcdefg")
    monkeypatch.setattr(trainer, "FEWEST_WORDS", 8)
    stops = r"the first loss is \d+\.\d nats a token, above the 2\.\d of a uniform draw"
    with pytest.raises(TrainingError, match=stops):
        trained(sure, tmp_path / "student", "bhbcdefg")


def test_an_untrained_base_may_begin_above_a_uniform_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "FEWEST_WORDS", 8)
    create(tmp_path / "base", family="qwen3", shape=SHAPE, words=WORDS, pattern="[a-h]", seed=0)
    trained(tmp_path / "base", tmp_path / "student")


def test_sums_equal_those_of_scipy_over_all_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    tokenizer: Any = SimpleNamespace(eos_token_id=3, eos_token="</s>", convert_ids_to_tokens=lambda ids: ["x"])
    step = FirstStep("student", tokenizer, IGNORED)
    loss, entropy, end, labels = 0.0, 0.0, 0.0, 0
    for width in (4, 6):
        logits_BTV = rng.normal(size=(2, width + 2, 12)) * 3
        labels_BK = np.where(rng.random((2, width)) < 0.3, IGNORED, rng.integers(0, 3, (2, width)))
        labels_BK[:, -1] = 3
        step.add(torch.tensor(logits_BTV), torch.tensor(labels_BK))
        logprobs = log_softmax(logits_BTV[:, -width:-1], axis=-1)
        for row, place in zip(*np.nonzero(labels_BK[:, 1:] != IGNORED), strict=True):
            at, label = logprobs[row, place], labels_BK[row, place + 1]
            loss, entropy, labels = loss - at[label], entropy - (np.exp(at) * at).sum(), labels + 1
            end += at[3] if label == 3 else 0.0
    found = step._sums
    np.testing.assert_allclose(found, (labels, loss, entropy, 4, end), rtol=1e-5)
    monkeypatch.setattr(trainer, "FEWEST_WORDS", 12)
    assert (loss / labels > math.log(12)) and entropy / labels < 0.75 * math.log(12)
    with pytest.raises(TrainingError, match=f"the first loss is {loss / labels:.1f} nats"):
        step.check()
