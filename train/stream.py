"""Rows of a selection as token ids, in batches whose order follows from the seed.

Each worker tokenises the rows once into a file that is mapped into memory; in memory it has each row's length.
"""

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from datasets import Dataset as ArrowRows
from torch.utils.data import BatchSampler, Dataset

from curation.arrays import Int64s
from curation.config import LmStudentConfig
from curation.domains.pair import format_continuation
from curation.refs import TableRef
from curation.tables import io
from train.tokens import Pair, TrainingRow, count_tokens, tokenize

GROUPED_BATCHES = 50  # number of global batches within which rows are sorted by length, as in ``transformers``
SCAN_ROWS = 4096  # number of rows that are tokenised at a time


@dataclass(frozen=True, eq=False)
class Order:
    """The batches of each epoch, as indices into the rows.

    The rows of a step follow from the lengths, the seed and the epoch alone. The number of workers and the size of a
    micro-batch only divide a step, so they change neither the order nor, up to rounding, the gradients.
    """

    lengths_N: npt.NDArray[np.int32]  # number of tokens of each row
    global_batch_size: int
    seed: int

    @property
    def num_steps(self) -> int:
        """The number of optimizer steps of an epoch; the last one may have fewer rows."""
        return -(-len(self.lengths_N) // self.global_batch_size)

    def step(self, epoch: int, number: int) -> Int64s:
        """Return the rows of a step, the longest first."""
        return self._order_epoch(epoch)[number * self.global_batch_size : (number + 1) * self.global_batch_size]

    @lru_cache(maxsize=1)  # noqa: B019 - an order lives as long as its training
    def _order_epoch(self, epoch: int) -> Int64s:
        """Return all rows of an epoch, step after step.

        Rows that do not fill a step are drawn at random and come last. The others are grouped: rows of similar length
        share a step, and the steps are shuffled.
        """
        rng = np.random.default_rng([self.seed, epoch])
        shuffled_N = rng.permutation(len(self.lengths_N))
        num_grouped = len(shuffled_N) - len(shuffled_N) % self.global_batch_size
        for first in range(0, num_grouped, GROUPED_BATCHES * self.global_batch_size):
            group = shuffled_N[first:num_grouped][: GROUPED_BATCHES * self.global_batch_size]
            group[:] = self._sort_longest_first(group)
        steps = shuffled_N[:num_grouped].reshape(-1, self.global_batch_size)
        shuffled_N[:num_grouped] = steps[rng.permutation(len(steps))].ravel()
        shuffled_N[num_grouped:] = self._sort_longest_first(shuffled_N[num_grouped:])
        return shuffled_N

    def _sort_longest_first(self, rows: Int64s) -> Int64s:
        ordered: Int64s = rows[np.argsort(-self.lengths_N[rows], kind="stable")]
        return ordered


class Division(BatchSampler):
    """The micro-batches of one worker; all workers compute equally many, and together the steps of an ``Order``."""

    def __init__(self, order: Order, micro_batch_size: int, rank: int, num_workers: int) -> None:
        self._order, self._rank, self._num_workers, self._epoch = order, rank, num_workers, 0
        num_full, rest = divmod(len(order.lengths_N), order.global_batch_size)
        self.num_per_step = order.global_batch_size // (micro_batch_size * num_workers)
        self.num_per_epoch = num_full * self.num_per_step + -(-rest // (micro_batch_size * num_workers))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; ``transformers`` calls this too, below a sampler that skips batches."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the rows of each micro-batch; those of the last step may have fewer rows or none."""
        for number in range(self.num_per_epoch):
            step, turn = divmod(number, self.num_per_step)
            num_turns = min(self.num_per_step, self.num_per_epoch - step * self.num_per_step)
            parts = np.array_split(self._order.step(self._epoch, step), num_turns * self._num_workers)
            yield parts[turn * self._num_workers + self._rank].tolist()  # of similar length in all workers

    def __len__(self) -> int:
        return self.num_per_epoch


class TokenRows(Dataset[TrainingRow]):
    """The rows of a table that fit a training's ``max_length``, as token ids, in the order of their row ids."""

    def __init__(self, table: TableRef, tokenizer: Any, config: LmStudentConfig) -> None:
        """Tokenise the rows: a prompt and a completion or, for ``method: dpo``, a chosen and a rejected answer."""
        answers = ["chosen", "rejected"] if config.method == "dpo" else ["completion"]
        row_ids_N = io.read(table, columns=["row_id"])["row_id"].to_numpy()
        order_N = np.argsort(row_ids_N, kind="stable")
        ids, fields = pa.list_(pa.int32()), {"row_id": pa.int64(), "num_prompt": pa.int32()}
        schema = pa.schema(fields | dict.fromkeys(["input_ids", "rejected"][: len(answers)], ids))
        digest, lengths = hashlib.blake2b(digest_size=16), [np.empty(0, np.int32)]
        with tempfile.TemporaryDirectory(prefix="rows-") as folder:  # the file is mapped: it outlives its name
            file = str(Path(folder) / "rows.arrow")
            with pa.OSFile(file, "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
                for start in range(0, len(order_N), SCAN_ROWS):
                    texts = io.take_offsets(table, order_N[start : start + SCAN_ROWS], ["row_id", "prompt", *answers])
                    rows = _tokenize(texts, tokenizer, config, answers)
                    digest.update(repr(rows).encode())
                    lengths.append(np.array([count_tokens(row) for row in rows], np.int32))
                    fitting = [row for row in rows if count_tokens(row) <= config.max_length]
                    writer.write_batch(pa.RecordBatch.from_pylist(fitting, schema=schema))
            self._rows = ArrowRows.from_file(file)
        lengths_N = np.concatenate(lengths)
        fits_N = lengths_N <= config.max_length
        self.digest, self.num_rows = digest.hexdigest(), len(row_ids_N)
        """Digest and number of all rows, with those that are too long."""
        self.lengths_N = lengths_N[fits_N]  # number of tokens of each row
        self.dropped_M: Int64s = row_ids_N[order_N[~fits_N]]
        """The ids of the rows with more tokens than the limit, ascending."""

    def __len__(self) -> int:
        return len(self.lengths_N)

    def __getitems__(self, indices: Sequence[int]) -> list[TrainingRow]:
        found: list[Any] = self._rows.__getitems__(list(indices)) if len(indices) else []
        return found


def _tokenize(table: pa.Table, tokenizer: Any, config: LmStudentConfig, answers: Sequence[str]) -> list[TrainingRow]:
    """Return all rows of a table as token ids, whatever their length."""
    prompts, row_ids, template = table["prompt"].to_pylist(), table["row_id"].to_pylist(), config.chat_template
    found = []
    for name in answers:
        texts = table[name].to_pylist()
        completions = texts if name == "completion" else map(format_continuation, prompts, texts)
        found.append(tokenize(tokenizer, list(map(Pair, prompts, completions)), None, chat_template=template))
    rows: list[Any] = [{"row_id": row_id, **row} for row_id, row in zip(row_ids, found[0], strict=True)]
    for row, worse in zip(rows, found[1] if len(found) > 1 else (), strict=False):
        row["rejected"] = worse["input_ids"]
    return rows
