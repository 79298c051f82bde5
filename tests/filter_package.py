"""A trust package over sums and the scripted teacher, made without Ray, and what a filter by it must select."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from curation.config import AskConfig, DecodingConfig, DomainConfig, ScriptedConfig, TrustConfig
from curation.extras.first_cut.config import Cascade
from curation.extras.first_cut.threshold import HeldOut, describe_first_cut, find_first_cut, write_held_out
from curation.filter.package.description import CalibrationRows, Description, Made, Sample
from curation.filter.package.folder import TrustPackage, write
from curation.filter.parts import PartFiles
from curation.hashing import hash_unit
from curation.refs import TrustRef
from curation.selection.budget import GradedScores
from curation.storage.paths import to_place
from curation.tables.schemas import FILE_SHIFT, get_state_column
from curation.teachers import Request
from curation.teachers.scripted import ScriptedTeacher
from curation.trust.linear_probe import LinearProbe

COMPLETIONS = (" \\boxed{1}", " \\boxed{2}", " no idea")
STATES = ("output_last", "prompt_last")
NUM_LABELLED, NUM_HELD_OUT = 600, 5000
NOISE = 1e-3
"""Of the states that the function of prompts is fitted on, so that its direction is not a single number's."""


def asking(completions: Sequence[str] = COMPLETIONS, states: Sequence[str] = STATES[:1]) -> AskConfig:
    script = ScriptedConfig(completions=tuple(completions))
    return AskConfig(backend="scripted", scripted=script, states=tuple(states), dtype="float32")


def states_of(
    row_ids: Sequence[int], seed: int = 0, *, states: Sequence[str] = STATES[:1], prompt: str = ""
) -> pa.Table:
    """What the scripted teacher says to these rows."""
    requests = [Request(row_id=row_id, prompt=prompt) for row_id in row_ids]
    teacher = ScriptedTeacher(asking(states=states))
    return pa.Table.from_batches(teacher.label(requests, DecodingConfig(), seed=seed))


def matrix(table: pa.Table, state: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A state of each row, float32 [N, D]."""
    return np.stack(table[get_state_column(state)].to_numpy()).astype(np.float32)


def first_of(directory: Path, trust: LinearProbe, answer_words: int) -> tuple[TrustRef, HeldOut]:
    """A trust function of prompts, and held-out rows with prompts of 20 words; some have no label."""
    table = states_of(range(1 << 31, (1 << 31) + NUM_HELD_OUT), states=STATES)
    raw_M = trust.logits(torch.from_numpy(matrix(table, "output_last"))).astype(np.float64)
    prompts_MD = matrix(table, "prompt_last")
    noisy_MD = prompts_MD + np.random.default_rng(1).normal(size=prompts_MD.shape).astype(np.float32) * NOISE
    first = LinearProbe.fitted(
        noisy_MD, raw_M > np.quantile(raw_M, 0.9), TrustConfig(states=("prompt_last",), class_weight=0.0), {}
    )
    raw_M[[text == COMPLETIONS[2] for text in table["completion"].to_pylist()]] = np.nan
    tokens_M = [np.full(NUM_HELD_OUT, number, dtype=np.int64) for number in (20, answer_words)]
    rows = HeldOut(
        first_M=first.logits(torch.from_numpy(prompts_MD)).astype(np.float64),
        full_M=raw_M,
        prompt_tokens_M=tokens_M[0],
        output_tokens_M=tokens_M[1] + np.arange(NUM_HELD_OUT) % 3 - 1,
    )
    return first.save(to_place(str(directory / "first"))), rows


def cascade_of(rows: HeldOut) -> Cascade:
    found = find_first_cut(rows, keep=0.1)
    return Cascade(
        inputs=("prompt_last",), states=STATES, keep=0.1, split="source", num_rows=NUM_HELD_OUT,
        cut=found, words=describe_first_cut(found),
    )  # fmt: skip


def make_package(
    directory: Path,
    *,
    shift: float = 0.0,
    completions: Sequence[str] = COMPLETIONS,
    answer_words: int | None = None,
    below: float = 1.0,
) -> TrustPackage:
    """A package whose labels are the likelier right the larger a row's state is; ``shift`` moves its reference.

    It knows only rows whose place on the states' line (0 to 1) is less than ``below``. With ``answer_words`` it has a
    first cut, as if answers had so many words.
    """
    ids_N = np.arange(1 << 30, (1 << 30) + 2 * NUM_LABELLED)
    ids = ids_N[hash_unit(ids_N, 0) < below][:NUM_LABELLED].tolist()
    labelled = states_of(ids, states=STATES)
    hidden_ND = matrix(labelled, "output_last")
    draw_N = np.random.default_rng(0).random(NUM_LABELLED)
    correct_N = draw_N < hash_unit(np.array(ids), 0)
    probe = LinearProbe.fitted(hidden_ND, correct_N, TrustConfig(states=("output_last",), class_weight=0.0), {})
    trust = probe.save(to_place(str(directory / "fit")))
    raw_N = probe.logits(torch.from_numpy(hidden_ND))
    graded = GradedScores(raw_N, probe.to_trust(raw_N), correct_N)
    cascade = None if answer_words is None else first_of(directory, probe, answer_words)
    reference = {"output_last": (hidden_ND + shift).astype(np.float16), "raw": graded.raw_M, "trust": graded.trust_M}
    if cascade is not None:
        reference["prompt_last"] = matrix(labelled, "prompt_last").astype(np.float16)
    description = Description(
        teacher=None,
        state_size=8,
        ask=asking(completions).answers,
        decoding=DecodingConfig(),
        seed=0,
        domain=DomainConfig(name="math"),
        trust="linear_probe",
        kind="linear_probe",
        inputs=("output_last",),
        fit={},
        calibration=CalibrationRows(split="calibration", num_rows=NUM_LABELLED, num_right=int(correct_N.sum())),
        sample=Sample(num_rows=NUM_LABELLED, states=("output_last",)),
        cascade=None if cascade is None else cascade_of(cascade[1]),
        versions={},
        made=Made(run="sums", directory="", generation=0, stage="", fingerprint="", seed=0, command=""),
        created="2026-01-01T00:00:00Z",
    )
    return write(
        directory / "package",
        description,
        trust=trust,
        calibration=graded,
        reference=reference,
        parts={} if cascade is None else {"cascade": PartFiles(cascade[0], partial(write_held_out, cascade[1]))},
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
