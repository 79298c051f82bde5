"""Atomic writing of batches of rows as one Parquet or JSONL file, which gets its name when it is complete."""

import json
import tempfile
import uuid
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from curation.json_types import Json
from curation.storage.digest import compute_sha256
from curation.storage.files import sync_file, sync_names
from curation.storage.paths import Place, Remote


@dataclass(frozen=True, kw_only=True)
class WrittenFile:
    """A written file: its ``path`` relative to the output, number of rows, size in bytes and digest."""

    path: str
    rows: int
    bytes: int
    sha256: str

    def to_json(self) -> Json:
        """Return the file as a JSON object."""
        return asdict(self)


def write_file(batches: Iterable[pa.RecordBatch], schema: pa.Schema, target: Place, form: str) -> WrittenFile:
    """Write the batches as a ``parquet`` or ``jsonl`` file, replace an existing one, and sync it to the disk."""
    folder = Path(tempfile.mkdtemp(prefix="curation-")) if isinstance(target, Remote) else target.parent
    folder.mkdir(parents=True, exist_ok=True)
    local = folder / f".{target.name}.{uuid.uuid4().hex}"
    parquet: Any = partial(pq.ParquetWriter, schema=schema, compression="zstd") if form == "parquet" else nullcontext
    try:
        num_rows = 0
        with local.open("wb") as file, parquet(file) as writer:
            for batch in batches:
                num_rows += batch.num_rows
                if form == "parquet":
                    writer.write_batch(batch)
                else:
                    writer.writelines(f"{_format_row(row)}\n".encode() for row in batch.to_pylist())
        size, digest = local.stat().st_size, compute_sha256(local)
        if isinstance(target, Remote):
            target.put(local)
        else:
            sync_file(local)
            local.replace(target)
            sync_names(target.parent)
        return WrittenFile(path=target.name, rows=num_rows, bytes=size, sha256=digest)
    finally:
        local.unlink(missing_ok=True)
        if isinstance(target, Remote):
            folder.rmdir()


def _format_row(row: Json) -> str:
    """Return a row as a line of JSON, with null for NaN and infinity, which JSON lacks."""
    try:
        return json.dumps(row, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        finite = json.loads(json.dumps(row, default=str), parse_constant=lambda name: None)
        return json.dumps(finite, ensure_ascii=False)
