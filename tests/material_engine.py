"""A UCI engine that counts pieces after the best reply, with faults on demand: ``python tests/material_engine.py``.

The option ``Hang`` or ``Die`` names squares: it hangs, or ends, when it is to search a position with a piece there.
"""

import sys
import time

import chess

WORTH = {chess.PAWN: 100, chess.KNIGHT: 300, chess.BISHOP: 300, chess.ROOK: 500, chess.QUEEN: 900, chess.KING: 0}


def material(board: chess.Board, side: chess.Color) -> int:
    """Centipawns of a side's pieces less those of the other one."""
    return sum(WORTH[piece.piece_type] * (1 if piece.color == side else -1) for piece in board.piece_map().values())


def search(board: chess.Board) -> tuple[str, str]:
    """The score as UCI writes it, and the move: the best one after one ply."""
    scored = []
    for move in board.legal_moves:
        board.push(move)
        scored.append((99_999 if board.is_checkmate() else material(board, not board.turn), move.uci()))
        board.pop()
    best, move = max(scored)
    return ("mate 1" if best == 99_999 else f"cp {best}"), move


def main() -> None:
    """Answer commands until ``quit``."""
    faults, board, games = {"Hang": "", "Die": ""}, chess.Board(), 0
    for line in sys.stdin:
        words = line.split()
        match words[0] if words else "":
            case "uci":
                print("id name Material 1\noption name Threads type spin default 8 min 1 max 8")
                print("option name Hang type string default\noption name Die type string default\nuciok", flush=True)
            case "isready":
                print("readyok", flush=True)
            case "ucinewgame":
                games += 1
            case "setoption":
                if words[2] in faults:
                    faults[words[2]] = words[4] if len(words) > 4 else ""
                elif words[2] == "Threads" and words[4] != "1":
                    sys.exit("more than one thread")
            case "position":
                board = chess.Board(" ".join(words[2:8])) if words[1] == "fen" else chess.Board()
                for move in words[words.index("moves") + 1 :] if "moves" in words else ():
                    board.push_uci(move)
            case "go":
                there = {chess.square_name(square) for square in board.piece_map()}
                if faults["Die"] in there:
                    sys.exit(3)
                if faults["Hang"] in there:
                    time.sleep(3600)
                if words[1] != "nodes" or not games:
                    sys.exit("not asked by nodes, or the hash is not cleared")
                score, move = search(board)
                print(f"info depth 1 nodes {words[2]} score {score} pv {move}\nbestmove {move}", flush=True)
            case "quit":
                return


if __name__ == "__main__":
    main()
