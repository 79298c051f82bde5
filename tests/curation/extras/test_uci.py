"""An engine's values of moves: the protocol by a small engine of our own, faults, and Stockfish on ten positions."""

import stat
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from curation.errors import ConfigError, RowError
from curation.extras.analyze import value_moves as uci
from curation.extras.analyze.config import EngineConfig
from curation.extras.analyze.value_moves import (
    MATE,
    UciEngine,
    Value,
    compare_moves,
    find_engine,
    to_centipawns,
)

ENGINE = Path(__file__).parents[2] / "material_engine.py"
TAKES = "3q2k1/5pp1/7p/8/8/8/5PPP/3Q2K1 w - - 0 1"
MATES = "k7/8/K7/8/8/8/7Q/6R1 w - - 0 1"


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program that runs the small engine."""
    path = tmp_path_factory.mktemp("engine") / "material"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ENGINE}"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_move_is_worth_what_its_mover_has_after_the_best_reply(material: str) -> None:
    with UciEngine(EngineConfig(path=material)) as engine:
        assert engine.name == "Material 1"
        assert engine.value(TAKES, "d1d8") == Value(900, None)  # the reply takes nothing
        assert engine.value(TAKES, "h2h3") == Value(-900, None)  # the reply takes the queen
        assert engine.value(TAKES, "g1f1") == Value(None, -1)  # it takes the queen with mate
        black = "3q2k1/5pp1/7p/8/8/8/5PPP/3Q2K1 b - - 0 1"
        assert engine.value(black, "d8d1") == Value(None, 0)  # to the side that moves, whichever it is
        assert engine.value(black, "h6h5") == Value(-900, None)
        assert engine.value("6k1/8/8/8/7N/8/r4PPP/6K1 w - - 0 1", "h4g6") == Value(None, -1)
        assert engine.value(MATES, "g1g8") == Value(None, 0)
        assert engine.value(MATES, "h2b2") == Value(0, None)  # stalemate, which no engine is asked about
        with pytest.raises(RowError, match=r"illegal_move: 'a1a2'"):
            engine.value(MATES, "a1a2")


@pytest.mark.long
def test_a_search_that_hangs_or_ends_the_engine_costs_its_row_alone(material: str) -> None:
    with UciEngine(EngineConfig(path=material, options={"Hang": "d8", "Die": "d4"}, timeout_seconds=2.0)) as engine:
        began = time.monotonic()
        with pytest.raises(RowError, match=r"engine_timeout: no answer within 2 s"):
            engine.value(TAKES, "d1d8")
        assert time.monotonic() - began < 8
        with pytest.raises(RowError, match="engine_failed: EngineTerminatedError"):
            engine.value("4k3/8/8/8/8/8/3Q4/4K3 w - - 0 1", "d2d4")
        assert engine.value("4k3/8/8/8/8/8/3Q4/4K3 w - - 0 1", "d2d3") == Value(900, None)


def test_an_engine_that_fails_again_and_again_is_given_up(material: str) -> None:
    with UciEngine(EngineConfig(path=material, options={"Die": "d4"})) as engine:
        for kind in ("engine_failed", "engine_failed", "engine_failed", "engine_given_up"):
            with pytest.raises(RowError) as raised:
                engine.value("4k3/8/8/8/8/8/3Q4/4K3 w - - 0 1", "d2d4")
            assert raised.value.kind == kind


def test_a_program_that_is_no_engine_is_a_mistake(material: str, tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(ConfigError, match=r"analyze\.engine\.path: no program 'no-such-engine'.*apt-get install"):
        find_engine("no-such-engine")
    with pytest.raises(ConfigError, match=r"no program '.*/none'"):
        find_engine(str(tmp_path / "none"))
    with monkeypatch.context() as short:
        short.setattr(uci, "START_SECONDS", 0.5)
        with pytest.raises(ConfigError, match=r"cat gave no answer to `uci` within 0\.5 s"):
            UciEngine(EngineConfig(path="/bin/cat"))
    with pytest.raises(ConfigError, match="does not work as a UCI engine"):
        UciEngine(EngineConfig(path="/bin/false"))
    with pytest.raises(ConfigError, match="Nonsense"):
        UciEngine(EngineConfig(path=material, options={"Nonsense": 1}))


def test_gaps_are_shares_means_and_bins() -> None:
    centipawns = np.array([300, -50, 40, np.nan, np.nan, 20_000])
    mate = np.array([np.nan, np.nan, np.nan, 0, -2, np.nan])
    assert to_centipawns(centipawns, mate).tolist() == [300, -50, 40, MATE, -MATE, MATE]
    gold = np.array([300, 300, MATE, 0, MATE, 100])
    chosen = np.array([260, 400, MATE, -MATE, 500, 1_150])
    found = compare_moves(gold, chosen, equal_within=50)  # gaps 40, -100, 0, 10,000, 9,500, -1,050
    counts = {key: round(6 * found[key]["value"]) for key in ("stronger", "equal_or_stronger")}
    assert counts == {"stronger": 2, "equal_or_stronger": 4}
    assert found["winning_mates"]["value"] == pytest.approx(1 / 6)
    assert found["gold_winning_mates"]["value"] == pytest.approx(2 / 6)
    assert found["mean_gap"]["value"] == pytest.approx((40 - 100 + 0 + 1_000 + 1_000 - 1_000) / 6)
    assert sum(found["counts"]) == 6 and found["counts"][0] == 1 and found["counts"][-1] == 2
    nothing = compare_moves(np.zeros(0, np.int64), np.zeros(0, np.int64), equal_within=50)
    assert nothing["n"] == 0 and nothing["stronger"] is None and nothing["mean_gap"] is None


HAND_CHECKED = (
    # position, gold move, weak move, least and largest gap in centipawns: why
    ("6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1", "a1a8", "a1a7", 9_000, 10_000),  # mate on the back rank, or a rook ahead
    ("6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1", "a1a7", "a1a8", -10_000, -9_000),  # the same, and gold is the weaker move
    (MATES, "g1g8", "h2h8", 0, 0),  # both mate at once: a rook or a queen on the eighth rank
    (MATES, "g1g8", "h2h7", 0, 0),  # mate, or Kb8 Rg8 mate: a slower mate is a mate
    (MATES, "g1g8", "h2b2", 10_000, 10_000),  # mate, or stalemate
    (TAKES, "d1d8", "h2h3", 600, 2_000),  # takes the queen, or lets it take ours (some four pawns each to 15.1)
    ("8/8/4k3/8/8/3KB3/8/8 w - - 0 1", "e3f4", "e3d2", 0, 0),  # a bishop cannot mate: a draw by rule
    ("8/8/4k3/7r/8/3K4/8/R7 w - - 0 1", "a1a6", "a1a2", -30, 30),  # rook against rook: a draw either way
    ("8/P7/8/8/8/6k1/8/K7 w - - 0 1", "a7a8q", "a7a8n", 300, 10_000),  # a queen wins, a knight cannot
    ("6k1/5ppp/8/8/8/8/r4PPP/1R4K1 w - - 0 1", "b1b8", "b1b7", 20_000, 20_000),  # mates, or Ra1 Rb1 Rxb1 mates us
)


def test_stockfish_on_positions_checked_by_hand() -> None:
    try:
        find_engine("stockfish")
    except ConfigError:
        pytest.skip("Stockfish is not installed: apt-get install stockfish")
    found = []
    for backwards in (False, True):  # the order in which it is asked changes nothing
        with UciEngine(EngineConfig(nodes=20_000)) as engine:
            asked = list(enumerate(HAND_CHECKED))[:: -1 if backwards else 1]
            found.append({at: (engine.value(row[0], row[1]), engine.value(row[0], row[2])) for at, row in asked})
    assert found[0] == found[1]
    for at, (fen, gold, weak, low, high) in enumerate(HAND_CHECKED):
        numbers = np.array([[np.nan if part is None else part for part in value] for value in found[0][at]])
        gold_value, weak_value = to_centipawns(numbers[:, 0], numbers[:, 1])
        assert low <= gold_value - weak_value <= high, (fen, gold, weak, found[0][at])
