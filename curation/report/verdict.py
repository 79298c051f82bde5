"""The verdict on a run: use it, use with care, or do not use; decided from its evidence by stated rules.

``RULES`` holds all of them. A rule looks at one thing, and either has nothing to say or gives a finding; the verdict is
that of the gravest finding. Healthy and sick runs are simulated in ``benchmarks.verdicts``, which counts false alarms
and misses.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from curation.metrics import Estimate, proportion
from curation.report.class_table import COLLAPSE
from curation.report.evidence import CONFIDENCE, Evidence, Quality, difference, widened
from curation.report.headline import in_words, less, number, percent
from curation.report.label_findings import REPEATED, collapsed, one_class, one_label, repeats, short_options, spread
from curation.report.levels import CARE, FEW_OF_A_CLASS, LEVELS, STOP, USE, Finding, Level, Rule
from curation.report.rivals import Rival
from curation.report.student_findings import learned_nothing

SIGNS: dict[Level, str] = {USE: "✓", CARE: "!", STOP: "✕"}
"""Beside the words, so that nothing depends on a colour."""

FEW_ROWS = 100
"""The fewest rows: of fewer, a share near one half is not known to 10 points."""
PROMISE, GREAT_FALL, DROP = 0.05, 0.1, 0.05
"""In shares: how far trust may promise too much, what fall of purity from validation to pool is great, and what the
pool's trust may take away from the purity."""
HALF = 0.5
"""The share of right labels below which a selection teaches more wrong than right."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The gravest level of the findings, a sentence, and the findings themselves, the gravest first."""

    level: Level
    sign: str
    sentence: str
    findings: Sequence[dict[str, str]]
    """``rule``, ``level``, ``finding`` and ``next`` each."""

    def to_json(self) -> dict[str, Any]:
        """The verdict as a JSON object."""
        return asdict(self)


def verdict(evidence: Evidence, directory: str) -> Verdict:
    """Ask every rule; ``directory`` is the run's, for the commands to give next."""
    found: list[tuple[Level, dict[str, str]]] = []
    for rule in RULES:
        if finding := rule.find(evidence):
            level, words = finding
            better = _better(evidence)
            after = rule.mend.format(
                directory=directory, signal="" if better is None else better.signal, spread=spread(evidence)
            )
            found.append((level, {"rule": rule.name, "level": level, "finding": words, "next": after}))
    found.sort(key=lambda item: -LEVELS.index(item[0]))
    worst = found[0][0] if found else USE
    words = found[0][1]["finding"] if found else _praise(evidence)
    if len(found) > 1:
        words += f"; {len(found) - 1} further finding{'s' if len(found) > 2 else ''}"
    findings = [item for _, item in found]
    return Verdict(level=worst, sign=SIGNS[worst], sentence=f"{worst.capitalize()}: {words}.", findings=findings)


def gravest(verdicts: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The gravest verdict of a chain's generations, of equal ones the last; each generation rests on those before."""
    given = [(index, found) for index, found in enumerate(verdicts) if found is not None]
    if not given:
        return None
    index, worst = max(given, key=lambda item: (LEVELS.index(item[1]["level"]), item[0]))
    return {**worst, "generation": index if len(verdicts) > 1 else None}


def _praise(evidence: Evidence) -> str:
    """Reasons for a run without a finding."""
    ranked = ((where, quality.rows, quality.auc) for where, quality in reversed(_sets(evidence)))
    praised = (
        f"trust puts right labels first (AUC {number(auc)} on {rows:,} parsed {where} rows)"
        for where, rows, auc in ranked
        if auc is not None
    )
    text = next(praised, "no rule finds anything against it")  # where people alone tell of it
    if evidence.pool is not None:
        return (
            f"{text}, and {percent(evidence.pool.top.value)} of the {evidence.num_selected:,} selected labels are right"
        )
    if evidence.checked is not None:
        found = evidence.checked
        return (
            f"{text}, and people found {percent(found.purity.value)} [{100 * found.purity.low:.0f}, "
            f"{100 * found.purity.high:.0f}] of the {evidence.num_selected:,} selected labels right "
            f"({found.rows:,} rows checked)"
        )
    if evidence.foreseen is not None:
        foreseen = evidence.foreseen.purity
        return (
            f"{text}, and validation foresees that {percent(foreseen.value)} [{100 * foreseen.low:.0f}, "
            f"{100 * foreseen.high:.0f}] of the {evidence.num_selected:,} selected labels are right"
        )
    return text


def _nothing(evidence: Evidence) -> Finding | None:
    return None if evidence.num_selected else (STOP, "nothing was selected")


def _signal(evidence: Evidence) -> Finding | None:
    """Validation decides; where the pool's rows are known to be ranked well, validation is only too small."""
    if evidence.pool is not None and (auc := evidence.pool.auc) is not None and auc.low <= 0.5:
        return STOP, f"trust does not tell right labels from wrong ones in the pool (AUC {number(auc)})"
    ranked = evidence.pool is not None and evidence.pool.auc is not None
    auc = None if ranked or evidence.validation is None else evidence.validation.auc
    if auc is not None and auc.low <= 0.5:
        words = "is not shown to tell" if auc.high > 0.5 else "does not tell"
        return STOP, f"trust {words} right labels from wrong ones (AUC {number(auc)} on validation rows)"
    return None


def _chance(evidence: Evidence) -> Finding | None:
    teacher, chance = evidence.teacher, evidence.chance
    if teacher is None or chance is None or teacher.low > chance:
        return None
    words = "below" if teacher.high < chance else "not shown to be above"
    return (
        STOP,
        f"the teacher is {words} chance ({_share(teacher)} of its labels are right, guessing gives {percent(chance)})",
    )


def _free(evidence: Evidence) -> Finding | None:
    """The intervals hold for all free signals together (``curation.report.rivals.rivals_of``)."""
    found = _better(evidence)
    if found is None:
        return None
    quality = evidence.pool if found.where == "pool" else evidence.validation
    auc = None if quality is None else quality.auc
    lost = []
    if found.auc is not None and found.auc.high < 0:
        lost.append(f"its AUC is higher by {less(found.auc)}")
    if found.purity.high < 0:
        lost.append(f"the purity of its first {found.num_top:,} rows by {less(found.purity)}")
    num_rows = found.purity.n if quality is None else quality.rows
    return (STOP if auc is not None and auc.low <= 0.5 else CARE), (
        f"{in_words(found.signal)} alone ranks the labels better than {in_words(evidence.arm)} ({' and '.join(lost)}, "
        f"on {num_rows:,} parsed {found.where} rows)"
    )


def _better(evidence: Evidence) -> Rival | None:
    """The free signal that is shown to rank better than trust; of several the one with the highest AUC."""
    better = [rival for rival in evidence.rivals if rival.is_better]
    return min(better, key=lambda rival: (_value(rival.auc), rival.purity.value), default=None)


def _useful(evidence: Evidence) -> Finding | None:
    """The upper end of the interval has to reach one half; the purity has to be shown to be above the other rows'.

    Gold labels of the pool tell of the selection before people do, and people before validation. Only gold labels tell
    what the rows are worth that were not selected.
    """
    pool = evidence.pool
    if pool is not None:
        purity = pool.top
    elif evidence.checked is not None:
        purity = evidence.checked.decisive
    elif evidence.foreseen is not None:
        purity = widened(evidence.foreseen.purity)
    else:
        return None
    if not evidence.num_selected:
        return None
    if purity.high < HALF:
        foreseen = "are" if pool is not None or evidence.checked is not None else "are foreseen to be"
        return CARE, f"fewer than half of the selected labels {foreseen} right ({percent(purity.value)})"
    if pool is None:
        return None
    right = round(pool.share_right.value * pool.rows) - round(pool.top.value * pool.top.n)
    others = pool.rows - pool.top.n
    if others > 0 and difference(pool.top, proportion(right, others, confidence=CONFIDENCE)).low > 0:
        return None
    return CARE, (
        f"the selection is not shown to be purer than the pool ({percent(purity.value)} of the selected labels are "
        f"right, {percent(pool.share_right.value)} of all {pool.rows:,} parsed ones)"
    )


def _few(evidence: Evidence) -> Finding | None:
    if _checked(evidence):
        return None
    known = [quality for quality in (evidence.validation, evidence.pool) if quality is not None]
    best = max(known, key=lambda quality: (quality.rarer, quality.rows), default=None)
    if best is None:
        return STOP, "there are too few rows to tell: no parsed row outside the fit has a known answer"
    if best.rows >= FEW_ROWS and best.rarer >= FEW_OF_A_CLASS:
        return None
    return CARE, (
        f"there are too few rows to tell ({best.rows:,} parsed rows outside the fit have a known answer, "
        f"{best.rarer:,} of the rarer outcome; {FEW_ROWS} and {FEW_OF_A_CLASS} are needed)"
    )


def _probability(evidence: Evidence) -> Finding | None:
    for where, quality in _sets(evidence):
        if quality.brier_excess.low > 0:
            return CARE, (
                f"trust is worse than a constant as a probability (Brier score {quality.brier_excess.value:+.3f} "
                f"against it on {where} rows)"
            )
    return None


def _promise(evidence: Evidence) -> Finding | None:
    """The selected rows first; then all that trust calls right, where there are more rows to tell."""
    for where, quality in reversed(_sets(evidence)):
        for rows, trust, right in (
            (f"the most trusted {where} rows", quality.top_trust, quality.top),
            (f"{where} rows that it calls right", quality.believed_trust, quality.believed),
        ):
            if trust - right.high > PROMISE:  # false of NaN
                return CARE, (
                    f"trust promises too much (on average {percent(trust)} for {rows}, of which {percent(right.value)} "
                    "are right)"
                )
    found = evidence.checked if evidence.pool is None else None
    if found is not None and found.trust - found.decisive.high > PROMISE:
        return CARE, (
            f"trust promises too much (on average {percent(found.trust)} for the selected rows, of which people found "
            f"{percent(found.purity.value)} right)"
        )
    return None


def _fall(evidence: Evidence) -> Finding | None:
    if evidence.validation is None:
        return None
    if evidence.pool is not None:
        after, where = evidence.pool.top, "in the pool"
    elif evidence.checked is not None:
        after, where = evidence.checked.decisive, "in the pool, where people checked it"
    else:
        return None
    before, rows = evidence.validation.top, "validation rows"
    if evidence.capped:  # the top has no cap: ask validation rows of the same trust
        if evidence.foreseen is None:
            return None
        before, rows = widened(evidence.foreseen.purity), "validation rows of the same trust"
    change = difference(after, before)
    if change.high >= 0:
        return None
    words = f"purity falls from {percent(before.value)} on {rows} to {percent(after.value)} {where}"
    return (STOP if change.high < -GREAT_FALL else CARE), words


def _shift(evidence: Evidence) -> Finding | None:
    """Only without an audit: where gold labels or people tell of the pool, purity and calibration there decide."""
    if evidence.pool is not None or _checked(evidence) or evidence.shift is None:
        return None
    drop = None if evidence.foreseen is None or evidence.capped else evidence.foreseen.drop
    if drop is not None and drop.low > DROP:
        return (
            CARE,
            f"the pool's selected rows are less trusted than validation's, by {100 * drop.value:.0f} points of purity",
        )
    if not evidence.shift["differs"]:
        return None
    if evidence.shift["strength"] == "slight" and drop is not None and drop.value <= DROP:
        return None
    return CARE, "the pool's hidden states differ from the labelled rows', and no checked row says whether that matters"


RULES: tuple[Rule, ...] = (
    Rule(
        name="selection",
        asks="Was anything selected?",
        find=_nothing,
        mend="Label more calibration rows, or allow more noise (selection.budget).",
    ),
    Rule(
        name="signal",
        asks="Does the 95 % interval of the AUC on parsed rows lie above .5?",
        find=_signal,
        mend="Do not train on this selection. Label more source rows, keep further states (teacher.states), or take a "
        "stronger teacher.",
    ),
    Rule(
        name="chance",
        asks="Is the teacher above a uniform guess among options or legal answers?",
        find=_chance,
        mend="Look at unparsed and wrong rows below: prompt and answer format first, then a stronger teacher.",
    ),
    Rule(
        name="one label",
        asks="Did the teacher give more than one label?",
        find=one_label,
        mend="Look at what it was asked (curate inspect {directory} gen-0/label-pool): the prompt, the names of the "
        "labels, teacher: {{decoding: {{normalise_options: true}}}} if their lengths differ, then a stronger teacher.",
    ),
    Rule(
        name="one class",
        asks="Does the selection have more than one label?",
        find=one_class,
        mend="{spread}",
    ),
    Rule(
        name="collapse",
        asks=f"Would at most {100 * COLLAPSE:.0f} % of the rows have to be of other classes for the pool's shares?",
        find=collapsed,
        mend="{spread}",
    ),
    Rule(
        name="short options",
        asks="Are the labels chosen as long as the right ones? (Where options are scored by their whole score.)",
        find=short_options,
        mend="Score options by token: teacher: {{decoding: {{normalise_options: true}}}}.",
    ),
    Rule(
        name="free signal",
        asks="Does no free signal (internal confidence, margin, entropy, least or last log-probability) rank the "
        "labels better?",
        find=_free,
        mend="Select by it, which needs no gold label: selection: {{arms: [{signal}]}}.",
    ),
    Rule(
        name="useful",
        asks="Are at least half of the selected labels right, and more of them than of the pool's other labels?",
        find=_useful,
        mend="Select fewer rows (selection.budget), take a stronger teacher, or look at wrong rows below.",
    ),
    Rule(
        name="rows",
        asks=f"Are there {FEW_ROWS} parsed rows outside the fit, and {FEW_OF_A_CLASS} of the rarer "
        f"outcome? (Or {FEW_ROWS} selected rows that people checked.)",
        find=_few,
        mend="Label more source rows, or check 200 selected ones: curate audit draw {directory} --num 200.",
    ),
    Rule(
        name="students",
        asks="Is the student of ground truth above its base?",
        find=learned_nothing,
        mend="Train longer before arms are compared: more rows or epochs, a smaller student.global_batch_size (more "
        "optimizer steps), a higher student.learning_rate; more test rows where the interval is wide.",
    ),
    Rule(
        name="repeats",
        asks=f"Do at most {100 * REPEATED:.0f} % of the labelled rows repeat a question?",
        find=repeats,
        mend="Label source rows that ask further questions: copies tell nothing new, and each counts once here.",
    ),
    Rule(
        name="purity",
        asks="Is the purity in the pool that of validation rows? (By gold labels, or by people.)",
        find=_fall,
        mend="Label source rows that are like the pool's, and fit again; compare the rows below.",
    ),
    Rule(
        name="shift",
        asks="Does a shift of the pool change purity? (Without an audit: as far as trust foresees it.)",
        find=_shift,
        mend="Check 200 selected rows: curate audit draw {directory} --num 200.",
    ),
    Rule(
        name="probability",
        asks="Is the Brier score below that of a constant?",
        find=_probability,
        mend="Read no probability from trust, and set no threshold by it. More labelled source rows or "
        "trust.calibration: isotonic may mend it.",
    ),
    Rule(
        name="promise",
        asks=f"Is mean trust at most {100 * PROMISE:.0f} points above the share of right labels, of the most trusted "
        "rows and of those with trust of .5 or more?",
        find=_promise,
        mend="Set no threshold by trust. Label more source rows, or take a risk-controlled budget "
        "(selection.budget.risk), which gives a threshold that holds.",
    ),
)
"""The rules; of findings of one level, the first leads."""


def _checked(evidence: Evidence) -> bool:
    """Whether people checked enough selected rows to tell their purity."""
    return evidence.checked is not None and evidence.checked.rows >= FEW_ROWS


def _sets(evidence: Evidence) -> list[tuple[str, Quality]]:
    found = (("validation", evidence.validation), ("pool", evidence.pool))
    return [(where, quality) for where, quality in found if quality is not None]


def _value(estimate: Estimate | None) -> float:
    return 0.0 if estimate is None else estimate.value


def _share(estimate: Estimate) -> str:
    return percent(estimate.value)
