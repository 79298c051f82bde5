"""Causal language models: resolve, create from scratch, load; whatever names weights is a ``ModelRef``.

Python code that a model brings (``auto_map`` in its files) is never run: every load says so, since transformers asks on
standard input where it is not told. The one exception is a reward model whose ``signals.reward.trust_remote_code`` is
set.
"""

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curation.copies import fetched, staged
from curation.errors import ModelError
from curation.places import Place, Remote, place
from curation.refs import ModelRef, directory_digest
from curation.states import beyond

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
_SEEDED = threading.Lock()
"""Held while torch's one source of randomness is set and drawn from: several stages may make models at once."""
CODE_FILES = ("config.json", "tokenizer_config.json")
"""Files of a model that name Python code of its own, under ``auto_map``."""


def from_pretrained(loader: Any, ref: ModelRef, *, trust_remote_code: bool = False, **settings: Any) -> Any:
    """``loader.from_pretrained`` of a model that is on this node (:func:`here`), the only way to load one.

    Args:
        loader: a class of transformers, e.g. ``AutoConfig``.
        ref: the model.
        trust_remote_code: run the Python code that the model brings.
        settings: go to the loader.

    Raises:
        ModelError: the model cannot be loaded without code of its own.
        OSError, ValueError: as of the loader.
    """
    try:
        return loader.from_pretrained(
            ref.base, revision=hub_revision(ref), trust_remote_code=trust_remote_code, **settings
        )
    except ValueError as error:
        if trust_remote_code or "trust_remote_code" not in str(error):
            raise
    raise _brings_code(ref.base, _named_code(place(ref.base)))


def check_code(base: str) -> None:
    """Refuse a model's directory, local or in an object store, that cannot be loaded without Python code of its own.

    A hub id is seen when it is resolved. Nothing of the model is run or loaded.

    Raises:
        ModelError: names the code.
    """
    path = place(base)
    named = _named_code(path)
    if not named:
        return
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

    family = _read(path / "config.json").get("model_type")
    needs = "config.json" in named and family not in CONFIG_MAPPING
    if not needs and "tokenizer_config.json" in named and family not in TOKENIZER_MAPPING_NAMES:
        name = _read(path / "tokenizer_config.json").get("tokenizer_class")
        needs = not isinstance(name, str) or tokenizer_class_from_name(name) is None
    if needs:
        raise _brings_code(base, named)


def _named_code(path: Place) -> dict[str, list[str]]:
    """The classes that the files of a model's directory name under ``auto_map``, by file; empty where none are."""
    found = {name: _read(path / name).get("auto_map") or {} for name in CODE_FILES}
    return {
        name: [str(item) for value in (entry.values() if isinstance(entry, dict) else [entry]) for item in _flat(value)]
        for name, entry in found.items()
        if entry
    }


def _flat(value: Any) -> list[Any]:
    """A tokenizer's entry is a list of a slow and a fast class, either of which may be null."""
    return [item for item in value if item is not None] if isinstance(value, list) else [value]


def _read(path: Place) -> dict[str, Any]:
    """A JSON object in a file; empty where there is none, which the loader then says in its own way."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _brings_code(base: str, named: dict[str, list[str]]) -> ModelError:
    """The refusal of a model that needs code of its own."""
    where = "; ".join(f"auto_map of {name} names {', '.join(classes)}" for name, classes in named.items())
    return ModelError(
        f"model {base!r} brings its own code ({where or 'auto_map names it'}), which is never run here; "
        "give a model of one of transformers' own architectures"
    )


def resolve(
    base: str, revision: str | None = None, adapter: str | None = None, *, trust_remote_code: bool = False
) -> ModelRef:
    """Pin a model: a directory, local or in an object store, by its digest, a hub id by its commit.

    Raises:
        ModelError: neither a directory with a ``config.json`` nor a reachable hub id; an adapter without its config; a
            model that needs code of its own, unless ``trust_remote_code``.
    """
    path = place(base)
    if adapter is not None and not (place(adapter) / "adapter_config.json").is_file():
        raise ModelError(f"adapter {adapter!r} has no adapter_config.json; give a directory that peft saved")
    if path.exists():
        if not (path / "config.json").is_file():
            raise ModelError(f"model {base!r} has no config.json; give a directory that save_pretrained made")
        if not trust_remote_code:
            check_code(base)
        return ModelRef(base=str(path), revision=directory_digest(path), adapter=adapter)
    if base.startswith(("/", ".", "~")) or isinstance(path, Remote):
        raise ModelError(f"model {base!r}: no such directory; give one that save_pretrained made, or a hub id")
    from transformers import AutoConfig

    try:
        config = from_pretrained(
            AutoConfig, ModelRef(base=base, revision=revision), trust_remote_code=trust_remote_code
        )
    except ModelError:
        raise
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"model {base!r} is neither a local directory nor a reachable hub id: {reason}") from error
    commit = getattr(config, "_commit_hash", None)
    return ModelRef(base=base, revision=commit or revision, adapter=adapter)


def create(
    path: Place, *, family: str, shape: dict[str, Any], words: tuple[str, ...], pattern: str, seed: int
) -> ModelRef:
    """Make a model with random weights and a word-level tokenizer, and save both to ``path``.

    Args:
        path: where to save; made where missing.
        family: a ``model_type`` of transformers that ``AutoModelForCausalLM`` knows, e.g. ``qwen3``.
        shape: fields of that family's configuration, e.g. ``hidden_size``.
        words: the tokenizer's words, after padding, end and unknown.
        pattern: a regular expression whose matches are words; other text is dropped.
        seed: of the weights.

    Raises:
        ModelError: an unknown family, or a shape that it refuses.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = _word_tokenizer(words, pattern)
    try:
        config = AutoConfig.for_model(
            family,
            vocab_size=len(tokenizer),
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
            **shape,
        )
        with _SEEDED, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"init: family {family!r} with {shape} makes no causal language model: {error}") from error
    with staged(path) as local:
        model.save_pretrained(local)
        tokenizer.save_pretrained(local)
    return resolve(str(path))


def _word_tokenizer(words: tuple[str, ...], pattern: str) -> "PreTrainedTokenizerBase":
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate((PAD, EOS, UNKNOWN, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True)
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, unk_token=UNKNOWN, clean_up_tokenization_spaces=False
    )


def load_tokenizer(ref: ModelRef, *, trust_remote_code: bool = False) -> "PreTrainedTokenizerBase":
    """The tokenizer of a model, padding on the left (decoder-only batches) and with a padding token in any case.

    Raises:
        ModelError: it does not load, or not without code of the model's own, unless ``trust_remote_code``.
    """
    from transformers import AutoTokenizer

    local = here(ref)
    try:
        tokenizer: PreTrainedTokenizerBase = from_pretrained(
            AutoTokenizer, local, trust_remote_code=trust_remote_code, padding_side="left"
        )
    except ModelError:
        raise
    except (OSError, ValueError) as error:
        raise ModelError(f"model {ref.base!r}: its tokenizer does not load: {str(error).splitlines()[0]}") from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def as_user_turns(tokenizer: "PreTrainedTokenizerBase", prompts: Sequence[str]) -> list[str]:
    """Each prompt as one user turn of the tokenizer's chat template, up to where the answer begins.

    The template writes the special tokens; tokenise the text without adding any.

    Raises:
        ModelError: the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        raise ModelError(
            f"chat_template: true needs a tokenizer with a chat template; that of model {tokenizer.name_or_path!r} has "
            "none; set chat_template: false, or give an instruction-tuned model"
        )
    turns = [[{"role": "user", "content": prompt}] for prompt in prompts]
    texts: Any = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True) if turns else []
    return list(texts)


def load_model(ref: ModelRef, *, dtype: str = "float32", device: str = "cpu", merge: bool = True) -> "PreTrainedModel":
    """The model in evaluation mode, its adapter (where there is one) merged into the weights if ``merge``.

    Raises:
        ModelError: the weights, or the adapter, do not load.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    local = here(ref)
    try:
        model: Any = from_pretrained(
            AutoModelForCausalLM, local, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
        if local.adapter is not None:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, local.adapter)
            if merge:
                model = model.merge_and_unload()
    except ModelError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"model {ref.base!r} (adapter {ref.adapter!r}) does not load: {error}") from error
    loaded: PreTrainedModel = model.to(device).eval()
    return loaded


def configuration_of(ref: ModelRef) -> "PreTrainedConfig":
    """The configuration of a model.

    Raises:
        ModelError: it cannot be read without code of the model's own.
    """
    from transformers import AutoConfig

    config: PreTrainedConfig = from_pretrained(AutoConfig, here(ref))
    return config


def state_size(ref: ModelRef, states: Sequence[str]) -> int:
    """The width of these hidden states of a model, from its configuration alone.

    Raises:
        ModelError: it lacks a layer that ``states`` name.
    """
    config = configuration_of(ref)
    check_layers(ref, config, states)
    return int(config.get_text_config().hidden_size)


def check_layers(ref: ModelRef, config: "PreTrainedConfig", states: Sequence[str]) -> None:
    """Refuse states of layers that a model of this configuration lacks.

    Raises:
        ModelError: names the state, its layer and the number of layers.
    """
    problem = beyond(states, int(config.get_text_config().num_hidden_layers))
    if problem is not None:
        raise ModelError(f"teacher.states: {problem} (model {ref.base!r})")


def hub_revision(ref: ModelRef) -> str | None:
    """The commit to load of a hub id; None for a local directory, whose revision is a digest of our own."""
    return None if Path(ref.base).exists() else ref.revision


def here(ref: ModelRef) -> ModelRef:
    """The same model on this node: what has a URL is got once, hub ids and local paths stay.

    Raises:
        ModelError: nothing is there any more.
    """
    try:
        paths = {name: str(fetched(uri)) for name in ("base", "adapter") if "://" in (uri := getattr(ref, name) or "")}
    except OSError as error:
        raise ModelError(f"model {ref.base!r} (adapter {ref.adapter!r}) cannot be got: {error}") from error
    return replace(ref, **paths)
