"""The endpoint teacher against a real ``vllm serve``: what comes over HTTP equals the engine in this process."""

import numpy as np
import pytest

from benchmarks.endpoint import NAME, serving
from curation.config import AskConfig, DecodingConfig
from curation.config.external import EndpointConfig
from curation.models import load_configuration
from curation.teachers import Request, load_teacher
from tests.with_vllm.test_vllm_teacher import rows_of

pytestmark = pytest.mark.timeout(900)
NUMBERS = ("mean_logprob", "min_logprob", "first_logprob", "last_logprob", "margin", "first_margin", "negentropy")


@pytest.fixture(scope="module")
def url(model, tmp_path_factory):
    """A server of the model."""
    log = tmp_path_factory.mktemp("server") / "log"
    options = "--dtype float32 --enforce-eager --max-num-seqs 24 --kv-cache-memory-bytes 33554432 --max-logprobs 20000"
    with serving(model.base, log, *options.split()) as url:
        yield url


@pytest.fixture(scope="module")
def served(url, model):
    """The endpoint teacher of the server, which gives the log-probabilities of all tokens; of more its engine dies."""
    num = load_configuration(model).vocab_size
    endpoint = EndpointConfig(url=url, model=NAME, kind="vllm", top_logprobs=num, concurrency=8)
    teacher = load_teacher(AskConfig(backend="endpoint", states=(), endpoint=endpoint), None)
    yield teacher
    teacher.close()


def compared(teacher, served, requests, decoding, *, numbers=NUMBERS):
    """The rows of both; largest differences of their numbers where the answers are equal."""
    stateless = teacher.asked(teacher._config.model_copy(update={"states": ()}))
    expected = rows_of(stateless.label(requests, decoding, seed=0))
    rows = rows_of(served.label(requests, decoding, seed=0))
    assert set(rows) == set(expected)
    worst, others = dict.fromkeys(numbers, 0.0), 0
    for row_id, row in rows.items():
        assert row["error"] is None, row
        other = expected[row_id]
        if row["completion"] != other["completion"]:
            others += 1
            continue
        assert row["num_prompt_tokens"] == other["num_prompt_tokens"], (row, other)
        assert row["num_output_tokens"] == other["num_output_tokens"], (row, other)
        for name in worst:
            assert (row[name] is None) == (other[name] is None), (name, row, other)
            if row[name] is not None:
                worst[name] = max(worst[name], float(np.abs(np.subtract(row[name], other[name])).max()))
    print(f"{len(rows)} rows, {others} other answers, worst {worst}")
    assert others <= len(rows) // 50  # ties
    assert max(worst.values()) < 1e-3
    return rows


@pytest.mark.parametrize("decoding", [DecodingConfig(max_tokens=7), DecodingConfig(max_tokens=12, stop=("ishop",))])
def test_free_answers_equal_the_engine_here(teacher, served, requests, decoding):
    rows = compared(teacher, served, requests, decoding)
    assert len({row["num_output_tokens"] for row in rows.values()}) > 3


def test_structured_choices_keep_to_the_options(served, requests):
    options = ("e2", "d4", "Bishop")  # each a word of the vocabulary
    asked = [Request(row_id=r.row_id, prompt=r.prompt, options=options, stepwise=True) for r in requests[:20]]
    rows = rows_of(served.label(asked, DecodingConfig(), seed=0))
    assert all(row["completion"] in options for row in rows.values()), rows


def test_a_model_that_the_server_does_not_have(url):
    from curation.errors import ConfigError

    endpoint = EndpointConfig(url=url, model="other", kind="vllm")
    teacher = load_teacher(AskConfig(backend="endpoint", states=(), endpoint=endpoint), None)
    with pytest.raises(ConfigError, match="refuses every question: 404"):
        rows_of(teacher.label([Request(row_id=0, prompt="a")], DecodingConfig(), seed=0))
    teacher.close()
