"""Run directories in an object store, piece by piece: conditional writes, the lease, commits, events, copies."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from google_store import google_store
from object_store import ObjectStore, object_store

from curation.commands.inspect import find, list_tables
from curation.config.load import load_config, parse_config
from curation.errors import CommitError, ConfigError, RunDirError
from curation.rundir import events
from curation.rundir.manifest import Manifest
from curation.storage import cache, conditional, lease, paths
from curation.storage.digest import compute_directory_digest
from curation.storage.paths import Remote, list_files, remove, require_reachable, to_place
from curation.tables import commits, io, schemas

HOLD = """
import sys, time
from curation.storage import lease
from curation.storage.paths import to_place
with lease.hold(to_place(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module", params=[object_store, google_store], ids=["s3", "gs"])
def server(request):
    with request.param() as server:
        yield server


def at(server: ObjectStore, name: str) -> Remote:
    return Remote(server.url(name))


def in_parallel(number: int, work) -> list:
    """What ``work(index)`` returns or raises in each of so many threads that begin at once."""
    begin, results = threading.Barrier(number), [None] * number

    def run(index: int) -> None:
        begin.wait()
        try:
            results[index] = work(index)
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_a_remote_place_does_what_a_path_does(server):
    place_ = at(server, "paths") / "a"
    for name, text in {"x.txt": "one", "deep/y.json": "two"}.items():
        (place_ / name).put(text.encode())
    assert (place_ / "x.txt").read_text() == "one"
    assert (place_ / "x.txt").is_file() and not (place_ / "x.txt").is_dir()
    assert place_.is_dir() and not place_.is_file() and place_.exists()
    assert not (place_.parent / "ab").exists() and not (place_.parent / "").is_file()
    assert sorted(item.name for item in place_.iterdir()) == ["deep", "x.txt"]
    assert [entry.path for entry in place_.entries()] == ["deep/y.json", "x.txt"]
    with pytest.raises(FileNotFoundError):
        (place_ / "z").read_text()
    for number in range(25):  # more than a page of a listing
        (place_ / f"{number}" / "z.txt").put(b"")
    assert len(place_.entries()) == 27 and len(list(place_.iterdir())) == 27
    for _ in range(2):
        (place_ / "x.txt").unlink(missing_ok=True)
    assert not (place_ / "x.txt").is_file()
    remove(place_)
    assert not place_.exists()


def test_of_many_writers_of_a_register_one_succeeds_each_time(server):
    def add(index: int) -> int:
        register, added = conditional.OneObject(at(server, "register")), 0
        while added < 5:
            found = register.read()
            if found is None:
                added += register.put_if_absent(f"1 by {index}") is not None
            else:
                text = f"{int(found.text.split()[0]) + 1} by {index}"
                added += register.put_if_match(text, found.token) is not None
        return added

    assert in_parallel(4, add) == [5] * 4
    assert conditional.OneObject(at(server, "register")).read().text.startswith("20 by ")


def test_a_register_knows_its_own_write_whose_answer_was_lost(server):
    register = conditional.OneObject(at(server, "lost"))
    first = register.put_if_absent("mine")
    assert register.put_if_absent("mine") == first  # sent again
    assert register.put_if_absent("other") is None
    second = register.put_if_match("changed", first)
    assert register.put_if_match("changed", first) == second
    assert register.put_if_match("late", first) is None


def test_a_lease_keeps_a_second_driver_off_and_falls_with_its_process(server):
    directory = at(server, "leased")
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(directory)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    with pytest.raises(RunDirError, match=f"another run is using it .process {process.pid} "), lease.hold(directory):
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with lease.hold(directory) as held:
        assert lease.find_holder(directory) is not None
        held.still_held()
        found = conditional.OneObject(directory / "lease").read()
        taken = json.dumps(json.loads(found.text) | {"owner": "another", "expires": time.time() + 60})
        assert conditional.OneObject(directory / "lease").put_if_match(taken, found.token)
        held._renew()
        with pytest.raises(CommitError, match="lease was lost"):
            held.still_held()


def put_folder_marks(server: ObjectStore, *names: str) -> None:
    """As the stores' consoles and pyarrow do."""
    for name in names:
        url = f"http://127.0.0.1:{server.proxy.port}/{server.bucket}/{name}/"
        urllib.request.urlopen(urllib.request.Request(url, data=b"", method="PUT")).close()


def rows(first: int, number: int) -> pa.Table:
    ids = np.arange(first, first + number)
    return pa.table({"row_id": ids, "value": pa.nulls(number, pa.float32()), "error": pa.nulls(number, pa.string())})


def test_two_committers_on_one_table_leave_each_row_once(server):
    uri = server.url("race/labels.lance")
    schema = schemas.SIGNAL
    created = in_parallel(3, lambda _: io.create(uri, schema))
    assert len({ref.version for ref in created}) == 1

    def fragment(first: int) -> dict:
        table = rows(first, 10).rename_columns(schema.names).cast(schema)
        return commits.write_fragment(table, uri, schema).to_pylist()[0]

    def commit(index: int) -> int:
        committer = commits.Committer(uri)
        for number in range(4):
            # The first two of each driver are the same rows, as of drivers that both believe to be alone.
            written = fragment(100 * (number if number < 2 else number + 10 * index))
            committer.add(written["fragments"], written["row_ids"])
            committer.flush()
        return committer.num_rows

    results = in_parallel(2, commit)
    assert not [result for result in results if isinstance(result, Exception)], results
    ids = lance.dataset(uri).to_table(columns=["row_id"])["row_id"].to_pylist()
    assert len(ids) == len(set(ids)) == 60
    assert len(commits.read_committed_ids(uri)) == 60


def test_a_manifest_that_another_driver_wrote_is_not_overwritten(server):
    directory = at(server, "manifests")
    first, second = Manifest.load(directory), Manifest.load(directory)
    first.identify({"seed": 1}, {})
    first.save()
    with pytest.raises(CommitError, match="another driver has written it"):
        second.identify({"seed": 2}, {})
        second.save()
    third = Manifest.load(directory)
    third.record("prepare", {}, {}, rows=1, seconds=1.0)
    with pytest.raises(CommitError):
        first.record("other", {}, {}, rows=1, seconds=1.0)
    assert Manifest.load(directory).identity == {"seed": 1}
    assert list(Manifest.load(directory).stages) == ["prepare"]


def test_events_are_parts_that_a_second_driver_goes_on_with(server, monkeypatch):
    directory = at(server, "run-with-events")
    monkeypatch.setattr(events, "PART_BYTES", 2000)
    for driver in range(2):
        manifest = Manifest.load(directory)
        for number in range(40):
            manifest.event("progress", driver=driver, rows=number)
        manifest.event("finished", driver=driver)
    told = [json.loads(line) for line in Manifest.load(directory).events.last(1 << 20)]
    assert [event["driver"] for event in told if event["event"] == "finished"] == [0, 1]
    assert [event["rows"] for event in told if event["event"] == "progress"] == list(range(40)) * 2
    num_parts = len((directory / "events").entries())
    assert num_parts < 10  # not an object an event
    last = Manifest.load(directory).events.last(10)
    assert json.loads(last[-1])["event"] == "finished" and len(last) < len(told)


def test_a_folder_has_one_digest_on_a_disk_and_in_a_store(server, tmp_path):
    """A part of a path ends before "/", and a sorted list of texts has "-" before it."""
    for name in ("deep/weights", "deep-er", "d"):
        for place in (tmp_path / "model", at(server, "digests/model")):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(name.encode()) if place.parent == tmp_path else (place / name).put(name.encode())
    local, stored = tmp_path / "model", at(server, "digests/model")
    assert [file.path for file in list_files(local)] == [file.path for file in list_files(stored)]
    assert compute_directory_digest(local) == compute_directory_digest(stored)


def test_a_folder_is_put_whole_and_got_once_a_content(server, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = at(server, "models/student")
    weights = np.arange(7 << 20, dtype=np.float32).tobytes()  # more than a part of an upload, and of a download
    with cache.staged(target) as local:
        (local / "sub").mkdir(parents=True)
        (local / "weights").write_bytes(weights)
        (local / "sub" / "config.json").write_text("{}")
    got = in_parallel(3, lambda _: cache.fetch_folder(str(target)))
    assert got[0] == got[1] == got[2]
    assert (got[0] / "weights").read_bytes() == weights and (got[0] / "sub" / "config.json").read_text() == "{}"
    assert len(list((tmp_path / "trust-curation").iterdir())) == 2  # the copy and its lock
    before = compute_directory_digest(target)
    with pytest.raises(RuntimeError), cache.staged(target) as local:
        local.mkdir()
        raise RuntimeError
    assert compute_directory_digest(target) == before
    put_folder_marks(server, "models/student", "models/student/sub")
    assert [entry.path for entry in target.entries()] == ["sub/config.json", "weights"]
    assert compute_directory_digest(target) == before
    with cache.staged(target) as local:
        local.mkdir()
        (local / "weights").write_bytes(b"1")
    assert (target / "weights").is_file() and not (target / "sub" / "config.json").is_file()
    assert (cache.fetch_folder(str(target)) / "weights").read_bytes() == b"1"


def test_a_configuration_may_stand_in_the_store_beside_its_sources_and_models(server):
    folder = at(server, "configured")
    (folder / "bases" / "small" / "config.json").put(b"{}")
    sections = {
        "name": "there",
        "domain": "math",
        "sources": {"near": {"path": "data/*.jsonl"}, "far": {"path": "hf://x/y.parquet"}, "here": {"path": "/x.csv"}},
        "splits": {name: {"from": "near", "rows": 1} for name in ("source", "test", "pool")},
        "teacher": {"model": {"path": "bases/small"}},
        "generations": [{"student": {"path": "org/name"}}],
        "selection": {"budget": {"n": 1}, "arms": ["naive"]},
    }
    (folder / "my.yaml").put(json.dumps(sections).encode())
    config = load_config(str(folder / "my.yaml"))
    assert {name: source.path for name, source in config.sources.items()} == {
        "near": f"{folder}/data/*.jsonl",
        "far": "hf://x/y.parquet",
        "here": "/x.csv",
    }
    assert config.teacher.model is not None and config.teacher.model.path == f"{folder}/bases/small"
    assert config.generations[0].student.path == "org/name"


def test_tables_of_a_run_are_found(server):
    directory = at(server, "inspected")
    ref = io.write(rows(0, 3), str(directory / "gen-0" / "label-pool-1" / "labels.lance"))
    io.write(rows(0, 2), str(directory / "gen-0" / "label-pool-2" / "labels.lance"))
    Manifest.load(directory).record("gen-0/label-pool", {}, {"labels": ref.to_json()}, rows=3, seconds=1.0)
    assert find(str(directory), "gen-0/label-pool") == (ref.uri, ref.version)
    found = [(item.state, item.rows) for item in list_tables(directory)]
    assert found == [("done", 3), ("not on record", 2)]


@pytest.mark.parametrize("status", [429, 500, 503, 507])
def test_a_store_that_refuses_writes_for_a_while_is_asked_again(server, status):
    target = at(server, f"refused-{status}")
    with server.writes_refused(status):
        writer = threading.Thread(target=write_a_table_and_an_object, args=(target,))
        writer.start()
        time.sleep(0.7)
        assert writer.is_alive() and not target.exists()
    writer.join(30)
    assert (target / "object").read_text() == "1" and lance.dataset(str(target / "t.lance")).count_rows() == 3


def write_a_table_and_an_object(target: Remote) -> None:
    paths.write_atomically(target / "object", "1")
    io.write(pa.table({"row_id": [1, 2, 3]}), str(target / "t.lance"))


@pytest.mark.long
def test_a_store_that_hangs_is_asked_again(server, monkeypatch):
    """A request that nobody answers is given up, here after a second, and made again."""
    for cloud in ("AWS", "GOOGLE"):
        monkeypatch.setenv(f"{cloud}_TIMEOUT", "1 second")  # 30
    monkeypatch.setattr(paths, "_store", paths._store.__wrapped__)
    target = at(server, "hung") / "object"
    server.proxy.hang()
    try:
        writer = threading.Thread(target=target.put, args=(b"1",))
        writer.start()
        time.sleep(3)
        assert writer.is_alive()
    finally:
        server.proxy.go_on()
    writer.join(30)
    assert target.read_bytes() == b"1"


def test_what_cannot_be_used_is_named(server, monkeypatch):
    minimal = {
        "name": "x",
        "sources": {"a": {"path": "a"}},
        "splits": {"source": {"from": "a", "rows": 1}, "pool": {"from": "a"}},
        "teacher": {"backend": "scripted"},
        "selection": {"budget": {"n": 1}, "arms": ["naive"]},
    }
    assert str(parse_config(minimal | {"run_dir": server.url("x/")}).directory) == server.url("x")
    assert parse_config(minimal | {"run_dir": "file:///data/x"}).directory == Path("/data/x")
    for wrong in ("ftp://bucket/x", "s3:///x", "s3://bucket/a b", "s3://bucket/x?region=a"):
        with pytest.raises(ConfigError, match=r"run_dir: .*s3\|gs://BUCKET"):
            parse_config(minimal | {"run_dir": wrong})
    with pytest.raises(RunDirError, match="there is no bucket 'no-such-bucket'"):
        Manifest.load(to_place(f"{server.scheme}://no-such-bucket/run"))
    for name, value in server.environment_at(9).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(paths, "FIRST_SECONDS", 1)
    begun = time.monotonic()
    settings = re.escape(paths.SETTINGS[server.scheme])
    with pytest.raises(RunDirError, match=rf"the store does not answer as it should.*{settings}"):
        require_reachable(to_place(f"{server.scheme}://unreachable-bucket/run"))
    assert time.monotonic() - begun < 10


def test_the_message_of_a_missing_object_is_one_line_without_xml():
    answer = (
        "Object at location x.yaml not found: Error performing GET http://h:1/b/x.yaml in 4ms - Server returned "
        'non-2xx status code: 404 Not Found: <?xml version="1.0" encoding="utf-8"?>\n<Error><Code>NoSuchKey</Code>'
        "<Message>The specified key does not exist.</Message><Key>x.yaml</Key><HostId>9Gjj=</HostId></Error>\n\n"
        'Debug source:\nNotFound {\n    path: "x.yaml",\n    body: Some("<?xml?><Error></Error>"),\n}'
    )
    told = paths.shorten_error(FileNotFoundError(answer))
    assert told.endswith("404 Not Found: NoSuchKey: The specified key does not exist.")
    assert "\n" not in told and "<" not in told and "Debug" not in told
    assert paths.shorten_error(OSError("timed out\nafter 3 s")) == "timed out after 3 s"
    told = pytest.raises(FileNotFoundError, match=r"^s3://b/x: there is no such object \(.*NoSuchKey")
    with told as error, paths._errors("s3://b/x"):
        raise FileNotFoundError(answer)
    assert len(str(error.value)) < 300
