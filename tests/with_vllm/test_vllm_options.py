"""What trust functions may read beside the answer's states, from vLLM, against the transformers teacher, in float32."""

from dataclasses import replace

import pytest

from curation.config import DecodingConfig
from curation.teachers import Request, load_teacher
from curation.teachers import vllm as vllm_teacher
from tests.with_vllm.conftest import start, teacher_config
from tests.with_vllm.test_vllm_teacher import LETTERS, TEXTS, both, rows_of, spy, with_options

STATES = ("option3_output_last", "layer1_option2_output_last", "output_mean", "option2_output_last")
K = 3


@pytest.fixture(scope="module")
def pair(model):
    """Both teachers, with a prefix cache of small blocks."""
    teacher = start(
        model, states=STATES, token_logprobs=K, max_num_batched_tokens=32, block_size=32, enforce_eager=False
    )
    return teacher, load_teacher(teacher_config(model, states=STATES, token_logprobs=K), model)


@pytest.mark.parametrize("normalise", [False, True])
def test_states_of_ranked_options_equal_transformers(pair, requests, normalise, monkeypatch):
    """Rows of two to three options, of one token, of several and mixed; the second time from the prefix cache."""
    teacher, reference = pair
    asked = with_options(requests[:60], *LETTERS, *TEXTS)
    scored = spy(monkeypatch, vllm_teacher._Stream, "_score")
    for _ in range(2):
        rows = both(teacher, reference, asked, DecodingConfig(max_tokens=4, normalise_options=normalise))
    assert any(part.tries for _, _, part in scored)
    lacking = [request for request in asked if len(request.options) == 2]
    assert lacking and not any(any(rows[request.row_id]["state_option3_output_last"]) for request in lacking)
    assert teacher.engine.num_held() == 0


def test_the_choice_less_baselines_equals_transformers(pair, requests):
    """Options of one token, whose choice the engine does not make then, and of several; some choices change."""
    teacher, reference = pair
    asked = with_options(requests[:60], *LETTERS, *TEXTS)
    plain = rows_of(reference.label(asked, DecodingConfig(max_tokens=4), seed=0))
    shifted = [
        replace(request, baselines=tuple(-1.5 * place for place in range(len(request.options)))) for request in asked
    ]
    rows = both(teacher, reference, shifted, DecodingConfig(max_tokens=4))
    changed = {len(request.options) for request in asked
               if rows[request.row_id]["completion"] != plain[request.row_id]["completion"]}  # fmt: skip
    assert changed and teacher.engine.num_held() == 0


@pytest.mark.parametrize("stop", [(), ("ishop", "ook")])
def test_log_probabilities_of_the_first_tokens_equal_transformers(pair, requests, stop):
    """Answers of no token up to more than are kept, by stop token, stop string and length; then again."""
    teacher, reference = pair
    stateless = teacher.asked(teacher._config.model_copy(update={"states": ()}))
    reference = reference.asked(reference._config.model_copy(update={"states": ()}))
    decoding = DecodingConfig(max_tokens=7, stop=stop)
    rows = both(stateless, reference, requests[:100], decoding)
    lengths = {row["num_output_tokens"] for row in rows.values()}
    assert 0 in lengths and lengths & {1, 2} and max(lengths) > K
    again = [Request(row_id=10_000 + request.row_id, prompt=request.prompt) for request in requests[:40]]
    both(stateless, reference, again, decoding)
    without = rows_of(teacher.label(requests[:20], decoding, seed=0, states=False))
    assert not any("token_logprobs" in row for row in without.values())
