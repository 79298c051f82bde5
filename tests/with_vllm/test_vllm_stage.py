"""The label stage and a whole run with the vLLM teacher, in actors of Ray."""

import json
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

from curation import run
from curation.config import DecodingConfig, DomainConfig
from curation.config.load import load_config
from curation.domains import get_domain
from curation.refs import TableRef
from curation.stages.label import RowShare, label
from curation.stages.label_chunks import LabelJob
from curation.tables import io, schemas
from tests.with_vllm.conftest import SHAPE, start, teacher_config

pytestmark = pytest.mark.whole_run

ENGINE = {"enforce_eager": True, "max_num_seqs": 24, "kv_cache_memory_bytes": 32 << 20}


@pytest.mark.parametrize("fate", ["killed", pytest.param("hangs", marks=pytest.mark.slow)])
def test_an_actor_that_dies_mid_task_leaves_every_row_once(local_ray, model, puzzles, tmp_path, fate):
    """Rows end in the engine's order; the actor is killed, or its engine hangs, among its second chunk."""
    chess = get_domain(DomainConfig(name="chess"))
    rows = [chess.read(raw) | {"row_id": 7 * k, "error": None} for k, raw in enumerate(puzzles[:200])]
    table = pa.Table.from_pylist(rows, schema=schemas.make_examples_schema(chess.columns, gold=False))
    uri = str(tmp_path / "examples.lance")
    examples = TableRef(uri=uri, version=lance.write_dataset(table, uri).version)
    fatal = {"fatal": rows[90]["fen"], "log": str(tmp_path), "fate": fate}
    job = LabelJob(
        examples=examples,
        labels_uri=str(tmp_path / "labels.lance"),
        domain=DomainConfig(name="tests.with_vllm.fatal:Fatal", **fatal),
        teacher=teacher_config(model, backend="vllm", chunk_rows=64, vllm={"engine": ENGINE, "hang_seconds": 3}),
        model=model,
        decoding=DecodingConfig(max_tokens=12),
        seed=0,
    )
    ref = label(job, state_size=SHAPE["hidden_size"], share=RowShare(), commit_seconds=0.0).table
    assert (tmp_path / "died").exists()
    found = {row["row_id"]: row for row in io.read(ref).to_pylist()}
    assert io.count(ref) == len(found) == len(rows)
    here = start(model)
    from curation.teachers import Request

    requests = [Request(row_id=row["row_id"], prompt=chess.prompt(row)) for row in rows]
    for batch in here.label(requests, job.decoding, seed=0):
        for row in batch.to_pylist():
            assert row["completion"] == found[row["row_id"]]["completion"]
            np.testing.assert_allclose(row["state_output_mean"], found[row["row_id"]]["state_output_mean"], atol=1e-4)


EXAMPLES = Path(__file__).parents[2] / "examples"
REDUCED = {
    "chess": (
        "splits.adapt.rows=800",
        "splits.source.rows=600",
        "splits.probes={}",
        "splits.pool.rows=400",
        "signals={}",
    ),
    "mcqa": (
        "splits.adapt=null",
        "splits.source.rows=300",
        "splits.probes={}",
        "splits.pool.rows=300",
        "splits.calibration=null",
        "teacher.adapt=null",
        "teacher.model={init: {hidden_size: 96, num_layers: 3, num_heads: 3, max_positions: 640}}",
        "signals={}",
    ),
}


ARMS = {
    "chess": ("naive", "internal_confidence", "trust"),
    "mcqa": ("naive", "internal_confidence", "icl_confidence", "trust"),
}


@pytest.mark.parametrize(("domain", "stored"), [("chess", "false"), ("mcqa", "true")])
def test_a_run_selects_with_vllm_what_it_selects_with_transformers(local_ray, tmp_path, domain, stored):
    """From the shipped YAML, reduced: the same labels, trust and selection, rows of nearly equal trust aside.

    Chess is scored by vLLM's actors, and by the score stage with transformers.
    """
    found = {}
    for backend in ("transformers", "vllm"):  # in one directory: what comes before the labels is made once
        overrides = (
            *REDUCED[domain],
            f"run_dir={tmp_path}",
            f"teacher.backend={backend}",
            f"teacher.store_states={'true' if backend == 'transformers' else stored}",
            *([] if backend == "transformers" else [f"teacher.vllm={{engine: {json.dumps(ENGINE)}}}"]),
            "teacher.state_dtype=float32",
            "teacher.actors={min: 1, max: 1, num_cpus: 1}",  # which leaves a core for the fit between two passes
            "trust.cpus_per_worker=1",
            f"selection={{budget: {{n: 60}}, arms: {list(ARMS[domain])}}}",
            "generations=[]",
        )
        before = set(tmp_path.rglob("select-*/*.lance"))
        content = run(load_config(EXAMPLES / f"{domain}.yaml", overrides))
        assert content["budget"]["n"] == 60
        paths = set(tmp_path.rglob("select-*/*.lance")) - before
        selected = {path.stem: lance.dataset(str(path)).to_table().to_pylist() for path in paths}
        assert set(selected) == set(ARMS[domain])
        passes = {item["name"]: item for item in content["passes"]}
        (labelled,) = (item for name, item in passes.items() if name.endswith("label-pool"))
        assert labelled["backend"] == backend
        starts = [item["starts"] for item in content["passes"] if item["model"] == labelled["model"]]
        assert sum(starts) == 1 and len(starts) >= 2, "one start serves source and pool"
        found[backend] = {name: {row["row_id"]: row for row in rows} for name, rows in selected.items()}
    for name, rows in found["transformers"].items():
        others = found["vllm"][name]
        common = rows.keys() & others.keys()
        assert len(common) >= 59, name
        for row_id in common:
            assert rows[row_id]["completion"] == others[row_id]["completion"]
            assert abs(rows[row_id]["trust"] - others[row_id]["trust"]) < 1e-3
