"""Answers that are constrained to a row's legal moves, beside free answers: ``python -m benchmarks.constrained``.

``decoding.constrained: scored`` and ``stepwise`` take turns with free answers of at most 4 tokens, on the same puzzles
with the same model in one process and thread. Rates include rendering, listing the moves, the model and parsing;
nothing is stored. Checked for every row: ``scored`` takes the likeliest move by exhaustive scoring (a plain forward of
transformers for each move, no cache), with its log-probability and its last state; ``stepwise`` takes the move of a
greedy walk over the same log-probabilities; a free answer that is the likeliest move has the same last state.

``--backend vllm`` measures vLLM in its own environment (``make test-vllm`` says how).
"""

import argparse
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.pairs import in_turn, spread
from curation.config import AskConfig, DecodingConfig, DomainConfig
from curation.domains import get_domain
from curation.models import load_model, load_tokenizer, resolve
from curation.refs import ModelRef
from curation.stages.label_chunks import label_rows
from curation.teachers import load_teacher

EXAMPLES = Path(__file__).parents[1] / "examples"
WAYS = {
    "free": DecodingConfig(max_tokens=4),
    "scored": DecodingConfig(constrained="scored"),
    "stepwise": DecodingConfig(constrained="stepwise"),
}
TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class _Asking:
    teacher: AskConfig
    decoding: DecodingConfig
    seed: int = 0


def run(model: ModelRef, *, backend: str, num_rows: int, num_turns: int) -> None:
    """Measure, check, and print a line for each."""
    import torch

    torch.set_num_threads(1)
    domain = get_domain(DomainConfig(name="chess"))
    raw = pq.read_table(EXAMPLES / "data" / "puzzles.parquet").slice(0, num_rows).to_pylist()
    examples = [domain.read(row) | {"row_id": place, "error": None} for place, row in enumerate(raw)]
    config = AskConfig(backend=backend, states=("output_last",), state_dtype="float32")
    teacher, answers = load_teacher(config, model), {}

    def side(name: str) -> Any:
        def work() -> float:
            begun = time.monotonic()
            batches = label_rows(_Asking(teacher=config, decoding=WAYS[name]), domain, teacher, examples)
            answers[name] = {row["row_id"]: row for batch in batches for row in batch.to_pylist()}
            return num_rows / (time.monotonic() - begun)

        return work

    sides = {name: side(name) for name in WAYS}
    for work in sides.values():
        work()  # once, so that what is loaded or compiled at first is
    rates = in_turn(sides, num_turns)
    print(f"{backend}, {model.base}, {num_rows:,} rows, {num_turns} turns")
    for name, found in rates.items():
        parsed = sum(row["label"] is not None for row in answers[name].values())
        ratios = [one / free for one, free in zip(found, rates["free"], strict=True)]
        print(f"  {name}: {spread(found, ',.0f')} rows/s, {spread(ratios)} of free; {parsed / num_rows:.1%} parsed")
    print(check(model, domain, examples, answers), flush=True)


def check(model: ModelRef, domain: Any, examples: list[dict[str, Any]], answers: dict[str, dict[int, Any]]) -> str:
    """Compare all answers with those of plain forwards.

    Raises:
        SystemExit: they differ.
    """
    import torch

    plain, tokenizer = load_model(model), load_tokenizer(model)
    worst = dict.fromkeys(("score", "state"), 0.0)
    same_free = 0
    for example in examples:
        prompt, moves = domain.prompt(example), domain.candidates(example) or ()
        given = tokenizer(prompt)["input_ids"]
        ids = [tokenizer(prompt + move)["input_ids"] for move in moves]
        width = max(map(len, ids))
        padded = torch.tensor([row + [0] * (width - len(row)) for row in ids])
        with torch.inference_mode():
            output = plain(padded, use_cache=False, output_hidden_states=True)
        logprob_OTV = output.logits.float().log_softmax(-1)
        logprobs = [
            [float(of_option[t, token]) for t, (_, token) in enumerate(pairwise(row)) if t + 1 >= len(given)]
            for of_option, row in zip(logprob_OTV, ids, strict=True)
        ]
        sums = np.array([sum(values) for values in logprobs])
        scored, stepwise, free = (answers[name][example["row_id"]] for name in ("scored", "stepwise", "free"))
        worst["score"] = max(worst["score"], float(np.abs(sums - scored["option_logprobs"]).max()))
        best = moves.index(scored["completion"])
        if sums[best] < sums.max() - TOLERANCE:
            raise SystemExit(f"{prompt}: scored took {moves[best]}, {moves[int(sums.argmax())]} is likelier")
        if (walked := moves[_walk([row[len(given) :] for row in ids], logprobs)]) != stepwise["completion"]:
            raise SystemExit(f"{prompt}: stepwise took {stepwise['completion']}, the walk {walked}")
        for row in [scored, stepwise] + [free] * (free["completion"].strip() == moves[best].strip()):
            place = [move.strip() for move in moves].index(row["completion"].strip())
            state_D = output.hidden_states[-1][place, len(ids[place]) - 1].numpy()
            worst["state"] = max(worst["state"], float(np.abs(state_D - row["state_output_last"]).max()))
            same_free += row is free
    if max(worst.values()) > TOLERANCE:
        raise SystemExit(f"differs from plain forwards: {worst}")
    return (
        f"  checked on {len(examples):,} rows: as by exhaustive scoring (largest difference of a score "
        f"{worst['score']:.1e}, of a state {worst['state']:.1e}); {same_free} free answers are the likeliest move"
    )


def _walk(tokens: list[list[int]], logprobs: list[list[float]]) -> int:
    """Return the place of the option that the likeliest token at each step leads to; none is the start of another."""
    alive, step = list(range(len(tokens))), 0
    while len(alive) > 1 or len(tokens[alive[0]]) > step:
        best = max(alive, key=lambda place: logprobs[place][step])
        alive, step = [place for place in alive if tokens[place][step] == tokens[best][step]], step + 1
    return alive[0]


def main() -> None:
    """Parse the arguments, measure, check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(EXAMPLES / "bases" / "teacher"))
    parser.add_argument("--backend", default="transformers", choices=("transformers", "vllm"))
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    run(resolve(options.model), backend=options.backend, num_rows=options.rows, num_turns=options.pairs)


if __name__ == "__main__":
    main()
