"""A gold label, given as an answer in the form in which the model answers, is right; in every domain."""

import json
import math
from fractions import Fraction

import chess
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from curation.config import DomainConfig
from curation.domains import attempt, get_domain
from curation.domains.mcqa import LETTERS, Mcqa
from curation.domains.pair import FIRST, SECOND
from curation.errors import ConfigError

WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12).filter(str.strip)
MANY = settings(max_examples=200, deadline=None)


def made(name: str, **options: object):
    return get_domain(DomainConfig.model_validate({"name": name, **options}))


def right(domain, raw: dict) -> str:
    """The gold label of a row, which is right as an answer."""
    example, gold = domain.read(raw), domain.gold(raw)
    label = domain.parse(domain.answer(gold, example), example)
    assert domain.is_correct(label, gold), (gold, label)
    assert domain.gold_problem(gold, example) == ""
    return gold


@pytest.mark.long
@MANY
@given(
    choices=st.lists(WORDS, min_size=2, max_size=8),
    place=st.integers(0, 7),
    way=st.sampled_from(["letter", "text", "number_from_0", "number_from_1"]),
    options=st.sampled_from([{}, {"option_style": "texts"}, {"generative": True}]),
)
def test_mcqa(choices: list[str], place: int, way: str, options: dict):
    assume(place < len(choices))
    answers = {"letter": LETTERS[place], "text": choices[place], "number_from_0": place, "number_from_1": place + 1}
    raw = {"question": "q?", "choices": choices, "answer": answers[way]}
    domain = Mcqa(answer_is=way, **options)
    assume(attempt(domain.read, raw)[0] is not None)
    assert right(domain, raw) == LETTERS[place]
    alone = attempt(Mcqa().gold, raw)[0]
    assert way == "number_from_1" or alone in (None, LETTERS[place]) or way in ("letter", "text")


@MANY
@given(value=st.fractions(-(10**6), 10**6, max_denominator=10**4), data=st.data())
def test_math_numbers_as_they_are_written(value: Fraction, data: st.DataObject):
    """In each writing the gold label is right as an answer, and so is the number as LaTeX."""
    plain = rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    writings = [f"{value.numerator}/{value.denominator}", plain, f"${plain}$", rf"\boxed{{{plain}}}", f"**{plain}**"]
    if value.denominator == 1:
        whole = value.numerator
        short = f"{whole:.4e}" if abs(whole) < 10**5 else f"{whole}"
        writings += [whole, float(whole), f"{whole:,}", f"{whole:_}", short, f"{whole} kg"]
        writings += [f"It is {whole}, after all the sums of it.\n#### {whole}", f"The answer is: {whole}."]
    elif abs(value) > 1 and value.denominator != 1:
        whole, part = divmod(abs(value), 1)
        writings.append(f"{'-' * (value < 0)}{whole} {part.numerator}/{part.denominator}")
    raw = {"problem": "How many?", "answer": data.draw(st.sampled_from(writings))}
    domain = made("math")
    assert domain.is_correct(plain, right(domain, raw)), raw
    one_more = rf"\frac{{{value.numerator + value.denominator}}}{{{value.denominator}}}"
    assert not domain.is_correct(one_more, domain.gold(raw))


@pytest.mark.long
@MANY
@given(answer=st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=30))
def test_math_texts_equal_themselves_or_are_said_to_be_no_answer(answer: str):
    domain, raw = made("math"), {"problem": "How many?", "answer": answer}
    gold, _ = attempt(domain.gold, raw)
    if gold is not None:
        problem, _ = attempt(domain.gold_problem, gold, domain.read(raw))
        label = domain.parse(domain.answer(gold, {}), {})
        assert (problem == "") == (label is not None and domain.is_correct(label, gold))
        assert problem == "" or set(answer) & set("\\{}")


@MANY
@given(classes=st.lists(WORDS, min_size=2, max_size=5), place=st.integers(0, 4), multi=st.booleans())
def test_classification(classes: list[str], place: int, multi: bool):
    assume(place < len(classes))
    try:
        domain = made("classification", classes=classes, multi=multi)
    except ConfigError:
        return  # two are the same
    right(domain, {"text": "t", "label": [classes[place]] if multi else classes[place]})


@MANY
@given(
    reference=st.one_of(WORDS, st.integers(), st.booleans(), st.lists(st.integers()), st.dictionaries(WORDS, WORDS)),
    check=st.sampled_from(["equal", "normalised", "json", "judge"]),
)
def test_text(reference: object, check: str):
    domain, raw = made("text", prompt="{{ q }}", reference="r", check=check), {"q": "q", "r": reference}
    if check == "json" and isinstance(reference, str):
        raw["r"] = json.dumps(reference)
    right(domain, raw)


@MANY
@given(number=st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)))
def test_text_of_numbers(number: float):
    assume(math.isfinite(number) and abs(number) < 1e200)
    right(made("text", prompt="{{ q }}", reference="r", check="number"), {"q": "q", "r": number})


@MANY
@given(prompt=WORDS, one=WORDS, other=WORDS, by=st.sampled_from(["judge", "likelihood"]), preferred=st.booleans())
def test_pair(prompt: str, one: str, other: str, by: str, preferred: bool):
    assume(one.split() != other.split())
    domain = made("pair", by=by)
    chosen = {"prompt": prompt, "chosen": one, "rejected": other}
    open_pair = {"prompt": prompt, "first": one, "second": other, "preferred": FIRST if preferred else SECOND}
    assert domain.read(chosen)[right(domain, chosen)] == one.strip()
    assert right(domain, open_pair) == (FIRST if preferred else SECOND)


@MANY
@given(moves=st.lists(st.integers(0, 10**6), min_size=2, max_size=20))
def test_chess(moves: list[int]):
    board, played = chess.Board(), []
    for drawn in moves:
        legal = sorted(board.legal_moves, key=str)
        if not legal:
            return
        before = board.fen()
        played.append((before, legal[drawn % len(legal)].uci()))
        board.push(legal[drawn % len(legal)])
    (fen, first), (_, second) = played[-2:]
    assert right(made("chess"), {"fen": fen, "moves": f"{first} {second}"}) == second
