"""The stages of ``curate analyze``: rows valued by an engine and gradients of rows, in Ray tasks, gone on with."""

import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from curation.config import DomainConfig
from curation.errors import ConfigError
from curation.extras.analyze import value_moves
from curation.extras.analyze.config import EngineConfig, GradientsConfig
from curation.extras.analyze.gradients import CompareGradients, TakeGradients
from curation.extras.analyze.value_moves import ValueMoves
from curation.hashing import draw_by_hash
from curation.refs import TableRef
from curation.stages.rows import compute_in_chunks
from curation.tables import io, schemas

ENGINE = Path(__file__).parents[2] / "material_engine.py"
FEN = "3q2k1/5pp1/7p/8/8/8/5PPP/3Q2K1 w - - 0 {}"
NUM = 12


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("engine") / "material"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ENGINE}"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


class _Task:
    """The part of a run's task that the stages use."""

    guard = staticmethod(lambda: None)

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @contextmanager
    def progress(self) -> Iterator[Callable[[Any], None]]:
        yield lambda at: None

    def say(self, sentence: str) -> None:
        pass


def save(folder: Path, name: str, table: pa.Table) -> TableRef:
    uri = str(folder / f"{name}.lance")
    lance.write_dataset(table, uri)
    return io.find_latest(uri)


def chess_run(folder: Path, weak: list[str | None]) -> ValueMoves:
    """A pool whose gold move takes the queen, with these weak labels, all of it selected."""
    ids = np.arange(NUM) * 3
    pool = {"row_id": ids, "fen": [FEN.format(n + 1) for n in range(NUM)], "rating": pa.nulls(NUM, pa.int32())}
    examples = save(folder, "pool", pa.table({**pool, "error": pa.nulls(NUM, pa.string())}))
    audit = save(folder, "audit", pa.table({"row_id": ids[::-1], "gold": ["d1d8"] * NUM}))
    labels = save(folder, "labels", pa.table({"row_id": ids, "label": weak}))
    right = [label == "d1d8" for label in weak]
    grades = save(folder, "grades", pa.table({"row_id": ids, "correct": right}))
    selection = save(folder, "selection", pa.table({"row_id": ids[::-1], "label": weak[::-1]}))
    domain = DomainConfig(name="chess")
    return ValueMoves(
        name="advantages",
        digests={},
        grades=grades,
        examples=examples,
        audit=audit,
        domain=domain,
        engine=EngineConfig(),
        seed=0,
        selections={"all": selection},
        labels=labels,
    )


def test_weak_moves_that_differ_are_valued_beside_gold(local_ray, material: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(value_moves, "CHUNK_ROWS", 4)
    weak = ["d1d8", "d1d8", "h2h3", None, "h2h3", "d1d7", "d1d7", "g1f1", "d1e1", "d1c1", None, "h2h3"]
    job = chess_run(tmp_path, weak)
    selection = job.selections["all"]
    engine = EngineConfig(path=material, options={"Hang": "e1", "Die": "c1"}, timeout_seconds=3.0)
    few = save(tmp_path, "few", io.read(selection).filter(pa.array(np.isin(np.arange(NUM), [1, 2, 9]))))
    job = replace(job, engine=engine, selections={"all": selection, "few": few})
    made = job.run(_Task(tmp_path)).outputs
    table, found = made.table, made.found["arms"]

    rows = {row["row_id"] // 3: row for row in io.read(table).to_pylist()}
    assert sorted(rows) == [2, 4, 5, 6, 7, 8, 9, 11]  # neither right nor unparsed ones
    assert (rows[2]["gold_cp"], rows[2]["chosen_cp"], rows[2]["engine"]) == (900, -900, "Material 1")
    assert rows[7]["chosen_mate"] == -1 and rows[7]["chosen_cp"] is None and rows[7]["error"] is None
    assert [rows[at]["error"].split(":")[0] for at in (8, 9)] == ["engine_timeout", "engine_failed"]
    every = found["all"]
    assert (every["num_selected"], every["num_unparsed"], every["num_differing"], every["n"]) == (12, 2, 8, 6)
    assert every["errors"] == {"engine_failed": 1, "engine_timeout": 1} and every["stronger"]["value"] == 0
    assert every["mean_gap"]["value"] == 1_000  # d1d7 loses the queen, too
    assert found["few"]["num_selected"] == 3 and found["few"]["n"] + sum(found["few"]["errors"].values()) == 2

    assert job.run(_Task(tmp_path)).outputs == made  # all of it is committed: no engine is asked


def test_a_draw_is_shared_by_arms_that_share_rows() -> None:
    ids = np.arange(1000)
    half, rest = draw_by_hash(ids[::2], 200, 5), draw_by_hash(ids, 300, 5)
    assert (
        len(half) == 200 and set(rest[rest % 2 == 0]) <= set(half) and np.array_equal(half, draw_by_hash(half, 200, 5))
    )


def test_no_row_differs(local_ray, material: str, tmp_path: Path) -> None:
    made = chess_run(tmp_path, ["d1d8"] * NUM).run(_Task(tmp_path)).outputs
    found = made.found["arms"]["all"]
    assert io.count(made.table) == 0 and found["n"] == 0 and found["stronger"] is None


def test_what_was_committed_is_not_computed_again(local_ray, tmp_path: Path) -> None:
    uri, ids = str(tmp_path / "out.lance"), np.arange(100)

    def doubled(ids_M: np.ndarray, limit: int) -> pa.Table:
        if (ids_M > limit).any():
            raise ConfigError(f"{int(ids_M.max())} is above {limit}")
        value = (2 * ids_M).astype(np.float32)
        return pa.table({"row_id": ids_M, "value": value, "error": pa.nulls(len(ids_M), pa.string())})

    with pytest.raises(ConfigError, match="is above 59"):
        compute_in_chunks(partial(doubled, limit=59), ids, uri, schemas.SIGNAL, chunk_rows=20)
    before = io.count(io.find_latest(uri))
    assert 0 < before <= 60 and before % 20 == 0
    left: list[int] = []
    all_rows = partial(doubled, limit=99)
    ref = compute_in_chunks(all_rows, ids, uri, schemas.SIGNAL, chunk_rows=20, progress=lambda at: left.append(at.rows))
    assert io.read(ref).sort_by("row_id")["value"].to_pylist() == (2.0 * ids).tolist()
    assert left[0] >= before


def test_gradients_of_arms_are_compared_by_the_same_number_of_rows(local_ray, tiny_model, tmp_path: Path) -> None:
    rng, base = np.random.default_rng(0), tiny_model
    squares = [f"{file}{rank}" for file in "abcdefgh" for rank in "12345678"]
    refs = {}
    for arm, num in (("trust", 40), ("naive", 26), ("few", 5)):
        texts = {"prompt": [f"White: {rng.choice(squares)} King\nBest move:" for _ in range(num)]}
        moves = [" ".join(rng.choice(squares, 2 if number else 30)) for number in range(num)]  # the first is too long
        rows = save(tmp_path, arm, pa.table({"row_id": rng.permutation(num) * 5, **texts, "completion": moves}))
        job = TakeGradients(
            name=arm,
            digest="",
            base=base,
            gradients=GradientsConfig(rows=32),
            max_length=24,
            chat_template=False,
            seed=1,
            rows=rows,
        )
        refs[arm] = job.run(_Task(tmp_path / f"of-{arm}")).outputs.gradients
    table = io.read(refs["naive"])
    assert table.num_rows == 26 and [error for error in table["error"].to_pylist() if error] == [
        "too_long: more than 24 tokens"
    ]
    found = (
        CompareGradients(name="coherence", tables=refs, reference="trust", seed=1).run(_Task(tmp_path)).outputs.found
    )
    assert found["n"] == 25 and found["too_few"] == ["few"] and found["errors"]["naive"] == 1
    healthy = table.filter(table["error"].is_null())
    matrix = np.stack(healthy["gradient"].to_numpy()).astype(np.float64)
    singular = np.linalg.svd(matrix, compute_uv=False)
    np.testing.assert_allclose(found["arms"]["naive"]["singular_values"], singular[: min(32, 25)], rtol=1e-5)
    assert found["arms"]["trust"]["against"] is None and found["arms"]["naive"]["against"]["energy"] is not None
    with pytest.raises(ConfigError, match=r"analyze\.gradients: of no arm 20 rows"):
        CompareGradients(name="few", tables={"few": refs["few"]}, reference="trust", seed=1).run(_Task(tmp_path))
