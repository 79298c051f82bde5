"""A probe, which labels a small random sample by an actor that a run would start, and measures the cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from curation.label_columns import TOKEN_COLUMNS
from curation.metrics import Estimate, compute_proportion
from curation.metrics.totals import add_exact, compute_population_mean, compute_ratio
from curation.passes.dataset import ModelDataset
from curation.passes.job import ChunkSpent
from curation.passes.run import run_pass
from curation.registry import BACKENDS
from curation.stages.label_chunks import LabelJob
from curation.tables import io, schemas
from curation.teachers import get_state_width
from curation.telemetry.standing import Update


class Population(NamedTuple):
    """The rows for which a forecast is made."""

    rows: int
    is_sampled: bool
    """Whether the sample is drawn from these rows themselves, not from others of the same distribution."""


@dataclass(frozen=True, kw_only=True)
class MeasuredCost:
    """The measured cost of labelling a row; its 95 % intervals hold for the population, as the sample is random."""

    rows: int
    prompt_tokens: Estimate
    """Prompt tokens per row that the teacher reads, including those for signals."""
    output_tokens: Estimate
    errors: Estimate
    unparsed: Estimate
    """Share of rows with an answer from which no label could be read."""
    actor_seconds: float
    """Seconds per row of one actor, without the start of its model and its first chunk."""
    bytes: Estimate
    """Bytes per row in memory, without hidden states; stored rows take less, as they are compressed."""
    state_bytes: int
    """Stored bytes per row for each hidden state."""


def probe(
    job: LabelJob, dataset: ModelDataset, population: Population, *, commit_seconds: float, update: Update
) -> MeasuredCost:
    """Label the examples of ``job``, a random sample, and measure the cost."""
    average = partial(compute_population_mean, population=population.rows, is_part=population.is_sampled)
    for ask in job.asks:
        io.create(ask.uri, schemas.SIGNAL)
    width = get_state_width(job.teacher, job.model)
    found = run_pass(
        job,
        name="the probe",
        uri=job.labels_uri,
        schema=job.schema(width),
        takes=lambda row_ids_N: np.ones(len(row_ids_N), bool),
        dataset=dataset,
        commit_seconds=commit_seconds,
        progress=update,
    )
    labels = io.read(found.table)
    num_errors = labels["error"].length() - labels["error"].null_count

    if job.asks:  # tokens of signals are counted by chunk
        chunks = found.of_chunks
        spent = ([chunk.prompt_tokens for chunk in chunks], [chunk.output_tokens for chunk in chunks])
        prompt, output = (compute_ratio(tokens, [chunk.rows for chunk in chunks]) for tokens in spent)
    else:
        names = ([name for name in columns if name in labels.column_names] for columns in TOKEN_COLUMNS.values())
        tokens = (sum(labels[name].fill_null(0).to_numpy() for name in of_kind) for of_kind in names)
        prompt, output = (average(tokens_N) for tokens_N in tokens)

    # The bytes of rows differ by their texts; the states are forecast by themselves.
    plain = labels.drop_columns([name for name in labels.column_names if schemas.is_state(name)])
    texts_N = np.zeros(plain.num_rows)
    for name in ("completion", "label"):
        texts_N += pc.binary_length(plain[name]).fill_null(0).to_numpy()
    texts = average(texts_N)

    return MeasuredCost(
        rows=labels.num_rows,
        prompt_tokens=prompt,
        output_tokens=output,
        errors=compute_proportion(num_errors, labels.num_rows),
        unparsed=compute_proportion(labels["label"].null_count - num_errors, labels.num_rows),
        actor_seconds=measure_pace(found.of_chunks, BACKENDS[job.teacher.backend].calls),
        bytes=add_exact(texts, plain.nbytes / plain.num_rows - texts.value),
        state_bytes=width * {"float16": 2, "float32": 4}[job.teacher.state_dtype],
    )


def measure_pace(chunks: Sequence[ChunkSpent], num_first: int) -> float:
    """Return the actor's seconds per row after its ``num_first`` chunks, in which it warms up, if others follow."""
    steady = chunks[num_first:] or chunks
    return sum(chunk.seconds for chunk in steady) / sum(chunk.rows for chunk in steady)
