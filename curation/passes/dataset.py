"""A model's dataset: one dataset of Ray Data whose rows are calls for chunks, mapped by actors that hold the model.

The dataset lasts as long as passes use the model. Its rows come from a work queue, one when an actor has room for it,
so that all passes of a model use the same actors and start it once. Ray Data adds actors while calls wait, releases
idle ones, restarts dead ones, applies backpressure, and shows the dataset on the dashboard.
"""

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from curation.cluster import news, nodes
from curation.config import ActorsConfig
from curation.errors import RunFailedError
from curation.heavy import ray
from curation.passes.actor import ModelActor
from curation.passes.cutting import Cutter, OpenRows
from curation.passes.job import Job
from curation.passes.messages import Look, Pass, Taken
from curation.passes.poison import Suspect
from curation.passes.work_queue import WorkQueue
from curation.telemetry.standing import Actors

if TYPE_CHECKING:
    import ray.data

UPSCALING = 1.25
"""Ratio of open calls to the actors' capacity from which on Ray Data adds actors; the work queue keeps it at ``AHEAD``
while there are rows."""
THREADS = "OMP_NUM_THREADS"
CLOSING_SECONDS = 30.0  # time limit in seconds for the end of a dataset; its thread ends with the process in any case
REST_SECONDS = 5.0  # seconds that a stopped driver waits for the results of chunks that were finished just before


class RunningPass:
    """A pass that runs in a model's dataset."""

    def __init__(self, pass_id: str, queue: Any, left: int, failure: Callable[[], BaseException | None]) -> None:
        """Wait for ``left`` rows, as long as there is no ``failure`` of the dataset."""
        self._id, self._queue, self._left, self._failure = pass_id, queue, left, failure
        self._num_taken = 0

    def __iter__(self) -> Iterator[pa.Table | None]:
        """Yield the rows that actors wrote, in any order, and None at intervals; raise what ends the pass."""
        while self._left:
            try:
                taken: Taken = ray.get(self._queue.take.remote(self._id, self._num_taken))
            except ray.exceptions.RayError as error:
                raise self._failure() or error from None
            for part in taken.parts:
                yield self._read_table(part)
            if taken.error is not None:
                raise ray.cloudpickle.loads(taken.error)
            if (failure := self._failure()) is not None:
                raise failure
            yield None

    def rest(self) -> Iterator[pa.Table]:
        """End the pass, and yield the rows that were written but not yielded, if the work queue still answers."""
        with suppress(ray.exceptions.RayError):
            parts: list[bytes] = ray.get(self._queue.end.remote(self._id, self._num_taken), timeout=REST_SECONDS)
            for part in parts:
                yield self._read_table(part)

    def _read_table(self, part: bytes) -> pa.Table:
        self._num_taken += 1
        table = pa.ipc.open_stream(part).read_all()
        self._left -= len(table["row_ids"][0].as_py()) // 8 if len(table) else 0
        return table

    def look(self) -> Look:
        """Return the progress of the pass."""
        found: Look = ray.get(self._queue.look.remote(self._id))
        return found


class ModelDataset:
    """A dataset with between ``min`` and ``max`` actors. Each works on ``num_calls`` chunks at once."""

    def __init__(
        self, actors: ActorsConfig, *, name: str, num_cpus: float, num_calls: int, hold_cpus: bool = True
    ) -> None:
        """Compute on ``num_cpus`` per actor, held by Ray if ``hold_cpus``; ``name`` is for Ray's dashboard."""
        self._name, self._actors = name, actors
        self._num_calls, self._num_cpus, self._hold_cpus = num_calls, num_cpus, hold_cpus
        self._queue: Any = None
        self._thread = threading.Thread(target=self._serve, name="model-dataset", daemon=True)
        self._failure: BaseException | None = None
        self._lock = threading.Lock()

    @contextmanager
    def passing(
        self, job: Job, versions: Mapping[str, str], rows: OpenRows, suspects: Sequence[Suspect] = ()
    ) -> Iterator[RunningPass]:
        """Let actors work on the rows of a pass within the context; ``suspects`` are those of an earlier driver."""
        this = Pass(id=f"pass-{uuid.uuid4().hex}", versions=versions, actors=job.teacher.actors)
        self._start(rows.left, job)
        mine = RunningPass(this.id, self._queue, rows.left, lambda: self._failure)
        if self._failure is not None:
            raise self._failure
        try:
            ray.get(self._queue.open.remote(this, [ray.put(job)], rows, Cutter(job.teacher), suspects))
            yield mine
        finally:
            with suppress(ray.exceptions.RayError):
                ray.get(self._queue.end.remote(this.id, 0))

    def read(self) -> Actors:
        """Return the number of actors by state, and of deaths so far."""
        if self._queue is None:
            return Actors(running=0, pending=0, restarting=0, deaths=0)
        look: Look = ray.get(self._queue.look.remote(None))
        return look.actors

    def close(self) -> None:
        """End all actors, even those at work."""
        if self._queue is None:
            return
        self._failure = self._failure or RunFailedError("the actors that worked on this pass were ended")
        with suppress(ray.exceptions.RayError):
            if not ray.get(self._queue.close.remote()):
                logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # it would report a failure
                ray.kill(self._queue)
        self._thread.join(timeout=CLOSING_SECONDS)

    def _start(self, num_rows: int, job: Job) -> None:
        with self._lock:
            if self._queue is not None:
                return
            config = self._actors
            chunks = -(-num_rows // (job.teacher.first_chunk_rows * self._num_calls))
            self._initial = min(max(config.min, config.initial or config.min), max(1, chunks))
            self._queue = (
                ray.remote(WorkQueue)
                .options(num_cpus=0, label_selector=_get_node_labels(), max_concurrency=1000)
                .remote(wanted=self._initial, calls=self._num_calls)
            )
            self._thread.start()

    def _serve(self) -> None:
        """Run the dataset until the work queue closes."""
        try:
            for _ in self._make_dataset().iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                pass
        except BaseException as error:  # raised again in each pass that waits
            self._failure = self._failure or error

    def _make_dataset(self) -> "ray.data.Dataset":
        from curation.passes.calls import Calls

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        logging.getLogger("ray.data.exceptions").addFilter(news.hide_full_store)
        context = ray.data.DataContext.get_current().copy()
        context.enable_progress_bars = False
        context.target_max_block_size = 1  # each row is a block, so that it does not wait for the next one
        context.autoscaling_config.actor_pool_util_upscaling_threshold = UPSCALING
        config = self._actors
        held = nodes.make_ray_options({**config.each, "CPU": self._num_cpus if self._hold_cpus else 0})
        with ray.data.DataContext.current(context):
            chunks = ray.data.read_datasource(
                Calls(self._queue), num_cpus=0, override_num_blocks=1, label_selector=_get_node_labels()
            )
            dataset: ray.data.Dataset = chunks.map_batches(
                ModelActor,
                fn_constructor_args=(self._queue,),
                batch_size=1,
                batch_format="pyarrow",
                compute=ray.data.ActorPoolStrategy(
                    min_size=min(config.min, self._initial),
                    initial_size=self._initial,
                    max_size=config.max,
                    max_concurrent_calls_per_actor=self._num_calls,
                    enable_true_multi_threading=True,
                ),
                # Ray itself sets the threads of CPUs that it holds.
                runtime_env=None if self._hold_cpus else get_thread_settings(self._num_cpus),
                **{name: amount for name, amount in held.items() if amount is not None},
            )
        dataset.set_name(self._name)
        return dataset


def get_thread_settings(num_cpus: float) -> dict[str, dict[str, str]] | None:
    """Return the environment for one thread per CPU of an actor, or None if the user set the number or it is 1."""
    return None if num_cpus < 2 or THREADS in os.environ else {"env_vars": {THREADS: str(int(num_cpus))}}


def _get_node_labels() -> dict[str, str]:
    """Return the labels of the driver's node, which place an actor where it only dies with the driver."""
    return {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
