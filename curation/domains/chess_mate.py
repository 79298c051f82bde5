"""Mate in one: positions of chess in which every mating move is right.

The gold label is computed from the position, so it is exact and complete, and rows are without limit. It holds all
mating moves in UCI notation, sorted, with a space between them; a label is right if it is one of them. Prompt, answer
and parser are those of the chess domain.
"""

from collections.abc import Mapping

import chess

from curation.domains import Example
from curation.domains.chess import Chess, cell, read_fen, whole_number
from curation.errors import RowError
from curation.escaping import quoted
from curation.hashing import derive
from curation.json_types import Json


class ChessMate(Chess):
    """The domain of mate in one.

    A row has a position, ``fen``, with the solver to move. Where it has ``moves`` too, it is a Lichess puzzle, whose
    first move is the opponent's. The difficulty is the number of legal moves, because only puzzles have a rating.
    """

    name = "chess_mate"
    forms = (("fen",), ("FEN",))

    def read(self, raw: Mapping[str, object]) -> Json:
        """The position that the solver sees, as FEN, and the rating if the row has one.

        Raises:
            RowError: as :meth:`curation.domains.chess.Chess.read`.
        """
        if cell(raw, "moves"):
            return super().read(raw)
        return {"fen": read_fen(cell(raw, "fen")).fen(en_passant="fen"), "rating": whole_number(cell(raw, "rating"))}

    def gold(self, raw: Mapping[str, object]) -> str:
        """All mating moves in UCI notation, sorted, with a space between them.

        Raises:
            RowError: as :meth:`read`; ``no_mate`` if no move mates.
        """
        board = read_fen(self.read(raw)["fen"])
        if not (mates := sorted(move.uci() for move in mating_moves(board))):
            raise RowError(f"no_mate: no move mates in {quoted(board.fen(), 100)}")
        return " ".join(mates)

    def answer(self, label: str, example: Example) -> str:
        """One move after a space; of several mating moves one that is drawn by a hash of the position."""
        moves = label.split()
        return f" {moves[derive(0, example['fen']) % len(moves)]}"

    def is_correct(self, label: str | None, gold: str) -> bool:
        """Whether the move is one of the mating moves."""
        return label in gold.split()

    def difficulty(self, example: Example) -> float | None:
        """The number of legal moves."""
        return float(read_fen(example["fen"]).legal_moves.count())


def mating_moves(board: chess.Board) -> list[chess.Move]:
    """The legal moves that mate.

    Only moves that may give check are tried: to a square from which the piece attacks the king, of a piece that stands
    between the king and a slider (a discovered check), promotions, castling and captures en passant.
    """
    king = board.king(not board.turn)
    if king is None:
        return []
    own, occupied = board.occupied_co[board.turn], board.occupied
    straight, diagonal = _lines(king, occupied)
    tried = {*board.generate_castling_moves(), *board.generate_legal_ep()}
    for pieces, squares in (
        (board.pawns, chess.BB_PAWN_ATTACKS[not board.turn][king] | chess.BB_BACKRANKS),
        (board.knights, chess.BB_KNIGHT_ATTACKS[king]),
        (board.bishops, diagonal),
        (board.rooks, straight),
        (board.queens, straight | diagonal),
        (_discoverers(board, king, own & (straight | diagonal)), chess.BB_ALL),
    ):
        tried.update(board.generate_legal_moves(pieces & own, squares))
    return [move for move in tried if _mates(board, move)]


def _lines(square: chess.Square, occupied: chess.Bitboard) -> tuple[chess.Bitboard, chess.Bitboard]:
    """The squares from which a rook and a bishop attack the square."""
    files = chess.BB_FILE_ATTACKS[square][chess.BB_FILE_MASKS[square] & occupied]
    ranks = chess.BB_RANK_ATTACKS[square][chess.BB_RANK_MASKS[square] & occupied]
    return files | ranks, chess.BB_DIAG_ATTACKS[square][chess.BB_DIAG_MASKS[square] & occupied]


def _discoverers(board: chess.Board, king: chess.Square, nearest: chess.Bitboard) -> chess.Bitboard:
    """Pieces nearest to the king behind which an own slider stands."""
    own, found = board.occupied_co[board.turn], chess.BB_EMPTY
    for square in chess.scan_forward(nearest):
        straight, diagonal = _lines(king, board.occupied ^ chess.BB_SQUARES[square])
        if own & (straight & (board.rooks | board.queens) | diagonal & (board.bishops | board.queens)):
            found |= chess.BB_SQUARES[square]
    return found


def _mates(board: chess.Board, move: chess.Move) -> bool:
    board.push(move)
    mates = board.is_checkmate()
    board.pop()
    return mates
