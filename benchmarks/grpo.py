"""The cost of our GRPO beside TRL's own: ``python -m benchmarks.grpo``.

Our side is a student's training (``train.grpo.reinforce``): answers with a random stream each, rewards by a domain,
monitoring, checkpoints. The peer is ``GRPOTrainer`` alone, with the same arguments (so it keeps checkpoints, too), the
same model, prompts, order, seeds and reward, and its own sampling. An end token is one of many words of the vocabulary,
so nearly all answers have ``--max-tokens`` tokens and both sides do the same work, which is checked. The clock runs
from the end of the first step to the end of the last; if other processes keep the machine busy, CPU time is compared
instead. On a GPU both sides sample by a vLLM engine with the same settings in their process (sleep mode)::

    python -m benchmarks.grpo --gpu          # all weights of a random model of Qwen3-0.6B's shape
    python -m benchmarks.grpo --gpu --lora

``--vllm`` without ``--gpu`` is the small version for vLLM's CPU build, with which TRL's transfer of weights does not
work, so the peer then uses ours.
"""

import argparse
import contextlib
import gc
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback, set_seed
from trl import GRPOConfig

from benchmarks.machine import Busy, quiet
from benchmarks.pairs import in_turn, spread
from curation.config.models import GrpoConfig
from curation.domains import Domain
from curation.models import create, load_model, load_tokenizer
from curation.refs import ModelRef
from train.grpo import Questions, _make_arguments, reinforce
from train.models import make_adapter_config

SEED = 0
REACH = 0.97
TRL_SHARE = 0.3
"""Share of the GPU's memory that TRL's engine has by default."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The measurements of a side in a turn."""

    steps: int
    tokens: int
    """Number of answer tokens in these steps."""
    seconds: float
    cpu: float
    """Seconds of CPU time."""
    others: float
    reward: float
    """Mean reward over all steps."""


class Words:
    """A domain whose right answers begin with one of a few words."""

    check = Domain.check

    def parse(self, completion: str, example: Mapping[str, Any]) -> str | None:
        """Return the kind of the first word."""
        first = completion.split(" ", 1)[0]
        return str(int(first[1:]) % 4) if first[:1] == "w" else None

    def is_correct(self, label: str | None, gold: str) -> bool:
        """Return whether both are equal."""
        return label == gold


class Clock:
    """A clock that records the end of each step."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, float]] = []

    def tick(self, *args: Any) -> None:
        """Record that a step has ended."""
        if not self.ends:
            self._busy = Busy()
        self.ends.append((time.perf_counter(), time.process_time()))

    def turn(self, lengths: Sequence[Any], rewards: Sequence[Any], num_answers: int) -> Turn:
        """Return all but the first step."""
        (begun, cpu_begun), (ended, cpu_ended) = self.ends[0], self.ends[-1]
        return Turn(
            steps=len(self.ends) - 1,
            tokens=round(sum(lengths[1:]) * num_answers),
            seconds=ended - begun,
            cpu=cpu_ended - cpu_begun,
            others=self._busy.others(),
            reward=float(np.mean(rewards)),
        )


class _Ticking(TrainerCallback):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Report progress as ours does."""
        if logs and "loss" in logs:
            self._clock.tick()


class Work:
    """The work of both sides."""

    def __init__(self, directory: Path, options: argparse.Namespace) -> None:
        self.directory, self.vllm = directory, options.vllm or options.gpu
        heads = max(1, options.hidden // 64)
        self.base: ModelRef = create(
            directory / "base",
            family="qwen3",
            shape={
                "hidden_size": options.hidden,
                "num_hidden_layers": options.layers,
                "num_attention_heads": heads,
                "num_key_value_heads": max(1, heads // 2),
                "head_dim": 128 if options.gpu else 64,
                "intermediate_size": 3 * options.hidden,
                "max_position_embeddings": 2 * options.prompt_words + options.max_tokens,
                "tie_word_embeddings": options.gpu,
            },
            words=tuple(f"w{number} " for number in range(options.words)),
            pattern=r"w\d+ ",
            seed=SEED,
        )
        rng = np.random.default_rng(SEED)
        num_rows = options.steps * options.prompts
        lengths = rng.integers(options.prompt_words // 2, options.prompt_words + 1, size=num_rows)
        self.prompts = ["".join(f"w{word} " for word in rng.integers(options.words, size=size)) for size in lengths]
        self.config = GrpoConfig.model_validate(
            {
                "global_batch_size": options.prompts,
                "group_size": options.group,
                "micro_batch_size": options.micro,
                "epochs": 1,
                "max_length": options.prompt_words,
                "kl": 0.0,
                "learning_rate": 1e-5,
                "gradient_checkpointing": options.gpu,
                "gpus_per_worker": int(options.gpu),
                "lora": {} if options.lora else None,
                "rollouts": {"backend": "vllm" if self.vllm else "transformers", "max_tokens": options.max_tokens},
            }
        )
        self.num_answers = options.prompts * options.group
        self._turn = 0

    def folder(self) -> Path:
        """Make a new folder."""
        self._turn += 1
        return self.directory / f"turn-{self._turn}"

    def ours(self) -> Turn:
        """Train a student."""
        clock = Clock()
        examples = [{"row_id": row} for row in range(len(self.prompts))]
        record = reinforce(
            self.base,
            Questions(self.prompts, ["1"] * len(self.prompts), examples),
            Words(),  # type: ignore[arg-type]
            self.config,
            seed=SEED,
            output=self.folder(),
            progress=clock.tick,
        )
        return clock.turn(record.curves["length"], record.curves["reward"], self.num_answers)

    def peer(self) -> Turn:
        """Train by TRL alone."""
        from trl.trainer.grpo_trainer import GRPOTrainer

        clock, domain = Clock(), Words()
        set_seed(SEED)
        steps = len(self.prompts) // self.config.global_batch_size
        args = _make_arguments(self.config, self.base, num_steps=steps, seed=SEED, work=self.folder())
        order = np.random.default_rng([SEED, 0]).permutation(len(self.prompts))  # as ours
        with _by_vllm(self, args) if self.vllm else contextlib.nullcontext():
            model = load_model(self.base)
            trainer: Any = GRPOTrainer(
                model=model,
                reward_funcs=[
                    lambda completions, **kwargs: [float(domain.parse(text, {}) == "1") for text in completions]
                ],
                args=args,
                train_dataset=Dataset.from_dict({"prompt": [self.prompts[place] for place in order]}),
                processing_class=load_tokenizer(self.base),
                peft_config=None if self.config.lora is None else make_adapter_config(self.config.lora),
                callbacks=[_Ticking(clock)],
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
            if self.vllm:
                trainer.vllm_generation.llm.llm_engine.engine_core.shutdown()
        entries = [entry for entry in trainer.state.log_history if "reward" in entry]
        lengths = [entry["completions/mean_length"] for entry in entries]
        return clock.turn(lengths, [entry["reward"] for entry in entries], self.num_answers)


@contextlib.contextmanager
def _by_vllm(work: Work, args: GRPOConfig) -> Iterator[None]:
    """Give TRL's own colocated engine the same settings as ours, of which it passes on few."""
    from trl.generation import vllm_generation

    from train.rollouts_vllm import CPU_CACHE_BYTES, MAX_RUNNING, _renew_head, iter_whole_weights

    on_gpu, config = work.config.gpus_per_worker > 0, work.config
    args.use_vllm, args.vllm_mode, args.vllm_enable_sleep_mode = True, "colocate", on_gpu
    args.vllm_gpu_memory_utilization = config.rollouts.gpu_memory
    args.vllm_max_model_length = config.max_length + config.rollouts.max_tokens
    args.vllm_importance_sampling_correction, args.vllm_importance_sampling_mode = True, "token_truncate"
    args.vllm_importance_sampling_clip_max = 2.0
    engine: Any = {"dtype": "float32", "max_num_seqs": min(work.num_answers, MAX_RUNNING), "skip_tokenizer_init": True}
    if not on_gpu:
        engine |= {"kv_cache_memory_bytes": CPU_CACHE_BYTES, "enforce_eager": True}
    kinds, environment, made = vllm_generation.VLLMGeneration, dict(os.environ), vllm_generation.LLM
    sync, threads = kinds.sync_weights, torch.set_num_threads

    def pushed(self: Any) -> None:
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter_whole_weights(self.model)})
        self.llm.collective_rpc(_renew_head)
        self.llm.reset_prefix_cache()

    vllm_generation.LLM = lambda **given: made(**given | engine)
    if not on_gpu:
        kinds.sync_weights = pushed
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    try:
        yield
    finally:
        vllm_generation.LLM, kinds.sync_weights, torch.set_num_threads = made, sync, threads
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None) if name not in environment else os.environ.update({name: environment[name]})


def run(work: Work, num_pairs: int) -> str:
    """Measure; return the lines that sum it up."""
    sides: dict[str, Callable[[], Turn]] = {
        "ours": partial(_timed, "ours", work.ours),
        "peer": partial(_timed, "peer", work.peer),
    }
    for side in sides.values():
        side()  # warm
    found = in_turn(sides, num_pairs)
    turns = quiet(found["ours"], found["peer"])
    clock: Callable[[Turn], float] = (lambda turn: turn.seconds) if turns.are_quiet else (lambda turn: turn.cpu)
    what = "seconds" if turns.are_quiet else "CPU seconds, as the machine was busy"
    lines = []
    for unit in ("steps", "tokens"):

        def rate(turn: Turn, unit: str = unit) -> float:
            return float(getattr(turn, unit)) / clock(turn)

        ours, peer = ([rate(turn) for turn in side] for side in (turns.ours, turns.peers))
        ratios = turns.ratios(rate)
        reached = "yes" if statistics.median(ratios) >= REACH else "no"
        lines.append(
            f"{unit}/s: ours {spread(ours, ',.2f')}, TRL {spread(peer, ',.2f')}, ratio {spread(ratios)}; "
            f"to reach {REACH}: {reached} ({what}; {turns.words})"
        )
    same = {(turn.steps, turn.tokens) for turn in found["ours"]}, {(turn.steps, turn.tokens) for turn in found["peer"]}
    few, many = sorted(statistics.mean(tokens for _, tokens in side) for side in same)
    assert few > 0.98 * many, f"the sides drew different numbers of tokens: {same}"
    lines.append(f"steps and tokens timed: ours {sorted(same[0])}, TRL {sorted(same[1])}")
    return "\n".join(lines)


def _timed(name: str, side: Callable[[], Turn]) -> Turn:
    turn = side()
    gc.collect()
    print(
        f"  {name}: {turn.steps} steps, {turn.tokens:,} tokens in {turn.seconds:.2f} s, {turn.cpu:.2f} s of CPU; mean "
        f"reward {turn.reward:.3f}; others kept {turn.others:.2f} cores busy",
        flush=True,
    )
    return turn


def main() -> None:
    """Run it and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="on a GPU: Qwen3-0.6B's shape, rollouts by vLLM")
    parser.add_argument("--vllm", action="store_true", help="rollouts by vLLM")
    parser.add_argument("--lora", action="store_true")
    is_large = parser.parse_known_args()[0].gpu
    sizes = {
        "pairs": (3, 5),
        "steps": (12, 8),
        "prompts": (32, 16),
        "group": (8, 8),
        "micro": (8, 128),
        "prompt_words": (256, 24),
        "max_tokens": (512, 24),
        "hidden": (1024, 128),
        "layers": (28, 4),
        "words": (151_933, 2_000),
    }
    for name, (large, small) in sizes.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=large if is_large else small)
    options = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as directory:
        print(run(Work(Path(directory), options), options.pairs))


if __name__ == "__main__":
    main()
