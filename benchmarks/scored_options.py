"""Scored options beside a plain loop: ``python -m benchmarks.scored_options --model FOLDER --data FOLDER``.

The rows are of BANKING77, with the names of the classes as options. The peer feeds each option after the row's whole
prompt, padded in a batch, and takes the log-softmax of all logits, as lm-evaluation-harness does. Both use the same
model in one process with the same threads, in turn; rendering and tokenising do not count. Each of our scores is
checked against the peer's.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from transformers import PreTrainedModel

from benchmarks.pairs import measure
from benchmarks.real.tasks import TASKS
from curation.config import AskConfig, DomainConfig
from curation.domains import get_domain
from curation.models import load_model, load_tokenizer, resolve
from curation.signals import label_request
from curation.teachers.forward import Forward
from curation.teachers.options import score_options
from curation.teachers.prompts import TokenisedRequest, iter_padded_batches, tokenise

TOLERANCE = {"float32": 1e-3, "bfloat16": 1.0}
"""Maximum difference of an option's log-probability; bfloat16 logits from 16 to 32 are multiples of an eighth."""

Scores = dict[int, npt.NDArray[np.float64]]
"""Log-probabilities of each row's options, by row id."""


def ours(forward: Forward, rows: Sequence[TokenisedRequest], config: AskConfig) -> Scores:
    """Return the scores of the transformers teacher, in its own batches."""
    scores = {}
    for batch in iter_padded_batches(rows, lambda row: len(row.prompt) + 1 + len(row.trie.inner), config.batch_tokens):
        for answer in score_options(forward, batch, config, normalise=False).to_pylist():
            scores[answer["row_id"]] = np.array(answer["option_logprobs"])
    return scores


@torch.inference_mode()
def peers(model: PreTrainedModel, rows: Sequence[TokenisedRequest], batch_size: int) -> Scores:
    """Return the scores of plain passes of ``batch_size`` prompts with one option each."""
    scores = {}
    for row in rows:
        options, sums = row.options or [], []
        for begin in range(0, len(options), batch_size):
            some = options[begin : begin + batch_size]
            width, start = max(map(len, some)), len(row.prompt) - 1
            ids = torch.tensor([row.prompt + option + [0] * (width - len(option)) for option in some])
            logprob_BTV = model(ids, use_cache=False).logits.float().log_softmax(dim=-1)
            for logprob_TV, option in zip(logprob_BTV, some, strict=True):
                logprob_tV = logprob_TV[start : start + len(option)]
                sums.append(float(logprob_tV.gather(1, torch.tensor(option)[:, None]).sum()))
        scores[row.request.row_id] = np.array(sums)
    return scores


def run(options: argparse.Namespace) -> None:
    """Measure, check, and print the ratio.

    Raises:
        SystemExit: a score differs from the peer's.
    """
    torch.set_num_threads(options.threads)
    files = sorted(options.data.glob(TASKS["banking77"].files))
    table = pa.concat_tables(pq.read_table(file, columns=["text", "label"]) for file in files)
    raw = table.take(np.random.default_rng(options.seed).permutation(len(table))[: options.rows]).to_pylist()
    words = {name: name.replace("_", " ") for name in sorted(pc.unique(table["label"]).to_pylist())}
    domain = get_domain(DomainConfig.model_validate({"name": "classification", "classes": words}))
    requests = [label_request(domain, row_id, domain.read(row)) for row_id, row in enumerate(raw)]
    ref = resolve(str(options.model))
    tokenizer, model = load_tokenizer(ref), load_model(ref, dtype=options.dtype)
    rows = tokenise(tokenizer, requests, chat_template=False)
    forward, config = Forward(model, pad=tokenizer.pad_token_id), AskConfig(states=(), dtype=options.dtype)
    found: dict[str, Scores] = {"ours": ours(forward, rows[:1], config)}  # once, so that what is tried at first is

    def of_ours(_: int) -> float:
        begun = time.monotonic()
        found["ours"] = ours(forward, rows, config)
        return 60 * len(rows) / (time.monotonic() - begun)

    def of_peer(_: int) -> float:
        begun = time.monotonic()
        found["peer"] = peers(model, rows[: options.peer_rows], options.peer_batch)
        return 60 * len(found["peer"]) / (time.monotonic() - begun)

    ratios = measure(of_ours, of_peer, options.pairs)
    worst = max(float(np.abs(found["ours"][row_id] - scores).max()) for row_id, scores in found["peer"].items())
    print(ratios.line(f"{len(words)} classes, {len(rows)} rows, {options.dtype}", "rows/min", 1.0))
    print(f"largest difference of a score from the peer's: {worst:.1e} ({len(found['peer'])} rows)")
    if worst > TOLERANCE[options.dtype]:
        raise SystemExit(f"scores differ from those of plain passes by {worst}; {TOLERANCE[options.dtype]} is allowed")


def main() -> None:
    """Parse the arguments, measure, check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="the folder of classification/banking77_*.parquet")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--peer-rows", type=int, default=2, help="of these rows the peer scores the first so many")
    parser.add_argument("--peer-batch", type=int, default=16)
    parser.add_argument("--dtype", default="bfloat16", choices=TOLERANCE)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
