"""Options in pairs, yes and no of several questions about one prompt: from vLLM, against the transformers teacher."""

from dataclasses import replace

import pytest

from curation.config import DecodingConfig
from curation.teachers import load_teacher
from curation.teachers import vllm as vllm_teacher
from tests.with_vllm.conftest import start, teacher_config
from tests.with_vllm.test_vllm_teacher import both, rows_of, spy

STATES = ("prompt_last", "output_mean", "output_last")
QUESTIONS = ("a1", "Bishop c4", "e8 Knight")
PAIRS = tuple(f"{question} {word}" for question in QUESTIONS for word in ("b2", "g7"))
LETTERS = ("a1", "h8", "c3", "f6")


@pytest.fixture(scope="module")
def pair(model):
    """Both teachers, with a prefix cache of small blocks."""
    teacher = start(model, states=STATES, token_logprobs=2, block_size=32)
    return teacher, load_teacher(teacher_config(model, states=STATES, token_logprobs=2), model)


@pytest.mark.parametrize("options", [PAIRS, LETTERS])
def test_answers_numbers_and_states_equal_transformers(pair, requests, options, monkeypatch):
    """Questions of several tokens, and pairs of one token each; the second time from the prefix cache."""
    teacher, reference = pair
    asked = [replace(request, options=options, in_pairs=True) for request in requests[:60]]
    fed = spy(monkeypatch, vllm_teacher._Stream, "_send")
    for _ in range(2):
        rows = both(teacher, reference, asked, DecodingConfig(max_tokens=4), max_ties=0)
    assert len({row["completion"] for row in rows.values()}) > 1
    assert {row["num_options"] for row in rows.values()} > {1}
    assert all(len(row["option_logprobs"]) == len(options) for row in rows.values())
    prompts = sum(len(tokens) == len(row.given.prompt) for _, row, _, tokens, _ in fed)
    assert prompts == 2 * len(asked), "the prompt alone is fed once a row"
    bare = rows_of(teacher.label(asked, DecodingConfig(max_tokens=4), seed=0, states=False))
    assert all(row["completion"] == rows[row_id]["completion"] for row_id, row in bare.items())
    shifted = [replace(request, baselines=(0.0, 1.5) * (len(options) // 2)) for request in asked]
    less = both(teacher, reference, shifted, DecodingConfig(max_tokens=4), max_ties=0)
    assert sum(row["num_options"] for row in less.values()) > sum(row["num_options"] for row in rows.values())
    assert teacher.engine.num_held() == 0
