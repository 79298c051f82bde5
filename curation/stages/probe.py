"""A probe: a small random sample is labelled by the actors that a run would start, and what that takes is measured."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curation.hashing import draw_by_hash
from curation.label_columns import ORDER_OUTPUT_TOKENS, ORDER_PROMPT_TOKENS
from curation.metrics import Estimate, compute_proportion
from curation.metrics.totals import compute_population_mean, compute_ratio
from curation.passes.dataset import ModelDataset
from curation.passes.job import PassOptions, PassResult
from curation.passes.monitor import ChunkSpent
from curation.passes.run import run_pass
from curation.registry import BACKENDS
from curation.stages.calibration_look import FIRST_BLANK
from curation.stages.label_chunks import LabelJob
from curation.tables import io, schemas
from curation.teachers import get_state_width
from curation.telemetry.standing import Update

NUM_CHUNKS = 16
"""The chunks of a probe, each a batch whose rate is measured."""
LEAST_CHUNKS = 4
"""The fewest chunks of an actor: the first one warms it up, the others are measured."""
SECONDS = 30.0
"""About the time that a probe labels, its actors' start aside, unless the number of its rows was asked for."""
LEAST_ROWS = 300
"""Rows without which a probe with time left does not end. They say enough of the shares of errors and unparsed rows:
where none is seen in 300 rows, the share is below 1 % (the default of ``teacher.max_error_rate``) with 95 % confidence,
and a share of a half is known to 6 points."""
NARROW = 0.05
"""Half the width, relative to the value, of intervals that are narrow enough: of the rate and of the tokens of a row. A
run's rate may differ by ``forecasting.DRIFT``, 15 %, whatever a probe finds; beside that an error of 5 % widens the
forecast's interval by a twentieth (0.158 in place of 0.150)."""
FIRST_ROWS = 8
"""Rows of the chunks that say how many more are labelled in that time; each actor has two, one to warm it up."""

WAVES = 3
"""Rows of a probe for each one that an actor's model answers side by side, where a row costs less the more there are:
while the first of them come and the last of them end the model is not full."""
FREE = 0.75
"""Twice as many rows at once that cost less than this part of the time a row: the model had places free."""


@dataclass(frozen=True, kw_only=True)
class Population:
    """The rows that a forecast is about."""

    rows: int
    is_sampled: bool
    """Whether the sample is drawn from these rows themselves, not from others of the same distribution."""


@dataclass(frozen=True, kw_only=True)
class MeasuredCost:
    """Measured cost of labelling a row, with 95 % intervals. The sample is random, so they hold for the population."""

    rows: int
    """Rows of the sample."""
    prompt_tokens: Estimate
    """Prompt tokens of a row, read by the teacher, for signals too."""
    output_tokens: Estimate
    errors: Estimate
    """Share of rows that become error rows."""
    unparsed: Estimate
    """Share of rows with an answer from which no label could be read."""
    truncated: Estimate
    """Share of rows whose answer is cut at the length cap."""
    actor_seconds: Estimate
    """Seconds of one actor for a row, at its steady rate: without the start of its model and without its first
    chunk."""
    bytes: Estimate
    """Stored of a row, without hidden states."""
    fragment_bytes: float
    """Stored of a fragment, whatever its rows are."""
    state_bytes: int
    """Stored of a row for each hidden state."""
    start_seconds: float | None
    """Seconds of an actor from its process's start until it labels at its steady rate; ``None`` if it ran already."""
    other_seconds: float
    """Seconds of the pass beside the actors' time: until a process has started, and for the last commit."""
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
    """Label the examples of ``job``, which are the sample, and measure; ``update`` receives progress updates.

    Where all of them would take longer than ``seconds``, or fewer say enough (``LEAST_ROWS``, ``NARROW``), a random
    part of them is the sample.

    Raises:
        RunFailedError: an actor kept dying without getting anything done.
    """
    for ask in job.asks:
        io.create(ask.uri, schemas.SIGNAL)
    calls = BACKENDS[job.teacher.backend].calls
    how = PassOptions(dataset=dataset, commit_seconds=commit_seconds, progress=update or (lambda standing: None))
    passes = _label_sample(job, population, seconds, how)
    labels, chunks = _read_labels(passes), [chunk for found in passes for chunk in found.of_chunks]
    num_errors, num_rows = labels["error"].length() - labels["error"].null_count, labels.num_rows
    pace, prompt, output = _estimate_costs(passes, labels, population, calls, asks=bool(job.asks))
    num_actors = len({chunk.actor for chunk in chunks})
    alive = sum(found.spent.actor_seconds for found in passes)
    busy = sum(chunk.seconds for chunk in chunks)
    starting = max(0.0, alive - busy) + compute_warm_up(chunks, calls, pace.value)
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
        other_seconds=_compute_other_seconds(passes, num_actors),
        num_actors=num_actors,
    )


KINDS = ("prompt", "output")
ORDER_TOKENS = {"prompt": ORDER_PROMPT_TOKENS, "output": ORDER_OUTPUT_TOKENS}


def _label_sample(job: LabelJob, population: Population, seconds: float, how: PassOptions) -> list[PassResult]:
    """Run a pass of a few rows, if time is limited, and passes of more, until they say enough or the time is spent.

    Examples without content are in all of them.
    """
    all_N = io.read(job.examples, columns=["row_id"])["row_id"].to_numpy()
    ids_N, blanks_M = all_N[all_N < FIRST_BLANK], all_N[all_N >= FIRST_BLANK]
    most = job.teacher.chunk_rows

    def asked(num_rows: int, size: int) -> PassResult:
        taken_M = np.append(draw_by_hash(ids_N, num_rows, job.seed), blanks_M)
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
        costs = _estimate_costs(passes, _read_labels(passes), population, calls, asks=bool(job.asks))
        if all(map(is_narrow, costs)):
            return passes
        num_rows = min(most_rows, 2 * num_rows)


def is_narrow(found: Estimate) -> bool:
    """Return whether an interval is narrow enough (``NARROW``)."""
    return found.high - found.low <= 2 * NARROW * found.value


def _read_labels(passes: Sequence[PassResult]) -> pa.Table:
    """Return the labelled rows; examples without content are no rows of the run's."""
    labels = io.read(passes[-1].table)
    return labels.filter(pc.less(labels["row_id"], FIRST_BLANK))


def _estimate_costs(
    passes: Sequence[PassResult], labels: pa.Table, population: Population, calls: int, *, asks: bool
) -> tuple[Estimate, Estimate, Estimate]:
    """Return seconds of an actor, prompt tokens and output tokens, each of a row; the seconds from the last passes."""
    chunks = [chunk for found in passes for chunk in found.of_chunks]
    full = passes[-1:] if any(chunk.slots for chunk in chunks) else passes[1:]
    later = [chunk for found in full for chunk in found.of_chunks]
    steady = select_steady_chunks(later or chunks, calls)
    pace = compute_ratio([chunk.seconds for chunk in steady], [chunk.rows for chunk in steady])
    prompt, output = (_estimate_tokens(kind, labels, chunks, population, asks=asks) for kind in KINDS)
    return pace, prompt, output


def _compute_other_seconds(passes: Sequence[PassResult], num_actors: int) -> float:
    """Return seconds of a pass beside the actors' time: of the first one, in which they start, and of one more."""
    other = [max(0.0, found.seconds - found.spent.actor_seconds / num_actors) for found in passes]
    return other[0] + max(other[1:], default=0.0)


def count_affordable_rows(chunks: Sequence[ChunkSpent], calls: int, seconds: float) -> int:
    """Return the rows that the actors of these chunks label in so many seconds, at their steady rate together."""
    steady = select_steady_chunks(chunks, calls)
    pace = sum(chunk.seconds for chunk in steady) / sum(chunk.rows for chunk in steady)
    return int(seconds * len({chunk.actor for chunk in chunks}) / max(pace, 1e-9))


def compute_warm_up(chunks: Sequence[ChunkSpent], calls: int, pace: float) -> float:
    """Return the seconds that actors' first chunks took beyond the ``pace`` (seconds a row): imports, caches."""
    seen: Counter[str] = Counter()
    extra = 0.0
    for chunk in chunks:
        seen[chunk.actor] += 1
        if seen[chunk.actor] <= calls:
            extra += chunk.seconds - pace * chunk.rows
    return max(0.0, extra)


def select_steady_chunks(chunks: Sequence[ChunkSpent], calls: int) -> list[ChunkSpent]:
    """Return the chunks that actors worked on at their steady rate, if there are any, else all.

    Not those that an actor had first, while it warmed up; and where an actor works on several at once, not those that
    it had last, while its batches were not full any more.
    """
    by_actor: defaultdict[str, list[ChunkSpent]] = defaultdict(list)
    for chunk in chunks:
        by_actor[chunk.actor].append(chunk)
    last = calls if calls > 1 else 0
    steady = [chunk for found in by_actor.values() for chunk in found[calls : len(found) - last]]
    warm = [chunk for found in by_actor.values() for chunk in found[calls:]]
    return next((found for found in (steady, warm) if len(found) > 1), list(chunks))


def _estimate_tokens(
    kind: str, labels: pa.Table, chunks: Sequence[ChunkSpent], population: Population, *, asks: bool
) -> Estimate:
    """Return tokens of a row; those of signals are counted by chunk."""
    if asks:
        return compute_ratio([getattr(chunk, f"{kind}_tokens") for chunk in chunks], [chunk.rows for chunk in chunks])
    columns = [f"num_{kind}_tokens", ORDER_TOKENS[kind]]  # of pairs of answers the second order's, too
    tokens_N = sum(labels[name].fill_null(0).to_numpy() for name in columns if name in labels.column_names)
    return compute_population_mean(tokens_N, population.rows, is_part=population.is_sampled)


def _estimate_bytes(labels: pa.Table, uri: str, population: Population) -> tuple[Estimate, float]:
    """Return bytes of a row without states, and of a fragment with them: by fragments of the sample and half of it.

    Rows differ by their texts.
    """
    plain = labels.select([name for name in labels.column_names if not schemas.is_state(name)])
    half = plain.num_rows // 2
    sizes = [
        io.get_table_size(io.write(plain.slice(0, rows), f"{uri}-{rows}.lance")) for rows in (half, plain.num_rows)
    ]
    value = max(0.0, (sizes[1] - sizes[0]) / (plain.num_rows - half))
    texts_N = sum(
        (pc.binary_length(plain[name]).fill_null(0).to_numpy().astype(np.float64) for name in ("completion", "label")),
        np.zeros(plain.num_rows),
    )
    texts = compute_population_mean(texts_N, population.rows, is_part=population.is_sampled)
    low, high = value - (texts.value - texts.low), value + (texts.high - texts.value)
    stored = io.get_table_size(io.write(labels, f"{uri}-whole.lance"))
    of_rows = value * plain.num_rows + sum(
        labels[name].nbytes for name in labels.column_names if schemas.is_state(name)
    )
    return Estimate(value=value, low=max(0.0, low), high=high, n=texts.n), max(0.0, stored - of_rows)


def choose_chunk_rows(num_rows: int, most: int) -> int:
    """Return rows of a chunk of a probe of so many rows."""
    return max(1, min(most, -(-num_rows // NUM_CHUNKS)))


def choose_num_actors(num_rows: int, most: int, room: int) -> int:
    """Return how many actors a probe starts: as many as fit, as they may slow each other, up to ``most``."""
    return max(1, min(most, room, NUM_CHUNKS // LEAST_CHUNKS, num_rows))
