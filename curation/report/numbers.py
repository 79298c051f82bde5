"""Computation of a generation's numbers from its tables, as JSON, each number with its n and interval."""

from collections.abc import Mapping
from dataclasses import asdict, replace

import numpy as np

from curation.arms import ARMS, REFERENCE_ARM, free_of
from curation.arrays import Int64s
from curation.config.external import GIVEN
from curation.domains.grading import read_grades_among
from curation.features import features, list_divisions
from curation.hashing import derive
from curation.json_types import Json, JsonView
from curation.metrics import Estimate
from curation.refs import Ref, TableRef
from curation.registry import load_code
from curation.report import by_difficulty, class_table, measures, tested, trusted
from curation.report.headline import render_sentences
from curation.report.measures import make_finite
from curation.report.record import FORMAT, TEACHER, GenerationRecord, RunInputs
from curation.report.rows import (
    LOWEST,
    MOST_GRADED,
    SAMPLE,
    count_graded,
    read_graded_rows,
    read_scores,
    without_constant,
)
from curation.report.samples import collect_samples
from curation.selection.risk import compute_risk_curve
from curation.tables import io
from curation.trust.parts import find_independent


def compute_numbers(run: RunInputs, record: GenerationRecord) -> Json:
    """Compute all numbers of a generation from its tables and counts, without the verdict.

    ``judged`` is the selection that the verdict is about, with its mean trust (``None`` without an arm that ranks by
    trust); ``funnel`` counts rows from labelling to selection. NaN becomes ``None``.
    """
    rows = _read_rows(run, record)
    pool, num_pool, tests = rows.pool, rows.num_pool, tested.read_tests(record.tests)
    selected: dict[str, Int64s] = {arm: table["row_id"].to_numpy() for arm, table in rows.selected.items()}
    parsed = {name: graded.readable for name, graded in rows.sets.items() if graded.parsed_N.any()}
    of_test = by_difficulty.read_difficulties(run.prepared.get("test"), run.domain)
    examples, seed = run.prepared["pool"], derive(run.seed, SAMPLE)
    every_N, values_N = by_difficulty.read_difficulties(examples, run.domain, rows.share, seed)
    mine_N = io.find_offsets(record.labels["pool"], every_N) >= 0
    difficulty = every_N[mine_N], values_N[mine_N]
    # Of rows that repeat a question, one may be selected.
    num_again = record.repeats["num_rows"] - record.repeats["num_questions"]
    num_candidates = num_pool - (int(num_again * num_pool / record.repeats["num_pool"]) if num_again else 0)
    foreseen = {} if pool is not None else trusted.predict_purities(rows, num_candidates)
    selections = {arm: _collect_selected(rows, arm, foreseen.get(arm)) for arm in selected}
    students = tested.collect_students(run, record, selections)
    # The verdict is about the method's arm, or else about the first arm that ranks and has scores.
    ranking = (arm for arm in selected if ARMS[arm].ranked and not ARMS[arm].gold)
    scored = (arm for arm in ranking if ARMS[arm].trust in rows.graded["source"].scores)
    arm = REFERENCE_ARM if REFERENCE_ARM in selected else next(scored, None)
    diversity = class_table.measure_diversity(record, num_pool, run.seed)
    classes = class_table.collect_class_table(run, record, arm)
    shown: Json = {"judged": None, "evidence": None, "rows": None}
    if arm is not None:
        trust_M, table = rows.trust_of(arm), record.selections[arm].to_json()
        trust = float(trust_M.mean()) if len(trust_M) else 0.0
        shown = {
            "judged": {"index": record.index, "arm": arm, "table": table, "trust": trust},
            "evidence": asdict(trusted.collect_evidence(rows, arm, num_candidates, diversity, classes, students)),
            "rows": collect_samples(run, record, arm, selected[arm], rows.sets),
        }
    numbers = {
        "funnel": _collect_funnel(rows),
        **shown,
        "index": record.index,
        "teacher_model": tested.describe_model(record.teacher, run.config.get("teacher")),
        "trust_function": record.trust.to_json(),
        "n": record.n,
        "budget": dict(record.budget),
        "budget_is_oracle": record.budget["oracle"],
        "num_pool": num_pool,
        "repeats": dict(record.repeats),
        **students,
        "students": tested.collect_further_students(run, record, selections),
        "asked_unlike": tested.explain_unlike(run.config),
        "diversity": diversity,
        "classes": classes,
        "teacher": {
            "test": tested.compute_accuracy(tests, TEACHER),
            "pool": None if pool is None or not len(pool) else pool.share_right().to_json(),
        },
        "shift": dict(record.shift),
        "foreign": dict(record.foreign),
        "guarantee": collect_guarantee(run, record),
        "regimes": trusted.measure_regimes(rows),
        "trust": trusted.measure_trust(rows),
        "reliability": {name: measures.collect_reliability(rows) for name, rows in parsed.items()},
        "pool_sample": None if pool is None or pool.drawn == 1 else len(pool),
        "purity_curves": measures.compute_purity_curves(pool, selected, record.n),
        "difficulty": by_difficulty.summarise_difficulty(difficulty, selected),
        "purity_by_difficulty": by_difficulty.compute_purity_bins(pool, selected, difficulty),
        "accuracy_by_difficulty": by_difficulty.compute_accuracy_bins(tests, of_test),
        "risk_curves": compute_risk_curves(rows),
        "judging": collect_judging(record, alone=tested.read_domain(run.config).judge is not None),
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


def _read_rows(run: RunInputs, record: GenerationRecord) -> trusted.MeasuredRows:
    """Read the graded rows with all functions' scores, and of a large pool a sample."""
    columns = {"row_id": "row_id", "rank": "rank", "trust": "trust", "is_parsed": "label IS NOT NULL"}
    selections = record.selections.items()
    tables = {arm: io.open_table(ref).to_table(columns=columns).sort_by("rank") for arm, ref in selections}
    teacher, free = run.config.get("teacher", {}), ["internal_confidence"]
    if teacher.get("backend") == GIVEN and not teacher.get("reader"):
        free = []  # given labels have no log-probabilities
    ruling = [ARMS[record.budget["reference"]].trust] if record.budget["risk"] else []
    functions = list(dict.fromkeys([REFERENCE_ARM, *free, *trusted.list_ranking_functions(tables), *ruling]))

    labels = record.labels["pool"]
    num_pool = io.count(labels, filter=io.make_answered_filter(labels))
    share = min(1.0, MOST_GRADED / max(num_pool, 1))
    graded = {}
    for split, grades in record.grades.items():
        scored, drawn = record.labels[split], share if split == "pool" else 1.0
        measured = [*functions, *free_of(io.open_table(scored).schema.names)]
        found = read_graded_rows(scored, grades, measured, share=drawn, seed=derive(run.seed, SAMPLE))
        graded[split] = replace(without_constant(found, functions), seed=run.seed)
    pool = None
    if (of_pool := graded.pop("pool", None)) is not None:
        selected: dict[str, Int64s] = {arm: table["row_id"].to_numpy() for arm, table in tables.items()}
        every, known = record.grades["pool"], selected if share < 1 else {}
        among = {arm: read_grades_among(every, np.sort(ids_M)) for arm, ids_M in known.items()}
        pool = replace(of_pool, selected=selected, drawn=share, among=among)
    return trusted.MeasuredRows(
        run=run, record=record, graded=graded, pool=pool, selected=tables, num_pool=num_pool, share=share
    )


def _collect_funnel(rows: trusted.MeasuredRows) -> Json:
    record = rows.record
    return {
        "index": record.index,
        "labelled": {split: dict(counts) for split, counts in record.label_counts.items()},
        "graded": {split: count_graded([ref]) for split, ref in record.grades.items()},
        "too_long": {
            split: {key: counts[key] for key in counts if key != "table"} for split, counts in record.too_long.items()
        },
        "tested": {name: count_graded(refs) for name, refs in record.tests.items()},
        "selected": {arm: table.num_rows for arm, table in rows.selected.items()},
    }


def _collect_selected(rows: trusted.MeasuredRows, arm: str, foreseen: Estimate | None) -> Json:
    """Return the facts of an arm's selection; its purity is 1 for gold labels, by definition."""
    record, table, traits = rows.record, rows.selected[arm], ARMS[arm]
    purity = None
    if traits.gold and table.num_rows:
        purity = {"value": 1.0, "low": 1.0, "high": 1.0, "n": table.num_rows}
    elif rows.pool is not None and (found := rows.pool.among_selected(arm)).n:
        purity = found.to_json()
    return {
        "name": arm,
        "label_source": "gold" if traits.gold else "weak",
        "num_selected": table.num_rows,
        "num_unparsed": table.num_rows - int(table["is_parsed"].to_numpy().sum()),
        "purity": purity,
        "purity_by_definition": traits.gold,
        "foreseen_purity": None if foreseen is None else foreseen.to_json(),
        **{key: record.formats[arm][key] for key in FORMAT},
        "oracle": record.budget["oracle"] or traits.oracle or is_excluded_by_gold(record),
        "num_unread": None if traits.signal is None else record.unread.get(traits.signal.column),
    }


def collect_judging(record: GenerationRecord, *, alone: bool) -> Json | None:
    """Return the judge's counts and shares, by graded split and ``test-<model>``; ``None`` if the judge was not used.

    ``asked`` is the number of labels that the judge graded. ``by_rule`` is the share right by the rule alone,
    ``by_judge`` the share of ``asked`` that the judge calls right, ``together`` the share right by either. Of several
    test runs only the first counts. If ``alone``, the judge graded every label, without a rule (``check: judge``).
    """
    graded = {**record.grades, **{f"test-{name}": refs[0] for name, refs in record.tests.items()}}
    found = {}
    for what, asked in record.asked.items():
        counts = count_graded([graded[what]])
        rows, right = counts["rows"], counts["right"]
        judged = right if alone else counts["judged"]
        found[what] = {
            "rows": rows,
            "asked": asked,
            "judged": judged,
            "by_rule": None if alone else measures.compute_count_share(right - judged, rows),
            "by_judge": measures.compute_count_share(judged, asked),
            "together": measures.compute_count_share(right, rows),
        }
    return found or None


UNLABELLED_KINDS = ("no_gold", "bad_answer", "no_box", "illegal_move", "bad_gold")
"""Kinds of error rows of a labelled split that would be valid in the pool, whose gold labels are not read."""


def collect_guarantee(run: RunInputs, record: GenerationRecord) -> Json | None:
    """Return a risk-controlled budget's guarantee and assumption; ``withheld`` says why it is not claimed, if so."""
    risk = record.budget["risk"]
    if risk is None:
        return None
    splits, strength = run.config["splits"], record.shift["calibration"]["strength"]
    errors = run.prepare_counts["calibration"]["errors"]
    no_gold = sum(number for kind, number in errors.items() if kind in UNLABELLED_KINDS)
    dropped = sum(run.overlap["dropped"].get(split, 0) for split in ("calibration", "pool"))
    is_one_source = splits["calibration"]["from"] == splits["pool"]["from"]
    # In the pool only rows with a gold label can be excluded by it.
    by_construction = is_one_source and not no_gold and not dropped and not is_excluded_by_gold(record)
    divisions = [f"selection.{name}" for name in list_divisions() if record.budget.get(name) is not None]
    facts = {
        "n": record.n,
        "asked": record.budget.get("asked"),
        "divisions": divisions,
        "rule": risk["rule"],
        "is_later": record.index > 0,
        "by_construction": by_construction,
        "strength": strength,
        "foreign": record.foreign.get(record.budget["reference"]),
        "no_gold": no_gold,
        "dropped": dropped,
    }
    withheld = next(iter(render_sentences("withheld", facts)), None)
    return {
        "text": risk["guarantee"],
        "exchangeable": render_sentences("exchangeable", facts)[0],
        "claimed": withheld is None,
        "withheld": withheld,
        "needed": risk["needed"],
        "needed_basis": risk["needed_basis"],
    }


def is_excluded_by_gold(record: GenerationRecord) -> bool:
    """Return whether rows are excluded for all arms only because their gold completion is too long."""
    return any(found["num_gold_only"] for found in record.too_long.values())


def compute_risk_curves(measured: trusted.MeasuredRows) -> Json | None:
    """Return a risk-controlled budget's noise on calibration, its bound, and noise at deployment, by share of the pool.

    Paper, figure "Risk-controlled threshold calibration". The cuts are quantiles of the scores of the pool, and the
    ``chosen`` one, which is ``None`` if no cut is certified. A bound is ``None`` if no calibration row is kept. Noise
    at deployment is known only if the run has an audit set. The result is ``None`` if the budget has no risk rule, or a
    cut for each class.
    """
    run, record, pool = measured.run, measured.record, measured.pool
    risk = record.budget["risk"]
    if risk is None or "classes" in risk:  # cuts for each class are in the table of classes
        return None
    threshold = record.budget["threshold"]

    def read_too_long(split: str) -> Int64s:
        """Return the ids of a split's rows that are too long to train on, which the budget skips, int64 [M]."""
        if split not in record.too_long:
            return np.zeros(0, dtype=np.int64)
        table = io.read(TableRef.from_json(record.too_long[split]["table"]), columns=["row_id"])
        return np.asarray(table["row_id"].to_numpy())

    trust = ARMS[record.budget["reference"]].trust
    rows, out_M = measured.graded["calibration"], read_too_long("pool")
    if rows.cluster_N is not None:  # one row of each cluster, so that rows count as independent draws
        assert rows.question_N is not None, "grades have both"
        rows = rows.subset(find_independent(rows.question_N, rows.row_ids_N, rows.cluster_N))
    raw_N = rows.scores[trust].raw_N
    may_N = rows.parsed_N & (raw_N > LOWEST) & ~np.isin(rows.row_ids_N, read_too_long("calibration"))
    every = read_scores(record.labels["pool"], [trust], share=measured.share, seed=derive(run.seed, SAMPLE))
    scored = every.scores[trust]
    kept_N = every.parsed_N & (scored.raw_N > LOWEST) & ~np.isin(every.row_ids_N, out_M)
    pool_N = np.where(kept_N, scored.raw_N, -np.inf).astype(np.float32).astype(np.float64)
    settings = {key: risk[key] for key in ("rule", "kind", "alpha", "delta")}
    calibration_N, seed = np.where(may_N, raw_N, -np.inf), derive(run.seed, "risk")
    found = compute_risk_curve(calibration_N, rows.correct_N, pool_N, **settings, seed=seed)
    cuts_G = np.unique([*found.threshold_G.tolist(), *([] if threshold is None else [threshold])])
    # The least trust at or above each cut: trust never falls with the raw score.
    order_M = np.argsort(pool_N)[-int(kept_N.sum()) :]
    least_M = np.minimum.accumulate(scored.trust_N[order_M][::-1])[::-1]
    least_G = np.append(least_M, np.inf)[np.searchsorted(pool_N[order_M], cuts_G, side="left")]
    shares: list[Json | None] = [None] * len(cuts_G)
    if pool is not None:
        score_N = pool.scores[trust].raw_N
        may_be_N = pool.parsed_N & (score_N > LOWEST) & ~np.isin(pool.row_ids_N, out_M)
        kept = (np.sort(score_N[may_be_N & right_N]) for right_N in (~pool.correct_N, pool.correct_N))
        wrong_G, right_G = (len(of_2) - np.searchsorted(of_2, cuts_G, side="left") for of_2 in kept)
        shares = list(map(measures.compute_count_share, wrong_G, wrong_G + right_G))
    at_cut = {
        cut: {"threshold": cut, "trust": least, "deployment": share}
        for cut, least, share in zip(cuts_G.tolist(), least_G.tolist(), shares, strict=True)
    }
    points = [
        {
            **at_cut[cut],
            "share": float(found.share_G[g]),
            "tried": bool(found.tried_G[g]),
            "calibration": measures.compute_count_share(found.wrong_G[g], found.kept_G[g]),
            "bound": float(found.bound_G[g]) if found.kept_G[g] else None,
        }
        for g, cut in enumerate(found.threshold_G.tolist())
    ]
    chosen = None
    if threshold is not None:
        share = int((pool_N >= threshold).sum()) / len(pool_N)
        noise = measures.compute_count_share(round(risk["noise"] * risk["num_kept"]), risk["num_kept"])
        chosen = {**at_cut[threshold], "share": share, "calibration": noise, "bound": risk["bound"]}
    return {
        **settings,
        "level": found.level,
        "start": found.start,
        "num_calibration": found.num_rows,
        "num_pool": measured.num_pool,
        "num_graded": None if pool is None else len(pool),
        "points": points,
        "chosen": chosen,
    }
