"""Peak memory of a training or a labelling forward pass, in a process of its own: ``python measured_peak.py KIND``.

It prints the bytes of anonymous memory that the work took at its peak over what the process held before; the same work
on a tiny model comes first, so that libraries and thread pools are counted in neither.
"""

import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import lance
import pyarrow as pa
import torch

from curation import memory
from curation.config import SftConfig
from curation.models import create, load_model
from curation.refs import ModelRef, TableRef
from curation.teachers.forward import Forward
from train.sft import fine_tune

VOCABULARY, PROMPT, ANSWER, ROWS, WIDE_PROMPT = 32_000, 190, 64, 4, 1_024
SHAPE = {
    "hidden_size": 512,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 2_048,
    "max_position_embeddings": 2_048,
}
TINY = {**SHAPE, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
RECIPE = {
    "preset": "scratch",
    "epochs": 1,
    "max_length": PROMPT + ANSWER,
    "global_batch_size": ROWS,
    "micro_batch_size": ROWS,
    "check_first_step": False,
}
KINDS = {
    "full-accumulated": {**RECIPE, "global_batch_size": 2 * ROWS, "epochs": 2},
    "full": RECIPE,
    "full-checkpointed": {**RECIPE, "gradient_checkpointing": True},
    "lora": {**RECIPE, "lora": {"rank": 16}},
    "lora-checkpointed": {**RECIPE, "lora": {"rank": 16}, "gradient_checkpointing": True},
}
"""Recipes by name; another kind is ``asked``: a forward pass of prompts."""


class Peak:
    """Watches the anonymous memory of this process from a thread."""

    def __init__(self) -> None:
        self.bytes = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ends.is_set():
            self.bytes = max(self.bytes, anonymous())
            time.sleep(0.002)

    def end(self) -> int:
        """Stop, and return the most bytes seen."""
        self._ends.set()
        self._thread.join()
        return self.bytes


def anonymous() -> int:
    """Return the resident bytes that no file backs: of weights, those that were written to since they were mapped."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) * 1024


def rows(path: Path) -> TableRef:
    """Write rows of one length: a prompt of ``PROMPT`` words and an answer that leaves room for the end token."""
    prompt, answer = (" ".join(f"w{number}" for number in range(size)) for size in (PROMPT, ANSWER - 1))
    data = pa.table(
        {
            "row_id": list(range(2 * ROWS)),
            "prompt": [prompt] * 2 * ROWS,
            "completion": [f" {answer}"] * 2 * ROWS,
        }
    )
    return TableRef(uri=str(path), version=lance.write_dataset(data, path).version)


def work(kind: str, base: ModelRef, table: TableRef, output: Path) -> None:
    """Train, or read prompts."""
    if kind != "asked":
        fine_tune(base, table, SftConfig(**KINDS[kind]), seed=0, output=output)
        return
    with torch.inference_mode():
        Forward(load_model(base), pad=0).start([list(range(3, 3 + WIDE_PROMPT))] * 8)


def main(kind: str) -> None:
    """Print the peak as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        words = tuple(f"w{number}" for number in range(VOCABULARY - 3))
        table = rows(place / "rows.lance")
        how = {"family": "qwen3", "words": words, "pattern": r"w\d+", "seed": 0}
        tiny, large = (create(place / name, shape=shape, **how) for name, shape in (("tiny", TINY), ("large", SHAPE)))
        work(kind, tiny, table, place / "warm")
        memory.trim()
        before, peak = anonymous(), Peak()
        work(kind, large, table, place / "done")
        print(json.dumps({"bytes": peak.end() - before}))


if __name__ == "__main__":
    main(sys.argv[1])
