"""A server as the teacher, in the configuration: what follows from the keys, what is refused, what a key holds."""

from types import SimpleNamespace
from typing import Any

import pytest

from curation.config import PricesConfig, RunConfig
from curation.config.filter import FilterTeacherConfig
from curation.config.load import as_config
from curation.config.resolved import describe_resolved, iter_warnings
from curation.errors import ConfigError, PackageError
from curation.filter import rows
from curation.filter.package.checks import check_runs
from curation.rundir.graph import to_plain_json

SERVER: dict[str, Any] = {"url": "http://localhost:8000/v1/", "model": "m"}
BASE: dict[str, Any] = {
    "name": "served",
    "domain": {"name": "classification", "classes": ["a", "b"]},
    "sources": {"one": {"path": "one.csv"}},
    "splits": {"source": {"from": "one", "rows": 10}, "pool": {"from": "one"}},
    "teacher": {"backend": "endpoint", "endpoint": SERVER},
    "selection": {"budget": {"n": 5}},
}


def made(server: Any = None, **changes: Any) -> RunConfig:
    raw = {**BASE, "teacher": {**BASE["teacher"], "endpoint": {**SERVER, **(server or {})}}}
    for key, value in changes.items():
        raw[key] = {**raw.get(key, {}), **value} if isinstance(value, dict) else value
    return as_config(raw)


def test_a_run_keeps_no_states_and_reads_numbers() -> None:
    config = made()
    assert config.teacher.states == config.trust.states == () and config.teacher.chat_template
    assert config.compared == ("mean_logprob", "margin", "negentropy")
    assert not made({"kind": "vllm"}).teacher.chat_template
    assert as_config(config.model_dump(mode="json", by_alias=True)) == config
    without = made({"top_logprobs": 0})
    assert without.compared == ("num_prompt_tokens", "num_output_tokens")
    assert without.selection.arms == ("naive", "naive_parsed", "trust")
    audited = made({"top_logprobs": 0}, splits={"audit": True})
    assert (
        not {"internal_confidence", "margin"} & set(audited.selection.arms) and "ground_truth" in audited.selection.arms
    )


def test_a_cache_key_holds_the_model_and_what_it_is_asked_alone() -> None:
    def key(**server: Any) -> Any:
        return to_plain_json(made(server).teacher.ask.paid_in("/run"), {})

    moved = {
        "url": "https://other.example/v1",
        "concurrency": 99,
        "price": {"input": 1, "output": 2},
        "limit": 3,
        "key_env": "A_KEY",
        "requests_per_minute": 5,
        "retries": 1,
    }
    assert key() == key(**moved) and "url" not in str(key()["endpoint"])
    for change in ({"model": "other"}, {"kind": "sglang"}, {"top_logprobs": 5}, {"body": {"a": 1}}):
        assert key(**change) != key()


def test_prices_of_tokens_are_among_the_prices() -> None:
    config = made({"price": {"input": 0.15, "output": 0.6}}, prices={"currency": "EUR", "cpu_hour": 0.1})
    assert config.prices == PricesConfig(
        currency="EUR", cpu_hour=0.1, per_million_prompt_tokens=0.15, per_million_output_tokens=0.6
    )


@pytest.mark.parametrize(
    ("server", "changes", "words"),
    [
        ({"url": "localhost:8000"}, {}, "url: 'localhost:8000' is not the address of an API; write it with http"),
        ({"url": "http://x/v1/chat/completions"}, {}, "without a query or a call such as /chat/completions"),
        ({"url": "http://x/v1?a=b"}, {}, "without a query"),
        ({"url": "http://x:99999/v1"}, {}, "url: Port out of range"),
        ({"url": "http://user:word@x/v1"}, {}, "holds a credential"),
        ({"kind": "tgi"}, {}, "'openai', 'vllm' or 'sglang'"),
        ({"model": ""}, {}, "endpoint.model"),
        ({"limit": 3}, {}, "limit: 3 cannot be kept without prices"),
        (
            {"limit": 3, "price": {"input": 1, "output": 1}, "body": {"max_tokens": None}},
            {},
            "limit: 3 cannot be kept if body leaves max_tokens out",
        ),
        ({"body": {"n": "two"}}, {}, "n: 'two' is not a whole number above 0"),
        ({"price": {"input": -1, "output": 0}}, {}, "price.input"),
        ({"concurrency": 0}, {}, "concurrency"),
        ({}, {"teacher": {"states": ["output_last"]}}, "hidden states come from no server"),
        ({}, {"teacher": {"model": {"path": "x"}}}, "teacher.model needs a model that labels"),
        ({}, {"teacher": {"store_states": False}}, "teacher.store_states needs hidden states"),
        ({}, {"teacher": {"backend": "scripted"}}, "teacher.endpoint needs teacher.backend: endpoint"),
        ({}, {"teacher": {"url": "http://x/v1"}}, "teacher.url: unknown key"),
        ({}, {"teacher": {"decoding": {"min_p": 0.1}}}, "decoding.min_p: 0.1 is not known to a server of kind openai"),
        (
            {"kind": "sglang"},
            {"teacher": {"decoding": {"constrained": "scored"}}},
            "needs the log-probability of every",
        ),
        (
            {},
            {"trust": {"kind": "neural"}},
            "trust: neural needs something to read: set trust.columns: [mean_logprob, margin, negentropy]",
        ),
        ({}, {"trust": {"pca": 4}}, "trust.pca"),
        (
            {"top_logprobs": 0},
            {"selection": {"arms": ["naive", "margin"]}},
            "the margin arm needs log-probabilities",
        ),
    ],
)
def test_what_a_server_cannot_do_is_refused(server: Any, changes: Any, words: str) -> None:
    if changes.get("teacher", {}).get("backend") == "scripted":
        changes["teacher"]["states"] = ["output_last"]
    with pytest.raises(ConfigError, match=None) as refused:
        made(server, **changes)
    assert words in str(refused.value), refused.value


def test_a_key_in_place_of_its_name_is_refused_and_not_shown() -> None:
    for key in ("sk-proj-1234", "abcdef0123"):
        with pytest.raises(ConfigError) as refused:
            made({"key_env": key})
        assert "write the key into a variable" in str(refused.value) and key not in str(refused.value)
    with pytest.raises(ConfigError, match="holds a credential") as refused:
        made({"api_key": "sk-proj-1234"})
    assert "1234" not in str(refused.value)


def test_validate_says_where_the_answers_come_from_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("A_KEY", raising=False)
    config = made({"price": {"input": 1, "output": 2}, "key_env": "A_KEY"})
    assert "teacher: m of http://localhost:8000/v1 (kind openai, chats), 16 questions" in next(
        iter(describe_resolved(config))
    )
    found = " ".join(iter_warnings(config))
    assert (
        "the environment variable A_KEY is not set here" in found and "nothing limits what the run may spend" in found
    )
    monkeypatch.setenv("A_KEY", "x")
    assert "A_KEY" not in " ".join(iter_warnings(config))


@pytest.mark.parametrize(
    ("url", "key_env", "is_warned"),
    [
        ("http://model.example/v1", "A_KEY", True),
        ("http://10.0.0.7:8000/v1", "A_KEY", True),
        ("http://model.example/v1", None, False),
        ("https://model.example/v1", "A_KEY", False),
        ("http://localhost:8000/v1", "A_KEY", False),
        ("http://127.0.0.2:8000/v1", "A_KEY", False),
        ("http://[::1]:8000/v1", "A_KEY", False),
    ],
)
def test_a_key_in_plain_text_to_another_machine_is_a_warning(
    url: str, key_env: str | None, is_warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "x")
    found = " ".join(iter_warnings(made({"url": url, "key_env": key_env})))
    assert (f"teacher.endpoint.url: {url} is not encrypted, so that the key of A_KEY" in found) is is_warned


def test_a_filter_asks_its_own_server_the_packages_model() -> None:
    answers = made().teacher.ask.model_copy(update={"dtype": "float32"}).answers
    assert answers.endpoint is not None and set(answers.model_dump()["endpoint"]) == {
        "model", "kind", "top_logprobs", "body"
    }  # fmt: skip
    mine = FilterTeacherConfig.model_validate({"endpoint": {**SERVER, "url": "http://mine/v1"}})
    asking = mine.asking(answers)
    assert asking.endpoint is not None and asking.endpoint.url == "http://mine/v1"


def test_a_filter_in_a_process_of_its_own_refuses_a_limit_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = made().teacher.ask.model_copy(update={"dtype": "float32"}).answers
    package: Any = SimpleNamespace(uri="package", description=SimpleNamespace(ask=answers, domain=None))
    monkeypatch.setattr(rows, "check_content", lambda package: None)
    monkeypatch.setattr(rows, "get_domain", lambda domain: None)
    limited = {**SERVER, "limit": 3, "price": {"input": 1, "output": 1}}
    with pytest.raises(ConfigError, match=r"limit: 3 would be that of each process.*teacher\.endpoint\.paid"):
        _ = rows.Filter(package, None, runs=FilterTeacherConfig.model_validate({"endpoint": limited})).loaded


def test_a_filter_refuses_another_model_than_the_packages() -> None:
    answers = made().teacher.ask.model_copy(update={"dtype": "float32"}).answers
    package: Any = SimpleNamespace(uri="package", description=SimpleNamespace(ask=answers, served=answers.endpoint))
    cases = [
        (None, "was fitted on answers of 'm' on a server of kind openai; say where it is: teacher.endpoint"),
        ({**SERVER, "model": "other"}, "with model 'm', and teacher.endpoint.model is 'other'"),
        ({**SERVER, "body": {"n": 2}}, "with body {}, and teacher.endpoint.body is {'n': 2}"),
    ]
    for endpoint, words in cases:
        with pytest.raises(PackageError) as refused:
            check_runs(package, FilterTeacherConfig.model_validate({} if endpoint is None else {"endpoint": endpoint}))
        assert words in str(refused.value)
    check_runs(package, FilterTeacherConfig.model_validate({"endpoint": {**SERVER, "url": "https://mine.example/v1"}}))
