"""The transformers teacher in each family of models, against transformers itself."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.taught import write_pairs
from curation.config import DecodingConfig, ModelConfig, SftConfig, TeacherConfig
from curation.models import load_tokenizer
from curation.teachers import Request, load_teacher
from tests.families import sums
from train.models import read_saved
from train.sft import fine_tune
from train.tokens import Pair

STATES = ("prompt_last", "output_first", "output_last", "output_mean", "layer1_output_last")
MAX_TOKENS = 12
ANSWER = " né 5。 😀 More"


def label(ref, requests, decoding=DecodingConfig(max_tokens=MAX_TOKENS, stop=()), **settings):  # noqa: B008
    settings = {"states": STATES, "state_dtype": "float32"} | settings
    teacher = load_teacher(TeacherConfig(model=ModelConfig(path=ref.base), **settings), ref)
    rows = [row for batch in teacher.label(requests, decoding, seed=0) for row in batch.to_pylist()]
    return {row["row_id"]: row for row in sorted(rows, key=lambda row: row["row_id"])}


@pytest.fixture(scope="module")
def requests():
    """Prompts of mixed lengths."""
    texts = [f"Problem: {row['problem']}\nSolution:" * (1 + n % 3) for n, row in enumerate(sums(40, start=95))]
    return [Request(row_id=7 * n, prompt=text) for n, text in enumerate(texts)]


@pytest.fixture(scope="module")
def saying(family_model, requests, tmp_path_factory):
    """The model, trained to give every prompt the same answer."""
    path = tmp_path_factory.mktemp("families") / "saying"
    config = SftConfig(preset="scratch", global_batch_size=8, micro_batch_size=8, learning_rate=1e-2, epochs=8)
    answered = [Pair(request.prompt, ANSWER) for request in requests]
    fine_tune(family_model, write_pairs(answered, path.with_suffix(".lance")), config, seed=0, output=path)
    return read_saved(family_model, config.lora, path).model


def prompt_of(tokenizer, prompt, *, chat):
    turn = [{"role": "user", "content": prompt}]
    if chat:
        return tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
    return tokenizer(prompt)["input_ids"]


@pytest.mark.long
@pytest.mark.parametrize("chat", [False, True])
@torch.inference_mode()
def test_labels_and_states_equal_transformers_own(family, family_model, requests, chat):
    """Greedy answers are those of ``generate``, by every end token; the last state is what the head reads."""
    if chat and family.template is None:
        pytest.skip(f"{family.name} is published without a chat template")
    rows = label(family_model, requests, chat_template=chat, batch_tokens=900)
    model = AutoModelForCausalLM.from_pretrained(family_model.base).eval()
    tokenizer = AutoTokenizer.from_pretrained(family_model.base)
    ends = set(tokenizer.convert_tokens_to_ids(list(family.ends)))
    drawn_ends = set()
    for request in requests:
        row, prompt = rows[request.row_id], prompt_of(tokenizer, request.prompt, chat=chat)
        ids = torch.tensor([prompt])
        (out,) = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS + 1, do_sample=False
        )[:, len(prompt) :].tolist()
        stops = [place for place, token in enumerate(out) if token in ends]
        answer = out[: stops[0]] if stops else out[:MAX_TOKENS]
        drawn_ends |= set(out) & ends
        full = model(torch.tensor([prompt + answer]), output_hidden_states=True)
        read_TD = model.model(torch.tensor([prompt + answer])).last_hidden_state[0]
        assert row["error"] is None
        assert (row["num_prompt_tokens"], row["num_output_tokens"]) == (len(prompt), len(answer))
        assert row["completion"] == tokenizer.decode(answer, skip_special_tokens=True)
        assert row["truncated"] is not bool(stops)
        hidden_TD = full.hidden_states[-1][0]
        torch.testing.assert_close(hidden_TD, read_TD, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(model.lm_head(hidden_TD), full.logits[0], atol=1e-4, rtol=1e-4)
        first = len(prompt) if answer else -1
        expected = {
            "prompt_last": hidden_TD[len(prompt) - 1],
            "output_first": hidden_TD[first],
            "output_last": hidden_TD[-1],
            "output_mean": hidden_TD[len(prompt) :].mean(dim=0) if answer else hidden_TD[-1],
            "layer1_output_last": full.hidden_states[1][0, -1],
        }
        for name, state_D in expected.items():
            np.testing.assert_allclose(row[f"state_{name}"], state_D.numpy(), atol=2e-4, err_msg=name)
        stored_D = torch.tensor(row["state_output_last"])
        torch.testing.assert_close(model.lm_head(stored_D), full.logits[0, -1], atol=1e-3, rtol=1e-3)
    assert {row["truncated"] for row in rows.values()} == {True, False}
    assert len({row["num_prompt_tokens"] for row in rows.values()}) >= 3
    names = tokenizer.convert_ids_to_tokens(sorted(drawn_ends))
    print(f"\n{family.name}, chat template {'on' if chat else 'off'}: answers ended by {', '.join(names)}")


@pytest.mark.long
def test_a_padded_batch_gives_what_rows_give_alone(family, family_model, requests):
    """Also where the padding token is the end token, and where attention slides."""
    together, alone = (label(family_model, requests, batch_tokens=size) for size in (4000, 1))
    for row_id, row in together.items():
        for name, value in alone[row_id].items():
            if isinstance(value, (list, float)):
                np.testing.assert_allclose(row[name], value, atol=2e-4, err_msg=name)
            else:
                assert row[name] == value, name


def test_options_cost_what_the_model_says(family, family_model, requests):
    options = (" The final answer is 1", " 2", " \\boxed{12} é")
    given = [replace(request, options=options) for request in requests[:9]]
    rows = label(family_model, given, batch_tokens=400)
    model = AutoModelForCausalLM.from_pretrained(family_model.base).eval()
    tokenizer = AutoTokenizer.from_pretrained(family_model.base)
    for request in given:
        prompt = tokenizer(request.prompt)["input_ids"]
        for option, found in zip(options, rows[request.row_id]["option_logprobs"], strict=True):
            ids = tokenizer(request.prompt + option)["input_ids"]
            assert ids[: len(prompt)] == prompt and len(ids) > len(prompt)
            with torch.inference_mode():
                logprob_TV = model(torch.tensor([ids])).logits[0].double().log_softmax(dim=-1)
            expected = sum(float(logprob_TV[place - 1, ids[place]]) for place in range(len(prompt), len(ids)))
            assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.long
@pytest.mark.parametrize(
    ("stop", "text"), [("😀", " né 5。 "), ("。", " né 5"), (" 5", " né"), ("é 5", " n"), ("More", " né 5。 😀 ")]
)
@torch.inference_mode()
def test_stop_strings_and_characters_of_several_tokens(family, saying, requests, stop, text):
    """A character that the vocabulary lacks is several tokens, none of which is it; the answer has them all or none."""
    rows = label(saying, requests[:3], DecodingConfig(max_tokens=30, stop=(stop,)))
    tokenizer = load_tokenizer(saying)
    model = AutoModelForCausalLM.from_pretrained(saying.base).eval()
    answer = tokenizer(ANSWER, add_special_tokens=False)["input_ids"]
    num_tokens = next(k for k in range(99) if tokenizer.decode(answer[:k]).startswith(text))
    assert len(tokenizer("😀", add_special_tokens=False)["input_ids"]) >= 4
    for request in requests[:3]:
        row, prompt = rows[request.row_id], tokenizer(request.prompt)["input_ids"]
        assert (row["completion"], row["truncated"], row["num_output_tokens"]) == (text, False, num_tokens)
        state_TD = model.model(torch.tensor([prompt + answer[:num_tokens]])).last_hidden_state[0]
        np.testing.assert_allclose(row["state_output_last"], state_TD[-1], atol=2e-4)
        np.testing.assert_allclose(row["state_output_mean"], state_TD[len(prompt) :].mean(dim=0), atol=2e-4)
