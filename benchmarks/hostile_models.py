"""Hostile models from an untrusted source: with their own code, pickles, or damage."""

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.hostile_case import RAN, Case, Settings

CODE = """
from pathlib import Path
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
Path({ran!r}).write_text("ran")
class OwnConfig(Qwen3Config):
    model_type = "own"
class Own(Qwen3ForCausalLM):
    config_class = OwnConfig
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


class Payload:
    """An object whose pickle writes the file ``RAN`` when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self._file = str(folder / RAN)

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, (f"open({self._file!r}, 'w').write('ran')",))


def change(path: Path, **values: Any) -> None:
    """Set keys of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def _settings(folder: Path, **model: Any) -> Settings:
    return {"teacher": {"model": {"path": str(folder / "model")} | model}}


def own_code(folder: Path, **model: Any) -> Settings:
    """Make a model and a configuration of their own classes."""
    (folder / "model" / "modeling_own.py").write_text(CODE.format(ran=str(folder / RAN)))
    auto_map = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.Own"}
    change(folder / "model/config.json", model_type="own", architectures=["Own"], auto_map=auto_map)
    return _settings(folder, **model)


def own_tokenizer(folder: Path) -> Settings:
    """Make a tokenizer of its own class."""
    own_code(folder)
    change(folder / "model/config.json", model_type="gpt_neox_japanese_unknown", auto_map=None)
    auto_map = {"AutoTokenizer": [None, "modeling_own.OwnTokenizer"]}
    change(folder / "model/tokenizer_config.json", tokenizer_class="Own", auto_map=auto_map)
    return _settings(folder)


def code_elsewhere(folder: Path) -> Settings:
    """Name code of another repository, which the digest of this directory does not pin."""
    from curation.models.own_code import compute_code_digest

    own_code(folder)
    change(folder / "model/config.json", auto_map={"AutoConfig": "other/repository--modeling_own.OwnConfig"})
    return _settings(folder, allow_remote_code=True, revision=compute_code_digest(folder / "model"))


def code_changed(folder: Path) -> Settings:
    """Change code after its digest was pinned."""
    from curation.models.own_code import compute_code_digest

    own_code(folder)
    digest = compute_code_digest(folder / "model")
    (folder / "model" / "helper.py").write_text("# new")
    return _settings(folder, allow_remote_code=True, revision=digest)


def kernel(folder: Path) -> Settings:
    """Name compiled code of the hub as the implementation of attention."""
    change(folder / "model/config.json", attn_implementation="stranger/kernels")
    return _settings(folder)


def pickled(folder: Path, name: str = "pytorch_model.bin") -> Settings:
    """Keep weights in a pickle alone."""
    (folder / "model/model.safetensors").unlink()
    (folder / "model" / name).write_bytes(pickle.dumps(Payload(folder)))
    return _settings(folder)


def pickled_index(folder: Path) -> Settings:
    """Write an index of safetensors that names a pickle."""
    pickled(folder, "shard.bin")
    return _index(folder, "shard.bin")


def _index(folder: Path, file: str, tensor: str = "model.norm.weight") -> Settings:
    content = {"metadata": {}, "weight_map": {tensor: file}}
    (folder / "model/model.safetensors.index.json").write_text(json.dumps(content))
    return _settings(folder)


def index_elsewhere(folder: Path) -> Settings:
    """Write an index that names a file outside of the model."""
    (folder / "model/model.safetensors").rename(folder / "outside.safetensors")
    return _index(folder, "../outside.safetensors")


def missing_shard(folder: Path) -> Settings:
    """Write an index, one of whose files is gone."""
    (folder / "model/model.safetensors").unlink()
    return _index(folder, "model-00001-of-00002.safetensors")


def missing_tensor(folder: Path) -> Settings:
    """Write an index that names a tensor which its file lacks."""
    (folder / "model/model.safetensors").rename(folder / "model/model-00001-of-00001.safetensors")
    return _index(folder, "model-00001-of-00001.safetensors", "model.layers.9.weight")


def bytes_of(
    change_bytes: Callable[[bytes], bytes], name: str = "model/model.safetensors"
) -> Callable[[Path], Settings]:
    """Return a change of the bytes of a file of weights."""

    def make(folder: Path) -> Settings:
        path = folder / name
        path.write_bytes(change_bytes(path.read_bytes()))
        adapter = {"adapter": str(folder / "adapter")} if name.startswith("adapter") else {}
        return _settings(folder, **adapter)

    return make


def header_of(change_header: Callable[[dict[str, Any]], None]) -> Callable[[Path], Settings]:
    """Return a change of the header of weights; the tensors stay."""

    def changed(content: bytes) -> bytes:
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        change_header(header)
        new = json.dumps(header).encode()
        return struct.pack("<Q", len(new)) + new + content[8 + length :]

    return bytes_of(changed)


def _wider(header: dict[str, Any]) -> None:
    header["model.norm.weight"]["shape"] = [2**40]


def _promised(header: dict[str, Any]) -> None:
    header["model.norm.weight"]["shape"] = [10**6, 10**6]


def _moved(header: dict[str, Any]) -> None:
    entry = header["model.norm.weight"]
    entry["data_offsets"] = [0, entry["data_offsets"][1] - entry["data_offsets"][0]]


def file_of(name: str, content: str, **model: Any) -> Callable[[Path], Settings]:
    """Return a change of a file of the model, or of its adapter, to other content."""

    def make(folder: Path) -> Settings:
        (folder / name).write_text(content)
        adapter = {"adapter": str(folder / "adapter")} if name.startswith("adapter") else {}
        return _settings(folder, **adapter, **model)

    return make


def key_of(name: str, **values: Any) -> Callable[[Path], Settings]:
    """Return a change of keys of a JSON file of the model, or of its adapter, to other values."""

    def make(folder: Path) -> Settings:
        change(folder / name, **values)
        return _settings(folder, **({"adapter": str(folder / "adapter")} if name.startswith("adapter") else {}))

    return make


def embedded_adapter(folder: Path) -> Settings:
    """Put a pickled adapter into the model's own directory."""
    (folder / "adapter/adapter_config.json").rename(folder / "model/adapter_config.json")
    (folder / "model/adapter_model.bin").write_bytes(pickle.dumps(Payload(folder)))
    return _settings(folder)


def pickled_adapter(folder: Path) -> Settings:
    """Make an adapter whose weights are a pickle."""
    (folder / "adapter/adapter_model.safetensors").unlink()
    (folder / "adapter/adapter_model.bin").write_bytes(pickle.dumps(Payload(folder)))
    return _settings(folder, adapter=str(folder / "adapter"))


def gguf(folder: Path) -> Settings:
    """Keep weights in GGUF alone."""
    (folder / "model/model.safetensors").unlink()
    (folder / "model/model-Q4_K_M.gguf").write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 16)
    return _settings(folder)


def gguf_file(folder: Path) -> Settings:
    """Name a file of GGUF instead of a folder."""
    (folder / "model.gguf").write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 16)
    return _settings(folder, path=str(folder / "model.gguf"))


def no_config(folder: Path) -> Settings:
    """Make a folder without a configuration."""
    (folder / "model/config.json").unlink()
    return _settings(folder)


MODELS = (
    Case(name="model with code of its own", make=own_code, says="brings its own code"),
    Case(name="tokenizer with code of its own", make=own_tokenizer, says="brings its own code"),
    Case(
        name="own code allowed, no revision",
        make=lambda folder: own_code(folder, allow_remote_code=True),
        says="needs the digest of the code that you have read as revision; found None",
    ),
    Case(name="own code changed after it was pinned", make=code_changed, says="needs the digest of the code"),
    Case(name="own code of another repository", make=code_elsewhere, says="takes code from another repository"),
    Case(
        name="own code of a hub id at a branch",
        make=lambda folder: _settings(folder, path="org/model", allow_remote_code=True, revision="main"),
        says="needs the commit of the code that you have read",
    ),
    Case(name="attention as a kernel of the hub", make=kernel, says="names a kernel of the hub"),
    Case(name="pickled weights", make=pickled, says="its weights are pickled"),
    Case(name="pickled weights, .pt", make=lambda folder: pickled(folder, "model.pt"), says="its weights are pickled"),
    Case(
        name="pickle named model.safetensors",
        make=lambda folder: pickled(folder, "model.safetensors"),
        says="no safetensors file",
    ),
    Case(name="index that names a pickle", make=pickled_index, says="names 'shard.bin'"),
    Case(name="index that names a file elsewhere", make=index_elsewhere, says="names '../outside.safetensors'"),
    Case(
        name="configuration that names a pickle",
        make=key_of("model/config.json", transformers_weights="adapter_model.bin"),
        says="transformers_weights of its config.json names",
    ),
    Case(name="pickled adapter in the model's folder", make=embedded_adapter, says="holds an adapter, too"),
    Case(name="pickled adapter", make=pickled_adapter, says="its weights are pickled"),
    Case(
        name="adapter that loads a tokenizer",
        make=key_of(
            "adapter/adapter_config.json", peft_type="PROMPT_TUNING", tokenizer_kwargs={"trust_remote_code": True}
        ),
        says="may load further models",
    ),
    Case(
        name="adapter that names a module",
        make=key_of("adapter/adapter_config.json", megatron_config={}, megatron_core="antigravity"),
        says="names a module to import",
    ),
    Case(
        name="weights cut by a byte", make=bytes_of(lambda content: content[:-1]), says="damaged or no safetensors file"
    ),
    Case(
        name="weights cut to half",
        make=bytes_of(lambda content: content[: len(content) // 2]),
        says="damaged or no safetensors file",
    ),
    Case(
        name="weights cut in the header",
        make=bytes_of(lambda content: content[:100]),
        says="damaged or no safetensors file",
    ),
    Case(name="weights of no byte", make=bytes_of(lambda content: b""), says="damaged or no safetensors file"),
    Case(
        name="weights with a byte more",
        make=bytes_of(lambda content: content + b"\0"),
        says="damaged or no safetensors file",
    ),
    Case(
        name="header of 2^63 bytes",
        make=bytes_of(lambda content: struct.pack("<Q", 2**63) + content[8:]),
        says="damaged or no safetensors file",
    ),
    Case(
        name="header that is no JSON",
        make=bytes_of(lambda content: content[:8] + b"x" + content[9:]),
        says="damaged or no safetensors file",
    ),
    Case(name="tensor wider than its bytes", make=header_of(_wider), says="damaged or no safetensors file"),
    Case(name="header of 10^12 numbers", make=header_of(_promised), says="damaged or no safetensors file"),
    Case(name="tensors that overlap", make=header_of(_moved), says="damaged or no safetensors file"),
    Case(name="missing shard", make=missing_shard, says="which model.safetensors.index.json names"),
    Case(name="shard without a tensor of the index", make=missing_tensor, says="lacks 1 of the tensors"),
    Case(
        name="index that is no index",
        make=lambda folder: (
            (folder / "model/model.safetensors").unlink()
            or file_of("model/model.safetensors.index.json", '{"weight_map": []}')(folder)
        ),
        says="is not an index of weights",
    ),
    Case(
        name="adapter cut by a byte",
        make=bytes_of(lambda content: content[:-1], "adapter/adapter_model.safetensors"),
        says="damaged or no safetensors file",
    ),
    Case(name="weights in GGUF", make=gguf, says="has no weights"),
    Case(name="a file of GGUF", make=gguf_file, says=r"is a file; .*GGUF"),
    Case(name="no config.json", make=no_config, says="has no config.json"),
    Case(name="config.json cut", make=file_of("model/config.json", '{"model_type": "qw'), says="is not a JSON object"),
    Case(name="config.json a list", make=file_of("model/config.json", "[]"), says="is not a JSON object"),
    Case(
        name="config.json nested 100,000 deep",
        make=file_of("model/config.json", '{"a":' * 100_000 + "1" + "}" * 100_000),
        says="is not a JSON object",
    ),
    Case(
        name="configuration of an unknown family",
        make=key_of("model/config.json", model_type="unheard-of"),
        says="its configuration does not load",
    ),
    Case(
        name="configuration with text for a number",
        make=key_of("model/config.json", hidden_size="wide"),
        says="its configuration does not load",
    ),
    Case(
        name="tokenizer cut", make=file_of("model/tokenizer.json", '{"version": "1'), says="its tokenizer does not load"
    ),
)
"""Cases of hostile models as the teacher of a run."""
