"""The verdict on a run: use it, use with care, or do not use; decided from its evidence by stated rules.

A rule checks one aspect and may give a finding; the verdict is the level of the gravest finding. The first rules are
in ``curation.report.rules``. ``benchmarks.verdicts`` simulates good and bad runs, and counts false alarms and misses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from pydantic import TypeAdapter

from curation.escaping import quote_text
from curation.features import features
from curation.json_types import Json, JsonView
from curation.metrics import Estimate, compute_finite_share, compute_weighted_mean
from curation.refs import TableRef
from curation.registry import load_code
from curation.report.evidence import CONFIDENCE, Evidence, ReviewedPurity, compute_difference, widen_interval
from curation.report.headline import format_difference, format_number, format_percent
from curation.report.record import ReviewRecord
from curation.report.rules import (
    CARE,
    LEVELS,
    STOP,
    USE,
    Finding,
    Level,
    add_rule,
    find_better_signal,
    is_checked,
    list_measured_sets,
)
from curation.report.rules import RULES as RULES

_EVIDENCE = TypeAdapter(Evidence)
SIGNS: dict[Level, str] = {USE: "✓", CARE: "!", STOP: "✕"}
"""Signs of the levels, shown beside the words so that nothing depends on a colour."""
REPEATED = 0.2
"""Maximum share of labelled or selected rows that repeat a question, without a finding."""
UNREAD, UNSEEN = 0.2, 0.05
"""Maximum shares of the pool's labels that cannot be read, or that no labelled row has, without a finding."""
PROMISE, GREAT_FALL, DROP = 0.05, 0.1, 0.05
"""Maximum excess of mean trust over purity, maximum fall of purity from validation to pool that is not great, and
maximum loss of purity by lower trust in the pool, as shares."""


@add_rule(
    "students",
    "Is the student of ground truth above its base?",
    "Train longer before arms are compared: more rows or epochs, a smaller student.global_batch_size (more optimizer "
    "steps), a higher student.learning_rate; more test rows where the interval is wide.",
)
def _find_no_learning(evidence: Evidence) -> Finding | None:
    student = evidence.gold_student
    if student is None or student.gain.low > 0:
        return None
    trained = [f"{student.rows:,} rows", f"{student.epochs:,} epoch{'s' if student.epochs != 1 else ''}"]
    if student.steps is not None:
        trained.append(f"{student.steps:,} optimizer step{'s' if student.steps != 1 else ''}")
    if student.learning_rate is not None:
        trained.append(f"a learning rate of {student.learning_rate:g}")
    gain = format_difference(student.gain.value, student.gain.low, student.gain.high)
    return CARE, (
        f"these students learned nothing that {student.gain.n:,} test rows show: after {', '.join(trained)} that of "
        f"ground truth differs from its base by {gain}"
    )


@add_rule(
    "repeats",
    f"Do at most {100 * REPEATED:.0f} % of the labelled rows repeat a question?",
    "Label source rows that ask further questions: copies tell nothing new, and each counts once here.",
)
def _find_repeats(evidence: Evidence) -> Finding | None:
    found = evidence.repeats
    if found is None or found.share <= REPEATED:
        return None
    return CARE, (
        f"{format_percent(found.share)} of the labelled rows repeat a question: {found.num_rows:,} rows ask only "
        f"{found.num_questions:,} different ones"
    )


@add_rule(
    "unread",
    f"Can at least {100 - 100 * UNREAD:.0f} % of the pool's labels be read?",
    "Have the answers written as the task's labels are: the prompt's format, teacher.decoding.max_tokens, or for "
    "labels made elsewhere their column.",
)
def _find_unreadable(evidence: Evidence) -> Finding | None:
    found = evidence.unread
    if found is None or found.num_unread <= UNREAD * found.num_rows:
        return None
    shown = ", ".join(quote_text(text) for text in found.writings)
    share = format_percent(found.num_unread / found.num_rows)
    return CARE, f"{share} of the pool's labels cannot be read ({shown}); arms that rank leave these rows out"


@add_rule(
    "unseen",
    f"Are at most {100 * UNSEEN:.0f} % of the pool's labels such that no labelled row has them? (Where labels come "
    "again.)",
    "Label source rows of these classes, and fit again; until then rows with these labels come last.",
)
def _find_never_seen(evidence: Evidence) -> Finding | None:
    found = evidence.unseen
    if found is None or found.num_rows <= max(UNSEEN, found.expected) * found.num_read:
        return None
    return CARE, (
        f"{format_percent(found.num_rows / found.num_read)} of the pool's labels are such that no labelled row has "
        f"them ({found.words}), and trust was never measured on such labels"
    )


@add_rule(
    "near-copies",
    f"Do at most {100 * REPEATED:.0f} % of the selected rows ask nearly the question of another, or hardly more than "
    "among the labelled rows?",
    "Leave near-copies out of the pool (datatrove, text-dedup, Spark), or check 200 selected rows: curate review draw "
    "{directory} --num 200.",
)
def _find_nearly_copied(evidence: Evidence) -> Finding | None:
    found = evidence.near
    if found is None or not found.is_more_than_expected:
        return None
    share = 1 - found.num_questions / found.num_rows
    if share <= REPEATED:
        return None
    return CARE, (
        f"{format_percent(share)} of the selected rows are near-copies: {found.num_rows:,} rows ask only "
        f"{found.num_questions:,} different questions (of {found.num_compared:,} labelled rows "
        f"{format_percent(found.expected)} are near-copies), and foreseen purity counts each question once"
    )


@add_rule(
    "purity",
    "Is the purity in the pool that of validation rows? (By gold labels, or by people.)",
    "Label source rows that are like the pool's, and fit again; compare the rows below.",
)
def _find_purity_fall(evidence: Evidence) -> Finding | None:
    if evidence.validation is None:
        return None
    if evidence.pool is not None:
        after, where = evidence.pool.top, "in the pool"
    elif evidence.checked is not None:
        after, where = evidence.checked.decisive, "in the pool, where people checked it"
    else:
        return None
    before, rows = evidence.validation.top, "validation rows"
    if evidence.is_divided:  # the top does not represent the selected rows: ask validation rows of the same trust
        if evidence.foreseen is None:
            return None
        before, rows = widen_interval(evidence.foreseen.purity), "validation rows of the same trust"
    change = compute_difference(after, before)
    if change.high >= 0:
        return None
    words = f"purity falls from {format_percent(before.value)} on {rows} to {format_percent(after.value)} {where}"
    return (STOP if change.high < -GREAT_FALL else CARE), words


@add_rule(
    "shift",
    "Does a shift of the pool change purity? (Without an audit set or a review: as far as trust foresees it.)",
    "Check 200 selected rows: curate review draw {directory} --num 200.",
)
def _find_shift(evidence: Evidence) -> Finding | None:
    if evidence.pool is not None or is_checked(evidence) or evidence.shift is None:
        return None
    drop = None if evidence.foreseen is None or evidence.is_divided else evidence.foreseen.drop
    if drop is not None and drop.low > DROP:
        points = f"{100 * drop.value:.0f} points of purity"
        return CARE, f"the pool's selected rows are less trusted than validation's, by {points}"
    if evidence.foreign is not None and evidence.foreign["warning"] is not None:
        return CARE, evidence.foreign["warning"]
    if not evidence.shift["differs"]:
        return None
    if evidence.shift["strength"] == "slight" and drop is not None and drop.value <= DROP:
        return None
    inputs = evidence.shift.get("inputs", "hidden states")
    words = f" ({evidence.shift['in_words']})" if evidence.shift["strength"] == "minority" else ""
    differ = f"the pool's {inputs} differ from the labelled rows'{words}"
    return CARE, f"{differ}, and no checked row says whether that matters"


@add_rule(
    "groups",
    "Are labelled rows and the pool's of the same groups, such as users? (Without an audit set or a review.)",
    "If rows of one value are alike, label rows of more values, or check 200 selected rows: curate review draw "
    "{directory} --num 200.",
)
def _find_group_risk(evidence: Evidence) -> Finding | None:
    if evidence.pool is not None or is_checked(evidence) or not evidence.groups:
        return None
    return CARE, "; ".join(found.words for found in evidence.groups) + ", and no checked row says whether that matters"


@add_rule(
    "probability",
    "Is the Brier score below that of a constant?",
    "Read no probability from trust, and set no threshold by it. More labelled source rows or trust.calibration: "
    "isotonic may mend it.",
)
def _find_worse_than_constant(evidence: Evidence) -> Finding | None:
    for where, quality in list_measured_sets(evidence):
        if quality.brier_excess.low > 0:
            return CARE, (
                f"trust is worse than a constant as a probability (Brier score {quality.brier_excess.value:+.3f} "
                f"against it on {where} rows)"
            )
    return None


@add_rule(
    "promise",
    f"Is mean trust at most {100 * PROMISE:.0f} points above the share of right labels, of the most trusted rows and "
    "of those with trust of .5 or more?",
    "Set no threshold by trust. Label more source rows, or take a risk-controlled budget (selection.budget.risk), "
    "which gives a threshold that holds.",
)
def _find_overpromise(evidence: Evidence) -> Finding | None:
    for where, quality in reversed(list_measured_sets(evidence)):
        for rows, trust, right in (
            (f"the most trusted {where} rows", quality.top_trust, quality.top),
            (f"{where} rows that it calls right", quality.believed_trust, quality.believed),
        ):
            if trust - right.high > PROMISE:  # false of NaN
                return CARE, (
                    f"trust promises too much (on average {format_percent(trust)} for {rows}, of which "
                    f"{format_percent(right.value)} are right)"
                )
    found = evidence.checked if evidence.pool is None else None
    if found is not None and found.trust - found.decisive.high > PROMISE:
        return CARE, (
            f"trust promises too much (on average {format_percent(found.trust)} for the selected rows, of which "
            f"people found {format_percent(found.purity.value)} right)"
        )
    return None


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
