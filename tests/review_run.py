"""A run directory with a selection, made by the select stage itself over a written pool, for tests of reviews."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.recorded import recorded
from curation.config import DomainConfig, SelectionConfig
from curation.domains.math import Math
from curation.refs import TableRef
from curation.rundir.graph import Position
from curation.rundir.manifest import Manifest
from curation.stages.chooser import SelectJob
from curation.stages.gold import GoldTexts
from curation.stages.pool_scores import ScoredSplit
from curation.stages.select import select
from curation.tables import io, schemas

HOSTILE = "</pre><script>window.stolen = 1</script><img src=x onerror='window.stolen = 1'>"
FIRST_ID = (1 << 60) + 7
"""Beyond what JavaScript's numbers can tell apart."""
LABELS = pa.schema(
    [
        *schemas.make_labels_schema([], "float16", 1),
        pa.field("trust_raw", pa.float32()),
        pa.field("trust_trust", pa.float32()),
    ]
)


class ReviewedRun(NamedTuple):
    """A run directory, and which of its weak labels are right."""

    directory: Path
    right: dict[int, bool]
    raw: dict[int, float]
    unparsed: set[int]
    """The rows whose label could not be read."""
    failed: set[int]
    """The rows that have no label."""

    def csv(self, path: Path, row_ids: list[int], person: str | None = None) -> Path:
        """True verdicts on rows, as a file."""
        lines = [
            f"{row_id},{'right' if self.right[row_id] else 'wrong'}{'' if person is None else ',' + person}"
            for row_id in row_ids
        ]
        path.write_text("\n".join(["row_id,verdict" + ("" if person is None else ",person"), *lines]) + "\n")
        return path


def make_run(
    directory: Path,
    *,
    num_rows: int,
    budget: dict[str, Any],
    seed: int = 0,
    num_calibration: int = 0,
    noise_at: float = 0.0,
    **further: Any,
) -> ReviewedRun:
    """Write the run; a row with raw score r is right with probability sigmoid(2 r + ``noise_at``).

    A tenth of the rows is unparsed or failed, with the highest scores; every third text holds markup. ``further`` are
    keys of the section ``selection``.
    """
    rng = np.random.default_rng(seed)
    ids = FIRST_ID + rng.permutation(num_rows)
    raw = rng.normal(size=num_rows).astype(np.float32)
    right = rng.random(num_rows) < 1 / (1 + np.exp(-(2 * raw + noise_at)))
    broken = rng.random(num_rows)
    unparsed, failed = broken < 0.07, (broken >= 0.07) & (broken < 0.1)
    raw[unparsed | failed] = 9
    right &= ~(unparsed | failed)
    texts = [HOSTILE if index % 3 == 0 else f"what is {index} + 1" for index in range(num_rows)]
    columns = {
        "row_id": ids,
        "completion": [f" \\boxed{{{index}}} {text}" for index, text in enumerate(texts)],
        "label": [None if skip else f"{index} {HOSTILE}" for index, skip in enumerate(unparsed | failed)],
        "trust_raw": raw,
        "trust_trust": (1 / (1 + np.exp(-2 * raw))).astype(np.float32),
        "error": ["teacher_failed: x" if bad else None for bad in failed],
    }
    labels = _write(directory / "labels.lance", columns, LABELS)
    examples = {"row_id": ids, "problem": texts, "difficulty": np.ones(num_rows)}
    pool = _write(directory / "pool.lance", examples, schemas.make_examples_schema(Math.columns, gold=False))
    selection = SelectionConfig.model_validate({"budget": budget, "arms": ["naive", "trust"], **further})
    calibration = _calibration(directory, num_calibration, noise_at, rng) if num_calibration else None
    domain = DomainConfig(name="math")
    job = SelectJob(
        pool=pool,
        labels=labels,
        audit=None,
        grades=None,
        measured=ScoredSplit(labels=labels, grades=None),
        calibration=calibration,
        domain=domain,
        selection=selection,
        teacher=None,
        generation=0,
        seed=seed,
        texts=GoldTexts(source="answer"),
    )
    found, selections = select(job, directory / "gen-0" / "select-00000000")
    choice = {"pool": pool.to_json(), "labels": labels.to_json(), "too_long": None, "domain": domain.model_dump()}
    Manifest.load(directory).record(
        "gen-0/select",
        {"choice": choice},
        {"budget": found.to_json(), "arms": {item.arm: asdict(item) for item in selections}},
        rows=found.n,
        seconds=1.0,
        kind="Select",
        at=Position(generation=0, split="pool"),
    )
    return ReviewedRun(
        directory,
        dict(zip(ids.tolist(), right.tolist(), strict=True)),
        dict(zip(ids.tolist(), raw.tolist(), strict=True)),
        set(ids[unparsed].tolist()),
        set(ids[failed].tolist()),
    )


def selected(run: ReviewedRun, arm: str) -> list[int]:
    """The ids of the rows that an arm selected, best first."""
    record = recorded(run.directory)["gen-0/select"]
    table = TableRef.from_json(record["outputs"]["arms"][arm]["table"])
    return io.read(table, columns=["row_id"])["row_id"].to_pylist()


def _calibration(directory: Path, num_rows: int, noise_at: float, rng: np.random.Generator) -> ScoredSplit:
    raw = rng.normal(size=num_rows).astype(np.float32)
    right = rng.random(num_rows) < 1 / (1 + np.exp(-(2 * raw + noise_at)))
    ids = np.arange(num_rows)
    columns = {
        "row_id": ids,
        "completion": [" \\boxed{1}"] * num_rows,
        "label": ["1"] * num_rows,
        "trust_raw": raw,
        "trust_trust": (1 / (1 + np.exp(-2 * raw))).astype(np.float32),
    }
    grades = {"row_id": ids, "correct": right, "judged": np.zeros(num_rows, bool)}
    return ScoredSplit(
        labels=_write(directory / "calibration.lance", columns, LABELS),
        grades=_write(directory / "grades.lance", grades, schemas.GRADES),
    )


def _write(path: Path, columns: dict[str, Any], schema: pa.Schema) -> TableRef:
    size = len(columns["row_id"])
    arrays = [pa.array(columns.get(field.name, [None] * size), field.type) for field in schema]
    return io.write(pa.table(arrays, schema=schema), str(path))
