"""Quality of the trust functions: on held-out rows of the source ("validation"), on the pool, on probe sets.

Validation rows are source rows with an out-of-sample score (``rows.GradedRows.held_out``), one per question. The free
signals are measured, too, whether or not arms select by them (``curation.report.rivals``).

Every metric is computed on the parsed rows first, because trust can select no other row, and then on all rows. Among
all rows an unparsed row ranks last with trust 0, as in selection. There readability alone predicts correctness well, so
the report gives its AUC as a baseline. The baseline of Brier score and ECE is that of a constant: the share of right
labels among the same kind of rows, parsed or all, of the source's questions.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean

import numpy as np
import pyarrow as pa

from curation.arms import ARMS, REFERENCE_ARM
from curation.arrays import Float64s, Int64s
from curation.domains.class_counts import UnseenLabels
from curation.features import is_divided
from curation.hashing import draw_by_hash
from curation.json_types import Json, JsonView
from curation.metrics import Estimate
from curation.report import measures
from curation.report.class_table import as_evidence
from curation.report.control import compute_chance, measure_control, measure_option_lengths
from curation.report.evidence import (
    CONFIDENCE,
    Evidence,
    Material,
    foresee_purity,
    weigh,
)
from curation.report.headline import say
from curation.report.near_copies import MOST_ROWS, NearCopies, find_near_copies, read_questions
from curation.report.record import GROUND_TRUTH, GenerationRecord, RunInputs
from curation.report.rivals import compare_with_signal, find_best_signal, make_rival_entry
from curation.report.rows import GradedRows
from curation.tables import io

LOOKED_AT, CHARACTERS = 2_000, 40
"""Number of unreadable labels to read, and number of characters of each; the most frequent ones are shown."""
AVERAGED = ("auc", "ece", "brier", "purity_at_n")


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredRows:
    """The rows of a generation on which trust is measured."""

    run: RunInputs
    record: GenerationRecord
    graded: Mapping[str, GradedRows]
    """Graded rows by split, without the pool."""
    pool: GradedRows | None
    """Graded pool, or ``None`` without an audit set."""
    selected: Mapping[str, pa.Table]
    """Rows of each arm (``curation.report.rows.read_selected_rows``)."""
    num_pool: int
    share: float
    """Share of the pool's labelled rows that are measured one by one."""

    @cached_property
    def sets(self) -> dict[str, GradedRows]:
        """The non-empty sets of rows: validation rows, held out from the fits of all functions, and a graded pool."""
        held = self.graded["source"].held_out(self.graded["source"].scores, self.run.seed)
        found = {"validation": held, "pool": self.pool}
        return {name: rows for name, rows in found.items() if rows is not None and len(rows)}

    @property
    def shown_arm(self) -> str | None:
        """The method's arm, or else the first that ranks, whose rows the verdict is about; None without such an arm."""
        scored = self.graded["source"].scores
        ranking = (arm for arm in self.selected if ARMS[arm].ranked and not ARMS[arm].gold)
        others = (arm for arm in ranking if ARMS[arm].trust in scored)
        return REFERENCE_ARM if REFERENCE_ARM in self.selected else next(others, None)

    def scale_count(self, num_rows: int) -> int:
        """Return the number of rows that is the same share of ``num_rows`` as n is of the pool, at least 1."""
        return max(1, round(self.record.n / max(self.num_pool, 1) * num_rows))

    def trust_of(self, arm: str) -> Float64s:
        """Return the trust of an arm's rows, 0 if they have none."""
        return np.asarray(np.nan_to_num(self.selected[arm]["trust"].to_numpy().astype(np.float64)))


def collect_evidence(
    rows: MeasuredRows, arm: str, num_candidates: int, varied: Json, classes: Json | None, students: Json
) -> Evidence:
    """Return the evidence on the arm shown, with the numbers of the report's tables that the verdict reads."""
    run, record, source = rows.run, rows.record, rows.graded["source"]
    function, known, examples = ARMS[arm].trust, source.readable.distinct, run.prepared["source"]
    held = source.held_out([function], run.seed) if function in source.scores else None
    trust_M, row_ids_M = rows.trust_of(arm), rows.selected[arm]["row_id"].to_numpy()
    drawn_M = np.random.default_rng(run.seed).permutation(len(trust_M))
    near, cluster_M = _find_near_copies(run, record, arm, row_ids_M[drawn_M[:MOST_ROWS]])
    fit, option_lengths = record.trust_fit, None
    if not run.config.get("teacher", {}).get("decoding", {}).get("normalise_options", False):
        labels = record.labels["source"]
        option_lengths = measure_option_lengths(examples, labels, run.domain, known.row_ids_N, run.seed)
    found = weigh(
        Material(
            arm=arm,
            function=function,
            validation=held if held is not None and len(held) else None,
            pool=rows.sets.get("pool"),
            source=known,
            selected_trust_M=trust_M[drawn_M],
            num_pool=num_candidates,
            chance=compute_chance(examples, run.domain, known.row_ids_N, run.seed),
            shift=record.shift.get("source"),
            foreign=record.foreign.get(arm),
            seed=run.seed,
            is_divided=is_divided(record.budget),
            repeats=None
            if fit.get("num_repeats") is None
            else {"num_rows": fit["num_fit"] + fit["num_repeats"], "num_questions": fit["num_fit"]},
            groups=tuple(run.groups),
            near=near,
            cluster_M=cluster_M,
            unread=_count_unread(record),
            unseen=None if record.unseen is None else UnseenLabels(**record.unseen),
            option_lengths=option_lengths,
        )
    )
    control, share = None, len(trust_M) / max(num_candidates, 1)
    if held is not None:
        seed, parsed = run.seed, held.readable
        control = measure_control(examples, run.domain, parsed, function, share, seed=seed, confidence=CONFIDENCE)
    given, num = varied["pool"], varied["arms"][arm]["num_labels"]
    seen = {"num_labelled": given["num_rows"], "num_given": given["num_labels"], "num_selected": num}
    student = _describe_gold_student(students, record, run.config)
    return replace(found, control=control, labels=seen, classes=as_evidence(classes), gold_student=student)


def _describe_gold_student(students: Json, record: GenerationRecord, config: JsonView) -> Json | None:
    """Return the student of ground truth, if both it and its base were tested."""
    arm = next((arm for arm in students["arms"] if arm["name"] == GROUND_TRUTH), None)
    training = record.training.get(GROUND_TRUTH)
    if arm is None or training is None or arm["against_base"] is None:
        return None
    steps = training.get("curves", {}).get("step")
    return {
        "gain": arm["against_base"],
        "rows": arm["rows_trained"],
        "epochs": arm["epochs"],
        "steps": round(steps[-1]) if steps else None,
        "learning_rate": (config.get("student") or {}).get("learning_rate"),
    }


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
        read_questions(run.prepared["pool"], row_ids_M, label_M, run.domain),
        read_questions(run.prepared["source"], known_N, gold_N, run.domain),
        seed=run.seed,
    )


def _count_unread(record: GenerationRecord) -> Json:
    """Count the pool's labels that could not be read, and list the most frequent of the first ones."""
    counts, labels = record.label_counts["pool"], io.open_table(record.labels["pool"])
    columns, unread_rows = ["completion"], "label IS NULL AND error IS NULL"
    texts = labels.to_table(columns=columns, filter=unread_rows, limit=LOOKED_AT) if counts["unparsed"] else None
    answers = [] if texts is None else texts["completion"].to_pylist()
    found = Counter(" ".join((text or "").split())[:CHARACTERS] for text in answers)
    return {
        "num_rows": counts["rows"] - sum(counts["errors"].values()),
        "num_unread": counts["unparsed"],
        "writings": [text for text, _ in found.most_common(3)],
    }


def foresee_purities(rows: MeasuredRows, num_candidates: int) -> dict[str, Estimate | None]:
    """Return the purity of each weak arm's rows as predicted from validation rows; ``None`` if it cannot be predicted.

    For an arm that ranks, it is that of ``curation.report.evidence.foresee_purity``; for one that draws, the share of
    right labels among the source's rows, or among the parsed ones if it drew only such rows.
    """
    source = rows.graded["source"]

    def foresee(arm: str, table: pa.Table) -> Estimate | None:
        if not ARMS[arm].ranked:
            known = (source.readable if all(table["is_parsed"].to_pylist()) else source).distinct
            return known.share_right() if len(known) else None
        if (function := ARMS[arm].trust) not in source.scores:
            return None
        held = source.held_out([function], rows.run.seed).readable
        num_top = max(1, round(table.num_rows / max(num_candidates, 1) * len(held)))
        found = foresee_purity(held, function, num_top, rows.trust_of(arm))
        return None if found is None else found.purity

    return {arm: foresee(arm, table) for arm, table in rows.selected.items() if not ARMS[arm].gold and table.num_rows}


def list_ranking(arms: Iterable[str]) -> list[str]:
    """Return the trust functions by which arms rank, the method's first."""
    return list(dict.fromkeys([REFERENCE_ARM, *(ARMS[arm].trust for arm in arms if ARMS[arm].ranked)]))


def trust_tables(rows: MeasuredRows) -> Json:
    """Return the metrics of every trust function by set, on ``parsed`` and on ``all`` rows.

    On parsed rows, ``against`` compares each function by which arms rank with internal confidence and with the best
    free signal. ``told`` are sentences on the reference arm's function, and on whether it or this signal ranks better.
    """
    ranked = list_ranking(rows.selected)
    fit, source, seed = rows.record.trust_fit, rows.graded["source"], rows.run.seed
    best = find_best_signal(rows.sets)
    others = {"internal_confidence": "internal_confidence", "best": None if best is None else best[0]}
    result: Json = {
        "ece_bins": measures.ECE_BINS,
        "fit": dict(fit),
        "best_signal": None if best is None else {"name": best[0], "chosen_on": best[1]},
    }
    for name, graded in rows.sets.items():
        result[name] = {}
        # There are fewer validation rows than pool rows: take the same share of them.
        num_top = graded.scale(rows.record.n) if name == "pool" else rows.scale_count(len(graded))
        for view, seen, of in (
            ("parsed", graded.readable, source.readable.distinct),
            ("all", graded.all, source.distinct),
        ):
            if len(seen):
                result[name][view] = measures.trust_metrics(seen, num_top, of.share, seed)
                for function, found in result[name][view]["functions"].items():
                    found["is_arm"] = function in ranked
        for function, found in result[name].get("parsed", {"functions": {}})["functions"].items():
            may = function in ranked and num_top > 0
            found["against"] = {
                what: make_rival_entry(compare_with_signal(graded, name, function, other, num_top, seed))
                if may and other is not None and other != function and other in graded.scores
                else None
                for what, other in others.items()
            }
    result["told"] = say("trust", fit.get("kind"), fit.get("choice"))
    seen_in = {where: result[where]["parsed"] for where in ("pool", "validation") if "parsed" in result.get(where, {})}
    for where, table in seen_in.items():
        if REFERENCE_ARM in table["functions"]:
            found = table["functions"][REFERENCE_ARM]["against"]["best"]
            result["told"] += [] if found is None else say("winner", "trust", where, table["num_rows"], found)
            break
    return result


def measure_regimes(rows: MeasuredRows) -> tuple[list[Json], list[Json]]:
    """Return the reference trust function's metrics on each labelled set's parsed rows, and their means by regime.

    The function is fitted on one set and evaluated on many. The mean over the sets of a regime is unweighted, as in the
    paper's tables, and covers only sets for which the number is defined.
    """
    sets, seed = rows.sets, rows.run.seed
    named = {"validation": ("ID", sets["validation"])} if "validation" in sets else {}
    for name, probe in rows.run.config["splits"]["probes"].items():
        named[name] = (probe["regime"], rows.graded[f"probe-{name}"])
    named |= {"pool": ("pool", sets["pool"])} if "pool" in sets else {}
    constant = rows.graded["source"].readable.distinct.share
    lines: list[Json] = []
    for name, (regime, graded) in named.items():
        if len(seen := graded.readable):
            num_top = min(rows.scale_count(len(graded)), len(seen))
            found = measures.measure_regime(seen, REFERENCE_ARM, num_top, constant, seed)
            lines.append({"set": name, "regime": regime, **found})
    means: list[Json] = []
    for regime in dict.fromkeys(line["regime"] for line in lines if line["regime"] != "pool"):
        own = [line for line in lines if line["regime"] == regime]
        means.append({"regime": regime, "sets": [line["set"] for line in own]})
        for name in AVERAGED:
            values = [line[name]["value"] for line in own if line[name] is not None]
            means[-1][name] = mean(values) if values else None
    return lines, means
