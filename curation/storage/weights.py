"""Checks of files of weights, which must be complete safetensors. Only headers are read; pickles are never opened.

A pickle can run code while it is read. A safetensors file begins with its header's length (8 bytes, little-endian) and
the header, which says where each tensor's bytes are (https://github.com/huggingface/safetensors#format).
"""

import json
import math
import tempfile
from pathlib import Path

from safetensors import SafetensorError, safe_open

from curation.errors import ModelError
from curation.storage.paths import Place, Remote

MODEL, ADAPTER = "model", "adapter_model"
"""Names of a model's and of an adapter's file of weights, without the ending."""
INDEX = f"{MODEL}.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
MAX_HEADER = 100_000_008
"""Maximum number of bytes before the tensors that the safetensors library reads."""
FLOATS = ("F64", "F32", "F16", "BF16")
"""A safetensors header's names of the types of parameters; other tensors are buffers, or packed."""


def check_weights(folder: Place, stem: str = MODEL) -> None:
    """Raise ``ModelError`` for weights of a model or adapter (``stem``): pickled, missing, damaged or incomplete."""
    if isinstance(folder, Remote):
        sizes = {entry.path: entry.size for entry in folder.entries() if "/" not in entry.path}
    else:
        sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    single, index = f"{stem}.safetensors", f"{stem}.safetensors.index.json"
    if single in sizes:
        _read_tensor_names(folder / single, sizes[single])
        return
    if index not in sizes:
        pickled = sorted(name for name in sizes if name.endswith(PICKLES) and name != "training_args.bin")
        problem = f"has no weights, no {single} and no index of several such files"
        if pickled:
            problem = f"its weights are pickled ({', '.join(pickled[:3])}), and reading a pickle can run code"
        raise ModelError(f"{folder}: {problem}; give a folder whose weights are in {single}")
    shards: dict[str, set[str]] = {}
    for tensor, name in _read_index(folder / index).items():
        shards.setdefault(name, set()).add(tensor)
    for name in sorted(shards):
        if name not in sizes:
            raise ModelError(
                f"{folder}: has no {name}, which {index} names; copy the missing file there, or the whole model again"
            )
        found = _read_tensor_names(folder / name, sizes[name])
        if lacks := sorted(shards[name] - found):
            raise ModelError(
                f"{folder / name}: lacks {len(lacks)} of the tensors that {index} names, the first {lacks[0]}; copy "
                "the model again"
            )


def count_parameters(folder: Path) -> int | None:
    """Return the number of parameters of a local model by its headers, or None if a file of weights is not there.

    Raises:
        ModelError: a file is damaged or no safetensors file.
    """
    files = {f"{MODEL}.safetensors"}
    if not (folder / f"{MODEL}.safetensors").is_file() and (folder / INDEX).is_file():
        files = set(_read_index(folder / INDEX).values())
    if not all((folder / name).is_file() for name in files):
        return None
    num = 0
    for name in files:
        try:
            with safe_open(folder / name, framework="numpy") as file:
                slices = map(file.get_slice, file.keys())
                num += sum(math.prod(part.get_shape()) for part in slices if part.get_dtype() in FLOATS)
        except (SafetensorError, OSError) as error:
            raise _make_damage_error(folder / name, error) from error
    return num


def check_names(index: str, names: object) -> None:
    """Raise ``ModelError`` for an index, if not ``None``, that names other files than safetensors beside it."""
    for name in sorted({str(name) for name in names.values()} if isinstance(names, dict) else ()):
        if not name.endswith(".safetensors") or "/" in name or "\\" in name:
            raise ModelError(
                f"{index}: names {name[:80]!r}, and weights are only read from safetensors files beside the index; "
                "give a model with such files"
            )


def _read_index(path: Place) -> dict[str, str]:
    """Return the file of each tensor by the index at ``path``, or raise ``ModelError``; see :func:`check_names`."""
    try:
        names = json.loads(path.read_bytes())["weight_map"]
        if not names or not all(isinstance(name, str) for name in names.values()):
            raise ValueError("it names no file")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        why = "is not an index of weights (a JSON object with a weight_map)"
        raise ModelError(f"{path}: {why}; copy the model again") from None
    check_names(str(path), names)
    return dict(names)


def _read_tensor_names(path: Place, size: int) -> set[str]:
    """Return the names of a safetensors file's tensors; ``ModelError`` if it does not fit the length of the file."""
    with tempfile.NamedTemporaryFile() as copy:
        if isinstance(path, Remote):  # the header is all that is read of an object; zeros stand for the tensors
            length = int.from_bytes(path.read_range(0, 8), "little") if size >= 8 else size
            copy.write(path.read_range(0, min(size, 8 + length, MAX_HEADER)))
            copy.truncate(size)
        try:
            with safe_open(copy.name if isinstance(path, Remote) else path, framework="numpy") as file:
                return set(file.keys())
        except (SafetensorError, OSError) as error:
            raise _make_damage_error(path, error) from error


def _make_damage_error(path: Place, error: Exception) -> ModelError:
    return ModelError(f"{path}: is damaged or no safetensors file ({error}); copy the model again")
