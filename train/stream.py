"""Rows of a selection as token ids, in batches whose order follows from the seed.

The rows are tokenised once, into a file on this worker's disk that is mapped into memory. In memory a worker keeps the
position, the length and the order of each row (20 bytes).
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from datasets import Dataset as ArrowRows
from torch.utils.data import BatchSampler, Dataset

from curation.arrays import Int64s
from curation.config import LmStudentConfig
from curation.domains.pair import format_continuation
from curation.refs import TableRef
from curation.tables import io
from train.launch import count_workers, gather_values
from train.tokens import Pair, TrainingRow, count_tokens, tokenize

GROUPED_BATCHES = 50
"""The number of global batches within which rows are sorted by length, as in ``transformers``."""
SCAN_ROWS = 4096
"""Number of rows that a worker tokenises at a time."""


@dataclass(frozen=True, eq=False)
class Order:
    """The batches of each epoch, as indices into the rows.

    The rows of a step follow from the lengths, the seed and the epoch alone. The number of workers and the size of a
    micro-batch only divide a step, so they change neither the order nor, up to rounding, the gradients.
    """

    lengths_N: npt.NDArray[np.int32]
    """The number of tokens of each row."""
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

    def micro_batch(self, epoch: int, number: int) -> Int64s:
        """Return the rows of micro-batch ``number`` of an epoch; the last step may have fewer or none.

        Rows of similar length go to the workers at the same time.
        """
        step, turn = divmod(number, self.num_per_step)
        num_turns = min(self.num_per_step, self.num_per_epoch - step * self.num_per_step)
        parts = np.array_split(self._order.step(epoch, step), num_turns * self._num_workers)
        return parts[turn * self._num_workers + self._rank]

    def __iter__(self) -> Iterator[list[int]]:
        return (self.micro_batch(self._epoch, number).tolist() for number in range(self.num_per_epoch))

    def __len__(self) -> int:
        return self.num_per_epoch


class TokenRows(Dataset[TrainingRow]):
    """The rows of a table that fit a training's ``max_length``, as token ids, in the order of their row ids."""

    def __init__(self, table: TableRef, tokenizer: Any, config: LmStudentConfig, file: Path) -> None:
        """Tokenise the rows into ``file``; the workers of a training share the work, so all of them call this.

        Rows are a prompt and a completion or, for ``method: dpo``, a chosen and a rejected answer, with their trust if
        ``weight_by_trust`` is set.
        """
        dataset: Any = lance.dataset(table.uri, version=table.version)
        answers = ["chosen", "rejected"] if config.method == "dpo" else ["completion"]
        with_trust = getattr(config, "weight_by_trust", False)
        columns = ["row_id", "prompt", *answers, *(["trust"] if with_trust else [])]
        fields = {"row_id": pa.int64(), "input_ids": pa.list_(pa.int32()), "num_prompt": pa.int32()}
        fields |= {"rejected": fields["input_ids"]} if len(answers) > 1 else {}
        fields |= {"trust": pa.float64()} if with_trust else {}
        self.num_rows: int = dataset.count_rows()
        num_workers = count_workers()
        rank = torch.distributed.get_rank() if num_workers > 1 else 0
        lengths, digest = [np.empty(0, np.int32)], 0
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, pa.schema(fields)) as writer:
            for start in range(0, self.num_rows, SCAN_ROWS * num_workers):
                first = min(start + rank * SCAN_ROWS, self.num_rows)
                part = dataset.to_table(columns, offset=first, limit=min(SCAN_ROWS, self.num_rows - first))
                rows = _tokenize(part, tokenizer, config, answers)
                own = sum(int.from_bytes(hashlib.blake2b(repr(row).encode(), digest_size=16).digest()) for row in rows)
                counts = np.array([count_tokens(row) for row in rows], np.int32)
                batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema(fields))
                for batch_there, counts_B, sum_of_digests in gather_values((batch, counts, own)):
                    writer.write_batch(batch_there)
                    lengths.append(counts_B)
                    digest += sum_of_digests
        self.digest = f"{digest % 2**128:032x}"
        """Digest of all rows, whatever their order in the table."""
        self._rows = ArrowRows.from_file(str(file))
        lengths_N, row_ids_N = np.concatenate(lengths), self._rows.data["row_id"].to_numpy()
        by_id_N = np.argsort(row_ids_N, kind="stable")
        fits_N = lengths_N[by_id_N] <= config.max_length
        self._positions_N = by_id_N[fits_N]
        self.lengths_N = lengths_N[self._positions_N]
        """The number of tokens of each row."""
        self.dropped_M: Int64s = row_ids_N[by_id_N[~fits_N]]
        """The ids of the rows with more tokens than the limit, ascending."""
        self.mean_trust: float | None = None
        """Mean trust of the rows, or None if trust is not read or no row fits."""
        if with_trust and len(self):
            self.mean_trust = float(self._rows.data["trust"].to_numpy()[self._positions_N].mean())

    def __len__(self) -> int:
        return len(self._positions_N)

    def __getitems__(self, indices: Sequence[int]) -> list[TrainingRow]:
        found: list[Any] = self._rows.__getitems__(self._positions_N[list(indices)].tolist()) if len(indices) else []
        return found


def _tokenize(table: pa.Table, tokenizer: Any, config: LmStudentConfig, answers: Sequence[str]) -> list[TrainingRow]:
    """Return all rows of a table as token ids, whatever their length."""
    prompts, template = table["prompt"].to_pylist(), config.chat_template
    found = []
    for name in answers:
        texts = table[name].to_pylist()
        completions = texts if name == "completion" else map(format_continuation, prompts, texts)
        found.append(tokenize(tokenizer, list(map(Pair, prompts, completions)), None, chat_template=template))
    kept = table.select([name for name in ("row_id", "trust") if name in table.column_names]).to_pylist()
    worse = [{"rejected": row["input_ids"]} for row in found[1]] if len(found) > 1 else [{} for _ in kept]
    rows: list[Any] = [{**row, **of_row, **other} for row, of_row, other in zip(found[0], kept, worse, strict=True)]
    return rows


def write_pairs(pairs: Sequence[Pair], path: Path) -> TableRef:
    """Write pairs as a table to train on, with their numbers as row ids."""
    rows = [{"row_id": number, **pair._asdict()} for number, pair in enumerate(pairs)]
    schema = pa.schema([("row_id", pa.int64()), ("prompt", pa.string()), ("completion", pa.string())])
    return io.write(pa.Table.from_pylist(rows, schema=schema), str(path))
