"""The search on Ray Tune: what it records, what it goes on after, what it chooses, and what it shares."""

import json
import random
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from curation.config import TrustConfig, TuneConfig
from curation.errors import RunFailedError
from curation.hashing import derive
from curation.stopping import Stopped, stopped_by
from curation.telemetry.standing import Standing
from tune.fits import Fits, Trial
from tune.objective import Fold, TrialRows, run_trial
from tune.search import SearchResult, search
from tune.space import Space

pytestmark = pytest.mark.whole_run

NUM_ROWS, SIZE = 1_600, 8
BASE = TrustConfig(
    kind="linear_probe", width=16, depth=1, max_steps=150, learning_rate=1e-2, batch_size=64, patience=None
)
# The probe cannot learn the label, a product of two features; a network can.
RAW = {"kind": ["linear_probe", "neural"], "class_weight": [0.0, 0.5], "learning_rate": {"log": [3e-3, 3e-2]}}


@pytest.fixture(scope="module")
def source() -> TrialRows:
    rng = np.random.default_rng(0)
    hidden_ND = rng.standard_normal((NUM_ROWS, SIZE)).astype(np.float16)
    score_N = 3 * hidden_ND[:, 0].astype(np.float32) * hidden_ND[:, 1]
    ids_N = np.arange(NUM_ROWS)
    return TrialRows(
        row_ids_N=ids_N,
        unit_N=ids_N,
        correct_N=rng.random(NUM_ROWS) < 1 / (1 + np.exp(-score_N)),
        parsed_N=rng.random(NUM_ROWS) < 0.95,
        inputs={"output_last": hidden_ND},
        numbers_NK=np.zeros((NUM_ROWS, 0)),
        numbers=(),
    )


def space(raw: dict[str, Any] = RAW) -> Space:
    return Space.of(raw, BASE, stored=("output_last",))


def found(source: TrialRows, directory: Path, said: list[str] | None = None, **settings: Any) -> SearchResult:
    config = TuneConfig(**{"trials": 8, "folds": 3, "seeds": 1, "finalists": 2, "parallel": 1, **settings})
    standings: list[Standing] = []
    result = search(
        Fits(source, config, directory),
        space(),
        config,
        seed=7,
        say=(said if said is not None else []).append,
        update=standings.append,
    )
    assert standings[-1].rows == standings[-1].total == len(result.trials) + len(result.finals)
    return result


def timeless(trials: list[Trial]) -> list[Trial]:
    """Without what a clock says."""

    def outcome(trial: Trial) -> Any:
        fit = {key: value for key, value in trial.outcome.fit.items() if key != "seconds"}
        return replace(trial.outcome, seconds=0.0, fit=fit)

    return [replace(trial, outcome=trial.outcome and outcome(trial)) for trial in trials]


@pytest.fixture(scope="module")
def whole(local_ray: Any, source: TrialRows, tmp_path_factory: pytest.TempPathFactory) -> tuple[SearchResult, Path]:
    directory = tmp_path_factory.mktemp("whole")
    return found(source, directory), directory


def test_a_trial_is_the_fit_in_this_process_and_the_better_kind_wins(
    whole: tuple[SearchResult, Path], source: TrialRows
) -> None:
    result, directory = whole
    trial = next(trial for trial in result.trials if trial.kind == "neural")
    values = {key: value for key, value in trial.drawn.items() if key != "kind"}
    fold = Fold(0, 3, derive(7, "tune search"), derive(7, "tune fit"))
    again = run_trial(source, space().point("neural", values), fold)
    assert again.value == pytest.approx(trial.outcome.value, abs=1e-6)
    assert result.point.kind == "neural" and result.choice.winner is not None
    assert result.choice.differences[result.choice.winner].low > 0.05
    assert [trial.kind for trial in result.finals[:3]] == ["linear_probe"] * 3 and not result.finals[0].drawn
    files = sorted(path.name for path in (directory / "trials").iterdir())
    assert files == [f"{number:05d}.json" for number in range(8)]
    assert not list(directory.glob("*.ray"))


def test_recorded_fits_are_not_repeated_and_the_rest_ends_as_it_would_have(
    local_ray: Any, whole: tuple[SearchResult, Path], source: TrialRows, tmp_path: Path
) -> None:
    result, directory = whole
    chance = random.Random(1)
    kept = {}
    for folder in ("trials", "finals"):
        (tmp_path / folder).mkdir()
        for path in (directory / folder).iterdir():
            if chance.random() < (0.5 if folder == "trials" else 0.2):
                content = json.loads(path.read_text())
                content["outcome"]["seconds"] = -1.0
                (tmp_path / folder / path.name).write_text(json.dumps(content))
                kept[folder, content["number"]] = True
    again = found(source, tmp_path)
    assert timeless(again.trials) == timeless(result.trials) and timeless(again.finals) == timeless(result.finals)
    assert again.choice == result.choice and again.point == result.point
    marked = {("trials", trial.number) for trial in again.trials if trial.outcome.seconds == -1.0}
    assert marked == {key for key in kept if key[0] == "trials"}
    assert found(source, tmp_path).choice == result.choice  # nothing is left to do


def test_what_fails_is_recorded_and_what_dies_is_tried_again(
    local_ray: Any, source: TrialRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tune.fits.MOST_DEATHS", 1)
    kind, mark = "tests.tune.fragile_trust:OWN", tmp_path / "mark"
    hows = ["whole", "raises", "dies once", "dies", "whole"]
    base = BASE.model_copy(update={"options": {kind: {"mark": str(mark)}}})
    fragile = Space.of({"kind": [kind], f"options.{kind}.how": hows}, base, stored=("output_last",))
    points = [fragile.point(kind, {f"options.{kind}.how": how}) for how in hows]
    fits = Fits(source, TuneConfig(), tmp_path / "fits")
    ended: list[int] = []
    trials = fits.run(
        "trials",
        points.__getitem__,
        [Fold(0, 3, 1, 2)] * len(points),
        on_done=lambda trial, _: ended.append(trial.number),
    )
    assert sorted(ended) == list(range(5)), [trial.error for trial in trials]
    assert [trial.outcome is not None for trial in trials] == [True, False, True, False, True]
    assert trials[0].outcome.value == trials[2].outcome.value == trials[4].outcome.value
    assert "ValueError: no such luck (fragile_trust.py:" in trials[1].error and "died 2 times" in trials[3].error
    told = sorted(mark.read_text().splitlines())
    assert told == [*["dies"] * 2, *["dies once"] * 2, "raises", *["whole"] * 2]


def test_a_search_of_failures_says_why(local_ray: Any, source: TrialRows, tmp_path: Path) -> None:
    raw = {"kind": ["attention"], "options.attention.num_heads": [3, 5]}
    config = TuneConfig(trials=2, folds=3, parallel=1)
    said: list[str] = []
    with pytest.raises(RunFailedError, match=r"every trial failed \(trust\.options\.attention\.num_heads: "):
        search(
            Fits(source, config, tmp_path),
            Space.of(raw, BASE, stored=("output_last",)),
            config,
            seed=0,
            say=said.append,
            update=lambda standing: None,
        )
    assert sum("failed: trust.options.attention.num_heads" in line for line in said) == 2


def test_an_interrupted_search_ends_the_fits_that_run(local_ray: Any, source: TrialRows, tmp_path: Path) -> None:
    kind, mark, interrupted = "tests.tune.fragile_trust:OWN", tmp_path / "mark", threading.Event()
    base = BASE.model_copy(update={"options": {kind: {"mark": str(mark), "how": "sleeps"}}})
    point = Space.of({"kind": [kind], "class_weight": [0.0]}, base, stored=("output_last",)).point(kind, {})

    def interrupt() -> None:
        while not mark.is_file() or not mark.read_text().isdigit():
            time.sleep(0.1)
        interrupted.set()

    threading.Thread(target=interrupt, daemon=True).start()
    fits = Fits(source, TuneConfig(), tmp_path / "fits")
    with pytest.raises(Stopped), stopped_by(interrupted):
        fits.run("trials", lambda _: point, [Fold(0, 3, 1, 2)], on_done=lambda *_: None)
    until = time.monotonic() + 60
    while is_running := Path(f"/proc/{mark.read_text()}").exists():
        if time.monotonic() > until:
            break
        time.sleep(0.2)
    assert not is_running
