"""The verdict on a run: use it, use with care, or do not use; decided from its evidence by stated rules.

A rule of ``curation.report.rules`` checks one aspect and may give a finding; the verdict is the level of the gravest
finding. ``benchmarks.verdicts`` simulates good and bad runs, and counts false alarms and misses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from pydantic import TypeAdapter

from curation.features import features
from curation.json_types import Json, JsonView
from curation.metrics import Estimate, compute_finite_share, compute_weighted_mean
from curation.refs import TableRef
from curation.registry import load_code
from curation.report.evidence import CONFIDENCE, Evidence, ReviewedPurity
from curation.report.headline import format_number, format_percent
from curation.report.record import ReviewRecord
from curation.report.rules import (
    CARE,
    LEVELS,
    RULES,
    STOP,
    USE,
    Level,
    find_better_signal,
    list_measured_sets,
)

_EVIDENCE = TypeAdapter(Evidence)
SIGNS: dict[Level, str] = {USE: "✓", CARE: "!", STOP: "✕"}
"""Signs of the levels, shown beside the words so that nothing depends on a colour."""


@dataclass(frozen=True, kw_only=True)
class ReportVerdict:
    """The verdict of a report: the gravest level, a sentence, and all findings, the gravest first."""

    level: Level
    sign: str
    sentence: str
    findings: Sequence[dict[str, str]]
    """Findings, each with ``rule``, ``level``, ``finding`` and the ``next`` step."""

    def to_json(self) -> Json:
        """Return the verdict as a JSON object."""
        return asdict(self)


def reach_verdict(evidence: Evidence, directory: str) -> ReportVerdict:
    """Return the verdict of all rules; ``directory`` is the run's, for the commands in next steps."""
    found = [(rule, finding) for rule in RULES if (finding := rule.find(evidence)) is not None]
    found.sort(key=lambda item: -LEVELS.index(item[1][0]))
    worst, words = found[0][1] if found else (USE, _praise(evidence))
    if len(found) > 1:
        words += f"; {len(found) - 1} further finding{'s' if len(found) > 2 else ''}"
    advisers = [feature.spread for feature in features().values() if feature.spread is not None]
    texts = (load_code(path)(evidence) for path in advisers if found)
    spread, better = next((text for text in texts if text is not None), ""), find_better_signal(evidence)
    facts = {"directory": directory, "signal": "" if better is None else better.signal, "spread": spread}
    findings = [
        {"rule": rule.name, "level": level, "finding": text, "next": rule.mend.format(**facts)}
        for rule, (level, text) in found
    ]
    return ReportVerdict(level=worst, sign=SIGNS[worst], sentence=f"{worst.capitalize()}: {words}.", findings=findings)


def with_verdict(numbers: JsonView, reviews: Sequence[ReviewRecord], directory: str) -> Json:
    """Return the numbers of a generation with their verdict, which takes people's ``reviews`` into account.

    ``directory`` is the run's, for the commands in next steps.
    """
    found = dict(numbers)
    if (judged := found.pop("judged")) is None:
        return {"verdict": None, **found}
    selection = TableRef.from_json(judged["table"])
    people = find_reviewed_purity(
        reviews, judged["index"], judged["arm"], selection, trust=judged["trust"], confidence=CONFIDENCE
    )
    evidence = replace(_EVIDENCE.validate_python(found["evidence"]), checked=people)
    return {"verdict": reach_verdict(evidence, directory).to_json(), **found, "evidence": evidence.to_json()}


def find_reviewed_purity(
    reviews: Sequence[ReviewRecord], generation: int, arm: str, selection: TableRef, *, trust: float, confidence: float
) -> ReviewedPurity | None:
    """Return a selection's purity by the review that decided the most of its rows; ``None`` if no review is about it.

    A review of an earlier selection of the arm says nothing about this one. ``confidence`` is that of ``decisive``.
    """
    mine = [item for item in reviews if (item.generation, item.arm, item.selection) == (generation, arm, selection)]
    found = [known for review in mine if (known := _compute_purity(review, trust, confidence)) is not None]
    return max(found, key=lambda known: known.rows, default=None)


def _compute_purity(review: ReviewRecord, trust: float, confidence: float) -> ReviewedPurity | None:
    """Return the purity by a review, or ``None`` if people decided no row of a stratum of the selection."""
    strata = [stratum for stratum in review.strata if stratum["selected"]]
    decided = [stratum["answers"]["right"] + stratum["answers"]["wrong"] for stratum in strata]
    if not strata or not all(decided):
        return None
    total = sum(stratum["num_rows"] for stratum in strata)
    weights = [stratum["num_rows"] / total for stratum in strata]

    def purity(**level: float) -> Estimate:
        shares = [
            compute_finite_share(stratum["answers"]["right"], number, stratum["num_rows"], **level)
            for stratum, number in zip(strata, decided, strict=True)
        ]
        return compute_weighted_mean(shares, weights)

    return ReviewedPurity(
        review=review.name,
        rows=sum(decided),
        open=sum(stratum["answers"]["unsure"] + stratum["answers"]["disputed"] for stratum in strata),
        people=len(review.people),
        purity=purity(),
        decisive=purity(confidence=confidence),
        trust=trust,
    )


def find_gravest(verdicts: Sequence[Mapping[str, object] | None]) -> Json | None:
    """Return the gravest verdict of a chain's generations, the last if several are equal; each builds on the former."""
    given = [(index, found) for index, found in enumerate(verdicts) if found is not None]
    if not given:
        return None
    index, worst = max(given, key=lambda item: (LEVELS.index(item[1]["level"]), item[0]))
    return {**worst, "generation": index if len(verdicts) > 1 else None}


def _praise(evidence: Evidence) -> str:
    """Return the evidence in favour of a run without findings, in words."""
    text = "no rule finds anything against it"  # if people alone checked it
    for where, quality in list_measured_sets(evidence):
        if (auc := quality.auc) is not None:  # the pool's comes last
            text = f"trust puts right labels first (AUC {format_number(auc)} on {quality.rows:,} parsed {where} rows)"
    selected = f"of the {evidence.num_selected:,} selected labels"
    if evidence.pool is not None:
        return f"{text}, and {format_percent(evidence.pool.top.value)} {selected} are right"
    if evidence.checked is not None:
        purity = evidence.checked.purity
        share = f"{format_percent(purity.value)} [{100 * purity.low:.0f}, {100 * purity.high:.0f}]"
        return f"{text}, and people found {share} {selected} right ({evidence.checked.rows:,} rows checked)"
    if evidence.foreseen is not None:
        purity = evidence.foreseen.purity
        share = f"{format_percent(purity.value)} [{100 * purity.low:.0f}, {100 * purity.high:.0f}]"
        return f"{text}, and validation foresees that {share} {selected} are right"
    return text
