"""One driver at a time: races, takeover, loss before a commit, SIGKILL and immediate restart; all between processes."""

import ast
import json
import os
import pickle
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import curation
from curation.errors import CommitError, RunDirError
from curation.rundir.manifest import Manifest
from curation.storage import conditional, lease
from curation.tables import commits, io, schemas

PACKAGE = Path(curation.__file__).parent
MAY_ONLY_READ = {"curation.rundir.manifest.Manifest", "curation.pipeline.opened.open_run"}
"""They are given the guard of a run, and none by those who only look at one."""
HOLD = """
import sys, time
from pathlib import Path
from curation.storage import lease
with lease.hold(Path(sys.argv[1]), seconds=float(sys.argv[2])):
    print("held", flush=True)
    time.sleep(600)
"""
RACE = """
import sys, time
from pathlib import Path
from curation.storage import lease
from curation.errors import RunDirError
print("ready", flush=True)
sys.stdin.readline()
lease.MARGIN_SECONDS = 0.5
try:
    with lease.hold(Path(sys.argv[1]), seconds=2.0):
        print("won", flush=True)
        sys.stdin.readline()
except RunDirError as error:
    print("lost", flush=True)
"""
ADD = """
import sys
from pathlib import Path
from curation.storage.conditional import NumberedFiles
register = NumberedFiles(Path(sys.argv[1]))
sys.stdin.readline()
added = 0
while added < int(sys.argv[2]):
    found = register.read()
    if found is None:
        added += register.put_if_absent("1") is not None
    else:
        added += register.put_if_match(str(int(found.text) + 1), found.token) is not None
"""


def child(code: str, *arguments: object) -> subprocess.Popen:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def record(directory: Path) -> lease.Holder:
    found = conditional.NumberedFiles(directory / "lease").read()
    assert found is not None
    return lease.Holder.parse(found.text, directory)


def overwrite(directory: Path, **changes: object) -> None:
    """The record as another driver, maybe on another host, would have left it."""
    register = conditional.NumberedFiles(directory / "lease")
    token = None
    while token is None:  # its holder may renew it in between
        found = register.read()
        assert found is not None
        text = json.dumps(asdict(replace(lease.Holder.parse(found.text, directory), **changes)))
        token = register.put_if_match(text, found.token)


def elsewhere(directory: Path, seconds: float) -> None:
    """A lease of another host that runs out in ``seconds``."""
    with lease.hold(directory):
        pass
    overwrite(directory, owner="other", host="node-7", boot="x", pid=1, expires=time.time() + seconds)


def test_a_register_takes_one_write_a_token(tmp_path: Path):
    register = conditional.NumberedFiles(tmp_path / "r")
    assert register.read() is None
    first = register.put_if_absent("a")
    assert first is not None and register.put_if_absent("b") is None
    second = register.put_if_match("b", first)
    assert second is not None and register.put_if_match("c", first) is None
    assert register.read() == ("b", second)
    token = second
    for number in range(conditional.KEPT + 22):
        token = register.put_if_match(str(number), token)
        assert token is not None
    assert register.put_if_match("late", first) is None and register.put_if_match("late", second) is None
    assert register.put_if_absent("late") is None
    assert register.read() == (str(conditional.KEPT + 21), token)
    assert len(list((tmp_path / "r").iterdir())) == conditional.KEPT


def test_no_write_of_many_processes_is_lost(tmp_path: Path):
    """Each adds one to the number that stands there, if it still does: the sum is right."""
    processes = [child(ADD, tmp_path / "r", 40) for _ in range(4)]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=120)
        assert process.returncode == 0
    found = conditional.NumberedFiles(tmp_path / "r").read()
    assert found is not None and found.text == "160"


def test_a_write_that_another_follows_at_once_has_succeeded(tmp_path: Path):
    other = conditional.NumberedFiles(tmp_path)

    class Slow(conditional.NumberedFiles):
        def _find_newest(self) -> int:
            if other.read() is not None and other.read().text == "first":
                assert other.put_if_match("second", "1") == "2"
            return super()._find_newest()

    assert Slow(tmp_path).put_if_absent("first") == "1"
    assert other.read().text == "second"


def test_a_write_on_what_was_long_replaced_is_none(tmp_path: Path):
    register = conditional.NumberedFiles(tmp_path)
    token = register.put_if_absent("0")
    for number in range(2 * conditional.KEPT):
        token = register.put_if_match(str(number + 1), token)
    assert register.put_if_match("stale", "1") is None  # number 2 is free again
    assert register.read().text == str(2 * conditional.KEPT)


@pytest.mark.long
@pytest.mark.parametrize("before", ["nothing", "expired", "given back", "killed"])
def test_of_many_drivers_exactly_one_wins(tmp_path: Path, before: str):
    if before == "expired":
        elsewhere(tmp_path, -lease.MARGIN_SECONDS - 1)
    if before == "given back":
        with lease.hold(tmp_path):
            pass
    if before == "killed":
        process = child(HOLD, tmp_path, 600)
        assert process.stdout.readline() == "held\n"
        kill(process)
    processes = [child(RACE, tmp_path) for _ in range(6)]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 6
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    told = [process.stdout.readline() for process in processes]
    assert sorted(told) == ["lost\n"] * 5 + ["won\n"]
    assert record(tmp_path).pid == processes[told.index("won\n")].pid
    for process in processes:
        process.communicate(timeout=60)
    assert lease.find_holder(tmp_path) is None


def test_a_killed_driver_is_followed_at_once_and_a_live_one_is_named(tmp_path: Path):
    process = child(HOLD, tmp_path, 600)
    try:
        assert process.stdout.readline() == "held\n"
        for _ in range(2):  # a refusal does not change who is named
            with pytest.raises(RunDirError) as caught, lease.hold(tmp_path):
                pass
            told = str(caught.value)
            assert f"process {process.pid} on {platform.node()}, since 20" in told and "until 20" in told
            assert str(tmp_path) in told and "--wait" in told
        assert lease.find_holder(tmp_path) == record(tmp_path)
    finally:
        kill(process)
    assert lease.find_holder(tmp_path) is None
    with lease.hold(tmp_path):
        assert record(tmp_path).pid == os.getpid()
        with pytest.raises(RunDirError, match=f"process {os.getpid()}"), lease.hold(tmp_path):
            pass
    assert lease.find_holder(tmp_path) is None


def test_the_pid_of_a_dead_driver_that_was_given_again_holds_nothing(tmp_path: Path):
    with lease.hold(tmp_path):
        pass
    overwrite(tmp_path, expires=time.time() + 600)
    assert lease.find_holder(tmp_path) is not None
    overwrite(tmp_path, started="1")
    assert lease.find_holder(tmp_path) is None


@pytest.mark.parametrize("ahead", [-3600.0, -1.0, 3600.0])
def test_a_dead_driver_of_another_host_is_followed_once_it_was_watched(tmp_path: Path, monkeypatch, ahead: float):
    """Whatever its clock said: ``ahead`` is when its lease runs out by ours."""
    monkeypatch.setattr(lease, "MARGIN_SECONDS", 0.3)
    elsewhere(tmp_path, ahead)
    begun = time.monotonic()
    if ahead > 0:
        with pytest.raises(RunDirError, match="on node-7"), lease.hold(tmp_path, seconds=0.4):
            pass
        assert time.monotonic() - begun < 0.3
    with lease.hold(tmp_path, seconds=0.4, wait=ahead > 0) as held:
        assert time.monotonic() - begun >= 0.7
        held.still_held()
        assert record(tmp_path).pid == os.getpid()


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
@pytest.mark.parametrize("whose", ["the holder's", "the other's", "both"])
def test_a_clock_that_jumps_an_hour_takes_the_lease_from_nobody(tmp_path: Path, monkeypatch, whose: str, jump: float):
    monkeypatch.setattr(lease, "MARGIN_SECONDS", 0.5)
    real, others = time.time, [0.0]

    def jumping() -> float:
        is_other = threading.current_thread() is threading.main_thread()  # the holder renews in a thread of its own
        return real() + (others[0] if is_other else jump * (whose != "the other's"))

    with lease.hold(tmp_path, seconds=0.9) as held:
        overwrite(tmp_path, host="node-7")  # no process of this machine
        held._token = lease.make_register(tmp_path / "lease").read().token
        held._record = replace(held._record, host="node-7")
        monkeypatch.setattr(lease.time, "time", jumping)
        held.still_held()
        time.sleep(0.5)  # renewed at the new time
        others[0] = jump * (whose != "the holder's")
        with pytest.raises(RunDirError, match="another run is using it"), lease.hold(tmp_path, seconds=0.9):
            pass
        held.still_held()


def test_a_clock_that_is_set_back_does_not_keep_a_lease_that_was_not_renewed(tmp_path: Path, monkeypatch):
    class Down(conditional.NumberedFiles):
        def put_if_match(self, text: str, token: str) -> str | None:
            raise OSError("the store is down")

    held = lease.Lease(tmp_path, seconds=0.4, register=Down(tmp_path / "lease"))
    held.acquire()
    real = time.time
    monkeypatch.setattr(lease.time, "time", lambda: real() - 3600)
    time.sleep(0.5)
    with pytest.raises(CommitError, match="could not be renewed"):
        held.still_held()
    held.release()


@pytest.mark.long
def test_renewal_keeps_it_beyond_its_time_to_live(tmp_path: Path):
    with lease.hold(tmp_path, seconds=0.6) as held:
        first = record(tmp_path)
        time.sleep(2.0)
        held.still_held()
        now = record(tmp_path)
        assert now.owner == first.owner and now.since == first.since
        assert now.counter > first.counter + 2 and now.expires > first.expires + 1.0


def test_waiting_begins_when_the_other_ended(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(lease, "WAIT_SECONDS", 0.05)
    begun = []

    def second() -> None:
        with lease.hold(tmp_path, wait=True):
            begun.append(time.monotonic())

    with lease.hold(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.4)
        assert not begun
    thread.join(timeout=30)
    assert len(begun) == 1


def test_a_lost_lease_stops_commits_and_the_manifest(tmp_path: Path):
    schema = pa.schema([schemas.ROW_ID])
    uri = str(tmp_path / "gen-0" / "labels.lance")
    io.create(uri, schema)

    def queue(committer: commits.Committer, ids: list[int]) -> None:
        (row,) = commits.write_fragment(pa.table({"row_id": np.array(ids)}), uri, schema).to_pylist()
        committer.add(row["fragments"], row["row_ids"])

    with lease.hold(tmp_path, seconds=0.6) as held:
        committer = commits.Committer(uri, held.still_held)
        queue(committer, [1, 2])
        committer.flush()
        overwrite(tmp_path, owner="other", host="node-7", expires=time.time() + 600)
        time.sleep(0.8)
        queue(committer, [3])
        with pytest.raises(CommitError, match=r"lost to process \d+ on node-7"):
            committer.flush()
        with pytest.raises(CommitError, match="lost to"):
            Manifest.load(tmp_path, guard=held.still_held).record("select", {}, {}, rows=1, seconds=1.0)
    assert sorted(io.read(io.find_latest(uri))["row_id"].to_pylist()) == [1, 2]
    assert not (tmp_path / "manifest.json").exists()
    assert record(tmp_path).owner == "other"  # giving back is conditional, too


def test_a_store_that_does_not_let_the_lease_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused() -> None:
        raise OSError("AccessDenied")

    with lease.hold(tmp_path, seconds=30) as held:
        monkeypatch.setattr(held._register, "read", refused)
        with pytest.raises(RunDirError, match=r"cannot be read and listed \(AccessDenied\); give rights to do both"):
            held.require_newest(tmp_path)
        monkeypatch.undo()


def test_a_worker_sees_who_has_the_directory_and_goes_on_where_it_cannot_be_seen(tmp_path: Path):
    with lease.hold(tmp_path, seconds=30) as held:
        claim = pickle.loads(pickle.dumps(held.claim))
        claim.require()
        assert held.loss is None
        overwrite(tmp_path, owner="other", host="node-7", expires=time.time() + 600)
        with pytest.raises(CommitError, match=r"lost to process \d+ on node-7"):
            claim.require()
        newest = max((tmp_path / "lease").iterdir(), key=lambda path: int(path.stem))
        newest.write_text("torn")
        claim.require()


def takers() -> set[str]:
    """What of the package takes a guard, by its full name: functions, and classes whose construction does."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for item in ast.parse(path.read_text()).body:
            made = [item, *item.body] if isinstance(item, ast.ClassDef) else [item]
            for function in made:
                if isinstance(function, ast.FunctionDef) and function.name in (item.name, "__init__"):
                    arguments = function.args.args + function.args.kwonlyargs
                    if "guard" in [argument.arg for argument in arguments]:
                        found.add(f"{module_of(path)}.{item.name}")
    return found - MAY_ONLY_READ


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """The calls in a module, each with the full name of what is called, as far as its imports tell."""
    tree = ast.parse(path.read_text())
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            head, _, rest = ast.unparse(node.func).partition(".")
            yield f"{names.get(head, f'{module_of(path)}.{head}')}{rest and f'.{rest}'}", node


@pytest.mark.long
def test_the_guard_is_handed_on_to_whatever_commits():
    taking = takers()
    commit = {
        "tables.commits.Committer",
        "tables.columns.add_columns",
        "tables.compaction.commit",
        "stages.split_tables.delete_rows",
    }
    assert {f"curation.{name}" for name in commit} <= taking
    called = set()
    for path in PACKAGE.rglob("*.py"):
        for name, call in calls(path):
            if name in taking:
                handed = [*call.args, *(keyword.value for keyword in call.keywords)]
                assert any(ast.unparse(value).endswith(("guard", "guard_nothing")) for value in handed), (
                    f"{path}: {ast.unparse(call)}"
                )
                called.add(name)
    assert called == taking


def test_a_register_that_fails_for_a_while_is_written_later_and_for_good_stops_commits(tmp_path: Path):
    class Down(conditional.NumberedFiles):
        down = False

        def _put(self, text: str, number: int) -> str | None:
            if self.down:
                raise OSError("the store is down")
            return super()._put(text, number)

    register = Down(tmp_path / "lease")
    held = lease.Lease(tmp_path, seconds=0.6, register=register)
    held.acquire()
    register.down = True
    time.sleep(0.9)
    with pytest.raises(CommitError, match="could not be renewed"):
        held.still_held()
    register.down = False
    held.still_held()  # nobody took it meanwhile
    held.release()
    with lease.hold(tmp_path):
        pass


def test_our_own_write_whose_answer_was_lost_is_no_loss(tmp_path: Path):
    class Deaf(conditional.NumberedFiles):
        deaf = False

        def put_if_match(self, text: str, token: str) -> str | None:
            answer = super().put_if_match(text, token)
            if self.deaf:
                self.deaf = False
                raise OSError("timed out")
            return answer

    register = Deaf(tmp_path / "lease")
    held = lease.Lease(tmp_path, seconds=0.6, register=register)
    held.acquire()
    register.deaf = True
    time.sleep(1.5)
    held.still_held()
    held.release()


def test_what_is_no_lease_or_cannot_be_written_is_told(tmp_path: Path):
    (tmp_path / "lease").mkdir()
    (tmp_path / "lease" / "1.json").write_text("{}")
    for ask in (lambda: lease.Lease(tmp_path).acquire(), lambda: lease.find_holder(tmp_path)):
        with pytest.raises(RunDirError, match="holds no lease"):
            ask()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match="no lease can be written"):
        lease.Lease(tmp_path / "file" / "run").acquire()
