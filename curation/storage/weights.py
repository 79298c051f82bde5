"""Checks of files of weights, which must be complete safetensors. Only headers are read; pickles are never opened.

A pickle can run code while it is read. A safetensors file begins with its header's length (8 bytes, little-endian) and
the header, JSON that says where each tensor's bytes are; the tensors follow without a gap (format:
https://github.com/huggingface/safetensors#format).
"""

import json
import math

from curation.errors import ModelError
from curation.storage.paths import Place, Remote, read_range

MODEL, ADAPTER = "model", "adapter_model"
"""Names of a model's and of an adapter's file of weights, without the ending."""
INDEX = f"{MODEL}.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
GGUF = ".gguf"
"""Ending of llama.cpp's quantised weights, whose numbers differ from those of the original model."""
MAX_HEADER = 100_000_000
"""Maximum length of a header that the safetensors library reads, in bytes."""
BITS = {
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
"""Number of bits of each data type, by the type's name in a header."""


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
        if others := sorted(name for name in sizes if name.lower().endswith(GGUF)):
            problem = f"its weights are GGUF ({', '.join(others[:3])}), which are not read"
        elif pickled:
            problem = f"its weights are pickled ({', '.join(pickled[:3])}), and reading a pickle can run code, so they "
            problem += "are never opened"
        else:
            problem = f"has no weights, no {single} and no index of several such files"
        raise ModelError(f"{folder}: {problem}; give a folder whose weights are in {single}")
    tensors = _read_index(folder / index)
    check_names(str(folder / index), tensors)
    shards: dict[str, set[str]] = {}
    for tensor, name in tensors.items():
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


def check_names(index: str, names: object) -> None:
    """Raise ``ModelError`` for an index, if not ``None``, that names other files than safetensors beside it."""
    for name in sorted({str(name) for name in names.values()} if isinstance(names, dict) else ()):
        if not name.endswith(".safetensors") or "/" in name or "\\" in name:
            raise ModelError(
                f"{index}: names {name[:80]!r}, and weights are only read from safetensors files beside the index; "
                "give a model with such files"
            )


def _read_index(path: Place) -> dict[str, str]:
    """Return the file of each tensor, as the index at ``path`` names it."""
    try:
        names = json.loads(path.read_bytes())["weight_map"]
        if names and all(isinstance(name, str) for name in names.values()):
            return dict(names)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise ModelError(f"{path}: is not an index of weights (a JSON object with a weight_map); copy the model again")


def _read_tensor_names(path: Place, size: int) -> set[str]:
    """Return the names of a safetensors file's tensors; ``ModelError`` if it does not fit the length of the file."""
    try:
        length = int.from_bytes(read_range(path, 0, 8), "little") if size >= 8 else 0
        if not 0 < length <= min(size - 8, MAX_HEADER):
            raise ValueError(f"it has {size:,} bytes, and a header of {length:,}")
        header = json.loads(read_range(path, 8, 8 + length))
        if not isinstance(header, dict):
            raise ValueError("its header is not a JSON object")
        header.pop("__metadata__", None)
        end = 0
        for begin, stop in sorted(_parse_span(name, entry) for name, entry in header.items()):
            if begin != end:
                raise ValueError(f"its tensors overlap or leave a gap at byte {end:,}")
            end = stop
        if (expected := 8 + length + end) != size:
            raise ValueError(f"its header tells of {expected:,} bytes, and it has {size:,}")
    except (ValueError, RecursionError) as error:
        reason = "its header is not JSON" if isinstance(error, json.JSONDecodeError | RecursionError) else str(error)
        reason = "its header is not text" if isinstance(error, UnicodeDecodeError) else reason
        raise ModelError(f"{path}: is damaged or no safetensors file ({reason}); copy the model again") from error
    return set(header)


def _parse_span(name: str, entry: object) -> tuple[int, int]:
    """Return the first and the end byte of a tensor in the data, checked against its type and shape."""
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(stop)]}:
            pass
        case _:
            raise ValueError(f"its header does not say type, shape and place of {name[:80]!r}")
    if dtype not in BITS or not all(type(number) is int and number >= 0 for number in shape):
        raise ValueError(f"its tensor {name[:80]!r} has the type {dtype[:20]!r} and the shape {str(shape)[:80]}")
    if begin < 0 or 8 * (stop - begin) != BITS[dtype] * math.prod(shape):
        raise ValueError(f"its tensor {name[:80]!r} of {dtype} {shape} has {stop - begin:,} bytes")
    return begin, stop
