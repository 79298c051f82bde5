"""The verdict on a run: use it, use with care, or do not use; decided from its evidence by the rules in ``rules.yaml``.

A rule checks one aspect and may give a finding; the verdict is the level of the gravest finding.
``benchmarks.verdicts`` simulates good and bad runs, and counts false alarms and misses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import yaml
from jinja2 import Template
from pydantic import TypeAdapter

from curation.escaping import quote_text
from curation.features import features
from curation.json_types import Json, JsonView
from curation.metrics import Estimate, compute_finite_share, compute_proportion, compute_weighted_mean
from curation.metrics.estimates import compute_difference
from curation.refs import TableRef
from curation.registry import load_code
from curation.report.evidence import CONFIDENCE, Evidence, ReviewedPurity, widen_interval
from curation.report.headline import WORDS, format_difference, format_percent, join_lines
from curation.report.record import ReviewRecord
from curation.report.rivals import Rival

Level = Literal["use it", "use with care", "do not use"]
USE: Level = "use it"
CARE: Level = "use with care"
STOP: Level = "do not use"
LEVELS: tuple[Level, ...] = (USE, CARE, STOP)
"""All levels, the gravest last."""
SIGNS: dict[Level, str] = {USE: "✓", CARE: "!", STOP: "✕"}
"""Signs of the levels, shown beside the words so that nothing depends on a colour."""
_EVIDENCE = TypeAdapter(Evidence)


class VerdictRule(NamedTuple):
    """A rule of the verdict, which checks one aspect of the evidence."""

    name: str
    asks: str
    """The rule's question, in the words of the page."""
    mend: Template
    """Next step for the user."""
    find: Template
    """Level and finding in words, or nothing but space."""


_SPEC = yaml.safe_load((Path(__file__).parent / "rules.yaml").read_text())
LIMITS: Mapping[str, float] = _SPEC["limits"]
_GLOBALS: Json = {
    "limits": LIMITS,
    "difference": compute_difference,
    "widen": widen_interval,
    "proportion": partial(compute_proportion, confidence=CONFIDENCE),
}
_WORDS = WORDS.overlay()
_WORDS.filters = {
    **WORDS.filters,
    "gain": lambda of: format_difference(of["difference"], of["low"], of["high"]),
    "whole": lambda of: f"{format_percent(of.value)} [{100 * of.low:.0f}, {100 * of.high:.0f}]",
    "quote": quote_text,
}


def _compile(text: str) -> Template:
    return _WORDS.from_string(text, _GLOBALS)


RULES = [
    VerdictRule(
        rule["name"],
        _compile(rule["asks"]).render(),
        _compile(rule["mend"]),
        _compile(rule["find"]),
    )
    for rule in _SPEC["rules"]
]
"""All rules; among findings of one level, that of the first rule leads."""


def find_better_signal(evidence: Evidence) -> Rival | None:
    """Return a free signal that is shown to rank better than trust, the one with the highest AUC if there are more."""
    better = [rival for rival in evidence.rivals if rival.is_better]
    return min(
        better, key=lambda rival: (0.0 if rival.auc is None else rival.auc.value, rival.purity.value), default=None
    )


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
    labels, few = evidence.labels, evidence.num_selected < LIMITS["few_of_a_class"]
    measured = [("validation", evidence.validation), ("pool", evidence.pool)]
    facts: dict[str, Any] = {
        "e": evidence,
        "directory": directory,
        "better": find_better_signal(evidence),
        "measured": [(where, quality) for where, quality in measured if quality is not None],
        "is_checked": evidence.checked is not None and evidence.checked.rows >= LIMITS["few_rows"],
        "is_one_class": labels is not None and labels["num_given"] > 1 and labels["num_selected"] == 1 and not few,
    }

    def say(template: Template) -> str:
        return join_lines(template.render(facts))

    texts = [(rule, text.partition(": ")) for rule in RULES if (text := say(rule.find))]
    found = sorted(texts, key=lambda item: -LEVELS.index(item[1][0]))
    if not found:
        words = say(_compile(_SPEC["praise"]))
        return ReportVerdict(level=USE, sign=SIGNS[USE], sentence=f"Use it: {words}.", findings=[])
    advisers = (load_code(feature.spread) for feature in features().values() if feature.spread is not None)
    facts["spread"] = next((text for advise in advisers if (text := advise(evidence)) is not None), "")
    findings = [
        {"rule": rule.name, "level": level, "finding": text, "next": say(rule.mend)} for rule, (level, _, text) in found
    ]
    worst, words = cast("Level", found[0][1][0]), findings[0]["finding"]
    if len(found) > 1:
        words += f"; {len(found) - 1} further finding{'s' if len(found) > 2 else ''}"
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
