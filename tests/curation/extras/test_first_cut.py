"""The first cut in the labelling actors: rows that pass are answered as without it, dropped ones are never asked."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from curation.config import (
    BudgetConfig,
    DecodingConfig,
    DomainConfig,
    ModelConfig,
    ScriptedConfig,
    SelectionConfig,
    TeacherConfig,
    TrustConfig,
)
from curation.domains import get_domain
from curation.errors import ConfigError, UserError
from curation.extras.first_cut.export import collect_held_out, write_cut_target
from curation.extras.first_cut.gate import FirstCutRule, PromptGate
from curation.extras.first_cut.threshold import find_first_cut
from curation.refs import TableRef
from curation.stages.chooser import SelectJob, apply_budget_rule
from curation.stages.gold import GoldTexts
from curation.stages.grade import _grade, _iter_calls
from curation.stages.label import count_labels
from curation.stages.label_chunks import LabelJob, LabelWorker, label_rows
from curation.stages.pool_scores import PoolScores, ScoredSplit
from curation.stages.score import ScoredOnly
from curation.tables import commits, io, schemas
from curation.teachers import load_teacher
from curation.teachers.wrapped import WrappedTeacher
from curation.trust import load_fitted
from curation.trust.linear_probe import LinearProbe

CHESS = DomainConfig(name="chess")
STATES = ("prompt_last", "output_last")
NUM_ROWS = 90


def probe(folder, size, inputs=("prompt_last",), seed=0):
    torch.manual_seed(seed)
    return LinearProbe(torch.randn(size), torch.tensor(0.0), inputs, {}).save(folder)


@pytest.fixture(scope="module")
def rows(puzzles):
    domain = get_domain(CHESS)
    rows = [{"row_id": 7 * k, **domain.read(raw), "error": None} for k, raw in enumerate(puzzles[:NUM_ROWS])]
    rows[5]["error"] = "bad: x"
    return rows


def job_of(folder, model=None, **settings):
    """A job of the transformers teacher, or of a scripted one."""
    backend = {
        "backend": "scripted",
        "scripted": ScriptedConfig(state_size=8, completions=(" h2h3", " h7h6", " nothing")),
    }
    if model is not None:
        backend = {"model": ModelConfig(path=model.base), "batch_tokens": 1024}
    return LabelJob(
        examples=TableRef(uri="unused", version=1),
        labels_uri=str(folder / "labels.lance"),
        domain=CHESS,
        teacher=TeacherConfig(states=STATES, **backend),
        model=model,
        decoding=DecodingConfig(max_tokens=5, temperature=0.7),
        seed=3,
        **settings,
    )


def labelled(job, rows):
    """The table that a process writes, sorted by row id."""
    worker = LabelWorker(job, WrappedTeacher(load_teacher(job.teacher, job.model)))
    table = io.create(job.labels_uri, worker._schema)
    committer = commits.Committer(table.uri)
    for start in range(0, len(rows), 30):
        for row in worker.write([worker.work(rows[start : start + 30])], {}).to_pylist():
            committer.add(row["fragments"], row["row_ids"])
    committer.flush()
    return io.find_latest(table.uri)


def read(ref):
    return io.read(ref).sort_by("row_id").to_pylist()


@pytest.fixture(scope="module")
def plain(tiny_model, rows, tmp_path_factory):
    """The labels without a first cut."""
    return labelled(job_of(tmp_path_factory.mktemp("plain"), tiny_model), rows)


@pytest.fixture(scope="module")
def function(tmp_path_factory):
    return probe(tmp_path_factory.mktemp("probe") / "first", 32)


def median_cut(plain, function, share=0.5):
    """A cut that drops a share of the rows."""
    batch = io.read(plain, filter="error IS NULL").combine_chunks().to_batches()[0]
    raw_N = load_fitted(function).raw_score(batch)
    return FirstCutRule(function=function, threshold=float(np.quantile(raw_N, share, method="lower")))


def test_rows_that_pass_are_answered_as_without_it_and_dropped_ones_have_no_answer(
    tiny_model, rows, plain, function, tmp_path
):
    cut = median_cut(plain, function)
    found = read(labelled(job_of(tmp_path, tiny_model, gate=cut), rows))
    expected = read(plain)
    assert [row["row_id"] for row in found] == [row["row_id"] for row in rows]
    dropped = [row for row in found if row["dropped"]]
    assert 35 <= len(dropped) <= 50
    exact = 0
    for row, other in zip(found, expected, strict=True):
        raw = row.pop("first_cut_raw")
        if row.pop("dropped"):
            assert raw < cut.threshold and row["num_prompt_tokens"] == other["num_prompt_tokens"]
            assert row["num_output_tokens"] == 0
            unset = {name for name, value in row.items() if value is None}
            assert unset == set(row) - {"row_id", "num_prompt_tokens", "num_output_tokens"}
            continue
        assert (raw is None) == (other["error"] is not None)
        assert raw is None or raw >= cut.threshold
        states = {name: (row.pop(name), other.pop(name)) for name in map(schemas.get_state_column, STATES)}
        told = [name for name in schemas.NUMBERS if isinstance(row[name], float)]
        numbers = {name: (row.pop(name), other.pop(name)) for name in told}
        assert row == other
        for pair in numbers.values():  # batches of other sizes round otherwise
            np.testing.assert_allclose(*pair, rtol=1e-5, atol=1e-6)
        if raw is not None:
            assert "mean_logprob" in numbers
            for one, same in states.values():  # another number of rows in a product may round the last bit otherwise
                np.testing.assert_allclose(one, same, atol=2e-3)
            exact += states["state_prompt_last"][0] == states["state_prompt_last"][1]
    assert exact == NUM_ROWS - 1 - len(dropped)


def test_a_threshold_that_all_rows_pass_changes_no_bit(tiny_model, rows, plain, function, tmp_path):
    cut = replace(median_cut(plain, function), threshold=-1e9)
    found = io.read(labelled(job_of(tmp_path, tiny_model, gate=cut), rows)).sort_by("row_id")
    assert not any(found["dropped"].to_pylist())
    assert found.drop_columns(cut.columns.names).equals(io.read(plain).sort_by("row_id"))


def test_dropped_rows_are_counted_and_neither_graded_nor_selected(tmp_path, rows):
    function = probe(tmp_path / "probe", 8)
    plain = labelled(job_of(tmp_path / "plain"), rows)
    cut = median_cut(plain, function, 0.3)
    fitted = (("full", probe(tmp_path / "full", 8, ("output_last",))),)
    reduction = ScoredOnly(fitted=fitted, states=("output_last",), num_rows=NUM_ROWS, seed=0)
    ref = labelled(job_of(tmp_path / "cut", gate=cut, reduction=reduction), rows)
    found = read(ref)
    dropped = {row["row_id"] for row in found if row["dropped"]}
    counts = count_labels(ref, cut)
    words = f"first cut: {len(dropped)} of {NUM_ROWS - 1} rows were dropped after their prompt"
    assert cut.describe(NUM_ROWS - 1, counts.dropped) == words
    assert counts.rows == NUM_ROWS and counts.errors == {"bad": 1}
    assert counts.dropped == io.count_dropped(ref) == len(dropped) == pytest.approx(0.3 * NUM_ROWS, abs=3)
    assert counts.unparsed == sum(row["completion"] is not None and row["label"] is None for row in found)
    assert 0 < counts.unparsed < NUM_ROWS - counts.dropped - 1
    assert counts.output_tokens == sum(row["num_output_tokens"] or 0 for row in found)
    assert all((row["full_raw"] is None) == (row["dropped"] or row["error"] is not None) for row in found)
    assert dropped.isdisjoint(PoolScores(labels=ref, trust="internal_confidence").candidates().row_ids_N.tolist())
    gold = io.write(
        pa.table({"row_id": [row["row_id"] for row in rows], "gold": ["e2e4"] * NUM_ROWS}), str(tmp_path / "gold")
    )
    job = SelectJob(
        pool=ref,
        labels=ref,
        audit=None,
        grades=None,
        measured=ScoredSplit(labels=ref, grades=None),
        calibration=None,
        domain=CHESS,
        selection=SelectionConfig(budget=BudgetConfig(share=0.1, reference="internal_confidence"), arms=("naive",)),
        texts=GoldTexts(source="answer"),
        teacher=None,
        generation=0,
        seed=0,
    )
    budget = apply_budget_rule(job)
    assert budget.n == int(0.1 * (NUM_ROWS - 1)) > int(0.1 * (NUM_ROWS - 1 - len(dropped)))
    examples = [{name: row[name] for name in ("row_id", "fen", "rating")} for row in rows]
    asked = io.write(pa.Table.from_pylist(examples), str(tmp_path / "examples"))
    graded = {row_id for call in _iter_calls(ref, gold, asked, CHESS) for row_id in _grade(*call)["row_id"].to_pylist()}
    assert graded == {row["row_id"] for row in found} - dropped - {35}


def test_held_out_rows_are_scored_by_both_functions(tmp_path, rows):
    first, full = probe(tmp_path / "first", 8), probe(tmp_path / "full", 8, ("prompt_last", "output_last")[1:], seed=1)
    labels = labelled(job_of(tmp_path), rows)
    held = collect_held_out(labels, first, full, lambda ids_N: ids_N % 2 == 0)
    table = [row for row in read(labels) if row["row_id"] % 2 == 0 and row["error"] is None]
    assert len(held.first_M) == len(table)
    by_tokens = sorted(row["num_prompt_tokens"] for row in table)
    assert sorted(held.prompt_tokens_M.tolist()) == by_tokens
    assert np.isnan(held.full_M).sum() == sum(row["label"] is None for row in table) > 0
    found = find_first_cut(held, keep=0.2, loss=0.5, confidence=0.5)
    assert 0 < np.isnan(held.full_M).sum() < len(table)
    assert found["num_held_out"] == len(table)


def test_the_first_function_learns_what_the_full_one_selects(tmp_path, rows):
    full = probe(tmp_path / "full", 8, ("output_last",), seed=1)
    labels = labelled(job_of(tmp_path), rows)
    grades = io.read(
        write_cut_target(labels, full, lambda ids_N: ids_N % 2 == 0, keep=0.2, uri=str(tmp_path / "grades.lance"))
    )
    assert grades.schema.equals(schemas.GRADES)
    table = [row for row in read(labels) if row["row_id"] % 2 == 0 and row["error"] is None]
    assert grades["row_id"].to_pylist() == [row["row_id"] for row in table]
    weight_D = load_fitted(full).weight_D.numpy()
    raw = {row["row_id"]: np.dot(row["state_output_last"], weight_D) for row in table if row["label"] is not None}
    best = sorted(raw, key=raw.__getitem__, reverse=True)[: round(0.2 * len(table))]
    assert {row["row_id"] for row in grades.to_pylist() if row["correct"]} == set(best)
    with pytest.raises(UserError, match="no answered row"):
        write_cut_target(labels, full, lambda ids_N: ids_N < 0, keep=0.2, uri=str(tmp_path / "none.lance"))


def test_what_is_not_known_after_the_prompt_is_refused(tmp_path, rows):
    cut = FirstCutRule(function=probe(tmp_path / "last", 8, ("output_last",)), threshold=0.0)
    with pytest.raises(ConfigError, match=r"reads state_output_last.*prompt_last"):
        PromptGate(cut, STATES)
    kept = FirstCutRule(function=probe(tmp_path / "prompt", 8), threshold=0.0)
    with pytest.raises(ConfigError, match=r"teacher\.states: output_last"):
        PromptGate(kept, ("output_last",))
    numbers = probe(tmp_path / "numbers", 9, ("prompt_last", "num_prompt_tokens"))
    assert PromptGate(replace(kept, function=numbers), STATES).states == ("prompt_last",)


def test_rows_with_options_are_refused(tmp_path, rows):
    cut = FirstCutRule(function=probe(tmp_path / "prompt", 8), threshold=0.0)
    job = job_of(tmp_path, gate=cut)
    teacher = load_teacher(job.teacher, None)

    mcqa = get_domain(DomainConfig(name="mcqa"))
    question = {"row_id": 1, "error": None, "question": "Which?", "choices": ["one", "two"]}
    with pytest.raises(ConfigError, match="has options"):
        list(label_rows(job, mcqa, teacher, [question], PromptGate(cut, STATES)))
    assert TrustConfig(states=("prompt_last",)).inputs == ("prompt_last",)


@pytest.mark.long
def test_a_driver_that_only_labels_does_not_import_torch():
    check = "import sys, curation.stages.label_chunks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
