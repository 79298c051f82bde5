"""A trust package over sums and the scripted teacher, made without Ray, and what a filter by it must select."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from curation.config import AskConfig, DecodingConfig, DomainConfig, ScriptedConfig
from curation.hashing import hash_unit
from curation.package import CalibrationRows, Description, Made, Sample, TrustPackage, write
from curation.selection.budget import Graded
from curation.storage.paths import place
from curation.tables.schemas import FILE_SHIFT, state_column
from curation.teachers import Request
from curation.teachers.scripted import ScriptedTeacher
from curation.trust.linear_probe import fit_linear_probe

COMPLETIONS = (" \\boxed{1}", " \\boxed{2}", " no idea")
NUM_LABELLED = 600


def asking(completions: Sequence[str] = COMPLETIONS) -> AskConfig:
    return AskConfig(backend="scripted", scripted=ScriptedConfig(completions=tuple(completions)))


def states_of(row_ids: Sequence[int], seed: int = 0) -> pa.Table:
    """What the scripted teacher says to these rows."""
    requests = [Request(row_id=row_id, prompt="") for row_id in row_ids]
    return pa.Table.from_batches(ScriptedTeacher(asking()).label(requests, DecodingConfig(), seed=seed))


def make_package(directory: Path, *, shift: float = 0.0, completions: Sequence[str] = COMPLETIONS) -> TrustPackage:
    """A package whose labels are the likelier right the larger a row's state is; ``shift`` moves its reference."""
    ids = list(range(1 << 30, (1 << 30) + NUM_LABELLED))
    hidden_ND = np.stack(states_of(ids)[state_column("output_last")].to_numpy()).astype(np.float32)
    draw_N = np.random.default_rng(0).random(NUM_LABELLED)
    correct_N = draw_N < hash_unit(np.array(ids), 0)
    probe = fit_linear_probe(hidden_ND, correct_N, inputs=("output_last",), class_weight=0.0, origin={})
    trust = probe.save(place(str(directory / "fit")))
    raw_N = probe.logits(torch.from_numpy(hidden_ND))
    graded = Graded(raw_N, probe.to_trust(raw_N), correct_N)
    description = Description(
        teacher=None,
        state_size=8,
        ask=asking(completions),
        decoding=DecodingConfig(),
        seed=0,
        domain=DomainConfig(name="math"),
        trust="linear_probe",
        kind="linear_probe",
        inputs=("output_last",),
        fit={},
        calibration=CalibrationRows(split="calibration", num_rows=NUM_LABELLED, num_right=int(correct_N.sum())),
        sample=Sample(num_rows=NUM_LABELLED, states=("output_last",)),
        versions={},
        made=Made(run="sums", directory="", generation=0, stage="", fingerprint="", seed=0, command=""),
        created="2026-01-01T00:00:00Z",
    )
    return write(
        directory / "package",
        description,
        trust=trust,
        calibration=graded,
        reference={"output_last": (hidden_ND + shift).astype(np.float16)},
    )


def write_pool(path: Path, num_rows: int, *, first: int = 0, bad: Sequence[int] = ()) -> None:
    """A JSONL file of sums; the rows ``bad`` have no problem."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Mapping[str, Any]] = [
        {"problem": None if n in bad else f"What is {first + n} + 1?", "url": f"https://example.org/{first + n}"}
        for n in range(num_rows)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def ids_of(file: int, num_rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The row ids of a pool's file."""
    return (file << FILE_SHIFT) + np.arange(num_rows, dtype=np.int64)
