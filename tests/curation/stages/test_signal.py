"""The signal stage around the scripted teacher: every row asked once, whatever dies; unread rows; joins by id."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

from curation.config import ActorsConfig, DecodingConfig, DomainConfig, ScriptedConfig, TeacherConfig
from curation.domains import get_domain
from curation.refs import TableRef
from curation.signals import Ask
from curation.stages.label import RowShare, label
from curation.stages.label_chunks import LabelJob
from curation.stages.score import _find_values, score
from curation.stages.signal import SignalJob, measure_signal
from curation.tables import io, schemas

NUM_ROWS = 400
REPLIES = (" 80%", " 0.25", " who knows")


@pytest.fixture(scope="module")
def split(puzzles, tmp_path_factory) -> tuple[TableRef, TableRef]:
    """Examples and their labels in another order; every tenth is unparsed, two failed."""
    folder, domain = tmp_path_factory.mktemp("signal"), get_domain(DomainConfig(name="chess"))
    ids = [(2 << 40) | place for place in range(NUM_ROWS)]
    read = [domain.read(raw) | {"row_id": row_id, "error": None} for row_id, raw in zip(ids, puzzles, strict=False)]
    examples = pa.Table.from_pylist(read, schema=schemas.make_examples_schema(domain.columns, gold=False))
    columns = {
        "row_id": ids,
        "completion": [f" move {place}" for place in range(NUM_ROWS)],
        "label": [None if place % 10 == 3 or place < 2 else "e2e4" for place in range(NUM_ROWS)],
        "error": ["bad: x" if place < 2 else None for place in range(NUM_ROWS)],
    }
    labels = pa.table(columns).take(np.random.default_rng(0).permutation(NUM_ROWS))
    return (
        io.write(examples, str(folder / "examples.lance")),
        io.write(labels, str(folder / "labels.lance")),
    )


def make_job(split: tuple[TableRef, TableRef], folder: Path, **script) -> SignalJob:
    teacher = TeacherConfig(
        backend="scripted",
        scripted=ScriptedConfig(completions=REPLIES, log=str(folder / "log"), **script),
        chunk_rows=60,
        actors=ActorsConfig(max=2),
    )
    return SignalJob(
        ask=Ask(signal="verbalized_confidence", seed=3, uri=str(folder / "signal.lance")),
        examples=split[0],
        labels=split[1],
        domain=DomainConfig(name="chess"),
        teacher=teacher,
        model=None,
        decoding=DecodingConfig(),
    )


def parsed(split: tuple[TableRef, TableRef]) -> np.ndarray:
    return io.read(split[1], ["row_id"], "label IS NOT NULL")["row_id"].to_numpy()


def asked(folder: Path) -> list[int]:
    log = folder / "log"
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def test_every_row_is_asked_once_and_an_actor_that_dies_loses_nothing(local_ray, split, tmp_path: Path) -> None:
    wanted = parsed(split)
    job = make_job(split, tmp_path)
    first = measure_signal(job, wanted[:150], commit_seconds=0.2).table
    assert Counter(io.read(first)["row_id"].to_pylist()) == Counter(wanted[:150].tolist())
    assert Counter(asked(tmp_path)) == Counter(wanted[:150].tolist())

    # The rest, other chunks, an actor that dies on the way: what is committed is not asked again.
    crash = int(wanted[200])
    scripted = job.teacher.scripted.model_copy(update={"crash_rows": (crash,)})
    rest = replace(job, teacher=job.teacher.model_copy(update={"scripted": scripted, "chunk_rows": 37}))
    told: list[tuple[int, int]] = []
    ref = measure_signal(rest, wanted, commit_seconds=0.2, progress=lambda at: told.append((at.rows, at.total))).table
    assert (tmp_path / f"log.crashed-{crash}").exists()
    assert told[0] == (150, len(wanted)) and told[-1] == (len(wanted), len(wanted))
    table = io.read(ref)
    assert table.schema.names == schemas.SIGNAL.names
    assert Counter(table["row_id"].to_pylist()) == Counter(wanted.tolist())
    assert Counter(asked(tmp_path)[:150]) == Counter(wanted[:150].tolist())
    assert not set(asked(tmp_path)[150:]) & set(wanted[:150].tolist())
    assert measure_signal(job, wanted, commit_seconds=0.2).table == ref and len(told) > 1

    # A third of the replies cannot be read: null values, which the scored table keeps at their rows.
    values = dict(zip(table["row_id"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert set(values.values()) == {np.float32(0.8), 0.25, None}
    num_unread = table["value"].null_count
    assert NUM_ROWS / 6 < num_unread < NUM_ROWS / 2
    assert io.count(ref, filter="value IS NOT NULL") == len(wanted) - num_unread
    scored = io.read(score(split[1], {}, {"verbalized_confidence": ref}))
    assert scored.schema.names == [*io.open_table(split[1]).schema.names, "verbalized_confidence"]
    for row in scored.to_pylist():
        assert row["verbalized_confidence"] == values.get(row["row_id"])


def test_a_judge_is_asked_beside_gold_labels_in_another_order(local_ray, split, tmp_path: Path) -> None:
    wanted = parsed(split)[:40]
    rows = {"row_id": wanted[::-1], "gold": [f"g{row_id}" for row_id in wanted[::-1]]}
    rows |= dict.fromkeys(("solution", "solution_error"), [None] * len(wanted))
    gold = io.write(pa.table(rows, schema=schemas.AUDIT), str(tmp_path / "gold.lance"))
    job = make_job(split, tmp_path)
    scripted = ScriptedConfig(completions=(" TRUE", " FALSE"))
    job = replace(
        job,
        ask=replace(job.ask, signal="judge"),
        gold=gold,
        teacher=job.teacher.model_copy(update={"scripted": scripted}),
    )
    values = io.read(measure_signal(job, wanted, commit_seconds=0.2).table)["value"].to_pylist()
    assert len(values) == 40 and set(values) == {0.0, 1.0}


def test_what_the_labelling_actors_measured_is_what_a_pass_of_its_own_would_and_is_not_asked_again(
    local_ray, split, tmp_path: Path
) -> None:
    crash = int(io.read(split[0])["row_id"][200].as_py())
    script = ScriptedConfig(completions=(" e2e4", " 80%", " 0.4"), log=str(tmp_path / "log"), crash_rows=(crash,))
    alone = make_job(split, tmp_path)
    teacher = alone.teacher.model_copy(update={"scripted": script})
    asks = (alone.ask, Ask(signal="self_consistency", seed=5, uri=str(tmp_path / "consistency.lance")))
    job = LabelJob(
        examples=split[0],
        labels_uri=str(tmp_path / "labels.lance"),
        domain=alone.domain,
        teacher=teacher,
        model=None,
        decoding=alone.decoding,
        seed=0,
        asks=asks,
    )
    told: list[tuple[int, int]] = []
    labels = label(
        job,
        state_size=8,
        share=RowShare(),
        commit_seconds=0.2,
        progress=lambda at: told.append((at.rows, at.total)),
    ).table
    assert (tmp_path / f"log.crashed-{crash}").exists() and told[-1] == (NUM_ROWS, NUM_ROWS)
    wanted = parsed((split[0], labels))
    assert 0 < len(wanted) < NUM_ROWS
    num_asked = len(asked(tmp_path))
    for ask in asks:
        measured = io.read(io.find_latest(ask.uri))
        assert Counter(measured["row_id"].to_pylist()) == Counter(wanted.tolist())
        mine = replace(alone, ask=ask, labels=labels, teacher=teacher)
        measure_signal(mine, wanted, commit_seconds=0.2)
        assert len(asked(tmp_path)) == num_asked
        other = replace(mine, ask=replace(ask, uri=f"{ask.uri}.alone"))
        again = io.read(measure_signal(other, wanted, commit_seconds=0.2).table)
        assert again.sort_by("row_id").equals(measured.sort_by("row_id"))
        num_asked = len(asked(tmp_path))


def test_values_are_looked_up_fragment_by_fragment(tmp_path: Path) -> None:
    rng, uri = np.random.default_rng(0), str(tmp_path / "signal.lance")
    ids_M = np.concatenate([part[rng.permutation(len(part))] for part in np.split(np.arange(0, 4000, 2), 20)])
    value_M = rng.random(len(ids_M)).astype(np.float32)
    value_M[::7] = np.nan
    table = pa.table({"row_id": ids_M, "value": pa.array(value_M, mask=np.isnan(value_M))})
    for start in range(0, len(ids_M), 130):  # other cuts than those of the order
        lance.write_dataset(table.slice(start, 130), uri, mode="append" if start else "create")
    found_N = _find_values(io.find_latest(uri), asked_N := rng.permutation(4100))
    value_of = dict(zip(ids_M.tolist(), value_M.tolist(), strict=True))
    assert np.array_equal(found_N, [value_of.get(row_id, np.nan) for row_id in asked_N.tolist()], equal_nan=True)
    assert np.isnan(_find_values(io.find_latest(uri), np.array([9000, 1]))).all()
    assert len(_find_values(io.find_latest(uri), np.empty(0, dtype=np.int64))) == 0
