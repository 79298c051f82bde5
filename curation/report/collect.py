"""From a run's tables to its report: a JSON object of every number on the page, each with its n and interval."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from curation import metrics, store
from curation.domains.grading import Graded, grade
from curation.hashing import hash_unit
from curation.refs import ModelRef
from curation.report import measures
from curation.report.headline import headline
from curation.report.measures import Json, finite, share
from curation.report.record import BASE, GROUND_TRUTH, TEACHER, GenerationRecord, RunRecord
from curation.report.rows import Ints, Judged, arm_order, difficulties, judge, selected_rows

ALPHA = 0.05
"""Level of the paired test (paper, section "Evaluation")."""

DETAILS = ("arms", "teacher", "base", "trust", "reliability", "histogram", "purity_curves", "difficulty")


def collect(run: RunRecord) -> Json:
    """The report of a run; the last generation's details stand at the top level too."""
    generations = [_generation(run, record) for record in run.generations]
    last = generations[-1] if generations else {**dict.fromkeys(DETAILS), "arms": []}
    seconds = sum(stage.seconds for stage in run.stages)
    report = {
        "name": run.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "headline": headline(last) if generations else [],
        "command": run.command,
        "seed": run.seed,
        "versions": dict(run.versions),
        "config": run.config,
        "domain": run.domain.name,
        "funnel": _funnel(run, generations),
        **{key: last[key] for key in DETAILS},
        "generations": generations,
        "stages": [
            {
                "name": stage.name,
                "seconds": stage.seconds,
                "share": stage.seconds / seconds if seconds else 0.0,
                "rows": stage.rows,
                "rows_per_second": stage.rows_per_second,
                "started": stage.started,
            }
            for stage in run.stages
        ],
        "reproduce": [run.command, *([f"curate report {run.config_path}"] if run.config_path else [])],
    }
    result: Json = finite(report)
    return result


def _funnel(run: RunRecord, generations: list[Json]) -> Json:
    return {
        "splits": [{"split": name, **counts} for name, counts in run.prepare_counts.items()],
        "generations": [
            {
                "index": record.index,
                "labelled": {split: dict(counts) for split, counts in record.label_counts.items()},
                "selected": {arm["name"]: arm["num_selected"] for arm in generation["arms"]},
            }
            for record, generation in zip(run.generations, generations, strict=True)
        ],
    }


def _generation(run: RunRecord, record: GenerationRecord) -> Json:
    tables = {arm: selected_rows(ref) for arm, ref in record.selections.items()}
    selected: dict[str, Ints] = {arm: table["row_id"].to_numpy() for arm, table in tables.items()}
    validation = _validation(run, record)
    audit = run.prepared.get("audit")
    pool = judge(record.labels_pool, audit, run.domain) if audit is not None else None
    num_pool = store.count(record.labels_pool, filter="error IS NULL")
    test = _test(run, record)
    curves = {arm: ids for arm, ids in selected.items() if arm != GROUND_TRUTH}
    return {
        "index": record.index,
        "teacher_model": _model(record.teacher),
        "student_base": None if record.student_base is None else _model(record.student_base),
        "trust_function": record.trust.to_json(),
        "n": record.n,
        "budget_is_oracle": record.budget_is_oracle,
        "num_pool": num_pool,
        "arms": [
            {
                **_selected(arm, table, selected[arm], pool),
                "oracle": record.budget_is_oracle or arm == GROUND_TRUTH,
                **_tested(arm, test, run.seed),
            }
            for arm, table in tables.items()
        ],
        "teacher": {"test": _accuracy(test, TEACHER), "pool": None if pool is None else share(pool.correct_N)},
        "base": _accuracy(test, BASE),
        "trust": _trust(validation, pool, selected, record.n / max(num_pool, 1), record.n, run.seed),
        "reliability": {name: measures.reliability(rows) for name, rows in _sets(validation, pool).items()},
        "histogram": {name: measures.histogram(rows) for name, rows in _sets(validation, pool).items()},
        "purity_curves": measures.purity_curves(pool, curves, record.n, run.seed)
        if pool is not None and len(pool)
        else None,
        "difficulty": _difficulty(run, record, selected),
    }


def _validation(run: RunRecord, record: GenerationRecord) -> Judged:
    """The labelled rows that the trust function's weights were not fitted on."""
    judged = judge(record.labels_source, run.prepared["source"], run.domain)
    fraction = float(run.config["trust"]["validation_fraction"])
    return judged.subset(hash_unit(judged.row_ids_N, run.seed) < fraction)


def _sets(validation: Judged, pool: Judged | None) -> dict[str, Judged]:
    sets = {"validation": validation, "pool": pool}
    return {name: rows for name, rows in sets.items() if rows is not None and len(rows)}


def _trust(
    validation: Judged, pool: Judged | None, selected: Mapping[str, Ints], kept_share: float, n: int, seed: int
) -> Json:
    result: Json = {"ece_bins": measures.ECE_BINS}
    nothing = np.zeros(0, dtype=np.int64)
    for name, rows in _sets(validation, pool).items():
        # Validation rows are fewer than the pool's: the same share of them is taken.
        taken, num_top = (selected, n) if name == "pool" else ({}, max(1, round(kept_share * len(rows))))
        orders = {arm: arm_order(rows, arm, taken.get(arm, nothing), seed) for arm in rows.scores}
        result[name] = measures.trust_metrics(rows, orders, num_top, seed)
    return result


def _selected(arm: str, table: Any, row_ids_M: Ints, pool: Judged | None) -> Json:
    """What an arm's rows are: label source, count, unparsed, purity (of gold labels: 1 by definition)."""
    sources = sorted(set(table["label_source"].to_pylist()))
    purity = None
    if sources == ["gold"]:
        purity = {"value": 1.0, "low": 1.0, "high": 1.0, "n": table.num_rows}
    elif pool is not None:
        purity = share(pool.correct_N[np.isin(pool.row_ids_N, row_ids_M)])
    return {
        "name": arm,
        "label_source": "+".join(sources),
        "num_selected": table.num_rows,
        "num_unparsed": table["label"].null_count,
        "purity": purity,
        "purity_by_definition": sources == ["gold"],
    }


def _test(run: RunRecord, record: GenerationRecord) -> dict[str, Graded]:
    if not record.evaluations or "test" not in run.prepared:
        return {}
    return {name: grade(ref, run.prepared["test"], run.domain) for name, ref in record.evaluations.items()}


def _accuracy(test: Mapping[str, Graded], name: str) -> Json | None:
    return share(test[name].correct_N) if name in test else None


def _tested(arm: str, test: Mapping[str, Graded], seed: int) -> Json:
    """How an arm's student did on the test rows: accuracy, recovery, paired tests."""
    against_truth = _compare(test, arm, GROUND_TRUTH) if arm != GROUND_TRUTH else None
    against_teacher = _compare(test, arm, TEACHER)
    values = [accuracy["value"] for name in (arm, BASE, GROUND_TRUTH) if (accuracy := _accuracy(test, name))]
    return {
        "accuracy": _accuracy(test, arm),
        "recovery": metrics.recovery(*values) if len(values) == 3 else None,
        "recovery_interval": _recovery_interval(arm, test, seed) if len(values) == 3 and arm != GROUND_TRUTH else None,
        "p_value_vs_ground_truth": None if against_truth is None else against_truth["p_value"],
        "verdict": None if against_truth is None else _verdict(against_truth),
        "against_ground_truth": against_truth,
        "against_teacher": against_teacher,
        # Claimed only where the interval of the paired difference lies above zero, and not of gold labels.
        "weak_to_strong": None if against_teacher is None or arm == GROUND_TRUTH else against_teacher["low"] > 0,
    }


def _recovery_interval(arm: str, test: Mapping[str, Graded], seed: int) -> list[float] | None:
    models = [test[name] for name in (arm, BASE, GROUND_TRUTH)]
    common = reduce(np.intersect1d, [model.row_ids_N for model in models])  # ids are unique and ascending
    arm_N, base_N, truth_N = (model.correct_N[np.isin(model.row_ids_N, common)] for model in models)
    return measures.recovery_interval(arm_N, base_N, truth_N, seed)


def _verdict(test: Json) -> str:
    if test["p_value"] >= ALPHA:
        return "near-lossless"
    return "super-recovery" if test["better"] == "first" else "below ground truth"


def _compare(test: Mapping[str, Graded], first: str, second: str) -> Json | None:
    """The paired test of two models on the test rows that both answered, first minus second."""
    if first not in test or second not in test:
        return None
    a, b = test[first], test[second]
    _, places_a, places_b = np.intersect1d(a.row_ids_N, b.row_ids_N, assume_unique=True, return_indices=True)
    if not len(places_a):
        return None
    paired = metrics.paired_test(a.correct_N[places_a], b.correct_N[places_b])
    num_discordant = paired.num_first_only + paired.num_second_only
    return {
        "n": len(places_a),
        "num_first_only": paired.num_first_only,
        "num_second_only": paired.num_second_only,
        "difference": paired.difference.value,
        "low": paired.difference.low,
        "high": paired.difference.high,
        "p_value": paired.p_value,
        "better": paired.better,
        "smallest_significant_difference": _smallest_significant(num_discordant, len(places_a)),
    }


def _smallest_significant(num_discordant: int, n: int) -> float | None:
    """The least difference in accuracy that the paired test would call significant at this many discordant rows."""
    from scipy.stats import binom

    wins = int(binom.isf(ALPHA, num_discordant, 0.5)) + 1 if num_discordant else 1
    return (2 * wins - num_discordant) / n if wins <= num_discordant else None


def _difficulty(run: RunRecord, record: GenerationRecord, selected: Mapping[str, Ints]) -> Json | None:
    row_ids_N, values_N = difficulties(run.prepared["pool"], run.domain)
    labelled = store.read(record.labels_pool, columns=["row_id"])["row_id"].to_numpy()
    mine_N = np.isin(row_ids_N, labelled)  # a generation labels its own share of the pool
    row_ids_N, values_N = row_ids_N[mine_N], values_N[mine_N]
    marks = {arm: np.isin(row_ids_N, ids) for arm, ids in selected.items()}
    return measures.difficulty(row_ids_N, values_N, marks)


def _model(ref: ModelRef | None) -> Json:
    """A model as JSON, with a short ``name``: the last two parts of its path or hub id."""
    if ref is None:
        return {"name": "scripted"}
    return {"name": "/".join(Path(ref.adapter or ref.base).parts[-2:]), **ref.to_json()}
