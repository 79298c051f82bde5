"""``curate doctor``: checks this machine, and then Ray: its start; versions, clocks, files and room of its nodes."""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from curation.cluster import capacity, nodes
from curation.cluster.session import local_or_cluster
from curation.commands.doctor import machine
from curation.commands.doctor.machine import LEASE_FIX, Finding, fail, ok, run_check, scratch, warn
from curation.config import AskConfig, DecodingConfig, RayConfig, RunConfig
from curation.config.load import load_config
from curation.errors import REFUSALS
from curation.heavy import ray
from curation.storage.conditional import make_register
from curation.storage.lease import guard_nothing
from curation.storage.paths import Place, to_place, write_atomically
from curation.tables import commits, io
from curation.teachers import Request
from curation.teachers.scripted import ScriptedTeacher

MAX_OFFSET, FAR_OFFSET = 1.0, 60.0
"""Clock offsets between nodes, in seconds, above which there is a warning or a failure. Ages in ``curate status`` are
wrong by the offset; far off, object stores refuse requests (Amazon's at 15 minutes) and valid leases seem expired."""

ROUNDS = 3
PROBE_SECONDS = 660
NUM_ROWS = 100
SECONDS = 180
"""Time limit for all nodes, in seconds; each has to start a process that imports the engine."""
NODE_FIX = "see the logs of this node (session_latest/logs in Ray's directory), or take it out of the cluster"
STORE_FIX = "set run_dir to a path that all nodes mount, or to an object store whose credentials every node has"
FOREIGN_FIX = "set run_dir to one path or store that all nodes share, not to each node's own disk"


def examine(
    config_path: str | None = None,
    overrides: Sequence[str] = (),
    *,
    address: str | None = None,
    vllm: bool = False,
    cluster: bool = False,
) -> Iterator[Finding]:
    """Yield each finding as soon as its check ends. Without a configuration, check only this machine.

    ``address`` of a Ray cluster overrides the configuration's. ``vllm`` probes vLLM even if the configuration does not
    use it. ``cluster`` lets an actor on every node label rows and write them to the run's store.
    """
    yield run_check("python", machine.check_python)
    yield run_check("packages", machine.check_packages)
    yield run_check("machine", machine.check_cores_and_memory)
    yield run_check("clock", machine.check_clock)
    config: RunConfig | None = None
    if config_path is not None:
        loaded: list[RunConfig] = []

        def load() -> Finding:
            loaded.append(load_config(config_path, overrides))
            return ok(f"{config_path} is valid; run directory {loaded[0].directory}")

        yield run_check("config", load)
        config = loaded[0] if loaded else None
    settings = RayConfig() if config is None else config.ray
    settings = settings.model_copy(update={"address": address or settings.address})
    if config is not None:
        config = config.model_copy(update={"ray": settings})
        yield run_check("inputs", _check_inputs, config)
    directory = Path("runs").absolute() if config is None else config.directory
    if isinstance(directory, Path):
        yield run_check("disk of the run", machine.check_disk, directory)
    yield run_check("disk of Ray", machine.check_ray_disk)
    yield run_check("shared memory", machine.judge_shared_memory)
    local = capacity.find_address(settings) == capacity.LOCAL
    yield run_check("gpu", machine.check_gpu, machine.count_gpus_asked(config) if config is not None and local else 0.0)
    yield run_check("files", machine.check_writing, directory)
    yield run_check("tables", machine.check_tables, directory)
    if local:
        yield run_check("vllm", _check_vllm, config, vllm, here=True)
    yield from _examine_cluster(settings, config, directory, vllm=vllm, cluster=cluster)


def _check_inputs(config: RunConfig) -> Finding:
    from curation.commands.plan import check  # here, since what it imports may be broken

    return ok("; ".join(line.text for line in check(config)))


def _examine_cluster(
    settings: RayConfig, config: RunConfig | None, directory: Place, *, vllm: bool, cluster: bool
) -> Iterator[Finding]:
    """Yield the findings of a cluster, or of Ray on this machine if no address is given."""
    joins = capacity.find_address(settings) != capacity.LOCAL
    with ExitStack() as stack:
        joined = run_check("ray", _join, settings, stack)
        yield joined
        if joined.state == "fail":
            return
        yield run_check("versions", _check_versions)
        if joins or len(nodes.list_living()) > 1:
            yield run_check(
                "clocks",
                lambda: judge_clocks({nodes.name(n): _measure_offset(n["NodeID"]) for n in nodes.list_living()}),
            )
            yield run_check("shared files", _check_shared_files, directory)
        if config is not None:
            yield run_check("room", _check_room, config)
        if joins:
            yield run_check("vllm", _check_vllm, config, vllm, here=False)
        if cluster:
            answers: list[nodes.NodeAnswer] = []
            stored = run_check("store", _exercise, directory, answers)
            for answer in answers:
                yield run_check(f"node {answer.node_id[:8]}", _judge_node, answer)
            yield stored


def _join(settings: RayConfig, stack: ExitStack) -> Finding:
    start = time.monotonic()
    stack.enter_context(local_or_cluster(settings, same_versions=False))
    seconds = time.monotonic() - start
    living = nodes.list_living()
    kinds = Counter(
        f"{has.get('CPU', 0):g} CPUs, {has.get('GPU', 0):g} GPUs, {has.get('object_store_memory', 0) / 2**30:.1f} GiB "
        "object store"
        for has in (node["Resources"] for node in living)
    )
    finding = "; ".join(f"{number} with {resources}" for resources, number in kinds.most_common())
    address = capacity.find_address(settings)
    what = "starts on this machine" if address == capacity.LOCAL else f"{address} answers"
    return ok(f"{what} in {seconds:.1f} s, {len(living)} node{'s' if len(living) > 1 else ''}: {finding}")


def _check_versions() -> Finding:
    question = nodes.make_versions_question()
    answers = nodes.ask(question)
    silent = [f"{answer.node} does not answer ({answer.problem})" for answer in answers if answer.problem is not None]
    if differing := list(nodes.describe_differing_nodes(question(), answers)):
        return fail("; ".join(differing + silent), "install the same on every node (constraints.txt)")
    if silent:
        return fail("; ".join(silent), "see the logs of these nodes (session_latest/logs in Ray's directory)")
    return ok(f"the same on {len(answers)} node{'s' if len(answers) > 1 else ''} as here")


def judge_clocks(offsets: Mapping[str, tuple[float, float]]) -> Finding:
    """Return the verdict on clock offsets from this machine, given as (offset, error) in seconds by node."""
    wrong = {node: offset for node, (offset, error) in offsets.items() if abs(offset) - error > MAX_OFFSET}
    if wrong:
        finding = [f"{node} is {abs(by):.1f} s {'ahead' if by > 0 else 'behind'}" for node, by in wrong.items()]
        far = any(abs(offset) - error > FAR_OFFSET for offset, error in offsets.values())
        return (fail if far else warn)(", ".join(finding), "let all nodes follow one time server (chrony, ntpd)")
    most = max((abs(offset) for offset, _ in offsets.values()), default=0.0)
    error = max((error for _, error in offsets.values()), default=0.0)
    return ok(f"at most {most:.3f} s from this one's (known to {error:.3f} s)")


def _measure_offset(node_id: str) -> tuple[float, float]:
    """Return a node's clock offset from this machine, by the fastest round trip, and its error, half that trip."""

    def now() -> float:  # within, so that it is pickled by value
        import time

        return time.time()

    asked = nodes.make_task(now, node_id)
    rounds = []
    for _ in range(ROUNDS):
        start = time.time()
        there = ray.get(asked.remote(), timeout=nodes.ANSWER_SECONDS)
        end = time.time()
        rounds.append(((end - start) / 2, there - (start + end) / 2))
    error, offset = min(rounds)
    return offset, error


def _check_shared_files(directory: Place) -> Finding:
    """Check that every node reads what this process writes in the run directory, and vice versa."""
    with scratch(directory) as folder:
        token = uuid.uuid4().hex
        write_atomically(folder / "here", token)
        answers = nodes.ask(_make_exchange(), str(folder))
        wrong = []
        for answer in answers:
            path = folder / f"there-{answer.node_id}"
            if answer.problem is not None:
                wrong.append(f"{answer.node} does not answer ({answer.problem})")
            elif answer.value != token:
                wrong.append(f"{answer.node} {answer.value}")
            elif not path.exists() or path.read_text() != token:
                wrong.append(f"this machine does not see what {answer.node} writes")
    if wrong:
        return fail(
            f"{directory}: {'; '.join(wrong)}", "set run_dir to a path that all nodes mount, or an object store"
        )
    return ok(f"{directory}: {len(answers)} nodes read what this machine writes, and it reads what they write")


def _make_exchange() -> Callable[[str], str]:
    def exchange(folder: str) -> str:
        import ray

        from curation.storage.paths import to_place, write_atomically

        try:
            text = (to_place(folder) / "here").read_text()
            write_atomically(to_place(folder) / f"there-{ray.get_runtime_context().get_node_id()}", text)
        except OSError as error:
            return f"cannot use it: {error}"
        return text

    return exchange


def _check_room(config: RunConfig) -> Finding:
    waits = capacity.check_room(capacity.list_needs(config))
    if waits is not None:
        return warn(waits, "if the autoscaler has no such nodes, add some or ask for less")
    if idle := capacity.describe_idle(config, [node["Resources"] for node in nodes.list_living()]):
        return warn("; ".join(idle), "more actors label faster and cost no more")
    return ok("enough for everything that the configuration starts at once, on nodes that are otherwise idle")


def _check_vllm(config: RunConfig | None, wanted: bool, *, here: bool) -> Finding:
    """Check vLLM here, or on a node with the resources of a teacher actor; ``wanted`` probes it in any case."""
    backend = machine.choose_vllm_backend(config, wanted)
    if here:
        return machine.judge_vllm(backend, machine.look(machine.make_vllm_question(config, wanted)))
    takes = {} if config is None else config.teacher.actors.each
    living = nodes.list_living()
    fitting = [node for node in living if all(node["Resources"].get(kind, 0) >= n for kind, n in takes.items())]
    if not fitting:
        return warn("not checked: no node has the resources of a teacher actor", "run the check again when one is up")
    asked = nodes.make_task(machine.look, fitting[0]["NodeID"], takes)
    answer = ray.get(asked.remote(machine.make_vllm_question(config, wanted)), timeout=PROBE_SECONDS)
    verdict = machine.judge_vllm(backend, answer)
    return verdict._replace(finding=f"{nodes.name(fitting[0])}: {verdict.finding}")


@dataclass(frozen=True, kw_only=True)
class NodeLabels:
    """Rows that a node wrote (``commits.WRITTEN``), its seconds, and whether it got the lease."""

    written: pa.Table | None
    seconds: float
    has_lease: bool
    problem: str | None
    """Why the store cannot be used from this node; ``written`` is then None."""


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
        except REFUSALS as error:  # of the store; Lance raises plain ones
            problem = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - start
        return NodeLabels(written=written, seconds=seconds, has_lease=has_lease, problem=problem)


def _exercise(directory: Place, answers: list[nodes.NodeAnswer]) -> Finding:
    """Let all nodes label rows, append their results to ``answers``; commit, read back and remove the rows."""
    start = time.monotonic()
    with scratch(directory) as folder:
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
    except REFUSALS as error:  # a fragment on a disk of the node's own is not there
        return fail(f"what the nodes wrote cannot be read here ({type(error).__name__}: {error})", FOREIGN_FIX)
    ids = np.concatenate([np.frombuffer(answer.value.written["row_ids"][0].as_py(), np.int64) for answer in wrote])
    if not read.equals(expected.take(np.sort(ids)).cast(read.schema)):
        return fail(f"{read.num_rows} rows are read back, but not the {len(ids)} that were written", STORE_FIX)
    leases = sum(answer.value.has_lease for answer in wrote)
    if leases != 1:
        return fail(f"{leases} of {len(wrote)} nodes got the same lease at once, and only 1 may", LEASE_FIX)
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
