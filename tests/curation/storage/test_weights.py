"""Headers of safetensors, checked as the library checks them, but without its process reading the tensors."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from curation.errors import ModelError
from curation.storage.paths import Remote
from curation.storage.weights import check_weights

TENSORS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.zeros((0, 4), dtype=np.float16),
    "c": np.ones(3, dtype=np.int64),
    "d": np.ones((), dtype=np.uint8),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("weights")
    save_file(TENSORS, path / "model.safetensors", {"format": "pt"})
    return path


def ours(folder: Path) -> bool:
    try:
        check_weights(folder)
    except ModelError as error:
        assert str(folder) in str(error) and "\n" not in str(error)
        return False
    return True


def library(folder: Path) -> bool:
    try:
        with safe_open(folder / "model.safetensors", framework="numpy") as file:
            return file.keys() is not None
    except SafetensorError:
        return False


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_file_passes_where_the_library_takes_it(folder: Path, tmp_path_factory, data: st.DataObject) -> None:
    """A byte changed, bytes cut or added, or a field of the header changed."""
    content = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    kind = data.draw(st.sampled_from(("byte", "cut", "longer", "header")))
    if kind == "byte":
        at = data.draw(st.integers(0, 8 + length - 1))
        content = content[:at] + bytes([data.draw(st.integers(0, 127))]) + content[at + 1 :]
    elif kind == "cut":
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    elif kind == "longer":
        content += b"\0" * data.draw(st.integers(1, 9))
    else:
        header = json.loads(content[8 : 8 + length])
        entry = header[data.draw(st.sampled_from(sorted(TENSORS)))]
        entry["dtype"] = data.draw(st.sampled_from([entry["dtype"], "F32", "I64", "BF16", "X9"]))
        entry["shape"] = data.draw(st.one_of(st.just(entry["shape"]), st.lists(st.integers(-1, 4), max_size=3)))
        entry["data_offsets"] = data.draw(
            st.one_of(st.just(entry["data_offsets"]), st.lists(st.integers(-1, 60), min_size=1, max_size=3))
        )
        new = json.dumps(header).encode()
        content = struct.pack("<Q", len(new)) + new + content[8 + length :]
    path = tmp_path_factory.getbasetemp() / "changed"
    path.mkdir(exist_ok=True)
    (path / "model.safetensors").write_bytes(content)
    assert not (ours(path) and not library(path)), content[:400]
    if kind in ("cut", "longer"):
        assert not ours(path)


def test_whole_files_pass_of_every_type_that_numpy_has(tmp_path: Path) -> None:
    types = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1", "U8": "u1",
             "U16": "u2", "U32": "u4", "U64": "u8", "BOOL": "?", "C64": "c8"}  # fmt: skip
    save_file({name: np.zeros((3, 5), dtype=code) for name, code in types.items()}, tmp_path / "model.safetensors")
    assert ours(tmp_path) and library(tmp_path)


def test_an_object_store_is_asked_for_headers_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from obstore.store import LocalStore

    (tmp_path / "models").mkdir()
    (tmp_path / "models/model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    monkeypatch.setattr(Remote, "store", property(lambda _: LocalStore(tmp_path)))
    monkeypatch.setattr(Remote, "read_bytes", lambda _: pytest.fail("reads the whole file"))
    check_weights(Remote("s3://bucket/models"))
    (tmp_path / "models/model.safetensors").write_bytes(b"\0" * 7)
    with pytest.raises(ModelError, match=r"s3://bucket/models/model\.safetensors: is damaged"):
        check_weights(Remote("s3://bucket/models"))
