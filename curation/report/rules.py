"""The verdict's rules, in the order in which findings of one level lead; each checks one aspect of the evidence."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from curation.escaping import quote_text
from curation.metrics import compute_proportion
from curation.metrics.estimates import compute_difference
from curation.report.evidence import CONFIDENCE, Evidence, Quality, widen_interval
from curation.report.headline import describe_name, format_difference, format_lead, format_number, format_percent
from curation.report.rivals import Rival

Level = Literal["use it", "use with care", "do not use"]
Finding = tuple[Level, str]
Find = Callable[[Evidence], Finding | None]

USE: Level = "use it"
CARE: Level = "use with care"
STOP: Level = "do not use"
LEVELS: tuple[Level, ...] = (USE, CARE, STOP)
"""All levels, the gravest last."""
FEW_OF_A_CLASS = 20
"""Minimum number of rows of a class: with fewer, an AUC's variance is unknown, and one label may be chance."""
FEW_ROWS = 100
"""Minimum number of rows; with fewer, a share near one half is not known to within 10 points."""
HALF = 0.5
"""Share of right labels below which a selection teaches more wrong labels than right ones."""
WIDE_AUC = 0.2
"""Maximum width of the interval of an AUC that is known well enough: to .1 on either side."""

COLLAPSE = 0.3
"""Maximum distance of a selection's class shares from the pool's, beyond what whole rows need, without a finding."""
REPEATED = 0.2
"""Maximum share of labelled or selected rows that repeat a question, without a finding."""
UNREAD, UNSEEN = 0.2, 0.05
"""Maximum shares of the pool's labels that cannot be read, or that no labelled row has, without a finding."""
PROMISE, GREAT_FALL, DROP = 0.05, 0.1, 0.05
"""Maximum excess of mean trust over purity, maximum fall of purity from validation to pool that is not great, and
maximum loss of purity by lower trust in the pool, as shares."""


class VerdictRule(NamedTuple):
    """A rule of the verdict, which checks one aspect of the evidence."""

    name: str
    asks: str
    """The rule's question, in the words of the page."""
    mend: str
    """Next step for the user; ``{directory}`` is the run's, ``{signal}`` the free signal that ranks better than
    trust, ``{spread}`` the sentence that gives a selection more labels."""
    find: Find
    """A function that returns the level and the finding in words, or ``None`` if there is no finding."""


RULES: list[VerdictRule] = []
"""All rules in the order of their definition; among findings of one level, that of the first rule leads."""


def add_rule(name: str, asks: str, mend: str) -> Callable[[Find], Find]:
    """Add the decorated function to the rules."""

    def add(find: Find) -> Find:
        RULES.append(VerdictRule(name, asks, mend, find))
        return find

    return add


@add_rule("selection", "Was anything selected?", "Label more calibration rows, or allow more noise (selection.budget).")
def _find_nothing_selected(evidence: Evidence) -> Finding | None:
    return None if evidence.num_selected else (STOP, "nothing was selected")


@add_rule(
    "signal",
    "Does the 95 % interval of the AUC on parsed rows lie above .5?",
    "Do not train on this selection. Label more source rows, keep further states (teacher.states), or take a stronger "
    "teacher.",
)
def _find_no_signal(evidence: Evidence) -> Finding | None:
    if evidence.pool is not None and (auc := evidence.pool.auc) is not None:
        if auc.low > 0.5:
            return None
        return STOP, f"trust does not tell right labels from wrong ones in the pool (AUC {format_number(auc)})"
    auc = None if evidence.validation is None else evidence.validation.auc
    if auc is None or auc.low > 0.5:
        return None
    words = "is not shown to tell" if auc.high > 0.5 else "does not tell"
    return STOP, f"trust {words} right labels from wrong ones (AUC {format_number(auc)} on validation rows)"


@add_rule(
    "chance",
    "Is the teacher above a uniform guess among options or legal answers?",
    "Look at unparsed and wrong rows below: prompt and answer format first, then a stronger teacher.",
)
def _find_chance_level(evidence: Evidence) -> Finding | None:
    teacher, chance = evidence.teacher, evidence.chance
    if teacher is None or chance is None or teacher.low > chance:
        return None
    words = "below" if teacher.high < chance else "not shown to be above"
    return STOP, (
        f"the teacher is {words} chance ({format_percent(teacher.value)} of its labels are right, guessing gives "
        f"{format_percent(chance)})"
    )


@add_rule(
    "one label",
    "Did the teacher give more than one label?",
    "Look at what it was asked (curate inspect {directory} gen-0/label-pool): the prompt, the names of the labels, "
    "teacher: {{decoding: {{normalise_options: true}}}} if their lengths differ, then a stronger teacher.",
)
def _find_one_label(evidence: Evidence) -> Finding | None:
    found = evidence.labels
    if found is None or found["num_given"] != 1 or found["num_labelled"] < FEW_OF_A_CLASS:
        return None
    return STOP, f"the teacher gave one label to all {found['num_labelled']:,} rows whose label could be read"


@add_rule("one class", "Does the selection have more than one label?", "{spread}")
def _find_one_class(evidence: Evidence) -> Finding | None:
    found, num_rows = evidence.labels, evidence.num_selected
    if found is None or found["num_given"] < 2 or found["num_selected"] != 1 or num_rows < FEW_OF_A_CLASS:
        return None
    return CARE, (
        f"this selection is of one class: all {num_rows:,} rows have one label, of {found['num_given']:,} that the "
        "teacher gave"
    )


@add_rule(
    "collapse",
    f"Would at most {100 * COLLAPSE:.0f} % of the rows have to be of other classes for the pool's shares?",
    "{spread}",
)
def _find_collapse(evidence: Evidence) -> Finding | None:
    found = evidence.classes
    few = evidence.num_selected < FEW_OF_A_CLASS
    if found is None or few or _find_one_class(evidence) is not None:
        return None
    if (excess := found["distance"] - found["least"]) <= COLLAPSE:
        return None
    beside = "of the places of selection.quota" if found["basis"] == "given" else "of the pool, as estimated"
    named = [
        f"{name} has {format_percent(share)} of its rows and {format_percent(of_pool)} {beside}"
        for name, share, of_pool in (*found["over"], *found["under"])
    ]
    other = "other sets of classes, at the least" if found["is_of_sets"] else "other classes"
    return CARE, (
        f"this selection has collapsed: {format_percent(excess)} of its rows would have to be of {other} "
        f"({'; '.join(named)})"
    )


@add_rule(
    "short options",
    "Are the labels chosen as long as the right ones? (Where options are scored by their whole score.)",
    "Score options by token: teacher: {{decoding: {{normalise_options: true}}}}.",
)
def _find_short_options(evidence: Evidence) -> Finding | None:
    found = evidence.option_lengths
    if found is None or found.shorter.low <= 0 or found.gain.low <= 0:
        return None
    scores = ", ".join(f"{score:.1f} at {length} characters" for length, score in found.scores)
    return CARE, (
        f"normalise_options: false prefers short labels here (on {found.shorter.n:,} labelled rows the chosen one is "
        f"shorter than the right one by {found.shorter.value:.1f} characters; mean score {scores}; by the score per "
        f"character {100 * found.gain.value:.0f} points more of the choices are right)"
    )


@add_rule(
    "free signal",
    "Does no free signal (internal confidence, margin, entropy, least or last log-probability) rank the labels better?",
    "Select by it, which needs no gold label: selection: {{arms: [{signal}]}}.",
)
def _find_free_signal(evidence: Evidence) -> Finding | None:
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


@add_rule(
    "control",
    "Does no plain classifier of words (TF-IDF and logistic regression), fitted on labelled rows, do better?",
    "Label with such a classifier, or give the teacher more: a stronger model, examples, class names that say what "
    "they mean.",
)
def _find_plain_words(evidence: Evidence) -> Finding | None:
    found = evidence.control
    if found is None or compute_difference(found.top, found.trust_top).low <= 0:
        return None
    return CARE, (
        f"a plain classifier of words, fitted on the same labelled rows, is right on "
        f"{format_percent(found.top.value)} of the {found.top.n:,} that it is surest of; of those that trust puts "
        f"first {format_percent(found.trust_top.value)} are right (held-out rows, {found.accuracy.n:,} in all)"
    )


@add_rule(
    "useful",
    "Are at least half of the selected labels right, and more of them than of the pool's other labels?",
    "Select fewer rows (selection.budget), take a stronger teacher, or look at wrong rows below.",
)
def _find_no_use(evidence: Evidence) -> Finding | None:
    """Take purity from gold labels of the pool, or else from people, or else from validation rows."""
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
    total = round(pool.rows / pool.drawn)
    right = round(pool.share_right.value * total) - round(pool.top.value * pool.top.n)
    others, right = (round(number * pool.drawn) for number in (total - pool.top.n, right))
    share = compute_proportion(min(max(right, 0), others), others, confidence=CONFIDENCE) if others > 0 else None
    if share is not None and compute_difference(pool.top, share).low > 0:
        return None
    return CARE, (
        f"the selection is not shown to be purer than the pool ({format_percent(purity.value)} of the selected labels "
        f"are right, {format_percent(pool.share_right.value)} of all {pool.rows:,} parsed ones)"
    )


@add_rule(
    "rows",
    f"Are there {FEW_ROWS} parsed rows outside the fit, and {FEW_OF_A_CLASS} of the rarer "
    f"outcome, and is their AUC known to {WIDE_AUC / 2:g}? (Or {FEW_ROWS} selected rows that people checked.)",
    "Label more source rows, or check 200 selected ones: curate review draw {directory} --num 200.",
)
def _find_few_rows(evidence: Evidence) -> Finding | None:
    if is_checked(evidence):
        return None
    best = max((x for _, x in list_measured_sets(evidence)), key=lambda x: (x.rarer, x.rows), default=None)
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


def is_checked(evidence: Evidence) -> bool:
    """Return whether people checked enough selected rows to estimate their purity."""
    return evidence.checked is not None and evidence.checked.rows >= FEW_ROWS


def list_measured_sets(evidence: Evidence) -> list[tuple[str, Quality]]:
    """Return the sets of rows on which trust was measured, by name."""
    found = (("validation", evidence.validation), ("pool", evidence.pool))
    return [(where, quality) for where, quality in found if quality is not None]


@add_rule(
    "students",
    "Is the student of ground truth above its base?",
    "Train longer before arms are compared: more rows or epochs, a smaller student.global_batch_size (more optimizer "
    "steps), a higher student.learning_rate; more test rows where the interval is wide.",
)
def _find_no_learning(evidence: Evidence) -> Finding | None:
    student = evidence.gold_student
    if student is None or student["gain"]["low"] > 0:
        return None
    gain, steps, rate = student["gain"], student["steps"], student["learning_rate"]
    trained = [f"{student['rows']:,} rows", f"{student['epochs']:,} epoch{'s' if student['epochs'] != 1 else ''}"]
    if steps is not None:
        trained.append(f"{steps:,} optimizer step{'s' if steps != 1 else ''}")
    if rate is not None:
        trained.append(f"a learning rate of {rate:g}")
    return CARE, (
        f"these students learned nothing that {gain['n']:,} test rows show: after {', '.join(trained)} that of ground "
        f"truth differs from its base by {format_difference(gain['difference'], gain['low'], gain['high'])}"
    )


@add_rule(
    "repeats",
    f"Do at most {100 * REPEATED:.0f} % of the labelled rows repeat a question?",
    "Label source rows that ask further questions: copies tell nothing new, and each counts once here.",
)
def _find_repeats(evidence: Evidence) -> Finding | None:
    found = evidence.repeats
    if found is None or (share := 1 - found["num_questions"] / max(found["num_rows"], 1)) <= REPEATED:
        return None
    return CARE, (
        f"{format_percent(share)} of the labelled rows repeat a question: {found['num_rows']:,} rows ask only "
        f"{found['num_questions']:,} different ones"
    )


@add_rule(
    "unread",
    f"Can at least {100 - 100 * UNREAD:.0f} % of the pool's labels be read?",
    "Have the answers written as the task's labels are: the prompt's format, teacher.decoding.max_tokens, or for "
    "labels made elsewhere their column.",
)
def _find_unreadable(evidence: Evidence) -> Finding | None:
    found = evidence.unread
    if found is None or found["num_unread"] <= UNREAD * found["num_rows"]:
        return None
    shown = ", ".join(map(quote_text, found["writings"]))
    share = format_percent(found["num_unread"] / found["num_rows"])
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
