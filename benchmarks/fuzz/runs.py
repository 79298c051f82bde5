"""Runs hypothesis over one kind of input."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from benchmarks.fuzz.configs import check_configuration, configurations, prepare
from benchmarks.fuzz.damage import DAMAGE
from benchmarks.fuzz.files import check_file, files
from benchmarks.fuzz.rundirs import check_directory
from benchmarks.fuzz.subjects import SUBJECTS

LONG = {"files": 5_000, "configurations": 5_000, "directories": 1_000, "runs": 100}
"""How many inputs of each kind the long form tries."""
KINDS = tuple(LONG)
BOUND_MS = 20_000
"""No input may take longer: one that does counts as a hang."""


def fuzz(kind: str, folder: Path, *, num: int, seed: int, shrink: bool = True) -> None:
    """Try ``num`` inputs of a kind; the same seed tries the same ones. ``shrink`` makes a failing one small.

    Raises:
        AssertionError: an input is read wrongly or refused badly; any other exception is one that escaped.
    """
    check: Callable[[], None]
    held = ExitStack()
    if kind == "files":

        @hypothesis.given(files())
        def check(given: tuple) -> None:
            check_file(folder, *given)

    elif kind == "configurations":
        prepare(folder)

        @hypothesis.given(configurations())
        def check(given: tuple) -> None:
            check_configuration(folder, *given)

    else:
        subject = SUBJECTS[kind](folder)
        held.callback(subject.worker.close)

        @hypothesis.given(st.tuples(st.integers(0, 3).map(bool), st.lists(DAMAGE, min_size=1, max_size=2)))
        def check(given: tuple) -> None:
            check_directory(subject, *given)

    bounded = settings(
        max_examples=num,
        deadline=None if kind in SUBJECTS else BOUND_MS,  # a damaged directory has bounds of its own
        database=None,
        print_blob=False,
        phases=[Phase.generate, *([Phase.shrink] if shrink else [])],
        suppress_health_check=list(HealthCheck),
    )
    with held:
        hypothesis.seed(seed)(bounded(check))()
