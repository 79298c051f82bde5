"""Prompts in the tokenizer's chat template."""

import shutil

import pytest
from tokenizers.processors import TemplateProcessing

from curation.config import DecodingConfig, ModelConfig, TeacherConfig
from curation.errors import ModelError
from curation.models import load_tokenizer, resolve
from curation.teachers import Request, load_teacher

TEMPLATE = (
    "{{ '<eos>' }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'White: ' }}{% endif %}"
)
DECODING = DecodingConfig(max_tokens=3)


@pytest.fixture(scope="module")
def chat_model(tiny_model, tmp_path_factory):
    """The tiny model with a chat template, and a tokenizer that starts every text with a special token."""
    path = tmp_path_factory.mktemp("models") / "chat"
    shutil.copytree(tiny_model.base, path)
    tokenizer = load_tokenizer(tiny_model)
    tokenizer.chat_template = TEMPLATE
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<eos> $A", special_tokens=[("<eos>", tokenizer.eos_token_id)]
    )
    tokenizer.save_pretrained(path)
    return resolve(str(path))


def label(ref, requests, *, chat_template):
    config = TeacherConfig(model=ModelConfig(path=ref.base), state_dtype="float32", chat_template=chat_template)
    batches = load_teacher(config, ref).label(requests, DECODING, seed=0)
    return {row["row_id"]: row for batch in batches for row in batch.to_pylist()}


@pytest.mark.parametrize("options", [None, (" e2e4", " d2d4 e7e5")])
def test_the_prompt_is_one_user_turn_with_its_special_tokens_once(chat_model, options):
    prompts = ["Side to move: White", "White: a1 Rook; c1 Bishop"]
    requests = [Request(row_id=k, prompt=prompt, options=options) for k, prompt in enumerate(prompts)]
    rows = label(chat_model, requests, chat_template=True)
    tokenizer = load_tokenizer(chat_model)
    for request in requests:
        turn = [{"role": "user", "content": request.prompt}]
        expected = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
        assert expected.count(tokenizer.eos_token_id) == 1
        assert rows[request.row_id]["num_prompt_tokens"] == len(expected)
    # The tokenizer adds the special token to the template's text without it: the same tokens, so the same rows.
    texts = [f"user: {prompt}\nWhite: " for prompt in prompts]
    wrapped = [Request(row_id=k, prompt=text, options=options) for k, text in enumerate(texts)]
    assert label(chat_model, wrapped, chat_template=False) == rows
    assert label(chat_model, requests, chat_template=False) != rows


def test_a_tokenizer_without_a_template_is_refused(tiny_model):
    with pytest.raises(ModelError, match=r"chat_template: true needs .* has none; set chat_template: false"):
        label(tiny_model, [], chat_template=True)
