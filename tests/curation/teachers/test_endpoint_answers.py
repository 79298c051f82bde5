"""Answers of servers, read out of JSON: which tokens hold the text, and what is refused."""

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from curation.teachers.completions import AnsweredRow, completion_batch
from curation.teachers.endpoint_answers import (
    TryError,
    Usage,
    check_error,
    compute_negentropy,
    is_other,
    parse_billed_usage,
    read_answer,
    read_json,
    restore_row,
)

USED, MOST = Usage(5, 2), Usage(100, 16)


def completion(text: str, tokens: list[str], *, reason: str = "stop", **logprobs: Any) -> dict[str, Any]:
    found = {
        "tokens": tokens,
        "token_logprobs": [-float(k + 1) for k in range(len(tokens))],
        "top_logprobs": [{"a": -0.5, "b": -1.5}] * len(tokens),
        **logprobs,
    }
    choice = {"text": text, "finish_reason": reason, "logprobs": found}
    return {"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": len(tokens)}}


@pytest.mark.parametrize(
    ("text", "tokens", "reason", "num"),
    [
        (" yes", [" yes", "</s>"], "stop", 1),  # a stop token
        (" yes", [" yes", ""], "stop", 1),
        (" yes\nno"[:4], [" yes", "\n"], "stop", 1),  # a stop string that is a token
        ("f6 B", ["f6 Bishop"], "stop", 1),  # one that begins within the last token, which counts
        ("f6 B", ["f6", " Bis", "hop"], "stop", 2),
        (" yes no", [" yes", " no"], "length", 2),
        ("yes", ["▁yes", "</s>"], "stop", 1),  # pieces that are not the text
        ("", ["</s>"], "stop", 0),
        ("", [], "stop", 0),
    ],
)
def test_the_tokens_that_hold_the_text_count(text: str, tokens: list[str], reason: str, num: int) -> None:
    answer, _ = read_answer(completion(text, tokens, reason=reason), USED)
    assert answer.completion == text and answer.num_output_tokens == num and answer.truncated == (reason == "length")
    assert list(answer.token_logprobs) == [-float(k + 1) for k in range(num)]
    assert (answer.margins is None) == (num == 0)
    if answer.margins is not None:
        assert answer.margins.mean == pytest.approx(1.0)


def test_a_character_of_two_tokens() -> None:
    tokens = [
        {"token": "\ufffd", "bytes": list(part), "logprob": -1.0, "top_logprobs": []} for part in (b"\xc3", b"\xa9")
    ]
    choice = {"message": {"content": "é"}, "finish_reason": "stop", "logprobs": {"content": tokens}}
    answer, _ = read_answer({"choices": [choice]}, USED)
    assert (answer.completion, answer.num_output_tokens, answer.num_prompt_tokens) == ("é", 2, 5)
    assert answer.margins is None


def test_the_answer_within_a_json_object_and_its_tokens() -> None:
    tokens = ['{"', "answer", '":', ' "', "not", " ironic", '"}']
    text = "".join(tokens)
    answer, _ = read_answer(completion(text, tokens), USED, field="answer")
    assert answer.completion == "not ironic" and list(answer.token_logprobs) == [-5.0, -6.0]
    assert read_answer(completion("no JSON", ["no JSON"]), USED, field="answer")[0].completion == "no JSON"


def test_the_entropy_counts_the_rest_as_one_token() -> None:
    shares = np.array([0.5, 0.2, 0.1])
    whole = np.append(shares, 0.2)
    assert compute_negentropy(np.log(shares).tolist()) == pytest.approx(float(whole @ np.log(whole)))
    assert compute_negentropy(np.log([0.25] * 4).tolist()) == pytest.approx(math.log(0.25))
    assert compute_negentropy([0.0, -9999.0]) == pytest.approx(0.0)


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"choices": []},
        {"choices": [{"finish_reason": "stop"}]},
        {"choices": [{"text": ["a"], "finish_reason": "stop"}]},
        {"choices": [{"text": True, "finish_reason": "stop"}]},
        {"choices": True},
        {"choices": ["a"]},
        {"choices": [{"message": True}]},
        completion("a", ["a"], reason="error"),
    ],
)
def test_what_no_answer_is(found: dict[str, Any]) -> None:
    with pytest.raises(TryError):
        read_answer(found, USED)


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[1]", b'{"choices": [', b"\xff\xfe", b"[" * 100_000, b"9" * 5_000, b'{"error": "no"}',
     b'{"error": {"message": "\\ud800", "code": 429}, "choices": []}'],
)  # fmt: skip
def test_bodies_that_are_no_answers(body: bytes) -> None:
    with pytest.raises(TryError) as refused:
        check_error(read_json(body))
    str(refused.value).encode()  # a row can hold it
    assert getattr(refused.value, "status", None) == (429 if b"429" in body else None)


def stored(answer: AnsweredRow) -> dict[str, Any]:
    """The row that an answer becomes."""
    (row,) = completion_batch([answer], states={}, state_dtype="float16", num_token_logprobs=4).to_pylist()
    return dict(row)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (completion("a", ["a"], token_logprobs=[math.nan]), "'NaN' is no log-probability"),
        (completion("a", ["a"], token_logprobs=["x"]), "'x' is no log-probability"),
        (completion("a", ["a"], token_logprobs=[True]), "'true' is no log-probability"),
        (completion("a", ["a"], token_logprobs=[False]), "'false' is no log-probability"),
        (completion("a", ["a"], token_logprobs=[2.0]), "'2.0' is no log-probability"),
        (completion("a", ["a", "b"], token_logprobs=[-1.0]), "log-probabilities cannot be read"),
        (completion("a", ["a"], top_logprobs=[7]), "log-probabilities cannot be read"),
        (completion("a\ud800", ["a"]), "half of a surrogate pair, which is not a character: 'a\\ud800'"),
        ({"choices": [{"message": {"content": "a"}, "logprobs": {"content": [{"bytes": 10**10, "logprob": -1}]}}]},
         "log-probabilities cannot be read"),
        ({"choices": [{"message": {"content": None}, "finish_reason": "\ud800"}]}, "refused: the server gave no text"),
    ],
)  # fmt: skip
def test_answers_that_no_row_can_hold_are_error_rows(found: dict[str, Any], words: str) -> None:
    row = stored(read_answer(found, USED)[0])
    assert words in row["error"] and row["completion"] is None and row["num_prompt_tokens"] == 5


def test_half_a_character_within_json_is_an_error_and_within_a_token_is_not() -> None:
    text = '{"answer": "\\ud800"}'
    assert "surrogate" in stored(read_answer(completion(text, [text]), USED, field="answer")[0])["error"]
    assert stored(read_answer(completion("a", ["a", "\ud83d"]), USED)[0])["completion"] == "a"


def test_impossible_tokens_are_the_least_probability_that_a_row_holds() -> None:
    found = completion("ab", ["a", "b"], token_logprobs=[-math.inf, -(10**400)])
    row = stored(read_answer(found, USED)[0])
    assert row["mean_logprob"] == row["min_logprob"] == -9999.0 and row["token_logprobs"][0] == pytest.approx(-9999, 1)


def test_odd_values_anywhere_in_an_answer_block_nothing() -> None:
    """Each value of a chat's and a completion's answer, replaced by odd ones: no answer, or what a row can hold."""
    content = [{"token": "a", "bytes": [97], "logprob": -1.0, "top_logprobs": [{"token": "a", "logprob": -1.0}]}]
    choice = {"message": {"content": "a"}, "finish_reason": "stop", "logprobs": {"content": content}}
    chat = {"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}}
    odd = [None, True, -1, 2**31, 2**64, -(10**400), 1e999, math.nan, "", "\ud800", "\x00", [], {}, [[]], {"a": {}}]

    def changed(value: Any) -> Iterator[Any]:
        yield from odd
        for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            for other in changed(value[key]):
                copied = value.copy()
                copied[key] = other
                yield copied

    num_rows = 0
    for found in (*changed(chat), *changed(completion("a", ["a"]))):
        try:
            read = read_json(json.dumps(found).encode())
            used, _ = parse_billed_usage(read, MOST)
            check_error(read)
            answer, _ = read_answer(read, used)
        except TryError:
            continue
        assert min(used) >= 0 and max(used) < 2**31
        row, num_rows = stored(restore_row(json.loads(json.dumps(answer)))), num_rows + 1
        assert (row["completion"] is None) == (row["error"] is not None)
    assert num_rows > 200


@pytest.mark.parametrize(
    ("usage", "used", "is_estimated"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 3}, (7, 3), False),
        ({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}, (7, 3), False),
        ({"prompt_tokens": 7, "completion_tokens": None, "total_tokens": 30}, (7, 23), True),  # hidden tokens too
        ({"prompt_tokens": 7, "total_tokens": 7}, (7, 4), True),
        ({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 30}, (7, 23), True),
        ({"completion_tokens": 3, "total_tokens": 30}, (27, 3), True),
        ({"prompt_tokens": 7}, (7, 4), True),  # a token a byte
        ({"prompt_tokens": 7, "completion_tokens": 0}, (7, 4), True),
        ({"prompt_tokens": -1_000_000, "completion_tokens": -1}, (100, 4), True),
        ({"prompt_tokens": 2**31, "completion_tokens": 3}, (100, 3), True),
        ({"prompt_tokens": True, "completion_tokens": False}, (100, 4), True),
        ({"prompt_tokens": 7.5, "completion_tokens": "3"}, (100, 4), True),
        ({"prompt_tokens": 0, "completion_tokens": 3}, (100, 3), True),
        (None, (100, 4), True),
        ([], (100, 4), True),
    ],
)
def test_tokens_that_are_not_said_are_estimated(usage: Any, used: tuple[int, int], is_estimated: bool) -> None:
    found = {**completion(" yes", [" yes"]), "usage": usage}
    assert parse_billed_usage(found, MOST) == (used, is_estimated)


def test_estimates_of_cut_and_hidden_texts_are_the_most() -> None:
    cut = completion(" yes", [" yes"], reason="length")
    assert parse_billed_usage({**cut, "usage": None}, MOST)[0].output == 16
    assert parse_billed_usage({"choices": []}, MOST) == (MOST, True)
    thought = {"choices": [{"message": {"content": "a", "reasoning_content": "bcd"}, "finish_reason": "stop"}]}
    assert parse_billed_usage(thought, MOST)[0].output == 4


@pytest.mark.parametrize(
    ("tokens", "of_text"),
    [([" y", "es"], True), (["Ġy", "es", "</s>"], True), (["▁yes"], True), (["<0x0A>", "yes"], True), (["no"], False),
     ([], False)],
)  # fmt: skip
def test_log_probabilities_of_other_tokens_are_told(tokens: list[str], of_text: bool) -> None:
    assert ("other_tokens" not in read_answer(completion("yes", tokens), USED)[1]) is of_text


@pytest.mark.parametrize(
    ("asked", "answered", "is_another"),
    [
        ("gpt-4o-mini", "gpt-4o-mini-2024-07-18", False),
        ("sonnet-latest", "sonnet-20241022", False),
        ("org/Llama-8B", "llama-8b", False),
        ("m", None, False),
        ("gpt-4o", "gpt-4o-mini", True),
        ("gpt-4o-mini", "gpt-4o", True),
        ("m", "other", True),
    ],
)
def test_names_of_other_models(asked: str, answered: object, is_another: bool) -> None:
    assert is_other(asked, answered) is is_another
