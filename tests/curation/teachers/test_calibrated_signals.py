"""Signals and rollouts of calibrated options: asked as the labels were chosen, against plain computations."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from test_content_free import TEXTS, char_model, plain
from test_options import make, rows_of

from curation.config import AskConfig, DecodingConfig, DomainConfig
from curation.domains import get_domain
from curation.passes.job import Models
from curation.refs import ModelRef, TableRef
from curation.signals import Ask, label_request
from curation.stages.rollouts import RolloutJob
from curation.stages.signal import SignalJob
from curation.tables import io
from curation.teachers.wrapped import WrappedTeacher

CLASSES = ["a gas", "iron and tin", "no", "7"]
DOMAIN = DomainConfig(name="classification", classes=CLASSES, calibrate="content_free")
DECODING = DecodingConfig()
ASK = AskConfig(backend="transformers", dtype="float32", states=("output_last",))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelRef:
    found: ModelRef = char_model(tmp_path_factory.mktemp("models") / "m", "qwen3")
    return found


@pytest.fixture(scope="module")
def labelled(model: ModelRef) -> dict[str, list[dict[str, Any]]]:
    """The rows, and their labels with and without calibration, which are not all the same."""
    domain = get_domain(DOMAIN)
    rows: list[dict[str, Any]] = [{"row_id": place, "text": text} for place, text in enumerate(TEXTS)]
    requests, teacher = [label_request(domain, row["row_id"], row) for row in rows], make(model)
    found: dict[str, list[dict[str, Any]]] = {"rows": rows}
    for name, asked in (("calibrated", WrappedTeacher(teacher)), ("plain", teacher)):
        answers = rows_of(asked.label(requests, DECODING, seed=0))
        texts = [(row_id, answers[row_id]["completion"]) for row_id in sorted(answers)]
        found[name] = [{"row_id": row, "completion": text, "label": domain.parse(text, {})} for row, text in texts]
    assert [row["label"] for row in found["calibrated"]] != [row["label"] for row in found["plain"]]
    return found


def measured(name: str, model: ModelRef, found: dict[str, list[dict[str, Any]]], folder: Path) -> dict[int, Any]:
    """The values of a signal by the worker of a pass of its own."""
    labels = io.write(pa.Table.from_pylist(found["calibrated"]), str(folder / "labels.lance"))
    job = SignalJob(
        ask=Ask(signal=name, seed=0, uri=str(folder / "signal.lance")),
        examples=TableRef(uri="", version=0),
        labels=labels,
        domain=DOMAIN,
        teacher=ASK,
        model=model,
        decoding=DECODING,
    )
    return {row["row_id"]: row["value"] for row in job.worker(Models()).work(found["rows"])}


def test_another_teacher_agrees_where_its_calibrated_label_is_the_same(model, labelled, tmp_path):
    assert set(measured("ensemble_agreement", model, labelled, tmp_path).values()) == {1.0}


@pytest.mark.long
def test_self_consistency_is_the_share_by_the_scores_that_chose(model, labelled, tmp_path):
    options = get_domain(DOMAIN).options({})
    blank = [plain(model, f"Text: {text}\nLabel:", options) for text in ("N/A", "[MASK]", "")]
    shares = np.mean([np.exp(score) / np.exp(score).sum() for score in blank], axis=0)
    found = measured("self_consistency", model, labelled, tmp_path)
    for row, label in zip(labelled["rows"], labelled["calibrated"], strict=True):
        above = (plain(model, f"Text: {row['text']}\nLabel:", options) - np.log(shares)) / 0.7
        weights = np.exp(above - above.max())
        expected = weights[options.index(label["completion"])] / weights.sum()
        assert found[row["row_id"]] == pytest.approx(expected, abs=1e-4)


def test_rollouts_are_answers_of_the_calibrated_teacher(model, labelled):
    job = RolloutJob(
        examples=TableRef(uri="", version=0),
        uri="",
        domain=DOMAIN,
        teacher=ASK,
        model=model,
        decoding=DECODING,
        num_samples=1,
        seed=0,
        limit=None,
    )
    right = {row["row_id"]: row for row in labelled["calibrated"]}
    rows = [{**row, "gold": right[row["row_id"]]["label"]} for row in labelled["rows"]]
    drawn = job.worker(Models()).work(rows)
    assert {row["row_id"]: row.get("completion") for row in drawn} == {
        row_id: row["completion"] for row_id, row in right.items()
    }
