"""JSON files are read in blocks, whatever their length, and a range costs only its own bytes."""

import gzip
import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from curation.sources import SourceFile, records
from curation.sources.records import iter_records

ROWS = [{"id": number, "text": "é🙂" * (number % 40)} for number in range(300)]
TEXTS = [
    json.dumps(ROWS, ensure_ascii=False),
    "\ufeff" + json.dumps(ROWS, ensure_ascii=False, indent=2),
    "\n\n".join(json.dumps(row) for row in ROWS),
]


def as_file(path: str) -> SourceFile:
    return SourceFile(path=path, format="json", index=0, num_rows=0, size=0, modified="", schema={})


@pytest.mark.parametrize("block", [7, 64, 1 << 20])
@pytest.mark.parametrize("text", TEXTS)
def test_values_are_the_same_in_blocks_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, block: int
) -> None:
    monkeypatch.setattr(records, "BLOCK_BYTES", block)
    (tmp_path / "x.json").write_text(text)
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("x.json", "x.json.gz"):
        file = as_file(str(tmp_path / name))
        found = list(iter_records(file, 0, 1))
        assert [json.loads(value) for _, value in found] == ROWS
        assert list(iter_records(file, found[123][0], 124)) == found[123:]


class CountedFile(io.BytesIO):
    """A file that counts the bytes that are read of it."""

    num_read = 0

    def read(self, size: int | None = -1) -> bytes:
        block = super().read(size)
        self.num_read += len(block)
        return block


def test_a_range_of_a_json_file_reads_blocks_not_the_rest_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "BLOCK_BYTES", 1_000)
    file = CountedFile(json.dumps([{"id": number} for number in range(100_000)]).encode())
    store = SimpleNamespace(open_input_file=lambda inner: file)
    monkeypatch.setattr(records, "get_filesystem", lambda path: (store, path))
    found = iter_records(as_file("x.json"), 0, 1)
    for _ in range(1_000):
        next(found)
    assert file.num_read < 20_000
