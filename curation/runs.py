"""A run directory and the stages done in it: what is on record is not done again.

A stage's directory carries the fingerprint of what it read (``gen-0/label-pool-1f3a...``), so that a changed setting
writes beside the old result, and whatever a killed run left half done under the same fingerprint is gone on with.
"""

import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from curation import cluster, nodes
from curation.config import RayConfig, RunConfig
from curation.errors import ClusterError, CurationError, RunFailedError, UserError
from curation.manifest import PROJECT, Manifest, versions
from curation.places import Place
from curation.refs import ModelRef, TableRef, fingerprint
from curation.standing import Journal, Standing, Update
from curation.stopping import Stopped, stopped_by_sigterm
from curation.telemetry import Telemetry

RAY_ATTEMPTS = 3


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a stage wrote (JSON) and how many rows it worked on."""

    outputs: dict[str, Any]
    rows: int


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What a generation works with."""

    index: int
    teacher: ModelRef | None
    tables: dict[str, TableRef]
    num_shares: int

    def name(self, stage: str) -> str:
        """The name of one of its stages, e.g. ``gen-0/select``."""
        return f"gen-{self.index}/{stage}"


class Pending(Exception):
    """Raised by a dry run at the first stage that is not done."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name, self.why = name, why


class Run:
    """One run directory and the stages done in it."""

    def __init__(self, config: RunConfig, manifest: Manifest, *, dry: bool = False) -> None:
        self.config = config
        self.manifest = manifest
        self.directory = manifest.directory
        self._dry = dry

    def stage(self, name: str, inputs: dict[str, Any], work: Callable[[Place], Done]) -> dict[str, Any]:
        """The outputs of a stage: those on record, or what ``work`` makes in the stage's directory now.

        Raises:
            Pending: a dry run, and the stage is not done.
            UserError: the user's mistake, unchanged.
            RunFailedError: anything else that went wrong, with the stage, the run directory and how to go on.
        """
        inputs = inputs | {"code": versions()[PROJECT]}
        record = self.manifest.find(name, inputs)
        if record is not None:
            return record.outputs
        why = self.manifest.why(name, inputs)
        if self._dry:
            raise Pending(name, why)
        say(f"{name}: {why}" if why != "not done yet" else name)
        self.manifest.event("started", stage=name, why=why)
        start = time.monotonic()
        try:
            done = work(self.directory / f"{name}-{fingerprint(inputs)[:8]}")
        except (KeyboardInterrupt, Stopped):
            self.manifest.event("stopped", stage=name)
            raise
        except UserError as error:
            self.manifest.event("failed", stage=name, error=str(error))
            raise
        except Exception as error:
            self.manifest.event("failed", stage=name, error=f"{type(error).__name__}: {error}")
            cause = str(error) if isinstance(error, CurationError) else f"{type(error).__name__}: {error}"
            raise RunFailedError(
                f"stage {name} failed: {cause} (run directory {self.directory}; the same command goes on from here)"
            ) from error
        seconds = time.monotonic() - start
        self.manifest.record(name, inputs, done.outputs, rows=done.rows, seconds=seconds)
        self.manifest.event("finished", stage=name, rows=done.rows, seconds=round(seconds, 3))
        rate = f", {done.rows / seconds:,.0f} rows/s" if done.rows else ""
        say(f"{name}: {done.rows:,} rows in {seconds:.1f} s{rate}")
        return done.outputs

    def progress(self, name: str, shown: Update) -> Update:
        """Tells where a stage stands to a bar and, now and then, to the events, for ``curate status``."""
        journal = Journal()

        def update(standing: Standing) -> None:
            shown(standing)
            if (fields := journal.fields(standing, time.time())) is not None:
                self.manifest.event("progress", stage=name, **fields)

        return update

    def telemetry(self, name: str) -> Telemetry:
        """Emits the metrics of a stage."""
        return Telemetry(run=self.config.name, stage=name)

    def nodes(self, num: int, came: list[str], left: list[str]) -> None:
        """Tells the events how many nodes the cluster has now, which came and which left."""
        self.manifest.event("nodes", num=num, came=came, left=left)


@contextmanager
def files_of(directory: Place) -> Iterator[None]:
    """Between the stages: what goes wrong with the run directory itself, as on a full disk, fails the run.

    Raises:
        RunFailedError: with what the store says.
    """
    try:
        yield
    except OSError as error:
        raise RunFailedError(f"{error} (run directory {directory}; the same command goes on from here)") from error


@contextmanager
def local_or_cluster(settings: RayConfig, *, same_versions: bool = True) -> Iterator[None]:
    """Ray as the configuration says; one that runs already is used and left running.

    Raises:
        ClusterError: a node has other versions than this process, and ``same_versions`` asks for the same.
    """
    import ray
    import ray.data

    # Ray forks only to execute another program; how many actors fill a machine is the configuration's business.
    warnings.filterwarnings("ignore", message="lance is not fork-safe")
    warnings.filterwarnings("ignore", message="(?s).*The minimum number of concurrent actors")
    started = not ray.is_initialized()
    if started:
        _start_ray(settings)
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # it warns that its progress bars are off
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.verbose_progress = False
    try:
        if same_versions and (cluster.address_of(settings) != cluster.LOCAL or len(nodes.living()) > 1):
            nodes.require_same_versions()
        with stopped_by_sigterm():
            yield
    finally:
        if started:
            ray.shutdown()


def _start_ray(settings: RayConfig) -> None:
    """Start or join Ray; a busy machine may be too slow for its start, so that is tried again.

    Raises:
        ClusterError: a Ray is to be joined, and none that can be answers there.
        RunFailedError: Ray did not start.
    """
    import ray

    address = cluster.address_of(settings)
    cluster.check_answers(address)
    for attempt in range(1, RAY_ATTEMPTS + 1):
        try:
            ray.init(
                address=address,
                num_cpus=settings.num_cpus if address == cluster.LOCAL else None,
                logging_level=logging.WARNING,
                log_to_driver=False,
                include_dashboard=False,
                configure_logging=False,
            )
            return
        except Exception as error:  # Ray raises no class of its own where its processes do not come up in time
            if address != cluster.LOCAL:
                ray.shutdown()  # where the versions differ it has joined by half
                raise ClusterError(f"ray.address: {address!r} cannot be joined from this machine ({error})") from error
            if "timed out" not in str(error) or attempt == RAY_ATTEMPTS:
                raise RunFailedError(f"Ray did not start: {error}; is the machine overloaded?") from error
            say(f"Ray did not start in time, attempt {attempt} of {RAY_ATTEMPTS}; trying again")


def say(text: str) -> None:
    """A line on the terminal, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
