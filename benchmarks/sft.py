"""Tokens per second of supervised fine-tuning beside TRL's SFTTrainer: ``python -m benchmarks.sft``.

The rows are synthetic: random words, prompts of 8 to 64 and completions of 4 to 48 tokens, with more short ones than
long ones. Both sides start from the same random weights, use the same rows in the same batches (TRL gets them in our
order, so that it pads as little as we do), and write as many checkpoints. Checked: their losses are equal at each step.
Time is from the text of the rows to the saved student, including tokenising, loading, checkpoints and saving; on a CPU
it is the process's CPU time, with one thread.

Both sides run in turn, in one process. Ratios are medians over turns, with the
range. On a shared machine each measurement waits until it is quiet (``BENCHMARK_WAIT_SECONDS``).

``--gpu``: a model of Qwen3-0.6B's shape with random weights, a LoRA adapter, bfloat16, longer rows; also the model's
FLOP/s as a share of the GPU's (``--peak-tflops``), at 4 FLOP per weight and token (frozen weights need no gradients),
without attention and recomputed activations.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import lance
import numpy as np
import pyarrow as pa
import torch
from transformers import set_seed
from trl import SFTConfig as TrlConfig
from trl import SFTTrainer as TrlTrainer

from benchmarks.pairs import Ratios, in_turn, spread
from curation.config import SftConfig
from curation.models import create, load_model, load_tokenizer
from curation.refs import ModelRef, TableRef
from train.models import make_trainable
from train.sft import CHECKPOINT_SHARE, fine_tune
from train.stream import Order
from train.tokens import Pair, tokenize
from train.trainer import shift_warm_up

SEED = 0
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}
"""Maximum difference of a step's loss, by number type."""
WORDS = tuple(f"w{number}" for number in range(1000))
SMALL = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32}
SMALL |= {"intermediate_size": 384, "max_position_embeddings": 256}
QWEN3_06B = {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8}
QWEN3_06B |= {"head_dim": 128, "intermediate_size": 3072, "max_position_embeddings": 4096}


class Task(NamedTuple):
    """The training task of all sides."""

    base: ModelRef
    rows: TableRef
    pairs: list[Pair]
    recipe: SftConfig
    num_tokens: int


class Outcome(NamedTuple):
    """The measurements of a side."""

    rate: float
    """Number of tokens per second, without padding."""
    losses: list[float]


def make(folder: Path, num_rows: int, longest: int, shape: dict[str, int], recipe: SftConfig) -> Task:
    """Return a random base and random rows."""
    base = create(folder / "base", family="qwen3", shape=shape, words=WORDS, pattern=r"w\d+", seed=SEED)
    rng = np.random.default_rng(SEED)

    def text(low: int, high: int) -> str:
        return " ".join(rng.choice(WORDS, size=int(low * (high / low) ** rng.random())))

    pairs = [Pair(text(8, longest), text(4, 3 * longest // 4)) for _ in range(num_rows)]
    columns = {
        "row_id": range(num_rows),
        "prompt": [p.prompt for p in pairs],
        "completion": [p.completion for p in pairs],
    }
    uri = str(folder / "rows.lance")
    rows = TableRef(uri=uri, version=lance.write_dataset(pa.table(columns), uri).version)
    lengths = [len(row["input_ids"]) for row in tokenize(load_tokenizer(base), pairs, None)]
    return Task(base, rows, pairs, recipe, sum(lengths))


def clock(task: Task) -> float:
    """Return seconds: of the process's CPU time where nothing else computes, which other processes hardly change."""
    return time.monotonic() if task.recipe.gpus_per_worker else time.process_time()


def ours(task: Task, folder: Path) -> Outcome:
    """Train by this project."""
    begun = clock(task)
    record = fine_tune(task.base, task.rows, task.recipe, seed=SEED, output=folder / "student")
    return Outcome(task.num_tokens / (clock(task) - begun), record.losses)


class Rising(TrlTrainer):
    """TRL's trainer with our learning rates, which do not begin at 0."""

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the schedule of the arguments, risen from the first step."""
        usual = super().create_scheduler(num_training_steps, optimizer)
        self.lr_scheduler = shift_warm_up(usual, self.args.get_warmup_steps(num_training_steps))
        return self.lr_scheduler


def peer(task: Task, folder: Path) -> Outcome:
    """Train by TRL, on the rows in our order."""
    recipe, tokenizer = task.recipe, load_tokenizer(task.base)
    lengths = [len(row["input_ids"]) for row in tokenize(tokenizer, task.pairs, None)]
    order = Order(lengths_N=np.array(lengths, np.int32), global_batch_size=recipe.global_batch_size, seed=SEED)
    indices = [int(index) for step in range(order.num_steps) for index in order.step(0, step)]
    pairs = [task.pairs[index]._asdict() for index in indices]
    use_gpu = recipe.gpus_per_worker > 0
    begun = clock(task)
    set_seed(SEED)
    settings = TrlConfig(
        output_dir=str(folder / "trl"),
        use_cpu=not use_gpu,
        bf16=recipe.compute_dtype == "bfloat16",
        per_device_train_batch_size=recipe.micro_batch_size,
        gradient_accumulation_steps=recipe.global_batch_size // recipe.micro_batch_size,
        num_train_epochs=1,
        learning_rate=recipe.learning_rate,
        adam_beta1=recipe.adam_betas[0],
        adam_beta2=recipe.adam_betas[1],
        weight_decay=recipe.weight_decay,
        lr_scheduler_type=recipe.schedule,
        warmup_steps=-(-order.num_steps // 10),
        max_grad_norm=recipe.max_grad_norm,
        gradient_checkpointing=recipe.gradient_checkpointing,
        train_sampling_strategy="sequential",
        completion_only_loss=True,
        max_length=recipe.max_length,
        save_steps=CHECKPOINT_SHARE,
        save_total_limit=1,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        seed=SEED,
    )
    trainer = Rising(
        model=make_trainable(load_model(task.base), recipe.lora),
        args=settings,
        train_dataset=datasets.Dataset.from_list(pairs),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model()
    seconds = clock(task) - begun
    return Outcome(task.num_tokens / seconds, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--peak-tflops", type=float, default=989.0, help="of the GPU, dense bfloat16 (H100: 989)")
    arguments = parser.parse_args()
    datasets.disable_progress_bars()
    changes: dict[str, Any] = {"epochs": 1, "learning_rate": 1e-4, "compute_dtype": "float32"}
    if arguments.gpu:
        changes["compute_dtype"] = "bfloat16"
        recipe = SftConfig(**changes, micro_batch_size=16, gpus_per_worker=1)
        sizes: tuple[int, int, dict[str, int]] = (arguments.rows or 4096, 512, QWEN3_06B)
    else:
        recipe = SftConfig(preset="scratch", **changes, global_batch_size=32, micro_batch_size=8)
        sizes = (arguments.rows or 768, 64, SMALL)
    torch.set_num_threads(1 if not arguments.gpu else torch.get_num_threads())
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        task = make(folder, *sizes, recipe)
        num_weights = load_model(task.base).num_parameters()
        print(f"{len(task.pairs):,} rows, {task.num_tokens:,} tokens, {num_weights:,} weights, {recipe.compute_dtype}")
        sides = {
            "ours": lambda: ours(task, folder),
            "TRL": lambda: peer(task, folder),
        }
        sides["ours"](), sides["TRL"]()  # imports and warm-up
        found = in_turn(sides, arguments.turns)
    for name, turns in found.items():
        rates = [turn.rate for turn in turns]
        line = f"{name}: {spread(rates, ',.0f')} tokens/s"
        if arguments.gpu:
            shares = [4 * num_weights * rate / arguments.peak_tflops / 1e12 for rate in rates]
            line += f", {spread(shares)} of the GPU's FLOP/s"
        print(line)
    worst = max(
        float(np.abs(np.array(own.losses) - np.array(theirs.losses)).max())
        for own, theirs in zip(found["ours"], found["TRL"], strict=True)
    )
    ratios = Ratios(ours=[turn.rate for turn in found["ours"]], peers=[turn.rate for turn in found["TRL"]])
    print(ratios.line("ours", "tokens/s", 1.0), f"; largest difference of a loss {worst:.1g}", sep="")
    assert worst <= TOLERANCE[recipe.compute_dtype], "ours and TRL trained something different"


if __name__ == "__main__":
    main()
