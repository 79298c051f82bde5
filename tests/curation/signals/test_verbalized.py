"""What replies to the question for a confidence are read as."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curation.signals.verbalized import WORDS, parse_confidence


@pytest.mark.parametrize(
    ("text", "confidence"),
    [
        ("85%", 0.85),
        ("0.85", 0.85),
        ("85", 0.85),
        ("85/100", 0.85),
        (" 85 %\n", 0.85),
        ("100 %!", 1.0),
        ("0%", 0.0),
        ("0.5%", 0.005),
        ("1", 1.0),
        ("1%", 0.01),
        ("85\\%", 0.85),
        ("\uff18\uff15\uff05", 0.85),
        ("99,9 %", 0.999),
        ("0,85", 0.85),
        (".7", 0.7),
        ("1e-3", 0.001),
        ("about 0.7.", 0.7),
        ("Hmm...85%", 0.85),
        ("**85**", 0.85),
        ("- 85%", 0.85),
        ("Confidence-85", 0.85),
        ("I'm 90 percent sure", 0.9),
        ("I am 90 per cent sure", 0.9),
        ("8 out of 10", 0.8),
        ("4 of 5", 0.8),
        ("½", 0.5),
        ("50/50", 0.5),
        ("Confidence: High", 0.7),
        ("very low", 0.1),
        ("Low.", 0.3),
        ("Medium", 0.5),
        ("I am fairly confident", 0.7),
        ("Highly likely", 0.9),
        ("high (85%)", 0.85),
        ("e4, high", 0.7),
        ("85%. Question 2: is it 10%?", 0.85),
        ("20% or higher", 0.2),
    ],
)
def test_a_confidence_is_read(text: str, confidence: float) -> None:
    assert parse_confidence(text) == pytest.approx(confidence, abs=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        *("", "   ", "maybe banana", "e2e4", "1st", "0x1F", "ninety", "\ud800", "nan", "inf", "%", "/"),
        *("-5%", "\u22125%", "(-0.5)", "150%", "101", "1e9", "1e999999", "1,000%", "1.2.3", "9" * 5000),
        *("12/8", "5/0", "3 out of 0", "80-90%", "80% to 90%", "0.8 \u2013 0.9", "(0-100): 85", "80 or 90"),
        *("not sure", "I'm not very confident", "I don\u2019t think it is high", "high or low", "very high, then high"),
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    assert parse_confidence(text) is None


@given(st.one_of(st.text(), st.text(alphabet="0123456789.,%/-\u2212e +outfand½\u0663%\n", max_size=30)))
@settings(max_examples=500, deadline=None)
def test_any_text_gives_a_confidence_or_none(text: str) -> None:
    confidence = parse_confidence(text)
    assert confidence is None or 0 <= confidence <= 1


@given(
    st.integers(0, 1000), st.sampled_from(["{:.1f}%", "My answer: {:.1f} percent", "{:.1f}/100", "{:.1f} out of 100"])
)
@settings(max_examples=200, deadline=None)
def test_a_stated_percentage_is_read_as_it_is(tenths: int, form: str) -> None:
    text = form.format(tenths / 10)
    expected = 0.5 if re.fullmatch(r"50\.0\D+100", text) else tenths / 1000
    assert parse_confidence(text) == pytest.approx(expected, abs=1e-9)


def test_words_have_levels() -> None:
    for word, shift in WORDS.items():
        assert parse_confidence(f"It is {word}.") == pytest.approx(0.5 + shift)
        assert parse_confidence(f"It is very {word}.") == pytest.approx(0.5 + 2 * shift)


@pytest.mark.parametrize(
    "text", ["1" + " " * 10**6, "1.1" * 10**6 + "x", "very " * 10**5, "-" * 10**6, "1 of " * 10**5]
)
def test_long_replies_take_linear_time(text: str) -> None:
    parse_confidence(text)
