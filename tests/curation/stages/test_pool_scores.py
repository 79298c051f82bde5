"""Scores of a pool that are read in streams: the same cut in this process, in Ray tasks, and of all rows at once."""

from dataclasses import replace

import lance
import numpy as np
import pyarrow as pa
import pytest

from curation.errors import BudgetError, SourceError
from curation.extras.caps.division import LabelKeys
from curation.refs import ListDigest, TableRef, fingerprint
from curation.report.rows import read_graded_rows
from curation.selection.capped import count_before
from curation.selection.order import Sorted
from curation.selection.top_n import TopN
from curation.stages.pool_scores import Groups, PoolScores
from curation.tables import io, scans, schemas
from curation.tables.row_ids import make_bitmap

NUM_ROWS = 5_000


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> TableRef:
    rng = np.random.default_rng(0)
    raw_N = np.round(rng.normal(size=NUM_ROWS), 2).astype(np.float32)
    table = pa.table(
        {
            "row_id": rng.permutation(NUM_ROWS) + (3 << schemas.FILE_SHIFT),
            "label": [None if row % 9 == 0 else f"x{row % 40}" for row in range(NUM_ROWS)],
            "trust_raw": pa.array(raw_N, mask=rng.random(NUM_ROWS) < 0.02),
            "trust_trust": 1 / (1 + np.exp(-raw_N)),
            "error": [None if row % 11 else "bad: x" for row in range(NUM_ROWS)],
        }
    )
    uri = str(tmp_path_factory.mktemp("scores") / "labels.lance")
    return TableRef(uri=uri, version=lance.write_dataset(table, uri, max_rows_per_file=600).version)


@pytest.fixture(scope="module")
def too_long(labels: TableRef) -> TableRef:
    ids = io.read(labels, ["row_id"])["row_id"].to_numpy()[::7]
    table = pa.table([pa.array(ids), *[pa.array([True] * len(ids))] * 2], schema=schemas.TOO_LONG)
    return io.write(table, labels.uri.replace("labels", "too_long"))


def test_streams_tasks_and_all_rows_at_once_cut_alike(
    local_ray, labels: TableRef, too_long: TableRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = PoolScores(labels=labels, trust="trust", too_long=too_long)
    candidates = scores.candidates()
    num = int((~np.isnan(candidates.raw_score_N)).sum())
    wanted = {n: TopN().cut(candidates, n, 5) for n in (1, 700, num)}
    groups, label_of = Groups(LabelKeys(by="label", pool=labels).reader, 7), labels_by_id(labels)
    left = count_before(np.array([label_of[row_id] for row_id in wanted[num].row_ids_n.tolist()])) < 7
    third_N = np.arange(len(candidates.row_ids_N)) % 3 == 0
    counted = judged_rows(labels)
    for size in (scans.ROWS_IN_PROCESS, 1000):  # in this process, and in a task for every two fragments
        monkeypatch.setattr(scans, "ROWS_IN_PROCESS", size)
        monkeypatch.setattr(scans, "ROWS_A_TASK", size)
        for n, cut in wanted.items():
            found = scores.top(n, 5)
            assert np.array_equal(found.row_ids_n, cut.row_ids_n) and found.threshold == cut.threshold
        capped = scores.grouped(groups, 200, 5)
        assert np.array_equal(capped.row_ids_n, wanted[num].row_ids_n[left][:200]) and capped.num_scored == num
        again = scores.candidates()
        assert np.array_equal(again.row_ids_N, candidates.row_ids_N)
        ordered, held = scores.ordered(), Sorted(candidates.raw_score_N)
        assert (ordered.num_rows, ordered.num_scored, scores.num_scored) == (held.num_rows, num, num)
        assert ordered.at_ranks(np.arange(1, num + 1)).tolist() == held.at_ranks(np.arange(1, num + 1)).tolist()
        some = replace(scores, only=make_bitmap(candidates.row_ids_N[::3]))
        less = TopN().cut(replace(candidates, raw_score_N=np.where(third_N, candidates.raw_score_N, np.nan)), 50, 5)
        assert np.array_equal(some.top(50, 5).row_ids_n, less.row_ids_n)
        trust_N = scores.trust_of_all()
        assert scores.num_trusted(0.5) == int((trust_N >= 0.5).sum()) > 0
        assert np.array_equal(np.isnan(trust_N) | np.isnan(candidates.raw_score_N), np.isnan(candidates.raw_score_N))
        with pytest.raises(BudgetError, match=f"n = {num + 1:,} is more than the {num:,} of {scores.num_rows:,} pool"):
            scores.top(num + 1, 5)
        for one, other in zip(judged_rows(labels), counted, strict=True):
            np.testing.assert_array_equal(one, other)


def labels_by_id(labels: TableRef) -> dict[int, str]:
    table = io.read(labels, ["row_id", "label"])
    return dict(zip(table["row_id"].to_pylist(), table["label"].to_pylist(), strict=True))


def judged_rows(labels: TableRef) -> list[np.ndarray]:
    """The ids, scores and grades of about half of the labelled rows; every second row is right."""
    ids = np.sort(io.read(labels, ["row_id"], "error IS NULL")["row_id"].to_numpy())
    columns = {"row_id": ids, "correct": ids % 2 == 0, "judged": ids < 0}
    columns |= {"problem": pa.nulls(len(ids), pa.string()), "question": ids}
    grades = io.write(pa.table(columns, schema=schemas.GRADES), labels.uri.replace("labels", "grades"))
    rows = read_graded_rows(labels, grades, ["trust", "reward"], share=0.5, seed=1)
    assert list(rows.scores) == ["trust"] and 0.4 * len(ids) < len(rows) < 0.6 * len(ids)
    assert np.array_equal(rows.correct_N, rows.row_ids_N % 2 == 0)
    return [rows.row_ids_N, rows.correct_N, rows.parsed_N, rows.scores["trust"].raw_N, rows.scores["trust"].trust_N]


def test_what_the_labels_lack_is_said(labels: TableRef) -> None:
    with pytest.raises(SourceError, match="column reward is missing"):
        PoolScores(labels=labels, trust="reward").top(1, 0)
    assert PoolScores(labels=labels, trust="naive", parsed=False).top(3, 0).row_ids_n.shape == (3,)


def test_the_digest_of_a_list_needs_no_list() -> None:
    items = [{"row_id": 5, "completion": "é\n"}, {"completion": None, "row_id": -1}]
    digest = ListDigest()
    assert digest.hexdigest == fingerprint([])
    for item in items:
        digest.extend([item])
    assert digest.hexdigest == fingerprint(items) and digest.num_items == 2


def test_the_best_row_of_each_question_alone_is_selected(
    local_ray, labels: TableRef, too_long: TableRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    ids_R = np.sort(rng.choice(io.read(labels, ["row_id"])["row_id"].to_numpy(), 3_000, replace=False))
    question_R = rng.integers(0, 400, len(ids_R))
    table = pa.table([ids_R, question_R], schema=schemas.REPEATS)
    repeats = io.write(table, labels.uri.replace("labels", "repeats"))
    every = PoolScores(labels=labels, trust="trust", too_long=too_long)
    question_of = dict(zip(ids_R.tolist(), question_R.tolist(), strict=True))
    best: dict[int, tuple[float, int]] = {}
    candidates = every.candidates()
    rows = dict(zip(candidates.row_ids_N.tolist(), candidates.raw_score_N.tolist(), strict=True))
    for row_id, raw in rows.items():
        question = question_of.get(row_id, -row_id)
        if not np.isnan(raw) and (raw, -row_id) > best.get(question, (-np.inf, 0)):
            best[question] = raw, -row_id
    wanted = {-negative: raw for raw, negative in best.values()}
    for size in (scans.ROWS_IN_PROCESS, 1000):  # in this process, and in tasks
        monkeypatch.setattr(scans, "ROWS_IN_PROCESS", size)
        monkeypatch.setattr(scans, "ROWS_A_TASK", size)
        scores = PoolScores(labels=labels, trust="trust", too_long=too_long, repeats=repeats)
        found = scores.top(len(wanted), 5)
        assert set(found.row_ids_n.tolist()) == set(wanted) and scores.num_scored == len(wanted) < every.num_scored
        assert found.threshold == min(wanted.values())
        assert len(scores.copies_M) == sum(row_id in question_of for row_id in rows) - len(
            {question_of[row_id] for row_id in rows if row_id in question_of}
        )
