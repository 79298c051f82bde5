import random

import chess
import pytest

from curation.config import DomainConfig
from curation.domains import get_domain
from curation.domains.chess import Chess, ChessMate, find_mating_moves
from curation.errors import RowError

DOMAIN = ChessMate()
BACK_RANK = "6k1/5ppp/8/8/8/8/8/R3R1K1 w - - 0 1"  # either rook mates


def brute_force(board: chess.Board) -> set[chess.Move]:
    found = set()
    for move in list(board.legal_moves):
        board.push(move)
        if board.is_checkmate():
            found.add(move)
        board.pop()
    return found


@pytest.mark.parametrize(
    ("fen", "mates"),
    [
        (BACK_RANK, {"a1a8", "e1e8"}),
        ("6k1/5ppp/8/8/8/8/8/6K1 w - - 0 1", set()),
        ("5k2/8/8/8/8/8/4R1R1/4K2R w K - 0 1", {"e1g1", "h1f1"}),  # castling
        ("4k3/8/8/3pP1B1/8/7B/8/K3RR2 w - d6 0 1", {"e5d6"}),  # en passant discovers
        ("7k/2P3pp/8/8/8/8/8/6K1 w - - 0 1", {"c7c8q", "c7c8r"}),  # promotion
        ("6rk/6pp/8/6N1/8/8/8/6K1 w - - 0 1", {"g5f7"}),  # smothered
        ("3k4/7R/3K4/8/3N4/8/8/3R4 w - - 0 1", None),
        ("4k3/8/8/8/8/8/8/4K3 w - - 0 1", set()),
    ],
)
def test_mating_moves_of_positions(fen, mates):
    board = chess.Board(fen)
    found = {move.uci() for move in find_mating_moves(board)}
    assert found == {move.uci() for move in brute_force(board)}
    assert board.fen() == chess.Board(fen).fen()
    if mates is not None:
        assert found == mates


def test_mating_moves_are_those_of_brute_force_in_games():
    rng, num_mates = random.Random(3), 0
    for _ in range(12):
        board = chess.Board()
        while not board.is_game_over() and board.ply() < 110:
            if board.ply() > 20:
                expected = brute_force(board)
                assert set(find_mating_moves(board)) == expected, board.fen()
                num_mates += bool(expected)
            moves = list(board.legal_moves)
            captures = [move for move in moves if board.is_capture(move)]
            board.push(rng.choice(captures if board.turn and captures else moves))
    assert num_mates > 5


def test_gold_holds_all_mates_and_each_is_right():
    gold = DOMAIN.gold({"fen": BACK_RANK})
    assert gold == "a1a8 e1e8"
    assert DOMAIN.is_correct("a1a8", gold) and DOMAIN.is_correct("e1e8", gold)
    assert not DOMAIN.is_correct("a1a7", gold) and not DOMAIN.is_correct(None, gold)
    assert not DOMAIN.is_correct("a1a8 e1e8", gold)


def test_the_answer_is_one_mate_always_the_same_and_both_occur():
    example = DOMAIN.read({"fen": BACK_RANK})
    answer = DOMAIN.answer("a1a8 e1e8", example)
    assert answer == DOMAIN.answer("a1a8 e1e8", example)
    assert DOMAIN.is_correct(DOMAIN.parse(answer, example), "a1a8 e1e8")
    drawn = {
        DOMAIN.answer("a1a8 e1e8", DOMAIN.read({"fen": BACK_RANK.replace("0 1", f"{half} 60")})) for half in range(20)
    }
    assert drawn == {" a1a8", " e1e8"}
    assert DOMAIN.answer("e1e8", example) == " e1e8"


def test_a_puzzles_first_move_is_the_opponents():
    raw = {"fen": "6k1/5ppp/8/8/8/8/r7/R3R1K1 b - - 0 1", "moves": "a2b2 a1a8", "rating": 700}
    assert DOMAIN.read(raw) == Chess().read(raw)
    assert DOMAIN.gold(raw) == "e1e8"  # after the other rook mate black interposes


def test_rows_without_a_mate_and_bad_rows_are_refused():
    with pytest.raises(RowError, match="no_mate: no move mates in"):
        DOMAIN.gold({"fen": chess.STARTING_FEN})
    with pytest.raises(RowError, match="bad_fen"):
        DOMAIN.read({"fen": "nothing"})
    with pytest.raises(RowError, match="null_field"):
        DOMAIN.read({"fen": None})


def test_it_is_registered_and_reads_both_forms():
    domain = get_domain(DomainConfig(name="chess_mate"))
    assert isinstance(domain, ChessMate) and ("fen",) in domain.forms
    assert domain.difficulty(domain.read({"fen": BACK_RANK})) == chess.Board(BACK_RANK).legal_moves.count()
