"""States of options that were not chosen from vLLM, against the transformers teacher, row by row, in float32."""

import pytest

from curation.config import DecodingConfig
from curation.teachers import load_teacher
from curation.teachers import vllm as vllm_teacher
from tests.vllm.conftest import start, teacher_config
from tests.vllm.test_vllm_teacher import LETTERS, TEXTS, both, spy, with_options

STATES = ("option3_output_last", "layer1_option2_output_last", "output_mean", "option2_output_last")


@pytest.fixture(scope="module")
def pair(model):
    """Both teachers, with a prefix cache of small blocks."""
    teacher = start(model, states=STATES, max_num_batched_tokens=32, block_size=32, enforce_eager=None)
    return teacher, load_teacher(teacher_config(model, states=STATES), model)


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
