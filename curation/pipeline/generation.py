"""One generation: a teacher labels, trust is fitted and scores, arms select, students learn and are tested."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from curation import arms
from curation.arms import ARMS
from curation.config import PcaConfig
from curation.config.trust import ROW_KEYS
from curation.hashing import derive
from curation.json_types import Json
from curation.pipeline import extending
from curation.pipeline.asking_signals import describe_signals, find_teacher_signals, get_asked_models
from curation.pipeline.generation_spec import GenerationSpec, Known
from curation.pipeline.grading import describe_grades
from curation.pipeline.roles import describe_teacher_use
from curation.pipeline.selecting import (
    describe_kept_columns,
    describe_lengths,
    describe_preferences,
    describe_selection,
    limit,
)
from curation.pipeline.students import Students, describe_further_students, describe_students
from curation.pipeline.testing import Tested
from curation.registry import METHODS
from curation.rundir.graph import Out, Stage
from curation.stages.asking import TeacherUse
from curation.stages.fit import FitTrust, Search, find_closed_classes, get_search_share, list_stored_states
from curation.stages.label import Label
from curation.stages.read import Read
from curation.stages.reduce import Project
from curation.stages.score import Score
from curation.stages.select import Select
from curation.stages.shift import MeasureSelectedShift, MeasureShift, MeasureTextShift
from curation.stages.signal import Judge
from curation.trust.parts import read_by
from tune.space import expand_preset


class GenerationStages(NamedTuple):
    """The stages of one generation, and their outputs."""

    record: dict[str, Any]
    """The fields of ``report.GenerationRecord``."""
    students: dict[str, Out]
    """Students by arm."""
    answers: dict[str, Out]
    """The teacher's labels by split, before scores are added."""
    search: Search
    """Search for the trust function; part of the run only with ``trust.search``."""
    tested: Known
    """The tests of this and all earlier generations."""
    selected: Select
    """The selections of all arms."""
    shallow: dict[str, Any]
    """``tests`` and ``training`` by arm of the students that learned from the first teacher without a chain."""


def describe_generation(generation: GenerationSpec, first: Stage | None = None) -> GenerationStages:
    """Return the stages of one generation.

    ``first``: the first generation's selections, if the base is to be trained on them too, for each of ``chain.arms``.
    """
    config, base = generation.config, generation.base
    calibration = ["calibration"] if config.selection.budget.needs_calibration else []
    splits = ["source", *calibration, *(f"probe-{name}" for name in config.splits.probes), "pool"]

    # The teacher labels the source split, on which trust is fitted.
    ask = config.teacher.labelling.paid_in(str(config.directory))
    teacher = describe_teacher_use(generation.teacher, ask, name=generation.name("backend-teacher"))
    labelled: dict[str, Label | Read] = {"source": _describe_labelling(generation, teacher, "source")}
    labels: dict[str, Out] = {"source": labelled["source"].out("labels")}
    grades = {"source": describe_grades(generation, "source", "source", labels["source"])}
    pca = _describe_projection(generation, labels["source"])
    if pca is not None:
        labels["source"] = pca.out("labels")
    search = _search(generation, labels["source"], grades["source"])
    fits = _describe_fits(generation, labels["source"], grades["source"], search)
    fitted = {name: stage.out("trust") for name, stage in fits.items()}

    # It labels the other splits, the pool last; what has a gold label is graded.
    scored_as_labelled = config.teacher.store_states is False
    reducing: dict[str, Any] = {} if pca is None else {"projection": pca.out("projection")}
    if scored_as_labelled:
        reducing = {"fitted": fitted, "sample": {"states": list(config.trust.states), "seed": config.seed}}
    for split in splits[1:]:
        labelled[split] = _describe_labelling(generation, teacher, split, **reducing)
        labels[split] = labelled[split].out("labels")
        if split != "pool" or config.splits.audit:
            grades[split] = describe_grades(generation, split, split, labels[split])

    # Trust and signals score the labels.
    asking = get_asked_models(generation, teacher)
    signals = {}
    for split, stage in labelled.items():  # further questions are about a server's answers as they were bought
        answers = cast(Out, stage.answers) if isinstance(stage, Read) else labels[split]
        signals[split] = describe_signals(generation, asking, split, answers)
    added = {split: extending.describe_columns(generation, split, labels) for split in splits}
    scored = {
        split: Score(
            name=generation.name(f"score-{split}"),
            at=generation.at(split),
            labels=labels[split],
            fitted={} if scored_as_labelled and split != "source" else fitted,
            signals={
                **{name: stage.out("signal") for name, stage in signals[split].items()},
                **{name: out for tables in added[split].values() for name, out in tables.items()},
            },
            of_source=split == "source",
            num_rows=generation.sizes[split],
        ).out("labels")
        for split in splits
    }
    shift = _describe_comparison(generation, labels)

    # Every arm selects as many rows as the budget says, among those that a student can be trained on.
    longest = limit(base, config.student)
    long = {} if longest is None else describe_lengths(generation, labels, longest)
    too_long = {split: stage.out("counts") for split, stage in long.items()}
    described = {"labels": scored, "grades": grades, "too_long": too_long}
    candidates = extending.describe_candidates(generation, described)
    left_out = {name: outs["left_out"] for name, outs in candidates.items()}
    selected = describe_selection(generation, teacher, longest, labels, scored, grades, long, left_out)

    # Students learn the selected rows, and are tested beside their teacher and their base.
    pairs = describe_preferences(generation, selected)
    learned = pairs if pairs is not None and METHODS[config.student.method].learns == "pairs" else selected
    students = describe_students(generation, teacher, learned, config.selection.arms)
    tests = students.tests
    tested = replace(generation, tested=tests.known)
    shallow = Students({}, {}, Tested({}, {}, tests.known))
    if first is not None and base is not None:
        shallow = describe_students(tested, teacher, first, config.chain.arms, prefix="shallow-")

    record: dict[str, Any] = {
        **described,
        "index": generation.index,
        "teacher": generation.teacher,
        "student_base": base,
        "trust": fitted[arms.REFERENCE_ARM],
        "trust_fit": fits[arms.REFERENCE_ARM].out("fit"),
        "selections": {arm: selected.out("arms", arm, "table") for arm in config.selection.arms},
        "formats": {arm: selected.out("arms", arm) for arm in config.selection.arms},
        "budget": selected.out("budget"),
        "unseen": selected.out("unseen").or_none,
        "dropped": selected.value("dropped"),
        **describe_kept_columns(generation, selected),
        **({} if pairs is None else {"preferences": pairs.value("arms")}),
        "shift": shift.out("shift"),
        **_describe_selected_comparison(generation, scored, selected),
        "tests": tests.main,
        "further_tests": tests.further,
        "label_counts": {split: labelled[split].value("counts") for split in splits},
        "projection": None if pca is None else pca.out("fit"),
        "asked": _count_asked(grades, tests.main),
        "unread": {name: stage.value("num_unread") for name, stage in signals["pool"].items()},
        "repeats": generation.repeats.out("counts"),
        "training": students.training,
        "students": describe_further_students(tested, teacher, learned),
    }
    record["features"] = extending.describe_after_selection(generation, record, added["pool"], candidates)
    without_a_chain = {
        "tests": {arm: shallow.tests.main[f"shallow-{arm}"] for arm in shallow.models},
        "training": shallow.training,
    }
    return GenerationStages(record, students.models, labels, search, shallow.tests.known, selected, without_a_chain)


def get_pool_share(generation: GenerationSpec) -> dict[str, int]:
    """Return a generation's share of the pool (``curation.stages.label.RowShare``) as JSON, the same in all chains."""
    config = generation.config
    return {"index": generation.index, "of": config.num_shares, "seed": derive(config.seed, "share")}


def _describe_labelling(generation: GenerationSpec, teacher: TeacherUse, split: str, **reducing: Any) -> Label | Read:
    """Return the stage that labels a split or, for the pool, the generation's share of it.

    If a local model reads a server's answers (``teacher.reader``), the stage that reads the answers is returned.
    ``reducing``: replacement of the states (``projection``, ``fitted``, ``sample``). For a server's answers it goes to
    the stage that reads them, since the bought answers do not depend on it.
    """
    config, reader, endpoint = generation.config, generation.helpers.reader, generation.config.teacher.endpoint
    labelled = Label(
        name=generation.name(f"label-{split}"),
        at=generation.at(split),
        examples=generation.tables[split],
        teacher=teacher,
        decoding=config.teacher.decoding,
        domain=config.domain_of(split).ungraded,
        seed=generation.seed(f"label-{split}"),
        share=get_pool_share(generation) if split == "pool" and config.num_shares > 1 else None,
        **(reducing if reader is None else {}),
        signals=find_teacher_signals(generation, split),
        asks_teacher=generation.index == 0,
        num_rows=generation.sizes[split],
        needs=generation.needs,
        **generation.settings,
    )
    if reader is None or endpoint is None:
        return labelled
    return Read(
        name=generation.name(f"read-{split}"),
        at=generation.at(split),
        examples=generation.tables[split],
        answers=labelled.out("labels"),
        domain=labelled.domain,
        teacher=reader,
        decoding=labelled.decoding,
        reads_numbers=not endpoint.top_logprobs,
        **reducing,
        num_rows=generation.sizes[split],
        **generation.settings,
    )


def _count_asked(grades: Mapping[str, Out], tests: Mapping[str, Sequence[Out]]) -> dict[str, Out]:
    """Return how many labels the judge was asked about, by graded split and ``test-<model>`` (its first run)."""
    found = {split: out for split, out in grades.items() if isinstance(out.stage, Judge)}
    if any(isinstance(run.stage, Judge) for runs in tests.values() for run in runs):
        found |= {f"test-{name}": runs[0] for name, runs in tests.items()}
    return {what: out.stage.value("num_asked") for what, out in found.items()}


def _describe_projection(generation: GenerationSpec, labels: Out) -> Project | None:
    """Return the projection of the source split's states, or None if states are stored unchanged or not at all."""
    config = generation.config
    if not isinstance(config.teacher.store_states, PcaConfig):
        return None
    return Project(
        name=generation.name("pca"),
        at=generation.at("source"),
        labels=labels,
        size=config.teacher.store_states.pca,
        trust=config.trust.only({"states", *ROW_KEYS}),
        seed=config.seed,
        num_rows=generation.sizes["source"],
    )


def _search(generation: GenerationSpec, labels: Out, grades: Out) -> Search:
    config, tune = generation.config, generation.config.tune
    return Search(
        name=generation.name("search"),
        at=generation.at("source", of=arms.REFERENCE_ARM),
        labels=labels,
        grades=grades,
        stored=list(list_stored_states(config)),
        tune=tune.model_copy(update={"space": expand_preset(tune.space)}),
        trust=config.fitting.without({"search"}),
        share=get_search_share(config, generation.sizes["pool"]),
        risk=config.selection.budget.risk if tune.metric == "certified" else None,
        seed=config.seed,
        num_rows=generation.sizes["source"],
    )


def _describe_fits(generation: GenerationSpec, labels: Out, grades: Out, search: Search) -> dict[str, Stage]:
    """Return the trust functions fitted on the source split, by name: the method's own, and those that arms need."""
    config, trust, examples = generation.config, generation.config.fitting, generation.tables["source"]

    def fitted(name: str, kind: str, of: str) -> Stage:
        function = arms.find_fitted([kind])[kind]
        return FitTrust(
            name=generation.name(name),
            at=generation.at("source", of=of),
            function=kind,
            made_by=function.made_by,
            fit_by=function.fit,
            labels=labels,
            grades=grades,
            trust=read_by(kind, function, config.fit_of(kind)).model_copy(update=trust.resources),
            seed=config.seed,
            closed=find_closed_classes(config.domain_of("source"), trust.states, examples)
            if kind == "stacked"
            else None,
            teacher=f"the teacher of generation {generation.index}" if generation.index else None,
            num_rows=generation.sizes["source"],
        )

    others = arms.find_fitted(config.selection.used)
    own = search if config.trust.search else fitted("trust", config.trust.kind, arms.REFERENCE_ARM)
    return {arms.REFERENCE_ARM: own, **{name: fitted(f"trust-{name}", name, name) for name in others}}


def _describe_comparison(generation: GenerationSpec, labels: Mapping[str, Out]) -> MeasureShift:
    """Describe the comparison of the splits by their ``labels`` and, if these have no hidden states, by their texts."""
    config = generation.config
    splits = [split for split in ("source", "calibration") if split in labels]
    arguments: Json = {
        "name": generation.name("shift"),
        "at": generation.at("pool"),
        "pool": labels["pool"],
        "compared": {split: labels[split] for split in splits},
        "states": list(config.compared),
        "seed": config.seed,
        "num_rows": generation.sizes["pool"],
    }
    if config.has_states:
        return MeasureShift(**arguments)
    examples = {split: generation.tables[split] for split in (*splits, "pool")}
    return MeasureTextShift(**arguments, examples=examples, domain=config.domain_of("pool").ungraded)


def _describe_selected_comparison(
    generation: GenerationSpec, scored: Mapping[str, Out], selected: Select
) -> dict[str, Out]:
    """Describe the comparison of rows that pass the arms' cuts; empty without hidden states or ranking arms."""
    config = generation.config
    ranking = [arm for arm in config.selection.arms if ARMS[arm].ranked and not ARMS[arm].gold]
    if not config.has_states or not ranking:
        return {}
    stage = MeasureSelectedShift(
        name=generation.name("selected-shift"),
        at=generation.at("pool"),
        source=scored["source"],
        pool=scored["pool"],
        thresholds={arm: selected.out("arms", arm, "threshold").or_none for arm in ranking},
        states=list(config.compared),
        seed=config.seed,
        num_rows=generation.sizes["pool"],
    )
    return {"foreign": stage.out("foreign")}
