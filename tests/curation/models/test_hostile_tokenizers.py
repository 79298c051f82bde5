"""Tokenizers whose patterns take ever longer on some texts: the model is named, and no process dies of it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from curation.errors import ModelError
from curation.models import decode_tokens, encode_prefixes, encode_texts, load_tokenizer, resolve
from train.tokens import encode_completions

EXPLODES = r"(?:.|\s|.)*[^\s\S]"
"""No text has it, and there are ever more ways to find that out."""


def hostile(good: str, folder: Path, part: str, value: dict[str, Any]) -> Any:
    shutil.copytree(good, folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), part: value}))
    return load_tokenizer(resolve(str(folder)))


@pytest.mark.parametrize("part, value", [
    ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": EXPLODES}, "behavior": "Isolated", "invert": False}),
    ("normalizer", {"type": "Replace", "pattern": {"Regex": EXPLODES}, "content": ""}),
])  # fmt: skip
def test_a_pattern_that_explodes_on_a_text_names_the_model(
    tiny_model: Any, tmp_path: Path, part: str, value: dict[str, Any]
) -> None:
    tokenizer = hostile(tiny_model.base, tmp_path / "model", part, value)
    text = "a long text on which it explodes, of a row"
    for use in (
        lambda: encode_texts(tokenizer, [text], special=True),
        lambda: encode_prefixes(tokenizer, [text], special=True),
        lambda: encode_completions(tokenizer, [text]),
    ):
        with pytest.raises(ModelError, match=r"its tokenizer gives up on a text \(.*retry-limit.*give another model"):
            use()
    assert encode_texts(tokenizer, ["ab"], special=True), "a short one is read"


def test_a_decoder_that_explodes_names_the_model(tiny_model: Any, tmp_path: Path) -> None:
    decoder = {"type": "Replace", "pattern": {"Regex": EXPLODES}, "content": ""}
    good = load_tokenizer(tiny_model)
    tokens = [n for n in range(len(good)) if n not in good.all_special_ids] * 9
    assert decode_tokens(good, tokens) == good.decode(tokens)
    tokenizer = hostile(tiny_model.base, tmp_path / "model", "decoder", {"type": "Sequence", "decoders": [
        {"type": "Fuse"}, decoder,
    ]})  # fmt: skip
    with pytest.raises(ModelError, match="its tokenizer gives up on a text"):
        decode_tokens(tokenizer, tokens)
