"""The disk of ``benchmarks.synced``: what was waited for is there after a power cut, and nothing else for sure."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import synced
from benchmarks.synced import Cut

WRITE = """
import os, sys
from pathlib import Path
from curation.storage.files import sync, sync_names
from curation.storage.paths import write_atomically

home = Path(sys.argv[1])
(home / "sub").mkdir()
(home / "sub" / "whole").write_text("whole")
(home / "sub" / "longer").write_text("first")
(home / "removed").write_text("removed")
sync_names(home / "sub")
sync([home / "sub" / "whole", home / "sub" / "longer", home / "removed"])
write_atomically(home / "replaced", "old")
with (home / "sub" / "longer").open("a") as file:
    file.write(" and second")
(home / "removed").unlink()
(home / "new").write_text("new")
(home / "late").mkdir()
(home / "late" / "file").write_text("late")
(home / "other").write_text("new")
os.replace(home / "other", home / "replaced")
os.kill(os.getpid(), 9)
"""


def held(home: Path) -> dict[str, str]:
    return {str(path.relative_to(home)): path.read_text() for path in home.rglob("*") if path.is_file()}


@pytest.mark.parametrize("how, left", [
    (Cut(new_names=0, zeros=False),
     {"sub/whole": "whole", "sub/longer": "first", "removed": "removed", "replaced": "old"}),
    (Cut(new_names=1, zeros=False),
     {"sub/whole": "whole", "sub/longer": "first", "replaced": "", "new": "", "late/file": ""}),
    (Cut(new_names=1, zeros=True),
     {"sub/whole": "whole", "sub/longer": "first" + 11 * "\0", "replaced": 3 * "\0", "new": 3 * "\0",
      "late/file": 4 * "\0"}),
])  # fmt: skip
def test_what_nobody_waited_for_is_lost(tmp_path: Path, how: Cut, left: dict[str, str]) -> None:
    (home := tmp_path / "home").mkdir()
    environment = {**os.environ, **synced.environment(home, tmp_path / "notes")}
    subprocess.run([sys.executable, "-c", WRITE, str(home)], env=environment, check=False)
    synced.cut(home, tmp_path / "notes", how, random.Random(0))
    assert held(home) == left
    synced.cut(home, tmp_path / "notes", Cut(new_names=0, zeros=False), random.Random(0))
    assert held(home) == left, "what a cut left is on the disk"
