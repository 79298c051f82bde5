"""Causal language models: pin, create from scratch, load. A ``ModelRef`` names a model's weights everywhere."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curation.activity import doing
from curation.config import ModelConfig
from curation.config.states import find_depth_problem
from curation.errors import ModelError, is_panic
from curation.heavy import torch, transformers
from curation.json_types import Json
from curation.models import from_json
from curation.models.loading import (
    add_adapter,
    check_adapter,
    check_files,
    find_hub_commit,
    from_pretrained,
    get_first_line,
    load_weights,
    make_saved_ref,
)
from curation.models.own_code import check_code, check_head, find_allowed_code, read_model_file
from curation.refs import ModelRef, fingerprint
from curation.storage.cache import fetch_folder, in_cache, remove_unused, staged
from curation.storage.digest import compute_directory_digest, compute_model_digest
from curation.storage.paths import Place, Remote, to_place

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
MERGED, KEPT_MERGED = "merged-", 3
"""Prefix of the names, and maximum number of the merged models that a node keeps; the least recently used go first."""
_SEEDED = threading.Lock()  # of torch's global random generator: several stages may create models at once


def resolve(base: str, revision: str | None = None, adapter: str | None = None, *, code: str | None = None) -> ModelRef:
    """Pin a model: a directory (local or in an object store) by its digest, a hub id by its commit.

    A branch or a tag as ``revision`` of a hub id is replaced by its commit; ``adapter`` is a directory that peft saved;
    ``code`` is the result of ``own_code.find_allowed_code``, or None to never run the model's own code.

    Raises:
        ModelError: ``base`` is neither a directory that ``loading.check_files`` accepts nor a reachable hub id, or the
            model needs its own code, which ``code`` does not allow.
    """
    path = to_place(base)
    if path.exists():
        check_files(ModelRef(base=base, adapter=adapter, code=code))
        return ModelRef(base=str(path), revision=compute_directory_digest(path), adapter=adapter, code=code)
    if adapter is not None:
        check_adapter(adapter)
    if base.startswith(("/", ".", "~")) or isinstance(path, Remote):
        raise ModelError(f"model {base!r}: no such directory; give one that save_pretrained made, or a hub id")
    ref = ModelRef(base=base, revision=find_hub_commit(base, revision) or revision, adapter=adapter, code=code)
    try:
        if code is None:
            read_configuration(ref)
        else:  # nothing here runs its code
            check_files(ref)
            if read_model_file(ref, "config.json") is None:
                raise ModelError(f"model {base!r} is neither a local directory nor a reachable hub id")
    except ModelError as error:
        if isinstance(error.__cause__, OSError | ValueError):
            reason = get_first_line(error.__cause__)
            raise ModelError(f"model {base!r} is neither a local directory nor a reachable hub id: {reason}") from error
        raise
    return ref


def check(model: ModelConfig, *, head: bool = False, loads: bool = False) -> None:
    """Check a model's files as :func:`pin_model` does, and raise as it does, without reading weights or asking the hub.

    ``head`` marks a reward model with a head, whose own code is never replaced by a class of transformers. With
    ``loads``, configuration and tokenizer of a local directory are loaded too, unless that would run the model's code.
    """
    base = str(model.path)
    code = find_allowed_code(base, model.revision) if model.allow_remote_code else None
    if to_place(base).exists():
        ref = ModelRef(base=base, adapter=model.adapter, code=code)
        check_files(ref)
        if head:
            check_head(ref)
        if loads and code is None and not isinstance(to_place(base), Remote):
            read_configuration(ref)
            read_tokenizer(ref)
    elif model.adapter is not None:
        check_adapter(model.adapter)


def pin_model(model: ModelConfig) -> ModelRef:
    """Return the model of a section of the configuration, pinned by :func:`resolve`; its own code needs a revision."""
    base = str(model.path)
    code = find_allowed_code(base, model.revision) if model.allow_remote_code else None
    with doing(f"reading the files of the model {base}"):
        return resolve(base, model.revision, model.adapter, code=code)


def create(
    path: Place, *, family: str, shape: Mapping[str, object], words: tuple[str, ...], pattern: str, seed: int
) -> ModelRef:
    """Create a model with random weights and a word-level tokenizer, and save both to the directory ``path``.

    ``family`` is a ``model_type`` that ``AutoModelForCausalLM`` knows, e.g. ``qwen3``, and ``shape`` has fields of its
    configuration, e.g. ``hidden_size``. The tokenizer's ``words`` follow the padding, end and unknown tokens; they are
    the matches of ``pattern`` in a text, and other text is dropped.

    Raises:
        ModelError: the family is unknown, or refuses the shape.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    vocabulary = {word: index for index, word in enumerate((PAD, EOS, UNKNOWN, *words))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True)
    backend.decoder = decoders.Fuse()
    tokenizer = transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, pad_token=PAD, eos_token=EOS, unk_token=UNKNOWN, clean_up_tokenization_spaces=False
    )
    try:
        config = transformers.AutoConfig.for_model(
            family,
            vocab_size=len(tokenizer),
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
            **shape,
        )
        with _SEEDED, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"init: family {family!r} with {shape} makes no causal language model: {error}") from error
    with staged(path) as local:
        model.save_pretrained(local)
        tokenizer.save_pretrained(local)
    return resolve(str(path))


def load_tokenizer(ref: ModelRef) -> "PreTrainedTokenizerBase":
    """Return the tokenizer of a model; it pads on the left (decoder-only batches) and always has a padding token.

    If the model has none, the end token serves, since attention masks go by position, not by token. Raise
    ``ModelError`` if the tokenizer does not load, needs code that is not allowed, or has neither token.
    """
    local = fetch_model(ref)
    try:
        tokenizer: PreTrainedTokenizerBase = from_pretrained(transformers.AutoTokenizer, local, padding_side="left")
    except ModelError:
        raise
    except Exception as error:  # the library that reads its files raises plain ones
        raise ModelError(f"model {ref.base!r}: its tokenizer does not load: {get_first_line(error)}") from error
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ModelError(
                f"model {ref.base!r}: its tokenizer has neither a padding nor an end token, and padding a batch needs "
                "one; set pad_token or eos_token in its tokenizer_config.json"
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def read_tokenizer(ref: ModelRef) -> Any:
    """Return a tokenizer that tokenises like that of :func:`load_tokenizer`, if possible without importing torch."""
    check_code(ref)
    with doing(f"reading the tokenizer of the model {ref.base}"):
        found = from_json.load_json_tokenizer(ref)
        return load_tokenizer(ref) if found is None else found


def check_tokens(ref: ModelRef, tokenizer: "PreTrainedTokenizerBase", model: "PreTrainedModel") -> None:
    """Raise ``ModelError`` if the model lacks an embedding of one of the tokenizer's special tokens."""
    embeddings: Any = model.get_input_embeddings()
    num_rows = len(embeddings.weight)
    for name in ("pad_token", "eos_token", "bos_token"):
        index = getattr(tokenizer, f"{name}_id")
        if index is not None and index >= num_rows:
            raise ModelError(
                f"model {ref.base!r}: its tokenizer's {name} {getattr(tokenizer, name)!r} is token {index}, and the "
                f"model has embeddings for {num_rows}; name a token among those as {name} in its tokenizer_config.json"
            )


def encode_texts(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], *, special: bool) -> list[list[int]]:
    """Return token ids of texts, ``special`` ones included if set; raise ``ModelError`` if the tokenizer gives up."""
    with _without_panic(tokenizer):
        ids: list[list[int]] = tokenizer(list(texts), add_special_tokens=special, verbose=False)["input_ids"]
    return ids


def decode_tokens(tokenizer: "PreTrainedTokenizerBase", tokens: Sequence[int]) -> str:
    """Return the text of tokens, without special ones; raise ``ModelError`` if the tokenizer gives up on them."""
    with _without_panic(tokenizer):
        return str(tokenizer.decode(list(tokens), skip_special_tokens=True))


@contextmanager
def _without_panic(tokenizer: "PreTrainedTokenizerBase") -> Iterator[None]:
    """Raise a tokenizer's panic, no ``Exception``, as a ``ModelError``: a pattern backtracked ten million times."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise ModelError(
            f"model {tokenizer.name_or_path!r}: its tokenizer gives up on a text ({get_first_line(error)}); a pattern "
            "of its tokenizer.json takes too many steps there, so mend that pattern or give another model"
        ) from None


def encode_prefixes(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], *, special: bool) -> list[list[int]]:
    """Return token ids of texts that other tokens will follow, with ``special`` those before a text, but no end tokens.

    Without ``special``, the texts have their special tokens already, like those of :func:`as_user_turns`.
    """
    ids = encode_texts(tokenizer, texts, special=special) if texts else []
    for tokens in ids if special else ():
        while tokens and tokens[-1] == tokenizer.eos_token_id:
            tokens.pop()
    return ids


def as_user_turns(tokenizer: "PreTrainedTokenizerBase", prompts: Sequence[str]) -> list[str]:
    """Return each prompt as one user turn of the tokenizer's chat template, up to the beginning of the answer.

    The template writes the special tokens: tokenise without adding any. Raise ``ModelError`` if there is no template.
    """
    if not tokenizer.chat_template:
        raise ModelError(
            f"chat_template: true needs a tokenizer with a chat template; that of model {tokenizer.name_or_path!r} has "
            "none; set chat_template: false, or give an instruction-tuned model"
        )
    turns = [[{"role": "user", "content": prompt}] for prompt in prompts]
    texts: Any = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True) if turns else []
    return list(texts)


def load_model(ref: ModelRef, *, dtype: str = "float32", device: str = "cpu") -> "PreTrainedModel":
    """Return the model in evaluation mode; its adapter (if any) is merged into the weights.

    Raises:
        ModelError: the weights, or the adapter, do not load, or the adapter was made for another base.
    """
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    local = fetch_model(ref)
    try:
        settings: Json = {"dtype": getattr(torch, dtype), "attn_implementation": "sdpa"}
        model, found = load_weights(transformers.AutoModelForCausalLM, local, **settings, output_loading_info=True)
        if missing := sorted(found["missing_keys"]):  # transformers fills them with random numbers
            raise ModelError(
                f"model {ref.base!r} lacks {len(missing)} of its weights, the first {missing[0]}; copy the model again"
            )
        if local.adapter is not None:
            model = add_adapter(model, local.adapter, ref).merge_and_unload()
        try:
            model.generation_config.validate(strict=True)
        except ValueError:  # published models may set a temperature without sampling, and could not be saved
            model.generation_config.do_sample = True  # of these settings only the end tokens are read here
    except ModelError:
        raise
    except (OSError, ValueError, RuntimeError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"model {ref.base!r} (adapter {ref.adapter!r}) does not load: {error}") from error
    loaded: PreTrainedModel = model.to(device).eval()
    return loaded


def load_configuration(ref: ModelRef) -> "PreTrainedConfig":
    """Return a model's configuration; raise ``ModelError`` if it cannot be read, or needs code that is not allowed."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        config: PreTrainedConfig = from_pretrained(transformers.AutoConfig, fetch_model(ref))
    except ModelError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError, StrictDataclassError) as error:
        raise ModelError(f"model {ref.base!r}: its configuration does not load: {get_first_line(error)}") from error
    return config


def read_configuration(ref: ModelRef) -> Json:
    """Return sizes in the configuration of a model's text part, at least ``from_json.SIZES`` that it has.

    It is read without importing torch if possible.
    """
    check_code(ref)
    found = from_json.read_json_configuration(ref)
    return load_configuration(ref).get_text_config().to_dict() if found is None else found


def get_state_size(ref: ModelRef, states: Sequence[str]) -> int:
    """Return the width of these hidden states of a model, which has their layers, from its configuration alone."""
    config = read_configuration(ref)
    check_layers(ref, config["num_hidden_layers"], states)
    return int(config["hidden_size"])


def check_layers(ref: ModelRef, num_layers: int, states: Sequence[str]) -> None:
    """Raise ``ModelError`` if a model with ``num_layers`` layers lacks a layer of ``states``."""
    if (problem := find_depth_problem(states, num_layers)) is not None:
        raise ModelError(f"teacher.states: {problem} (model {ref.base!r})")


def fetch_model(ref: ModelRef) -> ModelRef:
    """Return the model with paths on this node: URLs are downloaded once; raise ``ModelError`` if one is gone."""
    try:
        paths = {
            name: str(fetch_folder(uri)) for name in ("base", "adapter") if "://" in (uri := getattr(ref, name) or "")
        }
    except OSError as error:
        raise ModelError(f"model {ref.base!r} (adapter {ref.adapter!r}) cannot be fetched: {error}") from error
    return replace(ref, **paths)


@contextmanager
def merged(model: ModelRef, *, dtype: str) -> Iterator[ModelRef]:
    """Yield the model with its adapter merged into weights of ``dtype``, in files that are kept within the context.

    It is for engines that read weights from files. The first process of the node merges; others wait for it and read
    the same files. A step costs no more than one of the base, every kind of peft's adapters works, and the numbers are
    those of the transformers teacher, which merges too. Base and adapter are on this node (:func:`fetch_model`) unless
    the base is a hub id.

    Raises:
        ModelError: the model does not load.
        OSError: there is no room for the weights.
    """

    def write_merged(directory: Path) -> None:
        remove_unused(MERGED, keep=KEPT_MERGED - 1)
        load_model(model, dtype=dtype).save_pretrained(directory)
        load_tokenizer(model).save_pretrained(directory)

    contents = [compute_model_digest(path) for path in map(Path, (model.base, model.adapter or "")) if path.is_dir()]
    libraries = [version(name) for name in ("peft", "transformers")]
    key = fingerprint([model.base, model.revision, model.code, contents, dtype, libraries])
    with in_cache(MERGED + key, write_merged) as directory:
        yield make_saved_ref(model, directory)
