"""Rows of a selection as batches of tokens, read from the table while a training runs.

A worker keeps the position and the length of each row (12 bytes), the order of an epoch (8 bytes a row) and the text of
two blocks of rows. It reads and tokenises a block while the block before it is trained on.
"""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from torch.utils.data import BatchSampler, DataLoader, Dataset

from curation.arrays import Float64s, Int64s
from curation.domains.pair import format_continuation
from curation.refs import TableRef
from curation.tables import io
from train.agreement import gather_values
from train.tokens import Pair, TrainingRow, count_tokens, tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GROUPED_BATCHES = 50
"""The number of global batches within which rows are sorted by length, as in ``transformers``."""


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


@dataclass(frozen=True)
class Division:
    """A division of an :class:`Order`'s steps among workers, each of which computes equally many micro-batches."""

    order: Order
    micro_batch_size: int
    rank: int
    num_workers: int

    @property
    def num_per_step(self) -> int:
        """The number of micro-batches of each worker in a full step."""
        return self.order.global_batch_size // (self.micro_batch_size * self.num_workers)

    @property
    def num_per_epoch(self) -> int:
        """The number of micro-batches of each worker in an epoch."""
        num_full, rest = divmod(len(self.order.lengths_N), self.order.global_batch_size)
        return num_full * self.num_per_step + -(-rest // (self.micro_batch_size * self.num_workers))

    def micro_batch(self, epoch: int, number: int) -> Int64s:
        """Return the rows of this worker's micro-batch ``number`` of an epoch; the last step may have fewer or none.

        Rows of similar length go to the workers at the same time.
        """
        step, turn = divmod(number, self.num_per_step)
        num_turns = min(self.num_per_step, self.num_per_epoch - step * self.num_per_step)
        parts = np.array_split(self.order.step(epoch, step), num_turns * self.num_workers)
        return parts[turn * self.num_workers + self.rank]


SCAN_ROWS = 4096
"""Number of rows that are tokenised at a time to measure their lengths."""
BLOCK_ROWS = 1024
"""Number of rows of a block, which has at least one micro-batch."""


def write_pairs(pairs: Sequence[Pair], path: Path) -> TableRef:
    """Write pairs as a table to train on, with their numbers as row ids."""
    rows = [{"row_id": number, **pair._asdict()} for number, pair in enumerate(pairs)]
    schema = pa.schema([("row_id", pa.int64()), ("prompt", pa.string()), ("completion", pa.string())])
    return io.write(pa.Table.from_pylist(rows, schema=schema), str(path))


class Survey(NamedTuple):
    """Statistics of all rows before a training's first step; the N kept ones are in the order of their row ids."""

    positions_N: Int64s
    """The position of each kept row in the table."""
    lengths_N: npt.NDArray[np.int32]
    """The number of tokens of each kept row."""
    dropped_M: Int64s
    """The ids of the rows with more tokens than the limit, ascending."""
    digest: str
    """Digest of all rows as they are read, whatever their order in the table."""
    mean_trust: float | None
    """Mean trust of the kept rows, or None if trust is not read or no row is kept."""


class TokenSource:
    """A table of prompts and completions, as token ids."""

    text: ClassVar[Sequence[str]] = ("row_id", "prompt", "completion")
    """The columns that make up a row."""

    def __init__(
        self,
        rows: TableRef,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        max_length: int,
        chat_template: bool,
        with_trust: bool = False,
    ) -> None:
        """Read the column ``trust``, too, if ``with_trust`` is set."""
        self._table = lance.dataset(rows.uri, version=rows.version)
        self._tokenizer, self._max_length, self._chat_template = tokenizer, max_length, chat_template
        self._columns = [*self.text, "trust"] if with_trust else [*self.text]
        self.num_rows: int = self._table.count_rows()

    def survey(self, rank: int = 0, num_workers: int = 1) -> Survey:
        """Measure all rows; the workers of a training share the work, so all of them call it."""
        first, last = (self.num_rows * worker // num_workers for worker in (rank, rank + 1))
        ids, lengths, trusts, digests = zip(*gather_values(self._measure_share(first, last - first)), strict=True)
        row_ids_N, lengths_N, trusts_N = np.concatenate(ids), np.concatenate(lengths), np.concatenate(trusts)
        by_id_N = np.argsort(row_ids_N, kind="stable")
        fits_N = lengths_N[by_id_N] <= self._max_length
        positions_N = by_id_N[fits_N]
        return Survey(
            positions_N=positions_N,
            lengths_N=lengths_N[positions_N],
            dropped_M=row_ids_N[by_id_N[~fits_N]],
            digest=f"{sum(digests) % 2**128:032x}",
            mean_trust=float(trusts_N[positions_N].mean()) if "trust" in self._columns and len(positions_N) else None,
        )

    def _measure_share(self, first: int, num: int) -> tuple[Int64s, npt.NDArray[np.int32], Float64s, int]:
        """Return ids, lengths and trust of ``num`` rows from ``first`` on, and the sum of their digests."""
        row_ids, lengths, trusts, digest = [np.empty(0, np.int64)], [np.empty(0, np.int32)], [np.empty(0)], 0
        scanner = self._table.scanner(self._columns, offset=first, limit=num, batch_size=SCAN_ROWS)
        for batch in scanner.to_batches() if num else ():
            rows = self._tokenize_columns(batch, limit=None)
            row_ids.append(batch["row_id"].to_numpy())
            lengths.append(np.array([count_tokens(row) for row in rows], np.int32))
            if "trust" in self._columns:
                trusts.append(batch["trust"].to_numpy(zero_copy_only=False).astype(np.float64))
            columns = [batch[name].to_pylist() for name in self._columns]
            for row in zip(*columns, strict=True):
                digest += int.from_bytes(hashlib.blake2b(repr(row).encode(), digest_size=16).digest())
        return np.concatenate(row_ids), np.concatenate(lengths), np.concatenate(trusts), digest

    def take(self, positions: Sequence[int]) -> list[TrainingRow]:
        """Return the rows at these positions of the table."""
        table = self._table.take(list(positions), columns=self._columns)
        rows = self._tokenize_columns(table, limit=self._max_length)
        kept = table.select([name for name in ("row_id", "trust") if name in self._columns]).to_pylist()
        return [{**row, **of_row} for row, of_row in zip(rows, kept, strict=True)]

    def _tokenize_columns(self, columns: Any, *, limit: int | None) -> list[TrainingRow]:
        return self._tokenize(columns["prompt"].to_pylist(), columns["completion"].to_pylist(), limit)

    def _tokenize(self, prompts: list[str], completions: list[str], limit: int | None = None) -> list[TrainingRow]:
        pairs = [Pair(*pair) for pair in zip(prompts, completions, strict=True)]
        return tokenize(self._tokenizer, pairs, limit, chat_template=self._chat_template)


class PreferenceSource(TokenSource):
    """A table of prompts with a chosen and a rejected answer each, as token ids."""

    text = ("row_id", "prompt", "chosen", "rejected")

    def _tokenize_columns(self, columns: Any, *, limit: int | None) -> list[TrainingRow]:
        prompts = columns["prompt"].to_pylist()
        chosen, rejected = (
            self._tokenize(prompts, list(map(format_continuation, prompts, columns[name].to_pylist())))
            for name in ("chosen", "rejected")
        )
        pairs = zip(chosen, rejected, strict=True)
        rows: list[TrainingRow] = [{**better, "rejected": worse["input_ids"]} for better, worse in pairs]
        return [row for row in rows if limit is None or count_tokens(row) <= limit]


class Loader(DataLoader[Any]):
    """The micro-batches of one worker, epoch after epoch; batches skipped on resuming are not read."""

    def __init__(self, source: TokenSource, positions_N: Int64s, division: Division, **settings: Any) -> None:
        """Pass ``settings`` on to ``torch.utils.data.DataLoader``."""
        self._numbers = _MicroBatchNumbers(division)
        super().__init__(_Blocks(source, positions_N, division, self._numbers), batch_sampler=self._numbers, **settings)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose batches come next."""
        self._numbers.set_epoch(epoch)


class _MicroBatchNumbers(BatchSampler):
    """A sampler of the numbers of a worker's micro-batches, one at a time; the dataset reads their rows."""

    def __init__(self, division: Division) -> None:
        self._division, self.epoch = division, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; ``transformers`` calls this too, below a sampler that skips batches."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        return ([number] for number in range(len(self)))

    def __len__(self) -> int:
        return self._division.num_per_epoch


class _Blocks(Dataset[TrainingRow]):
    """A dataset that reads micro-batches in blocks, one block ahead."""

    def __init__(
        self, source: TokenSource, positions_N: Int64s, division: Division, numbers: _MicroBatchNumbers
    ) -> None:
        self._source, self._positions_N, self._division, self._numbers = source, positions_N, division, numbers
        self._num = max(BLOCK_ROWS // division.micro_batch_size, 1)
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rows")
        self._blocks: dict[tuple[int, int], Future[list[list[TrainingRow]]]] = {}

    def __getitems__(self, numbers: list[int]) -> list[TrainingRow]:
        epoch, block = self._numbers.epoch, numbers[0] // self._num
        wanted = [(epoch, each) for each in (block, block + 1) if each * self._num < len(self._numbers)]
        self._blocks = {key: self._blocks.get(key) or self._reader.submit(self._read, *key) for key in wanted}
        return self._blocks[epoch, block].result()[numbers[0] % self._num]

    def __len__(self) -> int:
        return len(self._positions_N)

    def _read(self, epoch: int, block: int) -> list[list[TrainingRow]]:
        last = min((block + 1) * self._num, len(self._numbers))
        indices = [self._division.micro_batch(epoch, number) for number in range(block * self._num, last)]
        together = np.concatenate(indices)
        rows = iter(self._source.take(self._positions_N[together].tolist())) if len(together) else iter(())
        return [[next(rows) for _ in part] for part in indices]
