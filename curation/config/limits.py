"""The check that a run has the capabilities that its parts need (:data:`CAPABILITIES`).

Parts are an arm, a budget, a feature (``Feature.needs``), an option of a domain (``DomainTraits.needs``) or a key of
the configuration (:func:`_iter_needs`). A need is the name of a capability, some with an argument:
``state:output_mean``.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from curation import label_columns
from curation.arms import ARMS, FREE, find_fitted
from curation.config.external import COLUMN_KEYS, ENDPOINT, EXTERNAL, GIVEN, find_unsupported
from curation.config.states import parse
from curation.config.teacher import DecodingConfig
from curation.features import active, iter_found
from curation.registry import BACKENDS, METHODS

Run = Any
"""A ``RunConfig``, not typed as such because ``curation.config.run`` imports this module."""
Has = Callable[[Run, str], object]
SCORING = ("transformers", "vllm", "scripted")
"""Backends that score options in pairs, and can subtract baselines from scores."""
LABELLING = "teacher.decoding"
ALWAYS = ("splits.", "backend ", "the function ", "trust: ", "selection.budget.")
"""Prefixes of parts that every run has: a message must not propose to leave them out."""
NUMBERS_ALONE = ("stacked", "fitted_confidence")
"""Fitted trust functions that can read numbers of the labels table alone, without hidden states."""


def _find_decodings(run: Run) -> dict[str, DecodingConfig]:
    """Return the decodings of labels and of tests by their configuration keys."""
    also = {f"evaluation.also.{name}": decoding for name, decoding in run.evaluation.also.items()}
    return {LABELLING: run.teacher.decoding, "evaluation.decoding": run.evaluation.decoding, **also}


def _has_logprobs(run: Run) -> bool:
    teacher = run.teacher
    is_silent = teacher.endpoint is not None and not teacher.endpoint.top_logprobs
    return teacher.reader is not None or not (is_silent or teacher.given is not None)


def _has_options(run: Run, split: str) -> bool:
    """Return whether a row's answer may be one of several options, so that the others have states, too."""
    constrained = run.teacher.decoding.constrained
    return constrained == "scored" or not (constrained or run.domain_of(split).traits.generates)


def _is_graded(run: Run, split: str) -> bool:
    graded = {"pool": run.splits.audit, "calibration": run.selection.budget.needs_calibration}
    return bool(graded.get(split, True)) or run.domain_of(split).judge is not None  # which grades all its labels


def _make_number_test(name: str) -> Has:
    return lambda run, _: name in run.domain_of("source").numbers


CAPABILITIES: Mapping[str, tuple[Has, str]] = {
    "source": (lambda run, name: name in run.sources, "a source of that name, and there are {sources}"),
    "split": (lambda run, name: name in run.splits.named(), "{of}, which is not among the splits that are given"),
    "backend": (lambda run, name: run.teacher.backend == name, "teacher.backend: {of}: set that"),
    "teacher": (lambda run, key: getattr(run.teacher, key) is not None, "teacher.{of}: set it"),
    "labeller": (lambda run, _: run.teacher.backend not in EXTERNAL, "a model that labels: set teacher.backend to one"),
    "reading": (lambda run, _: run.teacher.backend in EXTERNAL, "answers of another: take backend given or endpoint"),
    "loaded": (
        lambda run, _: run.teacher.backend not in EXTERNAL or run.teacher.reader is not None,
        "a model that runs here, as hidden states come from no server and no given labels (docs/endpoints.md): label "
        "by one, or set teacher.reader, which reads the answers",
    ),
    "asking": (
        lambda run, _: run.teacher.given is None,
        "a teacher that can be asked, and backend given asks no model",
    ),
    "logprobs": (
        lambda run, _: _has_logprobs(run),
        "log-probabilities: set teacher.endpoint.top_logprobs above 0, or teacher.reader, a model that reads the "
        "answers; or rank by [{numbers}]",
    ),
    "states": (lambda run, _: run.has_states, "hidden states: let a model of this run label, or read labels"),
    "state": (lambda run, name: name in run.teacher.states, "the state {of}, not among teacher.states; add it there"),
    "inputs": (lambda run, _: run.trust.inputs, "something to read: set trust.columns: [{numbers}], or trust.states"),
    "numbers": (
        lambda run, _: run.teacher.confidence or run.teacher.reader is not None,
        "numbers for trust to read: set teacher.confidence: to one or several columns of numbers, or teacher.reader: "
        "{{model: ...}}, which reads the labels",
    ),
    "number": (
        lambda run, name: run.teacher.given is not None and name in run.teacher.given.numbers.values(),
        "the number {of}, which comes from no column of teacher.confidence: add its column there",
    ),
    "token_logprobs": (
        lambda run, _: run.teacher.token_logprobs,
        "log-probabilities of tokens, which are not stored: set teacher.token_logprobs above 0, e.g. 16",
    ),
    **{name: (_make_number_test(name), words) for name, words in label_columns.NUMBER_NEEDS.items()},
    "gold": (lambda run, _: run.splits.audit, "the pool's gold labels: set splits.audit: true"),
    "gold_labels": (
        lambda run, _: run.teacher.given is None or run.teacher.given.grade is None,
        "gold labels, and teacher.grade says only whether labels are right: leave teacher.grade out",
    ),
    "graded": (_is_graded, "grades of {of}: set splits.audit for the pool, selection.budget.risk for calibration"),
    "students": (lambda run, _: run.generations, "students: add generations"),
    "adapt": (lambda run, _: run.splits.adapt is not None, "rows to learn the task from: add splits.adapt"),
    "shots": (
        lambda run, _: run.splits.shots is not None and run.domain_of("shots") == run.domain_of("pool"),
        "demonstrations of the pool's domain: add splits.shots (the paper: five rows)",
    ),
    "test": (lambda run, _: run.splits.test is not None, "a test split: add splits.test"),
    "calibration": (
        lambda run, _: run.splits.calibration is not None,
        "labelled rows of the pool's own distribution: add splits.calibration",
    ),
    "distinct": (
        lambda run, _: run.splits.overlap != "report",
        "splits without common questions, or a row that trained a student calibrates the trust in it: set "
        "splits.overlap: drop or refuse",
    ),
    "arm": (lambda run, name: name in run.selection.arms, "{of}, which is not among selection.arms; add it"),
    "shares": (
        lambda run, number: int(number) <= run.num_shares,
        "{of} shares of the pool: set chain.shares: {of} or more (other shares are other rows: all is done again)",
    ),
    "method": (
        lambda run, name: name == run.student.method,
        "student.method: {of}, as all students of a run learn alike",
    ),
    "model": (
        lambda run, name: name in run.signals.roles,
        "another model than the teacher: set signals.second_teacher, signals.reward.model or signals.models.{of}",
    ),
    "judge": (
        lambda run, _: run.judge is not None,
        "a judge: add judge: {{model: {{path: ...}}}}, or take another check",
    ),
    "rule": (
        lambda run, _: all(run.domain_of(split).judge is None for split in run.splits.named()),
        "a check by a rule or a command, as no judge is asked in training",
    ),
    "listed": (
        lambda run, split: run.domain_of(split).traits.lists_answers,
        "a domain that lists the possible answers of a row: chess, mcqa that is not generative, or one with a method "
        "candidates (docs/extending.md), and that of splits.{of} does not",
    ),
    "options": (_has_options, "options to choose from, and answers of splits.{of} are generated"),
    "option_scores": (
        lambda run, _: run.teacher.backend in SCORING,
        f"scores of options, which the backends {', '.join(SCORING)} give: set teacher.backend to one of these",
    ),
    "option_sums": (
        lambda run, _: not any(decoding.normalise_options for decoding in _find_decodings(run).values()),
        "sums of options' log-probabilities: set normalise_options: false in teacher.decoding and under evaluation",
    ),
    "no_steps": (
        lambda run, _: all(decoding.constrained != "stepwise" for decoding in _find_decodings(run).values()),
        "options that are scored: leave constrained: stepwise out of teacher.decoding and evaluation",
    ),
    "own_options": (
        lambda run, _: not any(decoding.constrained for decoding in _find_decodings(run).values()),
        "the domain's own options: leave constrained out of teacher.decoding and evaluation",
    ),
    "one_option": (
        lambda run, _: all(parse(state).rank <= 1 for state in run.teacher.states),
        "states of one answer: leave those of further options out of teacher.states and trust.states",
    ),
    "second": (
        lambda run, kind: run.trust.search or kind != run.trust.kind,
        "another trust.kind, by which the arm trust ranks: it would be fitted and shown twice",
    ),
    "whole": (
        lambda run, kind: run.trust.pca is None or not find_fitted([kind])[kind].by_state,
        "inputs state by state, which trust.pca mixes: leave trust.pca out",
    ),
}
"""Capabilities by name: whether a run has one, given the need's argument, and the end of the message if it has not,
with the fix. In the message ``of`` is the argument, and ``sources`` and ``numbers`` are those of the run."""


def iter_problems(run: Run) -> Iterator[str]:
    """Yield each combination of settings that cannot work, with a fix."""
    if run.teacher.reads_given:
        yield "teacher.reads_given: follows from reader; leave it out, and set reader: {model: ...}"
    for who, need in _iter_needs(run):
        name, _, of = need.partition(":")
        has, words = CAPABILITIES[name]
        if not has(run, of):
            known = {"sources": ", ".join(sorted(run.sources)), "numbers": ", ".join(run.numbers)}
            mend = "" if who.startswith(ALWAYS) or who.endswith(" budget") else ", or leave it out"
            yield f"{who} needs {words.format(of=of, **known)}{mend}"
    for key, decoding in _find_decodings(run).items() if run.teacher.endpoint is not None else ():
        problem = find_unsupported(run.teacher.endpoint, decoding, key)
        if problem is not None and (key == LABELLING or run.splits.test is not None):
            yield problem
    yield from iter_found(run, "problems")


def _iter_needs(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the key or name of each part of a run that needs a capability, and the need."""
    teacher, selection, budget, trust = run.teacher, run.selection, run.selection.budget, run.trust
    splits = run.splits.named()
    yield from ((f"splits.{name}.from: {split.source!r}", f"source:{split.source}") for name, split in splits.items())
    if any(split.source not in run.sources for split in splits.values()):
        return  # the rest reads the domains of the splits' rows
    yield from ((who, need) for is_set, who, need in _list_key_needs(run) if is_set)
    if any(parse(state).rank > 1 for state in teacher.states):
        who = "teacher.states: a state of an answer option"
        yield from ((who, f"options:{split}") for split in run.splits.labelled())
    for name in selection.used:
        arm, who = ARMS[name], f"the {name} arm"
        if arm.oracle:
            yield who, "gold"
        if arm.gold:
            yield who, "gold_labels"
        if arm.trust in FREE:
            yield who, "logprobs"
        if (signal := arm.signal) is not None:
            yield who, "asking" if signal.asks == "teacher" else f"model:{signal.asks}"
            if signal.shots:
                yield who, "shots"
    kinds = {*find_fitted(selection.used), trust.kind}
    yield from (("trust.states", f"state:{name}") for name in trust.states)
    for kind in sorted(kinds):
        yield from ((f"selection.arms: {kind}", f"state:{name}") for name in run.fit_of(kind).states)
        yield f"the function {kind}", f"whole:{kind}"
    yield from ((f"selection.arms: {kind}", f"second:{kind}") for kind in find_fitted(selection.arms))
    if reading := sorted(kinds.difference(NUMBERS_ALONE)) or ["search"] * trust.search:
        yield f"trust: {reading[0]}", "inputs"
    if trust.pca is not None:
        yield "trust.pca", "states"
    of_arms = [(f"the {name} arm", ARMS[name].trust) for name in selection.used]
    for who, name in [*(("trust.columns", name) for name in trust.columns), *of_arms]:
        if name in ("token_logprobs", *label_columns.DOMAIN_NUMBERS):
            yield who, name
        elif label_columns.is_given(name):
            yield who, f"number:{name}"
    if budget.needs_gold:
        yield f"the {budget.rule} budget", "gold"
    if budget.needs_calibration:
        yield f"selection.budget.{budget.rule}", "calibration"
    if budget.purity_split is not None:
        yield f"selection.budget.fit_purity: {budget.fit_purity!r}", f"split:{budget.purity_split}"
    if selection.gold_rollouts.source in ("auto", "samples"):
        yield f"selection.gold_rollouts.source: {selection.gold_rollouts.source}", "asking"
    yield from ((name, need) for name, feature, _ in active(run) for need in feature.needs)

    # Students, a chain of generations, and the judge.
    for index, generation in enumerate(run.generations):
        for name, student in generation.students.items():
            if student.recipe is not None:
                yield f"generations.{index}.students.{name}.recipe", f"method:{student.recipe.method}"
    if (num := len(run.generations)) > 1:
        yield from (("a chain of generations", need) for need in ("test", "labeller", "distinct"))
        yield from (("chain.arms", f"arm:{arm}") for arm in run.chain.arms)
    if num:
        yield f"generations: {num}", f"shares:{num}"
    if run.judge is not None:
        yield "judge", "gold_labels"
        for split in run.judge.splits:
            yield "judge.splits", f"split:{split}"
            yield f"judge.splits: {split}", f"graded:{split}"
        if "domain" in METHODS[run.student.method].reads:
            yield f"student.method: {run.student.method}", "rule"

    # Decodings, and the domains of the splits.
    for key, decoding in _find_decodings(run).items():
        if decoding.constrained:
            asked = run.splits.labelled() if key == LABELLING else [name for name in ("test",) if name in splits]
            yield from ((f"{key}.constrained: {decoding.constrained}", f"listed:{split}") for split in asked)
    for domain in map(run.domain_of, splits):
        yield from ((option, need) for option, needs in domain.traits.needs.items() for need in needs)
        if domain.judge is not None:
            yield "domain.check: judge", "judge"


def _list_key_needs(run: Run) -> list[tuple[bool, str, str]]:
    """Return the needs of keys of ``teacher`` and its backend: whether the key is set, the key, and the need."""
    teacher, backend = run.teacher, run.teacher.backend
    key = {GIVEN: "completion", ENDPOINT: "endpoint"}.get(backend)
    return [
        *((bool(getattr(teacher, name)), f"teacher.{name}", f"backend:{GIVEN}") for name in COLUMN_KEYS),
        (teacher.endpoint is not None, "teacher.endpoint", f"backend:{ENDPOINT}"),
        (run.domain.given_labels != teacher.given, "domain.given_labels", f"backend:{GIVEN}"),
        (key is not None or BACKENDS[backend].weights, f"backend {backend}", f"teacher:{key or 'model'}"),
        (teacher.model is not None, "teacher.model", "labeller"),
        (teacher.adapt is not None, "teacher.adapt", "labeller"),
        (teacher.adapt is not None, "teacher.adapt", "adapt"),
        (teacher.reader is not None, "teacher.reader", "reading"),
        (bool(teacher.states), "teacher.states", "loaded"),
        (teacher.store_states is not True, "teacher.store_states", "states"),
        (bool(teacher.token_logprobs) and teacher.reader is None, "teacher.token_logprobs", "asking"),
        (teacher.given is not None, "backend given", "numbers"),
    ]
