"""Milliseconds of the host per step of the vLLM tap: ``python -m benchmarks.tap_host``.

The tap gets a step of a full engine as from vLLM's worker, with a constant sampler, states of 8 numbers and 16 words,
so that mainly the work of Python and of launching operations remains; vLLM is not needed. On a GPU the operations run
in parallel. Measured with the states of one position, and with those of all four.
"""

import argparse
import time
from types import SimpleNamespace
from typing import Any

import torch

from curation.teachers.vllm_tap import SURENESS, Tap

PROMPT, WIDTH, WORDS = 16, 8, 16
STATES = (("output_last",), ("prompt_last", "output_first", "output_last", "output_mean"))


class Constant(torch.nn.Module):
    """A sampler that always draws the first word."""

    def forward(self, *, logits: torch.Tensor, sampling_metadata: Any) -> Any:
        """Return tokens as vLLM's sampler does."""
        return SimpleNamespace(sampled_token_ids=torch.zeros((len(logits), 1), dtype=torch.int32, device=logits.device))


def milliseconds(states: tuple[str, ...], rows: int, steps: int, device: str) -> float:
    """Return those of a step, the first ones aside."""
    sampler = Constant()
    tap = Tap(sampler, lambda hidden_KD: None, states, 4, 8)
    ids = [f"row{row}" for row in range(rows)]
    params = SimpleNamespace(extra_args={SURENESS: True}, stop_token_ids=[])
    metadata = SimpleNamespace(generators={})
    none = SimpleNamespace(req_ids=[], num_computed_tokens=[], num_output_tokens=[])
    begun = 0.0
    for step in range(-10, steps):
        if step == 0:
            begun = time.perf_counter()
        number = step + 10
        size = PROMPT if number == 0 else 1
        new = [
            SimpleNamespace(req_id=name, prompt_token_ids=[0] * PROMPT, sampling_params=params, num_computed_tokens=0)
            for name in (ids if number == 0 else [])
        ]
        fed = [PROMPT + number - 1] * rows
        old = SimpleNamespace(req_ids=ids, num_computed_tokens=fed, num_output_tokens=[number] * rows)
        hidden_TD = torch.zeros((rows * size, WIDTH), dtype=torch.bfloat16, device=device)
        logits_BV = torch.zeros((rows, WORDS), dtype=torch.bfloat16, device=device)
        tap.follow(
            SimpleNamespace(
                num_scheduled_tokens=dict.fromkeys(ids, size),
                scheduled_new_reqs=new,
                scheduled_cached_reqs=old if number else none,
            )
        )
        with tap.drawing(ids, hidden_TD, None):
            sampler(logits=logits_BV, sampling_metadata=metadata)
    return (time.perf_counter() - begun) / steps * 1e3


def main() -> None:
    """Print the milliseconds of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    for states in STATES:
        taken = milliseconds(states, options.rows, options.steps, options.device)
        print(f"{options.rows:,} rows, {len(states)} states: {taken:.2f} ms a step")


if __name__ == "__main__":
    main()
