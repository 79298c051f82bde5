"""Answers that came with the rows, read by vLLM, against the transformers teacher, in float32."""

from dataclasses import replace

import pytest

from curation.config import DecodingConfig
from tests.with_vllm.test_vllm_teacher import LETTERS, TEXTS, both, rows_of, with_options

GREEDY = DecodingConfig(max_tokens=4)


@pytest.fixture(scope="module")
def readers(teacher, reference):
    """Both teachers as readers; the engine's steps take fewer tokens than prompts have."""
    return tuple(
        each.asked(config.model_copy(update={"reads_given": True}))
        for each, config in ((teacher, teacher._config), (reference, reference._config))
    )


def test_free_answers_equal_transformers(readers, teacher, reference, requests):
    """Answers of one to some tokens, of another seed than any that is drawn; then again, from the prefix cache."""
    drawn = {}
    for place, length in enumerate((1, 2, 5, 9)):
        some = requests[20 * place : 20 * place + 20]
        drawn |= rows_of(reference.label(some, DecodingConfig(max_tokens=length, temperature=1.0), seed=5))
    given = [
        replace(request, given=drawn[request.row_id]["completion"])
        for request in requests[:80]
        if drawn[request.row_id]["completion"]
    ]
    assert len(given) > 60
    for _ in range(2):
        rows = both(*readers, given, GREEDY)
    assert all(rows[request.row_id]["completion"] == request.given for request in given)
    assert teacher.engine.num_held() == teacher.engine.num_unfinished == 0


def test_given_options_equal_transformers(readers, requests):
    """Options of one token and of several, and each of them as the given one; one that is none of them."""
    asked = with_options(requests[:60], *LETTERS, *TEXTS)
    given = [
        replace(request, given=request.options[place % len(request.options)]) for place, request in enumerate(asked)
    ]
    rows = both(*readers, given, GREEDY)
    assert all(rows[request.row_id]["completion"] == request.given for request in given)
    assert {rows[request.row_id]["margin"] > 0 for request in given} == {True, False}
    other = [replace(request, given=drawn) for request, drawn in zip(asked[:10], [" e4", "d4 Rook"] * 5, strict=True)]
    rows = both(*readers, other, GREEDY)
    assert all(rows[request.row_id]["option_logprobs"] is None for request in other)


def test_answers_that_cannot_be_read_are_error_rows(readers, requests):
    bad = [replace(requests[0], given=""), replace(requests[1], given=None), replace(requests[2], given="e4 " * 90)]
    rows, expected = (rows_of(each.label(bad, GREEDY, seed=0)) for each in readers)
    assert {row_id: row["error"] for row_id, row in rows.items()} == {
        row_id: row["error"] for row_id, row in expected.items()
    }
    assert [rows[request.row_id]["error"].partition(":")[0] for request in bad] == [
        "no_completion",
        "no_completion",
        "prompt_length",
    ]
