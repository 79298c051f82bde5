"""Folders of an output by the values of columns, named as Hive does: ``language=en/year=2024``.

Values are percent-encoded, and a null is Hive's ``__HIVE_DEFAULT_PARTITION__``, as pyarrow, Spark, DuckDB and Polars
read them. The values are only in the folders' names, not in the files.
"""

from collections.abc import Mapping, Sequence
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from curation.errors import ConfigError

NULL = "__HIVE_DEFAULT_PARTITION__"
MAX_FOLDERS = 1024
MAX_BYTES = 255
"""Maximum size of a folder's name on common file systems, in bytes."""


def check_columns(columns: Sequence[str], schema: pa.Schema) -> None:
    """Refuse columns by which rows cannot be divided.

    Raises:
        ConfigError: the output has no such column, or one that is neither text, a whole number, nor true or false.
    """
    for name in columns:
        if name not in schema.names:
            raise ConfigError(
                f"output.partition_by: the output has no column {name!r} (it has: {', '.join(schema.names)}); "
                "a column of the pool's files has to be in pool.columns, too"
            )
        kind = schema.field(name).type
        if not (pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
            raise ConfigError(
                f"output.partition_by: column {name!r} is {kind}; take one of text, whole numbers, or true and false"
            )


def check_number(folders: Sequence[str]) -> None:
    """Refuse to make more than ``MAX_FOLDERS`` folders.

    Raises:
        ConfigError: the rows that pass have more than that many values.
    """
    if len(folders) > MAX_FOLDERS:
        raise ConfigError(
            f"output.partition_by: the rows that pass have {len(folders):,} values, and each is a folder; take columns "
            f"with at most {MAX_FOLDERS:,} (the labels are kept)"
        )


def format_folders(columns: Mapping[str, pa.Array]) -> pa.Array:
    """Return the folder of each row, string [N], from the columns by name, the outermost first.

    Raises:
        ConfigError: a value is too long for a folder's name.
    """
    parts = []
    for name, values in columns.items():
        coded = values.dictionary_encode(null_encoding="encode")
        names = pa.array([_format_segment(name, value) for value in coded.dictionary.to_pylist()], pa.string())
        parts.append(names.take(coded.indices))
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, "/")


def _format_segment(name: str, value: str | int | bool | None) -> str:
    text = NULL if value is None else str(value).lower() if isinstance(value, bool) else quote(str(value), safe="")
    segment = f"{quote(name, safe='')}={text}"
    if len(segment) > MAX_BYTES:
        raise ConfigError(
            f"output.partition_by: a value of {name!r} makes a folder's name of {len(segment):,} bytes "
            f"({segment[:60]}...), more than {MAX_BYTES}; take another column"
        )
    return segment
