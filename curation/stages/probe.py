"""A probe, which labels a small random sample by the actors that a run would start, and measures the cost."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curation.hashing import draw_by_hash
from curation.label_columns import TOKEN_COLUMNS
from curation.metrics import Estimate, compute_proportion
from curation.metrics.totals import compute_population_mean, compute_ratio
from curation.passes.dataset import ModelDataset
from curation.passes.job import ChunkSpent, PassOptions, PassResult
from curation.passes.run import run_pass
from curation.registry import BACKENDS
from curation.stages.label_chunks import LabelJob
from curation.stages.rows import read_ids
from curation.tables import io, schemas
from curation.teachers import get_state_width
from curation.telemetry.standing import Update

NUM_CHUNKS = 16
"""Number of chunks of a probe; the rate of each chunk is measured."""
LEAST_CHUNKS = 4
"""Minimum number of chunks per actor: the first one warms it up, the others are measured."""
SECONDS = 30.0
"""Approximate labelling time of a probe in seconds, without its actors' start, unless its number of rows is given."""
LEAST_ROWS = 300
"""Minimum number of rows of a probe with time left. They suffice for the shares of errors and unparsed rows:
if none is seen in 300 rows, the share is below 1 % (the default of ``teacher.max_error_rate``) with 95 % confidence,
and a share of a half is known to 6 points."""
NARROW = 0.05
"""Maximum half-width, relative to the value, of a sufficiently narrow interval of the rate or of the tokens per row. A
run's rate may differ by ``forecasting.DRIFT``, 15 %, whatever a probe finds; a further error of 5 % widens the
forecast's interval only by a twentieth (0.158 instead of 0.150)."""
FIRST_ROWS = 8
"""Rows per chunk of the first pass, whose rate says how many rows fit into the time; each actor has two such chunks."""

WAVES = 3
"""Number of a probe's rows per row that an actor's model answers concurrently, if rows cost less the more there are:
the model is not full while the first rows arrive and the last rows end."""
FREE = 0.75
"""Maximum ratio of time per row, at twice as many concurrent rows, that shows that the model had free capacity."""


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
    truncated: Estimate
    actor_seconds: Estimate
    """Seconds per row of one actor at its steady rate, without the start of its model and its first chunk."""
    bytes: Estimate
    """Stored bytes per row, without hidden states."""
    fragment_bytes: float
    """Stored bytes per fragment, whatever its rows are."""
    state_bytes: int
    """Stored bytes per row for each hidden state."""
    start_seconds: float | None
    """Seconds from the start of an actor's process until its steady rate, or None if the actors ran already."""
    other_seconds: float
    """Seconds of the pass outside the actors' time: until a process has started, and for the last commit."""
    num_actors: int


def probe(
    job: LabelJob,
    dataset: ModelDataset,
    population: Population,
    *,
    seconds: float,
    commit_seconds: float,
    update: Update | None = None,
) -> MeasuredCost:
    """Label the examples of ``job``, a random sample, and measure the cost.

    If all would take longer than ``seconds``, or fewer suffice (``LEAST_ROWS``, ``NARROW``), it labels a random part.
    """
    for ask in job.asks:
        io.create(ask.uri, schemas.SIGNAL)
    calls = BACKENDS[job.teacher.backend].calls
    how = PassOptions(dataset=dataset, commit_seconds=commit_seconds, progress=update or (lambda standing: None))
    passes = _label_sample(job, population, seconds, how)
    labels, chunks = io.read(passes[-1].table), [chunk for found in passes for chunk in found.of_chunks]
    num_errors, num_rows = labels["error"].length() - labels["error"].null_count, labels.num_rows
    pace, prompt, output = _estimate_costs(job, passes, labels, population)
    num_actors = len({chunk.actor for chunk in chunks})
    alive = sum(found.spent.actor_seconds for found in passes)
    busy = sum(chunk.seconds for chunk in chunks)
    # the seconds that actors' first chunks took beyond the pace, e.g. for imports
    first_chunks = [chunk for found in _group_by_actor(chunks) for chunk in found[:calls]]
    warm_up = sum(chunk.seconds - pace.value * chunk.rows for chunk in first_chunks)
    starting = max(0.0, alive - busy) + max(0.0, warm_up)
    # seconds outside the actors' time: those of the first pass, plus the most of a later pass
    first, *later = (max(0.0, found.seconds - found.spent.actor_seconds / num_actors) for found in passes)
    bytes_, fragment_bytes = _estimate_bytes(labels, f"{job.labels_uri}.measured", population)
    size = get_state_width(job.teacher, job.model) * {"float16": 2, "float32": 4}[job.teacher.state_dtype]
    return MeasuredCost(
        rows=num_rows,
        prompt_tokens=prompt,
        output_tokens=output,
        errors=compute_proportion(num_errors, num_rows),
        unparsed=compute_proportion(labels["label"].null_count - num_errors, num_rows),
        truncated=compute_proportion(pc.sum(labels["truncated"]).as_py() or 0, num_rows),
        actor_seconds=pace,
        bytes=bytes_,
        fragment_bytes=fragment_bytes,
        state_bytes=size,
        start_seconds=starting / num_actors if any(found.teachers for found in passes) else None,
        other_seconds=first + max(later, default=0.0),
        num_actors=num_actors,
    )


def _label_sample(job: LabelJob, population: Population, seconds: float, how: PassOptions) -> list[PassResult]:
    """Run a pass of a few rows, if time is limited, then larger passes until they suffice or the time is spent."""
    ids_N, most = read_ids(job.examples), job.teacher.chunk_rows

    def asked(num_rows: int, size: int) -> PassResult:
        taken_M = draw_by_hash(ids_N, num_rows, job.seed)
        return run_pass(
            replace(job, teacher=job.teacher.model_copy(update={"chunk_rows": size})),
            name="the probe",
            uri=job.labels_uri,
            schema=job.schema(get_state_width(job.teacher, job.model)),
            takes=lambda row_ids_N: np.isin(row_ids_N, taken_M),
            **how,
        )

    if math.isinf(seconds):
        return [asked(len(ids_N), choose_chunk_rows(len(ids_N), most))]
    calls, size = BACKENDS[job.teacher.backend].calls, min(FIRST_ROWS, most)
    actors = job.teacher.actors.max
    passes = [first := asked(min(len(ids_N), 2 * size * calls * actors), size)]
    most_rows = min(len(ids_N), first.rows + count_affordable_rows(first.of_chunks, calls, seconds))
    num_rows, size = min(LEAST_ROWS, most_rows), choose_chunk_rows(most_rows, most)  # smaller chunks fill fewer batches
    slots = max((chunk.slots or 0 for chunk in first.of_chunks), default=0)
    if slots > FIRST_ROWS * calls and first.rows < len(ids_N):  # not full yet: is a row among more of them cheaper?
        passes.append(more := asked(min(len(ids_N), 3 * first.rows), min(2 * FIRST_ROWS, most)))
        before, after = (count_affordable_rows(found.of_chunks, calls, seconds) for found in (first, more))
        if before < FREE * after:
            most_rows = num_rows = min(len(ids_N), max(most_rows, more.rows + first.rows + WAVES * slots * actors))
            size = min(-(-slots // calls), most)
    while True:
        passes.append(asked(num_rows, size))
        if num_rows >= most_rows:
            return passes
        if all(map(is_narrow, _estimate_costs(job, passes, io.read(passes[-1].table), population))):
            return passes
        num_rows = min(most_rows, 2 * num_rows)


def is_narrow(found: Estimate) -> bool:
    """Return whether an interval is narrow enough (``NARROW``)."""
    return found.high - found.low <= 2 * NARROW * found.value


def _estimate_costs(
    job: LabelJob, passes: Sequence[PassResult], labels: pa.Table, population: Population
) -> tuple[Estimate, Estimate, Estimate]:
    """Return an actor's seconds, prompt tokens and output tokens per row; the seconds are those of later passes."""
    chunks = [chunk for found in passes for chunk in found.of_chunks]
    full = passes[-1:] if any(chunk.slots for chunk in chunks) else passes[1:]
    later = [chunk for found in full for chunk in found.of_chunks]
    steady = select_steady_chunks(later or chunks, BACKENDS[job.teacher.backend].calls)
    pace = compute_ratio([chunk.seconds for chunk in steady], [chunk.rows for chunk in steady])
    if job.asks:  # tokens of signals are counted by chunk
        spent = ([chunk.prompt_tokens for chunk in chunks], [chunk.output_tokens for chunk in chunks])
        prompt, output = (compute_ratio(tokens, [chunk.rows for chunk in chunks]) for tokens in spent)
        return pace, prompt, output
    names = ([name for name in columns if name in labels.column_names] for columns in TOKEN_COLUMNS.values())
    tokens = (sum(labels[name].fill_null(0).to_numpy() for name in of_kind) for of_kind in names)
    rows, is_part = population.rows, population.is_sampled
    prompt, output = (compute_population_mean(tokens_N, rows, is_part=is_part) for tokens_N in tokens)
    return pace, prompt, output


def count_affordable_rows(chunks: Sequence[ChunkSpent], calls: int, seconds: float) -> int:
    """Return the number of rows that the actors of these chunks together label in ``seconds``, at their steady rate."""
    steady = select_steady_chunks(chunks, calls)
    pace = sum(chunk.seconds for chunk in steady) / sum(chunk.rows for chunk in steady)
    return int(seconds * len({chunk.actor for chunk in chunks}) / max(pace, 1e-9))


def select_steady_chunks(chunks: Sequence[ChunkSpent], calls: int) -> list[ChunkSpent]:
    """Return the chunks that actors worked on at their steady rate, or all chunks if there are too few.

    An actor's first chunks, in which it warmed up, are left out. So are its last chunks if it works on several at once,
    since its batches were no longer full.
    """
    by_actor, last = _group_by_actor(chunks), calls if calls > 1 else 0
    steady = [chunk for found in by_actor for chunk in found[calls : len(found) - last]]
    warm = [chunk for found in by_actor for chunk in found[calls:]]
    return next((found for found in (steady, warm) if len(found) > 1), list(chunks))


def _group_by_actor(chunks: Sequence[ChunkSpent]) -> list[list[ChunkSpent]]:
    by_actor: defaultdict[str, list[ChunkSpent]] = defaultdict(list)
    for chunk in chunks:
        by_actor[chunk.actor].append(chunk)
    return list(by_actor.values())


def _estimate_bytes(labels: pa.Table, uri: str, population: Population) -> tuple[Estimate, float]:
    """Return bytes per row without states (rows differ by texts) and per fragment, by tables of all and of half."""
    states = [name for name in labels.column_names if schemas.is_state(name)]
    plain, half = labels.drop_columns(states), labels.num_rows // 2
    tables = (io.write(plain.slice(0, rows), f"{uri}-{rows}.lance") for rows in (half, plain.num_rows))
    smaller, larger = map(io.get_table_size, tables)
    value = max(0.0, (larger - smaller) / (plain.num_rows - half))
    texts_N = np.zeros(plain.num_rows)
    for name in ("completion", "label"):
        texts_N += pc.binary_length(plain[name]).fill_null(0).to_numpy()
    texts = compute_population_mean(texts_N, population.rows, is_part=population.is_sampled)
    low, high = value - (texts.value - texts.low), value + (texts.high - texts.value)
    stored = io.get_table_size(io.write(labels, f"{uri}-whole.lance"))
    of_rows = value * plain.num_rows + sum(labels[name].nbytes for name in states)
    return Estimate(value=value, low=max(0.0, low), high=high, n=texts.n), max(0.0, stored - of_rows)


def choose_chunk_rows(num_rows: int, most: int) -> int:
    """Return the number of rows per chunk for a probe of ``num_rows`` rows, at most ``most``."""
    return max(1, min(most, -(-num_rows // NUM_CHUNKS)))


def choose_num_actors(num_rows: int, most: int, room: int) -> int:
    """Return how many actors a probe starts: as many as fit, up to ``most``, since actors may slow each other down."""
    return max(1, min(most, room, NUM_CHUNKS // LEAST_CHUNKS, num_rows))
