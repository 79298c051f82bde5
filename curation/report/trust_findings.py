"""Findings of the verdict on trust: its ranking, free signals, its probabilities, and the effect of a shifted pool."""

from curation.metrics import compute_proportion
from curation.report.evidence import CONFIDENCE, Evidence, Quality, compute_difference, widen_interval
from curation.report.headline import describe_name, format_lead, format_number, format_percent
from curation.report.levels import CARE, FEW_OF_A_CLASS, STOP, Finding
from curation.report.rivals import Rival

FEW_ROWS = 100
"""Minimum number of rows; with fewer, a share near one half is not known to within 10 points."""
PROMISE, GREAT_FALL, DROP = 0.05, 0.1, 0.05
"""Maximum excess of mean trust over purity, maximum fall of purity from validation to pool that is not great, and
maximum loss of purity by lower trust in the pool, as shares."""
HALF = 0.5
"""Share of right labels below which a selection teaches more wrong labels than right ones."""
WIDE_AUC = 0.2
"""Maximum width of the interval of an AUC that is known well enough: to .1 on either side."""


def find_nothing_selected(evidence: Evidence) -> Finding | None:
    """Return a finding if the run selected no row."""
    return None if evidence.num_selected else (STOP, "nothing was selected")


def find_no_signal(evidence: Evidence) -> Finding | None:
    """Return a finding if trust is not shown to rank right labels first, in a graded pool or else in validation."""
    if evidence.pool is not None and (auc := evidence.pool.auc) is not None and auc.low <= 0.5:
        return STOP, f"trust does not tell right labels from wrong ones in the pool (AUC {format_number(auc)})"
    ranked = evidence.pool is not None and evidence.pool.auc is not None
    auc = None if ranked or evidence.validation is None else evidence.validation.auc
    if auc is not None and auc.low <= 0.5:
        words = "is not shown to tell" if auc.high > 0.5 else "does not tell"
        return STOP, f"trust {words} right labels from wrong ones (AUC {format_number(auc)} on validation rows)"
    return None


def find_chance_level(evidence: Evidence) -> Finding | None:
    """Return a finding if the teacher is not shown to be better than a uniform guess."""
    teacher, chance = evidence.teacher, evidence.chance
    if teacher is None or chance is None or teacher.low > chance:
        return None
    words = "below" if teacher.high < chance else "not shown to be above"
    return (
        STOP,
        f"the teacher is {words} chance ({format_percent(teacher.value)} of its labels are right, guessing gives "
        f"{format_percent(chance)})",
    )


def free_signal(evidence: Evidence) -> Finding | None:
    """Return a finding if a free signal ranks better than trust, by the simultaneous intervals of ``find_rivals``."""
    found = find_better_signal(evidence)
    if found is None:
        return None
    quality = evidence.pool if found.where == "pool" else evidence.validation
    auc = None if quality is None else quality.auc
    lost = []
    if found.auc is not None and found.auc.high < 0:
        lost.append(f"its AUC is higher by {format_lead(found.auc)}")
    if found.purity.high < 0:
        lost.append(f"the purity of its first {found.num_top:,} rows by {format_lead(found.purity)}")
    num_rows = found.purity.n if quality is None else quality.rows
    return (STOP if auc is not None and auc.low <= 0.5 else CARE), (
        f"{describe_name(found.signal)} alone ranks the labels better than {describe_name(evidence.arm)} "
        f"({' and '.join(lost)}, on {num_rows:,} parsed {found.where} rows)"
    )


def find_better_signal(evidence: Evidence) -> Rival | None:
    """Return a free signal that is shown to rank better than trust, the one with the highest AUC if there are more."""
    better = [rival for rival in evidence.rivals if rival.is_better]
    return min(
        better, key=lambda rival: (0.0 if rival.auc is None else rival.auc.value, rival.purity.value), default=None
    )


def find_no_use(evidence: Evidence) -> Finding | None:
    """Return a finding if purity is below one half, or is not shown to be above that of the rows not selected.

    Purity comes from gold labels of the pool, or else from people, or else from validation rows. The comparison with
    rows that were not selected needs gold labels.
    """
    pool = evidence.pool
    if pool is not None:
        purity = pool.top
    elif evidence.checked is not None:
        purity = evidence.checked.decisive
    elif evidence.foreseen is not None:
        purity = widen_interval(evidence.foreseen.purity)
    else:
        return None
    if not evidence.num_selected:
        return None
    if purity.high < HALF:
        foreseen = "are" if pool is not None or evidence.checked is not None else "are foreseen to be"
        return CARE, f"fewer than half of the selected labels {foreseen} right ({format_percent(purity.value)})"
    if pool is None:
        return None
    right = round(pool.share_right.value * pool.rows) - round(pool.top.value * pool.top.n)
    others = pool.rows - pool.top.n
    if others > 0 and compute_difference(pool.top, compute_proportion(right, others, confidence=CONFIDENCE)).low > 0:
        return None
    return CARE, (
        f"the selection is not shown to be purer than the pool ({format_percent(purity.value)} of the selected labels "
        f"are right, {format_percent(pool.share_right.value)} of all {pool.rows:,} parsed ones)"
    )


def find_few_rows(evidence: Evidence) -> Finding | None:
    """Return a finding if too few rows are outside the fit, unless people checked the selection."""
    if _is_checked(evidence):
        return None
    known = [quality for quality in (evidence.validation, evidence.pool) if quality is not None]
    best = max(known, key=lambda quality: (quality.rarer, quality.rows), default=None)
    if best is None:
        return STOP, "there are too few rows to tell: no parsed row outside the fit has a known answer"
    if best.rows >= FEW_ROWS and best.rarer >= FEW_OF_A_CLASS:
        if best.auc is None or best.auc.high - best.auc.low <= WIDE_AUC:
            return None
        return CARE, (
            f"there are too few rows to tell (AUC {format_number(best.auc)} on {best.rows:,} parsed rows outside the "
            f"fit, {best.rarer:,} of them of the rarer outcome; an interval of at most {WIDE_AUC:g} is needed)"
        )
    return CARE, (
        f"there are too few rows to tell ({best.rows:,} parsed rows outside the fit have a known answer, "
        f"{best.rarer:,} of the rarer outcome; {FEW_ROWS} and {FEW_OF_A_CLASS} are needed)"
    )


def find_worse_than_constant(evidence: Evidence) -> Finding | None:
    """Return a finding if the Brier score of trust is above that of the best constant."""
    for where, quality in list_measured_sets(evidence):
        if quality.brier_excess.low > 0:
            return CARE, (
                f"trust is worse than a constant as a probability (Brier score {quality.brier_excess.value:+.3f} "
                f"against it on {where} rows)"
            )
    return None


def find_overpromise(evidence: Evidence) -> Finding | None:
    """Return a finding if mean trust exceeds the share right, of the top rows or else of all with a trust of .5 on."""
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


def find_purity_fall(evidence: Evidence) -> Finding | None:
    """Return a finding if the selection is less pure than the validation rows that represent it."""
    if evidence.validation is None:
        return None
    if evidence.pool is not None:
        after, where = evidence.pool.top, "in the pool"
    elif evidence.checked is not None:
        after, where = evidence.checked.decisive, "in the pool, where people checked it"
    else:
        return None
    before, rows = evidence.validation.top, "validation rows"
    if evidence.is_divided:  # the top is not: ask validation rows of the same trust
        if evidence.foreseen is None:
            return None
        before, rows = widen_interval(evidence.foreseen.purity), "validation rows of the same trust"
    change = compute_difference(after, before)
    if change.high >= 0:
        return None
    words = f"purity falls from {format_percent(before.value)} on {rows} to {format_percent(after.value)} {where}"
    return (STOP if change.high < -GREAT_FALL else CARE), words


def find_shift(evidence: Evidence) -> Finding | None:
    """Return a finding if pool and labelled rows differ, and neither gold labels nor people checked the pool."""
    if evidence.pool is not None or _is_checked(evidence) or evidence.shift is None:
        return None
    drop = None if evidence.foreseen is None or evidence.is_divided else evidence.foreseen.drop
    if drop is not None and drop.low > DROP:
        return (
            CARE,
            f"the pool's selected rows are less trusted than validation's, by {100 * drop.value:.0f} points of purity",
        )
    if evidence.foreign is not None and evidence.foreign["warning"] is not None:
        return CARE, evidence.foreign["warning"]
    if not evidence.shift["differs"]:
        return None
    if evidence.shift["strength"] == "slight" and drop is not None and drop.value <= DROP:
        return None
    inputs = evidence.shift.get("inputs", "hidden states")
    words = f" ({evidence.shift['in_words']})" if evidence.shift["strength"] == "minority" else ""
    return (
        CARE,
        f"the pool's {inputs} differ from the labelled rows'{words}, and no checked row says whether that matters",
    )


def find_group_risk(evidence: Evidence) -> Finding | None:
    """Return a finding if the pool may have other groups of rows, and neither gold labels nor people checked it."""
    if evidence.pool is not None or _is_checked(evidence) or not evidence.groups:
        return None
    return CARE, "; ".join(found.words for found in evidence.groups) + ", and no checked row says whether that matters"


def _is_checked(evidence: Evidence) -> bool:
    """Return whether people checked enough selected rows to estimate their purity."""
    return evidence.checked is not None and evidence.checked.rows >= FEW_ROWS


def list_measured_sets(evidence: Evidence) -> list[tuple[str, Quality]]:
    """Return the sets of rows on which trust was measured, by name."""
    found = (("validation", evidence.validation), ("pool", evidence.pool))
    return [(where, quality) for where, quality in found if quality is not None]
