"""Checks across sections of a run's configuration, for combinations of settings that cannot work."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from curation import label_columns
from curation.arms import ARMS, FREE, find_fitted, find_signals
from curation.config.endpoint import find_unsupported
from curation.config.states import find_generated_problem, parse
from curation.config.teacher import DecodingConfig
from curation.config.trust import refuse_pca
from curation.features import active, iter_found
from curation.registry import METHODS

Run = Any
"""A ``RunConfig``, not typed as such because ``curation.config.run`` imports this module."""
SCORING = ("auto", "transformers", "vllm", "scripted")
"""Backends that score options in pairs, and can subtract baselines from scores."""
CAPABILITIES: Mapping[str, tuple[Callable[[Run], bool], str]] = {
    "states": (lambda run: run.has_states, "hidden states: let a model of this run label, or read labels"),
    "gold": (lambda run: run.splits.audit, "the pool's gold labels: set splits.audit: true"),
    "students": (lambda run: bool(run.generations), "students: add generations"),
    "adapt": (lambda run: run.splits.adapt is not None, "rows to learn the task from: add splits.adapt"),
    "shots": (lambda run: run.splits.shots is not None, "demonstrations: add splits.shots (the paper: five rows)"),
    "test": (lambda run: run.splits.test is not None, "a test split: add splits.test"),
    "calibration": (
        lambda run: run.splits.calibration is not None,
        "labelled rows of the pool's own distribution: add splits.calibration",
    ),
    "option_scores": (
        lambda run: run.teacher.backend in SCORING,
        f"scores of options, which the backends {', '.join(SCORING)} give: set teacher.backend to one of these",
    ),
    "option_sums": (
        lambda run: not any(decoding.normalise_options for decoding in _find_decodings(run).values()),
        "sums of options' log-probabilities: set normalise_options: false in teacher.decoding and under evaluation",
    ),
    "no_steps": (
        lambda run: all(decoding.constrained != "stepwise" for decoding in _find_decodings(run).values()),
        "options that are scored: leave constrained: stepwise out of teacher.decoding and evaluation",
    ),
    "own_options": (
        lambda run: not any(decoding.constrained for decoding in _find_decodings(run).values()),
        "the domain's own options: leave constrained out of teacher.decoding and evaluation",
    ),
    "one_option": (
        lambda run: all(parse(state).rank <= 1 for state in run.teacher.states),
        "states of one answer: leave those of further options out of teacher.states and trust.states",
    ),
}
"""Capabilities that parts of a run may need, by name: a test of the run, and words on what to have and how to get it.
"""
LABELLING = "teacher.decoding"
NUMBERS_ALONE = ("stacked", "fitted_confidence")
"""Fitted trust functions that can read numbers of the labels table alone, without hidden states."""


def iter_problems(run: Run) -> Iterator[str]:
    """Yield each combination of settings that cannot work, with a fix."""
    selection, splits = run.selection, run.splits
    for name, split in splits.named().items():
        if split.source not in run.sources:
            known = ", ".join(sorted(run.sources))
            yield f"splits.{name}.from: {split.source!r} is not one of the sources ({known})"
    yield from _check_inputs(run)
    if run.teacher.given is not None or run.teacher.endpoint is not None:
        yield from _check_elsewhere_labels(run)
    tested = () if splits.test is None else ("test",)
    for key, decoding in _find_decodings(run).items():
        for split in splits.labelled() if key == LABELLING else tested:
            domain = run.domain_of(split)
            if decoding.constrained and not domain.traits.lists_answers:
                yield (
                    f"{key}.constrained: {decoding.constrained}: domain {domain.name} of splits.{split} does not list "
                    "the possible answers of a row; leave it out, or take chess, mcqa that is not generative, or a "
                    "domain with a method candidates (docs/extending.md)"
                )
    measured = selection.budget.purity_split
    if measured is not None and measured not in splits.named():
        known = ", ".join(["source", *splits.probes])
        yield (
            f"selection.budget.fit_purity: {selection.budget.fit_purity!r} is neither source nor a probe of "
            f"splits.probes; known: {known}"
        )
    for who, need in _iter_needs(run):
        has, what = CAPABILITIES[need]
        if not has(run):
            yield f"{who} needs {what}, or leave it out"
    yield from _check_students(run)
    yield from _check_signals(run)
    yield from _check_judge(run)
    yield from iter_found(run, "problems")


def _iter_needs(run: Run) -> Iterator[tuple[str, str]]:
    """Yield each part of a run that needs a capability, by its key or name in words, with the capability's name."""
    selection, budget = run.selection, run.selection.budget
    yield from ((f"the {name} arm", "gold") for name in selection.arms if ARMS[name].oracle)
    for name in selection.used:
        if (signal := ARMS[name].signal) is not None and signal.shots:
            yield f"the {name} arm", "shots"
    if budget.needs_gold:
        yield f"the {budget.rule} budget", "gold"
    if budget.needs_calibration:
        yield f"selection.budget.{budget.rule}", "calibration"
    if run.teacher.adapt is not None:
        yield "teacher.adapt", "adapt"
    if len(run.generations) > 1:
        yield "a chain of generations", "test"
    for name, feature, _ in active(run):
        yield from ((name, need) for need in feature.needs)
    needs = [run.domain_of(split).traits.needs for split in run.splits.named()]
    yield from dict.fromkeys((option, need) for of in needs for option, names in of.items() for need in names)


def _check_inputs(run: Run) -> Iterator[str]:
    """Yield problems of the states and numbers that trust reads: what is read must be stored with the labels."""
    trust, teacher, selection = run.trust, run.teacher, run.selection
    if missing := set(trust.states) - set(teacher.states):
        yield f"trust.states: {', '.join(sorted(missing))} not among teacher.states; add it there"
    for kind in find_fitted(selection.used):
        if missing := set(run.fit_of(kind).states) - {*teacher.states, *run.trust.states}:
            yield f"selection.arms: {kind} reads {', '.join(missing)}; add it to teacher.states"
    refuse_pca(trust, {*selection.used, trust.kind})
    if not trust.search and trust.kind in find_fitted(selection.arms):
        yield (
            f"selection.arms: {trust.kind} is what the arm trust ranks by (trust.kind), so that it would be fitted and "
            "shown twice; leave it out, and name trust"
        )
    if "token_logprobs" in trust.columns and not teacher.token_logprobs:
        yield (
            "trust.columns: token_logprobs is not stored where teacher.token_logprobs is 0; set that to the number of "
            "tokens whose log-probabilities are to be kept, e.g. 16"
        )
    for split in run.splits.labelled():
        domain, constrained = run.domain_of(split), teacher.decoding.constrained
        writes = domain.traits.generates and not constrained
        problem = find_generated_problem(teacher.states, f"splits.{split} of domain {domain.name}")
        if problem is not None and (constrained == "stepwise" or writes):
            yield problem
    given = teacher.given
    if run.domain.given_labels != given:
        yield (
            "domain.given_labels: differs from the columns that teacher names; leave it out, and set backend: given "
            "and completion there"
        )
    columns = (*trust.columns, *(ARMS[arm].trust for arm in selection.used))
    for name, words in label_columns.DOMAIN_NUMBERS.items():
        if name in columns and name not in run.domain_of("source").numbers:
            yield f"{name}: {words}; leave it out"
    known = [] if given is None else list(given.numbers.values())
    for name in columns:
        if label_columns.is_given(name) and name not in known:
            there = "none" if given is None else ", ".join(known)
            yield f"{name}: comes from no column of teacher.confidence (there: {there}); add its column there"


def _check_elsewhere_labels(run: Run) -> Iterator[str]:
    """Yield problems of settings that need a model of this run to label, if labels are given or a server labels."""
    given, endpoint, is_read = run.teacher.given, run.teacher.endpoint, run.teacher.reader is not None
    trust, selection, has = run.trust, run.selection, f"backend {run.teacher.backend} has none"
    for name in selection.used:
        arm = ARMS[name]
        if arm.trust in FREE and not is_read and given is not None:
            yield f"the {name} arm ranks by log-probabilities, and {has}; take {', '.join(given.numbers.values())}"
        if arm.trust in FREE and not is_read and endpoint is not None and not endpoint.top_logprobs:
            yield (
                f"the {name} arm ranks by log-probabilities, and teacher.endpoint.top_logprobs is 0; set that above 0, "
                "leave the arm out, or name a model that reads the answers by teacher.reader"
            )
        if given is not None and arm.signal is not None and arm.signal.asks == "teacher":
            yield f"the {name} arm asks the teacher further questions, and backend given asks no model; leave it out"
        if given is not None and arm.gold and given.grade is not None:
            yield (
                f"the {name} arm trains on gold labels, and teacher.grade says only whether the given ones are right; "
                "leave the arm out, or teacher.grade, where the rows have gold labels"
            )
    kinds = {*find_fitted(selection.used), trust.kind}
    further = sorted(kinds.difference(NUMBERS_ALONE)) or (["search"] if trust.search else [])
    if further and not trust.inputs:
        lacks = "trust.states names none" if is_read else has
        yield (
            f"trust: {further[0]} reads states, and {lacks}; set trust.columns: [{', '.join(run.numbers)}], or leave "
            "trust.kind out"
        )
    if trust.pca is not None and not is_read:
        yield f"trust.pca: joins states, and {has}; leave it out"
    if given is not None and selection.gold_rollouts.source in ("auto", "samples"):
        yield (
            f"selection.gold_rollouts.source: {selection.gold_rollouts.source} may sample the teacher, and backend "
            "given asks no model; set answers or solutions"
        )
    if len(run.generations) > 1:
        asks = "given asks no model" if given is not None else "endpoint asks a server"
        yield (
            "generations: a student that teaches the next generation is asked as teacher says, and backend "
            f"{asks}; give one generation"
        )
    if run.judge is not None and given is not None and given.grade is not None:
        yield "judge: judges labels beside gold ones, and teacher.grade has judged them; leave one of the two out"
    if endpoint is not None and run.splits.test is not None:
        for key, decoding in _find_decodings(run).items():
            if key != LABELLING and (problem := find_unsupported(endpoint, decoding, key)) is not None:
                yield problem


def _find_decodings(run: Run) -> dict[str, DecodingConfig]:
    """Return the decodings of labels and of tests by their configuration keys."""
    also = {f"evaluation.also.{name}": decoding for name, decoding in run.evaluation.also.items()}
    return {LABELLING: run.teacher.decoding, "evaluation.decoding": run.evaluation.decoding, **also}


def _check_students(run: Run) -> Iterator[str]:
    """Yield problems of students whose method differs from the run's, and of chains that cannot work."""
    for index, generation in enumerate(run.generations):
        for name, student in generation.students.items():
            if student.recipe is not None and student.recipe.method != run.student.method:
                yield (
                    f"generations.{index}.students.{name}.recipe.method: {student.recipe.method!r} learns from other "
                    f"selections than student.method {run.student.method!r}, which all students of a run have; leave "
                    "it out, or train it in a run of its own"
                )
    num, shares = len(run.generations), run.num_shares
    if num > shares:
        yield (
            f"chain.shares: {shares} shares of the pool are too few for {num} generations; set {num} or more (other "
            "shares are other rows, so that every generation is done again)"
        )
    for arm in run.chain.arms if num > 1 else ():
        if arm not in run.selection.arms:
            yield f"chain.arms: {arm!r} is not among selection.arms"
    if num > 1 and run.splits.overlap == "report":
        yield (
            "splits.overlap: report keeps questions that are in two splits, so that a row which trained a student may "
            "calibrate or test the trust in it when it teaches; set drop or refuse"
        )


def _check_signals(run: Run) -> Iterator[str]:
    models = {"second_teacher": "signals.second_teacher", "reward": "signals.reward.model"}
    for arm in run.selection.used:
        if (signal := ARMS[arm].signal) is None:
            continue
        if signal.shots and run.splits.shots is not None and run.domain_of("shots") != run.domain_of("pool"):
            yield "splits.shots: demonstrations are rows of another domain than the pool's"
        if signal.asks != "teacher" and signal.asks not in run.signals.roles:
            key = models.get(signal.asks, f"signals.models.{signal.asks}")
            yield f"the {arm} arm asks another model than the teacher: set {key}"
    if unread := set(run.signals.options) - set(find_signals(run.selection.used)):
        yield f"signals.options: {', '.join(sorted(unread))}: no selected arm asks for such a signal"
    if unread := set(run.trust.options) - set(find_fitted(run.selection.used)) - {run.trust.kind}:
        yield f"trust.options: {', '.join(sorted(unread))}: no selected arm fits such a function"


def _check_judge(run: Run) -> Iterator[str]:
    domains = {split: run.domain_of(split) for split in run.splits.named()}
    checked = [split for split, domain in domains.items() if domain.judge is not None]
    if run.judge is None:
        if checked:
            yield (
                "domain.check: judge asks the model of the section judge, and there is none; add judge: "
                "{model: {path: ...}}, or take another check"
            )
        return
    if unknown := set(run.judge.splits) - set(domains):
        yield f"judge.splits: {', '.join(sorted(unknown))} not among the splits that are given"
    if checked and "domain" in METHODS[run.student.method].reads:
        yield (
            f"student.method: {run.student.method} grades answers as it trains, where no judge is asked; take sft, or "
            "a check by a rule or a command"
        )
    graded = {"pool": run.splits.audit, "calibration": run.selection.budget.needs_calibration}
    for split in run.judge.splits:
        if not graded.get(split, True) and split not in checked:
            fix = "set splits.audit: true" if split == "pool" else "set selection.budget.risk"
            yield f"judge.splits: {split} is not graded in this run; {fix}, or leave it out"
