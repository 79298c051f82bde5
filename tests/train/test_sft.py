"""Fine-tuning: which tokens count, what the loss is, what is saved; and a student trained by two Ray workers."""

import shutil
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
import torch
from tiny_shape import TINY

from curation.config import SftConfig
from curation.errors import ConfigError, RunFailedError, SourceError
from curation.models import create, load_model, load_tokenizer
from curation.refs import ModelRef, TableRef
from train import stream
from train.models import TrainingResult, read_saved
from train.sft import IGNORED, collate, compute_completion_loss, fine_tune, train_sft
from train.tokens import Pair, TrainingRow, tokenize
from train.trainer import count_accumulation_steps

pytestmark = pytest.mark.long

WORDS = tuple("abcdefgh")
SHAPE = TINY
SCRATCH = SftConfig(preset="scratch", global_batch_size=8, micro_batch_size=4, learning_rate=1e-2, epochs=6)


@pytest.fixture
def base(tmp_path: Path) -> ModelRef:
    return create(tmp_path / "base", family="qwen3", shape=SHAPE, words=WORDS, pattern="[a-h]", seed=0)


def table(path: Path, pairs: list[Pair]) -> TableRef:
    """A selection, its rows in another order than that of their ids."""
    order = np.random.default_rng(0).permutation(len(pairs))
    data = pa.table(
        {
            "row_id": pa.array(order, pa.int64()),
            "prompt": pa.array([pairs[i].prompt for i in order], pa.string()),
            "completion": pa.array([pairs[i].completion for i in order], pa.string()),
        }
    )
    return TableRef(uri=str(path), version=lance.write_dataset(data, path, mode="overwrite").version)


def tuned(base: ModelRef, pairs: list[Pair], config: SftConfig, *, seed: int, output: Path) -> TrainingResult:
    record = fine_tune(base, table(output.parent / "rows.lance", pairs), config, seed=seed, output=output)
    found = read_saved(base, config.lora, output)
    assert found.record == record
    return found


def copies(num_rows: int) -> list[Pair]:
    """The last letter of the prompt is to be repeated."""
    rng = np.random.default_rng(0)
    prompts = ["".join(rng.choice(list(WORDS), size=rng.integers(2, 6))) for _ in range(num_rows)]
    return [Pair(prompt, prompt[-1]) for prompt in prompts]


def rows_of(base: ModelRef, pairs: list[Pair]) -> list[TrainingRow]:
    rows = tokenize(load_tokenizer(base), pairs, max_length=16)
    return [{**row, "row_id": number} for number, row in enumerate(rows)]


def test_labels_cover_the_completion_and_the_end_token_only(base: ModelRef) -> None:
    tokenizer = load_tokenizer(base)
    rows = rows_of(base, [Pair("abc", "d"), Pair("a", "ef")])
    a, b, c, d, e, f = tokenizer.convert_tokens_to_ids(list("abcdef"))
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    batch = collate(rows, pad)
    assert batch["input_ids"].tolist() == [[a, b, c, d, end], [a, e, f, end, pad]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert batch["labels"].tolist() == [[IGNORED] * 3 + [d, end], [IGNORED, e, f, end, IGNORED]]
    longer = collate(rows[:1], pad)
    assert longer["logits_to_keep"] == 3 and longer["labels"].tolist() == [[IGNORED, d, end]]


def test_loss_equals_the_mean_over_rows_computed_one_at_a_time(base: ModelRef) -> None:
    tokenizer, model = load_tokenizer(base), load_model(base)
    pairs = [Pair("abcde", "fg"), Pair("ab", "c"), Pair("hgf", "edc")]
    batch = collate(rows_of(base, pairs), tokenizer.pad_token_id)
    labels = batch.pop("labels")
    loss = compute_completion_loss(model(**batch).logits, labels)
    full = compute_completion_loss(
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits, labels
    )
    terms = []
    for pair in pairs:
        prompt = tokenizer.convert_tokens_to_ids(list(pair.prompt))
        answer = [*tokenizer.convert_tokens_to_ids(list(pair.completion)), tokenizer.eos_token_id]
        logprobs = model(torch.tensor([prompt + answer])).logits[0].double().log_softmax(-1)
        terms += [-logprobs[len(prompt) - 1 + index, token].item() for index, token in enumerate(answer)]
    assert loss.item() == pytest.approx(np.mean(terms), abs=1e-5)
    assert full.item() == pytest.approx(np.mean(terms), abs=1e-5)
    assert compute_completion_loss(model(**batch).logits, labels, 18).item() == pytest.approx(
        np.sum(terms) / 18, abs=1e-5
    )


def test_full_weights_learn_and_a_second_run_gives_the_same(base: ModelRef, tmp_path: Path) -> None:
    first = tuned(base, copies(200), SCRATCH, seed=1, output=tmp_path / "first")
    second = tuned(base, copies(200), SCRATCH, seed=1, output=tmp_path / "second")
    assert first.record.num_rows == 200 and first.record.num_dropped == 0
    assert first.record.losses == second.record.losses
    assert first.record.losses[-1] < 0.5 * first.record.losses[0]
    weights = [load_model(result.model).state_dict() for result in (first, second)]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "first", "rows.lance", "second"]


def test_accumulated_micro_batches_equal_one_batch(base: ModelRef, tmp_path: Path) -> None:
    whole = SCRATCH.model_copy(update={"micro_batch_size": 8, "epochs": 1})
    parts = SCRATCH.model_copy(update={"micro_batch_size": 2, "epochs": 1})
    weights = [
        load_model(tuned(base, copies(8), config, seed=0, output=tmp_path / name).model).state_dict()
        for name, config in (("whole", whole), ("parts", parts))
    ]
    assert all(torch.allclose(weights[0][key], weights[1][key], atol=1e-5) for key in weights[0])


def test_a_killed_run_goes_on_from_its_checkpoint(base: ModelRef, tmp_path: Path) -> None:
    config = SCRATCH.model_copy(update={"epochs": 4})

    class Killed(Exception):
        pass

    def dying_loss(*args: object, calls: list[int] = []) -> torch.Tensor:  # noqa: B006
        calls.append(1)
        if len(calls) > 150:
            raise Killed
        return compute_completion_loss(*args)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr("train.sft.compute_completion_loss", dying_loss)
        tuned(base, copies(200), config, seed=1, output=tmp_path / "killed")
    assert list((tmp_path / "killed.partial" / "checkpoints").glob("checkpoint-*"))
    resumed = tuned(base, copies(200), config, seed=1, output=tmp_path / "killed")
    straight = tuned(base, copies(200), config, seed=1, output=tmp_path / "straight")
    weights = [load_model(result.model).state_dict() for result in (resumed, straight)]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_lora_saves_an_adapter_on_which_nothing_is_trained(base: ModelRef, tmp_path: Path) -> None:
    config = SftConfig(global_batch_size=8, learning_rate=1e-2, epochs=2)
    first = tuned(base, copies(40), config, seed=0, output=tmp_path / "first").model
    assert first == ModelRef(base=base.base, revision=base.revision, adapter=str(tmp_path / "first"))
    assert not (tmp_path / "first" / "model.safetensors").exists()
    ids = torch.tensor([[3, 4, 5]])
    logits = [load_model(ref)(ids).logits for ref in (base, first)]
    assert not torch.allclose(*logits, atol=1e-2)
    for again in (config, SCRATCH):
        with pytest.raises(ConfigError, match="what is trained has no adapter of its own; merge it into its model"):
            tuned(first, copies(40), again, seed=0, output=tmp_path / "second")


def test_over_long_rows_are_counted(base: ModelRef, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pairs = [*copies(16), Pair("abcdefgh" * 4, "a")]
    config = SCRATCH.model_copy(update={"max_length": 16, "epochs": 1})
    record = tuned(base, pairs, config, seed=0, output=tmp_path / "out").record
    assert (record.num_rows, record.num_dropped, record.dropped) == (16, 1, [16])
    assert "1 of 17 rows exceed 16 tokens" in caplog.text
    with pytest.raises(SourceError, match="all 1 rows exceed max_length 16"):
        tuned(base, pairs[-1:], config, seed=0, output=tmp_path / "none")
    with pytest.raises(SourceError, match="no rows"):
        tuned(base, [], config, seed=0, output=tmp_path / "none")


def test_tokens_stay_in_a_file_in_the_order_of_the_ids(
    base: ModelRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "SCAN_ROWS", 64)
    pairs = [*copies(150), Pair("abcdefgh" * 4, "a"), *copies(150)]
    selection, before = table(tmp_path / "rows.lance", pairs), pa.total_allocated_bytes()
    config = SCRATCH.model_copy(update={"max_length": 16})
    found = stream.TokenRows(selection, load_tokenizer(base), config)
    assert pa.total_allocated_bytes() - before < 2_000, "mapped: 300 rows would take 10 kB"
    rows = rows_of(base, [pair for pair in pairs if len(pair.prompt) < 16])
    expected = [{**row, "row_id": number + (number >= 150)} for number, row in enumerate(rows)]
    assert found.__getitems__(range(len(found))) == expected and found.__getitems__([]) == []
    assert found.lengths_N.tolist() == [len(row["input_ids"]) for row in expected]
    assert (found.num_rows, found.dropped_M.tolist()) == (301, [150])


def test_epochs_follow_the_rows_given_and_not_those_left_after_dropping(base: ModelRef, tmp_path: Path) -> None:
    """At 2,000 rows the paper's rule goes from three epochs to one: one over-long row is to change one row."""
    pairs = [*copies(1_999), Pair("abcdefgh" * 4, "a")]
    config = SCRATCH.model_copy(
        update={"max_length": 16, "epochs": None, "global_batch_size": 500, "micro_batch_size": 500}
    )
    told: list[tuple[int, int]] = []
    rows = table(tmp_path / "rows.lance", pairs)
    record = fine_tune(base, rows, config, seed=0, output=tmp_path / "one", progress=lambda *at: told.append(at[:2]))
    assert (record.num_rows, record.num_dropped, record.num_epochs) == (1_999, 1, 1)
    assert told[-1] == (1_999, 1_999)  # one pass over the rows that are there
    fewer = tuned(base, pairs[:1_999], config, seed=0, output=tmp_path / "three").record
    assert (fewer.num_rows, fewer.num_dropped, fewer.num_epochs) == (1_999, 0, 3)


def test_batch_sizes_that_do_not_divide_are_refused() -> None:
    assert count_accumulation_steps(SftConfig(), 2) == 16
    with pytest.raises(
        ConfigError, match="global_batch_size: 128 is not a multiple of micro_batch_size 128 x num_workers 2"
    ):
        count_accumulation_steps(SftConfig(preset="scratch"), 2)


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_two_workers_train_a_student_and_a_failure_names_it(base: ModelRef, tmp_path: Path) -> None:
    pairs = copies(40)
    rows = table(tmp_path / "rows.lance", pairs)
    config = SCRATCH.model_copy(update={"num_workers": 2, "epochs": 2, "max_failures": 0})
    student = train_sft(base, rows, config, seed=3, output=tmp_path / "student", name="naive")
    shutil.rmtree(base.base)
    with pytest.raises(RunFailedError, match="naive: training failed"):
        train_sft(base, rows, config, seed=3, output=tmp_path / "lost", name="naive")
    assert student.record.num_rows == 40 and student.record.losses[-1] < 0.8 * student.record.losses[0]
    assert student.model.base == str(tmp_path / "student") and load_model(student.model)
    assert not list(tmp_path.glob("student.*"))
    with pytest.raises(SourceError, match="no rows"):
        train_sft(base, table(tmp_path / "empty.lance", []), config, seed=3, output=tmp_path / "x", name="none")
