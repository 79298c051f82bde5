"""How much memory a process may use: limits of control groups of both versions, its own and those above it."""

from pathlib import Path

import psutil
import pytest

from curation import memory
from curation.cluster import session

GIB = 2**30
UNLIMITED = 9223372036854771712
"""What version 1 says where nothing is limited."""


def system(root: Path, cgroup: str, **files: str | int) -> Path:
    """A root folder of a machine with 64 GiB, of which 48 are free; ``files`` are below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {64 * 2**20} kB\nMemFree: 1 kB\nMemAvailable: {48 * 2**20} kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def v2(group: str, limit: int | str, used: int, read_files: int = 0) -> dict[str, str | int]:
    names = {"memory.max": limit, "memory.current": used, "memory.stat": f"anon 5\ninactive_file {read_files}\nx 1"}
    return {f"{group}{name}": content for name, content in names.items()}


def v1(group: str, limit: int, used: int) -> dict[str, str | int]:
    stat = f"inactive_file 7\ntotal_inactive_file {GIB}"
    names = {"limit_in_bytes": limit, "usage_in_bytes": used, "stat": stat}
    return {f"memory/{group}memory.{name}": content for name, content in names.items()}


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/", {}, (64, 48)),
        ("0::/", v2("", "max", 60 * GIB), (64, 48)),
        ("0::/", v2("", 8 * GIB, 6 * GIB, GIB), (8, 3)),
        ("0::/", v2("", 8 * GIB, 9 * GIB), (8, 0)),
        ("0::/", v2("", 60 * GIB, 2 * GIB), (60, 48)),  # the machine has less left than the group
        ("0::/a.slice/b.scope", v2("a.slice/b.scope/", "max", GIB) | v2("a.slice/", 4 * GIB, 3 * GIB), (4, 1)),
        ("0::/a.slice/b.scope", v2("a.slice/b.scope/", 2 * GIB, GIB) | v2("a.slice/", 4 * GIB, 3 * GIB), (2, 1)),
        ("0::/kubepods/pod1/c1", v2("", 3 * GIB, GIB), (3, 2)),  # its own group is the top of what it sees
        ("0::/../../c1", v2("", 3 * GIB, GIB), (3, 2)),
        ("5:cpu:/x\n4:memory:/d/c\n0::/", v1("", UNLIMITED, GIB) | v1("d/c/", 4 * GIB, 2 * GIB), (4, 3)),
        ("4:cpu,memory:/docker/c", v1("", 4 * GIB, 2 * GIB), (4, 3)),
        ("5:cpu:/x\n1:name=systemd:/y", v2("", "max", GIB), (64, 48)),
    ],
)
def test_the_least_limit_above_a_process_counts(tmp_path: Path, cgroup, files, expected) -> None:
    found = memory.read_usable_memory(system(tmp_path, f"{cgroup}\n", **files))
    assert (found.total / GIB, found.free / GIB) == expected


def test_without_groups_it_is_the_machine(tmp_path: Path) -> None:
    root = system(tmp_path, "")
    (root / "proc/self/cgroup").unlink()
    assert memory.read_usable_memory(root) == (64 * GIB, 48 * GIB)
    (root / "proc/meminfo").write_text("MemTotal: 1 kB\n")
    with pytest.raises(OSError, match="does not say"):
        memory.read_usable_memory(root)


def test_this_machine() -> None:
    found = memory.read_usable_memory()
    assert 0 < found.free <= found.total <= psutil.virtual_memory().total


def test_a_ray_that_starts_here_is_told_of_a_limit_that_it_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    physical = psutil.virtual_memory().total
    assert physical >= memory.read_usable_memory().total
    monkeypatch.setattr(memory, "read_usable_memory", lambda: memory.Memory(4 * GIB, 2 * GIB))
    told = session._make_memory_settings()
    assert sum(told.values()) == 2 * GIB and 0 < told["object_store_memory"] <= 0.3 * 2 * GIB
    monkeypatch.setattr(memory, "read_usable_memory", lambda: memory.Memory(physical, GIB))
    assert session._make_memory_settings() == {}
