"""What is read from a model's JSON files is what transformers reads, and a look at a run does not import torch."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

from curation.models import (
    as_user_turns,
    encode_prefixes,
    from_json,
    load_configuration,
    load_tokenizer,
    read_configuration,
)
from curation.models.from_json import FAMILIES
from curation.refs import ModelRef
from curation.teachers import Request
from curation.teachers.prompts import tokenise

SIZES = {
    "hidden_size": 96,
    "intermediate_size": 80,
    "max_position_embeddings": 512,
    "num_attention_heads": 6,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "vocab_size": 300,
}
TEXTS = [
    "",
    "a b",
    " before",
    "after ",
    "two\n\nlines\tand  spaces",
    "naïve café ﷺ Å",
    "日本語",
    "😀👩‍👩‍👧",
    "<s>ab</s>",
    "</s>",
    "x" * 999,
]
TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}{% endfor %} [answer]"


def write(folder: Path, **config: object) -> ModelRef:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return ModelRef(base=str(folder))


def same(ref: ModelRef, config: dict[str, object]) -> None:
    own = load_configuration(ref).get_text_config()
    assert all(config[name] == getattr(own, name) for name in from_json.SIZES)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_configuration_is_that_of_transformers(tmp_path: Path, family: str) -> None:
    AutoConfig.for_model(family, **SIZES, head_dim=24, dtype="bfloat16").save_pretrained(tmp_path / "saved")
    ref = ModelRef(base=str(tmp_path / "saved"))
    found = from_json.read_json_configuration(ref)
    assert found is not None
    same(ref, found)


@pytest.mark.parametrize("head_dim", [24, None])
@pytest.mark.parametrize("more", [{}, {"sliding_window": 64}, {"sliding_window": 64, "use_sliding_window": True},
                                  {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
                                  {"layer_types": ["sliding_attention", *["full_attention"] * 2]}])  # fmt: skip
@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_configuration_leaves_out_is_its_family_s(
    tmp_path: Path, family: str, more: dict[str, object], head_dim: int | None
) -> None:
    heads = {} if head_dim is None else {"head_dim": head_dim}
    ref = write(tmp_path / "sparse", model_type=family, **SIZES, **heads, **more)
    found = from_json.read_json_configuration(ref)
    if found is not None:
        same(ref, found)
    same(ref, read_configuration(ref))
    assert found is not None


@pytest.mark.parametrize("changed", [*from_json.SIZES, {"hidden_size": "wide"}, {"num_hidden_layers": True},
                                     {"num_hidden_layers": 0}, {"model_type": "gpt2"}, {"num_attention_heads": 5},
                                     {"auto_map": {"AutoConfig": "own.Own"}},
                                     {"quantization_config": {"quant_method": "gptq"}}])  # fmt: skip
def test_other_configurations_are_left_to_transformers(tmp_path: Path, changed: str | dict[str, object]) -> None:
    sizes = {name: value for name, value in SIZES.items() if name != changed}
    config = {"model_type": "llama"} | sizes | (changed if isinstance(changed, dict) else {})
    assert from_json.read_json_configuration(write(tmp_path, **config)) is None


def byte_level(folder: Path, **settings: object) -> ModelRef:
    """A tokenizer with bytes for what it never saw, whose tokenizer.json cuts and pads and has a beginning."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True) for token in ("<s>", "</s>", "<pad>")]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    backend.train_from_iterator(["the lines and the spaces of a naïve café"] * 9, trainer)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    backend.enable_truncation(50)
    backend.enable_padding(length=60)
    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **named).save_pretrained(folder)  # type: ignore[no-untyped-call]
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    return write(folder, model_type="llama", **SIZES)


def check_alike(ref: ModelRef, texts: list[str]) -> None:
    ours, theirs = from_json.load_json_tokenizer(ref), load_tokenizer(ref)
    assert ours is not None and ours.eos_token_id == theirs.eos_token_id
    for special in (True, False):
        assert encode_prefixes(ours, texts, special=special) == encode_prefixes(theirs, texts, special=special)  # type: ignore[arg-type]
    if theirs.chat_template:
        assert as_user_turns(ours, texts) == as_user_turns(theirs, texts)  # type: ignore[arg-type]
    requests = [Request(row_id=row, prompt=text, options=(" yes", " no way")) for row, text in enumerate(texts)]
    for chat_template in {False, bool(theirs.chat_template)}:
        found, expected = (tokenise(of, requests, chat_template=chat_template) for of in (ours, theirs))  # type: ignore[arg-type]
        assert [(row.prompt, row.options) for row in found] == [(row.prompt, row.options) for row in expected]


@pytest.mark.parametrize("settings", [
    {},
    {"add_bos_token": False},
    {"add_bos_token": True, "add_eos_token": True},
    {"add_eos_token": True, "bos_token": None},
    {"split_special_tokens": True},
    {"chat_template": TEMPLATE},
    {"eos_token": {"__type": "AddedToken", "content": "</s>", "special": True, "lstrip": False, "rstrip": False,
                   "normalized": False, "single_word": False}},
])  # fmt: skip
def test_a_tokenizer_counts_as_transformers_does(tmp_path: Path, settings: dict[str, object]) -> None:
    check_alike(byte_level(tmp_path / "model", **settings), TEXTS)


def test_a_template_of_its_own_file_comes_first(tmp_path: Path) -> None:
    ref = byte_level(tmp_path / "model", chat_template="{{ messages[0].content }}")
    (tmp_path / "model/chat_template.jinja").write_text(TEMPLATE)
    check_alike(ref, TEXTS)
    ours = from_json.load_json_tokenizer(ref)
    assert ours is not None and as_user_turns(ours, [" a "]) == ["<s>[user] a [answer]"]  # type: ignore[arg-type]


def unlinked(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def setting(**values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


@pytest.mark.parametrize("change", [
    unlinked,
    lambda folder: (folder / "tokenizer.json").write_text("{"),
    lambda folder: (folder / "tokenizer_config.json").unlink(),
    setting(tokenizer_class="LlamaTokenizer"),
    setting(eos_token=None),
    setting(eos_token="<new>"),
    setting(extra_special_tokens=["<new>"]),
    setting(added_tokens_decoder={"300": {"content": "<new>", "special": True}}),
    setting(auto_map={"AutoTokenizer": [None, "own.Own"]}),
    setting(chat_template=[{"name": "default", "template": TEMPLATE}]),
])  # fmt: skip
def test_other_tokenizers_are_left_to_transformers(tmp_path: Path, change: Callable[[Path], None]) -> None:
    ref = byte_level(tmp_path / "model")
    assert from_json.load_json_tokenizer(ref) is not None
    change(tmp_path / "model")
    assert from_json.load_json_tokenizer(ref) is None


@pytest.mark.parametrize("name, family", [("gemma3", "gemma3_text"), ("qwen3", "qwen3"), ("llama3_1", "llama")])
def test_published_tokenizers_count_as_transformers_does(tmp_path: Path, name: str, family: str) -> None:
    """CURATION_TOKENIZERS: a folder with a folder for each of them, with tokenizer.json and tokenizer_config.json."""
    folder = Path(os.environ.get("CURATION_TOKENIZERS", "nowhere")) / name
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    shutil.copytree(folder, tmp_path / "model")
    ref = write(tmp_path / "model", model_type=family)
    special = list(AutoTokenizer.from_pretrained(ref.base).added_tokens_encoder)[:40]
    check_alike(ref, [*TEXTS, *special, " and ".join(special), *(chr(code) * 3 for code in range(32, 0x3000, 7))])


LOOK = """
import sys
from curation.cli import main
HEAVY = {"torch", "transformers.models", "transformers.generation", "ray", "sklearn", "chess"}
try:
    main(sys.argv[1:], standalone_mode=False)
finally:
    print("imported:", *sorted(HEAVY & set(sys.modules)))
"""


@pytest.mark.long
@pytest.mark.parametrize("chat_template", [False, True])
def test_a_look_imports_neither_torch_nor_classes_of_models(
    tmp_path: Path, tiny_model: ModelRef, chat_template: bool
) -> None:
    shutil.copytree(tiny_model.base, tmp_path / "model")
    setting(chat_template="{{ messages[0].content }}")(tmp_path / "model")
    (tmp_path / "labelled.csv").write_text("text,label\n" + "a1 Rook,a1\nc1 Bishop,c1\n" * 50)
    (tmp_path / "unlabelled.csv").write_text("text\n" + "".join(f"a1 Rook {row}\n" for row in range(100)))
    config = {
        "name": "look",
        "domain": {"name": "classification", "classes": ["a1", "c1"]},
        "sources": {name: {"path": f"{name}.csv"} for name in ("labelled", "unlabelled")},
        "splits": {"source": {"from": "labelled"}, "pool": {"from": "unlabelled"}},
        "teacher": {"model": {"path": "model"}, "states": ["output_last"], "chat_template": chat_template},
        "selection": {"budget": {"share": 0.1}},
        "generations": [],
    }
    (tmp_path / "look.yaml").write_text(yaml.safe_dump(config))
    done = subprocess.run(
        [sys.executable, "-c", LOOK, "validate", "look.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported:"
    assert "memory of an actor with the teacher" in done.stdout
