"""Fuzzes a trust package: ``python package_fuzz.py PACKAGE WORK COUNT SEED`` prints what went wrong, as a JSON list.

A mutant has the digests that belong to it. It is used in every way that needs no Ray; that may end with an error of
ours, and must not read, write or import anything but the mutant, the output and installed code.
"""

import copy
import json
import os
import random
import shutil
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save
from sealed_package import sealed
from tiny_package import sums

import curation.teachers.transformers  # noqa: F401 (what a healthy package may import is there before the watch)
from curation.commands.verify import verify
from curation.config import AskConfig, DecodingConfig, TrustConfig
from curation.errors import CurationError
from curation.extras.first_cut.threshold import read_held_out
from curation.filter import Filter
from curation.filter.package.folder import TrustPackage, copy_package, load

BAIT = ("stranger", "turtledemo")
"""Modules that nothing imports but who obeys a mutant."""
KEYS = [*AskConfig.model_fields, *AskConfig().scripted.model_dump(), *DecodingConfig.model_fields,
        *TrustConfig.model_fields, "code", "made_by", "path", "of", "format", "cut", "../x"]  # fmt: skip
WATCHED = ("open", "import", "os.", "shutil.", "subprocess.", "socket.connect", "tempfile.")
UNWATCHED = ("os.putenv", "os.unsetenv")


class Watch:
    """Notes what is read, written or imported outside the allowed folders, while it is on."""

    def __init__(self, *allowed: str) -> None:
        self.on, self.found, self._within = False, list[str](), False
        self._allowed = allowed
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on or self._within or not event.startswith(WATCHED) or event in UNWATCHED:
            return
        self._within = True
        try:
            if event == "import":
                bad = str(arguments[0]).partition(".")[0] in BAIT
            elif event == "socket.connect" or event.startswith(("subprocess.", "os.exec", "os.system", "os.fork")):
                bad = True
            else:
                paths = [item for item in arguments if isinstance(item, str | bytes | os.PathLike)]
                bad = any(not self._is_allowed(os.fsdecode(path)) for path in paths[:2] if path not in ("r", "w", "rb"))
            if bad:
                self.found.append(f"{event}{arguments!r}")
        finally:
            self._within = False

    def _is_allowed(self, path: str) -> bool:
        return os.path.realpath(path).startswith(self._allowed) or "/" not in path


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def mutate(value: dict[str, Any], rng: random.Random, secret: str) -> None:
    """Change one value, or remove or add one."""
    numbers = [True, 0, -1, 1, 3, 2**31, 2**63, 2**80, 1.5, 1e308, float("nan"), float("-inf")]
    paths = [secret, f"{secret}/file", f"file://{secret}/file", "../../secret", "/dev/zero"]
    code = ["stranger:Thing", "stranger", "turtledemo", {"name": "next_token", "of": "stranger:Thing"}]
    known = ["auto", "vllm", "transformers", "scripted", "math", "chess", "mcqa", "neural", "stacked", "trust",
             {"name": "math"}, "prompt_last", "layer9_output_last", ["output_last", "output_last"]]  # fmt: skip
    odd = [None, *numbers, "", "x", "\ud800", "a\0b", [], {}, [[]], [None], {"a": [1] * 50}, *paths, *code, *known]
    way = rng.choice(list(places(value))[1:])
    at: Any = value
    for key in way[:-1]:
        at = at[key]
    match rng.randrange(5):
        case 0:
            del at[way[-1]]
        case 1 if isinstance(at, dict):
            at[rng.choice(KEYS)] = copy.deepcopy(rng.choice(odd))
        case 2 if isinstance(at[way[-1]], str):
            at[way[-1]] += rng.choice(["", " ", "/../..", ":x", "\n", "é"])
        case _:
            at[way[-1]] = copy.deepcopy(rng.choice(odd))


def mutant(good: TrustPackage, folder: Path, rng: random.Random, secret: str) -> Path:
    """A changed copy."""
    described = json.loads((Path(good.uri) / "trust/description.json").read_text())
    files: dict[str, bytes] = {}
    if rng.random() < 0.4:
        mutate(described, rng, secret)
        files["trust/description.json"] = json.dumps(described).encode()
    if rng.random() < 0.2:
        name = rng.choice(["trust/weights.safetensors", "shift.safetensors", "calibration.parquet"])
        whole = bytearray((Path(good.uri) / name).read_bytes())
        whole[rng.randrange(min(len(whole), 400))] = rng.randrange(256)
        files[name] = bytes(whole[: rng.choice([len(whole), len(whole) // 2, 8, 0])])

    elif rng.random() < 0.2:
        name = rng.choice(["trust/weights.safetensors", "shift.safetensors"])
        tensors = load_file(Path(good.uri) / name)
        at = rng.choice(sorted(tensors))
        odd = [np.full_like(tensors[at], np.nan), tensors[at].astype(np.uint8), np.zeros((10**12, 0)), np.zeros(3),
               np.zeros((3, 3, 3), np.float16), np.full_like(tensors[at], np.inf)]  # fmt: skip
        tensors[rng.choice([at, "new"])] = rng.choice(odd)
        files[name] = save(tensors)

    def change(told: dict[str, Any]) -> None:
        for _ in range(rng.choice([0, 1, 1, 2, 4])):
            mutate(told, rng, secret)

    made = sealed(good, folder, change, files)
    for name in [name for name in sys.modules if name.partition(".")[0] in BAIT]:  # the seal reads what was changed
        del sys.modules[name]
    if rng.random() < 0.1:
        content = json.loads((made / "package.json").read_text())
        mutate(content, rng, secret)
        (made / "package.json").write_text(json.dumps(content))
    if rng.random() < 0.05:
        name = rng.choice(["README.md", "shift.safetensors", "trust/weights.safetensors", "new"])
        (made / name).unlink(missing_ok=True)
        (made / name).symlink_to(f"{secret}/file")
    return made


def use(folder: Path, output: Path) -> Iterator[Any]:
    """Each use of a package."""
    yield lambda: verify(str(folder), lambda *_: None)
    yield lambda: load(folder).calibration()
    yield lambda: load(folder).reference()
    yield lambda: read_held_out(load(folder))
    yield lambda: copy_package(load(folder), output)
    yield lambda: list(Filter.load(folder).score(sums(3)))


def main(package: str, work: Path, count: int, seed: int) -> None:
    good, rng, wrong = load(package), random.Random(seed), list[str]()
    secret = work / "secret"
    secret.mkdir()
    (secret / "file").write_text("mine")
    (secret / "config.json").write_text("{}")
    (work / "modules").mkdir()
    (work / "modules" / "stranger.py").write_text("Thing = print\n")
    sys.path.insert(0, str(work / "modules"))
    mine, out = work / "mutants", work / "out"
    own = (mine, out, package, work / "modules", Path(__file__).parents[1] / "curation")
    here = [str(Path(name).resolve()) for name in own]
    code = [os.path.realpath(path) for path in {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix}]
    for action in use(Path(package), out / "good"):
        try:
            action()
        except CurationError as error:
            assert "no first cut" in str(error), error  # a tiny package has none
    watch = Watch(*here, *code)
    for number in range(count):
        folder = mutant(good, mine / str(number), rng, str(secret))
        for action in use(folder, out / str(number)):
            watch.on = True
            try:
                action()
            except CurationError:
                pass
            except BaseException:
                wrong.append(f"{number}: {traceback.format_exc()}")
            finally:
                watch.on = False
        wrong += [f"{number}: {what}" for what in watch.found]
        watch.found.clear()
        shutil.rmtree(folder)
        shutil.rmtree(out / str(number), ignore_errors=True)
    left = {path.name: path.read_text() for path in secret.iterdir()}
    assert left == {"file": "mine", "config.json": "{}"}, left
    print(json.dumps(wrong))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
