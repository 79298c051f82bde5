"""Hostile settings of a run: invalid numbers and names, and credentials."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.hostile_case import Case, Settings


def keys(**values: Any) -> Callable[[Path], Settings]:
    """Return a maker of a configuration with other values, by dotted key with two underscores for a dot."""

    def make(folder: Path) -> Settings:
        settings: dict[str, Any] = {}
        for key, value in values.items():
            node, parts = settings, key.split("__")
            for part in parts[:-1]:
                node = node.setdefault(part, {})
            node[parts[-1]] = value(folder) if callable(value) else value
        return settings

    return make


def _under_a_file(folder: Path) -> str:
    (folder / "file").write_text("in the way")
    return str(folder / "file" / "run")


def base(text: str) -> Callable[[Path], Settings]:
    """Return a maker of a file below the configuration with this text."""

    def make(folder: Path) -> Settings:
        (folder / "base.yaml").write_text(text)
        return {"base": str(folder / "base.yaml")}

    return make


_BOMB = "".join(
    [f"a0: &a0 [{', '.join('x' * 10)}]\n"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)]
)
"""YAML of nested anchors with ten references each, which expands to 10^9 values."""
_CHAIN = "a0: &a0 {b: 1}\n" + "".join(f"a{n}: &a{n} {{b: *a{n - 1}}}\n" for n in range(1, 60))
"""YAML of anchors that are nested sixty levels deep, with two references per line."""
SETTINGS = (
    Case(name="YAML of 10^9 values", make=base(_BOMB), says="base.yaml: line .*more than 100,000 values"),
    Case(
        name="YAML of 10^9 merged keys",
        make=base(_BOMB.replace("[", "[{c: 1}, ", 1) + "d:\n  <<: *a8\n"),
        says="base.yaml: .*(more than 100,000 values|is not YAML)",
    ),
    Case(
        name="YAML nested 100,000 deep", make=base("a: " + "[" * 100_000 + "]" * 100_000), says="deeper than 50 levels"
    ),
    Case(
        name="YAML nested by indentation",
        make=base("".join(" " * n + "a:\n" for n in range(900))),
        says="deeper than 50",
    ),
    Case(name="YAML nested by anchors", make=base(_CHAIN), says="deeper than 50 levels"),
    Case(
        name="YAML anchor within itself",
        make=base("a: &a [*a]"),
        says="an anchor stands within its own value",
    ),
    Case(name="YAML of 2 MB", make=base("# " + "x" * 2**21), says="a configuration may have"),
    Case(
        name="YAML that makes an object",
        make=base("a: !!python/object/apply:os.system [touch ran]"),
        says="base.yaml: line 1: .*no key takes|is not YAML",
    ),
    Case(name="YAML number of 10^6 digits", make=base("seed: " + "9" * 10**6), says="base.yaml: |seed: "),
    Case(name="seed of 2^70", make=keys(seed=2**70), says="seed: 1180591620717411303424"),
    Case(name="seed below 0", make=keys(seed=-1), says="seed: -1"),
    Case(name="2^70 rows", make=keys(selection__budget={"n": 2**70}), says="selection.budget"),
    Case(
        name="an infinite interval",
        make=keys(commit_seconds=float("inf")),
        says=r"commit_seconds: '\.inf': ",
    ),
    Case(name="a name of 300 characters", make=keys(name="n" * 300), says="name: "),
    Case(name="NUL in run_dir", make=keys(run_dir="runs/a\0b"), says="run_dir: 'runs/a\\\\x00b' holds a NUL"),
    Case(
        name="run_dir with a name of 300 characters",
        make=keys(run_dir="runs/" + "n" * 300),
        says="has a name of 300 bytes",
    ),
    Case(
        name="run_dir of 5,000 characters",
        make=keys(run_dir=lambda folder: str(folder) + "/" + "n/" * 2500),
        says="cannot be a folder",
    ),
    Case(name="run_dir below a file", make=keys(run_dir=_under_a_file), says="cannot be a folder"),
    Case(
        name="NUL in a source",
        make=keys(sources__puzzles__path="a\0b"),
        says="sources.puzzles.path: 'a\\\\x00b' holds a NUL",
    ),
    Case(
        name="source with a name of 300 characters",
        make=keys(sources__puzzles__path="n" * 300),
        says="has a name of 300 bytes",
    ),
    Case(name="NUL in a model", make=keys(teacher__model={"path": "a\0b"}), says="holds a NUL"),
    Case(
        name="model with a name of 300 characters", make=keys(teacher__model={"path": "n" * 300}), says="of 300 bytes"
    ),
    Case(
        name="password in a source",
        make=keys(sources__puzzles__path="https://user:planted@localhost/rows.parquet"),
        says="sources.puzzles.path: holds a credential",
    ),
    Case(
        name="key in a source",
        make=keys(sources__puzzles__path="s3://AKIA:planted@bucket/rows.parquet"),
        says="sources.puzzles.path: holds a credential",
    ),
    Case(
        name="signature in a source",
        make=keys(sources__puzzles__path="https://localhost/rows.parquet?X-Amz-Signature=planted"),
        says="sources.puzzles.path: holds a credential",
    ),
    Case(name="key in run_dir", make=keys(run_dir="s3://AKIA:planted@bucket/run"), says="run_dir: holds a credential"),
    Case(
        name="token in a model",
        make=keys(teacher__model={"path": "https://planted@huggingface.co/org/model"}),
        says="teacher.model.path: holds a credential",
    ),
    Case(
        name="token among the engine's arguments",
        make=keys(teacher__vllm={"engine": {"hf_token": "planted"}}),
        says="teacher.vllm.engine.hf_token: holds a credential",
    ),
)
"""Cases of hostile settings of a run with a scripted teacher."""
