"""The endpoint teacher against servers that answer oddly: money and rows hold, and nothing goes where it should not."""

import gzip
import re
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from endpoint_server import serving
from endpoint_teaching import DECODING, labelled, requests, teaching

from curation.errors import ConfigError, RunFailedError
from curation.teachers.endpoint_paid import read_spending


@pytest.mark.parametrize("spoil", [
    lambda answer: answer.update(choices=[]),
    lambda answer: answer.update(error={"message": "overloaded"}, choices=None),
    lambda answer: answer["choices"][0].update(finish_reason="error"),
    lambda answer: answer["choices"][0]["message"].update(content=True),
])  # fmt: skip
def test_what_is_no_answer_is_asked_again_and_counted(spoil: Any, tmp_path: Path) -> None:
    settings = {"paid": str(tmp_path), "price": {"input": 1_000_000, "output": 1_000_000}}
    with (
        serving(faults=lambda prompt, before: ("pass", None) if before else ("edit", spoil)) as server,
        teaching(server, **settings) as teacher,
    ):
        rows = labelled(teacher, requests(6))
        assert all(row["error"] is None for row in rows.values())
        assert labelled(teacher, requests(6)) == rows and len(server.asked) == 12
        found = read_spending(str(tmp_path))
        assert found is not None and found.odd == {"no_answer": 6} and not found.open
        assert found.tokens == (sum(prompt for prompt, _ in server.tokens), sum(output for _, output in server.tokens))


def test_a_server_that_answers_nothing_readable_and_is_healed_heals_the_rows(tmp_path: Path) -> None:
    with serving(faults=lambda prompt, before: ("body", b'{"choices": []}')) as server:
        with teaching(server, retries=0, paid=str(tmp_path)) as teacher, pytest.raises(RunFailedError):
            labelled(teacher, requests(20))
        server.faults = lambda prompt, before: ("pass", None)
        with teaching(server, retries=0, paid=str(tmp_path)) as teacher:
            assert all(row["error"] is None for row in labelled(teacher, requests(20)).values())


@pytest.mark.long
def test_a_deadline_holds_for_the_whole_answer(tmp_path: Path) -> None:
    drips = ("drip", 0.1)  # some 60 s
    with (
        serving(faults=lambda prompt, before: ("pass", None) if before else drips) as server,
        teaching(server, timeout_seconds=2.0, paid=str(tmp_path)) as teacher,
    ):
        began = time.monotonic()
        assert labelled(teacher, requests(1))[0]["error"] is None and len(server.asked) == 2
        assert 2.0 < time.monotonic() - began < 15 and len(teacher.client.paid.spending.open) == 1


@pytest.mark.parametrize("is_packed", [True, False])
def test_a_body_has_a_limit_also_unpacked(is_packed: bool, tmp_path: Path) -> None:
    body = b" " * 2**28
    body = gzip.compress(body, 1) if is_packed else body[: 2**24]
    fault = ("gzip" if is_packed else "body", body)
    tracemalloc.start()
    with (
        serving(faults=lambda prompt, before: ("pass", None) if before else fault) as server,
        teaching(server, paid=str(tmp_path)) as teacher,
    ):
        assert labelled(teacher, requests(1))[0]["error"] is None and len(server.asked) == 2
        assert "more than" in teacher.client.paid.spending.examples["no_answer"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**26


def test_nothing_of_the_environment_and_no_redirect_takes_a_key_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "OPENAI_API_KEY": "sk-theirs",
        "OPENAI_ORG_ID": "org-secret",
        "OPENAI_PROJECT_ID": "proj-secret",
        "OPENAI_CUSTOM_HEADERS": "Authorization: Bearer sk-theirs\nX-Secret: word",
        "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
        "A_KEY": "sk-mine",
    }.items():
        monkeypatch.setenv(name, value)
    with serving() as server, teaching(server) as teacher:
        labelled(teacher, requests(1))
        (headers,) = server.headers
        assert "authorization" not in headers and not {"secret", "theirs"} & set(str(headers).split("-"))
        assert not any(word in str(headers) for word in ("theirs", "secret", "word"))
    with serving() as server, teaching(server, key_env="A_KEY") as teacher:
        labelled(teacher, requests(1))
        assert server.headers[0]["authorization"] == "Bearer sk-mine" and "secret" not in str(server.headers)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "sk-mine")
    with serving() as other:
        away = ("status", (status, {"location": f"{other.url}/chat/completions?key=sk-mine"}))
        with (
            serving(faults=lambda prompt, before: away) as server,
            teaching(server, key_env="A_KEY") as teacher,
            pytest.raises(ConfigError, match=rf"{status}: {other.url}.*set that to where the API is") as refused,
        ):
            labelled(teacher, requests(1))
        assert not other.asked and not other.gets and not server.gets and "sk-mine" not in str(refused.value)


def test_a_key_that_no_header_holds_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("sk-\u00e9", "sk-a\nX-Other: b"):
        monkeypatch.setenv("A_KEY", key)
        with (
            serving() as server,
            pytest.raises(ConfigError, match="A_KEY holds characters that no key has") as refused,
            teaching(server, key_env="A_KEY"),
        ):
            pass
        assert "sk-" not in str(refused.value)


def test_proxies_of_the_environment_are_used_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        monkeypatch.setenv("HTTP_PROXY", "no://proxy")
        with pytest.raises(ConfigError, match="a proxy of the environment cannot be used"), teaching(server):
            pass
        monkeypatch.setenv("HTTP_PROXY", server.url.removesuffix("/v1"))
        with teaching(server, url="http://model.example/v1") as teacher:
            assert labelled(teacher, requests(1))[0]["error"] is None and server.headers[0]["host"] == "model.example"


@pytest.mark.long
@pytest.mark.parametrize(
    ("usage", "odd"),
    [
        ({"prompt_tokens": -1_000_000, "completion_tokens": 2}, {"estimated"}),
        ({"prompt_tokens": 3, "completion_tokens": None}, {"estimated"}),
        ({"prompt_tokens": 3}, {"estimated"}),
        ({"prompt_tokens": 2**31, "completion_tokens": 2**31}, {"estimated"}),
        ({"prompt_tokens": 300, "completion_tokens": 2}, {"dear"}),
    ],
)
def test_money_is_kept_whatever_the_server_says_of_it(usage: Any, odd: set[str], tmp_path: Path) -> None:
    settings = {"price": {"input": 1_000_000, "output": 1_000_000}, "paid": str(tmp_path), "limit": 3_000.0}
    fault = ("edit", lambda answer: answer.update(usage=usage))
    with serving(faults=lambda prompt, before: fault) as server:
        with teaching(server, **settings) as teacher, pytest.raises(RunFailedError, match="limit: 3000"):
            labelled(teacher, requests(1_000))
        assert 0 < sum(map(sum, server.tokens)) <= 3_000
    found = read_spending(str(tmp_path))
    assert found is not None and set(found.odd) == odd and found.odd[min(odd)] == len(server.paid)


def test_other_models_and_other_tokens_are_counted(tmp_path: Path) -> None:
    def spoil(answer: Any) -> None:
        answer["model"] = "\ud800other"
        for token in answer["choices"][0]["logprobs"]["content"]:
            token.update(token="what", bytes=None)

    with (
        serving(faults=lambda prompt, before: ("edit", spoil)) as server,
        teaching(server, paid=str(tmp_path)) as teacher,
    ):
        assert all(row["error"] is None for row in labelled(teacher, requests(5)).values())
    found = read_spending(str(tmp_path))
    assert found is not None and found.odd == {"other_model": 5, "other_tokens": 5}
    assert "\\ud800other" in found.examples["other_model"]


@pytest.mark.long
def test_a_server_that_asks_to_wait_for_nothing_is_asked_ever_less_often() -> None:
    begun = list[float]()

    def faults(prompt: str, before: int) -> tuple[str, Any]:
        begun.append(time.monotonic())
        return ("pass", None) if before == 3 else ("status", (429, {"retry-after": "0"}))

    with serving(faults=faults) as server, teaching(server) as teacher:
        assert labelled(teacher, requests(1))[0]["error"] is None
    assert begun[-1] - begun[0] > (0.5 + 1 + 2) / 2


def test_a_long_wait_is_shown() -> None:
    refused = ("status", (429, {"retry-after": "600"}))
    with serving(faults=lambda prompt, before: refused) as server, teaching(server) as teacher:
        assert teacher.client.pause == ""
        teacher.client.run(teacher._answer(requests(1)[0], DECODING, 0))
        while not teacher.client.pause:
            time.sleep(0.05)
        assert re.search(r"the server asks to wait until \d\d:\d\d:\d\d, (59\d|600) s more", teacher.client.pause)


def test_a_server_that_is_away_costs_nothing(tmp_path: Path) -> None:
    with serving() as server:
        url = server.url
    with (
        teaching(server, url=url, retries=1, paid=str(tmp_path)) as teacher,
        pytest.raises(RunFailedError, match="gave no answer to anything in 2 tries"),
    ):
        labelled(teacher, requests(3))
    found = read_spending(str(tmp_path))
    assert found is not None and not found.open and found.questions == 0
