"""A power cut at any moment: what was committed is there, and nothing is doubled.

A process that fills a table is traced. From its calls follows what the disk holds at a moment: of each file what had
been waited for (fsync) until then, and its name if the folder had been waited for too; a name may also come earlier.
Such a disk is laid out for fifty moments, and the table is filled to its end there.
"""

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

from curation.tables import commits, io, schemas
from curation.tables.versions import find_torn, remove_older

SCHEMA = pa.schema([schemas.ROW_ID, ("label", pa.string())])
NUM_ROWS, CHUNK_ROWS = 120, 4
FILL = """
import os, sys
from pathlib import Path
from tests.curation.tables.test_power_cut import CHUNK_ROWS, NUM_ROWS, SCHEMA, rows
from curation.tables import commits, io

home = Path(sys.argv[1])
if sys.argv[2] == "off":
    os.fsync = lambda number: None
uri = str(home / "stage" / "labels.lance")
io.create(uri, SCHEMA)
committer = commits.Committer(uri)
mark = os.open(home / "marks", os.O_CREAT | os.O_WRONLY)
for start in range(0, NUM_ROWS, CHUNK_ROWS):
    row = commits.write_fragment(rows(range(start, start + CHUNK_ROWS)), uri, SCHEMA).to_pylist()[0]
    committer.add(row["fragments"], row["row_ids"])
    if start % (3 * CHUNK_ROWS) == 0:
        committer.flush()
        os.write(mark, b".")
"""
CALLS = (
    "openat,write,pwrite64,writev,fsync,fdatasync,rename,renameat,renameat2,link,linkat,unlink,unlinkat,mkdir,mkdirat"
)
LINE = re.compile(r"(?P<start>\d+\.\d+) (?P<call>\w+)\((?P<given>.*)\)\s+= (?P<result>-?\d+).*<(?P<seconds>[\d.]+)>$")


def rows(ids: range) -> pa.Table:
    return pa.table({"row_id": np.array(ids), "label": [f"label of {number}" for number in ids]}, schema=SCHEMA)


@dataclass(frozen=True)
class Call:
    end: float
    name: str
    paths: tuple[str, ...]
    result: int


@dataclass
class Disk:
    """What the disk holds, by the calls so far."""

    written: dict[str, int] = field(default_factory=dict)
    """Bytes of each file."""
    synced: dict[str, int] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    """Of files and folders whose folder was waited for since they got them."""
    marks: int = 0

    def follow(self, call: Call) -> None:
        first = call.paths[0] if call.paths else ""
        if call.result < 0 or not first:
            return
        if first.endswith("/marks"):
            self.marks += call.name == "write"
        elif call.name in ("write", "pwrite64", "writev"):
            self.written[first] = self.written.get(first, 0) + call.result
        elif call.name in ("fsync", "fdatasync"):
            self.synced[first] = self.written.get(first, 0)
            self.names |= {path for path in self.known() if path.rpartition("/")[0] == first}
        elif call.name.startswith(("rename", "link")):
            old, new = call.paths
            for of in (self.written, self.synced):
                if old in of:
                    of[new] = of[old]
            self.names.discard(new)
            if call.name.startswith("rename"):
                self.forget(old)
        elif call.name.startswith("unlink"):
            self.forget(first)
        elif call.name.startswith("mkdir") or call.name == "openat":
            self.written.setdefault(first, 0)

    def known(self) -> set[str]:
        return set(self.written)

    def forget(self, path: str) -> None:
        self.written.pop(path, None)
        self.synced.pop(path, None)
        self.names.discard(path)

    def lay_out(self, home: Path, target: Path, *, early: bool) -> None:
        """Copy what is on the disk; ``early``: names were written before they were waited for, as they may be."""
        names = self.names | self.known() if early else self.names
        for path in sorted(names):
            inside = Path(path).relative_to(home)
            if not all(str(home / above) in names for above in inside.parents if str(above) != "."):
                continue
            if (home / inside).is_dir():
                (target / inside).mkdir(parents=True, exist_ok=True)
            elif (home / inside).is_file():
                (target / inside).parent.mkdir(parents=True, exist_ok=True)
                (target / inside).write_bytes((home / inside).read_bytes()[: self.synced.get(path, 0)])


def calls_of(traces: Path, home: Path) -> list[Call]:
    """The calls of all threads that name something in a folder, by the time of their ends."""
    found = []
    for trace in traces.glob("trace.*"):
        for line in trace.read_text(errors="replace").splitlines():
            if str(home) not in line or (match := LINE.match(line)) is None:
                continue
            if match["call"] == "openat" and "O_CREAT" not in match["given"]:
                continue
            named = re.findall(r'<([^<>]*)>|"([^"]*)"', match["given"])
            paths = tuple(path for pair in named for path in pair if path.startswith(str(home)))
            found.append(
                Call(float(match["start"]) + float(match["seconds"]), match["call"], paths, int(match["result"]))
            )
    return sorted(found, key=lambda call: call.end)


def traced(home: Path, sync: str) -> list[Call]:
    """The calls of a process that fills a table."""
    home.mkdir()
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    done = subprocess.run(
        [strace, "-ff", "-y", "-ttt", "-T", "-s", "0", "-e", f"trace={CALLS}", "-o", str(home.parent / "trace"),
         sys.executable, "-c", FILL, str(home), sync],
        capture_output=True,
        text=True,
    )  # fmt: skip
    if "ptrace" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    return calls_of(home.parent, home)


def cut_disks(calls: list[Call], num_cuts: int) -> Iterator[Disk]:
    """The disk at some moments, in their order."""
    begin = next(number for number, call in enumerate(calls) if call.paths and call.paths[0].endswith("/marks"))
    moments = set(random.Random(0).sample(range(begin, len(calls)), num_cuts))
    disk = Disk()
    for number, call in enumerate(calls):
        disk.follow(call)
        if number in moments:
            yield disk


def ids_in(uri: str) -> list[int]:
    return sorted(lance.dataset(uri).to_table(columns=["row_id"])["row_id"].to_pylist())


@pytest.mark.long
def test_what_was_committed_before_a_power_cut_is_there_and_nothing_is_doubled(tmp_path: Path):
    home, num_torn = tmp_path / "home", 0
    for number, disk in enumerate(cut_disks(traced(home, "on"), 50)):
        target = tmp_path / f"cut-{number}"
        disk.lay_out(home, target, early=number % 2 == 0)
        uri = str(target / "stage" / "labels.lance")
        num_torn += len(find_torn(Path(uri)))
        io.create(uri, SCHEMA)
        committer = commits.Committer(uri)
        promised = set(range(max(0, disk.marks * 3 - 2) * CHUNK_ROWS)) if disk.marks else set()
        assert promised <= set(committer.done), f"at cut {number}"
        for start in range(0, NUM_ROWS, CHUNK_ROWS):
            if start not in committer.done:
                row = commits.write_fragment(rows(range(start, start + CHUNK_ROWS)), uri, SCHEMA).to_pylist()[0]
                committer.add(row["fragments"], row["row_ids"])
        committer.flush()
        assert ids_in(uri) == list(range(NUM_ROWS))
        table = io.read(io.find_latest(uri)).sort_by("row_id")
        assert table["label"].to_pylist() == [f"label of {number}" for number in range(NUM_ROWS)]
    assert num_torn, "some versions were torn, or this test shows little"


@pytest.mark.long
def test_the_trace_would_show_files_that_nobody_waited_for(tmp_path: Path):
    home = tmp_path / "home"
    lost = 0
    for number, disk in enumerate(cut_disks(traced(home, "off"), 5)):
        disk.lay_out(home, target := tmp_path / f"cut-{number}", early=False)
        lost += disk.marks > 0 and not (target / "stage" / "labels.lance" / "_versions").exists()
    assert lost


def commit_thrice(uri: str) -> None:
    """Make a table of twelve rows by three commits, each of a driver of its own."""
    io.create(uri, SCHEMA)
    for start in (0, 4, 8):
        committer = commits.Committer(uri)
        row = commits.write_fragment(rows(range(start, start + 4)), uri, SCHEMA).to_pylist()[0]
        committer.add(row["fragments"], row["row_ids"])
        committer.flush()


@pytest.mark.parametrize("lost", [b"", b"\0" * 500])
def test_older_versions_that_are_lost_cost_nothing_and_are_not_read(tmp_path: Path, lost: bytes):
    uri = str(tmp_path / "labels.lance")
    commit_thrice(uri)
    older = sorted((tmp_path / "labels.lance/_versions").glob("*.manifest"))[1:]
    for path in (older[0], older[-1]):  # the first one is that of the empty table
        path.write_bytes(lost)
    assert find_torn(Path(uri)) == [older[0], older[-1]]
    latest = io.create(uri, SCHEMA)
    assert io.count(latest) == 12 and not find_torn(Path(uri))
    remove_older(latest, [])
    assert [item["version"] for item in lance.dataset(uri).versions()] == [latest.version]


def test_the_newest_version_emptied_costs_what_it_alone_held(tmp_path: Path):
    uri = str(tmp_path / "labels.lance")
    commit_thrice(uri)
    newest = min((tmp_path / "labels.lance/_versions").glob("*.manifest"))
    newest.write_bytes(b"")
    assert find_torn(Path(uri)) == [newest]
    io.create(uri, SCHEMA)
    assert set(commits.Committer(uri).done) == set(range(8)) and not find_torn(Path(uri))
    for version in (tmp_path / "labels.lance/_versions").glob("*.manifest"):
        version.write_bytes(b"\0" * version.stat().st_size)
    assert io.count(io.create(uri, SCHEMA)) == 0, "none is whole, so it begins anew"
