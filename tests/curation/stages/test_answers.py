"""Answers that are kept for other runs: what they depend on, and entries that are damaged, foreign or half written."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from object_store import object_store

from curation.config import DomainConfig
from curation.domains.mcqa import Mcqa
from curation.refs import TableRef
from curation.stages import answers
from curation.storage.paths import Place, place
from curation.tables import io, schemas

READ = {"model": {"base": "org/base", "revision": "1f"}, "ask": {}, "backend": "transformers", "decoding": {}}
MCQA, TEXTS = DomainConfig(name="mcqa"), DomainConfig(name="mcqa", option_style="texts")


def rows(num: int = 30) -> list[dict[str, Any]]:
    return [
        {
            "row_id": 7 * number,
            "question": f"What is {number} + 1?",
            "choices": [str(number), str(number + 1), "none"],
            "gold": "B",
            "error": None,
        }
        for number in range(num)
    ]


def examples(directory: Path, name: str, of: list[dict[str, Any]]) -> TableRef:
    return io.write(pa.Table.from_pylist(of, schema=schemas.examples(Mcqa.columns, gold=True)), str(directory / name))


def labels(directory: Path, name: str, of: list[dict[str, Any]]) -> TableRef:
    """The answers ``B`` in another order than the questions; the last one could not be parsed."""
    given = [
        {
            "row_id": row["row_id"],
            "completion": " B",
            "label": "B" if row is not of[-1] else None,
            "mean_logprob": -0.5,
            "option_logprobs": [-2.0, -0.5, -3.0],
            "num_prompt_tokens": 9,
            "num_output_tokens": 1,
            "truncated": False,
            "error": None if row is not of[-1] else "domain_failed: parsing",
        }
        for row in of
    ]
    return io.write(pa.Table.from_pylist(given[::-1], schema=schemas.labels((), "float16", 0)), str(directory / name))


def test_questions_are_what_the_model_reads_in_whatever_order_they_stand(local_ray, tmp_path):
    asked = answers.questions(examples(tmp_path, "one", rows()), MCQA)
    assert asked.row_ids_N.tolist() == [7 * number for number in range(30)]
    again = answers.questions(examples(tmp_path, "reversed", rows()[::-1]), MCQA)
    assert again.digest == asked.digest and np.array_equal(again.row_ids_N, asked.row_ids_N)
    regraded = answers.questions(examples(tmp_path, "gold", [row | {"gold": "A"} for row in rows()]), MCQA)
    assert regraded.digest == asked.digest
    bad = [*rows()[:-1], rows()[-1] | {"error": "no_gold: x"}]
    others = {
        "row": [rows()[0] | {"question": "What is it?"}, *rows()[1:]],
        "choices": [rows()[0] | {"choices": ["0", "1", "2"]}, *rows()[1:]],
        "id": [rows()[0] | {"row_id": 1}, *rows()[1:]],
        "fewer": rows()[1:],
        "bad": bad,
    }
    found = {answers.questions(examples(tmp_path, name, of), MCQA).digest for name, of in others.items()}
    found.add(answers.questions(examples(tmp_path, "one", rows()), TEXTS).digest)
    assert len(found) == 6 and asked.digest not in found


def test_a_key_names_all_that_answers_depend_on(local_ray, tmp_path, monkeypatch):
    asked = answers.questions(examples(tmp_path, "one", rows()), MCQA)
    key = answers.key_of(asked, READ, None)
    others = [
        answers.key_of(asked, READ | {"model": {"base": "org/base", "revision": "2f"}}, None),
        answers.key_of(asked, READ | {"decoding": {"temperature": 1}}, None),
        answers.key_of(asked, READ, 1),
        answers.key_of(asked, READ, 2),
        answers.key_of(answers.Questions(asked.row_ids_N, "0"), READ, None),
    ]
    monkeypatch.setattr(answers, "_version", lambda package: "0.0")
    others.append(answers.key_of(asked, READ, None))
    assert all(key != other for other in others)


@pytest.fixture(params=["local", "s3"])
def folder(request, tmp_path) -> Any:
    if request.param == "local":
        yield tmp_path / "kept"
        return
    with object_store() as server:
        yield place(server.url("kept"))


def test_an_entry_is_found_by_its_own_key_alone(local_ray, tmp_path, folder: Place):
    asked = answers.questions(examples(tmp_path, "one", rows()), MCQA)
    key, entry = answers.key_of(asked, READ, None), folder / "entry.parquet"
    assert answers.find(entry, key, asked) is None
    assert answers.keep(entry, key, asked, labels(tmp_path, "labels", rows()), "runs/first")
    found = answers.find(entry, key, asked)
    assert found is not None and found.run == "runs/first"
    assert found.table["row_id"].to_pylist() == asked.row_ids_N.tolist()
    assert found.table["error"].null_count == 30 and "label" not in found.table.schema.names
    assert answers.find(entry, key | {"seed": 1}, asked) is None
    assert answers.find(entry, key, answers.Questions(asked.row_ids_N[1:], asked.digest)) is None

    content = entry.read_bytes()
    flipped = bytearray(content)
    flipped[40] ^= 1  # in the data of the first column
    for damaged in (content[:-7], b"", b"PAR1", bytes(flipped), content[:100] * 9):
        assert damaged != content
        _put(entry, damaged)
        assert answers.find(entry, key, asked) is None
    assert answers.keep(entry, key, asked, labels(tmp_path, "labels", rows()), "runs/second")
    assert answers.find(entry, key, asked).run == "runs/second"


def _put(entry: Place, content: bytes) -> None:
    if isinstance(entry, Path):
        entry.write_bytes(content)
    else:
        entry.put(content)


def test_answers_with_a_failed_row_are_not_kept(local_ray, tmp_path):
    asked = answers.questions(examples(tmp_path, "one", rows()), MCQA)
    table = io.read(labels(tmp_path, "labels", rows())).to_pylist()
    table[3] |= dict.fromkeys(("completion", "label"), None) | {"error": "poison: died"}
    failed = io.write(pa.Table.from_pylist(table, schema=schemas.labels((), "float16", 0)), str(tmp_path / "failed"))
    assert not answers.keep(tmp_path / "entry.parquet", {}, asked, failed, "runs/first")
    assert not (tmp_path / "entry.parquet").exists()


def test_writers_at_once_leave_a_whole_entry(local_ray, tmp_path):
    asked = answers.questions(examples(tmp_path, "one", rows()), MCQA)
    key, entry, ref = answers.key_of(asked, READ, None), tmp_path / "entry.parquet", labels(tmp_path, "l", rows())
    assert answers.keep(entry, key, asked, ref, "runs/0")
    failed: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for _ in range(10):
                assert answers.keep(entry, key, asked, ref, f"runs/{number}")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert answers.find(entry, key, asked) is not None
    assert not failed and sorted(tmp_path.glob(".*")) == []
    assert pq.read_table(entry).num_rows == 30
