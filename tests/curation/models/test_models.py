"""Models and tokenizers that cannot serve are refused with what is wrong and how to mend it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from peft import LoraConfig, get_peft_model
from tokenizers.processors import TemplateProcessing

from benchmarks.taught import write_pairs
from curation.config import ModelConfig, SftConfig, TeacherConfig
from curation.errors import ModelError
from curation.models import encode_prefixes, load_model, load_tokenizer, resolve
from curation.refs import ModelRef
from curation.teachers import load_teacher
from tests.families import GEMMA3, LLAMA, NUM_SPARE, QWEN3, make_model
from train.sft import fine_tune
from train.tokens import Pair, prompt_ids, tokenize


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> ModelRef:
    return make_model(LLAMA, tmp_path_factory.mktemp("models") / "llama")


def adapter_of(model: ModelRef, path: Path) -> Path:
    adapter = LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", task_type="CAUSAL_LM")
    get_peft_model(load_model(model), adapter).save_pretrained(path)
    return path


def moved(adapter: Path, path: Path, *, made_for: str = "org/gone") -> Path:
    """A copy of an adapter whose own base is not at hand."""
    shutil.copytree(adapter, path)
    described = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps(described | {"base_model_name_or_path": made_for}))
    return path


def refusal(base: ModelRef, adapter: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(resolve(base.base, adapter=str(adapter)))
    message = str(caught.value)
    assert str(adapter) in message and base.base in message and "give that model as the adapter's base" in message
    return message


def test_an_adapter_of_another_base_is_refused(llama: ModelRef, tmp_path: Path) -> None:
    """By the base that it names where that is at hand, else by its modules and shapes."""
    deeper = make_model(LLAMA, tmp_path / "deeper", layers=3)
    own, deep = adapter_of(llama, tmp_path / "own"), adapter_of(deeper, tmp_path / "deep")
    assert load_model(resolve(llama.base, adapter=str(own)))
    assert load_model(resolve(llama.base, adapter=str(moved(own, tmp_path / "moved"))))
    assert "num_hidden_layers is 2 here, and 3 where it was made" in refusal(llama, deep)
    assert "num_hidden_layers is 3 here, and 2 where it was made" in refusal(deeper, own)
    message = refusal(llama, moved(deep, tmp_path / "moved-deep"))
    assert "14 of its weights have no place" in message and "layers.2" in message and "org/gone" in message
    qwen = make_model(QWEN3, tmp_path / "qwen")
    assert "model_type is 'qwen3' here, and 'llama' where it was made" in refusal(qwen, own)
    wide = replace_shape(llama, tmp_path / "wide", intermediate_size=128)
    assert "size mismatch" in refusal(wide, moved(own, tmp_path / "moved-own"))
    assert "arget modules" in refusal(llama, renamed(own, tmp_path / "renamed"))


def replace_shape(model: ModelRef, path: Path, **changes: int) -> ModelRef:
    """A random model like another one, but for some numbers of its shape."""
    family = replace(LLAMA, settings=LLAMA.settings | changes)
    return make_model(family, path)


def renamed(adapter: Path, path: Path) -> Path:
    """A copy of an adapter for modules that no model has."""
    moved(adapter, path)
    described = json.loads((path / "adapter_config.json").read_text())
    described["target_modules"] = ["query_key_value"]
    (path / "adapter_config.json").write_text(json.dumps(described))
    return path


def without(model: ModelRef, path: Path, *names: str) -> ModelRef:
    """A copy of a model whose tokenizer does not name some special tokens."""
    shutil.copytree(model.base, path)
    described = json.loads((path / "tokenizer_config.json").read_text())
    described = {key: value for key, value in described.items() if key not in names}
    (path / "tokenizer_config.json").write_text(json.dumps(described))
    return resolve(str(path))


def test_a_tokenizer_without_padding_pads_by_its_end_and_needs_one(llama: ModelRef, tmp_path: Path) -> None:
    assert load_tokenizer(llama).pad_token == LLAMA.eos
    neither = without(llama, tmp_path / "neither", "eos_token", "pad_token")
    with pytest.raises(ModelError, match=r"neither a padding nor an end token.* set pad_token or eos_token in its"):
        load_tokenizer(neither)


def test_training_needs_an_end_token(tmp_path: Path) -> None:
    endless = without(
        make_model(replace(QWEN3, tokenizer_class="PreTrainedTokenizerFast"), tmp_path / "a"),
        tmp_path / "b",
        "eos_token",
    )
    tokenizer = load_tokenizer(endless)
    assert (tokenizer.eos_token, tokenizer.pad_token) == (None, QWEN3.pad)
    with pytest.raises(ModelError, match=r"has no end token, with which a completion is to end; set eos_token in its"):
        tokenize(tokenizer, [Pair("a", "b")], 9)


def test_a_padding_token_that_the_model_has_no_embedding_for_is_refused(llama: ModelRef, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(llama)
    tokenizer.add_tokens([f"<spare{index}>" for index in range(NUM_SPARE)])
    tokenizer.add_special_tokens({"pad_token": "<added>"})
    shutil.copytree(llama.base, tmp_path / "added")
    tokenizer.save_pretrained(tmp_path / "added")
    ref = resolve(str(tmp_path / "added"))
    match = r"pad_token '<added>' is token (\d+), and the model has embeddings for \1; name a token among those"
    with pytest.raises(ModelError, match=match):
        load_teacher(TeacherConfig(model=ModelConfig(path=ref.base)), ref)
    with pytest.raises(ModelError, match=match):
        fine_tune(
            ref, write_pairs([Pair("a", "b")], tmp_path / "rows.lance"), SftConfig(), seed=0, output=tmp_path / "out"
        )


@pytest.mark.long
def test_a_model_whose_generation_settings_contradict_themselves_is_saved(llama: ModelRef, tmp_path: Path) -> None:
    """Published ones name a temperature and do not sample, which transformers loads and refuses to save."""
    shutil.copytree(llama.base, tmp_path / "odd")
    path = tmp_path / "odd" / "generation_config.json"
    given = json.loads(path.read_text())
    path.write_text(json.dumps(given | {"do_sample": False}))
    ref = resolve(str(tmp_path / "odd"))
    config = SftConfig(preset="scratch", global_batch_size=2, micro_batch_size=2, epochs=1)
    fine_tune(ref, write_pairs([Pair("a", "b")], tmp_path / "rows.lance"), config, seed=0, output=tmp_path / "out")
    saved = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert all(saved[name] == given[name] for name in ("eos_token_id", "temperature", "top_p"))
    with_adapter = resolve(ref.base, adapter=str(adapter_of(ref, tmp_path / "adapter")))
    load_model(with_adapter).save_pretrained(tmp_path / "merged")


def test_prompts_end_where_the_answer_begins(tmp_path: Path) -> None:
    """Also of a tokenizer that ends every text by itself, for training and teachers alike."""
    model = make_model(GEMMA3, tmp_path / "gemma")
    plain, ending = load_tokenizer(model), load_tokenizer(model)
    ids = [(token, plain.convert_tokens_to_ids(token)) for token in ("<bos>", "<eos>")]
    ending.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A <eos>", special_tokens=ids)
    assert ending("a b")["input_ids"] == [*plain("a b")["input_ids"], plain.eos_token_id]
    assert prompt_ids(ending, ["a b"]) == encode_prefixes(ending, ["a b"], special=True) == [plain("a b")["input_ids"]]
    # What a template writes last belongs to the prompt, whatever it is.
    ending.chat_template = "{{ messages[0].content }}<eos>"
    (ids,) = prompt_ids(ending, ["a"], chat_template=True)
    assert ids[-1] == ending.eos_token_id
