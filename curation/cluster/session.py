"""Starts Ray on this machine for a run, or joins a cluster."""

import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from curation import memory, namesakes, own_modules
from curation.activity import doing
from curation.cluster import capacity, news, nodes, ray_private
from curation.config import RayConfig
from curation.errors import RunFailedError
from curation.heavy import ray
from curation.json_types import Json
from curation.stopping import deferred, stopped_by_signals
from curation.telemetry.console import say

RAY_ATTEMPTS = 3
LOCAL_SETTINGS = {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Settings of a Ray on this machine: its workers have the niceness of this process, since at Ray's default of 15 one
other busy process takes nearly all CPU time; and Ray collects and reports no usage statistics."""


@contextmanager
def local_or_cluster(settings: RayConfig) -> Iterator[None]:
    """Start or join Ray as the configuration says; a Ray that already runs is used and left running.

    This process becomes the driver: from now on it gives freed memory back (:func:`curation.memory.give_back`).

    Raises:
        ClusterError: no Ray can be joined, or a node has other versions than this process.
        RunFailedError: Ray did not start.
    """
    memory.give_back()
    # Ray forks only to execute another program.
    warnings.filterwarnings("ignore", message="lance is not fork-safe")
    started = not ray.is_initialized()
    with stopped_by_signals():
        try:
            if started:
                _start_ray(settings)
            if capacity.find_address(settings) != capacity.LOCAL or len(nodes.list_living()) > 1:
                nodes.require_same_versions()
            yield
        finally:
            if started:
                ray.shutdown()


def _start_ray(settings: RayConfig) -> None:
    """Start or join Ray, and retry a start that times out, as it may on a busy machine."""
    address = capacity.find_address(settings)
    found = {"worker_process_setup_hook": namesakes.check_folder(), "py_modules": own_modules.list_sent_files()}
    capacity.check_answers(address)
    is_here = address == capacity.LOCAL
    for attempt in range(1, RAY_ATTEMPTS + 1):
        try:
            with (
                doing("starting Ray" if is_here else f"joining Ray at {address}"),
                deferred(),
                ray_private.starting(news.tell, alone=is_here),
                _alone() if is_here else nullcontext(),
            ):
                ray.init(
                    address=address,
                    num_cpus=settings.num_cpus if is_here else None,
                    logging_level=logging.WARNING,
                    log_to_driver=False,
                    include_dashboard=False,
                    configure_logging=False,
                    runtime_env={name: value for name, value in found.items() if value} or None,
                    **(_make_memory_settings() if is_here else {}),
                )
            return
        except Exception as error:  # what Ray raises if its processes do not start, or not in time
            if address != capacity.LOCAL:
                ray.shutdown()  # it may have joined in part, for instance if versions differ
                raise capacity.make_join_error(address, error) from error
            if "timed out" not in str(error):
                raise RunFailedError(f"Ray did not start: {type(error).__name__}: {error}") from error
            if attempt == RAY_ATTEMPTS:
                raise RunFailedError(
                    f"Ray did not start: {error}; is the machine busy or out of memory? End other programs, then give "
                    "the same command again; or lower ray.num_cpus"
                ) from error
            say(f"Ray did not start in time, attempt {attempt} of {RAY_ATTEMPTS}; trying again")


@contextmanager
def _alone() -> Iterator[None]:
    """Reserve a Ray that starts on this machine within the context for this user and this process.

    ``LOCAL_SETTINGS`` apply unless the user set others. Only this user can read a token that Ray creates.
    """
    token = Path.home() / ".ray" / "auth_token"
    had_token, ours = token.exists(), LOCAL_SETTINGS.keys() - os.environ.keys()
    os.environ.update({name: LOCAL_SETTINGS[name] for name in ours})
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]
    if not had_token and token.exists():
        token.chmod(0o600)


def _make_memory_settings() -> Json:
    """Return memory settings for ``ray.init`` if a control group allows this process less memory than the machine has.

    Ray itself reads only the topmost control group. The object store has the share and limits that Ray documents.
    """
    with suppress(OSError):
        usable = memory.read_usable_memory()
        if usable.total < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
            most = max(10_000_000_000, int(0.95 * shutil.disk_usage("/dev/shm").free))
            store = min(int(0.3 * usable.free), most)
            return {"object_store_memory": store, "_memory": usable.free - store}
    return {}
