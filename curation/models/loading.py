"""Access to the files of a model, which every ``from_pretrained`` of the project and vLLM's engine use.

A model's own code never runs unless the user allowed it (``curation.models.own_code``); transformers would otherwise
ask on standard input. Weights are read only from safetensors (``curation.storage.weights``).
"""

import importlib.util
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from curation.errors import ModelError
from curation.heavy import transformers
from curation.json_types import Json
from curation.models.own_code import (
    check_code,
    compute_code_digest,
    find_named_code,
    get_hub_revision,
    is_commit,
    make_code_error,
    read_model_file,
    read_object,
)
from curation.refs import ModelRef
from curation.storage.paths import Place, to_place
from curation.storage.weights import ADAPTER, INDEX, check_names, check_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ADAPTER_CONFIG = "adapter_config.json"
LEARNED_PROMPTS = ("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "ADAPTION_PROMPT", "XLORA")
"""Kinds of peft's adapters that do not only change weights, so that peft may load further models that they name."""


def from_pretrained(loader: Any, ref: ModelRef, **settings: Any) -> Any:
    """Return ``from_pretrained`` of a class of transformers, such as ``AutoConfig``, for a model on this node.

    Raises:
        ModelError: the model cannot be loaded without its own code, or its code is not the one that ``ref.code`` pins.
        OSError, ValueError: raised by the loader.
    """
    check_code(ref)
    trusted = ref.code is not None
    try:
        return loader.from_pretrained(ref.base, revision=get_hub_revision(ref), trust_remote_code=trusted, **settings)
    except ValueError as error:
        if trusted or "trust_remote_code" not in str(error):
            raise
    raise make_code_error(ref.base, find_named_code(ref))


def load_weights(loader: object, ref: ModelRef, **settings: object) -> Any:
    """Return a model with its weights by :func:`from_pretrained`, only from complete safetensors.

    Raises:
        ModelError: the weights are pickled, missing or damaged; or as for :func:`from_pretrained`.
        OSError, ValueError, RuntimeError: raised by the loader.
    """
    check_files(ref)
    try:
        return from_pretrained(loader, ref, use_safetensors=True, **settings)
    except SafetensorError as error:
        raise ModelError(f"model {ref.base!r}: its weights are damaged ({error}); copy the model again") from error
    except OSError as error:
        if "safetensors" in str(error) and not Path(ref.base).exists():
            raise ModelError(
                f"model {ref.base!r} has no weights in safetensors; others are pickled, and reading a pickle can run "
                "code, so they are never opened; give a model whose weights are in model.safetensors"
            ) from None
        raise


def make_engine_arguments(ref: ModelRef) -> Json:
    """Return arguments with which vLLM's engine reads a model's checked files, running code only if allowed."""
    check_files(ref)
    revisions = dict.fromkeys(("revision", "code_revision", "tokenizer_revision"), get_hub_revision(ref))
    return {"model": ref.base, **revisions, "trust_remote_code": ref.code is not None, "load_format": "safetensors"}


def check_files(ref: ModelRef) -> None:
    """Raise ``ModelError``, loading nothing, if a model's file would run code, is pickled, missing or damaged."""
    if ref.adapter is not None:
        check_adapter(ref.adapter)
    path = to_place(ref.base)
    if path.exists():
        if isinstance(path, Path) and not path.is_dir():
            raise ModelError(
                f"model {ref.base!r} is a file; a model is a directory with config.json and safetensors, and one "
                "file of all (GGUF) is not read: give the directory that it was made from"
            )
        if not (path / "config.json").is_file():
            raise ModelError(f"model {ref.base!r} has no config.json; give a directory that save_pretrained made")
        if read_object(path / "config.json") is None:
            raise ModelError(f"{path / 'config.json'}: is not a JSON object; copy the model again")
        check_weights(path)
    else:
        check_names(ref.base, (read_model_file(ref, INDEX) or {}).get("weight_map"))
    if named := (read_model_file(ref, "config.json") or {}).get("transformers_weights"):
        raise ModelError(
            f"model {ref.base!r}: transformers_weights of its config.json names {str(named)[:80]!r}; weights are only "
            "read from model.safetensors, or from the files of its index: rename the file and remove the key"
        )
    if read_model_file(ref, ADAPTER_CONFIG) is not None:  # transformers silently applies it to the model
        raise ModelError(
            f"model {ref.base!r} holds an adapter, too ({ADAPTER_CONFIG}), which would change its weights; move the "
            "adapter's files to a directory of their own and name that one as adapter"
        )
    check_code(ref)


def check_adapter(adapter: str) -> None:
    """Raise ``ModelError`` if an adapter's weights are pickled, missing or damaged, or it would load further models."""
    path = to_place(adapter)
    if not (path / ADAPTER_CONFIG).is_file():
        raise ModelError(f"adapter {adapter!r} has no {ADAPTER_CONFIG}; give a directory that peft saved")
    settings = read_object(path / ADAPTER_CONFIG)
    if settings is None:
        raise ModelError(f"{path / ADAPTER_CONFIG}: is not a JSON object; copy the adapter again")
    if (kind := str(settings.get("peft_type"))) in LEARNED_PROMPTS:
        raise ModelError(
            f"adapter {adapter!r}: is of the kind {kind}, which may load further models by itself; give one that "
            "changes weights, such as LoRA"
        )
    if settings.get("megatron_config") is not None:
        raise ModelError(
            f"adapter {adapter!r}: its megatron_core names a module to import; give an adapter without megatron_config"
        )
    check_weights(path, ADAPTER)


def make_saved_ref(ref: ModelRef, path: Place) -> ModelRef:
    """Return the reference to a model that this process saved from ``ref``, with ``ref``'s permission to run code."""
    return ModelRef(base=str(path), code=None if ref.code is None else compute_code_digest(path))


def find_hub_commit(base: str, revision: str | None) -> str | None:
    """Return the commit of a hub id at a revision, from the hub or, without network, the local cache; else None."""
    found: Any = transformers.utils.hub.resolve_revision(base, revision)
    commit = str(getattr(found, "resolved", found))
    return commit if is_commit(commit) else None


def get_first_line(error: BaseException) -> str:
    """Return the first line of an exception's message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def add_adapter(model: "PreTrainedModel", adapter: str, ref: ModelRef) -> Any:
    """Return the model with an adapter from a directory on this node.

    peft silently loads an adapter of a deeper model, and reports only differing sizes for one of a narrower model.

    Raises:
        ModelError: the adapter's files are pickled, missing, damaged, or of a kind that loads other models, or it was
            made for another base, and has modules or shapes that this one lacks.
    """
    from peft import PeftConfig, PeftModel

    made_for = str((read_object(to_place(adapter) / ADAPTER_CONFIG) or {}).get("base_model_name_or_path"))
    file = Path(made_for) / "config.json"  # may be missing here
    shape, own = json.loads(file.read_text()) if file.is_file() else {}, model.config
    differs = (
        f"{name} is {getattr(own, name, None)!r} here, and {shape[name]!r} where it was made"
        for name in ("model_type", "num_hidden_layers", "hidden_size", "vocab_size")
        if name in shape and shape[name] != getattr(own, name, None)
    )
    problem = next(differs, None)
    if problem is None:
        check_adapter(adapter)
        try:
            loaded: Any = PeftModel.from_pretrained(model, adapter, config=PeftConfig.from_pretrained(adapter))
            found = loaded.load_adapter(adapter, "default")  # only this reports the weights that do not fit
        except SafetensorError as error:
            raise ModelError(f"adapter {adapter!r}: its weights are damaged ({error}); copy it again") from error
        except (ValueError, RuntimeError) as error:
            problem = "; ".join(line.strip() for line in str(error).splitlines()[:2])
        else:
            if not (odd := [*found.unexpected_keys, *found.missing_keys]):
                return loaded
            problem = f"{len(odd)} of its weights have no place in this model or lack there, the first {odd[0]}"
    raise ModelError(
        f"adapter {ref.adapter!r} does not fit model {ref.base!r}: {problem}; it was made for {made_for!r}: give that "
        "model as the adapter's base, or another adapter"
    )


ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's core in this process
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the tap reads version 1
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",  # room for one token that is drawn and never fed
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # compiled at the start, by nvcc; rows with seeds of their own bypass it
}


def is_installed() -> bool:
    """Return whether vLLM is installed, which does not prove that it runs on this machine."""
    spec = importlib.util.find_spec("vllm")
    return spec is not None and spec.origin is not None  # without an origin: a folder of that name beside the program


def set_environment(**defaults: str) -> None:
    """Set the variables of :data:`ENVIRONMENT`, and ``defaults`` and no usage reports unless the user set them."""
    os.environ.update(ENVIRONMENT)
    for name, value in {"VLLM_NO_USAGE_STATS": "1", **defaults}.items():
        os.environ.setdefault(name, value)
