"""``curate plan`` and ``curate filter`` by vLLM, with a package that was fitted on the answers of transformers."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from click.testing import CliRunner

from curation.cli import main
from curation.config import AnswersConfig, DecodingConfig, DomainConfig, TrustConfig
from curation.filter import Filter
from curation.filter.package.checks import compute_digests
from curation.filter.package.description import CalibrationRows, Description, Made, Sample
from curation.filter.package.folder import write
from curation.selection.budget import GradedScores
from curation.storage.paths import to_place
from curation.tables.schemas import get_state_column
from curation.trust.linear_probe import LinearProbe
from tests.with_vllm.conftest import SHAPE

pytestmark = pytest.mark.whole_run

NUM_ROWS, KEPT = 96, 2
ENGINE = {"enforce_eager": True, "max_num_seqs": 24, "kv_cache_memory_bytes": 32 << 20}


def packaged(folder, model, reference, requests):
    """A probe that tells answers whose last state lies on one side of a plane."""
    decoding = DecodingConfig(max_tokens=6)
    answers = pa.Table.from_batches(reference.label(requests, decoding, seed=0))
    hidden_ND = np.stack(answers[get_state_column("output_last")].to_numpy()).astype(np.float32)
    correct_N = hidden_ND @ np.random.default_rng(0).normal(size=SHAPE["hidden_size"]) > 0
    probe = LinearProbe.fitted(hidden_ND, correct_N, TrustConfig(states=("output_last",), class_weight=0.0), {})
    raw_N = probe.logits(torch.from_numpy(hidden_ND))
    description = Description(
        teacher=model,
        teacher_digests=compute_digests(model),
        state_size=SHAPE["hidden_size"],
        ask=AnswersConfig(backend="transformers", states=("output_last",), state_dtype="float32"),
        decoding=decoding,
        seed=0,
        domain=DomainConfig(name="chess"),
        trust="linear_probe",
        kind="linear_probe",
        inputs=("output_last",),
        fit={},
        calibration=CalibrationRows(split="source", num_rows=len(raw_N), num_right=int(correct_N.sum())),
        sample=Sample(num_rows=len(raw_N), states=("output_last",)),
        versions={},
        made=Made(run="chess", directory="", generation=0, stage="", fingerprint="", seed=0, command=""),
        created="2026-01-01T00:00:00Z",
    )
    return write(
        folder / "package",
        description,
        trust=probe.save(to_place(str(folder / "fit"))),
        calibration=GradedScores(raw_N, probe.to_trust(raw_N), correct_N),
        reference={"output_last": hidden_ND.astype(np.float16)},
    )


def test_vllm_plans_and_filters_by_a_package_of_transformers(local_ray, model, reference, requests, puzzles, tmp_path):
    package = packaged(tmp_path, model, reference, requests)
    rows = puzzles[300 : 300 + NUM_ROWS]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "pool.parquet")
    config = {
        "package": package.uri,
        "pool": {"path": str(tmp_path / "pool.parquet")},
        "output": {"path": str(tmp_path / "out")},
        "keep": {"n": KEPT},
        "teacher": {"backend": "vllm", "vllm": {"engine": ENGINE}, "chunk_rows": 32, "actors": {"num_cpus": 1}},
        "ray": {"num_cpus": 2},
        "on_shift": "ignore",
    }
    (tmp_path / "filter.yaml").write_text(yaml.safe_dump(config))
    told = {}
    for verb, *options in (("plan", "--probe", "48", "--json"), ("filter",)):
        result = CliRunner().invoke(main, [verb, str(tmp_path / "filter.yaml"), *options], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        told[verb] = result.stdout

    expected = {row["fen"]: row for row in Filter.load(package).score(rows)}
    content = json.loads((tmp_path / "out" / "filter.json").read_text())
    kept = pq.read_table(tmp_path / "out" / "data")
    assert kept.num_rows == KEPT == content["kept"]
    usable = sorted(row["trust"] for row in expected.values() if row["trust"] is not None)
    source = dict(enumerate(rows))
    for row in kept.to_pylist():
        other = expected[source[row["row_id"]]["fen"]]
        assert row["label"] == other["label"] and abs(row["trust"] - other["trust"]) < 1e-3
        assert row["trust"] > usable[-KEPT] - 1e-3
    forecast, (used,) = json.loads(told["plan"])["forecast"]["total"], content["rounds"]
    assert forecast["prompt_tokens"]["low"] <= used["prompt_tokens"] <= forecast["prompt_tokens"]["high"], forecast
    # nearly all rows have as many: a sample without spread has an interval without one
    assert abs(forecast["output_tokens"]["value"] / used["output_tokens"] - 1) < 0.1, forecast
    assert forecast["hours"]["value"] > 0
