"""The verdict on a run: use it, use with care, or do not use; decided from its evidence by stated rules.

A rule of ``curation.report.rules`` checks one aspect and may give a finding; the verdict is the level of the gravest
finding. ``benchmarks.verdicts`` simulates good and bad runs, and counts false alarms and misses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from typing import NamedTuple

from pydantic import TypeAdapter

from curation import metrics
from curation.features import features
from curation.json_types import Json, JsonView
from curation.refs import TableRef
from curation.registry import load_code
from curation.report.evidence import CONFIDENCE, Evidence, ReviewedPurity
from curation.report.headline import format_number, format_percent
from curation.report.record import ReviewRecord
from curation.report.rules import CARE, LEVELS, RULES, STOP, USE, Level

_EVIDENCE = TypeAdapter(Evidence)
SIGNS: dict[Level, str] = {USE: "✓", CARE: "!", STOP: "✕"}
"""Signs of the levels, shown beside the words so that nothing depends on a colour."""


class ReportVerdict(NamedTuple):
    """The verdict of a report: the gravest level, a sentence, and all findings, the gravest first."""

    level: Level
    sign: str
    sentence: str
    findings: Sequence[dict[str, str]]
    """Findings, each with ``rule``, ``level``, ``finding`` and the ``next`` step."""


def reach_verdict(evidence: Evidence, directory: str) -> ReportVerdict:
    """Return the verdict of all rules; ``directory`` is the run's, for the commands in next steps."""
    found = [(rule, finding) for rule in RULES for finding in islice(rule.find(evidence), 1)]
    judged = [(rule, (CARE, finding) if isinstance(finding, str) else finding) for rule, finding in found]
    judged.sort(key=lambda item: -LEVELS.index(item[1][0]))
    worst, words = judged[0][1] if judged else (USE, _describe_strengths(evidence))
    if len(judged) > 1:
        words += f"; {len(judged) - 1} further finding{'s' if len(judged) > 2 else ''}"
    advisers = [feature.spread for feature in features().values() if feature.spread is not None]
    texts = (load_code(path)(evidence) for path in advisers if judged)
    spread, better = next((text for text in texts if text is not None), ""), evidence.better_signal
    facts = {"directory": directory, "signal": "" if better is None else better.signal, "spread": spread}
    findings = [
        {"rule": rule.name, "level": level, "finding": text, "next": rule.mend.format(**facts)}
        for rule, (level, text) in judged
    ]
    return ReportVerdict(level=worst, sign=SIGNS[worst], sentence=f"{worst.capitalize()}: {words}.", findings=findings)


def with_verdict(numbers: JsonView, reviews: Sequence[ReviewRecord], directory: str) -> Json:
    """Return the numbers of a generation with their verdict, which takes people's ``reviews`` into account.

    ``directory`` is the run's, for the commands in next steps.
    """
    found = dict(numbers)
    if (judged := found.pop("judged")) is None:
        return {"verdict": None, **found}
    selection, index, arm, trust = TableRef.from_json(judged["table"]), judged["index"], judged["arm"], judged["trust"]
    people = find_reviewed_purity(reviews, index, arm, selection, trust)
    evidence = replace(_EVIDENCE.validate_python(found["evidence"]), checked=people)
    return {"verdict": reach_verdict(evidence, directory)._asdict(), **found, "evidence": asdict(evidence)}


def find_reviewed_purity(
    reviews: Sequence[ReviewRecord], generation: int, arm: str, selection: TableRef, trust: float
) -> ReviewedPurity | None:
    """Return a selection's purity by the review that decided the most of its rows; ``None`` if no review is about it.

    Reviews of an earlier selection of the arm are skipped, and those in which people decided no row of some stratum of
    the selection. ``trust`` is the mean trust of the selected rows.
    """
    found = []
    for review in reviews:
        strata = [stratum for stratum in review.strata if stratum["selected"]]
        answers = [stratum["answers"] for stratum in strata]
        decided = [counts["right"] + counts["wrong"] for counts in answers]
        is_mine = (review.generation, review.arm, review.selection) == (generation, arm, selection)
        if not is_mine or not strata or not all(decided):
            continue
        sizes = [stratum["num_rows"] for stratum in strata]
        drawn = [*zip(answers, decided, sizes, strict=True)]
        purity, decisive = (
            metrics.compute_weighted_mean(
                [metrics.compute_finite_share(counts["right"], n, size, confidence=level) for counts, n, size in drawn],
                [size / sum(sizes) for size in sizes],
            )
            for level in (metrics.CONFIDENCE, CONFIDENCE)
        )
        found.append(
            ReviewedPurity(
                review=review.name,
                rows=sum(decided),
                open=sum(counts["unsure"] for counts in answers),
                people=len(review.people),
                purity=purity,
                decisive=decisive,
                trust=trust,
            )
        )
    return max(found, key=lambda known: known.rows, default=None)


def find_gravest(verdicts: Sequence[Mapping[str, object] | None]) -> Json | None:
    """Return the gravest verdict of a chain's generations, the last of several equal ones."""
    known = [(index, found) for index, found in enumerate(verdicts) if found is not None]
    if not known:
        return None
    index, worst = max(known, key=lambda item: (LEVELS.index(item[1]["level"]), item[0]))
    return {**worst, "generation": index if len(verdicts) > 1 else None}


def _describe_strengths(evidence: Evidence) -> str:
    """Return the evidence in favour of a run without findings, in words."""
    text = "no rule finds anything against it"  # kept if only people checked the labels
    for where, quality in evidence.measured:
        if (auc := quality.auc) is not None:  # that of the pool comes last and is kept
            text = f"trust puts right labels first (AUC {format_number(auc)} on {quality.rows:,} parsed {where} rows)"
    selected = f"of the {evidence.num_selected:,} selected labels"
    if evidence.pool is not None:
        return f"{text}, and {format_percent(evidence.pool.top.value)} {selected} are right"
    found = evidence.checked or evidence.foreseen
    if found is None:
        return text
    share = f"{format_percent(found.purity.value)} [{100 * found.purity.low:.0f}, {100 * found.purity.high:.0f}]"
    if isinstance(found, ReviewedPurity):
        return f"{text}, and people found {share} {selected} right ({found.rows:,} rows checked)"
    return f"{text}, and validation foresees that {share} {selected} are right"
