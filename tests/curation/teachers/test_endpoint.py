"""The endpoint teacher against a server with faults: every row once, no answer paid twice, money and speed limited."""

import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from endpoint_server import logprob_of, serving, tops_of
from endpoint_teaching import DECODING, labelled, requests, teaching

from curation.config import DecodingConfig
from curation.errors import ConfigError, RunFailedError
from curation.teachers import Request
from curation.teachers.completions import AnsweredRow
from curation.teachers.endpoint import compute_most_usage
from curation.teachers.endpoint_answers import Usage
from curation.teachers.endpoint_paid import Paid, read_spending


@pytest.mark.parametrize("chat", [True, False])
def test_answers_have_text_numbers_and_tokens(chat: bool) -> None:
    with serving(seconds=0.05) as server, teaching(server, chat=chat, token_logprobs=4, top_logprobs=5) as teacher:
        rows = labelled(teacher, requests(30))
    assert set(rows) == set(range(30)) and server.most_at_once == 4
    for request in requests(30):
        row, text = rows[request.row_id], server.answer(request.prompt)
        tokens = [text[: len(text) // 2], text[len(text) // 2 :]]
        logprobs = [logprob_of(token) for token in tokens]
        assert row["completion"] == text and row["error"] is None and not row["truncated"]
        assert row["mean_logprob"] == pytest.approx(np.mean(logprobs), rel=1e-5)
        assert row["last_logprob"] == pytest.approx(logprobs[-1], rel=1e-5)
        tops = [sorted(tops_of(token, 5).values(), reverse=True) for token in tokens]
        assert row["margin"] == pytest.approx(np.mean([top[0] - top[1] for top in tops]), rel=1e-4)
        shares = [np.exp([*top, math.log(1 - sum(np.exp(top)))]) for top in tops]
        assert row["negentropy"] == pytest.approx(np.mean([p @ np.log(p) for p in shares]), rel=1e-4)
        assert row["token_logprobs"][:2] == pytest.approx(logprobs, abs=1e-3)
        assert (row["num_prompt_tokens"], row["num_output_tokens"]) == (len(request.prompt.split()), 2)


def test_missing_log_probabilities_are_nulls() -> None:
    with serving(faults=lambda prompt, before: ("bare", None)) as server, teaching(server) as teacher:
        rows = labelled(teacher, requests(5))
    assert all(row["mean_logprob"] is None and row["margin"] is None for row in rows.values())
    assert all(row["completion"] and row["num_output_tokens"] == 2 for row in rows.values())


@pytest.mark.long
def test_faults_cost_no_row_and_no_answer_twice(tmp_path: Path) -> None:
    """Refusals for a while, lost connections, slow answers: each row is answered, and each whole answer paid once."""

    def faults(prompt: str, before: int) -> tuple[str, Any]:
        kind = int(prompt.split()[1].rstrip(":")) % 8
        if before or kind > 4:
            return ("pass", None)
        return [
            ("status", (429, {"retry-after": "0.2"})),
            ("status", (503, {})),
            ("cut", None),
            ("slow", 6.0),
            ("status", (500, {"retry-after-ms": "50"})),
        ][kind]

    settings = {"paid": str(tmp_path), "timeout_seconds": 3.0}
    with serving(faults=faults) as server, teaching(server, **settings) as teacher:
        rows = labelled(teacher, requests(40))
        assert all(row["error"] is None for row in rows.values()) and len(rows) == 40
        late = {prompt for prompt in server.paid if int(prompt.split()[1].rstrip(":")) % 8 == 3}
        assert all(number == 1 for prompt, number in server.paid.items() if prompt not in late)
        asked = len(server.asked)
        assert labelled(teacher, requests(40)) == rows and len(server.asked) == asked
    with serving() as other, teaching(other, **settings) as teacher:
        assert labelled(teacher, requests(40)) == rows and not other.asked  # another process, another address


@pytest.mark.long
def test_retry_after_is_waited_for() -> None:
    began = time.monotonic()
    refused = ("status", (429, {"retry-after": "1.5"}))
    with (
        serving(faults=lambda prompt, before: ("pass", None) if before else refused) as server,
        teaching(server, retries=1) as teacher,
    ):
        rows = labelled(teacher, requests(2))
    assert time.monotonic() - began > 1.5 and all(row["error"] is None for row in rows.values())


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (("body", b"<html>"), "endpoint_answer: no JSON"),
        (("body", b'{"choices": []}'), "endpoint_answer: lacks a choice"),
        (("body", b'{"choices": [{"message": {"content": null}, "finish_reason": "content_filter"}]}'), "refused"),
        (("body", b'{"choices": [{"message": {"content": 3}, "finish_reason": "stop"}]}'), "endpoint_answer: the text"),
        (("body", b'{"error": {"message": "\\ud800 overloaded", "code": 529}}'), "endpoint_answer: 529: an error"),
        (("status", (400, {})), "endpoint_refused: 400"),
        (("status", (500, {})), "endpoint_failed: 500"),
    ],
)
def test_a_row_without_a_readable_answer_is_an_error_row(fault: Any, error: str, tmp_path: Path) -> None:
    bad = "question 3: xxx"
    with serving(faults=lambda prompt, before: fault if prompt == bad else ("slow", 0.15)) as server:
        with teaching(server, retries=2, concurrency=2, paid=str(tmp_path)) as teacher:
            rows = labelled(teacher, requests(30))
            again = labelled(teacher, requests(30))
        assert error in rows[3]["error"] and rows[3]["completion"] is None
        assert [row_id for row_id, row in rows.items() if row["error"]] == [3]
        times = sum(bad in str(body) for body in server.asked)
        is_answer = "content_filter" in str(fault)
        assert times == (1 if is_answer else 2 if "400" in error else 6)  # what is no answer is asked for again
        assert again[3]["error"] == rows[3]["error"]
        assert read_spending(str(tmp_path)).odd["no_answer"] == (6 if fault[0] == "body" and not is_answer else 0)


@pytest.mark.parametrize(
    ("status", "error", "has_models", "num"),
    [(401, ConfigError, True, 1), (404, ConfigError, True, 1), (503, RunFailedError, False, 1),
     (503, RunFailedError, True, 20)],
)  # fmt: skip
def test_a_server_that_answers_nothing_ends_the_run(
    status: int, error: type[Exception], has_models: bool, num: int
) -> None:
    with (
        serving(faults=lambda prompt, before: ("status", (status, {})), has_models=has_models) as server,
        teaching(server, retries=1) as teacher,
        pytest.raises(error, match=str(status)),
    ):
        labelled(teacher, requests(num))


@pytest.mark.long
def test_money_is_never_passed_and_what_came_is_not_bought_again(tmp_path: Path) -> None:
    price = {"input": 1_000_000, "output": 0}  # a unit a prompt token; a prompt has 3, and counts as up to 260 before
    settings = {"price": price, "paid": str(tmp_path)}
    with serving() as server:
        with teaching(server, limit=500.0, **settings) as teacher, pytest.raises(RunFailedError, match="limit: 500"):
            labelled(teacher, requests(200))
        spent = sum(prompt for prompt, _ in server.tokens)
        assert 500 - 265 < spent <= 500
        found = read_spending(str(tmp_path))
        assert found is not None and found.tokens.prompt == spent and not found.open
        with teaching(server, limit=2_000.0, **settings) as teacher:
            rows = labelled(teacher, requests(200))
        assert len(rows) == 200 and max(server.paid.values()) == 1 and len(server.paid) == 200


@pytest.mark.long
def test_questions_under_way_when_a_process_dies_count_as_paid(tmp_path: Path) -> None:
    config = {"price": {"input": 1_000_000, "output": 0}, "limit": 400.0, "paid": str(tmp_path)}
    with serving(seconds=30) as server, teaching(server, **config) as teacher:
        running = teacher.label(requests(3), DECODING, seed=0)
        teacher.client.run(teacher._answer(requests(1)[0], DECODING, 0))
        while not server.asked:
            time.sleep(0.05)
        del running
    (most,) = Paid(str(tmp_path)).spending.open.values()
    assert most.prompt >= 64
    with serving() as server, teaching(server, **config) as teacher, pytest.raises(RunFailedError):
        labelled(teacher, requests(200))
    assert sum(prompt for prompt, _ in server.tokens) <= 400 - most.prompt


@pytest.mark.long
def test_requests_a_minute() -> None:
    with serving() as server, teaching(server, requests_per_minute=600) as teacher:
        began = time.monotonic()
        labelled(teacher, requests(20))
        assert time.monotonic() - began > 1.8  # ten a second


def test_keys_come_from_the_environment_and_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        serving() as server,
        pytest.raises(ConfigError, match="A_KEY is empty or not set"),
        teaching(server, key_env="A_KEY"),
    ):
        pass
    monkeypatch.setenv("A_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    with serving(faults=lambda prompt, before: ("status", (401, {"www-authenticate": "sk-secret"}))) as server:
        with teaching(server, key_env="A_KEY") as teacher, pytest.raises(ConfigError) as refused:
            labelled(teacher, requests(1))
        assert server.keys == {"Bearer sk-secret"} and "sk-secret" not in str(refused.value)
        assert refused.value.__suppress_context__
        for length in range(280, 301):  # no part of a key that is cut
            assert "sk-" not in teacher.client._describe_error(ValueError("x" * length + " sk-secret"))
    with serving() as server, teaching(server) as teacher:
        labelled(teacher, requests(1))
        assert "sk-other" not in str(server.keys)


@pytest.mark.parametrize(
    ("kind", "chat", "key", "value"),
    [
        ("vllm", True, "structured_outputs", {"choice": ["yes", "no (at all)"]}),
        ("sglang", False, "regex", r"( yes|\ no\ \(at\ all\))"),
        ("openai", True, "response_format", None),
    ],
)
def test_options_are_a_structured_choice(kind: str, chat: bool, key: str, value: Any) -> None:
    options = (" yes", " no (at all)")
    answer = '{"answer": "yes"}' if kind == "openai" else " yes"
    with serving(answer=lambda prompt: answer) as server, teaching(server, kind=kind, chat=chat) as teacher:
        rows = labelled(teacher, requests(4, options=options, stepwise=True))
    assert all(row["completion"] == " yes" and row["mean_logprob"] is not None for row in rows.values())
    for body in server.asked:
        if value is None:
            schema = body[key]["json_schema"]["schema"]
            assert schema["properties"]["answer"]["enum"] == ["yes", "no (at all)"]
        elif kind == "sglang":
            import re

            assert re.fullmatch(body[key], " no (at all)") and re.fullmatch(body[key], " yes")
        else:
            assert body[key] == value


def test_the_body_takes_further_keys_and_leaves_out_null() -> None:
    body = {"max_tokens": None, "max_completion_tokens": 5, "reasoning_effort": "low"}
    with serving() as server, teaching(server, body=body) as teacher:
        labelled(teacher, requests(1))
    (asked,) = server.asked
    assert "max_tokens" not in asked and asked["max_completion_tokens"] == 5 and asked["reasoning_effort"] == "low"


def test_the_most_that_a_question_may_cost_is_that_of_its_whole_body() -> None:
    body: dict[str, Any] = {"max_tokens": None, "max_completion_tokens": 64, "n": 2}
    prices: dict[str, Any] = {"price": {"input": 0, "output": 1_000_000}, "limit": 200.0}  # of 128 at most
    with serving(seconds=0.1) as server, teaching(server, body=body, **prices) as teacher:
        assert len(labelled(teacher, requests(6))) == 6 and server.most_at_once == 1
    assert (
        compute_most_usage({"prompt": "a", "max_tokens": 3, "max_completion_tokens": 5, "best_of": 4}, 8).output == 20
    )
    assert compute_most_usage({"prompt": "a"}, 8).output == 8
    assert compute_most_usage({"prompt": "a", "response_format": "é" * 100}, 8).prompt > 200


@pytest.mark.parametrize(("status", "is_free"), [(429, True), (503, True), (500, False), (408, False), (504, False)])
def test_an_error_after_which_the_server_may_bill_counts_as_paid(status: int, is_free: bool, tmp_path: Path) -> None:
    refused = ("status", (status, {"retry-after": "0"}))
    with (
        serving(faults=lambda prompt, before: ("pass", None) if before else refused) as server,
        teaching(server, paid=str(tmp_path)) as teacher,
    ):
        assert labelled(teacher, requests(1))[0]["error"] is None
        assert (not teacher.client.paid.spending.open) is is_free


def test_sampled_answers_are_bought_for_each_row_and_seed_though_none_is_sent() -> None:
    drawn = DecodingConfig(max_tokens=8, temperature=1.0)
    twins = [Request(row_id=k, prompt="the same") for k in range(5)]
    with serving() as server, teaching(server, body={"seed": None}) as teacher:
        for seed in (0, 1, 1):
            list(teacher.label(twins, drawn, seed=seed))
        assert len(server.asked) == 10 and not any("seed" in body for body in server.asked)


def test_a_single_option_is_an_error_row_since_servers_score_none() -> None:
    with serving() as server, teaching(server, kind="vllm", chat=False) as teacher:
        rows = labelled(teacher, requests(2, options=(" a",)))
        assert all("endpoint_scores: a server scores" in row["error"] for row in rows.values()) and not server.asked


@pytest.mark.long
def test_equal_questions_are_bought_once_and_given_up_ones_are_kept(tmp_path: Path) -> None:
    with serving(seconds=0.3) as server, teaching(server, paid=str(tmp_path)) as teacher:
        twins = [Request(row_id=k, prompt="the same") for k in range(12)]
        rows = labelled(teacher, twins)
        assert len(rows) == 12 and len(server.asked) == 1
        answers = teacher.label(requests(20), DECODING, seed=0)
        next(answers)
        answers.close()  # some are under way
        while teacher.client.under_way:
            time.sleep(0.05)
        sent = len(server.asked)
        labelled(teacher, requests(20))
        assert len(server.asked) == 21 and sent > 2 and max(server.paid.values()) == 1


def test_a_question_that_another_process_has_asked_is_waited_for_while_it_works(tmp_path: Path):
    theirs, mine = Paid(str(tmp_path)), Paid(str(tmp_path))
    number = theirs.sent(Usage(1, 1), "a")
    lost = theirs.sent(Usage(1, 1), "b")
    assert mine.is_asked_elsewhere("a") and mine.is_asked_elsewhere("b") and not mine.is_asked_elsewhere("c")
    assert not theirs.is_asked_elsewhere("a"), "its own"
    theirs.got(number, "a", Usage(1, 1), AnsweredRow(0, "yes"), {})
    theirs.freed(lost)
    assert not mine.is_asked_elsewhere("a") and not mine.is_asked_elsewhere("b")
    found = mine.find("a")
    assert found is not None and found.completion == "yes"
    theirs.sent(Usage(1, 1), "d")
    assert mine.is_asked_elsewhere("d")
    (record,) = tmp_path.iterdir()
    os.utime(record, (time.time() - 60, time.time() - 60))
    assert not mine.is_asked_elsewhere("d"), "it is dead"
