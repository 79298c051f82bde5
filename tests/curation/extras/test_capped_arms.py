"""Arms under ``selection.max_per_label``: each against a walk down its own ranking."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from curation.config import DomainConfig, SelectionConfig
from curation.config.filter import KeepConfig
from curation.domains.chess import Chess
from curation.errors import BudgetError, ConfigError
from curation.extras.caps.division import CapDivision, check_settings
from curation.hashing import derive, hash64, hash_unit
from curation.refs import TableRef
from curation.stages.chooser import SelectJob
from curation.stages.gold import GoldTexts
from curation.stages.pool_scores import ComputedBudget, ScoredSplit
from curation.stages.select import select
from curation.tables import io, schemas

SEED, NUM_POOL, N = 3, 400, 60
ARMS = ("naive", "naive_parsed", "naive_stratified", "naive_matched", "trust", "trust_gold", "ground_truth")
LABELS = [f"a{file}a{rank}" for file in range(1, 9) for rank in range(1, 9)]


def write(folder: Path, name: str, columns: dict[str, Any], schema: pa.Schema) -> TableRef:
    """A table in a random order, in fragments of 90 rows."""
    arrays = [pa.array(columns.get(field.name, [None] * NUM_POOL), field.type) for field in schema]
    table = pa.Table.from_arrays(arrays, schema=schema).take(np.random.default_rng(len(name)).permutation(NUM_POOL))
    uri = str(folder / f"{name}.lance")
    return TableRef(uri=uri, version=lance.write_dataset(table, uri, max_rows_per_file=90).version)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> tuple[SelectJob, list[dict[str, Any]]]:
    """A few labels are frequent and have the best scores; an eighth cannot be read."""
    folder, rng = tmp_path_factory.mktemp("capped"), np.random.default_rng(0)
    ids_N = rng.permutation(NUM_POOL) + (1 << schemas.FILE_SHIFT)
    label_N = np.minimum(rng.geometric(0.1, NUM_POOL) - 1, len(LABELS) - 1)
    raw_N = (rng.normal(size=NUM_POOL) - label_N / 10).round(1).astype(np.float32)
    unread_N, wrong_N = rng.random(NUM_POOL) < 1 / 8, rng.random(NUM_POOL) < 0.5
    gold_N = np.where(wrong_N, rng.integers(0, len(LABELS), NUM_POOL), label_N)
    rows = [
        {
            "row_id": int(row_id),
            "label": None if unread else LABELS[label],
            "completion": f" {LABELS[label]}",
            "trust_raw": float(raw),
            "trust_trust": float(np.float32(1 / (1 + np.exp(-raw)))),
            "gold": LABELS[gold],
            "correct": bool(gold == label and not unread),
            "fen": f"4k3/8/8/8/8/8/3PP3/4K3 w - - {place % 50} {place + 1}",
            "rating": 1000 + 100 * (place % 5),
        }
        for place, (row_id, label, gold, raw, unread) in enumerate(
            zip(ids_N, label_N, gold_N, raw_N, unread_N, strict=True)
        )
    ]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    scored = [pa.field(name, pa.float32()) for name in ("trust_raw", "trust_trust")]
    labels = write(folder, "labels", columns, pa.schema([*schemas.make_labels_schema([], "float16", 1), *scored]))
    grades = [{"row_id": row["row_id"], "correct": row["correct"], "judged": False} for row in rows]
    job = SelectJob(
        pool=write(folder, "pool", columns, schemas.make_examples_schema(Chess.columns, gold=False)),
        labels=labels,
        audit=write(folder, "audit", columns, schemas.AUDIT),
        grades=io.write(
            pa.Table.from_pylist(sorted(grades, key=lambda row: row["row_id"]), schema=schemas.GRADES),
            str(folder / "grades.lance"),
        ),
        measured=ScoredSplit(labels=labels, grades=None),
        calibration=None,
        domain=DomainConfig(name="chess"),
        selection=SelectionConfig.model_validate({"budget": {"n": N}, "arms": ARMS, "max_per_label": 4}),
        teacher=None,
        generation=0,
        seed=SEED,
        texts=GoldTexts(source="answer"),
    )
    return job, rows


def chosen(job: SelectJob, folder: Path, **changes: Any) -> tuple[ComputedBudget, dict[str, list[dict[str, Any]]]]:
    given = {"budget": {"n": N}, "arms": ARMS, "max_per_label": 4} | changes
    budget, made = select(replace(job, selection=SelectionConfig.model_validate(given)), folder)
    return budget, {item.arm: io.read(item.table).to_pylist() for item in made}


def walk(rows: list[dict[str, Any]], score: Callable[[dict], float], key: Callable[[dict], Any], n: int, cap: int):
    """The ids that the rule gives, in rank order; a key of None has no cap."""
    tie = {row["row_id"]: int(hash64(np.array([row["row_id"]]), derive(SEED, "ties"))[0]) for row in rows}
    taken, found = [], Counter()
    for row in sorted(rows, key=lambda row: (-score(row), tie[row["row_id"]])):
        if len(taken) < n and (key(row) is None or found[key(row)] < cap):
            taken.append(row["row_id"])
            found[key(row)] += 1
    return taken


def raw(row: dict[str, Any]) -> float:
    return float(row["trust_raw"])


def draw(row: dict[str, Any]) -> float:
    return float(np.float32(hash_unit(np.array([row["row_id"]]), derive(SEED, "draw"))[0]))


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return [row["row_id"] for row in rows]


def test_every_arm_takes_the_walk_of_its_own_ranking(pool: tuple[SelectJob, list[dict]], tmp_path: Path):
    job, rows = pool
    budget, made = chosen(job, tmp_path)
    assert (budget.n, budget.divided["max_per_label"], budget.asked, budget.limited_by) == (N, 4, None, None)
    read = [row for row in rows if row["label"] is not None]
    weak, gold = (lambda row: row["label"]), (lambda row: row["gold"])
    assert ids(made["trust"]) == ids(made["trust_gold"]) == walk(read, raw, weak, N, 4)
    assert ids(made["naive"]) == walk(rows, draw, weak, N, 4)
    assert ids(made["naive_parsed"]) == walk(read, draw, weak, N, 4)
    assert ids(made["ground_truth"]) == walk(rows, draw, gold, N, 4)
    for arm, taken in made.items():
        counts = Counter(row["label"] for row in taken if row["label"] is not None)
        assert len(taken) == N and (arm == "trust_gold" or max(counts.values()) <= 4), arm
    assert max(Counter(row["label"] for row in sorted(read, key=raw)[-N:]).values()) > 4  # else nothing is capped
    assert any(row["label"] is None for row in made["naive"])
    by_share = chosen(job, tmp_path / "share", max_per_label=0.07)[1]  # 4.2 of 60
    assert {arm: ids(rows) for arm, rows in by_share.items()} == {arm: ids(rows) for arm, rows in made.items()}


def test_rows_are_counted_by_a_column(pool, tmp_path: Path):
    job, rows = pool
    made = chosen(job, tmp_path, arms=("trust", "naive"), max_per_label=15, max_per_label_by="rating")[1]
    read = [row for row in rows if row["label"] is not None]
    assert ids(made["trust"]) == walk(read, raw, lambda row: row["rating"], N, 15)
    assert ids(made["naive"]) == walk(rows, draw, lambda row: row["rating"], N, 15)


def test_all_arms_take_as_many_rows_as_fit_in_each(pool: tuple[SelectJob, list[dict]], tmp_path: Path):
    job, rows = pool
    read = [row for row in rows if row["label"] is not None]
    fits = len({row["label"] for row in read})
    budget, made = chosen(job, tmp_path, max_per_label=1)
    assert (budget.n, budget.asked) == (fits, N) and fits < N
    assert budget.limited_by in ("naive_parsed", "trust", "trust_gold")
    assert {len(taken) for taken in made.values()} == {fits}
    with pytest.raises(BudgetError, match=f"arm trust: .*n = {NUM_POOL:,} is more than the {len(read):,} of"):
        chosen(job, tmp_path / "n", budget={"n": NUM_POOL}, arms=("trust",))


def test_under_a_threshold_only_rows_that_pass_it_are_taken(pool: tuple[SelectJob, list[dict]], tmp_path: Path):
    job, rows = pool
    passing = [row for row in rows if row["label"] is not None and row["trust_trust"] >= 0.6]
    budget, made = chosen(job, tmp_path, budget={"threshold": 0.6}, arms=("trust", "naive"), max_per_label=3)
    wanted = walk(passing, raw, lambda row: row["label"], len(passing), 3)
    assert ids(made["trust"]) == wanted and len(made["naive"]) == len(wanted) < len(passing)
    assert (budget.n, budget.asked, budget.limited_by) == (len(wanted), len(passing), "trust")


def test_a_risk_budget_says_that_nothing_is_guaranteed(pool: tuple[SelectJob, list[dict]], tmp_path: Path):
    job, rows = pool
    grades = io.write(
        pa.Table.from_pylist(
            [{"row_id": row_id, "correct": True, "judged": False} for row_id in sorted(ids(rows))],
            schema=schemas.GRADES,
        ),
        str(tmp_path / "right.lance"),
    )
    job = replace(job, calibration=ScoredSplit(labels=job.labels, grades=grades))
    free = chosen(job, tmp_path, budget={"risk": {"alpha": 0.3}}, arms=("trust",), max_per_label=None)[0]
    budget, made = chosen(job, tmp_path, budget={"risk": {"alpha": 0.3}}, arms=("trust",), max_per_label=3)
    assert free.risk is not None and budget.risk is not None and free.n > budget.n == len(made["trust"])
    assert budget.risk["guarantee"].startswith("none for the rows that are selected, because selection.max_per_label")
    assert budget.risk["guarantee"].endswith(free.risk["guarantee"]) and budget.asked == free.n
    assert min(row["trust"] for row in made["trust"]) >= min(
        row["trust_trust"] for row in rows if row["label"] is not None and row["trust_raw"] >= budget.threshold
    )


@pytest.mark.parametrize("limit", [0, -3, 1.0, 1.5, 0.0, True, "many"])
def test_a_limit_that_is_neither_count_nor_share_is_refused(limit: Any):
    with pytest.raises(ValidationError, match=r"share of n"):
        SelectionConfig.model_validate({"budget": {"n": 5}, "max_per_label": limit})


def test_filters_have_no_cap():
    with pytest.raises(ValidationError, match=r"max_per_label\s+Extra inputs are not permitted"):
        KeepConfig.model_validate({"n": 5, "max_per_label": 2})


def test_what_cannot_be_counted_by_is_refused():
    with pytest.raises(ValidationError, match="nothing is counted by it without max_per_label"):
        SelectionConfig.model_validate({"budget": {"n": 5}, "max_per_label_by": "rating"})
    run: Any = SimpleNamespace(domain_of=lambda _: DomainConfig(name="chess"))

    def check_by(by: str) -> None:
        given = {"budget": {"n": 5}, "max_per_label": 2, "max_per_label_by": by}
        assert check_settings(run, SelectionConfig.model_validate(given)) == ()

    check_by("label"), check_by("rating")
    with pytest.raises(ConfigError, match="no column 'opening'; give one of label, fen"):
        check_by("opening")


@pytest.mark.parametrize("limit, n, cap", [(20, 5, 20), (0.29, 100, 29), (0.01, 2_099, 20), (0.01, 50, 1)])
def test_a_share_of_n_is_rounded_down_and_allows_one_row(limit: float, n: int, cap: int):
    selection = SelectionConfig.model_validate({"budget": {"n": n}, "max_per_label": limit})
    job: Any = SimpleNamespace(selection=selection)
    assert CapDivision(job).set(ComputedBudget(n=n, rule="n", reference="trust", oracle=False)) == cap
