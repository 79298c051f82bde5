"""What the labelling actors make of states that are not stored: the scores of stored ones."""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from lance import write_dataset

from curation.config import ActorsConfig, DecodingConfig, DomainConfig, ScriptedConfig, TeacherConfig
from curation.domains import get_domain
from curation.metrics.shift import MAX_ROWS, mark_sampled
from curation.refs import TableRef
from curation.stages.label import RowShare, label
from curation.stages.label_chunks import LabelJob
from curation.stages.score import ScoredOnly, compute_score_columns, score
from curation.stages.shift import compare
from curation.tables import io, schemas
from curation.trust.linear_probe import LinearProbe
from curation.trust.neural import Architecture, NeuralTrust, NeuralTrustNet

CHESS = DomainConfig(name="chess")
STATES = ("prompt_last", "output_last")
SIZE, NUM_ROWS = 24, 400
SCORES = ("trust_raw", "trust_trust", "linear_probe_raw", "linear_probe_trust")


K = 5


def trust_functions(folder, states=("output_last",), size=SIZE, columns=()):
    """A trust function with random weights and a linear probe; ``columns`` are K numbers each."""
    torch.manual_seed(0)
    shape = {"width": 16, "depth": 2, "expansion": 2.0, "dropout": 0.2, "stochastic_depth": 0.1, "standardise": True}
    input_size, inputs = size * len(states) + K * len(columns), (*states, *columns)
    net = NeuralTrustNet(Architecture(input_size=input_size, **shape))
    probe = LinearProbe(torch.randn(input_size), torch.tensor(0.3), inputs, {})
    return {
        "trust": NeuralTrust(net, inputs, {}).save(folder / "trust"),
        "linear_probe": probe.save(folder / "probe"),
    }


def labels_batch(num_rows=NUM_ROWS, *, start=0) -> pa.RecordBatch:
    """Labels with random states; every 20th row is an error row without any."""
    rng = np.random.default_rng(start)
    failed_N = np.arange(num_rows) % 20 == 7
    schema = schemas.make_labels_schema(STATES, "float16", SIZE, K)
    columns = {name: pa.nulls(num_rows, schema.field(name).type) for name in schema.names}
    columns["row_id"] = pa.array(np.arange(start, start + num_rows))
    columns["error"] = pa.array([("bad: x" if failed else None) for failed in failed_N], pa.string())
    for name, size in {"token_logprobs": K, **{f"state_{state}": SIZE for state in STATES}}.items():
        values = pa.array(rng.normal(size=num_rows * size).astype(np.float16))
        columns[name] = pa.FixedSizeListArray.from_arrays(values, size, mask=pa.array(failed_N))
    return pa.record_batch([columns[name] for name in schema.names], schema)


def scored_only(fitted, num_rows=NUM_ROWS, states=("output_last",)) -> ScoredOnly:
    return ScoredOnly(fitted=tuple(fitted.items()), states=states, num_rows=num_rows, seed=3)


@pytest.mark.parametrize("columns", [(), ("token_logprobs",)])
def test_scores_are_those_of_the_stored_states_bit_by_bit(tmp_path, columns):
    fitted = trust_functions(tmp_path, columns=columns)
    whole = labels_batch()
    stored = io.write(pa.Table.from_batches([whole]), str(tmp_path / "labels.lance"))
    (read,) = io.read(stored).combine_chunks().to_batches()
    reduced = scored_only(fitted).reduce(whole)
    reduced.validate(full=True)
    assert reduced.schema.names[-5:] == [
        "error",
        "trust_raw",
        "trust_trust",
        "linear_probe_raw",
        "linear_probe_trust",
    ]
    for name, column in compute_score_columns(read, fitted).items():
        assert reduced.column(name).equals(column)
        assert column.null_count == NUM_ROWS / 20
    assert reduced.column("row_id").equals(whole.column("row_id"))


def test_of_the_states_a_sample_is_kept_that_does_not_depend_on_the_batch(tmp_path):
    fitted = trust_functions(tmp_path)
    reduction, whole = scored_only(fitted, num_rows=20 * MAX_ROWS), labels_batch()
    reduced = reduction.reduce(whole)
    assert reduced.schema == reduction.schema(whole.schema)
    assert [name for name in reduced.schema.names if schemas.is_state(name)] == ["state_output_last"]
    kept = dict(zip(reduced["row_id"].to_pylist(), reduced["state_output_last"].to_pylist(), strict=True))
    kept = {row_id: state for row_id, state in kept.items() if state is not None}
    states = dict(zip(whole["row_id"].to_pylist(), whole["state_output_last"].to_pylist(), strict=True))
    assert 0 < len(kept) < NUM_ROWS / 8
    assert all(states[row_id] == state for row_id, state in kept.items())
    parts = pa.Table.from_batches([reduction.reduce(whole.slice(start, 130)) for start in range(0, NUM_ROWS, 130)])
    assert parts.select(["row_id", "state_output_last"]).equals(
        pa.Table.from_batches([reduced]).select(["row_id", "state_output_last"])
    )

    ids_N = np.arange(40 * MAX_ROWS)
    assert abs(mark_sampled(ids_N, len(ids_N), 3).sum() - MAX_ROWS) < 5 * math.sqrt(MAX_ROWS)
    assert mark_sampled(ids_N[:MAX_ROWS], MAX_ROWS, 3).all()


def test_states_that_are_left_out_take_no_space(tmp_path):
    reduction = scored_only(trust_functions(tmp_path), num_rows=1000 * MAX_ROWS)
    sizes = []
    for name, batch in (("whole", labels_batch(4000)), ("scored", reduction.reduce(labels_batch(4000)))):
        write_dataset(pa.Table.from_batches([batch]), str(tmp_path / name))
        sizes.append(sum(file.stat().st_size for file in (tmp_path / name / "data").iterdir()) / 4000)
    whole, scored = sizes
    assert whole > 4 * SIZE > scored


def test_the_shift_of_a_sample_is_that_of_the_whole(tmp_path):
    fitted = trust_functions(tmp_path)
    source, pool = labels_batch(300), labels_batch(700, start=1000)
    refs = [
        io.write(pa.Table.from_batches([batch]), str(tmp_path / f"{place}.lance"))
        for place, batch in enumerate((source, pool, scored_only(fitted, 700).reduce(pool)))
    ]
    whole, reduced = (compare(refs[0], ref, ("output_last",), seed=3).to_json() for ref in refs[1:])
    assert whole == reduced
    assert whole["num_source"] == 285 and whole["num_pool"] == 665 and whole["strength"] == "none shown"


@pytest.fixture(scope="module")
def examples(puzzles, tmp_path_factory):
    domain = get_domain(CHESS)
    rows = [domain.read(raw) | {"row_id": (3 << 40) | i, "error": None} for i, raw in enumerate(puzzles[:NUM_ROWS])]
    table = pa.Table.from_pylist(rows, schema=schemas.make_examples_schema(domain.columns, gold=False))
    return io.write(table, str(tmp_path_factory.mktemp("examples") / "pool.lance"))


def labelled(examples, directory, reduction=None, **script) -> tuple[LabelJob, TableRef]:
    directory.mkdir(exist_ok=True)
    scripted = ScriptedConfig(log=str(directory / "log"), state_size=SIZE, error_rows=((3 << 40) | 5,), **script)
    job = LabelJob(
        examples=examples,
        labels_uri=str(directory / "labels.lance"),
        domain=CHESS,
        teacher=TeacherConfig(
            backend="scripted",
            states=STATES,
            scripted=scripted,
            chunk_rows=64,
            actors=ActorsConfig(max=2),
        ),
        model=None,
        decoding=DecodingConfig(),
        seed=0,
        reduction=reduction,
    )
    return job, label(job, state_size=SIZE, share=RowShare(), commit_seconds=0.2).table


@pytest.mark.whole_run
def test_labelling_with_scores_and_an_actor_that_dies(local_ray, examples, tmp_path):
    _, stored = labelled(examples, tmp_path / "stored")
    fitted = trust_functions(tmp_path, STATES)
    by_id = rows_of(score(stored, fitted, {}))

    reduction = scored_only(fitted, states=STATES)
    job, fused = labelled(examples, tmp_path / "fused", reduction, crash_rows=((3 << 40) | 100,))
    assert (tmp_path / "fused" / f"log.crashed-{(3 << 40) | 100}").exists()
    rows = rows_of(fused)
    assert rows.keys() == by_id.keys() and len(rows) == NUM_ROWS
    for row_id, row in rows.items():
        for name in ("completion", "label", "error"):
            assert row[name] == by_id[row_id][name]
        for name in SCORES:
            assert row[name] == pytest.approx(by_id[row_id][name], abs=1e-5)
    assert score(fused, {}, {}) == fused  # nothing is left to score, nothing to add
    ids = [row_id for row_id in rows if row_id % 3]
    values = {"row_id": ids, "value": [row_id % 7 for row_id in ids], "error": [None] * len(ids)}
    signal = io.write(pa.table(values, schema=schemas.SIGNAL), str(tmp_path / "signal.lance"))
    merged = rows_of(score(fused, {}, {"reward": signal}))
    assert all(row["reward"] == (row_id % 7 if row_id % 3 else None) for row_id, row in merged.items())
    assert all(row["trust_raw"] == rows[row_id]["trust_raw"] for row_id, row in merged.items())

    # What is committed is not labelled again, whatever the chunks.
    before = (tmp_path / "fused" / "log").read_text()
    other = replace(job, teacher=job.teacher.model_copy(update={"chunk_rows": 37}))
    again = label(other, state_size=SIZE, share=RowShare(), commit_seconds=0.2).table
    assert rows_of(again).keys() == rows.keys()
    assert (tmp_path / "fused" / "log").read_text() == before


def rows_of(ref: TableRef) -> dict:
    return {row["row_id"]: row for row in io.read(ref).to_pylist()}
