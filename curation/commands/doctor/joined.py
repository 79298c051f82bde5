"""``curate doctor``: checks this machine, and then Ray: its start, and the versions, room and storage of its nodes."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from curation.cluster import capacity, nodes
from curation.cluster.session import local_or_cluster
from curation.commands.doctor import machine
from curation.commands.doctor.machine import LEASE_FIX, Finding, fail, ok, run_check, scratch, warn
from curation.config import RayConfig, RunConfig
from curation.config.load import load_config
from curation.errors import REFUSALS
from curation.heavy import ray
from curation.refs import ModelRef
from curation.storage.conditional import make_register
from curation.storage.lease import guard_nothing
from curation.storage.paths import Place, to_place
from curation.tables import commits, io
from curation.tables.schemas import ROW_ID

PROBE_SECONDS = 660
ROWS = pa.schema([ROW_ID])
SECONDS = 180
"""Time limit for all nodes, in seconds; each has to start a process that imports the engine."""
NODE_FIX = "see the logs of these nodes (session_latest/logs in Ray's directory), or take them out of the cluster"
STORE_FIX = "set run_dir to a path that all nodes mount, or to an object store whose credentials every node has"
Check = Callable[[], Finding]


def examine(
    config_path: str | None = None, overrides: Sequence[str] = (), *, address: str | None = None
) -> Iterator[Finding]:
    """Yield each finding as soon as its check ends. Without a configuration, check only machine and Ray.

    ``address`` of a Ray cluster overrides the configuration's.
    """
    loaded: list[RunConfig] = []

    def load(path: str) -> Finding:
        loaded.append(load_config(path, overrides))
        return ok(f"{path} is valid; run directory {loaded[0].directory}")

    if config_path is not None:
        yield run_check("config", load, config_path)
    config = loaded[0] if loaded else None
    settings = RayConfig() if config is None else config.ray
    settings = settings.model_copy(update={"address": address or settings.address})
    directory = Path("runs").absolute() if config is None else config.directory
    is_local = capacity.find_address(settings) == capacity.LOCAL
    here: dict[str, Check] = {
        "machine": machine.check_memory,
        "disk of Ray": machine.check_ray_disk,
        "shared memory": machine.judge_shared_memory,
        "gpu": partial(machine.check_gpu, count_gpus_asked(config) if config is not None and is_local else 0.0),
        "files": partial(machine.check_writing, directory),
    }
    there: dict[str, Check] = {"versions": _check_versions, "store": partial(_check_store, directory)}
    if isinstance(directory, Path):
        here["disk of the run"] = partial(machine.check_disk, directory, "make space, or set run_dir to a larger disk")
    if config is not None:
        config = config.model_copy(update={"ray": settings})
        here["inputs"] = partial(_check_inputs, config)
        there["room"] = partial(_check_room, config)
    (here if is_local else there)["vllm"] = partial(_check_vllm, config, here=is_local)
    for name, check in here.items():
        yield run_check(name, check)
    with ExitStack() as stack:
        joined = run_check("ray", _join, settings, stack)
        yield joined
        for name, check in there.items() if joined.state == "ok" else ():
            yield run_check(name, check)


def count_gpus_asked(config: RunConfig) -> float:
    """Return the largest number of GPUs that a stage of a run requests at once."""
    return max(need.count * need.resources.get("GPU", 0) for need in capacity.list_needs(config))


def _check_inputs(config: RunConfig) -> Finding:
    from curation.commands.plan import check  # here, since what it imports may be broken

    return ok("; ".join(line.text for line in check(config)))


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
    wrong = list(nodes.describe_differing_nodes(question(), answers))
    wrong += [f"{answer.node} does not answer ({answer.problem})" for answer in answers if answer.problem is not None]
    if wrong:
        return fail("; ".join(wrong), f"install the same on every node (constraints.txt); {NODE_FIX}")
    return ok(f"the same on {len(answers)} node{'s' if len(answers) > 1 else ''} as here")


def _check_room(config: RunConfig) -> Finding:
    waits = capacity.check_room(capacity.list_needs(config))
    if waits is not None:
        return warn(waits, "if the autoscaler has no such nodes, add some or ask for less")
    if idle := capacity.describe_idle(config, [node["Resources"] for node in nodes.list_living()]):
        return warn("; ".join(idle), "more actors label faster and cost no more")
    return ok("enough for everything that the configuration starts at once, on nodes that are otherwise idle")


def get_vllm_arguments(config: RunConfig | None) -> tuple[str, Mapping[str, object], ModelRef | None, bool]:
    """Return backend, engine settings, model and use of GPUs of a configuration's teacher, for a check of vLLM."""
    if config is None:
        return "transformers", {}, None, False
    from curation import models

    teacher, model = config.teacher, config.teacher.loaded
    ref = None if model is None or model.path is None else models.pin_model(model)
    return teacher.ask.backend, teacher.vllm.engine, ref, bool(teacher.actors.num_gpus)


def _check_vllm(config: RunConfig | None, *, here: bool) -> Finding:
    """Check vLLM here, or on a node with the resources of a teacher actor."""
    if here:
        return machine.check_vllm(*get_vllm_arguments(config))
    takes = {} if config is None else config.teacher.actors.each
    living = nodes.list_living()
    fitting = [node for node in living if all(node["Resources"].get(kind, 0) >= n for kind, n in takes.items())]
    if not fitting:
        return warn("not checked: no node has the resources of a teacher actor", "run the check again when one is up")
    asked = nodes.make_task(machine.check_vllm, fitting[0]["NodeID"], takes)
    verdict: Finding = ray.get(asked.remote(*get_vllm_arguments(config)), timeout=PROBE_SECONDS)
    return verdict._replace(finding=f"{nodes.name(fitting[0])}: {verdict.finding}")


@dataclass(frozen=True, kw_only=True)
class NodeWritten:
    """A row that a node wrote (``commits.WRITTEN``), and whether the node got the lease."""

    written: pa.Table | None
    has_lease: bool
    problem: str | None
    """Why the store cannot be used from this node; ``written`` is then None."""


def write_row(folder: str, number: int) -> NodeWritten:
    """Write a row as a fragment of the folder's table, and try to get the folder's lease."""
    place = to_place(folder)
    rows, uri = pa.table({"row_id": [number]}, schema=ROWS), str(place / "rows.lance")
    written, has_lease, problem = None, False, None
    try:
        if not (place / "rows.lance").exists():  # writing would make a table on the node's own disk
            raise FileNotFoundError(f"{uri}, which the driver wrote, is not there")
        written = commits.write_fragment(rows, uri, ROWS)
        has_lease = make_register(place / "lease").put_if_absent(str(number)) is not None
    except REFUSALS as error:  # of the store; Lance raises plain ones
        problem = f"{type(error).__name__}: {error}"
    return NodeWritten(written=written, has_lease=has_lease, problem=problem)


def _check_store(directory: Place) -> Finding:
    """Let each node write a row to the run's store; commit, read back and remove the rows."""
    with scratch(directory) as folder:
        living, uri = nodes.list_living(), io.create(str(folder / "rows.lance"), ROWS).uri
        asked = [
            nodes.make_task(write_row, node["NodeID"]).remote(str(folder), number) for number, node in enumerate(living)
        ]
        verdict = judge_store(uri, nodes.collect(living, asked, SECONDS))
    if folder.exists():
        return fail(f"{directory}: {folder.name} is still there after it was removed", "remove it by hand")
    return verdict._replace(finding=f"{directory}: {verdict.finding}")


def judge_store(uri: str, answers: Sequence[nodes.NodeAnswer]) -> Finding:
    """Commit what the nodes wrote, and check that each node's row is read back once."""
    if wrong := [f"{answer.node} wrote nothing: {answer.problem}" for answer in answers if answer.value is None]:
        return fail("; ".join(wrong), NODE_FIX)
    if wrong := [f"{answer.node}: {answer.value.problem}" for answer in answers if answer.value.written is None]:
        return fail(f"cannot be written from {'; '.join(wrong)}", STORE_FIX)
    table = commits.Committer(uri, guard_nothing)
    for answer in answers:
        (row,) = answer.value.written.to_pylist()
        table.add(row["fragments"], row["row_ids"])
    try:
        table.flush()
        read = sorted(io.read(io.find_latest(uri))["row_id"].to_pylist())
    except REFUSALS as error:  # a fragment on a disk of the node's own is not there
        return fail(f"what the nodes wrote cannot be read here ({type(error).__name__}: {error})", STORE_FIX)
    if read != [*range(len(answers))]:
        return fail(f"of {len(answers)} rows, one from each node, {len(read)} are read back", STORE_FIX)
    leases = sum(answer.value.has_lease for answer in answers)
    if leases != 1:
        return fail(f"{leases} of {len(answers)} nodes got the same lease at once, and only 1 may", LEASE_FIX)
    one = "1 node" if len(answers) == 1 else f"{len(answers)} nodes, one of which got the lease"
    return ok(f"a row from each of {one}, committed, read back once, removed")
