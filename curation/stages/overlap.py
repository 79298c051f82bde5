"""No example in two splits: what something was trained or fitted on is neither tested on nor curated."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import ray.data

from curation import store
from curation.domains import get_domain
from curation.errors import RowError, SourceError
from curation.refs import TableRef


class _Prompts(NamedTuple):
    split: str
    hash_N: npt.NDArray[np.uint64]
    row_ids_N: npt.NDArray[np.int64]


def refuse_overlap(refs: Mapping[str, TableRef], domain: str, *, last: str) -> None:
    """Compare the healthy rows of all splits by a 64-bit hash of their prompts.

    The prompt is what a model sees; columns beside it, such as a rating, may differ between two copies of a row. The
    driver holds 16 bytes a row of all splits but ``last``, which is streamed past them.

    Raises:
        SourceError: names two splits, how many rows they share, and one of them.
    """
    names = [name for name in refs if name != last]
    parts = list(_hashed({name: refs[name] for name in names}, domain))
    hash_N = np.concatenate([np.empty(0, np.uint64), *(part.hash_N for part in parts)])
    ids_N = np.concatenate([np.empty(0, np.int64), *(part.row_ids_N for part in parts)])
    split_N = np.repeat([names.index(part.split) for part in parts], [len(part.hash_N) for part in parts])
    order_N = np.lexsort((split_N, hash_N))
    hash_N, ids_N, split_N = hash_N[order_N], ids_N[order_N], split_N[order_N]
    clash_M = np.flatnonzero((hash_N[1:] == hash_N[:-1]) & (split_N[1:] != split_N[:-1]))
    if clash_M.size:
        at = clash_M[0]
        pair = names[split_N[at]], names[split_N[at + 1]]
        num_rows = int(((split_N[clash_M] == split_N[at]) & (split_N[clash_M + 1] == split_N[at + 1])).sum())
        raise _overlap(refs, pair, num_rows, ids_N[at], ids_N[at + 1])
    clashes = np.zeros(len(names), dtype=np.int64)
    examples: dict[int, tuple[Any, Any]] = {}
    for part in _hashed({last: refs[last]}, domain) if len(hash_N) else ():
        place_N = np.minimum(np.searchsorted(hash_N, part.hash_N), len(hash_N) - 1)
        for row in np.flatnonzero(hash_N[place_N] == part.hash_N):
            split = int(split_N[place_N[row]])
            clashes[split] += 1
            examples.setdefault(split, (ids_N[place_N[row]], part.row_ids_N[row]))
    if examples:
        split = int(clashes.argmax())
        raise _overlap(refs, (names[split], last), int(clashes[split]), *examples[split])


def _overlap(
    refs: Mapping[str, TableRef], pair: tuple[str, str], num_rows: int, one: np.int64, other: np.int64
) -> SourceError:
    row = store.take(refs[pair[0]], np.array([one])).drop_columns(["row_id", "error"]).to_pylist()[0]
    row.pop("gold", None)
    return SourceError(
        f"splits {pair[0]} and {pair[1]} share {num_rows} examples: the same prompt stands in row {one} of the one and "
        f"in row {other} of the other ({json.dumps(row, default=str)}); remove repeated rows from the input "
        "files, or take both splits from one source that holds each row once"
    )


def _hashed(refs: Mapping[str, TableRef], domain: str) -> Iterator[_Prompts]:
    """The hashed prompts of tables, a fragment at a time."""
    items: list[Any] = [
        {"split": name, "fragment": fragment.fragment_id}
        for name, ref in refs.items()
        for fragment in store.open_table(ref).get_fragments()
    ]
    if not items:
        return
    hashed = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        partial(_hash, refs=dict(refs), domain=domain), batch_size=1
    )
    for batch in hashed.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        table: Any = batch  # ray's type is that of all batch formats
        for row in table.to_pylist():
            yield _Prompts(
                row["split"], np.frombuffer(row["hashes"], np.uint64), np.frombuffer(row["row_ids"], np.int64)
            )


def _hash(batch: Mapping[str, Any], refs: Mapping[str, TableRef], domain: str) -> pa.Table:
    split = str(batch["split"][0])
    fragment = store.open_table(refs[split]).get_fragment(int(batch["fragment"][0]))
    assert fragment is not None, "a pinned version keeps its fragments"
    prompt, hashes, row_ids = get_domain(domain).prompt, [], []
    for row in fragment.to_table(filter="error IS NULL").to_pylist():
        try:
            text = prompt(row)
        except RowError:
            continue  # the label stage makes it an error row
        hashes.append(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))
        row_ids.append(row["row_id"])
    return pa.table(
        {
            "split": [split],
            "hashes": [np.array(hashes, np.uint64).tobytes()],
            "row_ids": [np.array(row_ids, np.int64).tobytes()],
        }
    )
