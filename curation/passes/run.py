"""One pass of a model over a table of examples: chunks in, written fragments out, every row exactly once.

Shared by the label stage and the signals.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Unpack

import pyarrow as pa

from curation.arrays import Bools, Int64s
from curation.cluster import nodes
from curation.config import AskConfig
from curation.errors import CommitError
from curation.heavy import ray
from curation.passes.cutting import OpenRows
from curation.passes.dataset import ModelDataset
from curation.passes.job import Job, PassOptions, PassResult
from curation.passes.messages import Look
from curation.passes.monitor import NOBODY, Tally
from curation.passes.poison import PoisonSuspects
from curation.registry import BACKENDS
from curation.storage.lease import guard_nothing
from curation.tables import commits, io
from curation.tables.compaction import compact
from curation.tables.stream import commit_stream
from curation.tasks import make_driver_error


def run_pass(
    job: Job,
    *,
    name: str,
    uri: str,
    schema: pa.Schema,
    takes: Callable[[Int64s], Bools],
    **how: Unpack[PassOptions],
) -> PassResult:
    """Run ``job`` by a dataset's actors for each example that ``takes`` (a mask of ids) marks and ``uri`` lacks.

    Raises:
        RunFailedError: an actor kept dying without any work done.
        CommitError: the store refused a commit, or the numbers of rows in and out differ.
    """
    io.create(uri, schema)
    guard, fragment_mb = how.get("guard", guard_nothing), how.get("fragment_mb")
    committer = commits.Committer(uri, guard, fragment_mb)
    num_done = len(committer.done)
    rows = OpenRows(job.examples, takes, committer.done)
    total, num_left = rows.requested, rows.left
    suspects = PoisonSuspects(uri)
    begun = time.monotonic()
    tally = Tally(uri, done=num_done, total=total, telemetry=job.telemetry, update=how.get("progress"))
    with ExitStack() as stack:
        if num_left:
            dataset: ModelDataset | None = how.get("dataset")
            if dataset is None:
                dataset = stack.enter_context(closing(make_dataset(job.teacher)))
            try:
                running = stack.enter_context(
                    dataset.passing(uri, job, nodes.make_versions_question()(), rows, suspects.read())
                )

                def look() -> Look:
                    found = running.look()
                    suspects.keep(found.suspects)
                    return found

                stack.enter_context(tally.telling(look))
                commit_stream(
                    running,
                    [committer],
                    seconds=how["commit_seconds"],
                    guard=guard,
                    fragment_mb=fragment_mb,
                    on_commit=tally.committed,
                    on_written=tally.wrote,
                    rest=running.rest,
                )
            except ray.exceptions.RayError as error:
                raise make_driver_error(error, name) from error
        else:
            with tally.telling(lambda: NOBODY):
                pass
    ref = io.find_latest(uri)
    if not len(committer.done) == (num_rows := io.count(ref)) == total:
        known = len(committer.done)
        raise CommitError(f"{uri}: {total} rows in, {num_rows} rows out ({known} ids known to this driver)")
    suspects.forget()
    seconds = time.monotonic() - begun
    return PassResult(
        table=ref if fragment_mb is None else compact(ref, fragment_mb, guard=guard),
        rows=num_left,
        seconds=seconds,
        deaths=tally.deaths,
        teachers=tally.teachers,
        spent=tally.spent,
        of_chunks=tally.of_chunks,
        clipped_values=tally.clipped_values,
    )


def make_dataset(asked: AskConfig, *, name: str = "model", hold_cpus: bool = True) -> ModelDataset:
    """Return a dataset for the model ``name``, with actors as configured by ``asked``."""
    of_nodes = [node["Resources"].get("CPU", 0) for node in nodes.list_living()]
    actors = asked.actors
    cpus = actors.cpus(asked.backend, of_nodes)
    if not hold_cpus:  # then Ray would start more than there is room for
        most = max(1, min(actors.max, int(sum(of_nodes) // cpus)))
        least = {name: min(most, value) for name in ("min", "initial") if (value := getattr(actors, name)) is not None}
        actors = actors.model_copy(update={"max": most, **least})
    return ModelDataset(actors, name=name, num_cpus=cpus, num_calls=BACKENDS[asked.backend].calls, hold_cpus=hold_cpus)
