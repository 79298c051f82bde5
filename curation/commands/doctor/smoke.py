"""The smoke test of ``curate doctor --cluster``: rows go through an actor on every node into a table of the store."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from curation.cluster import nodes
from curation.commands.doctor import storage
from curation.commands.doctor.finding import Finding, fail, ok, run_check
from curation.config import AskConfig, DecodingConfig
from curation.heavy import ray
from curation.storage.conditional import make_register
from curation.storage.lease import guard_nothing
from curation.storage.paths import Place, to_place
from curation.tables import commits, io
from curation.teachers import Request
from curation.teachers.scripted import ScriptedTeacher

NUM_ROWS = 100
"""Number of rows that all nodes label together; each node labels at least one."""
SECONDS = 180
"""Time limit for all nodes, in seconds; each has to start a process that imports the engine."""
NODE_FIX = "see the logs of this node (session_latest/logs in Ray's directory), or take it out of the cluster"
STORE_FIX = "set run_dir to a path that all nodes mount, or to an object store whose credentials every node has"
FOREIGN_FIX = "set run_dir to one path or store that all nodes share, not to each node's own disk"


@dataclass(frozen=True, kw_only=True)
class NodeLabels:
    """Rows that a node wrote (``commits.WRITTEN``), its seconds, and whether it got the lease."""

    written: pa.Table | None
    seconds: float
    has_lease: bool
    problem: str | None
    """Why the store cannot be used from this node; ``written`` is then None."""


def examine(directory: Place) -> Iterator[Finding]:
    """Yield a finding for each living node, and one for the store; leave nothing in the directory."""
    answers: list[nodes.NodeAnswer] = []
    stored = run_check("store", _exercise, directory, answers)
    for answer in answers:
        yield run_check(f"node {answer.node_id[:8]}", _judge_node, answer)
    yield stored


def label(first: int, stop: int) -> pa.Table:
    """Return the scripted teacher's answers to the rows ``first`` to ``stop - 1``; equal on every node."""
    requests = [Request(row_id=row_id, prompt=f"smoke test, row {row_id}") for row_id in range(first, stop)]
    teacher = ScriptedTeacher(AskConfig(backend="scripted"))
    return pa.Table.from_batches(list(teacher.label(requests, DecodingConfig(), seed=0)))


class Labeller:
    """An actor that labels and writes rows on one node."""

    def work(self, folder: str, first: int, stop: int) -> NodeLabels:
        """Label rows, write them as a fragment of the folder's table, and try to get the folder's lease."""
        start = time.monotonic()
        rows, written, has_lease, problem = label(first, stop), None, False, None
        try:
            if not (to_place(folder) / "labels.lance").exists():  # writing would make a table on the node's own disk
                raise FileNotFoundError(f"{folder}/labels.lance, which the driver wrote, is not there")
            written = commits.write_fragment(rows, str(to_place(folder) / "labels.lance"), rows.schema)
            has_lease = make_register(to_place(folder) / "lease").put_if_absent(str(first)) is not None
        except (OSError, ValueError, RuntimeError) as error:  # of the store; Lance raises plain ones
            problem = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - start
        return NodeLabels(written=written, seconds=seconds, has_lease=has_lease, problem=problem)


def _exercise(directory: Place, answers: list[nodes.NodeAnswer]) -> Finding:
    """Let all nodes label rows, append their results to ``answers``; commit, read back and remove the rows."""
    start = time.monotonic()
    with storage.scratch(directory) as folder:
        living = nodes.list_living()
        bounds = np.linspace(0, max(NUM_ROWS, len(living)), len(living) + 1).astype(int).tolist()
        expected = label(0, bounds[-1])
        uri = io.create(str(folder / "labels.lance"), expected.schema).uri
        actors = [nodes.start_actor(Labeller, node["NodeID"]) for node in living]
        parts = zip(actors, bounds, bounds[1:], strict=False)
        asked = [actor.work.remote(str(folder), first, stop) for actor, first, stop in parts]
        answers += nodes.collect(living, asked, SECONDS)
        for actor in actors:
            ray.kill(actor)
        verdict = store_verdict(directory, uri, answers, expected)
    if folder.exists():
        return fail(f"{directory}: {folder.name} is still there after it was removed", "remove it by hand")
    text = f"{directory}: {verdict.finding}"
    return verdict._replace(finding=text if verdict.fix else f"{text}, {time.monotonic() - start:.1f} s in all")


def store_verdict(directory: Place, uri: str, answers: list[nodes.NodeAnswer], expected: pa.Table) -> Finding:
    """Commit what the nodes wrote, and check that each row is read back once, as this process labels it."""
    wrote = [answer for answer in answers if answer.value is not None and answer.value.written is not None]
    if not wrote:
        return fail("no node wrote a row", STORE_FIX)
    table = commits.Committer(uri, guard_nothing)
    for answer in wrote:
        (row,) = answer.value.written.to_pylist()
        table.add(row["fragments"], row["row_ids"])
    try:
        table.flush()
        read = io.read(io.find_latest(uri)).sort_by("row_id")
    except (OSError, ValueError, RuntimeError) as error:  # a fragment on a disk of the node's own is not there
        return fail(f"what the nodes wrote cannot be read here ({type(error).__name__}: {error})", FOREIGN_FIX)
    ids = np.concatenate([np.frombuffer(answer.value.written["row_ids"][0].as_py(), np.int64) for answer in wrote])
    if not read.equals(expected.take(np.sort(ids)).cast(read.schema)):
        return fail(f"{read.num_rows} rows are read back, but not the {len(ids)} that were written", STORE_FIX)
    leases = sum(answer.value.has_lease for answer in wrote)
    if leases != 1:
        return fail(f"{leases} of {len(wrote)} nodes got the same lease at once, and only 1 may", storage.LEASE_FIX)
    if len(ids) < expected.num_rows:
        lacking = expected.num_rows - len(ids)
        return fail(f"{lacking} of {expected.num_rows} rows are missing", "fix the nodes that fail above")
    one = "1 node" if len(wrote) == 1 else f"{len(wrote)} nodes, one of which got the lease"
    return ok(f"{len(ids)} rows from {one}, committed, read back once each, removed")


def _judge_node(answer: nodes.NodeAnswer) -> Finding:
    done: NodeLabels | None = answer.value
    if done is None:
        return fail(f"{answer.node} labelled nothing: {answer.problem}", NODE_FIX)
    if done.written is None:
        return fail(f"{answer.node} cannot write to the run's store: {done.problem}", STORE_FIX)
    num_rows = len(done.written["row_ids"][0].as_py()) // 8
    return ok(f"{answer.node}: labelled and wrote {num_rows} rows in {done.seconds:.2f} s")
