"""Pool rows that ask the same question, found among tables of several fragments and buckets."""

import contextlib
from collections import Counter

import lance
import numpy as np
import pyarrow as pa
import pytest

from curation.config import DomainConfig
from curation.refs import TableRef
from curation.stages import overlap
from curation.stages.overlap import FindRepeats
from curation.tables import io


class Quiet:
    """What the stage reads of a task."""

    name = "repeats"

    def __init__(self, directory) -> None:
        self.directory, self.said = directory, []

    def say(self, text: str) -> None:
        self.said.append(text)

    def progress(self):
        return contextlib.nullcontext(lambda standing: None)


def pool(folder, texts: list[str | None]) -> TableRef:
    errors = [None if text is not None else "null_field: text" for text in texts]
    ids = np.arange(len(texts))[::-1] + 5
    table = pa.table({"row_id": ids, "text": pa.array(texts, pa.string()), "error": pa.array(errors, pa.string())})
    uri = str(folder / "pool.lance")
    return TableRef(uri=uri, version=lance.write_dataset(table, uri, max_rows_per_file=50).version)


@pytest.mark.parametrize("bucket_rows", [1 << 25, 60])
def test_rows_of_repeated_questions_are_found(local_ray, tmp_path, monkeypatch, bucket_rows):
    monkeypatch.setattr(overlap, "TASK_ROWS", 100)
    monkeypatch.setattr(overlap, "BUCKET_ROWS", bucket_rows)
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 250, 300).tolist()
    ways = (" text  NO. {}.", "Text no. {}")
    texts = [None if number == 3 else ways[row % 2].format(number) for row, number in enumerate(numbers)]
    ref, task = pool(tmp_path, texts), Quiet(tmp_path)
    domain = DomainConfig(name="classification", classes=["a", "b"])
    made = FindRepeats(name="repeats", pool=ref, domain=domain).run(task).outputs
    counted = Counter(number for number in numbers if number != 3)
    again = {number: count for number, count in counted.items() if count > 1}
    assert made.counts.num_rows == sum(again.values()) and made.counts.num_questions == len(again)
    found = io.read(made.repeats)
    rows = {len(numbers) - 1 - row + 5: number for row, number in enumerate(numbers)}
    assert found["row_id"].to_pylist() == sorted(row_id for row_id, number in rows.items() if number in again)
    pairs = {(rows[row["row_id"]], row["question"]) for row in found.to_pylist()}
    assert len(pairs) == len(again), "a question has one hash, and no two have the same"
    assert "selects the best row of each" in task.said[0]


def test_a_pool_without_repeats_has_no_table(local_ray, tmp_path):
    task = Quiet(tmp_path)
    domain = DomainConfig(name="classification", classes=["a", "b"])
    made = FindRepeats(name="repeats", pool=pool(tmp_path, ["one", "two"]), domain=domain).run(task).outputs
    assert made.repeats is None and made.counts.num_rows == 0 and not task.said
