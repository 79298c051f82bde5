"""Hostile trust packages from an untrusted source: their digests are right, but their contents are invalid.

Each is given to `curate verify` and to `curate filter`. It is refused if the command prints a line that matches the
case, does not start Ray, and runs no code of the package.
"""

import json
import pickle
import re
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner
from safetensors.numpy import load_file, save

from benchmarks.hostile_case import RAN
from benchmarks.hostile_models import Payload
from curation.filter.package.folder import CALIBRATED, TrustPackage
from tests.sealed_package import sealed
from tests.tiny_package import sums, tiny_package

WEIGHTS, DESCRIBED, SHIFT = "trust/weights.safetensors", "trust/description.json", "shift.safetensors"
VERBS = ("verify", "filter")


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package that must be refused."""

    name: str
    make: Callable[[TrustPackage, Path], Path]
    """Function that writes a changed copy of a good package to a new folder, and returns its path."""
    says: str
    """Regular expression that the refusal must match."""


def weights(change: Callable[[dict[str, np.ndarray]], object], name: str = WEIGHTS) -> Callable[..., Path]:
    """Return a change that puts other tensors into a whole file."""

    def make(good: TrustPackage, folder: Path) -> Path:
        tensors = load_file(Path(good.uri) / name)
        change(tensors)
        return sealed(good, folder, lambda told: None, {name: save(tensors)})

    return make


def header(**entry: Any) -> Callable[..., Path]:
    """Return a change that writes a tensor whose header promises data that is missing."""

    def make(good: TrustPackage, folder: Path) -> Path:
        content = (Path(good.uri) / WEIGHTS).read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        changed = json.loads(content[8 : 8 + length])
        changed["weight_D"] |= entry
        text = json.dumps(changed).encode()
        written = struct.pack("<Q", len(text)) + text + content[8 + length :]
        return sealed(good, folder, lambda told: None, {WEIGHTS: written})

    return make


def described(change: Callable[[dict[str, Any]], object], tensors: dict[str, Any] | None = None) -> Callable[..., Path]:
    """Return a change of the trust function's description, with other tensors for it."""

    def make(good: TrustPackage, folder: Path) -> Path:
        told = json.loads((Path(good.uri) / DESCRIBED).read_text())
        change(told)
        files = {DESCRIBED: json.dumps(told).encode()}
        if tensors is not None:
            files[WEIGHTS] = save({name: np.asarray(tensor) for name, tensor in tensors.items()})
        return sealed(good, folder, lambda told: None, files)

    return make


def network(**architecture: Any) -> Callable[..., Path]:
    """Return a change to a network of another size than its weights."""
    whole = {
        "input_size": 8, "width": 4, "depth": 1, "expansion": 2.0, "dropout": 0.0, "stochastic_depth": 0.0,
        "standardise": False, **architecture,
    }  # fmt: skip
    return described(
        lambda told: told.update(made_by="curation.trust.neural:NeuralTrust", architecture=whole),
        {"head.weight": np.zeros((1, 4), np.float32)},
    )


def trees(**nodes: Any) -> Callable[..., Path]:
    """Return a change to boosted trees of one inner node and two leaves, with other nodes."""
    good = {
        "feature": [0, 0, 0], "threshold": [0.0, 0.0, 0.0], "left": [1, 0, 0], "right": [2, 0, 0],
        "value": [0.0, 1.0, 2.0], "is_leaf": [False, True, True], "roots_T": [0], "baseline": 0.0,
    }  # fmt: skip
    return described(
        lambda told: told.update(made_by="curation.trust.boosted_trees:BoostedTrees", size=8), {**good, **nodes}
    )


def file(name: str, content: Callable[[Path], bytes]) -> Callable[..., Path]:
    """Return a change that adds a file that no package has, named in ``package.json``."""

    def make(good: TrustPackage, folder: Path) -> Path:
        made = sealed(good, folder, lambda told: None)
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_bytes(content(folder.parent))
        return made

    return make


def many_rows(good: TrustPackage, folder: Path) -> Path:
    """Write equal calibration rows, which take no space."""
    sink, num_rows = pa.BufferOutputStream(), 20_000_000
    column = pa.array(np.zeros(num_rows, np.float32))
    pq.write_table(pa.table([column, column, pa.array(np.ones(num_rows, np.bool_))], schema=CALIBRATED), sink)
    return sealed(good, folder, _told(), {"calibration.parquet": sink.getvalue().to_pybytes()})


def pickled(name: str) -> Callable[..., Path]:
    """Return a change that puts a pickle in place of a file."""

    def make(good: TrustPackage, folder: Path) -> Path:
        return sealed(good, folder, _told(), {name: pickle.dumps(Payload(folder.parent))})

    return make


def text(name: str, content: str) -> Callable[..., Path]:
    """Return a change that gives a JSON file other text, and the digest that belongs to it."""

    def make(good: TrustPackage, folder: Path) -> Path:
        if name != "package.json":
            return sealed(good, folder, lambda told: None, {name: content.encode()})
        made = sealed(good, folder, lambda told: None)
        (made / name).write_text(content)
        return made

    return make


def _told(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda told: told.update(values)


_CHAIN: dict[str, Any] = {
    **{name: [*range(1, 61), 0] for name in ("left", "right")},
    **{name: [0] * 61 for name in ("feature", "threshold", "value")},
    "is_leaf": [False] * 60 + [True],
}
"""A tree of sixty nodes with the next node as both children, which has 2^60 paths."""
PACKAGES = (
    Package(
        name="weights that are NaN",
        make=weights(lambda found: found["weight_D"].fill(np.nan)),
        says="so it holds a value that is no number",
    ),
    Package(
        name="a bias that is infinite",
        make=weights(lambda found: found.update(bias=np.array(np.inf))),
        says="holds a value that is no number",
    ),
    Package(
        name="weights of another size",
        make=weights(lambda found: found.update(weight_D=np.zeros(9))),
        says="cannot score rows of its teacher",
    ),
    Package(
        name="weights of 10^12 by 0 numbers",
        make=weights(lambda found: found.update(weight_D=np.zeros((10**12, 0)))),
        says="cannot score rows of its teacher",
    ),
    Package(
        name="weights of bytes",
        make=weights(lambda found: found.update(weight_D=np.zeros(8, np.uint8), bias=np.zeros(0))),
        says="cannot score rows of its teacher",
    ),
    Package(name="a header of 10^12 numbers", make=header(shape=[10**12]), says="was not saved by this version"),
    Package(name="a header of 2^64 numbers", make=header(shape=[2**32, 2**32]), says="was not saved by this version"),
    Package(
        name="a header beyond the file", make=header(data_offsets=[0, 2**40]), says="was not saved by this version"
    ),
    Package(name="a network of 10^12 inputs", make=network(input_size=10**12), says="its architecture asks for"),
    Package(name="a network of 10^6 by 10^6", make=network(width=10**6), says="its architecture asks for"),
    Package(name="a network of 10^9 blocks", make=network(depth=10**9), says="names 1,000,000,000 blocks"),
    Package(
        name="10^9 networks",
        make=described(_told(made_by="curation.trust.deep_ensemble:DeepEnsemble", num_members=10**9, architecture={})),
        says="names 1,000,000,000 networks",
    ),
    Package(name="a tree that is its own branch", make=trees(left=[0, 0, 0]), says="is reached twice"),
    Package(
        name="a tree of 2^60 branches",
        make=trees(**_CHAIN),
        says="is reached twice",
    ),
    Package(name="a tree that reads elsewhere", make=trees(feature=[10**6, 0, 0]), says="compares the number 1000000"),
    Package(name="a tree whose leaf is elsewhere", make=trees(left=[-1, 0, 0]), says="is reached twice, or is none"),
    Package(name="inputs that are no names", make=described(_told(inputs=[7])), says="cannot score rows|not what this"),
    Package(
        name="states of 2^40 numbers",
        make=lambda good, folder: sealed(good, folder, _told(state_size=2**40)),
        says="state_size",
    ),
    Package(
        name="pickled weights beside the others",
        make=file("trust/weights.pt", lambda home: pickle.dumps(Payload(home))),
        says="which no trust package has",
    ),
    Package(name="pickled weights in place of them", make=pickled(WEIGHTS), says="was not saved by this version"),
    Package(name="pickled states", make=pickled(SHIFT), says="shift.safetensors is not what package.json tells"),
    Package(
        name="states that are NaN",
        make=weights(lambda found: [of.fill(np.nan) for of in found.values()], SHIFT),
        says="holds a value that is no number",
    ),
    Package(
        name="states of another size",
        make=weights(lambda found: found.update(output_last=np.zeros((5, 9))), SHIFT),
        says="has the shape",
    ),
    Package(name="a small file of 20,000,000 rows", make=many_rows, says="are the most that are read"),
    Package(
        name="package.json nested 100,000 deep",
        make=text("package.json", '{"a":' * 100_000 + "1" + "}" * 100_000),
        says="nested more than 100 deep",
    ),
    Package(
        name="description nested 100,000 deep",
        make=text(DESCRIBED, '{"a":' * 100_000 + "1" + "}" * 100_000),
        says="nested more than 100 deep",
    ),
)


def attempt(case: Package, verb: str, good: TrustPackage, folder: Path) -> tuple[str, str]:
    """Return the outcome of a command on a package, one of ``benchmarks.hostile.OUTCOMES``, and what it said last."""
    from curation.cli import main

    folder.mkdir()
    made = case.make(good, folder / "package")
    pool = folder / "pool.jsonl"
    pool.write_text("".join(json.dumps(row) + "\n" for row in sums(20)))
    given = ["verify", made] if verb == "verify" else ["filter", made, pool, "-o", folder / "out", "--keep", "0.5"]
    told = CliRunner().invoke(main, list(map(str, given)))
    lines = (told.output if verb == "verify" else told.stderr).splitlines() or [""]
    if (folder / RAN).exists() or (folder / "package" / RAN).exists():
        return "ran code", lines[-1]
    if told.exception is not None and not isinstance(told.exception, SystemExit):
        return "traceback", f"{type(told.exception).__name__}: {told.exception}"
    if told.exit_code == 0:
        return "carried through", lines[-1]
    said = next((line for line in lines if re.search(case.says, line)), None)
    return ("refused" if said and not (folder / "out").exists() else "refused otherwise"), lines[-1]


def try_all(folder: Path) -> Counter[str]:
    """Count the packages that `verify` and `filter` refused."""
    good = tiny_package(folder / "good")
    counts: Counter[str] = Counter()
    for verb in VERBS:
        for number, case in enumerate(PACKAGES):
            outcome, line = attempt(case, verb, good, folder / f"{verb}-{number}")
            counts[outcome] += 1
            if outcome != "refused":
                print(f"packages, {verb}: {case.name}: {outcome}: {line}")
    return counts
