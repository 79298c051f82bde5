"""Answers that are kept for other runs: what they depend on, and entries that are damaged, foreign or half written."""

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from object_store import object_store

from curation.config import AskConfig, DecodingConfig, DomainConfig
from curation.domains.mcqa import Mcqa
from curation.refs import ModelRef, TableRef
from curation.stages import answers
from curation.stages.label_chunks import LabelJob
from curation.storage.paths import Place, to_place
from curation.tables import io, schemas
from curation.telemetry.metrics import Telemetry

MODEL = ModelRef(base="org/base", revision="1f")
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
    return io.write(
        pa.Table.from_pylist(of, schema=schemas.make_examples_schema(Mcqa.columns, gold=True)), str(directory / name)
    )


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
    return io.write(
        pa.Table.from_pylist(given[::-1], schema=schemas.make_labels_schema((), "float16", 0)), str(directory / name)
    )


def entry(of: TableRef, folder: Place = Path("kept"), revision: int = 1, **changes: Any) -> answers.Entry:
    """The entry of a job that asks about a table."""
    asked = {"domain": MCQA, "teacher": AskConfig(**AskConfig.BARE), "model": MODEL, "decoding": DecodingConfig()}
    told = {"labels_uri": "", "seed": 0, "telemetry": Telemetry(run="", stage="")}
    job = LabelJob(examples=of, **{**asked, **told, **changes})
    return answers.make_entry(job, folder, revision=revision)


def test_questions_are_rows_in_whatever_order_they_stand(tmp_path):
    asked = entry(examples(tmp_path, "one", rows()))
    assert entry(examples(tmp_path, "reversed", rows()[::-1])).path == asked.path
    regraded = [row | {"gold": "A"} for row in rows()]
    assert entry(examples(tmp_path, "gold", regraded)).path == asked.path
    others = {
        "row": [rows()[0] | {"question": "What is it?"}, *rows()[1:]],
        "choices": [rows()[0] | {"choices": ["0", "1", "2"]}, *rows()[1:]],
        "id": [rows()[0] | {"row_id": 1}, *rows()[1:]],
        "fewer": rows()[1:],
        "bad": [*rows()[:-1], rows()[-1] | {"error": "no_gold: x"}],
    }
    found = {entry(examples(tmp_path, name, of)).path for name, of in others.items()}
    found.add(entry(examples(tmp_path, "one", rows()), domain=TEXTS).path)
    assert len(found) == 6 and asked.path not in found


def test_an_entrys_name_follows_all_that_answers_depend_on(tmp_path, monkeypatch):
    ref, drawn = examples(tmp_path, "one", rows(3)), DecodingConfig(temperature=1)
    ask = AskConfig(**AskConfig.BARE)
    asked = entry(ref)
    assert entry(ref, seed=1).path == asked.path  # greedy
    others = [
        entry(ref, model=ModelRef(base="org/base", revision="2f")),
        entry(ref, model=ModelRef(base="org/other", revision="1f")),
        entry(ref, decoding=DecodingConfig(max_tokens=9)),
        entry(ref, decoding=drawn, seed=1),
        entry(ref, decoding=drawn, seed=2),
        entry(ref, teacher=ask.model_copy(update={"dtype": "bfloat16"})),
        entry(ref, teacher=ask.model_copy(update={"chat_template": True})),
        entry(ref, teacher=ask.model_copy(update={"backend": "vllm"})),
        entry(ref, revision=2),
    ]
    assert entry(ref, teacher=ask.model_copy(update={"chunk_rows": 7})).path == asked.path  # how rows are spread
    monkeypatch.setattr(answers, "_get_version", lambda package: "0.0")
    others.append(entry(ref))
    assert len({asked.path, *(other.path for other in others)}) == 11


@pytest.fixture(params=["local", "s3"])
def folder(request, tmp_path) -> Any:
    if request.param == "local":
        yield tmp_path / "kept"
        return
    with object_store() as server:
        yield to_place(server.url("kept"))


def test_an_entry_is_found_by_its_own_key_alone(tmp_path, folder: Place):
    ref = examples(tmp_path, "one", rows())
    asked, given = entry(ref, folder), labels(tmp_path, "labels", rows())
    assert answers.find(asked) is None
    assert answers.keep(asked, given, ref, "runs/first")
    found = answers.find(asked)
    assert found is not None and found.run == "runs/first" and found.labels.equals(io.read(given))
    assert answers.find(asked._replace(key={**asked.key, "seed": 1})) is None
    assert answers.find(asked._replace(schema=asked.schema.remove(1))) is None

    content = asked.path.read_bytes()
    flipped = bytearray(content)
    flipped[40] ^= 1  # in the data of the first column
    for damaged in (content[:-7], b"", b"PAR1", bytes(flipped), content[:100] * 9):
        put(asked.path, damaged)
        assert answers.find(asked) is None
    assert answers.keep(asked, given, ref, "runs/second")
    assert answers.find(asked).run == "runs/second"


def put(path: Place, content: bytes) -> None:
    if isinstance(path, Path):
        path.write_bytes(content)
    else:
        path.put(content)


def test_answers_with_a_failed_row_are_not_kept(tmp_path):
    ref = examples(tmp_path, "one", rows())
    asked = entry(ref, tmp_path)
    table = io.read(labels(tmp_path, "labels", rows())).to_pylist()
    table[3] |= dict.fromkeys(("completion", "label"), None) | {"error": "poison: died"}
    failed = io.write(
        pa.Table.from_pylist(table, schema=schemas.make_labels_schema((), "float16", 0)), str(tmp_path / "failed")
    )
    assert not answers.keep(asked, failed, ref, "runs/first")
    assert not asked.path.exists()


def test_writers_at_once_leave_a_whole_entry(tmp_path):
    ref, given = examples(tmp_path, "one", rows()), labels(tmp_path, "labels", rows())
    asked = entry(ref, tmp_path)
    assert answers.keep(asked, given, ref, "runs/0")
    failed: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for _ in range(10):
                assert answers.keep(asked, given, ref, f"runs/{number}")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert answers.find(asked) is not None
    assert not failed and sorted(tmp_path.glob(".*")) == []
    assert pq.read_table(asked.path).num_rows == 30
