"""Random source files, configurations and damaged run directories against one oracle.

``python -m benchmarks.fuzz`` is the long form.
"""

from pathlib import Path

import pytest

from benchmarks.fuzz.oracle import COUNTS
from benchmarks.fuzz.runs import KINDS, LONG, fuzz

pytestmark = pytest.mark.long

NUM = {"files": 150, "configurations": 50, "directories": 8}


@pytest.mark.parametrize("kind", NUM)
def test_an_input_is_read_rightly_or_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    before = COUNTS.copy()
    fuzz(kind, tmp_path, num=NUM[kind], seed=16)
    tried = COUNTS - before
    counts = {
        what: sum(number for name, number in tried.items() if name.endswith(what))
        for what in (("read", "refused") if kind in ("files", "configurations") else ("tried", "right at once"))
    }
    assert sum(counts.values()) >= NUM[kind] and min(counts.values()) > 0, tried
    print(f"{kind}, seed 16: {dict(tried)}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_long_form(kind: str, tmp_path: Path) -> None:
    fuzz(kind, tmp_path, num=LONG[kind], seed=0)
