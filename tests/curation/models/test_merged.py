"""Adapters merged into weights in files: once a node, whatever is killed, and no more of them than are kept."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

from curation.errors import ModelError
from curation.models import load_model, merged, resolve
from curation.storage.cache import get_cache_folder, in_cache, remove_unused


@pytest.fixture
def adapted(tiny_model, tmp_path, monkeypatch):
    """Make adapters of the tiny model, by their seeds."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def make(seed: int, name: str = "adapter"):
        path = tmp_path / name
        torch.manual_seed(seed)
        wrapped = get_peft_model(load_model(tiny_model), LoraConfig(r=2, target_modules="all-linear"))
        with torch.no_grad():
            for weight_name, weight in wrapped.named_parameters():
                if "lora_B" in weight_name:
                    weight.normal_(std=0.3)
        wrapped.save_pretrained(path)
        return resolve(tiny_model.base, adapter=str(path))

    return make


def assert_merged(path: str, model, dtype: str = "float32") -> None:
    """By peft's own arithmetic: W + scaling B A of each layer."""
    found = load_model(resolve(path), dtype=dtype).state_dict()
    expected = load_model(model, dtype=dtype).state_dict()
    assert {name: weight.dtype for name, weight in found.items()} == {
        name: weight.dtype for name, weight in expected.items()
    }
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def spy(monkeypatch) -> list[str]:
    loaded = []

    def load(model, **settings):
        loaded.append(model.adapter)
        time.sleep(0.3)
        return load_model(model, **settings)

    monkeypatch.setattr("curation.models.load_model", load)
    return loaded


def test_actors_of_a_node_merge_once(adapted, monkeypatch):
    model, loaded = adapted(1), spy(monkeypatch)
    inside = threading.Barrier(4, timeout=60)

    def start(_: int) -> str:
        with merged(model, dtype="float32") as found:
            inside.wait()  # all of them read at once
            assert_merged(found.base, model)
            return found.base

    with ThreadPoolExecutor(4) as pool:
        (path,) = set(pool.map(start, range(4)))
    assert len(loaded) == 1
    with merged(model, dtype="float32") as found:  # a restart
        assert found.base == path and found.adapter is None
    assert len(loaded) == 1


@pytest.mark.long
def test_another_type_or_content_is_another_model(adapted, monkeypatch):
    loaded, paths = spy(monkeypatch), []
    for seed, dtype in ((1, "float32"), (1, "bfloat16"), (2, "float32"), (1, "float32")):
        model = adapted(seed)  # at the same place
        with merged(model, dtype=dtype) as found:
            assert_merged(found.base, model, dtype)
            paths.append(found.base)
    assert len({*paths}) == len(loaded) == 3 and paths[0] == paths[3]


def test_a_base_that_changed_at_its_place_is_merged_again(adapted, tmp_path):
    model = adapted(1)
    base = tmp_path / "base"
    for factor in (1.0, 2.0):
        weights = load_model(resolve(model.base))
        with torch.no_grad():
            weights.model.norm.weight *= factor
        weights.save_pretrained(base)
        for file in Path(model.base).glob("*token*"):
            (base / file.name).write_bytes(file.read_bytes())
        other = resolve(str(base), adapter=model.adapter)
        with merged(other, dtype="float32") as found:
            assert_merged(found.base, other)


KILLED = """
import os, signal, sys
from curation import models

load = models.load_model
def load_model(*args, **settings):
    model = load(*args, **settings)
    save = model.save_pretrained
    def killed(directory):
        save(directory)
        os.kill(os.getpid(), signal.SIGKILL)
    model.save_pretrained = killed
    return model

models.load_model = load_model
with models.merged(models.resolve(sys.argv[1], adapter=sys.argv[2]), dtype="float32"):
    pass
"""


@pytest.mark.long
def test_what_a_killed_process_left_is_made_anew(adapted):
    model = adapted(1)
    ran = subprocess.run([sys.executable, "-c", KILLED, model.base, model.adapter], capture_output=True, timeout=200)
    assert ran.returncode == -9, ran.stderr.decode()
    left = [path.name for path in get_cache_folder().iterdir() if path.is_dir()]
    assert len(left) == 1 and left[0].endswith(".part")
    with merged(model, dtype="float32") as found:
        assert_merged(found.base, model)
        assert [path for path in get_cache_folder().iterdir() if path.is_dir()] == [Path(found.base)]


def test_a_model_that_does_not_load_leaves_nothing(adapted):
    model = adapted(1)
    (Path(model.adapter) / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError), merged(model, dtype="float32"):
        pass
    assert [path for path in get_cache_folder().iterdir() if path.is_dir()] == []


def test_those_used_last_are_kept_and_those_in_use(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for age, name in enumerate(("m-d", "m-c", "m-b", "m-a", "other")):
        with in_cache(name, lambda path: (path / "file").touch()) as path:
            pass
        os.utime(path, (1000.0 - age, 1000.0 - age))
    (get_cache_folder() / ".m-killed.part").mkdir()
    with in_cache("m-a", lambda _: pytest.fail("it is there")) as in_use:
        os.utime(in_use, (1.0, 1.0))
        remove_unused("m-", keep=1)
        assert sorted(path.name for path in get_cache_folder().iterdir() if path.is_dir()) == ["m-a", "m-d", "other"]
        assert (in_use / "file").exists()
    remove_unused("m-", keep=0)
    assert [path.name for path in get_cache_folder().iterdir() if path.is_dir()] == ["other"]
