"""Readers of a model's configuration and tokenizer from their JSON files, like transformers but without torch.

transformers imports torch with a configuration or a tokenizer, which takes longer than all else that a look at a run
does. If the files alone do not suffice, both functions return None, and the caller uses transformers.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from curation.json_types import Json, JsonView
from curation.models.own_code import find_model_file, read_model_file
from curation.refs import ModelRef

FAMILIES = ("gemma3_text", "llama", "mistral", "olmo2", "qwen2", "qwen3")
"""Values of ``model_type`` whose configurations state the sizes as transformers reads them."""
SIZES = ("hidden_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers")
"""Keys that are required, since families differ in their defaults."""
AS_IT_STANDS = ("PreTrainedTokenizer", "TokenizersBackend", "GemmaTokenizer", "Qwen2Tokenizer")
"""Classes, without ``Fast``, that use tokenizer.json unchanged, while others rebuild it."""


def read_json_configuration(ref: ModelRef) -> Json | None:
    """Return the ``SIZES`` of a text model's configuration, or None if that takes transformers."""
    config = read_model_file(ref, "config.json") or {}
    sizes = {name: config.get(name) for name in SIZES}
    if config.get("model_type") not in FAMILIES or {"auto_map", "quantization_config"} & config.keys():
        return None
    if not all(type(size) is int and size > 0 for size in sizes.values()):
        return None
    if config.get("head_dim") is None and config["hidden_size"] % config["num_attention_heads"]:
        return None  # transformers refuses it
    return sizes


def load_json_tokenizer(ref: ModelRef) -> "JsonTokenizer | None":
    """Return a model's tokenizer, or None if tokenizer.json cannot be read or does not fully define it."""
    path, settings = find_model_file(ref, "tokenizer.json"), read_model_file(ref, "tokenizer_config.json")
    if path is None or settings is None or "auto_map" in settings:
        return None
    if str(settings.get("tokenizer_class")).removesuffix("Fast") not in AS_IT_STANDS:
        return None
    template = settings.get("chat_template")
    if (file := find_model_file(ref, "chat_template.jinja")) is not None:
        template = file.read_text(encoding="utf-8")
    special = {
        name: text for name, token in settings.items() if name.endswith("_token") and (text := _get_content(token))
    }
    if "eos_token" not in special or not isinstance(template, str | None):
        return None  # the end token follows from the class, or there are several templates
    try:
        backend = _load_backend(str(path), path.stat().st_mtime_ns, path.stat().st_size)
    except Exception:  # the library raises no narrower class; transformers then reports what is wrong
        return None
    added = settings.get("added_tokens_decoder")
    more = [settings.get(name) for name in ("extra_special_tokens", "additional_special_tokens")]
    named = [*special.values(), *(_get_content(token) for token in (added if isinstance(added, dict) else {}).values())]
    named += [_get_content(token) for tokens in more if isinstance(tokens, list) for token in tokens]
    if not set(named) <= {token.content for token in backend.get_added_tokens_decoder().values()}:
        return None  # transformers would add them
    return JsonTokenizer(ref.base, backend, special, settings, template)


@lru_cache(maxsize=1)
def _load_backend(path: str, modified_ns: int, size: int) -> Any:
    """Return the tokenizer of a tokenizer.json, cached since it is read twice and 33 MB take most of a second."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(path)


class JsonTokenizer:
    """A tokenizer with the methods of transformers' tokenizers that are needed to count tokens."""

    def __init__(
        self, name_or_path: str, backend: Any, special: Mapping[str, str], settings: JsonView, chat_template: str | None
    ) -> None:
        self.name_or_path, self.chat_template = name_or_path, chat_template
        self.eos_token_id: int = backend.token_to_id(special["eos_token"])
        self._backend, self._special = backend, special
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = bool(settings.get("split_special_tokens"))

    def __call__(self, texts: Sequence[str], *, add_special_tokens: bool, verbose: bool) -> dict[str, list[list[int]]]:
        """Return the token ids of each text as ``input_ids``."""
        found = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return {"input_ids": [encoding.ids for encoding in found]}

    def apply_chat_template(
        self, conversations: Sequence[Sequence[Mapping[str, str]]], *, tokenize: bool, add_generation_prompt: bool
    ) -> list[str]:
        """Return each conversation as a text; ``tokenize`` must be False."""
        from transformers.utils import chat_template_utils

        assert not tokenize, "the text is tokenised by the caller"
        render: Any = chat_template_utils.render_jinja_template
        texts: list[str] = render(
            conversations=list(conversations),
            chat_template=self.chat_template,
            add_generation_prompt=add_generation_prompt,
            **self._special,
        )[0]
        return texts


def _get_content(token: object) -> str | None:
    """Return the text of a token in tokenizer_config.json: a string, or an object with its flags."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None
