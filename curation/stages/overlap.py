"""No example in two splits: what something was trained or fitted on is neither tested on nor curated.

Rows are first compared by a hash of their text alone, since numbers beside it, such as a rating, differ between two
copies of one row; those that agree are then compared by their prompts, which is what a model sees.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation import store
from curation.domains import Domain
from curation.errors import RowError, SourceError
from curation.refs import TableRef

Int64s = npt.NDArray[np.int64]


def refuse_overlap(refs: Mapping[str, TableRef], domains: Mapping[str, Domain], *, last: str) -> None:
    """See that no healthy rows of two splits have the same prompt; both by split.

    Splits of different kinds of rows have no row in common and are not compared.

    Holds 24 bytes a row of all splits but ``last``, which is streamed past them.

    Raises:
        SourceError: names two splits, how many rows they share, and one of them.
    """
    names = [name for name in refs if name != last]
    parts = [(number, *part) for number, name in enumerate(names) for part in _hashed(refs[name], domains[name])]
    split_N = np.concatenate([np.full(len(ids), number, dtype=np.int64) for number, ids, _ in parts])
    ids_N, hash_N = np.concatenate([ids for _, ids, _ in parts]), np.concatenate([hashes for *_, hashes in parts])
    order_N = np.lexsort((split_N, hash_N))
    split_N, ids_N, hash_N = split_N[order_N], ids_N[order_N], hash_N[order_N]
    alike: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for row in np.flatnonzero((hash_N[1:] == hash_N[:-1]) & (split_N[1:] != split_N[:-1])):
        one, other = (names[split_N[place]] for place in (row, row + 1))
        alike[one, other].append((int(ids_N[row]), int(ids_N[row + 1])))
    for pool_ids_M, pool_hash_M in _hashed(refs[last], domains[last]):
        place_M = np.minimum(np.searchsorted(hash_N, pool_hash_M), len(hash_N) - 1)
        for row in np.flatnonzero(hash_N[place_M] == pool_hash_M):
            alike[names[split_N[place_M[row]]], last].append((int(ids_N[place_M[row]]), int(pool_ids_M[row])))
    for (one, other), pairs in alike.items():
        _refuse_same_prompts(one, other, refs, np.array(pairs, dtype=np.int64), domains)


def _hashed(ref: TableRef, domain: Domain) -> Iterator[tuple[Int64s, Int64s]]:
    """The ids of a table's healthy rows and a hash of each one's text (of all columns in a domain without text).

    Hashes of different kinds of rows differ.
    """
    numeric = [field.name for field in domain.columns if pa.types.is_primitive(field.type)]
    columns = [name for name in domain.columns.names if name not in numeric] or numeric
    for batch in store.open_table(ref).scanner(columns=["row_id", *columns], filter="error IS NULL").to_batches():
        values = zip(*(map(str, batch.column(name).to_pylist()) for name in columns), strict=True)
        hashes = (hash((domain.name, *row)) for row in values)
        yield batch.column("row_id").to_numpy(), np.fromiter(hashes, dtype=np.int64, count=batch.num_rows)


def _refuse_same_prompts(
    one: str, other: str, refs: Mapping[str, TableRef], pairs_N2: Int64s, domains: Mapping[str, Domain]
) -> None:
    prompts = [_prompts(refs[name], pairs_N2[:, side], domains[name]) for side, name in enumerate((one, other))]
    same = [row for row, (left, right) in enumerate(zip(*prompts, strict=True)) if left is not None and left == right]
    if same:
        left, right = pairs_N2[same[0]].tolist()
        example = store.take(refs[one], np.array([left]), domains[one].columns.names).to_pylist()[0]
        raise SourceError(
            f"splits {one} and {other} share {len(same)} examples: the same prompt stands in row {left} of the one and "
            f"in row {right} of the other ({json.dumps(example, default=str)}); remove repeated rows from the input "
            "files, or take both splits from one source that holds each row once"
        )


def _prompts(ref: TableRef, row_ids_N: Int64s, domain: Domain) -> Sequence[str | None]:
    """The prompt of each row; None where it has none."""
    unique_M, place_N = np.unique(row_ids_N, return_inverse=True)
    prompts = [_prompt(example, domain) for example in store.take(ref, unique_M).to_pylist()]
    return [prompts[place] for place in place_N]


def _prompt(example: Mapping[str, Any], domain: Domain) -> str | None:
    try:
        return domain.prompt(example)
    except RowError:
        return None
