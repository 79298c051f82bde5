"""The next token of other domains' texts."""

import pytest

from curation.config import DomainConfig
from curation.domains import get_domain
from curation.errors import ConfigError

MATE = {"fen": "6k1/5ppp/8/8/8/8/5PPP/R5K1 b - - 0 1", "moves": "h7h6 a1a8", "rating": 800}
QUESTION = {"question": "Which is a fruit?", "choices": ["axe", "fig"], "answer": 1}


@pytest.fixture
def chess():
    return get_domain(DomainConfig(name="next_token", of="chess"))


def test_a_text_is_cut_before_one_of_the_answers_tokens(chess, puzzles):
    other = get_domain(DomainConfig(name="chess"))
    cuts = set()
    for raw in puzzles[:200]:
        example, gold, move = chess.read(raw), chess.gold(raw), other.gold(raw)
        text = other.prompt(other.read(raw)) + other.answer(move, {})
        assert text.startswith(chess.prompt(example))
        rest = text[len(chess.prompt(example)) :].lstrip()
        assert rest.startswith(gold) and len(gold) in (1, 2)
        assert chess.parse(rest, example) == gold and chess.is_correct(gold, gold)
        cuts.add(len(example["begun"]))
    assert {0, 3} <= cuts  # before the move, and after its first square


def test_a_continuation_counts_by_its_first_token(chess):
    example = chess.read(MATE)
    assert chess.parse(" a1a8", example) == "a1" and chess.parse("a8", example) == "a8"
    assert chess.parse(" ...", example) is None and not chess.is_correct(None, "a1")


def test_a_puzzle_and_its_text_are_one_question(chess):
    other = get_domain(DomainConfig(name="chess"))
    assert chess.identity(chess.read(MATE)) == other.identity(other.read(MATE))


def test_rows_without_an_answer_have_no_gold_token_and_bad_rows_fail_as_the_other_domains(chess):
    open_row = {**MATE, "moves": "h7h6"}
    assert chess.gold(open_row) is None and chess.read(open_row)["begun"] == ""
    with pytest.raises(Exception, match="bad_fen"):
        chess.read({**MATE, "fen": "nothing"})


def test_another_domain_with_options_of_its_own():
    texts = get_domain(DomainConfig(name="next_token", of={"name": "mcqa", "option_style": "texts"}))
    example, gold = texts.read(QUESTION), texts.gold(QUESTION)
    assert texts.prompt(example).endswith(f"Answer:{example['begun']}") and gold in "fig"
    assert texts.options(example) is None


def test_what_cannot_be_continued_is_refused():
    with pytest.raises(ConfigError, match="continues the texts of another domain"):
        get_domain(DomainConfig(name="next_token", of="next_token"))
    with pytest.raises(ConfigError, match="did you mean 'chess'"):
        get_domain(DomainConfig(name="next_token", of="ches"))
