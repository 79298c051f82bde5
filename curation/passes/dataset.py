"""A model's dataset: one dataset of Ray Data whose rows are chunks, mapped by actors that hold the model.

It lasts as long as anything asks the model: its rows come from a desk, one when an actor has room for it, so all passes
of a model go through the same actors and start it once. Ray Data adds actors while chunks wait, gives back those that
idle, restarts what dies, holds back what would overflow, and shows the dataset on the dashboard.
"""

import logging
import queue
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from curation.cluster import full_store, nodes
from curation.config import ActorsConfig
from curation.errors import RunFailedError
from curation.heavy import ray
from curation.passes.actor import ModelActor
from curation.passes.cutting import Cutter, OpenRows
from curation.passes.desk import Desk
from curation.passes.job import Job
from curation.passes.messages import Look, Pass, Suspect, Written
from curation.stopping import LOOK_SECONDS
from curation.telemetry.standing import Actors

if TYPE_CHECKING:
    import ray.data

UPSCALING = 1.25
"""Chunks under way for each one that the actors can work on at once, from which on Ray Data adds actors; the desk hands
out ``AHEAD`` of them as long as there are rows."""

CLOSING_SECONDS = 30.0
"""How long the end of a dataset is awaited; its thread ends with the process in any case."""


PARTS_SECONDS = 1.0
"""The interval at which the driver asks for what calls wrote that go on."""
REST_SECONDS = 5.0
"""How long a driver that is stopped waits for the results of chunks that were done just before."""


class RunningPass:
    """A pass that goes through a model's dataset."""

    def __init__(self, pass_id: str, desk: Any, left: int) -> None:
        """``left`` rows are to be done."""
        self.done: queue.SimpleQueue[dict[str, Any] | BaseException] = queue.SimpleQueue()
        self._id, self._desk, self._left = pass_id, desk, left
        self._names: set[str] = set()
        """The chunks, and parts of them, whose result was given."""
        self._num_parts = 0
        """The number of parts that the desk has given."""

    def __iter__(self) -> Iterator[pa.Table | None]:
        """The result of each chunk when it is done, in any order; None now and then while none is.

        Raises:
            UserError: an actor found a mistake of the user.
            ray.exceptions.RayError: the dataset failed.
        """
        asked = time.monotonic()
        while self._left:
            if time.monotonic() - asked > PARTS_SECONDS:
                parts: list[Written] = ray.get(self._desk.take.remote(self._id, self._num_parts))
                self._num_parts += len(parts)
                for part in parts:
                    yield from self._first(part.name, part.rows)
                asked = time.monotonic()
            try:
                found = self.done.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                yield None
                continue
            if isinstance(found, BaseException):
                raise found
            if found["error"] is not None:
                raise ray.cloudpickle.loads(found["error"])
            if found["written"] is not None:
                yield from self._first(found["chunk"], found["written"])

    def rest(self) -> Iterator[pa.Table]:
        """End the pass; the results of the chunks that are done and were not given, where the desk can still say."""
        with suppress(ray.exceptions.RayError):
            written: list[Written] = ray.get(self._desk.end.remote(self._id), timeout=REST_SECONDS)
            for part in written:
                yield from self._first(part.name, part.rows)

    def _first(self, chunk: str, written: bytes) -> Iterator[pa.Table]:
        """A chunk's result, unless it was given already: the chunk may have been handed out twice."""
        if chunk not in self._names:
            self._names.add(chunk)
            table = pa.ipc.open_stream(written).read_all()
            self._left -= len(table["row_ids"][0].as_py()) // 8 if len(table) else 0
            yield table

    def look(self) -> Look:
        """How far it is."""
        found: Look = ray.get(self._desk.look.remote(self._id))
        return found


class ModelDataset:
    """A dataset with between ``min`` and ``max`` actors. Each works on ``num_calls`` chunks at once."""

    def __init__(
        self, actors: ActorsConfig, *, name: str, num_cpus: float, num_calls: int, hold_cpus: bool = True
    ) -> None:
        """An actor computes on ``num_cpus``; with ``hold_cpus``, Ray keeps them from others while the actor lives.

        Ray's dashboard and metrics show the dataset under ``name``.
        """
        self._name = name
        self._actors, self._num_calls, self._num_cpus, self._hold_cpus = actors, num_calls, num_cpus, hold_cpus
        self._passes: dict[str, RunningPass] = {}
        self._desk: Any = None
        self._thread = threading.Thread(target=self._serve, name="model-dataset", daemon=True)
        self._failure: BaseException | None = None
        self._lock = threading.Lock()

    @contextmanager
    def passing(
        self,
        table: str,
        job: Job,
        versions: Mapping[str, str],
        rows: OpenRows,
        suspects: Sequence[Suspect] = (),
    ) -> Iterator[RunningPass]:
        """Within the context, actors work on the rows of a pass; ``suspects`` are those of an earlier driver."""
        this = Pass(id=f"pass-{uuid.uuid4().hex}", table=table, versions=versions, actors=job.teacher.actors)
        self._start(rows.left, job)
        mine = RunningPass(this.id, self._desk, rows.left)
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._passes[this.id] = mine
        try:
            ray.get(self._desk.open.remote(this, [ray.put(job)], rows, Cutter(job.teacher), suspects))
            yield mine
        finally:
            with self._lock:
                del self._passes[this.id]
            with suppress(ray.exceptions.RayError):
                ray.get(self._desk.end.remote(this.id))

    def read(self) -> Actors:
        """The number of actors by state, and of deaths so far."""
        if self._desk is None:
            return Actors(running=0, pending=0, restarting=0, deaths=0)
        look: Look = ray.get(self._desk.look.remote(None))
        return look.actors

    def close(self) -> None:
        """End all actors, also those that work."""
        if self._desk is None:
            return
        with suppress(ray.exceptions.RayError):
            if not ray.get(self._desk.close.remote()):
                logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # it would say that it failed
                ray.kill(self._desk)
        self._fail(RunFailedError("the actors that worked on this pass were ended"))
        self._thread.join(timeout=CLOSING_SECONDS)

    def _start(self, num_rows: int, job: Job) -> None:
        with self._lock:
            if self._desk is not None:
                return
            config = self._actors
            chunks = -(-num_rows // (job.teacher.first_chunk_rows * self._num_calls))
            self._initial = min(max(config.min, config.initial or config.min), max(1, chunks))
            self._desk = (
                ray.remote(Desk)
                .options(num_cpus=0, label_selector=_here(), max_concurrency=1000)
                .remote(wanted=self._initial, calls=self._num_calls)
            )
            self._thread.start()

    def _serve(self) -> None:
        """Give each result to its pass, until the desk hands nothing out any more."""
        try:
            # Without a look ahead: the last result of a pass would wait for the first one of the next pass.
            how: Any = {"batch_size": None, "batch_format": "pyarrow", "prefetch_batches": 0}
            results: Iterable[pa.Table] = self._dataset().iter_batches(**how)
            for row in (row for table in results for row in table.to_pylist()):
                with self._lock:
                    mine = self._passes.get(row["pass_id"])
                if mine is not None:
                    mine.done.put(row)
        except BaseException as error:  # raised again in each pass that waits
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End all passes with an error."""
        with self._lock:
            self._failure = self._failure or error
            for mine in self._passes.values():
                mine.done.put(error)

    def _dataset(self) -> "ray.data.Dataset":
        from curation.passes.handouts import Handouts

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        logging.getLogger("ray.data.exceptions").addFilter(full_store.hide)
        context = ray.data.DataContext.get_current().copy()
        context.enable_progress_bars = False
        context.target_max_block_size = 1  # each row is a block of its own: it does not wait for the next one
        context.autoscaling_config.actor_pool_util_upscaling_threshold = UPSCALING
        config = self._actors
        held = nodes.held({**config.each, "CPU": self._num_cpus if self._hold_cpus else 0})
        threads = {"env_vars": {"OMP_NUM_THREADS": str(int(self._num_cpus))}}  # Ray sets it by the CPUs that are held
        with ray.data.DataContext.current(context):
            chunks = ray.data.read_datasource(
                Handouts(self._desk),
                num_cpus=0,
                override_num_blocks=1,
                label_selector=_here(),
            )
            dataset: ray.data.Dataset = chunks.map_batches(
                ModelActor,
                fn_constructor_args=(self._desk,),
                batch_size=1,
                batch_format="pyarrow",
                compute=ray.data.ActorPoolStrategy(
                    min_size=min(config.min, self._initial),
                    initial_size=self._initial,
                    max_size=config.max,
                    max_concurrent_calls_per_actor=self._num_calls,
                    enable_true_multi_threading=True,
                ),
                runtime_env=None if self._hold_cpus or self._num_cpus < 2 else threads,
                **{name: amount for name, amount in held.items() if amount is not None},
            )
        dataset.set_name(self._name)
        return dataset


def _here() -> dict[str, str]:
    """The labels of the driver's node; what dies with it dies with the driver."""
    return {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
