"""Train a model on a selection with plain TRL: no part of this project is needed, only what it exports.

    pip install trl peft
    curate export runs/my-run -o rows
    python plain_trl.py rows Qwen/Qwen3-1.7B-Base -o student
    python plain_trl.py rows Qwen/Qwen3-1.7B-Base --method grpo -o student

SFT learns `completion` from `prompt`. GRPO draws its own answers to `prompt` and rewards those that equal `completion`
or end in `label`; the project's GRPO grades by the domain's own rule instead (docs/method.md).
"""

import argparse
import re

from datasets import load_dataset
from peft import LoraConfig
from transformers.utils import is_torch_cuda_available
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer


def boxed(text: str) -> str | None:
    r"""Return the content of the last \boxed{}."""
    found = re.findall(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}", text)
    return found[-1].strip() if found else None


def matches(text: str, label: str, own: str | None) -> bool:
    """Return whether an answer is the row's ``own``, boxed or as it is, or ends in the words of the row's label."""
    words, box = text.split(), boxed(text)
    if box is not None:
        return box in (label, None if own is None else boxed(own))
    ways = [label, label.replace("_", " "), {"first": "A", "second": "B"}.get(label, label)]
    return (own is not None and words == own.split()) or any(words[-len(way.split()) :] == way.split() for way in ways)


def exact_match(
    completions: list[str], label: list[str], completion: list[str] | None = None, **columns: object
) -> list[float]:
    """Return 1 for each answer that is the row's, else 0; TRL passes the columns of the selection by name."""
    owns: list[str | None] = [None] * len(label) if completion is None else [*completion]
    return [float(matches(*row)) for row in zip(completions, label, owns, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("selection", help="the folder of an exported selection")
    parser.add_argument("model", help="hub id or folder of a causal language model")
    parser.add_argument("-o", "--output", default="student", help="folder to save to (default: student)")
    parser.add_argument("--method", choices=("sft", "grpo"), default="sft")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=16, help="rows, or prompts, of an optimizer step")
    parser.add_argument("--learning-rate", type=float, help="default: 1e-4, for GRPO 1e-6")
    parser.add_argument("--lora", type=int, default=16, metavar="RANK", help="rank of the adapter; 0: all weights")
    parser.add_argument("--group", type=int, default=8, help="GRPO: answers drawn to a prompt")
    parser.add_argument("--max-tokens", type=int, default=512, help="GRPO: tokens of the longest answer")
    args = parser.parse_args()

    rows = load_dataset(args.selection, split="train")
    if args.method == "grpo":  # an unparsed label can never be matched
        rows = rows.filter(lambda row: row["label"] is not None).select_columns(["prompt", "label", "completion"])
    else:
        rows = rows.select_columns(["prompt", "completion"])
    batch, has_gpu = min(args.batch, len(rows)), is_torch_cuda_available()
    adapter = LoraConfig(r=args.lora, lora_alpha=2 * args.lora, target_modules="all-linear", task_type="CAUSAL_LM")
    common = {
        "output_dir": args.output,
        "num_train_epochs": args.epochs,
        "use_cpu": not has_gpu,
        "bf16": has_gpu,  # TRL's default is bf16 even without a GPU
        "gradient_checkpointing": has_gpu,  # saves memory, costs time
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
    }
    if args.method == "sft":
        config = SFTConfig(
            learning_rate=args.learning_rate or 1e-4,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=batch,
            completion_only_loss=True,
            **common,
        )
        trainer = SFTTrainer(args.model, config, train_dataset=rows, peft_config=adapter if args.lora else None)
    else:
        config = GRPOConfig(
            learning_rate=args.learning_rate or 1e-6,
            # TRL counts answers, not prompts: here a micro-batch is the answers to one prompt, and a step has `batch`
            # of them. It drops an epoch's last prompts if they do not fill a step, so `batch` is at most all rows.
            num_generations=args.group,
            per_device_train_batch_size=args.group,
            gradient_accumulation_steps=batch,
            max_completion_length=args.max_tokens,
            **common,
        )
        trainer = GRPOTrainer(
            args.model, exact_match, config, train_dataset=rows, peft_config=adapter if args.lora else None
        )
    trainer.train()
    trainer.save_model(args.output)
    measure = "loss" if args.method == "sft" else "reward"
    logged = [entry[measure] for entry in trainer.state.log_history if measure in entry]
    print(
        f"{args.method}: {len(rows)} rows, {trainer.state.global_step} steps, {measure} {logged[0]:.3f} to "
        f"{logged[-1]:.3f}; saved to {args.output}"
    )


if __name__ == "__main__":
    main()
