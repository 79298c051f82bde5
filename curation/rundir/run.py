"""A run: its stages are done in the run directory, and what is on record is not done again.

A stage's directory carries the digest of what it read (``gen-0/label-pool-1f3a...``), so that a changed setting writes
beside the old result, and whatever a killed run left half done under the same digest is gone on with.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from curation import progress
from curation.console import say
from curation.errors import CurationError, RunFailedError, UserError
from curation.places import Place
from curation.rundir.graph import Known, Outputs, Skipped, Stage, digest, key_of, resolved, status_of
from curation.rundir.manifest import Manifest
from curation.standing import Journal, Standing, Update
from curation.stopping import Stopped
from curation.telemetry import Telemetry


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the work of a stage is given beside its inputs and settings."""

    name: str
    directory: Place
    manifest: Manifest
    telemetry: Telemetry
    """Emits the metrics of the stage."""

    def say(self, text: str) -> None:
        """A line on the terminal, after the stage's name."""
        say(f"{self.name}: {text}")

    @contextmanager
    def progress(self) -> Iterator[Update]:
        """Yields what is told where the stage stands: a bar shows it, and now and then the events, for the status."""
        journal = Journal()
        with progress.bar(self.name) as shown:

            def update(standing: Standing) -> None:
                shown(standing)
                if (fields := journal.fields(standing, time.time())) is not None:
                    self.manifest.event("progress", stage=self.name, **fields)

            yield update


class Run:
    """One run directory, in which stages are done."""

    def __init__(self, name: str, manifest: Manifest) -> None:
        self.name = name
        self.manifest = manifest
        self.directory = manifest.directory

    def do(self, stages: Sequence[Stage]) -> Known:
        """Do the ordered ``stages`` that are not done; the outputs of all, and which of them had nothing to do.

        Raises:
            UserError: the user's mistake, unchanged.
            RunFailedError: anything else that went wrong, with the stage, the run directory and how to go on.
        """
        known: dict[str, Outputs | Skipped] = {}
        for stage in stages:
            status = status_of(stage, known, self.manifest.records)
            if status.state == "skipped":
                known[stage.name] = Skipped(status.why)
            elif status.state == "done":
                known[stage.name] = self.manifest.stages[stage.name].outputs
            else:
                say(stage.name if status.state == "new" else f"{stage.name}: {status.words}")
                known[stage.name] = self._work(stage, known, status.words)
        return known

    def _work(self, stage: Stage, known: Known, why: str) -> Outputs:
        """Do one stage and put it on record."""
        name, key = stage.name, key_of(stage, known)
        self.manifest.event("started", stage=name, why=why)
        task = Task(
            name=name,
            directory=self.directory / f"{name}-{digest(key)[:8]}",
            manifest=self.manifest,
            telemetry=Telemetry(run=self.name, stage=name),
        )
        start = time.monotonic()
        try:
            done = stage.work(task, **resolved(stage.inputs, known), **resolved(stage.settings, known))
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
        record = self.manifest.record(name, key, done.outputs, rows=done.rows, seconds=seconds)
        self.manifest.event("finished", stage=name, rows=done.rows, seconds=round(seconds, 3))
        rate = f", {done.rows / seconds:,.0f} rows/s" if done.rows else ""
        say(f"{name}: {done.rows:,} rows in {seconds:.1f} s{rate}")
        return record.outputs


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
