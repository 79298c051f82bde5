"""A model reads answers that are there: its chunk with scores in place of the states."""

import string
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tiny_shape import LONG

from curation.config import AskConfig, DecodingConfig, DomainConfig
from curation.models import create
from curation.passes.job import Models
from curation.refs import ModelRef
from curation.stages.label import ReadJob
from curation.stages.score import ScoredOnly
from curation.tables import commits, io, schemas
from curation.trust.linear_probe import LinearProbe

NUM_ROWS, SIZE, STATES = 12, 16, ("prompt_last", "output_mean")
SHAPE = LONG | {"hidden_size": SIZE, "initializer_range": 0.1}


def written(job: ReadJob, models: Models, folder: Path) -> pa.Table:
    """The rows of a chunk, committed to a table of their own."""
    job = replace(job, labels_uri=str(folder / "labels.lance"))
    rows = io.read(job.examples).to_pylist()
    worker = job.worker(models)
    io.create(job.labels_uri, job.schema(SIZE))
    (fragment,) = worker.write([worker.work(rows[:8]), worker.work(rows[8:])], {}).to_pylist()
    committer = commits.Committer(job.labels_uri)
    committer.add(fragment["fragments"], fragment["row_ids"])
    committer.flush()
    return io.read(io.find_latest(job.labels_uri)).sort_by("row_id")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> ReadJob:
    """Answers to sums, one of them an error row, and a random model with a token a character."""
    folder = tmp_path_factory.mktemp("read")
    create(folder / "reader", family="qwen3", shape=SHAPE, words=tuple(string.printable), pattern=r"[\s\S]", seed=3)
    domain = DomainConfig(name="math")
    problems = [f"What is {n + 1} - {n}?" for n in range(NUM_ROWS)]
    examples = pa.table(
        {
            "row_id": range(NUM_ROWS),
            "problem": problems,
            "level": pa.nulls(NUM_ROWS, pa.string()),
            "error": pa.nulls(NUM_ROWS, pa.string()),
        }
    )
    schema = schemas.make_labels_schema((), "float32", 1, 0)
    columns = {name: pa.nulls(NUM_ROWS, schema.field(name).type) for name in schema.names}
    columns |= {"row_id": pa.array(range(NUM_ROWS)), "mean_logprob": pa.array([-0.5] * NUM_ROWS, pa.float32())}
    columns["completion"] = pa.array([None, *["\\boxed{1}"] * (NUM_ROWS - 1)])
    columns["label"] = pa.array([None, *["1"] * (NUM_ROWS - 1)])
    columns["error"] = pa.array(["endpoint_refused: x", *[None] * (NUM_ROWS - 1)], pa.string())
    answers = pa.table([columns[name] for name in schema.names], schema=schema)
    return ReadJob(
        examples=io.write(examples, str(folder / "examples.lance")),
        answers=io.write(answers, str(folder / "answers.lance")),
        labels_uri="",
        domain=domain,
        teacher=AskConfig(states=STATES, state_dtype="float32", reads_given=True, dtype="float32"),
        model=ModelRef(base=str(folder / "reader")),
        decoding=DecodingConfig(),
        reads_numbers=False,
    )


@pytest.mark.long
def test_scores_are_those_of_stored_states(job: ReadJob, tmp_path: Path) -> None:
    models = Models()
    stored = written(job, models, tmp_path / "stored")
    assert stored.num_rows == NUM_ROWS and stored["state_output_mean"].null_count == 1
    torch.manual_seed(0)
    probe = LinearProbe(torch.randn(2 * SIZE), torch.tensor(0.3), STATES, {})
    fitted = (("trust", probe.save(tmp_path / "trust")),)

    scored = written(
        replace(job, reduction=ScoredOnly(fitted=fitted, states=(), num_rows=NUM_ROWS, seed=0)),
        models,
        tmp_path / "scored",
    )
    (batch,) = stored.combine_chunks().to_batches()
    assert not any(map(schemas.is_state, scored.column_names))
    np.testing.assert_allclose(scored["trust_raw"].to_numpy(), probe.raw_score(batch), rtol=1e-6)
    shared = [name for name in stored.column_names if not schemas.is_state(name)]
    assert scored.select(shared).equals(stored.select(shared)), "the server's answers stay as they are"
