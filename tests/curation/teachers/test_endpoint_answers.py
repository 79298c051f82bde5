"""Answers of servers, read out of JSON: which tokens hold the text, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest

from curation.teachers.endpoint_answers import UnreadableError, negentropy, read_answer, read_scores


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
    answer = read_answer(completion(text, tokens, reason=reason))
    assert answer.text == text and answer.num_output == num and answer.truncated == (reason == "length")
    assert list(answer.logprobs) == [-float(k + 1) for k in range(num)]
    assert (answer.margins is None) == (num == 0)
    if answer.margins is not None:
        assert answer.margins.mean == pytest.approx(1.0)


def test_a_character_of_two_tokens() -> None:
    tokens = [
        {"token": "\ufffd", "bytes": list(part), "logprob": -1.0, "top_logprobs": []} for part in (b"\xc3", b"\xa9")
    ]
    choice = {"message": {"content": "é"}, "finish_reason": "stop", "logprobs": {"content": tokens}}
    answer = read_answer({"choices": [choice]})
    assert (answer.text, answer.num_output, answer.num_prompt, answer.margins) == ("é", 2, None, None)


def test_the_answer_within_a_json_object_and_its_tokens() -> None:
    tokens = ['{"', "answer", '":', ' "', "not", " ironic", '"}']
    text = "".join(tokens)
    answer = read_answer(completion(text, tokens), field="answer")
    assert answer.text == "not ironic" and list(answer.logprobs) == [-5.0, -6.0]
    assert read_answer(completion("no JSON", ["no JSON"]), field="answer").text == "no JSON"


def test_the_entropy_counts_the_rest_as_one_token() -> None:
    shares = np.array([0.5, 0.2, 0.1])
    whole = np.append(shares, 0.2)
    assert negentropy(np.log(shares).tolist()) == pytest.approx(float(whole @ np.log(whole)))
    assert negentropy(np.log([0.25] * 4).tolist()) == pytest.approx(math.log(0.25))
    assert negentropy([0.0, -9999.0]) == pytest.approx(0.0)


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"choices": []},
        {"choices": [{"finish_reason": "stop"}]},
        {"choices": [{"text": ["a"], "finish_reason": "stop"}]},
        completion("a", ["a"], token_logprobs=[math.nan]),
        completion("a", ["a"], token_logprobs=["x"]),
        completion("a", ["a"], token_logprobs=[2.0]),
        completion("a", ["a", "b"], token_logprobs=[-1.0]),
    ],
)
def test_what_no_answer_is(found: dict[str, Any]) -> None:
    with pytest.raises(UnreadableError):
        read_answer(found)


def test_scores_of_options_are_those_of_their_tokens() -> None:
    def prompt(index: int, ids: list[int]) -> dict[str, Any]:
        values: list[Any] = [None, *({str(one): {"logprob": -one / 10}, "9": {"logprob": 0.0}} for one in ids[1:])]
        return {"index": index, "prompt_token_ids": ids, "prompt_logprobs": values}

    found = {"choices": [prompt(1, [1, 2, 5]), prompt(0, [1, 2, 3, 4])]}
    assert read_scores(found, [2, 1]) == [[-0.3, -0.4], [-0.5]]
    with pytest.raises(UnreadableError):
        read_scores(found, [2])
    with pytest.raises(UnreadableError):
        read_scores({"choices": [{"index": 0, "prompt_token_ids": [1, 2], "prompt_logprobs": None}]}, [1])
