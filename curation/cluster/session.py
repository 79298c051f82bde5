"""Starts Ray on this machine for a run, or joins a cluster."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

from curation import memory, namesakes, own_modules
from curation.activity import doing
from curation.cluster import capacity, news, nodes, ray_private
from curation.config import RayConfig
from curation.errors import ClusterError, RunFailedError
from curation.heavy import ray
from curation.json_types import Json
from curation.stopping import deferred, stopped_by_signals
from curation.telemetry.console import say

RAY_ATTEMPTS = 3


@contextmanager
def local_or_cluster(settings: RayConfig, *, same_versions: bool = True) -> Iterator[None]:
    """Start or join Ray as the configuration says; a Ray that already runs is used and left running.

    This process becomes the driver: from now on it gives freed memory back (:func:`curation.memory.give_back`).

    Raises:
        ClusterError: ``same_versions`` is set, and a node has other versions than this process.
    """
    memory.give_back()
    # Ray forks only to execute another program.
    warnings.filterwarnings("ignore", message="lance is not fork-safe")
    started = not ray.is_initialized()
    with stopped_by_signals():
        try:
            if started:
                _start_ray(settings)
            if same_versions and (capacity.address_of(settings) != capacity.LOCAL or len(nodes.living()) > 1):
                nodes.require_same_versions()
            yield
        finally:
            if started:
                ray.shutdown()


def _start_ray(settings: RayConfig) -> None:
    """Start or join Ray. A busy machine may be too slow for the start, so it is retried.

    Raises:
        ClusterError: no Ray that can be joined answers at the address.
        RunFailedError: Ray did not start.
    """
    address = capacity.address_of(settings)
    hook, modules = namesakes.sender(), own_modules.sent()
    found = {"worker_process_setup_hook": hook, "py_modules": modules}
    capacity.check_answers(address)
    is_here = address == capacity.LOCAL
    for attempt in range(1, RAY_ATTEMPTS + 1):
        try:
            with (
                doing("starting Ray" if is_here else f"joining Ray at {address}"),
                deferred(),
                ray_private.starting(news.tell),
                ray_private.alone() if is_here else nullcontext(),
            ):
                ray.init(
                    address=address,
                    num_cpus=settings.num_cpus if is_here else None,
                    logging_level=logging.WARNING,
                    log_to_driver=False,
                    include_dashboard=False,
                    configure_logging=False,
                    runtime_env={name: value for name, value in found.items() if value} or None,
                    **(_memory() if is_here else {}),
                )
            return
        except Exception as error:  # Ray raises plain ones where its processes do not start, or not in time
            if address != capacity.LOCAL:
                ray.shutdown()  # if the versions differ, it has partly joined
                raise ClusterError(f"ray.address: {address!r} cannot be joined from this machine ({error})") from error
            if "timed out" not in str(error):
                raise RunFailedError(f"Ray did not start: {type(error).__name__}: {error}") from error
            if attempt == RAY_ATTEMPTS:
                raise RunFailedError(f"Ray did not start: {error}; is the machine overloaded?") from error
            say(f"Ray did not start in time, attempt {attempt} of {RAY_ATTEMPTS}; trying again")


def _memory() -> Json:
    """Settings of ``ray.init`` where a control group leaves this process less memory than Ray would take."""
    with suppress(OSError):
        usable = memory.usable()
        if usable.total < ray_private.system_memory():
            return ray_private.memory_settings(usable.free)
    return {}
