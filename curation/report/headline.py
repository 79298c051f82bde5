"""The result of a run, in two or three sentences."""

from collections.abc import Mapping

from curation.arms import ARMS, REFERENCE_ARM
from curation.json_types import JsonView
from curation.metrics import Estimate
from curation.report.record import BASE, TEACHER

ORACLES = {
    "oracle": "the number of right weak labels, capped",
    "fit_purity": "the number of right weak labels times the purity on the fit set, or the probe that is named",
}


def format_percent(value: float) -> str:
    """Return a share as a percentage with one decimal and a non-breaking space."""
    return f"{100 * value:.1f}\u00a0%"


def format_points(value: float) -> str:
    """Return a difference of shares in percentage points, signed."""
    return f"{100 * value:+.1f}".replace("-", "\u2212")


def format_difference(value: float, low: float, high: float) -> str:
    """Return a difference of shares in points, its 95 % interval in parentheses."""
    return f"{format_points(value)} points ({format_points(low)} to {format_points(high)})"


def with_interval(estimate: JsonView) -> str:
    """Return an estimate as a percentage, its 95 % interval in brackets."""
    return f"{format_percent(estimate['value'])} [{100 * estimate['low']:.1f}, {100 * estimate['high']:.1f}]"


def format_p_value(value: float) -> str:
    """Return a p-value in words: ``p = 0.03``, ``p < 0.001``."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"


def describe_results(generation: JsonView) -> list[str]:
    """Return sentences on the selection, the student and its teacher, and on what was not measured."""
    arms = {arm["name"]: arm for arm in generation["arms"]}
    main = arms.get(REFERENCE_ARM) or next(iter(arms.values()), None)
    if main is None:
        return []
    sentences = [
        _describe_selection(generation, main, arms),
        *_describe_student(generation, main, arms.get("ground_truth")),
        *_describe_best_decoding(generation, main),
    ]
    for student in generation["students"]:
        own = next(arm for arm in student["arms"] if arm["name"] == main["name"])
        if own["accuracy"] is None:
            continue
        text = f"On the same rows the student {student['name']} answers {with_interval(own['accuracy'])} right"
        if student["base"] is not None:
            text += f", its base {with_interval(student['base'])}"
        if own["recovery"] is not None:
            text += f", a recovery of {own['recovery']:.2f} against its own ground truth"
        sentences.append(text + ".")
    return sentences


MODELS = {TEACHER: "weak teacher", BASE: "student's base"}
"""Words for tested models that are not arms."""
CONTROLS = {"naive_parsed": "a uniform draw of parsed labels", "naive": "a uniform draw of all labels"}
"""Arms that select without trust, in words."""


def _describe_selection(generation: JsonView, main: JsonView, arms: Mapping[str, JsonView]) -> str:
    pool = f"of {generation['num_pool']:,} labelled pool rows"
    if not main["num_selected"]:
        return f"Nothing was selected {pool}: no threshold could be certified."
    text = f"{main['num_selected']:,} {pool} were selected by {name_of(main)}"
    if generation["budget_is_oracle"]:
        text += f" (the count is an oracle's: {ORACLES.get(rule := generation['budget']['rule'], rule)})"
    if main["purity"] is None:
        return text + "; without an audit set nobody knows how many of their labels are right."
    text += f": {with_interval(main['purity'])} of their labels are right"
    controls = [
        f"{with_interval(control['purity'])} with {words}"
        + (", of which unparsed ones count as wrong" if control["num_unparsed"] else "")
        for name, words in CONTROLS.items()
        if (control := arms.get(name)) is not None and control is not main and control["purity"] is not None
    ]
    return text + (f", against {' and '.join(controls)}" if controls else "") + "."


def _describe_student(generation: JsonView, main: JsonView, truth: JsonView | None) -> list[str]:
    if main["accuracy"] is None:
        return ["No student was trained."] if generation["student_base"] is None else ["No student was tested."]
    accuracy = main["accuracy"]
    text = f"The student trained on them answers {with_interval(accuracy)} of {accuracy['n']:,} test rows right"
    if truth is not None and truth is not main and truth["accuracy"] is not None:
        if main["withheld"] is not None:
            text += f"; trained on gold labels, {with_interval(truth['accuracy'])}, which gives no verdict, since "
            return [text + main["withheld"] + ".", *_describe_weak_to_strong(generation, main)]
        text += f"; trained on as many gold labels, {with_interval(truth['accuracy'])}"
        if main["verdict"] is not None:
            text += f" ({main['verdict']}, {format_p_value(main['p_value_vs_ground_truth'])})"
    return [text + ".", *_describe_weak_to_strong(generation, main)]


def _describe_weak_to_strong(generation: JsonView, main: JsonView) -> list[str]:
    teacher, pair = generation["teacher"]["test"], main["against_teacher"]
    if teacher is None or pair is None:
        return []
    gap = _format_pair(pair)
    if generation["asked_unlike"] is not None:
        return [
            f"Against its teacher, tested in the same way ({with_interval(teacher)}): {gap}. This says nothing about "
            f"the labels that it learned from: {generation['asked_unlike']}."
        ]
    if main["weak_to_strong"]:
        text, base = f"It passes its weak teacher ({with_interval(teacher)}) by {gap}", main["against_base"]
        if base is None or base["low"] > 0:
            return [f"{text}: weak-to-strong."]
        text = f"{text}, but its base before the training answers {with_interval(generation['base'])}"
        return [f"{text}: the training is not shown to help ({_format_pair(base)})."]
    if pair["high"] < 0:
        return [f"It stays below its teacher ({with_interval(teacher)}): {gap}. This is not a weak-to-strong result."]
    return [f"Against its teacher ({with_interval(teacher)}): {gap}. It is not shown to pass the teacher."]


def _format_pair(pair: JsonView) -> str:
    return f"{format_points(pair['difference'])} points [{format_points(pair['low'])}, {format_points(pair['high'])}]"


def _describe_best_decoding(generation: JsonView, main: JsonView) -> list[str]:
    """Return a sentence on the best of several decodings, which the other sentences do not use, if there is one."""
    found = generation["decodings"]
    best = next((model["best"] for model in found["models"] if model["name"] == main["name"]), None) if found else None
    if best is None:
        return []
    words = {item["name"]: item["words"] for item in found["decodings"]}
    first = next(iter(words.values()))
    return [
        f"These are accuracies of the main decoding ({first}); the student's {found['best_is']}, is "
        f"{with_interval(best)} ({words[best['decoding']]})."
    ]


def name_of(arm: JsonView) -> str:
    """Return an arm's name in words."""
    return describe_name(arm["name"])


def describe_name(name: str) -> str:
    """Return the words for an arm, a trust function or a tested model."""
    return ARMS[name].words if name in ARMS else MODELS.get(name, name.replace("_", " "))


def format_number(estimate: Estimate) -> str:
    """Return a number with its interval."""
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def format_lead(estimate: Estimate) -> str:
    """Return a negative difference as the lead of the other side, in percentage points with its interval."""
    value, low, high = (100 * -bound for bound in (estimate.value, estimate.high, estimate.low))
    return f"{value:.1f} points [{low:.1f}, {high:.1f}]"
