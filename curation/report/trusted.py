"""Quality of the trust functions: on held-out rows of the source ("validation"), on the pool, on probe sets.

Validation rows are source rows with an out-of-sample score (``rows.Judged.held_out``), one per question. The free
signals are measured, too, whether or not arms select by them (``curation.report.rivals``).

Every metric is computed on the parsed rows first, because trust can select no other row, and then on all rows. Among
all rows an unparsed row ranks last with trust 0, as in selection. There readability alone predicts correctness well, so
the report gives its AUC as a baseline. The baseline of Brier score and ECE is that of a constant: the share of right
labels among the same kind of rows, parsed or all, of the source's questions.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from statistics import mean

import numpy as np
import pyarrow as pa

from curation.arms import ARMS, REFERENCE_ARM
from curation.arrays import Int64s
from curation.domains.unseen_labels import UnseenLabels
from curation.features import is_divided
from curation.hashing import draw_by_hash
from curation.json_types import Json, JsonView
from curation.metrics import Estimate
from curation.report import measures
from curation.report.class_table import as_evidence
from curation.report.control import measure_control
from curation.report.evidence import CONFIDENCE, Evidence, LabelsSeen, Material, Repeats, Unread, foresee_purity, weigh
from curation.report.guessing import compute_chance
from curation.report.measured import GradedSet, InMemory
from curation.report.near_copies import MOST_ROWS, NearCopies, find_near_copies, read_texts
from curation.report.option_lengths import measure_option_lengths
from curation.report.record import GenerationRecord, RunInputs
from curation.report.rivals import (
    compare_with_signal,
    describe_trust,
    describe_winner,
    find_best_signal,
    make_rival_entry,
)
from curation.report.rows import Judged
from curation.tables import io

LOOKED_AT, CHARACTERS = 2_000, 40
"""Number of unreadable labels to read, and number of characters of each; the most frequent ones are shown."""
AVERAGED = ("auc", "ece", "brier", "purity_at_n")


def collect_graded_sets(run: RunInputs, judged: Mapping[str, Judged], pool: GradedSet | None) -> dict[str, GradedSet]:
    """Return the non-empty sets of rows on which trust is measured: validation rows, and the pool if it is graded.

    Validation rows are held out from the fits of all functions, so that all are measured on the same rows.
    """
    source = judged["source"]
    found = {"validation": _hold_out(source, source.scores, run.seed), "pool": pool}
    return {name: rows for name, rows in found.items() if rows is not None and len(rows)}


def _hold_out(source: Judged, functions: Collection[str], seed: int) -> InMemory:
    return InMemory(judged=source.held_out(functions, seed), selected={}, seed=seed)


def collect_evidence(
    run: RunInputs,
    record: GenerationRecord,
    judged: Mapping[str, Judged],
    measured: Mapping[str, GradedSet],
    selected: Mapping[str, pa.Table],
    num_pool: int,
) -> Evidence | None:
    """Return the evidence on the method's arm, or else on the first arm that ranks; ``None`` without such an arm.

    ``selected`` has the rows of each arm (``curation.report.rows.read_selected_rows``).
    """
    source = judged["source"]
    ranking = (arm for arm in selected if ARMS[arm].ranked and not ARMS[arm].gold and ARMS[arm].trust in source.scores)
    arm = REFERENCE_ARM if REFERENCE_ARM in selected else next(ranking, None)
    if arm is None:
        return None
    held = _hold_out(source, [ARMS[arm].trust], run.seed) if ARMS[arm].trust in source.scores else None
    known = source.readable.distinct
    trust_M = np.nan_to_num(selected[arm]["trust"].to_numpy().astype(np.float64))
    drawn_M = np.random.default_rng(run.seed).permutation(len(trust_M))
    near, cluster_M = _find_near_copies(run, record, arm, selected[arm]["row_id"].to_numpy()[drawn_M[:MOST_ROWS]])
    material = Material(
        arm=arm,
        function=ARMS[arm].trust,
        validation=held if held is not None and len(held) else None,
        pool=measured.get("pool"),
        source=known,
        selected_trust_M=trust_M[drawn_M],
        num_pool=num_pool,
        chance=compute_chance(run.prepared["source"], run.domain, known.row_ids_N, run.seed),
        shift=record.shift.get("source"),
        foreign=record.foreign.get(arm),
        seed=run.seed,
        is_divided=is_divided(record.budget),
        repeats=count_repeats(record.trust_fit),
        selected_repeats=Repeats(**{name: record.formats[arm][name] for name in ("num_rows", "num_questions")}),
        groups=tuple(run.groups),
        near=near,
        cluster_M=cluster_M,
        unread=count_unread(record),
        unseen=None if record.unseen is None else UnseenLabels(**record.unseen),
        option_lengths=None
        if run.config.get("teacher", {}).get("decoding", {}).get("normalise_options", False)
        else measure_option_lengths(
            run.prepared["source"], record.labels["source"], run.domain, known.row_ids_N, run.seed
        ),
    )
    found = weigh(material)
    if held is None:
        return found
    share, function = len(trust_M) / max(num_pool, 1), ARMS[arm].trust
    plain = measure_control(
        run.prepared["source"],
        run.domain,
        held.judged.readable,
        function,
        share,
        seed=run.seed,
        confidence=CONFIDENCE,
    )
    return replace(found, control=plain)


def _find_near_copies(
    run: RunInputs, record: GenerationRecord, arm: str, row_ids_M: Int64s
) -> tuple[NearCopies | None, Int64s | None]:
    """Return the near-copies among an arm's selected rows ``row_ids_M``, and the cluster of each row, int64 [M]."""
    source = io.read(run.prepared["source"], columns=["row_id", "gold"], filter="error IS NULL")
    known_N = draw_by_hash(source["row_id"].to_numpy(), MOST_ROWS, run.seed)
    if not len(row_ids_M) or not len(known_N):
        return None, None
    gold_N = io.take(run.prepared["source"], known_N, ["gold"])["gold"].to_pylist()
    label_M = io.take(record.selections[arm], row_ids_M, ["label"])["label"].to_pylist()
    return find_near_copies(
        read_texts(run.prepared["pool"], row_ids_M, label_M, run.domain),
        read_texts(run.prepared["source"], known_N, gold_N, run.domain),
        seed=run.seed,
    )


def foresee_purities(
    source: Judged, selected: Mapping[str, pa.Table], num_pool: int, seed: int
) -> dict[str, Estimate | None]:
    """Return the purity of each weak arm's rows as predicted from validation rows; ``None`` if it cannot be predicted.

    For an arm that ranks, it is that of ``curation.report.evidence.foresee_purity``; for one that draws, the share of
    right labels among the source's rows, or among the parsed ones if it drew only such rows.
    """

    def of(arm: str, rows: pa.Table) -> Estimate | None:
        if not ARMS[arm].ranked:
            known = (source.readable if all(rows["is_parsed"].to_pylist()) else source).distinct
            return known.share_right() if len(known) else None
        if (function := ARMS[arm].trust) not in source.scores:
            return None
        held = source.held_out([function], seed).readable
        num_top = max(1, round(rows.num_rows / max(num_pool, 1) * len(held)))
        found = foresee_purity(held, function, num_top, np.nan_to_num(rows["trust"].to_numpy().astype(np.float64)))
        return None if found is None else found.purity

    return {arm: of(arm, rows) for arm, rows in selected.items() if not ARMS[arm].gold and rows.num_rows}


def with_labels(shown: Evidence | None, varied: Json, classes: Json | None = None) -> Evidence | None:
    """Return the evidence with the label counts of ``diversity`` and the class shares of ``class_table``."""
    if shown is None:
        return None
    given, selected = varied["pool"], varied["arms"][shown.arm]
    labels = LabelsSeen(
        num_labelled=given["num_rows"], num_given=given["num_labels"], num_selected=selected["num_labels"]
    )
    return replace(shown, labels=labels, classes=as_evidence(classes))


def count_unread(record: GenerationRecord) -> Unread:
    """Count the pool's labels that could not be read, and list the most frequent of the first ones."""
    counts, labels = record.label_counts["pool"], io.open_table(record.labels["pool"])
    columns, unread_rows = ["completion"], "label IS NULL AND error IS NULL"
    texts = labels.to_table(columns=columns, filter=unread_rows, limit=LOOKED_AT) if counts["unparsed"] else None
    answers = [] if texts is None else texts["completion"].to_pylist()
    found = Counter(" ".join((text or "").split())[:CHARACTERS] for text in answers)
    return Unread(
        num_rows=counts["rows"] - sum(counts["errors"].values()),
        num_unread=counts["unparsed"],
        writings=tuple(text for text, _ in found.most_common(3)),
    )


def count_repeats(fit: JsonView) -> Repeats | None:
    """Return how many labelled rows repeat a question, or ``None`` if the summary of the fit does not say."""
    if fit.get("num_repeats") is None:
        return None
    return Repeats(num_rows=fit["num_fit"] + fit["num_repeats"], num_questions=fit["num_fit"])


def trust_tables(
    run: RunInputs,
    record: GenerationRecord,
    judged: Mapping[str, Judged],
    measured: Mapping[str, GradedSet],
    ranked: Collection[str],
    num_pool: int,
) -> Json:
    """Return the metrics of every trust function by set, on ``parsed`` and on ``all`` rows.

    ``ranked`` are the functions by which arms rank. On parsed rows, ``against`` compares each of them with internal
    confidence and with the best free signal.
    """
    best = find_best_signal(measured)
    result: Json = {
        "ece_bins": measures.ECE_BINS,
        "fit": dict(record.trust_fit),
        "best_signal": None if best is None else {"name": best[0], "chosen_on": best[1]},
    }
    source = judged["source"]
    for name, rows in measured.items():
        result[name] = {}
        # There are fewer validation rows than pool rows: take the same share of them.
        num_top = record.n if name == "pool" else _scale_count(record.n, num_pool, len(rows))
        for view, seen, of in (
            ("parsed", rows.parsed, source.readable.distinct),
            ("all", rows.all, source.distinct),
        ):
            if len(seen):
                result[name][view] = measures.trust_metrics(seen, num_top, _compute_share_right(of), run.seed)
                for function, found in result[name][view]["functions"].items():
                    found["is_arm"] = function in ranked
        others = {"internal_confidence": "internal_confidence", "best": None if best is None else best[0]}
        for function, found in result[name].get("parsed", {"functions": {}})["functions"].items():
            may = function in ranked and num_top > 0
            found["against"] = {
                what: make_rival_entry(compare_with_signal(rows, name, function, other, num_top, run.seed))
                if may and other is not None and other != function and other in rows.parsed.functions
                else None
                for what, other in others.items()
            }
    result["told"] = _describe_ranking(record, result)
    return result


def _describe_ranking(record: GenerationRecord, tables: Json) -> list[str]:
    """Return sentences on the reference arm's function, and on whether it or the best free signal ranks better."""
    words = [describe_trust(record.trust_fit.get("kind"), record.trust_fit.get("choice"))]
    for where in ("pool", "validation"):
        seen = tables.get(where, {}).get("parsed")
        if seen is not None and REFERENCE_ARM in seen["functions"]:
            found = seen["functions"][REFERENCE_ARM]["against"]["best"]
            return words if found is None else [*words, describe_winner("trust", where, seen["num_rows"], found)]
    return words


def measure_regimes(
    run: RunInputs,
    record: GenerationRecord,
    judged: Mapping[str, Judged],
    measured: Mapping[str, GradedSet],
    num_pool: int,
) -> tuple[list[Json], list[Json]]:
    """Return the reference trust function's metrics on each labelled set's parsed rows, and their means by regime.

    The function is fitted on one set and evaluated on many. The mean over the sets of a regime is unweighted, as in the
    paper's tables, and covers only sets for which the number is defined.
    """
    probes = run.config["splits"]["probes"]
    named = {"validation": ("ID", measured["validation"])} if "validation" in measured else {}
    for name, probe in probes.items():
        named[name] = (probe["regime"], InMemory(judged=judged[f"probe-{name}"], selected={}, seed=run.seed))
    named |= {"pool": ("pool", measured["pool"])} if "pool" in measured else {}
    constant = _compute_share_right(judged["source"].readable.distinct)
    lines = []
    for name, (regime, rows) in named.items():
        if len(seen := rows.parsed):
            num_top = min(_scale_count(record.n, num_pool, len(rows)), len(seen))
            found = measures.measure_regime(seen, REFERENCE_ARM, num_top, constant, run.seed)
            lines.append({"set": name, "regime": regime, **found})
    by_regime = dict.fromkeys(line["regime"] for line in lines if line["regime"] != "pool")
    return lines, [_compute_mean(regime, [line for line in lines if line["regime"] == regime]) for regime in by_regime]


def _compute_mean(regime: str, lines: list[Json]) -> Json:
    means: Json = {"regime": regime, "sets": [line["set"] for line in lines]}
    for name in AVERAGED:
        values = [line[name]["value"] for line in lines if line[name] is not None]
        means[name] = mean(values) if values else None
    return means


def _scale_count(n: int, num_pool: int, num_rows: int) -> int:
    """Return the number of rows that is the same share of ``num_rows`` as n is of the pool, at least 1."""
    return max(1, round(n / max(num_pool, 1) * num_rows))


def _compute_share_right(rows: Judged) -> float:
    return float(rows.correct_N.mean()) if len(rows) else 0.0
