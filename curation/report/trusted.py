"""Quality of the trust functions: on held-out rows of the source ("validation"), on the pool, on probe sets.

Validation rows are source rows with an out-of-sample score (``rows.GradedRows.held_out``), one per question. The free
signals are measured, too, whether or not arms select by them (``curation.report.evidence``).

Every metric is computed on the parsed rows, because trust can select no other row. The baseline of Brier score and ECE
is that of a constant: the share of right labels among the parsed rows of the source's questions.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from curation.arms import ARMS, REFERENCE_ARM
from curation.arrays import Float64s, Int64s
from curation.domains.class_counts import UnseenLabels
from curation.features import is_divided
from curation.hashing import draw_by_hash
from curation.json_types import Json, JsonView
from curation.metrics import Estimate
from curation.report import checks, measures
from curation.report.class_table import as_evidence
from curation.report.evidence import CONFIDENCE, Evidence, EvidenceInputs, compute_evidence, predict_purity
from curation.report.headline import render_sentences
from curation.report.record import GROUND_TRUTH, GenerationRecord, RunInputs
from curation.report.rows import GradedRows
from curation.tables import io

MOST_READ, CHARACTERS = 2_000, 40
"""Number of unreadable labels to read, and number of characters of each; the most frequent ones are shown."""


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
    """Rows of each arm by rank, with row_id, rank, trust and is_parsed."""
    num_pool: int
    share: float
    """Share of the pool's labelled rows that are measured one by one."""

    @cached_property
    def sets(self) -> dict[str, GradedRows]:
        """The non-empty sets of rows: validation rows, held out from the fits of all functions, and a graded pool."""
        held = self.graded["source"].held_out(self.graded["source"].scores, self.run.seed)
        found = {"validation": held, "pool": self.pool}
        return {name: rows for name, rows in found.items() if rows is not None and len(rows)}

    def scale_count(self, num_rows: int) -> int:
        """Return the number of rows that is the same share of ``num_rows`` as n is of the pool, at least 1."""
        return max(1, round(self.record.n / max(self.num_pool, 1) * num_rows))

    def trust_of(self, arm: str) -> Float64s:
        """Return the trust of an arm's rows, 0 if they have none."""
        return np.asarray(np.nan_to_num(self.selected[arm]["trust"].to_numpy().astype(np.float64)))


def collect_evidence(
    rows: MeasuredRows, arm: str, num_candidates: int, diversity: Json, classes: Json | None, students: Json
) -> Evidence:
    """Return the evidence on the arm shown, with the numbers of the report's tables that the verdict reads."""
    run, record, source, seed = rows.run, rows.record, rows.graded["source"], rows.run.seed
    function, known, examples = ARMS[arm].trust, source.readable.distinct, run.prepared["source"]
    held = source.held_out([function], seed) if function in source.scores else None
    trust_M, row_ids_M = rows.trust_of(arm), rows.selected[arm]["row_id"].to_numpy()
    drawn_M = np.random.default_rng(seed).permutation(len(trust_M))
    near, cluster_M = _find_near_copies(run, record, arm, row_ids_M[drawn_M[: checks.MOST_ROWS]])
    fit, labels, control, lengths = record.trust_fit, record.labels["source"], None, None
    if not run.config.get("teacher", {}).get("decoding", {}).get("normalise_options", False):
        lengths = checks.measure_option_lengths(examples, labels, run.domain, known.row_ids_N, seed)
    if held is not None:
        share, parsed = len(trust_M) / max(num_candidates, 1), held.readable
        control = checks.measure_control(
            examples, run.domain, parsed, function, share, seed=seed, confidence=CONFIDENCE
        )
    num_fit, num_repeats, of_pool = fit.get("num_fit"), fit.get("num_repeats"), diversity["pool"]
    evidence = Evidence(
        arm=arm,
        chance=checks.compute_chance(examples, run.domain, known.row_ids_N, seed),
        shift=record.shift.get("source"),
        foreign=record.foreign.get(arm),
        is_divided=is_divided(record.budget),
        repeats=None if num_repeats is None else {"num_rows": num_fit + num_repeats, "num_questions": num_fit},
        groups=tuple(run.groups),
        near=near,
        unread=_count_unread(record),
        unseen=None if record.unseen is None else UnseenLabels(**record.unseen),
        option_lengths=lengths,
        control=control,
        labels={
            "num_labelled": of_pool["num_rows"],
            "num_given": of_pool["num_labels"],
            "num_selected": diversity["arms"][arm]["num_labels"],
        },
        classes=as_evidence(classes),
        gold_student=_describe_gold_student(students, record, run.config),
    )
    return compute_evidence(
        EvidenceInputs(
            known=evidence,
            function=function,
            validation=held if held is not None and len(held) else None,
            pool=rows.sets.get("pool"),
            source=known,
            selected_trust_M=trust_M[drawn_M],
            num_pool=num_candidates,
            seed=seed,
            cluster_M=cluster_M,
        )
    )


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
) -> tuple[checks.NearCopies | None, Int64s | None]:
    """Return the near-copies among an arm's selected rows ``row_ids_M``, and the cluster of each row, int64 [M]."""
    source = run.prepared["source"]
    every_N = io.read(source, columns=["row_id"], filter="error IS NULL")["row_id"].to_numpy()
    known_N = draw_by_hash(every_N, checks.MOST_ROWS, run.seed)
    if not len(row_ids_M) or not len(known_N):
        return None, None
    gold_N, label_M = io.take(source, known_N, ["gold"]), io.take(record.selections[arm], row_ids_M, ["label"])
    selected = checks.read_questions(run.prepared["pool"], row_ids_M, label_M["label"].to_pylist(), run.domain)
    labelled = checks.read_questions(source, known_N, gold_N["gold"].to_pylist(), run.domain)
    return checks.find_near_copies(selected, labelled, seed=run.seed)


def _count_unread(record: GenerationRecord) -> Json:
    """Count the pool's labels that could not be read, and list the most frequent of the first ones."""
    counts, found = record.label_counts["pool"], Counter[str]()
    if counts["unparsed"]:
        labels, unread_rows = io.open_table(record.labels["pool"]), "label IS NULL AND error IS NULL"
        texts = labels.to_table(columns=["completion"], filter=unread_rows, limit=MOST_READ)["completion"]
        found.update(" ".join((text or "").split())[:CHARACTERS] for text in texts.to_pylist())
    return {
        "num_rows": counts["rows"] - sum(counts["errors"].values()),
        "num_unread": counts["unparsed"],
        "writings": [text for text, _ in found.most_common(3)],
    }


def predict_purities(rows: MeasuredRows, num_candidates: int) -> dict[str, Estimate | None]:
    """Return the purity of each weak arm's rows as predicted from validation rows; ``None`` if it cannot be predicted.

    For an arm that ranks, it is that of ``curation.report.evidence.predict_purity``; for one that draws, the share of
    right labels among the source's rows, or among the parsed ones if it drew only such rows.
    """
    source, found = rows.graded["source"], dict[str, Estimate | None]()
    for arm, table in rows.selected.items():
        function = ARMS[arm].trust
        if ARMS[arm].gold or not table.num_rows:
            continue
        found[arm] = None
        if not ARMS[arm].ranked:
            known = (source.readable if all(table["is_parsed"].to_pylist()) else source).distinct
            found[arm] = known.share_right() if len(known) else None
        elif function in source.scores:
            held = source.held_out([function], rows.run.seed).readable
            num_top = max(1, round(table.num_rows / max(num_candidates, 1) * len(held)))
            if (predicted := predict_purity(held, function, num_top, rows.trust_of(arm))) is not None:
                found[arm] = predicted.purity
    return found


def list_ranking_functions(arms: Iterable[str]) -> list[str]:
    """Return the trust functions by which arms rank, the method's first."""
    return list(dict.fromkeys([REFERENCE_ARM, *(ARMS[arm].trust for arm in arms if ARMS[arm].ranked)]))


def measure_trust(rows: MeasuredRows) -> Json:
    """Return the metrics of every trust function by set, on its ``parsed`` rows.

    ``told`` are sentences on the reference arm's function.
    """
    ranked, fit, tables = list_ranking_functions(rows.selected), rows.record.trust_fit, Json()
    constant = rows.graded["source"].readable.distinct.share
    for where, graded in rows.sets.items():
        # There are fewer validation rows than pool rows: take the same share of them.
        num_top = graded.scale(rows.record.n) if where == "pool" else rows.scale_count(len(graded))
        seen, tables[where] = graded.readable, {}
        if len(seen):
            table = tables[where]["parsed"] = measures.measure_functions(seen, num_top, constant, rows.run.seed)
            for name, found in table["functions"].items():
                found["is_arm"] = name in ranked
    words = render_sentences("trust", fit.get("kind"), fit.get("choice"))
    return {"ece_bins": measures.ECE_BINS, "fit": dict(fit), **tables, "told": words}


def measure_regimes(rows: MeasuredRows) -> list[Json]:
    """Return the reference trust function's metrics on each labelled set's parsed rows.

    The function is fitted on one set and evaluated on many.
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
            found = {
                "n": len(seen),
                "share_right": seen.share_right().to_json(),
                **measures.measure_calibration(seen, REFERENCE_ARM, seed),
                "num_top": num_top,
                "purity_at_n": seen.rank_by_score(REFERENCE_ARM, [num_top])[0].to_json() if num_top else None,
                "constant": {"value": constant, **measures.compute_errors(seen, np.full(len(seen), constant), seed)},
            }
            lines.append({"set": name, "regime": regime, **found})
    return lines
