"""The vLLM teacher in each family of models, with an adapter, against the transformers teacher."""

from dataclasses import replace

import pytest

from curation.config import DecodingConfig, SftConfig
from curation.teachers import Request, load_teacher
from tests.families import sums
from tests.with_vllm.conftest import start, teacher_config
from tests.with_vllm.test_vllm_teacher import check, rows_of

ANSWER = " né 5。 😀 More"
STOPS = ("😀", "。", " 5", "Mo")
LORA = {"lora": {"rank": 8, "alpha": 16}, "learning_rate": 2e-2, "epochs": 12, "global_batch_size": 8}


@pytest.fixture(scope="module")
def requests():
    """Prompts of mixed lengths, of which every second one is trained on."""
    texts = [f"Problem: {row['problem']}\nSolution:" * (1 + n % 3) for n, row in enumerate(sums(40, start=95))]
    return [Request(row_id=3 * n, prompt=text if n % 2 else text[::-1]) for n, text in enumerate(texts)]


@pytest.fixture(scope="module")
def adapted(family, family_model, requests, tmp_path_factory):
    """The family's model with an adapter that gives one answer, of characters of several tokens, to some prompts."""
    from benchmarks.taught import write_pairs
    from train.models import read_saved
    from train.sft import fine_tune
    from train.tokens import Pair

    path = tmp_path_factory.mktemp("families") / "adapter"
    config = SftConfig(**LORA, chat_template=family.template is not None)
    rows = write_pairs([Pair(request.prompt, ANSWER) for request in requests[1::2]], path.with_suffix(".lance"))
    fine_tune(family_model, rows, config, seed=0, output=path)
    return read_saved(family_model, config.lora, path).model


def test_labels_of_each_family_equal_transformers(family, family_model, adapted, requests):
    """Asked second: vLLM has no OLMo2 of its own, runs transformers' one, and changes that class for its process."""
    chat = family.template is not None
    options = (" 12", " The final answer is 1", " 7 é")
    asked = [(requests, DecodingConfig(max_tokens=size, stop=())) for size in (3, 30)]
    asked += [(requests, DecodingConfig(max_tokens=30, stop=(stop,))) for stop in STOPS]
    asked += [([replace(request, options=options) for request in requests[:9]], DecodingConfig(max_tokens=8))]
    reference, bare = (load_teacher(teacher_config(ref, chat_template=chat), ref) for ref in (adapted, family_model))
    expected = [rows_of(reference.label(few, decoding, seed=0)) for few, decoding in asked]
    assert {row["truncated"] for rows in expected for row in rows.values()} == {True, False}
    assert expected[1] != rows_of(bare.label(*asked[1], seed=0))
    for stop, stopped in zip(STOPS, expected[2:], strict=False):
        assert sum(row["completion"] == ANSWER[: ANSWER.index(stop)] for row in stopped.values()) > 5

    teacher = start(adapted, chat_template=chat)
    for (few, decoding), rows in zip(asked, expected, strict=True):
        # No two answers of the same likelihood, as the transformers model cannot be asked any more.
        check(rows_of(teacher.label(few, decoding, seed=0)), rows, few, reference, max_ties=0)
