"""Atomic writing of batches of rows as one Parquet or JSONL file, which never has its name before it is complete."""

import json
import tempfile
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from curation.json_types import Json
from curation.storage.digest import compute_sha256
from curation.storage.durable import sync_names
from curation.storage.files import sync_file
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
    """Write the batches as a ``parquet`` or ``jsonl`` file, and put it in place; replace a file of that name.

    A local file's content and name are on the disk when this returns.
    """
    if isinstance(target, Remote):
        with tempfile.TemporaryDirectory(prefix="curation-") as folder:
            local = Path(folder) / target.name
            written = _write(batches, schema, local, target.name, form)
            target.put(local)
            return written
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        written = _write(batches, schema, temporary, target.name, form)
        sync_file(temporary)
        temporary.replace(target)
        sync_names(target.parent)
        return written
    finally:
        temporary.unlink(missing_ok=True)


def _write(batches: Iterable[pa.RecordBatch], schema: pa.Schema, local: Path, name: str, form: str) -> WrittenFile:
    rows = (_write_parquet if form == "parquet" else _write_jsonl)(batches, schema, local)
    return WrittenFile(path=name, rows=rows, bytes=local.stat().st_size, sha256=compute_sha256(local))


def _write_parquet(batches: Iterable[pa.RecordBatch], schema: pa.Schema, local: Path) -> int:
    rows = 0
    with pq.ParquetWriter(local, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _write_jsonl(batches: Iterable[pa.RecordBatch], schema: pa.Schema, local: Path) -> int:
    rows = 0
    with local.open("w", encoding="utf-8") as file:
        for batch in batches:
            file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in batch.to_pylist())
            rows += batch.num_rows
    return rows
