"""Quality of the trust functions: on validation rows of the source, on the pool, on probe sets.

Every metric is computed on the parsed rows first, because trust can select no other row, and then on all rows. Among
all rows an unparsed row ranks last with trust 0, as in selection. There readability alone predicts correctness well, so
the report gives its AUC as a control. For comparison with Brier score and ECE, the report gives those of a constant:
the share of right labels among the same kind of rows, parsed or all, of the source's fit part.
"""

from collections.abc import Mapping
from statistics import mean
from typing import Any

import numpy as np
import pyarrow as pa

from curation.arms import ARMS, REFERENCE_ARM
from curation.config import TrustConfig
from curation.report import measures
from curation.report.evidence import CONFIDENCE, Evidence, Material, weigh
from curation.report.guessing import chance
from curation.report.measured import GradedSet, InMemory
from curation.report.measures import Json
from curation.report.people import checked
from curation.report.record import GenerationRecord, RunRecord
from curation.report.rows import Judged
from curation.trust.parts import FIT, VALIDATION, part_of

AVERAGED = ("auc", "ece", "brier", "purity_at_n")


def source_part(run: RunRecord, source: Judged, part: int) -> Judged:
    """The labelled source rows of one part (``curation.trust.parts``)."""
    config = TrustConfig.model_validate(run.config["trust"])
    return source.subset(part_of(source.row_ids_N, config, run.seed) == part)


def sets(run: RunRecord, judged: Mapping[str, Judged], pool: GradedSet | None) -> dict[str, GradedSet]:
    """The non-empty sets of rows on which trust is measured: validation rows, and the pool if it is graded."""
    validation = InMemory(judged=source_part(run, judged["source"], VALIDATION), selected={}, seed=run.seed)
    found = {"validation": validation, "pool": pool}
    return {name: rows for name, rows in found.items() if rows is not None and len(rows)}


def evidence(
    run: RunRecord,
    record: GenerationRecord,
    judged: Mapping[str, Judged],
    measured: Mapping[str, GradedSet],
    selected: Mapping[str, pa.Table],
    num_pool: int,
) -> Evidence | None:
    """What the verdict is decided from, of the method's arm or else the first that ranks; ``None`` without such an arm.

    Selections are given by arm (``curation.report.rows.selected_rows``).
    """
    source = judged["source"]
    ranking = (arm for arm in selected if ARMS[arm].ranked and not ARMS[arm].gold and ARMS[arm].trust in source.scores)
    arm = REFERENCE_ARM if REFERENCE_ARM in selected else next(ranking, None)
    if arm is None:
        return None
    trust_M = np.nan_to_num(selected[arm]["trust"].to_numpy().astype(np.float64))
    material = Material(
        arm=arm,
        function=ARMS[arm].trust,
        validation=measured.get("validation"),
        pool=measured.get("pool"),
        fitted=source_part(run, source, FIT),
        source=source,
        selected_trust_M=trust_M,
        num_pool=num_pool,
        chance=chance(run.prepared["source"], run.domain, source.readable.row_ids_N, run.seed),
        shift=record.shift.get("source"),
        seed=run.seed,
        checked=checked(
            run.audits,
            record.index,
            arm,
            record.selections[arm],
            trust=float(trust_M.mean()) if len(trust_M) else 0.0,
            confidence=CONFIDENCE,
        ),
        capped=record.budget.get("max_per_label") is not None,
    )
    return weigh(material)


def trust_tables(
    run: RunRecord,
    record: GenerationRecord,
    judged: Mapping[str, Judged],
    measured: Mapping[str, GradedSet],
    num_pool: int,
) -> Json:
    """The metrics of every trust function: by set, then ``parsed`` and ``all``."""
    result: Json = {"ece_bins": measures.ECE_BINS, "fit": dict(record.trust_fit)}
    fitted = source_part(run, judged["source"], FIT)
    for name, rows in measured.items():
        result[name] = {}
        for view, seen, known in (
            ("parsed", rows.parsed, fitted.readable),
            ("all", rows.all, fitted.unparsed_last),
        ):
            if not len(seen):
                continue
            # There are fewer validation rows than pool rows: take the same share of them.
            num_top = record.n if name == "pool" else _share_of(record.n, num_pool, len(rows))
            result[name][view] = measures.trust_metrics(seen, num_top, _share_right(known), run.seed)
    return result


def regimes(
    run: RunRecord,
    record: GenerationRecord,
    judged: Mapping[str, Judged],
    measured: Mapping[str, GradedSet],
    num_pool: int,
) -> tuple[list[Json], list[Json]]:
    """The reference trust function on the parsed rows of every labelled set, one line per set, and means by regime.

    The function is fitted on one set and evaluated on many. The mean over the sets of a regime is unweighted, as in the
    paper's tables, and covers only sets in which the number is defined.
    """
    probes = run.config["splits"]["probes"]
    named = {"validation": ("ID", measured["validation"])} if "validation" in measured else {}
    for name, probe in probes.items():
        named[name] = (probe["regime"], InMemory(judged=judged[f"probe-{name}"], selected={}, seed=run.seed))
    named |= {"pool": ("pool", measured["pool"])} if "pool" in measured else {}
    constant = _share_right(source_part(run, judged["source"], FIT).readable)
    lines = []
    for name, (regime, rows) in named.items():
        if len(seen := rows.parsed):
            num_top = min(_share_of(record.n, num_pool, len(rows)), len(seen))
            found = measures.regime(seen, REFERENCE_ARM, num_top, constant, run.seed)
            lines.append({"set": name, "regime": regime, **found})
    by_regime = dict.fromkeys(line["regime"] for line in lines if line["regime"] != "pool")
    return lines, [_mean(regime, [line for line in lines if line["regime"] == regime]) for regime in by_regime]


def _mean(regime: str, lines: list[Json]) -> Json:
    means: dict[str, Any] = {"regime": regime, "sets": [line["set"] for line in lines]}
    for name in AVERAGED:
        values = [line[name]["value"] for line in lines if line[name] is not None]
        means[name] = mean(values) if values else None
    return means


def _share_of(n: int, num_pool: int, num_rows: int) -> int:
    """The same share of ``num_rows`` as n is of the pool, at least one."""
    return max(1, round(n / max(num_pool, 1) * num_rows))


def _share_right(rows: Judged) -> float:
    return float(rows.correct_N.mean()) if len(rows) else 0.0
