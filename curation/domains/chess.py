"""Chess puzzles in the Lichess convention (paper, App. "Strategy Games" under evaluation).

The first move of ``moves`` is the opponent's and is played before the puzzle; the second is the gold move. The label is
one move in UCI notation. The paper leaves open, and we chose: UCI, FEN's own strings for castling and en passant (the
square is given after every double step), the cue line, and SAN accepted as an answer.
"""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import chess
import pyarrow as pa

from curation.config.inputs import make_greedy_defaults
from curation.domains import Domain, Example, Identity, Vocabulary
from curation.errors import RowError
from curation.escaping import quote_text
from curation.hashing import derive
from curation.json_types import Json

CUE = "Best move:"
_PIECES = tuple(name.capitalize() for name in chess.PIECE_NAMES[1:] if name)
_IMPOSSIBLE = ~(
    chess.STATUS_BAD_CASTLING_RIGHTS
    | chess.STATUS_INVALID_EP_SQUARE
    | chess.STATUS_IMPOSSIBLE_CHECK
    | chess.STATUS_TOO_MANY_CHECKERS
)
"""Flags of impossible positions; castling and en passant are ignored, as composed puzzles set them freely."""


class Chess(Domain):
    """The chess domain: a prompt of six metadata lines and a cue; the label is one UCI move."""

    name = "chess"
    forms: tuple[tuple[str, ...], ...] = (("fen", "moves"), ("FEN", "Moves"))
    columns = pa.schema([("fen", pa.string()), ("rating", pa.int32())])
    defaults = make_greedy_defaults(8, "strategy_games", stop=("\n",))
    answering = "listed"

    def read(self, raw: Mapping[str, object]) -> Json:
        """Return the position that the solver sees, as FEN, and the puzzle's rating if the row has one."""
        board = read_fen(get_cell(raw, "fen"))
        _push(board, _split_moves(raw)[0], "the opponent's move")
        return {"fen": board.fen(en_passant="fen"), "rating": to_whole_number(get_cell(raw, "rating"))}

    def gold(self, raw: Mapping[str, object]) -> str | None:
        """Return the second move of ``moves`` in UCI notation; ``None`` if the row ends after the opponent's move."""
        moves = _split_moves(raw)
        if len(moves) < 2:
            return None
        board = read_fen(get_cell(raw, "fen"))
        _push(board, moves[0], "the opponent's move")
        return _push(board, moves[1], "the gold move").uci()

    def question(self, example: Example) -> str:
        """Return the position in the paper's wording, one line per field, then the cue line."""
        board = read_fen(example["fen"])
        fields = example["fen"].split()
        lists = {
            colour: "; ".join(
                f"{chess.square_name(square)} {chess.piece_name(piece.piece_type).capitalize()}"
                for square, piece in sorted(board.piece_map().items())
                if piece.color == colour
            )
            for colour in chess.COLORS
        }
        return (
            f"Side to move: {'White' if board.turn else 'Black'}\n"
            f"Castling rights: {fields[2]}\n"
            f"En passant: {fields[3]}\n"
            f"Halfmove: {board.halfmove_clock} Fullmove: {board.fullmove_number}\n"
            f"White: {lists[chess.WHITE]}\n"
            f"Black: {lists[chess.BLACK]}\n"
            f"{CUE}"
        )

    def identity(self, example: Example) -> Identity:
        """Return board, side, castling rights and a usable en-passant square; counters do not change the best move."""
        board, side, castling, square = example["fen"].split()[:4]
        if square != "-" and not read_fen(example["fen"]).has_legal_en_passant():
            square = "-"
        return Identity(f"{board} {side} {castling} {square}")

    def candidates(self, example: Example) -> tuple[str, ...]:
        """Return the legal moves in the order of UCI notation; none begins with another: promotions name the piece."""
        return tuple(sorted(f" {move.uci()}" for move in read_fen(example["fen"]).legal_moves))

    def position(self, example: Example) -> str:
        """Return the position as FEN, in which the row's labels are moves."""
        return str(example["fen"])

    def parse(self, completion: str, example: Example) -> str | None:
        """Return the first word of the first line as a legal move, read as UCI, else as SAN; ``None`` otherwise."""
        words = completion.split()
        if not words:
            return None
        board, word = read_fen(example["fen"]), words[0]
        try:
            is_uci = re.fullmatch(r"[a-h][1-8][a-h][1-8][qrbn]?", word.lower())
            move = board.parse_uci(word.lower()) if is_uci else board.parse_san(word)
            return move.uci() if move else None  # python-chess reads a pass as the null move
        except ValueError:  # the base of python-chess's errors for illegal, ambiguous and unreadable moves
            return None

    def difficulty(self, example: Example) -> float | None:
        """Return the puzzle's Lichess rating (Glicko points)."""
        rating = example.get("rating")
        return None if rating is None else float(rating)

    def vocabulary(self) -> Vocabulary:
        """Return one token per header value, piece on a square, square and promotion: about 40 tokens per position."""
        squares = chess.SQUARE_NAMES
        castling = ["-"] + [
            "".join(flag for bit, flag in enumerate("KQkq") if mask >> bit & 1) for mask in range(1, 16)
        ]
        words = [
            *(f"Side to move: {side}" for side in ("White", "Black")),
            *(f"Castling rights: {rights}" for rights in castling),
            *(f"En passant: {square}" for square in ("-", *(s for s in squares if s[1] in "36"))),
            *("Halfmove:", "Fullmove:", "White:", "Black:", CUE),
            *(f"{square} {piece}" for square in squares for piece in _PIECES),
            *squares,
            *"qrbn",
            *"0123456789",
        ]
        pattern = (
            r"Side to move: (?:White|Black)|Castling rights: [KQkq-]+|En passant: (?:-|[a-h][36])"
            r"|Halfmove:|Fullmove:|White:|Black:|" + re.escape(CUE).replace(r"\ ", " ") + r""
            rf"|[a-h][1-8] (?:{'|'.join(_PIECES)})|[a-h][1-8]|[qrbn]|[0-9]"
        )
        return Vocabulary(words=tuple(words), pattern=pattern)


def get_cell(raw: Mapping[str, object], name: str) -> Any:
    """Return a column by its lower-case name (``fen``) or its published name (``FEN``, ``Moves``, ``Rating``)."""
    published = name.upper() if name == "fen" else name.capitalize()
    return raw.get(name, raw.get(published))


def to_whole_number(rating: Any) -> int | None:
    """Return a rating as a whole number; a column with nulls may hold ``700.0``."""
    if rating is None:
        return None
    with suppress(TypeError, ValueError, OverflowError):
        number = math.nan if isinstance(rating, bool) else float(rating)
        if number.is_integer():
            return int(number)
    raise RowError(f"bad_rating: {quote_text(str(rating))} is not a whole number")


def read_fen(fen: object) -> chess.Board:
    """Return a position; raise ``RowError``: ``null_field``, or ``bad_fen`` for no FEN or one that no game can have."""
    if not isinstance(fen, str) or not fen.strip():
        raise RowError("null_field: fen is empty")
    try:
        board = chess.Board(fen)
    except ValueError as error:
        reason = str(error).partition(":")[0]  # then python-chess repeats the FEN
        raise RowError(f"bad_fen: {quote_text(fen, 100)} ({reason[:100]})") from error
    if status := board.status() & _IMPOSSIBLE:  # python-chess reads many positions that no game can reach
        reasons = ", ".join(str(flag.name).lower().replace("_", " ") for flag in chess.Status if flag & status)
        raise RowError(f"bad_fen: {quote_text(fen, 100)} (no game can have it: {reasons})")
    return board


def _split_moves(raw: Mapping[str, object]) -> list[str]:
    moves = get_cell(raw, "moves")
    words = moves.split() if isinstance(moves, str) else [*map(str, moves)] if isinstance(moves, list) else []
    if not words:
        raise RowError("null_field: moves is empty")
    return words


def _push(board: chess.Board, uci: str, whose: str) -> chess.Move:
    try:
        if move := board.parse_uci(uci):
            board.push(move)
            return move
    except ValueError as error:
        raise RowError(f"illegal_move: {whose} {quote_text(uci)} in {board.fen()!r}") from error
    raise RowError(f"illegal_move: {whose} {uci!r} is a pass")


class ChessMate(Chess):
    """The domain of mate in one: positions of chess in which every mating move is right.

    The gold label holds all mating moves, computed from the position, so it is exact, and rows are unlimited. A row has
    a position, ``fen``, with the solver to move; with ``moves`` it is a Lichess puzzle, whose first move is the
    opponent's. The difficulty is the number of legal moves, because only puzzles have a rating.
    """

    name = "chess_mate"
    forms = (("fen",), ("FEN",))

    def read(self, raw: Mapping[str, object]) -> Json:
        """Return the position that the solver sees, as FEN, and the rating if the row has one."""
        if get_cell(raw, "moves"):
            return super().read(raw)
        return {
            "fen": read_fen(get_cell(raw, "fen")).fen(en_passant="fen"),
            "rating": to_whole_number(get_cell(raw, "rating")),
        }

    def gold(self, raw: Mapping[str, object]) -> str:
        """Return all mating moves in UCI notation, sorted, a space between them; ``RowError`` ``no_mate`` without."""
        board = read_fen(self.read(raw)["fen"])
        if not (mates := sorted(move.uci() for move in find_mating_moves(board))):
            raise RowError(f"no_mate: no move mates in {quote_text(board.fen(), 100)}")
        return " ".join(mates)

    def answer(self, label: str, example: Example) -> str:
        """Return one move after a space; a hash of the position chooses among several mating moves."""
        moves = label.split()
        return f" {moves[derive(0, example['fen']) % len(moves)]}"

    def is_correct(self, label: str | None, gold: str) -> bool:
        """Return whether the move is one of the mating moves."""
        return label in gold.split()

    def difficulty(self, example: Example) -> float | None:
        """Return the number of legal moves."""
        return float(read_fen(example["fen"]).legal_moves.count())


def find_mating_moves(board: chess.Board) -> list[chess.Move]:
    """Return the legal moves that mate."""
    found = []
    for move in board.legal_moves:
        board.push(move)
        if board.is_checkmate():
            found.append(move)
        board.pop()
    return found
