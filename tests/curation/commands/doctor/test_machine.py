import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from curation.commands import doctor
from curation.commands.doctor import ok, run_check
from curation.errors import ConfigError

GIB = 2**30


def test_a_finding_is_one_line_with_its_state():
    finding = run_check("disk", doctor.rate_room, "/data", 2 * GIB, "make space", good=10 * GIB)
    assert finding.line == "warn  disk             /data: 2.0 GiB free; make space"
    assert run_check("a", lambda: ok("two\nlines")).line == "ok    a                two lines"


def test_a_check_that_crashes_is_a_finding():
    def crashes() -> None:
        raise ZeroDivisionError("by zero")

    finding = run_check("odd", crashes)
    assert finding.state == "fail" and "the check itself failed: ZeroDivisionError: by zero" in finding.line

    def refuses() -> None:
        raise ConfigError("seed: 'many' is no number; give one")

    finding = run_check("config", refuses)
    assert finding.state == "fail" and finding.finding == "seed: 'many' is no number; give one" and not finding.fix


def test_this_machine_passes_and_says_what_it_is():
    assert f"{len(os.sched_getaffinity(0))} cores" in doctor.check_memory().finding


@pytest.mark.parametrize(("free", "state"), [(0, "fail"), (GIB - 1, "fail"), (5 * GIB, "warn"), (10 * GIB, "ok")])
def test_space_for_a_run(monkeypatch: pytest.MonkeyPatch, free: int, state: str):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free, total=100 * GIB))
    verdict = doctor.check_disk(Path("/data"), "make space")
    assert verdict.state == state and bool(verdict.fix) == (state != "ok")


@pytest.mark.parametrize(
    ("free", "total", "state"),
    [(4, 100, "fail"), (5, 100, "fail"), (8, 100, "warn"), (5, 10, "warn"), (50, 100, "ok"), (60, 1000, "warn")],
)
def test_rays_disk_fails_where_ray_itself_stops_writing(
    monkeypatch: pytest.MonkeyPatch, free: int, total: int, state: str
):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free * GIB, total=total * GIB))
    assert doctor.check_ray_disk().state == state


def test_shared_memory_is_measured_by_rays_own_share():
    assert doctor.rate_shared_memory(int(0.31 * 100 * GIB), 100 * GIB).state == "ok"
    small = doctor.rate_shared_memory(64 * 2**20, 100 * GIB)  # what Docker gives
    assert small.state == "warn" and "--shm-size=31g" in small.fix
    assert doctor.rate_shared_memory(200 * 10**9, 2000 * GIB).state == "ok"  # Ray takes no more


def test_the_disk_of_a_directory_that_is_not_there_yet_is_that_above_it(tmp_path: Path):
    assert doctor.find_existing(tmp_path / "a" / "b") == tmp_path
    assert doctor.find_existing(tmp_path) == tmp_path
    told = doctor.check_disk(tmp_path / "a" / "b", "make space").finding
    free = float(told.partition(": ")[2].partition(" GiB")[0].replace(",", ""))
    assert free == pytest.approx(shutil.disk_usage(tmp_path).free / GIB, abs=1)


def test_a_gpu_that_is_asked_for_and_not_there_fails():
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    verdict = doctor.check_gpu(count + 1)
    assert verdict.state == "fail" and f"asks for {count + 1}" in verdict.finding
    assert doctor.check_gpu(0).state in ("ok", "warn")
