import re

import chess
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curation.config import DomainConfig
from curation.domains import Vocabulary, get_domain
from curation.domains.chess import CUE, Chess
from curation.errors import ConfigError, RowError
from curation.models import UNKNOWN, load_tokenizer

DOMAIN = Chess()
START = "r3k2r/pppq1ppp/8/3pP3/8/8/PPPQ1PPP/R3K2R w KQkq d6 0 12"
PROMOTION = "3r2k1/P7/8/8/8/8/6K1/8 w - - 0 40"


def example(fen: str, rating: int | None = None) -> dict:
    return {"fen": fen, "rating": rating}


def test_the_papers_own_position_reads_as_the_paper_prints_it():
    prompt = DOMAIN.prompt(example("5rk1/p5pp/8/2p1q3/3p4/3Q4/PPP3PP/R1B3K1 b - - 3 21"))
    assert prompt == (
        "Side to move: Black\n"
        "Castling rights: -\n"
        "En passant: -\n"
        "Halfmove: 3 Fullmove: 21\n"
        "White: a1 Rook; c1 Bishop; g1 King; a2 Pawn; b2 Pawn; c2 Pawn; g2 Pawn; h2 Pawn; d3 Queen\n"
        "Black: d4 Pawn; c5 Pawn; e5 Queen; a7 Pawn; g7 Pawn; h7 Pawn; f8 Rook; g8 King\n"
        "Best move:"
    )


def test_the_first_move_is_played_and_the_second_is_gold(puzzles):
    for raw in puzzles:
        first, second = raw["moves"].split()[:2]
        board = chess.Board(raw["fen"])
        board.push(chess.Move.from_uci(first))
        seen = DOMAIN.read(raw)
        assert seen["fen"] == board.fen(en_passant="fen") and seen["rating"] == raw["rating"]
        assert DOMAIN.gold(raw) == second and chess.Move.from_uci(second) in board.legal_moves


def test_rows_as_lichess_publishes_them_read_as_ours(puzzles):
    raw = puzzles[0]
    assert DOMAIN.gold({**raw, "moves": raw["moves"].split()}) == DOMAIN.gold(raw)
    published = {"PuzzleId": "0009B", "FEN": raw["fen"], "Moves": raw["moves"], "Rating": raw["rating"], "Themes": ""}
    assert set(DOMAIN.forms[1]) <= set(published)
    assert DOMAIN.read(published) == DOMAIN.read(raw) and DOMAIN.gold(published) == DOMAIN.gold(raw)
    assert DOMAIN.read(published | {"Rating": "1112"})["rating"] == 1112  # of a CSV file
    with pytest.raises(RowError, match="null_field: fen"):
        DOMAIN.read(published | {"FEN": None})


def test_what_the_pool_keeps_depends_on_neither_the_gold_move_nor_what_follows(puzzles):
    assert DOMAIN.columns.names == ["fen", "rating"]
    for raw in puzzles[::10]:
        seen = DOMAIN.read(raw)
        assert list(seen) == DOMAIN.columns.names
        board = chess.Board(seen["fen"])
        gold = DOMAIN.gold(raw)
        others = [move.uci() for move in board.legal_moves if move.uci() != gold]
        opponents = raw["moves"].split()[0]
        for moves in [opponents, *(f"{opponents} {other}" for other in others[:2])]:
            assert DOMAIN.read(raw | {"moves": moves, "gold": "a1a1", "themes": "mateIn1"}) == seen
        assert gold not in DOMAIN.prompt(seen)


def test_a_row_that_ends_after_the_opponents_move_has_no_gold():
    raw = {"fen": chess.STARTING_FEN, "moves": "e2e4"}
    assert DOMAIN.gold(raw) is None and DOMAIN.read(raw)["rating"] is None


@pytest.mark.parametrize(
    ("move", "castling", "en_passant"),
    [
        ("e1e2", "kq", "-"),
        ("h1g1", "Qkq", "-"),
        ("a1b1", "Kkq", "-"),
        ("a2a4", "KQkq", "a3"),  # FEN's own string: no black pawn could take there
        ("a2a3", "KQkq", "-"),
    ],
)
def test_castling_and_en_passant_are_fens_own_strings(move: str, castling: str, en_passant: str):
    prompt = DOMAIN.prompt(DOMAIN.read({"fen": START, "moves": move}))
    assert f"\nCastling rights: {castling}\nEn passant: {en_passant}\n" in prompt
    assert prompt.startswith("Side to move: Black\n")


def test_en_passant_of_the_side_to_move_is_shown_and_can_be_taken():
    seen = DOMAIN.read({"fen": START.replace(" w ", " b ").replace("d6", "-"), "moves": "f7f5"})
    assert "\nEn passant: f6\nHalfmove: 0 Fullmove: 13\n" in DOMAIN.prompt(seen)
    assert DOMAIN.parse(" e5f6", seen) == "e5f6" and DOMAIN.parse(" exf6", seen) == "e5f6"


def test_demonstrations_stand_before_the_prompt_with_their_answers():
    shot, asked = example(START) | {"gold": "e1g1"}, example(PROMOTION)
    assert DOMAIN.prompt(asked, shots=[shot]) == f"{DOMAIN.prompt(shot)} e1g1\n\n{DOMAIN.prompt(asked)}"
    assert DOMAIN.prompt(shot).endswith(CUE)  # an example's gold is never in its own prompt


@pytest.mark.parametrize(
    ("completion", "label"),
    [
        (" e1g1", "e1g1"),
        ("E1G1", "e1g1"),
        ("  e1g1 wins the exchange", "e1g1"),
        ("\ne1g1\nd2d5", "e1g1"),
        ("O-O", "e1g1"),
        ("0-0-0", "e1c1"),
        ("O-O+", "e1g1"),
        ("Qxd5", "d2d5"),
        ("Qxd5+", "d2d5"),
        ("Qxd5# is mate", "d2d5"),
        ("exd6", "e5d6"),
        ("a4", "a2a4"),
    ],
)
def test_moves_in_uci_and_in_san_are_read(completion: str, label: str):
    assert DOMAIN.parse(completion, example(START)) == label


@pytest.mark.parametrize(
    ("completion", "label"),
    [
        (" a7a8q", "a7a8q"),
        ("A7A8N", "a7a8n"),
        ("a8=Q", "a7a8q"),
        ("a8=R+", "a7a8r"),
        ("axd8", None),
        ("a7a8", None),  # which piece is not said
        ("a7a8k", None),
    ],
)
def test_promotions_are_read(completion: str, label: str | None):
    assert DOMAIN.parse(completion, example(PROMOTION)) == label


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "   \n ",
        "e2e4",  # nothing stands there
        "e8g8",  # the other side's
        "d2d8",  # through a piece
        "Rd1+x",
        "Nf3",
        "e9e5",
        "e1",
        "the move is e1g1",
        "K",
        "é",
    ],
)
def test_illegal_and_unreadable_answers_are_unparsed(completion: str):
    assert DOMAIN.parse(completion, example(START)) is None


@pytest.mark.parametrize("completion", ["0000", "--", "Z0", "@@@@"])
def test_passing_is_no_move(completion: str):
    assert DOMAIN.parse(completion, example(START)) is None
    with pytest.raises(RowError, match=r"^illegal_move: "):
        DOMAIN.read({"fen": START, "moves": f"{completion} e8g8"})
    with pytest.raises(RowError, match=r"^illegal_move: "):
        DOMAIN.gold({"fen": START, "moves": f"e1g1 {completion}"})


def test_an_ambiguous_san_answer_is_unparsed():
    rooks = example("6k1/8/8/8/8/6K1/8/R4R2 w - - 0 1")
    assert DOMAIN.parse("Rd1", rooks) is None
    assert DOMAIN.parse("Rad1", rooks) == "a1d1"


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=12) | st.text(alphabet="abcdefgh12345678qrnkO-x=+# ", max_size=8))
def test_a_label_is_a_legal_move_whatever_the_completion(text: str):
    label = DOMAIN.parse(text, example(START))
    if label is not None:
        assert chess.Move.from_uci(label) in chess.Board(START).legal_moves


def test_gold_answers_and_their_san_are_right(puzzles):
    for raw in puzzles[::5]:
        seen, gold = DOMAIN.read(raw), DOMAIN.gold(raw)
        san = chess.Board(seen["fen"]).san(chess.Move.from_uci(gold))
        for completion in (DOMAIN.answer(gold, seen), san, san.rstrip("+#"), gold.upper()):
            assert DOMAIN.is_correct(DOMAIN.parse(completion, seen), gold)


def test_only_the_gold_move_is_right_and_unparsed_is_wrong():
    assert DOMAIN.is_correct("e1g1", "e1g1")
    assert not DOMAIN.is_correct("e1c1", "e1g1") and not DOMAIN.is_correct(None, "e1g1")


GOOD = {"fen": START, "moves": "e1g1 e8g8", "rating": 1500}


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"fen": None}, "null_field"),
        ({"fen": "  "}, "null_field"),
        ({"fen": 7}, "null_field"),
        ({"moves": None}, "null_field"),
        ({"moves": " "}, "null_field"),
        ({"fen": "no position"}, "bad_fen"),
        ({"fen": "8/8/8/8/8/8/8 w - - 0 1"}, "bad_fen"),
        ({"fen": "4k3/8/8/8/8/8/8/8 w - - 0 1"}, "bad_fen"),  # no white king
        ({"fen": START.replace("d6", "d9")}, "bad_fen"),
        ({"fen": START.replace("PPPQ1PPP", "PPPQKPPP")}, "bad_fen"),  # two white kings
        ({"fen": "4k2P/8/8/8/8/8/8/4K3 w - - 0 1"}, "bad_fen"),  # a pawn on the last rank
        ({"fen": "4k3/8/8/8/PPPPPPPP/PPPPPPPP/8/4K3 w - - 0 1"}, "bad_fen"),  # sixteen pawns
        ({"fen": "4k3/8/8/8/8/8/8/4RK2 w - - 0 1"}, "bad_fen"),  # Black is in check, White moves
        ({"fen": "x" * 10**6}, "bad_fen"),
        ({"moves": "e1e3 e8g8"}, "illegal_move"),
        ({"moves": "castles"}, "illegal_move"),
        ({"rating": "strong"}, "bad_rating"),
        ({"rating": float("nan")}, "bad_rating"),
        pytest.param({"rating": float("inf")}, "bad_rating"),
        ({"rating": [1500]}, "bad_rating"),
        ({"rating": 1500.5}, "bad_rating"),
        ({"rating": True}, "bad_rating"),
    ],
)
def test_kinds_of_bad_rows(change: dict, kind: str):
    with pytest.raises(RowError) as caught:
        DOMAIN.read(GOOD | change)
    assert caught.value.kind == kind and len(str(caught.value)) < 400


def test_ratings_of_a_column_with_nulls_are_whole():
    assert [DOMAIN.read(GOOD | {"rating": rating})["rating"] for rating in (1500.0, "1500.0", "1500")] == [1500] * 3


def test_an_illegal_gold_move_is_named_as_such():
    with pytest.raises(RowError, match="the gold move 'e8e6'") as caught:
        DOMAIN.gold(GOOD | {"moves": "e1g1 e8e6"})
    assert caught.value.kind == "illegal_move"
    assert DOMAIN.read(GOOD | {"moves": "e1g1 e8e6"})["rating"] == 1500  # the pool never looks at it


def test_examples_fit_the_domains_columns(puzzles):
    table = pa.Table.from_pylist([DOMAIN.read(raw) for raw in puzzles[:50]], schema=DOMAIN.columns)
    assert [DOMAIN.difficulty(row) for row in table.to_pylist()] == [float(raw["rating"]) for raw in puzzles[:50]]
    assert DOMAIN.difficulty(example(START)) is None
    assert DOMAIN.read(GOOD | {"rating": "1500"})["rating"] == 1500  # CSV has no numbers


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return DOMAIN.vocabulary()


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    return load_tokenizer(tiny_model)


@pytest.mark.parametrize("num_rows", [1_000, pytest.param(None, marks=pytest.mark.slow)])
def test_the_vocabulary_covers_the_shipped_prompts_in_about_forty_tokens(
    puzzle_file, vocabulary: Vocabulary, tokenizer, num_rows: int | None
):
    raws = pq.read_table(puzzle_file).slice(0, num_rows).to_pylist()
    prompts = [DOMAIN.prompt(DOMAIN.read(raw)) for raw in raws]
    golds = [DOMAIN.gold(raw) for raw in raws]
    unknown = tokenizer.convert_tokens_to_ids(UNKNOWN)
    encoded = tokenizer([prompt + DOMAIN.answer(gold, {}) for prompt, gold in zip(prompts, golds, strict=True)])[
        "input_ids"
    ]
    assert not any(unknown in ids for ids in encoded)
    left = {re.sub(vocabulary.pattern, "", prompt) for prompt in prompts}
    assert set("".join(left)) <= set(" ;\n")  # what no token stands for is separators alone
    assert 30 < sum(map(len, encoded)) / len(encoded) < 50 and max(map(len, encoded)) <= 70
    alone = tokenizer(prompts)["input_ids"]
    for raw, whole, ids, gold in zip(raws, encoded, alone, golds, strict=True):
        answer = whole[len(ids) :]
        assert whole[: len(ids)] == ids and len(answer) == (3 if len(gold) == 5 else 2)
        assert DOMAIN.parse(tokenizer.decode(answer), DOMAIN.read(raw)) == gold


def test_different_positions_make_different_tokens(puzzles, tokenizer):
    prompts = {DOMAIN.prompt(DOMAIN.read(raw)) for raw in puzzles}
    assert len({tuple(tokenizer(prompt)["input_ids"]) for prompt in prompts}) == len(prompts)


def test_every_word_is_one_token_of_its_own(vocabulary: Vocabulary, tokenizer):
    assert len(set(vocabulary.words)) == len(vocabulary.words)
    for word in vocabulary.words:
        assert tokenizer.tokenize(word) == [word]
    moves = {f"{a}{b}{promotion}" for a in ("a1", "h7") for b in ("h8", "b2") for promotion in ("", *"qrbn")}
    for move in moves:
        assert tokenizer.decode(tokenizer(DOMAIN.answer(move, {}))["input_ids"]) == move


def test_domains_are_found_by_name_and_as_users_own_classes():
    assert isinstance(get_domain(DomainConfig(name="chess")), Chess)
    assert isinstance(get_domain(DomainConfig(name="curation.domains.chess:Chess")), Chess)
    for name in ("ches", "curation.domains.chess:Nothing", "no.such.module:Chess", "a:b:c", ""):
        with pytest.raises(ConfigError, match=r"domain: no domain is (called|at) "):
            get_domain(DomainConfig(name=name))


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"name": "chess", "variant": "960"}, r"domain: 'chess' cannot be made with variant: '960'"),
        (
            {"name": "mcqa", "option_style": "words"},
            r"'mcqa' cannot be made with option_style: 'words': .*'letters' or 'texts'",
        ),
        ({"name": "math", "timeout": 0}, r"'math' cannot be made with timeout: 0: .*greater than 0"),
    ],
)
def test_domain_options_that_its_class_does_not_take_are_refused(config: dict, told: str):
    with pytest.raises(ConfigError, match=told):
        get_domain(DomainConfig(**config))


def test_domain_answers_are_written_and_none_is_chosen_from_options():
    assert DOMAIN.options(example(START)) is None
    assert DOMAIN.answer("e1g1", example(START)) == " e1g1"
