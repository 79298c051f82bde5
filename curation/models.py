"""Causal language models: resolve, create from scratch, load. A ``ModelRef`` names a model's weights everywhere.

Python code that a model brings (``auto_map`` in its files) never runs. Every load passes this choice explicitly,
because transformers otherwise asks on standard input. The one exception is a reward model with
``signals.reward.trust_remote_code``.
"""

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curation.adapters import adapted
from curation.config.states import beyond
from curation.errors import ModelError
from curation.refs import ModelRef
from curation.storage.cache import fetched, staged
from curation.storage.digest import directory_digest
from curation.storage.paths import Place, Remote, place

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
_SEEDED = threading.Lock()
"""Held while torch's global random generator is seeded and used: several stages may make models at once."""
CODE_FILES = ("config.json", "tokenizer_config.json")
"""Files of a model that may name its own Python code, under ``auto_map``."""


def from_pretrained(loader: Any, ref: ModelRef, *, trust_remote_code: bool = False, **settings: Any) -> Any:
    """``loader.from_pretrained`` of a model on this node (:func:`here`); every load goes through this function.

    Args:
        loader: a class of transformers, e.g. ``AutoConfig``.
        ref: the model.
        trust_remote_code: run the Python code that the model brings.
        settings: passed to the loader.

    Raises:
        ModelError: the model cannot be loaded without its own code.
        OSError, ValueError: raised by the loader.
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
    """Refuse a model directory, local or in an object store, that cannot be loaded without its own Python code.

    Hub ids are checked when they are resolved. This check neither runs nor loads the model.

    Raises:
        ModelError: the model needs its own code; the message names it.
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
    """The classes that a model directory's files name under ``auto_map``, by file; empty if there are none."""
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
    """The JSON object in a file; empty if there is none (the loader reports that error itself)."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _brings_code(base: str, named: dict[str, list[str]]) -> ModelError:
    """The error for a model that needs its own code."""
    where = "; ".join(f"auto_map of {name} names {', '.join(classes)}" for name, classes in named.items())
    return ModelError(
        f"model {base!r} brings its own code ({where or 'auto_map names it'}), which is never run here; "
        "give a model of one of transformers' own architectures"
    )


def resolve(
    base: str, revision: str | None = None, adapter: str | None = None, *, trust_remote_code: bool = False
) -> ModelRef:
    """Pin a model: a directory (local or in an object store) by its digest, a hub id by its commit.

    Raises:
        ModelError: it is neither a directory with a ``config.json`` nor a reachable hub id; the adapter has no config;
            or the model needs its own code, unless ``trust_remote_code``.
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
        path: where to save; made if missing.
        family: a ``model_type`` of transformers that ``AutoModelForCausalLM`` knows, e.g. ``qwen3``.
        shape: fields of that family's configuration, e.g. ``hidden_size``.
        words: the tokenizer's words, after padding, end and unknown.
        pattern: a regular expression whose matches are words; other text is dropped.
        seed: the seed of the weights.

    Raises:
        ModelError: the family is unknown, or refuses the shape.
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
    """The tokenizer of a model; it pads on the left (decoder-only batches) and always has a padding token.

    Without one of its own, that is the end token: masks go by position, so that no end is taken for padding.

    Raises:
        ModelError: it does not load, or needs the model's own code, unless ``trust_remote_code``; or it has neither a
            padding nor an end token.
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
        if tokenizer.eos_token_id is None:
            raise ModelError(
                f"model {ref.base!r}: its tokenizer has neither a padding nor an end token, and batches need one to be "
                "filled up with; set pad_token or eos_token in its tokenizer_config.json"
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def check_tokens(ref: ModelRef, tokenizer: "PreTrainedTokenizerBase", model: "PreTrainedModel") -> None:
    """Refuse a tokenizer whose special tokens the model has no embeddings for, as when one was added to it alone.

    Raises:
        ModelError: the message names the token, its id and the number of embeddings.
    """
    embeddings: Any = model.get_input_embeddings()
    num_rows = len(embeddings.weight)
    for name in ("pad_token", "eos_token", "bos_token"):
        index = getattr(tokenizer, f"{name}_id")
        if index is not None and index >= num_rows:
            raise ModelError(
                f"model {ref.base!r}: its tokenizer's {name} {getattr(tokenizer, name)!r} is token {index}, and the "
                f"model has embeddings for {num_rows}; name a token among those as {name} in its tokenizer_config.json"
            )


def text_ids(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], *, special: bool) -> list[list[int]]:
    """Token ids of texts that something is to follow.

    With ``special``, tokens that the tokenizer puts before a text are there, and end tokens that it puts after one are
    not. Without, the text has its special tokens already, as those of :func:`as_user_turns` do.
    """
    if not texts:
        return []
    ids: list[list[int]] = tokenizer(list(texts), add_special_tokens=special, verbose=False)["input_ids"]
    for tokens in ids if special else ():
        while tokens and tokens[-1] == tokenizer.eos_token_id:
            tokens.pop()
    return ids


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
    """The model in evaluation mode; with ``merge``, its adapter (if any) is merged into the weights.

    Raises:
        ModelError: the weights, or the adapter, do not load, or the adapter was made for another base.
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
            model = adapted(model, local.adapter, ref)
            if merge:
                model = model.merge_and_unload()
        _make_saveable(model.generation_config)
    except ModelError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"model {ref.base!r} (adapter {ref.adapter!r}) does not load: {error}") from error
    loaded: PreTrainedModel = model.to(device).eval()
    return loaded


def _make_saveable(settings: Any) -> None:
    """Let generation settings that name a temperature and say nothing of sampling, as published ones do, say so.

    They could not be saved otherwise. Nothing here reads them but for the end tokens.
    """
    try:
        settings.validate(strict=True)
    except ValueError:
        settings.do_sample = True


def configuration_of(ref: ModelRef) -> "PreTrainedConfig":
    """The configuration of a model.

    Raises:
        ModelError: it cannot be read without the model's own code.
    """
    from transformers import AutoConfig

    config: PreTrainedConfig = from_pretrained(AutoConfig, here(ref))
    return config


def state_size(ref: ModelRef, states: Sequence[str]) -> int:
    """The width of these hidden states of a model, from its configuration alone.

    Raises:
        ModelError: it lacks a layer that ``states`` names.
    """
    config = configuration_of(ref)
    check_layers(ref, config, states)
    return int(config.get_text_config().hidden_size)


def check_layers(ref: ModelRef, config: "PreTrainedConfig", states: Sequence[str]) -> None:
    """Refuse states of layers that a model with this configuration lacks.

    Raises:
        ModelError: a layer is missing; the message names the state, its layer and the number of layers.
    """
    problem = beyond(states, int(config.get_text_config().num_hidden_layers))
    if problem is not None:
        raise ModelError(f"teacher.states: {problem} (model {ref.base!r})")


def hub_revision(ref: ModelRef) -> str | None:
    """The commit of a hub id to load; None for a local directory, whose revision is our own digest."""
    return None if Path(ref.base).exists() else ref.revision


def here(ref: ModelRef) -> ModelRef:
    """The same model with paths on this node: URLs are downloaded once; hub ids and local paths stay.

    Raises:
        ModelError: the model no longer exists.
    """
    try:
        paths = {name: str(fetched(uri)) for name in ("base", "adapter") if "://" in (uri := getattr(ref, name) or "")}
    except OSError as error:
        raise ModelError(f"model {ref.base!r} (adapter {ref.adapter!r}) cannot be fetched: {error}") from error
    return replace(ref, **paths)
