"""A trust package over sums and the scripted teacher, made in a moment without a run and without Ray."""

from pathlib import Path
from typing import Any

import numpy as np

from curation.config import AnswersConfig, DecodingConfig, DomainConfig, TrustConfig
from curation.domains import get_domain
from curation.filter.package.checks import collect_questions
from curation.filter.package.description import CalibrationRows, Description, Made, Sample
from curation.filter.package.folder import TrustPackage, write
from curation.hashing import hash_unit
from curation.refs import ModelRef
from curation.selection.budget import GradedScores
from curation.trust.calibration import Calibration
from curation.trust.linear_probe import LinearProbe

SIZE, SEED, NUM_ROWS = 8, 3, 400
COMPLETIONS = (" \\boxed{1}", " \\boxed{2}", " none")
SLOPE, INTERCEPT = 0.5, 0.25


def sums(num_rows: int, first: int = 0) -> list[dict[str, Any]]:
    """Rows of a file."""
    return [{"problem": f"What is {n + 1} - {n}?", "answer": "1"} for n in range(first, first + num_rows)]


def direction() -> np.ndarray:
    """The line on which the scripted teacher's states lie, float32 [D]."""
    return np.random.default_rng(0).normal(size=SIZE).astype(np.float32)


def states_of(row_ids_N: np.ndarray, seed: int = SEED) -> np.ndarray:
    """The scripted teacher's states of rows, as they are stored."""
    return (hash_unit(row_ids_N, seed).astype(np.float32)[:, None] * direction()).astype(np.float16)


def probe(seed: int = 0) -> tuple[LinearProbe, GradedScores, np.ndarray]:
    """A fitted probe, its calibration rows, and the states that it was fitted on."""
    rng = np.random.default_rng(seed)
    ids_N = np.arange(NUM_ROWS)
    hidden_ND = states_of(ids_N)
    correct_N = rng.random(NUM_ROWS) < hash_unit(ids_N, SEED)  # the further along the line, the likelier right
    fitted = LinearProbe.fitted(hidden_ND, correct_N, TrustConfig(), {"config": TrustConfig().model_dump(mode="json")})
    fitted.calibration = Calibration(slope=SLOPE, intercept=INTERCEPT, num_rows=50)
    raw_M = fitted.raw(_tensor(hidden_ND[:50]))
    raw_M[3] = np.nan  # unparsed
    return fitted, GradedScores(raw_M, fitted.to_trust(raw_M), correct_N[:50]), hidden_ND


def _tensor(hidden_ND: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(hidden_ND))


def description(**changes: Any) -> Description:
    """What such a package says."""
    domain = DomainConfig(name="math")
    own = get_domain(domain)
    rows = [(own.read(raw), COMPLETIONS[0], "1") for raw in sums(3)]
    return Description(
        **{
            "teacher": None,
            "state_size": SIZE,
            "ask": AnswersConfig(backend="scripted", scripted={"completions": COMPLETIONS, "state_size": SIZE}),
            "decoding": DecodingConfig(),
            "seed": SEED,
            "domain": domain,
            "questions": collect_questions(own, rows),
            "trust": "linear_probe",
            "kind": "linear_probe",
            "inputs": ("output_last",),
            "fit": {"num_fit": NUM_ROWS, "share_right_fit": 0.5},
            "calibration": CalibrationRows(split="source", num_rows=50, num_right=25),
            "sample": Sample(num_rows=NUM_ROWS, states=("output_last",)),
            "versions": {"trust-curation": "0.1.0"},
            "made": Made(
                run="sums", directory="/runs/sums", generation=0, stage="gen-0/trust", fingerprint="0" * 16, seed=0,
                command="curate export-trust",
            ),
            "created": "2026-01-01T00:00:00+00:00",
            **changes,
        }
    )  # fmt: skip


def tiny_package(folder: Path, *, seed: int = 0, **changes: Any) -> TrustPackage:
    """Write a package; ``changes`` are fields of its description."""
    fitted, calibration, hidden_ND = probe(seed)
    told = description(**changes)
    ref = fitted.save(folder.with_name(f"{folder.name}.fit"))
    reference = {"output_last": hidden_ND} if told.sample.states else {}
    rows = calibration if told.calibration is not None else None
    return write(folder, told, trust=ref, calibration=rows, reference=reference, card="A package of the tests.\n")


def of_model(folder: Path, model: ModelRef, **changes: Any) -> TrustPackage:
    """A package that names a model; its states are those of the scripted teacher."""
    from curation.filter.package.checks import compute_digests

    return tiny_package(folder, teacher=model, teacher_digests=compute_digests(model), **changes)
