"""Computation of a generation's numbers from its tables, as JSON, each number with its n and interval."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from curation.arms import ARMS, REFERENCE_ARM
from curation.arrays import Bools, Int64s
from curation.config.given import GIVEN
from curation.features import features
from curation.hashing import derive, hash_unit
from curation.json_types import Json, JsonView
from curation.refs import Ref
from curation.registry import load_code
from curation.report import measures
from curation.report.by_difficulty import Difficulties, compute_accuracy_bins, compute_purity_bins
from curation.report.class_table import collect_class_table
from curation.report.comparable import explain_unlike, read_domain
from curation.report.diversity import measure_diversity
from curation.report.guarantee import collect_guarantee, is_excluded_by_gold
from curation.report.judging import collect_judging
from curation.report.measured import GradedSet, InMemory
from curation.report.measures import make_finite
from curation.report.pool_grid import NUM_CELLS, SAMPLE_ROWS, OnGrid, place_on_grid
from curation.report.record import FORMAT, TEACHER, GenerationRecord, RunInputs
from curation.report.risk_curves import compute_risk_curves
from curation.report.rows import (
    count_graded,
    free_signals,
    judge,
    read_difficulties,
    read_selected_rows,
    without_constant,
)
from curation.report.samples import collect_samples
from curation.report.student_findings import with_students
from curation.report.students import collect_further_students, collect_students, describe_model
from curation.report.tested import compute_accuracy, read_tests
from curation.report.trusted import (
    collect_evidence,
    collect_graded_sets,
    foresee_purities,
    measure_regimes,
    trust_tables,
    with_labels,
)
from curation.tables import io, scans
from curation.tables.row_ids import find_missing_ids, include

ROWS_IN_MEMORY = 1 << 19
"""Maximum number of labelled rows of a graded pool in memory; the scores of more rows are counted on a grid."""
SAMPLE = "report sample"
"""Purpose of the seed that samples the rows of a large pool."""


def compute_numbers(run: RunInputs, record: GenerationRecord) -> Json:
    """Compute all numbers of a generation from its tables and counts, without the verdict.

    ``judged`` is the selection that the verdict is about, with its mean trust (``None`` without an arm that ranks by
    trust); ``funnel`` counts rows from labelling to selection. NaN becomes ``None``.
    """
    tables = {arm: read_selected_rows(ref) for arm, ref in record.selections.items()}
    selected: dict[str, Int64s] = {arm: table["row_id"].to_numpy() for arm, table in tables.items()}
    ranked = dict.fromkeys([REFERENCE_ARM, *(ARMS[arm].trust for arm in selected if ARMS[arm].ranked)])
    ruling = [ARMS[record.budget["reference"]].trust] if record.budget["risk"] else []
    functions = dict.fromkeys([REFERENCE_ARM, *_list_free_signals(run), *ranked, *ruling])
    judged = {
        split: without_constant(
            judge(record.labels[split], ref, dict.fromkeys([*functions, *free_signals(record.labels[split])])),
            functions,
        )
        for split, ref in record.grades.items()
        if split != "pool"
    }
    num_pool = io.count(record.labels["pool"], filter=io.make_answered_filter(record.labels["pool"]))
    pool = _load_graded_pool(run, record, functions, tables, num_pool)
    measured = collect_graded_sets(run, judged, pool)
    parsed = {name: rows.parsed for name, rows in measured.items() if len(rows.parsed)}
    tests = read_tests(record.tests)
    difficulty = _read_difficulties(run, record, num_pool)
    lines, means = measure_regimes(run, record, judged, measured, num_pool)
    num_candidates = _count_candidates(run, record, num_pool)
    expected = {} if pool is not None else foresee_purities(judged["source"], tables, num_candidates, run.seed)
    chosen = {
        arm: {
            **_collect_selected(arm, table, pool),
            "foreseen_purity": None if (found := expected.get(arm)) is None else found.to_json(),
            **{key: record.formats[arm][key] for key in FORMAT},
            "oracle": record.budget["oracle"] or ARMS[arm].oracle or is_excluded_by_gold(record),
            "num_unread": None if (signal := ARMS[arm].signal) is None else record.unread.get(signal.column),
        }
        for arm, table in tables.items()
    }
    students = collect_students(run, record, chosen, selected)
    curves = [arm for arm in selected if not ARMS[arm].gold]
    shown = collect_evidence(run, record, judged, measured, tables, num_candidates)
    varied = measure_diversity(record, None if shown is None else shown.arm, num_pool, pool)
    classes = collect_class_table(run, record, None if shown is None else shown.arm)
    shown = with_students(with_labels(shown, varied, classes), students, record.training, run.config)
    numbers = {
        "judged": None if shown is None else _collect_judged(record, shown.arm, tables[shown.arm]),
        "funnel": _collect_funnel(record, tables),
        "evidence": None if shown is None else shown.to_json(),
        "rows": None
        if shown is None
        else collect_samples(run, record, shown.arm, ARMS[shown.arm].trust, selected[shown.arm], measured),
        "index": record.index,
        "teacher_model": describe_model(record.teacher, run.config.get("teacher")),
        "trust_function": record.trust.to_json(),
        "n": record.n,
        "budget": dict(record.budget),
        "budget_is_oracle": record.budget["oracle"],
        "num_pool": num_pool,
        "repeats": dict(record.repeats),
        **students,
        "students": collect_further_students(run, record, chosen, selected),
        "dropped": [{"name": arm, "why": why} for arm, why in record.dropped.items()],
        "asked_unlike": explain_unlike(run.config),
        "diversity": varied,
        "classes": classes,
        "teacher": {
            "test": compute_accuracy(tests, TEACHER),
            "pool": None if pool is None or not len(pool) else pool.share_right.to_json(),
        },
        "shift": dict(record.shift),
        "foreign": dict(record.foreign),
        "guarantee": collect_guarantee(run, record),
        "regimes": lines,
        "regime_means": means,
        "trust": trust_tables(run, record, judged, measured, ranked, num_pool),
        "reliability": {name: measures.collect_reliability(rows) for name, rows in parsed.items()},
        "histogram": {name: measures.compute_histogram(rows) for name, rows in parsed.items()},
        "pool_grid": _describe_grid(pool, difficulty),
        "purity_curves": measures.compute_purity_curves(pool, curves, record.n)
        if pool is not None and len(pool) and curves
        else None,
        "difficulty": _summarise_difficulty(difficulty, selected),
        "purity_by_difficulty": compute_purity_bins(pool, selected, difficulty),
        "accuracy_by_difficulty": compute_accuracy_bins(tests, _test_difficulties(run)) if tests else None,
        "risk_curves": compute_risk_curves(run, record, judged, pool),
        "judging": collect_judging(record, alone=read_domain(run.config).judge is not None),
        "projection": None if record.projection is None else dict(record.projection),
        "features": collect_feature_numbers(record.features),
    }
    result: Json = make_finite(numbers)
    return result


def collect_feature_numbers(made: Mapping[str, JsonView]) -> Json:
    """Return the numbers of each feature from the outputs of its stages; features without numbers are left out."""
    found = {}
    for name, outputs in made.items():
        if (by := features()[name].numbers) is not None and outputs:
            found[name] = load_code(by)(outputs)
        elif numbers := {key: value for key, value in outputs.items() if not isinstance(value, Ref)}:
            found[name] = numbers
    return found


def _collect_judged(record: GenerationRecord, arm: str, rows: pa.Table) -> Json:
    trust_M = np.nan_to_num(rows["trust"].to_numpy().astype(np.float64))
    return {
        "index": record.index,
        "arm": arm,
        "table": record.selections[arm].to_json(),
        "trust": float(trust_M.mean()) if len(trust_M) else 0.0,
    }


def _collect_funnel(record: GenerationRecord, tables: JsonView) -> Json:
    return {
        "index": record.index,
        "labelled": {split: dict(counts) for split, counts in record.label_counts.items()},
        "graded": {split: count_graded([ref]) for split, ref in record.grades.items()},
        "too_long": {
            split: {key: value for key, value in counts.items() if key != "table"}
            for split, counts in record.too_long.items()
        },
        "tested": {name: count_graded(refs) for name, refs in record.tests.items()},
        "selected": {arm: table.num_rows for arm, table in tables.items()},
    }


def _list_free_signals(run: RunInputs) -> list[str]:
    """Return the free signals that the report always measures; none if no model gave log-probabilities."""
    teacher = run.config.get("teacher", {})
    return [] if teacher.get("backend") == GIVEN and not teacher.get("reader") else ["internal_confidence"]


def _collect_selected(arm: str, table: Any, pool: GradedSet | None) -> Json:
    """Return an arm's label source, numbers of selected and unparsed rows, and purity (1 for gold, by definition)."""
    purity = None
    if ARMS[arm].gold and table.num_rows:
        purity = {"value": 1.0, "low": 1.0, "high": 1.0, "n": table.num_rows}
    elif pool is not None and (found := pool.among_selected(arm)).n:
        purity = found.to_json()
    return {
        "name": arm,
        "label_source": "gold" if ARMS[arm].gold else "weak",
        "num_selected": table.num_rows,
        "num_unparsed": table.num_rows - int(table["is_parsed"].to_numpy().sum()),
        "purity": purity,
        "purity_by_definition": ARMS[arm].gold,
    }


def _load_graded_pool(
    run: RunInputs, record: GenerationRecord, functions: Collection[str], tables: JsonView, num_pool: int
) -> GradedSet | None:
    """Return the graded rows of the pool, in memory or on a grid if there are many; ``None`` without grades."""
    if "pool" not in record.grades:
        return None
    labels, grades = record.labels["pool"], record.grades["pool"]
    measured = list(dict.fromkeys([*functions, *free_signals(labels)]))
    if num_pool > ROWS_IN_MEMORY:
        weak = {arm: table for arm, table in tables.items() if not ARMS[arm].gold}
        seed = derive(run.seed, SAMPLE)
        return place_on_grid(labels, grades, measured, weak, arms=[*functions], num_pool=num_pool, seed=seed)
    selected = {arm: table["row_id"].to_numpy() for arm, table in tables.items()}
    judged = without_constant(judge(labels, grades, measured), functions)
    return InMemory(judged=judged, selected=selected, seed=run.seed)


def _describe_grid(pool: GradedSet | None, difficulty: Difficulties) -> Json | None:
    """Return a description of the grid of a large pool, or ``None`` if its rows are in memory."""
    if not isinstance(pool, OnGrid):
        return None
    return {"rows": len(pool), "cells": NUM_CELLS, "auc": pool.resolution, "sampled_rows": len(difficulty[0])}


def _count_candidates(run: RunInputs, record: GenerationRecord, num_pool: int) -> int:
    """Return how many of the pool's labelled rows may be selected: one per question, unless repeats are allowed."""
    counts = record.repeats
    num_again = counts["num_rows"] - counts["num_questions"]
    if not num_again or run.config["selection"].get("repeats") == "all":
        return num_pool
    return num_pool - int(num_again * num_pool / counts["num_pool"])


def _read_difficulties(run: RunInputs, record: GenerationRecord, num_pool: int) -> Difficulties:
    """Return difficulties of the pool rows that the generation labelled; a large pool is sampled."""

    def drawn(row_ids_N: Int64s) -> Bools:
        found: Bools = hash_unit(row_ids_N, derive(run.seed, SAMPLE)) < SAMPLE_ROWS / num_pool
        return found

    row_ids_N, values_N = read_difficulties(
        run.prepared["pool"], run.domain, drawn if num_pool > ROWS_IN_MEMORY else None
    )
    labelled = BitMap64()
    for batch in scans.iter_table_batches(record.labels["pool"], {"row_id": "row_id"}, None):
        include(labelled, batch.column("row_id").to_numpy())
    mine_N = ~find_missing_ids(row_ids_N, labelled)
    return row_ids_N[mine_N], values_N[mine_N]


def _test_difficulties(run: RunInputs) -> Difficulties:
    """Return difficulties of the test rows; empty without test rows, or if they lack the domain's columns."""
    if "test" not in run.prepared or not set(run.domain.columns.names) <= set(
        io.open_table(run.prepared["test"]).schema.names
    ):
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    return read_difficulties(run.prepared["test"], run.domain)


def _summarise_difficulty(found: Difficulties, selected: Mapping[str, Int64s]) -> Json | None:
    row_ids_N, values_N = found
    marks = {arm: np.isin(row_ids_N, ids) for arm, ids in selected.items()}
    return measures.summarise_difficulty(row_ids_N, values_N, marks)
