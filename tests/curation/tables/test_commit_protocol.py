"""The commit protocol as a state machine: whatever is interleaved, each row at most once, all after the last resume.

The tables are real. The store is made flaky by :class:`Flaky`, which stands before ``lance.LanceDataset.commit``,
``Compaction.commit`` and ``lance.dataset`` and lets a call fail before or after it did its work. Meanwhile committers
remove the versions that they replaced, tables are compacted, and readers have some of them open.
"""

import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
import ray
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from pyroaring import BitMap64

from curation.errors import CommitError
from curation.passes.cutting import Chunk, OpenRows
from curation.tables import commits, compaction, io, row_ids, schemas, stream, versions

pytestmark = pytest.mark.long

IDS_N = np.concatenate([np.arange(17), (1 << 40) + np.arange(14), (5 << 40) + np.arange(0, 18, 2)])
LABELS = pa.schema([schemas.ROW_ID, ("label", pa.string()), ("state_output_last", pa.list_(pa.float16(), 4))])
SIGNALS = pa.schema([schemas.ROW_ID, ("value", pa.float32())])
SCHEMAS = {"labels": LABELS, "signals": SIGNALS}


def rows(name: str, ids_N: np.ndarray) -> pa.Table:
    """The rows of a table that a right pass makes of the ids."""
    if name == "signals":
        return pa.table({"row_id": ids_N, "value": (ids_N % 97).astype(np.float32)}, schema=SIGNALS)
    states = [[row_id % 31 + place for place in range(4)] for row_id in ids_N.tolist()]
    labels = [f"label of {row_id}" for row_id in ids_N.tolist()]
    return pa.table({"row_id": ids_N, "label": labels, "state_output_last": states}, schema=LABELS)


class Killed(BaseException):
    """The driver's process ends here."""


class Flaky:
    """Stands before Lance's commits and has them fail as planned, one fault a call."""

    FAULTS = ("none", "refused", "lost", "late", "blind", "killed before", "killed after", "rival")
    """Refused: nothing landed. Lost: it landed, the answer did not come. Late: refused, and lands some time later.
    Blind: refused, and the table cannot be read the next time either. Rival: another driver commits just before."""

    def __init__(self) -> None:
        self.plan: list[str] = []
        self.late: list[Callable[[], Any]] = []
        self.rival: Callable[[], None] = lambda: None
        self._blind = False
        self._commit, self._dataset = lance.LanceDataset.commit, lance.dataset
        self._compaction = compaction.Compaction
        lance.LanceDataset.commit, lance.dataset = self.commit, self.dataset
        compaction.Compaction = SimpleNamespace(plan=self._compaction.plan, commit=self.commit)

    def remove(self) -> None:
        lance.LanceDataset.commit, lance.dataset = staticmethod(self._commit), self._dataset
        compaction.Compaction = self._compaction

    def commit(self, *arguments: Any, **named: Any) -> Any:
        of_compaction = isinstance(arguments[0], lance.LanceDataset)
        return self._flaky(self._compaction.commit if of_compaction else self._commit, *arguments, **named)

    def _flaky(self, commit: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        fault = self.plan.pop(0) if self.plan else "none"
        if fault == "killed before":
            raise Killed
        if fault == "late":
            self.late.append(lambda: commit(*arguments, **named))
        if fault in ("refused", "late", "blind"):
            self._blind = fault == "blind"
            raise OSError("the store is busy")
        if fault == "rival":
            self.rival()
        landed = commit(*arguments, **named)
        if fault == "killed after":
            raise Killed
        if fault == "lost":
            raise OSError("timed out")
        return landed

    def dataset(self, *arguments: Any, **named: Any) -> Any:
        if self._blind:
            self._blind = False
            raise ValueError("LanceError(IO): the store is down")
        return self._dataset(*arguments, **named)

    def calm(self) -> None:
        """No fault any more."""
        self.plan, self._blind = [], False

    def land(self) -> None:
        """What was late lands now, where the store still takes it."""
        for commit in self.late:
            try:
                commit()
            except OSError:
                continue
        self.late.clear()


@dataclass
class Task:
    """The rows that one task writes, by table."""

    rows: dict[str, np.ndarray]

    def write(self, uris: dict[str, str]) -> pa.Table:
        written = [
            commits.write_fragment(rows(name, ids_N), uris[name], SCHEMAS[name])
            for name, ids_N in self.rows.items()
            if len(ids_N)
        ]
        return pa.concat_tables(written)


class AtOnce:
    """Stands for Ray, of which a committer's merger makes its tasks: a task is done when its result is asked for."""

    exceptions = ray.exceptions

    @staticmethod
    def nodes() -> list[Any]:
        return []

    @staticmethod
    def remote(function: Callable[..., Any]) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *given: partial(function, *given)))

    @staticmethod
    def wait(tasks: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return tasks, []

    @staticmethod
    def get(task: partial[Any]) -> Any:
        return task()


class Driver:
    """What a driver holds in memory, as ``run_pass`` does."""

    def __init__(self, examples: io.TableRef, uris: dict[str, str], chunk_rows: int) -> None:
        for name, uri in uris.items():
            io.create(uri, SCHEMAS[name])
        self.committers = {name: commits.Committer(uri, fragment_mb=1) for name, uri in uris.items()}
        done = {name: committer.done.copy() for name, committer in self.committers.items()}
        whole = done["labels"] & done["signals"]
        chunks = OpenRows(examples, lambda ids_N: ids_N >= 0, whole).chunks(chunk_rows)
        self.tasks = [self._task(chunk, done) for chunk in chunks]
        self.outputs: list[pa.Table] = []
        self.alone = True
        """No other driver committed since this one started, and nothing of another one came into its stream."""

    @staticmethod
    def _task(chunk: Chunk, done: dict[str, BitMap64]) -> Task:
        ids_N = IDS_N[chunk.offsets]
        missing = {name: np.array([row_id not in done[name] for row_id in ids_N.tolist()]) for name in done}
        return Task(rows={name: ids_N[missing_N] for name, missing_N in missing.items()})

    def commit(self, seconds: float) -> None:
        outputs, self.outputs = self.outputs, []
        stream.commit_stream(outputs, list(self.committers.values()), seconds=seconds)


AT_ONCE: tuple[tuple[Any, str, float], ...] = (
    (commits, "RETRY_SECONDS", 0.0),
    (stream, "MOST_SECONDS", 0.0),
    (row_ids, "SAVE_SECONDS", 0.0),  # the cache of the ids is written at every commit
    (versions, "EVERY", 2),
    (versions, "KEPT_SECONDS", 0.0),
    (compaction, "ray", AtOnce),
    (compaction, "FANOUT", 3),
    (compaction, "FEWEST", 2),
    (compaction, "FACTOR", 1.5),
)


class CommitProtocol(RuleBasedStateMachine):
    """Two drivers at most, each at any point of its work."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="commit-protocol-"))
        table = pa.table({"row_id": IDS_N})
        uri = str(self.directory / "examples.lance")
        self.examples = io.TableRef(uri=uri, version=lance.write_dataset(table, uri, max_rows_per_file=11).version)
        self.uris = {name: str(self.directory / "run" / f"{name}.lance") for name in SCHEMAS}
        self.drivers: list[Driver | None] = [None, None]
        self.stale: list[pa.Table] = []
        self.committed: dict[str, set[int]] = {name: set() for name in SCHEMAS}
        self.on_record: dict[io.TableRef, pa.Table] = {}
        self.readers: list[tuple[lance.LanceDataset, pa.Table]] = []
        self.rewritten: list[tuple[io.TableRef, list[Any]]] = []
        self.flaky = Flaky()
        self.before = [(module, name, getattr(module, name)) for module, name, _ in AT_ONCE]
        for module, name, value in AT_ONCE:
            setattr(module, name, value)

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            self.flaky.remove()
            for module, name, value in self.before:
                setattr(module, name, value)
            shutil.rmtree(self.directory)

    @rule(number=st.integers(0, 1), chunk_rows=st.sampled_from((3, 8, 40)))
    def start(self, number: int, chunk_rows: int) -> None:
        """A driver starts, or is killed and started again; what its tasks wrote and did not deliver is left behind."""
        if (before := self.drivers[number]) is not None:
            self.stale += before.outputs
        self.drivers[number] = Driver(self.examples, self.uris, chunk_rows)

    @precondition(lambda self: any(self.drivers))
    @rule(number=st.integers(0, 1), places=st.lists(st.integers(0, 99), min_size=1, max_size=6))
    def work(self, number: int, places: list[int]) -> None:
        """Tasks write their fragments, some of them again and again."""
        driver = self.drivers[self.alive(number)]
        assert driver is not None
        if driver.tasks:
            driver.outputs += [driver.tasks[place % len(driver.tasks)].write(self.uris) for place in places]

    @precondition(lambda self: any(self.drivers))
    @rule(
        number=st.integers(0, 1),
        faults=st.lists(st.sampled_from(Flaky.FAULTS), max_size=9),
        seconds=st.sampled_from((-1.0, 1e9)),
    )
    def commit(self, number: int, faults: list[str], seconds: float) -> None:
        """The driver consumes what was written and commits, after each row or at the end."""
        number = self.alive(number)
        self.flaky.plan = list(faults)
        self.flaky.rival = lambda: self.commit_quietly(1 - number)
        self.try_commit(number, seconds, max_faults=len(faults))
        self.flaky.plan = []

    @precondition(lambda self: self.stale and any(self.drivers))
    @rule(number=st.integers(0, 1))
    def zombie(self, number: int) -> None:
        """What tasks of a killed driver wrote comes into a stream after all: other sets of rows than this one's."""
        driver = self.drivers[self.alive(number)]
        assert driver is not None
        driver.outputs += self.stale
        driver.alone, self.stale = False, []

    @precondition(lambda self: self.flaky.late)
    @rule()
    def land(self) -> None:
        """A commit that was given up lands now."""
        self.flaky.land()
        self.not_alone()

    @precondition(lambda self: sum(driver is not None for driver in self.drivers) == 1)
    @rule(
        places=st.lists(st.integers(0, 99), max_size=6),
        fragment_bytes=st.sampled_from((200, 1 << 20)),
        later=st.booleans(),
    )
    def record(self, places: list[int], fragment_bytes: int, later: bool) -> None:
        """A driver that has the lease, so that no other one is at work, ends, and what is there then goes on record.

        Tasks write the fragments of a compaction, which is committed then or, after all, some time later.
        """
        number = self.alive(0)
        self.work(number, places)
        self.try_commit(number, -1.0, max_faults=0)
        self.drivers = [None, None]
        for uri in self.uris.values():
            ref = io.find_latest(uri)
            self.on_record[ref] = io.read(ref)
            if tasks := compaction.plan(ref, fragment_bytes):
                self.rewritten.append((ref, [compaction.rewrite(ref, task) for task in tasks]))
                if not later:
                    self.compact(0, [])

    @precondition(lambda self: any(self.drivers))
    @rule(name=st.sampled_from(sorted(SCHEMAS)))
    def open(self, name: str) -> None:
        """A reader opens a table, and reads it some time later."""
        dataset = lance.dataset(self.uris[name])
        self.readers.append((dataset, dataset.to_table()))

    @precondition(lambda self: self.rewritten)
    @rule(number=st.integers(0, 1), faults=st.lists(st.sampled_from(Flaky.FAULTS), max_size=1))
    def compact(self, number: int, faults: list[str]) -> None:
        """A compaction is committed, of a version that is the newest or was it some time ago."""
        ref, rewritten = self.rewritten.pop(0)
        self.flaky.plan = list(faults)
        self.flaky.rival = lambda: self.commit_quietly(number)
        with suppress(Killed):
            try:
                compacted = compaction.commit(ref, rewritten)
                self.on_record[compacted] = self.on_record[ref]
            except CommitError:
                assert io.count(io.find_latest(ref.uri)) > self.on_record[ref].num_rows, "refused without need"
        self.flaky.calm()
        self.not_alone()
        self.all_read_on()

    def all_read_on(self) -> None:
        """What is on record holds what it held; what somebody has open too, or its files were merged and are gone."""
        for ref, table in self.on_record.items():
            assert io.read(ref).equals(table)
        for dataset, table in self.readers:
            try:
                found = dataset.to_table()
            except pa.ArrowInvalid as error:
                assert "Not found" in str(error), error
            else:
                assert found.equals(table)

    @invariant()
    def each_row_at_most_once_and_whole(self) -> None:
        for name, uri in self.uris.items():
            if not Path(uri).exists():
                continue
            table = self.flaky._dataset(uri).to_table()
            ids_N = table["row_id"].to_numpy()
            found = set(ids_N.tolist())
            assert len(found) == len(ids_N), f"{name}: rows stand twice"
            assert found <= set(IDS_N.tolist())
            assert table.equals(rows(name, ids_N)), f"{name}: rows are torn"
            assert self.committed[name] <= found, f"{name}: committed rows went"
            self.committed[name] = found
        assert self.committed["signals"] <= self.committed["labels"], "signals before their labels"

    def alive(self, number: int) -> int:
        """The driver of that number, or the other one where that is not at work."""
        return number if self.drivers[number] is not None else 1 - number

    def commit_quietly(self, number: int) -> None:
        """The other driver commits between a driver's decision and its commit."""
        plan, self.flaky.plan = self.flaky.plan, []
        self.try_commit(number, 1e9, max_faults=0)
        self.flaky.plan = plan

    def try_commit(self, number: int, seconds: float, max_faults: int) -> None:
        driver = self.drivers[number]
        if driver is None:
            return
        self.not_alone(but=driver)
        try:
            driver.commit(seconds)
        except Killed:
            self.drivers[number] = None
        except CommitError:
            assert max_faults >= commits.COMMIT_ATTEMPTS or not driver.alone, "refused without need"
            self.drivers[number] = None

    def not_alone(self, but: Driver | None = None) -> None:
        for driver in self.drivers:
            if driver is not None and driver is not but:
                driver.alone = False

    def finish(self) -> None:
        """The last resume, alone and with a quiet store."""
        driver = Driver(self.examples, self.uris, chunk_rows=7)
        driver.outputs = [task.write(self.uris) for task in driver.tasks]
        driver.commit(1e9)
        self.flaky.land()
        self.each_row_at_most_once_and_whole()
        self.all_read_on()
        assert Driver(self.examples, self.uris, chunk_rows=5).tasks == []
        for name, uri in self.uris.items():
            assert self.committed[name] == set(commits.read_committed_ids(uri)) == set(IDS_N.tolist())
            ref = io.find_latest(uri)
            assert io.Lookup(ref).take(IDS_N).equals(io.take(ref, IDS_N))
            assert io.take(ref, IDS_N).combine_chunks().equals(rows(name, IDS_N).combine_chunks())


def run_machine(max_examples: int, steps: int) -> None:
    quick = settings(
        max_examples=max_examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(CommitProtocol, settings=quick)


def test_any_interleaving_keeps_each_row_once():
    run_machine(max_examples=45, steps=14)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_any_long_interleaving_keeps_each_row_once():
    run_machine(max_examples=600, steps=40)


def test_a_table_whose_creation_was_cut_off_is_created(tmp_path):
    for part in ("_versions", "_transactions", "data"):
        (tmp_path / "t.lance" / part).mkdir(parents=True)
    ref = io.create(str(tmp_path / "t.lance"), SIGNALS)
    assert io.count(ref) == 0 and io.create(ref.uri, SIGNALS) == ref
    with pytest.raises(CommitError, match="has the columns"):
        io.create(ref.uri, LABELS)


def test_drivers_that_create_a_table_at_once_share_it(tmp_path):
    """Lance's own ``mode="create"`` makes a second version in about every third try of this, and empties the first."""
    for table in range(20):
        refs: list[io.TableRef] = []
        uri = str(tmp_path / f"{table}.lance")
        threads = [threading.Thread(target=lambda: refs.append(io.create(uri, SIGNALS))) for _ in range(4)]  # noqa: B023
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert refs == [io.TableRef(uri=uri, version=1)] * 4


@pytest.mark.parametrize("num_rows", [0, 2])
def test_a_version_that_came_in_between_refuses_the_commit(tmp_path, num_rows):
    """Two committers that know the same version, of an empty table or not: the second looks again."""
    uri = str(tmp_path / "t.lance")
    io.create(uri, SIGNALS)
    write = lambda ids: commits.write_fragment(rows("signals", np.array(ids)), uri, SIGNALS).to_pylist()[0]  # noqa: E731
    if num_rows:
        start = commits.Committer(uri)
        start.add(*(write([100, 101])[name] for name in ("fragments", "row_ids")))
        start.flush()
    first, second = commits.Committer(uri), commits.Committer(uri)
    for committer in (first, second):
        same, own = write([1, 2]), write([3 if committer is first else 4])
        for row in (same, own):
            committer.add(row["fragments"], row["row_ids"])
    third = commits.Committer(uri)
    half = write([2, 5])
    third.add(half["fragments"], half["row_ids"])
    first.flush()
    second.flush()
    assert sorted(io.read(io.find_latest(uri))["row_id"].to_pylist())[:4] == [1, 2, 3, 4]
    with pytest.raises(CommitError, match="repeats 1 ids"):
        third.flush()
    assert commits.read_committed_ids(uri) == second.done and len(second.done) == 4 + num_rows
