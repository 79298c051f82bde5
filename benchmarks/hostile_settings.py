"""Hostile settings of a run: numbers and names that nothing takes, and credentials."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.hostile_case import Case, Settings


def keys(**values: Any) -> Callable[[Path], Settings]:
    """Other values of a run's configuration, by dotted key with two underscores for a dot."""

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


SETTINGS = (
    Case(name="seed of 2^70", make=keys(seed=2**70), says="seed: 1180591620717411303424"),
    Case(name="seed below 0", make=keys(seed=-1), says="seed: -1"),
    Case(name="2^70 rows", make=keys(selection__budget={"n": 2**70}), says="selection.budget"),
    Case(name="an infinite interval", make=keys(commit_seconds=float("inf")), says=r"'\.inf' is not a finite number"),
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
"""Hostile settings of a run with a scripted teacher."""
