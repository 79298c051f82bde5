"""``curate filter`` exactly once: its driver dies as it labels and as it writes; and all of it in an S3 bucket."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filter_package import COMPLETIONS, make_package, write_pool
from object_store import object_store

from curation.filter.package.folder import load
from curation.storage.paths import Remote, to_place

NUM_ROWS, CHUNK_ROWS = 2000, 50


class Driver:
    """The command of one filter."""

    def __init__(
        self,
        directory: Path,
        package: str,
        pool: str,
        output: str,
        form: str,
        *settings: str,
        completions: Sequence[str] = COMPLETIONS,
    ) -> None:
        self.log, self._stderr = directory / "labelled.log", directory / "stderr.log"
        scripted = f"{{completions: {json.dumps(completions)}, seconds_per_row: 0.004, log: {self.log}}}"
        keys = [f"teacher.scripted={scripted}", f"teacher.chunk_rows={CHUNK_ROWS}", "commit_seconds=0.2", *settings]
        self.command = [str(Path(sys.executable).with_name("curate")), "filter", package, pool, "-o", output]
        self.command += ["--keep", "0.5", "--format", form, "--set", "ray.num_cpus=2"]
        for key in keys:
            self.command += ["--set", key]

    def start(self, *options: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*self.command, *options], stdout=subprocess.PIPE, stderr=self._stderr.open("a"), text=True
        )

    def finish(self, *options: str) -> str:
        process = self.start(*options)
        told, _ = process.communicate(timeout=500)
        assert process.returncode == 0, self.errors()
        return told

    def errors(self) -> str:
        return self._stderr.read_text()[-3000:]

    def labelled(self) -> list[int]:
        return [int(line) for line in self.log.read_text().split("\n") if line] if self.log.exists() else []


def committed(output: Path) -> set[int]:
    found = list(output.glob("_curation/label-*/labels.lance/_versions/*.manifest"))  # a folder alone is no table yet
    return (
        set(lance.dataset(str(found[0].parents[1])).to_table(columns=["row_id"])["row_id"].to_pylist())
        if found
        else set()
    )


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_killed_filter_labels_and_writes_every_row_once(tmp_path, form):
    package, output = make_package(tmp_path), tmp_path / "out"
    write_pool(tmp_path / "pool.jsonl", NUM_ROWS)
    driver = Driver(tmp_path, package.uri, str(tmp_path / "pool.jsonl"), str(output), form)

    process = driver.start()  # killed while it labels
    while process.poll() is None and len(driver.labelled()) < NUM_ROWS // 2:
        time.sleep(0.02)
    assert process.poll() is None, driver.errors()
    process.kill()
    process.wait()
    before, length = committed(output), len(driver.labelled())
    assert 0 < len(before) < NUM_ROWS and not (output / "filter.json").exists()

    process = driver.start()  # killed while it writes
    data = output / "data"
    while process.poll() is None and not data.exists():
        time.sleep(0.002)
    assert process.poll() is None, driver.errors()
    process.kill()
    process.wait()
    assert not before.intersection(driver.labelled()[length:]), "committed rows were labelled again"
    assert committed(output) == set(range(NUM_ROWS)) and not (output / "filter.json").exists()
    labelled = len(driver.labelled())

    assert "kept: " in driver.finish()
    assert len(driver.labelled()) == labelled
    content = json.loads((output / "filter.json").read_text())
    files = [output / file["path"] for file in content["files"]]
    assert sorted(path for path in data.rglob("*") if path.is_file()) == sorted(files)
    if form == "jsonl":
        ids = [json.loads(line)["row_id"] for path in files for line in path.read_text().splitlines()]
    else:
        ids = pa.concat_tables(pq.read_table(path) for path in files)["row_id"].to_pylist()
    assert len(ids) == len(set(ids)) == NUM_ROWS // 2 == content["kept"]
    assert "nothing to do" in driver.finish()


@pytest.mark.slow
def test_a_killed_filter_drops_the_rows_that_one_in_a_go_drops(tmp_path):
    completions = [" so" * 39 + text for text in COMPLETIONS]
    package = make_package(tmp_path, completions=completions, answer_words=40)
    pool = str(tmp_path / "pool.jsonl")
    write_pool(tmp_path / "pool.jsonl", NUM_ROWS)
    contents = []
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
        output = tmp_path / name / "out"
        driver = Driver(tmp_path / name, package.uri, pool, str(output), "parquet", completions=completions)
        if name == "killed":
            process = driver.start("--cascade")
            while process.poll() is None and len(driver.labelled()) < NUM_ROWS // 2:
                time.sleep(0.02)
            assert process.poll() is None, driver.errors()
            process.kill()
            process.wait()
            before, length = committed(output), len(driver.labelled())
            assert 0 < len(before) < NUM_ROWS
        assert "rows were dropped after their prompt" in driver.finish("--cascade")
        if name == "killed":
            assert not before.intersection(driver.labelled()[length:]), "committed rows were labelled again"
        content = json.loads((output / "filter.json").read_text())
        rows = pa.concat_tables(pq.read_table(output / file["path"]) for file in content["files"])
        contents.append((content["first_cut"], content["cut"]["threshold"], sorted(rows["row_id"].to_pylist())))
    assert contents[0] == contents[1] and contents[0][0]["dropped"] > NUM_ROWS // 5
    assert len(contents[0][2]) == NUM_ROWS // 2


@pytest.mark.slow
def test_a_killed_filter_goes_on_in_an_object_store(tmp_path):
    with object_store() as store:
        import obstore
        from obstore.store import from_url

        package, bucket = make_package(tmp_path), from_url(f"s3://{store.bucket}")
        folder = Path(package.uri)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                obstore.put(bucket, f"package/{path.relative_to(folder)}", path)

        def deliver(name: str, num_rows: int, first: int) -> None:
            write_pool(tmp_path / name, num_rows, first=first)
            obstore.put(bucket, f"pool/{name}", tmp_path / name)

        deliver("a.jsonl", 300, 0)
        home = to_place(store.url("filtered"))
        assert isinstance(home, Remote)
        driver = Driver(tmp_path, store.url("package"), f"{store.url('pool')}/*.jsonl", str(home), "parquet")
        process = driver.start()
        while process.poll() is None and len(driver.labelled()) < 100:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait() in (143, -signal.SIGTERM), driver.errors()
        driver.finish()
        assert load(home / "_curation" / "package").digest == package.digest
        deliver("b.jsonl", 100, 300)
        told = driver.finish()
        assert "400 read from 2 files in 2 rounds" in told
        assert "nothing to do" in driver.finish()
        recut = driver.finish("--recut")
        content = json.loads((home / "filter.json").read_text())
        assert content["kept"] == 200 and "kept: 200" in recut
        ids = []
        for file in content["files"]:
            ids += pq.read_table(pa.BufferReader((home / file["path"]).read_bytes()))["row_id"].to_pylist()
        assert len(ids) == len(set(ids)) == 200
        there = {f"data/{path.name}" for path in (home / "data").iterdir()}
        assert there == {file["path"] for file in content["files"]}
