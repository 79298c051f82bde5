"""The verdict's rules, in the order in which findings of one level lead; each checks one aspect of the evidence."""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from curation.escaping import quote_text
from curation.metrics import compute_proportion
from curation.metrics.estimates import compute_difference
from curation.report.evidence import CONFIDENCE, FEW_ROWS, Evidence, widen_interval
from curation.report.headline import describe_name, format_difference, format_lead, format_number, format_percent

Level = Literal["use it", "use with care", "do not use"]
Finding = tuple[Level, str] | str
"""A level and words; of words alone the level is "use with care"."""
Find = Callable[[Evidence], Iterator[Finding]]
LEVELS: tuple[Level, Level, Level] = ("use it", "use with care", "do not use")
"""All levels, the gravest last."""
USE, CARE, STOP = LEVELS
FEW_OF_A_CLASS = 20
"""Minimum number of rows of a class: with fewer, an AUC's variance is unknown, and one label may be chance."""
HALF = 0.5
"""Share of right labels below which a selection teaches more wrong labels than right ones."""
WIDE_AUC = 0.2
"""Maximum width of the interval of an AUC that is known well enough: to .1 on either side."""

COLLAPSE = 0.3
"""Maximum distance of a selection's class shares from the pool's, beyond what whole rows need, without a finding."""
REPEATED, UNREAD, UNSEEN = 0.2, 0.2, 0.05
"""Maximum shares, without a finding, of labelled or selected rows that repeat a question, and of the pool's labels that
cannot be read or that no labelled row has."""
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
    """A function that yields findings, of which only the first counts."""


RULES: list[VerdictRule] = []
"""All rules in the order of their definition; among findings of one level, that of the first rule leads."""


def add_rule(name: str, asks: str, mend: str) -> Callable[[Find], Find]:
    """Add the decorated function to the rules."""

    def add(find: Find) -> Find:
        RULES.append(VerdictRule(name, asks, mend, find))
        return find

    return add


@add_rule("selection", "Was anything selected?", "Label more calibration rows, or allow more noise (selection.budget).")
def _find_nothing_selected(evidence: Evidence) -> Iterator[Finding]:
    if not evidence.num_selected:
        yield STOP, "nothing was selected"


@add_rule(
    "signal",
    "Does the 95 % interval of the AUC on parsed rows lie above .5?",
    "Do not train on this selection. Label more source rows, keep further states (teacher.states), or take a stronger "
    "teacher.",
)
def _find_no_signal(evidence: Evidence) -> Iterator[Finding]:
    known = [(where, quality.auc) for where, quality in evidence.measured if quality.auc is not None]
    for where, auc in known[-1:]:  # the pool's, if there is one
        if auc.low <= 0.5:
            words = "is not shown to tell" if auc.high > 0.5 and where == "validation" else "does not tell"
            at, on = (" in the pool", "") if where == "pool" else ("", " on validation rows")
            yield STOP, f"trust {words} right labels from wrong ones{at} (AUC {format_number(auc)}{on})"


@add_rule(
    "chance",
    "Is the teacher above a uniform guess among options or legal answers?",
    "Look at unparsed and wrong rows below: prompt and answer format first, then a stronger teacher.",
)
def _find_chance_level(evidence: Evidence) -> Iterator[Finding]:
    teacher, chance = evidence.teacher, evidence.chance
    if teacher is not None and chance is not None and teacher.low <= chance:
        right, words = format_percent(teacher.value), "below" if teacher.high < chance else "not shown to be above"
        rates = f"{right} of its labels are right, guessing gives {format_percent(chance)}"
        yield STOP, f"the teacher is {words} chance ({rates})"


@add_rule(
    "one label",
    "Did the teacher give more than one label?",
    "Look at what it was asked (curate inspect {directory} gen-0/label-pool): the prompt, the names of the labels, "
    "teacher: {{decoding: {{normalise_options: true}}}} if their lengths differ, then a stronger teacher.",
)
def _find_one_label(evidence: Evidence) -> Iterator[Finding]:
    found = evidence.labels
    if found is not None and found["num_given"] == 1 and found["num_labelled"] >= FEW_OF_A_CLASS:
        yield STOP, f"the teacher gave one label to all {found['num_labelled']:,} rows whose label could be read"


@add_rule("one class", "Does the selection have more than one label?", "{spread}")
def _find_one_class(evidence: Evidence) -> Iterator[Finding]:
    found, num_rows = evidence.labels, evidence.num_selected
    if found is not None and found["num_given"] > 1 == found["num_selected"] and num_rows >= FEW_OF_A_CLASS:
        words = f"all {num_rows:,} rows have one label, of {found['num_given']:,} that the teacher gave"
        yield f"this selection is of one class: {words}"


@add_rule(
    "collapse",
    f"Would at most {100 * COLLAPSE:.0f} % of the rows have to be of other classes for the pool's shares?",
    "{spread}",
)
def _find_collapse(evidence: Evidence) -> Iterator[Finding]:
    found, few = evidence.classes, evidence.num_selected < FEW_OF_A_CLASS
    excess = 0.0 if found is None else found["distance"] - found["least"]
    if found is None or excess <= COLLAPSE or few or any(_find_one_class(evidence)):
        return
    named = [
        f"{name} has {format_percent(share)} of its rows and {format_percent(of_pool)} of the pool, as estimated"
        for name, share, of_pool in (*found["over"], *found["under"])
    ]
    other = "other sets of classes, at the least" if found["is_of_sets"] else "other classes"
    words = f"{format_percent(excess)} of its rows would have to be of {other} ({'; '.join(named)})"
    yield f"this selection has collapsed: {words}"


@add_rule(
    "short options",
    "Are the labels chosen as long as the right ones? (Where options are scored by their whole score.)",
    "Score options by token: teacher: {{decoding: {{normalise_options: true}}}}.",
)
def _find_short_options(evidence: Evidence) -> Iterator[Finding]:
    found = evidence.option_lengths
    if found is not None and found.shorter.low > 0 and found.gain.low > 0:
        yield (
            f"normalise_options: false prefers short labels here (on {found.shorter.n:,} labelled rows the chosen one "
            f"is shorter than the right one by {found.shorter.value:.1f} characters; by the score per character "
            f"{100 * found.gain.value:.0f} points more of the choices are right)"
        )


@add_rule(
    "free signal",
    "Does no free signal (internal confidence, margin, entropy, least or last log-probability) rank the labels better?",
    "Select by it, which needs no gold label: selection: {{arms: [{signal}]}}.",
)
def _find_free_signal(evidence: Evidence) -> Iterator[Finding]:
    if (found := evidence.better_signal) is None:
        return
    quality, lost = dict(evidence.measured).get(found.where), []
    if found.auc is not None and found.auc.high < 0:
        lost.append(f"its AUC is higher by {format_lead(found.auc)}")
    if found.purity.high < 0:
        lost.append(f"the purity of its first {found.num_top:,} rows by {format_lead(found.purity)}")
    num_rows, auc = (found.purity.n, None) if quality is None else (quality.rows, quality.auc)
    names = f"{describe_name(found.signal)} alone ranks the labels better than {describe_name(evidence.arm)}"
    words = f"{names} ({' and '.join(lost)}, on {num_rows:,} parsed {found.where} rows)"
    yield STOP if auc is not None and auc.low <= 0.5 else CARE, words


@add_rule(
    "control",
    "Does no plain classifier of words (TF-IDF and logistic regression), fitted on labelled rows, do better?",
    "Label with such a classifier, or give the teacher more: a stronger model, examples, class names that say what "
    "they mean.",
)
def _find_plain_words(evidence: Evidence) -> Iterator[Finding]:
    found = evidence.control
    if found is not None and compute_difference(found.top, found.trust_top).low > 0:
        yield (
            f"a plain classifier of words, fitted on the same labelled rows, is right on "
            f"{format_percent(found.top.value)} of the {found.top.n:,} that it is surest of; of those that trust puts "
            f"first {format_percent(found.trust_top.value)} are right (held-out rows, {found.accuracy.n:,} in all)"
        )


@add_rule(
    "useful",
    "Are at least half of the selected labels right, and more of them than of the pool's other labels?",
    "Select fewer rows (selection.budget), take a stronger teacher, or look at wrong rows below.",
)
def _find_no_use(evidence: Evidence) -> Iterator[Finding]:
    pool, purity, verb = evidence.pool, evidence.known_purity, "are"
    if purity is None and evidence.foreseen is not None:
        purity, verb = widen_interval(evidence.foreseen.purity), "are foreseen to be"
    if purity is None or not evidence.num_selected:
        return
    if purity.high < HALF:
        yield f"fewer than half of the selected labels {verb} right ({format_percent(purity.value)})"
    if pool is None:
        return
    total = round(pool.rows / pool.drawn)
    right = round(pool.share_right.value * total) - round(pool.top.value * pool.top.n)
    others, right = (round(number * pool.drawn) for number in (total - pool.top.n, right))
    share = compute_proportion(min(max(right, 0), others), others, confidence=CONFIDENCE) if others > 0 else None
    if share is None or compute_difference(pool.top, share).low <= 0:
        mine, every = format_percent(purity.value), format_percent(pool.share_right.value)
        words = f"{mine} of the selected labels are right, {every} of all {pool.rows:,} parsed ones"
        yield f"the selection is not shown to be purer than the pool ({words})"


@add_rule(
    "rows",
    f"Are there {FEW_ROWS} parsed rows outside the fit, and {FEW_OF_A_CLASS} of the rarer "
    f"outcome, and is their AUC known to {WIDE_AUC / 2:g}? (Or {FEW_ROWS} selected rows that people checked.)",
    "Label more source rows, or check 200 selected ones: curate review draw {directory} --num 200.",
)
def _find_few_rows(evidence: Evidence) -> Iterator[Finding]:
    if evidence.is_checked:
        return
    best = max((found for _, found in evidence.measured), key=lambda found: (found.rarer, found.rows), default=None)
    if best is None:
        yield STOP, "there are too few rows to tell: no parsed row outside the fit has a known answer"
        return
    rows, why = f"{best.rows:,} parsed rows outside the fit", None
    if best.rows < FEW_ROWS or best.rarer < FEW_OF_A_CLASS:
        needed = f"{FEW_ROWS} and {FEW_OF_A_CLASS} are needed"
        why = f"{rows} have a known answer, {best.rarer:,} of the rarer outcome; {needed}"
    elif best.auc is not None and best.auc.high - best.auc.low > WIDE_AUC:
        needed = f"an interval of at most {WIDE_AUC:g} is needed"
        why = f"AUC {format_number(best.auc)} on {rows}, {best.rarer:,} of them of the rarer outcome; {needed}"
    if why is not None:
        yield f"there are too few rows to tell ({why})"


@add_rule(
    "students",
    "Is the student of ground truth above its base?",
    "Train longer before arms are compared: more rows or epochs, a smaller student.global_batch_size (more optimizer "
    "steps), a higher student.learning_rate; more test rows where the interval is wide.",
)
def _find_no_learning(evidence: Evidence) -> Iterator[Finding]:
    student = evidence.gold_student
    if student is None or student["gain"]["low"] > 0:
        return
    gain, steps, rate = student["gain"], student["steps"], student["learning_rate"]
    trained = [f"{student['rows']:,} rows", f"{student['epochs']:,} epoch{'s' if student['epochs'] != 1 else ''}"]
    trained += [] if steps is None else [f"{steps:,} optimizer step{'s' if steps != 1 else ''}"]
    trained += [] if rate is None else [f"a learning rate of {rate:g}"]
    differs = format_difference(gain["difference"], gain["low"], gain["high"])
    words = f"after {', '.join(trained)} that of ground truth differs from its base by {differs}"
    yield f"these students learned nothing that {gain['n']:,} test rows show: {words}"


@add_rule(
    "repeats",
    f"Do at most {100 * REPEATED:.0f} % of the labelled rows repeat a question?",
    "Label source rows that ask further questions: copies tell nothing new, and each counts once here.",
)
def _find_repeats(evidence: Evidence) -> Iterator[Finding]:
    found = evidence.repeats
    if found is not None and (share := 1 - found["num_questions"] / max(found["num_rows"], 1)) > REPEATED:
        words = f"{found['num_rows']:,} rows ask only {found['num_questions']:,} different ones"
        yield f"{format_percent(share)} of the labelled rows repeat a question: {words}"


@add_rule(
    "unread",
    f"Can at least {100 - 100 * UNREAD:.0f} % of the pool's labels be read?",
    "Have the answers written as the task's labels are: the prompt's format, teacher.decoding.max_tokens, or for "
    "labels made elsewhere their column.",
)
def _find_unreadable(evidence: Evidence) -> Iterator[Finding]:
    found = evidence.unread
    if found is not None and found["num_unread"] > UNREAD * found["num_rows"]:
        shown = ", ".join(map(quote_text, found["writings"]))
        share = format_percent(found["num_unread"] / found["num_rows"])
        yield f"{share} of the pool's labels cannot be read ({shown}); arms that rank leave these rows out"


@add_rule(
    "unseen",
    f"Are at most {100 * UNSEEN:.0f} % of the pool's labels such that no labelled row has them? (Where labels come "
    "again.)",
    "Label source rows of these classes, and fit again; until then rows with these labels come last.",
)
def _find_never_seen(evidence: Evidence) -> Iterator[Finding]:
    found = evidence.unseen
    if found is not None and found.num_rows > max(UNSEEN, found.expected) * found.num_read:
        words = f"no labelled row has them ({found.words}), and trust was never measured on such labels"
        yield f"{format_percent(found.num_rows / found.num_read)} of the pool's labels are such that {words}"


@add_rule(
    "near-copies",
    f"Do at most {100 * REPEATED:.0f} % of the selected rows ask nearly the question of another, or hardly more than "
    "among the labelled rows?",
    "Leave near-copies out of the pool (datatrove, text-dedup, Spark), or check 200 selected rows: curate review draw "
    "{directory} --num 200.",
)
def _find_nearly_copied(evidence: Evidence) -> Iterator[Finding]:
    found = evidence.near
    if (
        found is not None
        and found.is_more_than_expected
        and (share := 1 - found.num_questions / found.num_rows) > REPEATED
    ):
        yield (
            f"{format_percent(share)} of the selected rows are near-copies: {found.num_rows:,} rows ask only "
            f"{found.num_questions:,} different questions (of {found.num_compared:,} labelled rows "
            f"{format_percent(found.expected)} are near-copies), and foreseen purity counts each question once"
        )


@add_rule(
    "purity",
    "Is the purity in the pool that of validation rows? (By gold labels, or by people.)",
    "Label source rows that are like the pool's, and fit again; compare the rows below.",
)
def _find_purity_fall(evidence: Evidence) -> Iterator[Finding]:
    after = evidence.known_purity
    if evidence.validation is None or after is None:
        return
    before, rows = evidence.validation.top, "validation rows"
    if evidence.is_divided:  # the top does not represent the selected rows: ask validation rows of the same trust
        if evidence.foreseen is None:
            return
        before, rows = widen_interval(evidence.foreseen.purity), "validation rows of the same trust"
    where = "in the pool" if evidence.pool is not None else "in the pool, where people checked it"
    words = f"purity falls from {format_percent(before.value)} on {rows} to {format_percent(after.value)} {where}"
    if (change := compute_difference(after, before)).high < 0:
        yield STOP if change.high < -GREAT_FALL else CARE, words


@add_rule(
    "shift",
    "Does a shift of the pool change purity? (Without an audit set or a review: as far as trust foresees it.)",
    "Check 200 selected rows: curate review draw {directory} --num 200.",
)
def _find_shift(evidence: Evidence) -> Iterator[Finding]:
    shift = evidence.shift
    if evidence.pool is not None or evidence.is_checked or shift is None:
        return
    drop = None if evidence.foreseen is None or evidence.is_divided else evidence.foreseen.drop
    if drop is not None and drop.low > DROP:
        yield f"the pool's selected rows are less trusted than validation's, by {100 * drop.value:.0f} points of purity"
    if evidence.foreign is not None and evidence.foreign["warning"] is not None:
        yield evidence.foreign["warning"]
    if shift["differs"] and (shift["strength"] != "slight" or drop is None or drop.value > DROP):
        words = f" ({shift['in_words']})" if shift["strength"] == "minority" else ""
        differ = f"the pool's {shift.get('inputs', 'hidden states')} differ from the labelled rows'{words}"
        yield f"{differ}, and no checked row says whether that matters"


@add_rule(
    "groups",
    "Are labelled rows and the pool's of the same groups, such as users? (Without an audit set or a review.)",
    "If rows of one value are alike, label rows of more values, or check 200 selected rows: curate review draw "
    "{directory} --num 200.",
)
def _find_group_risk(evidence: Evidence) -> Iterator[Finding]:
    if evidence.pool is None and not evidence.is_checked and evidence.groups:
        words = "; ".join(found.words for found in evidence.groups)
        yield f"{words}, and no checked row says whether that matters"


@add_rule(
    "probability",
    "Is the Brier score below that of a constant?",
    "Read no probability from trust, and set no threshold by it. More labelled source rows or trust.calibration: "
    "isotonic may mend it.",
)
def _find_worse_than_constant(evidence: Evidence) -> Iterator[Finding]:
    for where, quality in evidence.measured:
        if quality.brier_excess.low > 0:
            excess = f"Brier score {quality.brier_excess.value:+.3f} against it on {where} rows"
            yield f"trust is worse than a constant as a probability ({excess})"


@add_rule(
    "promise",
    f"Is mean trust at most {100 * PROMISE:.0f} points above the share of right labels, of the most trusted rows and "
    "of those with trust of .5 or more?",
    "Set no threshold by trust. Label more source rows, or take a risk-controlled budget (selection.budget.risk), "
    "which gives a threshold that holds.",
)
def _find_overpromise(evidence: Evidence) -> Iterator[Finding]:
    claims = []
    for where, quality in reversed(evidence.measured):
        top = f"the most trusted {where} rows", quality.top_trust, quality.top, "{} are right"
        believed = f"{where} rows that it calls right", quality.believed_trust, quality.believed, "{} are right"
        claims += [top, believed]
    if (people := evidence.checked) is not None and evidence.pool is None:
        claims.append(("the selected rows", people.trust, people.decisive, "people found {} right"))
    for rows, trust, share, words in claims:
        if trust - share.high > PROMISE:  # false for NaN
            right = words.format(format_percent(share.value))
            yield f"trust promises too much (on average {format_percent(trust)} for {rows}, of which {right})"
