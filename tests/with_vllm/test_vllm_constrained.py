"""Constrained decoding by vLLM against the transformers teacher, which is checked against plain forwards."""

import pytest

from curation.config import DecodingConfig, DomainConfig
from curation.domains import get_domain
from curation.domains.given import as_asked
from curation.signals import label_request
from curation.teachers import Request
from tests.with_vllm.test_vllm_teacher import both, rows_of


def asked(examples, decoding):
    domain = as_asked(get_domain(DomainConfig(name="chess")), decoding)
    return [label_request(domain, 2 * place, example) for place, example in enumerate(examples)]


@pytest.fixture(scope="module")
def examples(puzzles):
    domain = get_domain(DomainConfig(name="chess"))
    return [domain.read(raw) for raw in puzzles[:500]]


@pytest.mark.parametrize("constrained", ["scored", "stepwise"])
def test_moves_of_500_positions_equal_transformers(teacher, reference, examples, constrained):
    decoding = DecodingConfig(constrained=constrained)
    requests = asked(examples, decoding)
    rows = both(teacher, reference, requests, decoding)
    assert all(rows[request.row_id]["completion"] in request.options for request in requests)
    assert all((row["option_logprobs"] is not None) == (constrained == "scored") for row in rows.values())
    assert teacher.engine.num_held() == teacher.engine.num_unfinished == 0


def test_scored_without_states_feeds_no_option_again(teacher, reference, examples):
    decoding = DecodingConfig(constrained="scored", normalise_options=True)
    requests = asked(examples[:60], decoding)
    stateless = teacher.asked(teacher._config.model_copy(update={"states": ()}))
    both(stateless, reference.asked(reference._config.model_copy(update={"states": ()})), requests, decoding)


def test_options_that_begin_others_and_longer_than_the_limit(teacher, reference, examples):
    """In one stream with free answers, which are not held."""
    texts = (" e2e4", " e2e4 e7e5", " e2e4 e7e5 g1f3 b8c6", " d2d4", " e2")
    decoding = DecodingConfig(constrained="stepwise", max_tokens=2, stop=("e",))
    prompts = [request.prompt for request in asked(examples[:60], decoding)]
    held = [Request(row_id=k, prompt=prompt, options=texts, stepwise=True) for k, prompt in enumerate(prompts)]
    free = [Request(row_id=1000 + k, prompt=prompt) for k, prompt in enumerate(prompts)]
    mixed = [request for pair in zip(held, free, strict=True) for request in pair]
    rows = both(teacher, reference, mixed, decoding)
    assert all(rows[request.row_id]["completion"] in texts for request in held)


def test_samples_stay_within_the_moves_and_depend_on_the_row_alone(teacher, examples):
    decoding = DecodingConfig(constrained="stepwise", temperature=2.0)
    requests = asked(examples[:80], decoding)
    rows = rows_of(teacher.label(requests, decoding, seed=4))
    again = rows_of(teacher.label(requests[::-1], decoding, seed=4))
    other = rows_of(teacher.label(requests, decoding, seed=5))
    assert all(rows[request.row_id]["completion"] in request.options for request in requests)
    assert {k: row["completion"] for k, row in rows.items()} == {k: row["completion"] for k, row in again.items()}
    assert sum(rows[k]["completion"] != other[k]["completion"] for k in rows) > 20
