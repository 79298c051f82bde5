"""Keys by which rows count as one label (``selection.max_per_label``): label, pool column, or function.

Keys are hashes of texts (:mod:`curation.tables.text_hashes`). Each row without a text (an unparsed label, a null) has
a key of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curation.arrays import Int64s
from curation.domains import Domain, attempt
from curation.errors import ConfigError
from curation.refs import TableRef
from curation.registry import load_code
from curation.selection.capped import Labels, make_own_labels
from curation.tables import io
from curation.tables.text_hashes import NO_TEXT, hash_texts

BY_LABEL = "label"
_KEY = "selection.max_per_label_by"

Reader = Callable[[Int64s, pa.Array], Labels]
"""Function from the row ids and weak labels of some rows to the keys that count as their labels."""


def check_by(by: str, domain: Domain) -> None:
    """Refuse a ``selection.max_per_label_by`` that the rows of a domain do not have.

    Raises:
        ConfigError: it is neither ``label``, nor a column of the pool, nor a function.
    """
    if ":" in by:
        try:
            found = load_code(by)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"{_KEY}: {by!r} cannot be imported ({error}); give module:function") from error
        if not callable(found):
            raise ConfigError(f"{_KEY}: {by!r} is not a function; give a function of an example and its label")
    elif by != BY_LABEL and by not in domain.columns.names:
        known = ", ".join([BY_LABEL, *domain.columns.names])
        raise ConfigError(f"{_KEY}: the pool has no column {by!r}; give one of {known}, or module:function")


@dataclass(frozen=True, kw_only=True)
class LabelKeys:
    """The key that rows are counted by; pickled to every task."""

    by: str
    pool: TableRef
    audit: TableRef | None = None
    """The audit table for arms that draw rows and teach gold labels, which then count instead of the weak labels."""

    def reader(self) -> Reader:
        """Return a reader for one pass, which holds 24 bytes per run of consecutive ids of the tables that it reads.

        Raises:
            ConfigError: a column cannot be read as text, or the function failed.
        """
        golds = None if self.audit is None else _make_column_reader(self.audit, "gold")
        column = None if self.by == BY_LABEL or ":" in self.by else _make_column_reader(self.pool, self.by)
        function = load_code(self.by) if ":" in self.by else None
        find = io.make_offset_finder(self.pool) if function is not None else None

        def read(row_ids_M: Int64s, weak_M: pa.Array) -> Labels:
            if column is not None:
                return _make_labels(row_ids_M, _as_text(column(row_ids_M), self.by))
            label_M = weak_M if golds is None else golds(row_ids_M)
            if function is None or find is None:
                return _make_labels(row_ids_M, label_M)
            examples = io.take_offsets(self.pool, find(row_ids_M)).to_pylist()
            values = []
            for example, label in zip(examples, label_M.to_pylist(), strict=True):
                value, error = attempt(function, example, label)
                if error:
                    raise ConfigError(f"{_KEY}: {self.by} failed for row {example['row_id']}: {error}")
                values.append(None if value is None else str(value))
            return _make_labels(row_ids_M, pa.array(values, pa.string()))

        return read


def _make_labels(row_ids_M: Int64s, text_M: pa.Array) -> Labels:
    hash_M = hash_texts(text_M)
    return np.where(hash_M == NO_TEXT, make_own_labels(row_ids_M), hash_M)


def _make_column_reader(ref: TableRef, name: str) -> Callable[[Int64s], pa.Array]:
    find = io.make_offset_finder(ref)
    return lambda row_ids_M: io.take_offsets(ref, find(row_ids_M), [name])[name].combine_chunks()


def _as_text(column: pa.Array, name: str) -> pa.Array:
    try:
        return pc.cast(column, pa.string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise ConfigError(
            f"{_KEY}: the column {name!r} is {column.type}, which is neither text nor a number"
        ) from error
