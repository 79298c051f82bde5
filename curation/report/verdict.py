"""The verdict on a run: use it, use with care, or do not use; decided from its evidence by stated rules.

``RULES`` holds all rules. A rule checks one aspect and may give a finding; the verdict is the level of the gravest
finding. ``benchmarks.verdicts`` simulates good and bad runs, and counts false alarms and misses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from pydantic import TypeAdapter

from curation.json_types import Json, JsonView
from curation.refs import TableRef
from curation.report.class_table import COLLAPSE
from curation.report.control import find_plain_words
from curation.report.evidence import CONFIDENCE, Evidence
from curation.report.headline import format_number, format_percent
from curation.report.label_findings import (
    REPEATED,
    UNREAD,
    UNSEEN,
    describe_spread,
    find_collapse,
    find_copied,
    find_nearly_copied,
    find_never_seen,
    find_one_class,
    find_one_label,
    find_repeats,
    find_short_options,
    find_unreadable,
)
from curation.report.levels import CARE, FEW_OF_A_CLASS, LEVELS, STOP, USE, Level, VerdictRule
from curation.report.people import ReviewRecord, find_reviewed_purity
from curation.report.student_findings import find_no_learning
from curation.report.trust_findings import (
    FEW_ROWS,
    PROMISE,
    WIDE_AUC,
    find_better_signal,
    find_chance_level,
    find_few_rows,
    find_group_risk,
    find_no_signal,
    find_no_use,
    find_nothing_selected,
    find_overpromise,
    find_purity_fall,
    find_shift,
    find_worse_than_constant,
    free_signal,
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
    found: list[tuple[Level, dict[str, str]]] = []
    for rule in RULES:
        if finding := rule.find(evidence):
            level, words = finding
            better = find_better_signal(evidence)
            after = rule.mend.format(
                directory=directory, signal="" if better is None else better.signal, spread=describe_spread(evidence)
            )
            found.append((level, {"rule": rule.name, "level": level, "finding": words, "next": after}))
    found.sort(key=lambda item: -LEVELS.index(item[0]))
    worst = found[0][0] if found else USE
    words = found[0][1]["finding"] if found else _praise(evidence)
    if len(found) > 1:
        words += f"; {len(found) - 1} further finding{'s' if len(found) > 2 else ''}"
    findings = [item for _, item in found]
    return ReportVerdict(level=worst, sign=SIGNS[worst], sentence=f"{worst.capitalize()}: {words}.", findings=findings)


def with_verdict(numbers: JsonView, reviews: Sequence[ReviewRecord], directory: str) -> Json:
    """Return the numbers of a generation with their verdict, which takes people's ``reviews`` into account.

    ``directory`` is the run's, for the commands in next steps.
    """
    found = dict(numbers)
    if (judged := found.pop("judged")) is None:
        return {"verdict": None, **found}
    people = find_reviewed_purity(
        reviews,
        judged["index"],
        judged["arm"],
        TableRef.from_json(judged["table"]),
        trust=judged["trust"],
        confidence=CONFIDENCE,
    )
    evidence = replace(_EVIDENCE.validate_python(found["evidence"]), checked=people)
    return {"verdict": reach_verdict(evidence, directory).to_json(), **found, "evidence": evidence.to_json()}


def find_gravest(verdicts: Sequence[Mapping[str, object] | None]) -> Json | None:
    """Return the gravest verdict of a chain's generations, the last if several are equal; each builds on the former."""
    given = [(index, found) for index, found in enumerate(verdicts) if found is not None]
    if not given:
        return None
    index, worst = max(given, key=lambda item: (LEVELS.index(item[1]["level"]), item[0]))
    return {**worst, "generation": index if len(verdicts) > 1 else None}


def _praise(evidence: Evidence) -> str:
    """Return the evidence in favour of a run without findings, in words."""
    ranked = ((where, quality.rows, quality.auc) for where, quality in reversed(list_measured_sets(evidence)))
    praised = (
        f"trust puts right labels first (AUC {format_number(auc)} on {rows:,} parsed {where} rows)"
        for where, rows, auc in ranked
        if auc is not None
    )
    text = next(praised, "no rule finds anything against it")  # where people alone tell of it
    if evidence.pool is not None:
        return (
            f"{text}, and {format_percent(evidence.pool.top.value)} of the {evidence.num_selected:,} selected "
            "labels are right"
        )
    if evidence.checked is not None:
        found = evidence.checked
        return (
            f"{text}, and people found {format_percent(found.purity.value)} [{100 * found.purity.low:.0f}, "
            f"{100 * found.purity.high:.0f}] of the {evidence.num_selected:,} selected labels right "
            f"({found.rows:,} rows checked)"
        )
    if evidence.foreseen is not None:
        foreseen = evidence.foreseen.purity
        return (
            f"{text}, and validation foresees that {format_percent(foreseen.value)} [{100 * foreseen.low:.0f}, "
            f"{100 * foreseen.high:.0f}] of the {evidence.num_selected:,} selected labels are right"
        )
    return text


RULES: tuple[VerdictRule, ...] = (
    VerdictRule(
        name="selection",
        asks="Was anything selected?",
        find=find_nothing_selected,
        mend="Label more calibration rows, or allow more noise (selection.budget).",
    ),
    VerdictRule(
        name="signal",
        asks="Does the 95 % interval of the AUC on parsed rows lie above .5?",
        find=find_no_signal,
        mend="Do not train on this selection. Label more source rows, keep further states (teacher.states), or take a "
        "stronger teacher.",
    ),
    VerdictRule(
        name="chance",
        asks="Is the teacher above a uniform guess among options or legal answers?",
        find=find_chance_level,
        mend="Look at unparsed and wrong rows below: prompt and answer format first, then a stronger teacher.",
    ),
    VerdictRule(
        name="one label",
        asks="Did the teacher give more than one label?",
        find=find_one_label,
        mend="Look at what it was asked (curate inspect {directory} gen-0/label-pool): the prompt, the names of the "
        "labels, teacher: {{decoding: {{normalise_options: true}}}} if their lengths differ, then a stronger teacher.",
    ),
    VerdictRule(
        name="one class",
        asks="Does the selection have more than one label?",
        find=find_one_class,
        mend="{spread}",
    ),
    VerdictRule(
        name="collapse",
        asks=f"Would at most {100 * COLLAPSE:.0f} % of the rows have to be of other classes for the pool's shares?",
        find=find_collapse,
        mend="{spread}",
    ),
    VerdictRule(
        name="short options",
        asks="Are the labels chosen as long as the right ones? (Where options are scored by their whole score.)",
        find=find_short_options,
        mend="Score options by token: teacher: {{decoding: {{normalise_options: true}}}}.",
    ),
    VerdictRule(
        name="free signal",
        asks="Does no free signal (internal confidence, margin, entropy, least or last log-probability) rank the "
        "labels better?",
        find=free_signal,
        mend="Select by it, which needs no gold label: selection: {{arms: [{signal}]}}.",
    ),
    VerdictRule(
        name="control",
        asks="Does no plain classifier of words (TF-IDF and logistic regression), fitted on labelled rows, do better?",
        find=find_plain_words,
        mend="Label with such a classifier, or give the teacher more: a stronger model, examples, class names that say "
        "what they mean.",
    ),
    VerdictRule(
        name="useful",
        asks="Are at least half of the selected labels right, and more of them than of the pool's other labels?",
        find=find_no_use,
        mend="Select fewer rows (selection.budget), take a stronger teacher, or look at wrong rows below.",
    ),
    VerdictRule(
        name="rows",
        asks=f"Are there {FEW_ROWS} parsed rows outside the fit, and {FEW_OF_A_CLASS} of the rarer "
        f"outcome, and is their AUC known to {WIDE_AUC / 2:g}? (Or {FEW_ROWS} selected rows that people checked.)",
        find=find_few_rows,
        mend="Label more source rows, or check 200 selected ones: curate review draw {directory} --num 200.",
    ),
    VerdictRule(
        name="students",
        asks="Is the student of ground truth above its base?",
        find=find_no_learning,
        mend="Train longer before arms are compared: more rows or epochs, a smaller student.global_batch_size (more "
        "optimizer steps), a higher student.learning_rate; more test rows where the interval is wide.",
    ),
    VerdictRule(
        name="repeats",
        asks=f"Do at most {100 * REPEATED:.0f} % of the labelled rows repeat a question?",
        find=find_repeats,
        mend="Label source rows that ask further questions: copies tell nothing new, and each counts once here.",
    ),
    VerdictRule(
        name="unread",
        asks=f"Can at least {100 - 100 * UNREAD:.0f} % of the pool's labels be read?",
        find=find_unreadable,
        mend="Have the answers written as the task's labels are: the prompt's format, teacher.decoding.max_tokens, or "
        "for labels made elsewhere their column.",
    ),
    VerdictRule(
        name="unseen",
        asks=f"Are at most {100 * UNSEEN:.0f} % of the pool's labels such that no labelled row has them? (Where labels "
        "come again.)",
        find=find_never_seen,
        mend="Label source rows of these classes, and fit again; until then rows with these labels come last "
        "(selection.unseen).",
    ),
    VerdictRule(
        name="copies",
        asks=f"Do at most {100 * REPEATED:.0f} % of the selected rows repeat a question?",
        find=find_copied,
        mend="Select one row of each question, as is the default: leave selection.repeats out.",
    ),
    VerdictRule(
        name="near-copies",
        asks=f"Do at most {100 * REPEATED:.0f} % of the selected rows ask nearly the question of another, or hardly "
        "more than among the labelled rows?",
        find=find_nearly_copied,
        mend="Leave near-copies out of the pool (datatrove, text-dedup, Spark), or check 200 selected rows: curate "
        "review draw {directory} --num 200.",
    ),
    VerdictRule(
        name="purity",
        asks="Is the purity in the pool that of validation rows? (By gold labels, or by people.)",
        find=find_purity_fall,
        mend="Label source rows that are like the pool's, and fit again; compare the rows below.",
    ),
    VerdictRule(
        name="shift",
        asks="Does a shift of the pool change purity? (Without an audit set or a review: as far as trust foresees it.)",
        find=find_shift,
        mend="Check 200 selected rows: curate review draw {directory} --num 200.",
    ),
    VerdictRule(
        name="groups",
        asks="Are labelled rows and the pool's of the same groups, such as users? (Without an audit set or a review.)",
        find=find_group_risk,
        mend="If rows of one value are alike, label rows of more values, or check 200 selected rows: curate review "
        "draw {directory} --num 200.",
    ),
    VerdictRule(
        name="probability",
        asks="Is the Brier score below that of a constant?",
        find=find_worse_than_constant,
        mend="Read no probability from trust, and set no threshold by it. More labelled source rows or "
        "trust.calibration: isotonic may mend it.",
    ),
    VerdictRule(
        name="promise",
        asks=f"Is mean trust at most {100 * PROMISE:.0f} points above the share of right labels, of the most trusted "
        "rows and of those with trust of .5 or more?",
        find=find_overpromise,
        mend="Set no threshold by trust. Label more source rows, or take a risk-controlled budget "
        "(selection.budget.risk), which gives a threshold that holds.",
    ),
)
"""All rules; among findings of one level, that of the first rule leads."""
