"""One generation: a teacher labels, trust is fitted and scores, arms select, students learn and are tested."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from curation import arms
from curation.config import PcaConfig, RunConfig
from curation.config.trust import ROW_KEYS
from curation.domains import get_domain
from curation.hashing import derive
from curation.pipeline.asking import asked
from curation.pipeline.asking_signals import answering, asked_of_teacher, signals_of
from curation.pipeline.comparing import comparing, comparing_selected
from curation.pipeline.generation_spec import GenerationSpec, Known
from curation.pipeline.grading import graded
from curation.pipeline.reading import bought, reading
from curation.pipeline.selecting import limit, preferences, rolling_out, verified_by, verifying
from curation.pipeline.students import Students, further, taught
from curation.pipeline.testing import Tested, taught_domain
from curation.registry import METHODS
from curation.rundir.graph import Out, Stage
from curation.stages.asking import TeacherUse
from curation.stages.budget import ScoredSplit
from curation.stages.chooser import ChoiceInputs, declared
from curation.stages.class_quota import Classes, divided
from curation.stages.fit import FitTrust, closed_in
from curation.stages.judge import Judge
from curation.stages.keep import Keep
from curation.stages.label import Label
from curation.stages.length import Limit, MeasureLength
from curation.stages.project import Project
from curation.stages.read import Read
from curation.stages.score import Score
from curation.stages.search import Search, share_of_search, stored
from curation.stages.select import Select
from curation.trust.parts import read_by
from tune.space import spelled_out


class GenerationStages(NamedTuple):
    """The stages of one generation, by what is taken from them."""

    record: dict[str, Any]
    """The fields of ``report.GenerationRecord``."""
    students: dict[str, Out]
    """Students by arm."""
    answers: dict[str, Out]
    """The teacher's labels by split, before scores are added."""
    search: Search
    """For the trust function; part of the run only with ``trust.search``."""
    tested: Known
    """The tests of this and all earlier generations."""
    selected: Select
    """The selections of all arms."""
    shallow: dict[str, Any]
    """``tests`` and ``training`` by arm of the students that learned from the first teacher without a chain."""


def describe_generation(generation: GenerationSpec, first: Stage | None = None) -> GenerationStages:
    """The stages of one generation.

    ``first``: the selections of the first one, on which the base is trained too, for each of ``chain.arms``.
    """
    config, base, splits = generation.config, generation.base, labelled_splits(generation.config)

    # The teacher labels the source split, on which trust is fitted.
    ask = config.teacher.labelling.paid_in(str(config.directory))
    teacher = asked(generation.teacher, ask, name=generation.name("backend-teacher"))
    labelled: dict[str, Label | Read] = {"source": _labelling(generation, teacher, "source")}
    labels: dict[str, Out] = {"source": labelled["source"].out("labels")}
    grades = {"source": graded(generation, "source", "source", labels["source"])}
    pca = _projected(generation, labels["source"])
    if pca is not None:
        labels["source"] = pca.out("labels")
    search = _search(generation, labels["source"], grades["source"])
    fits = _fits(generation, labels["source"], grades["source"], search)
    fitted = {name: stage.out("trust") for name, stage in fits.items()}

    # It labels the other splits, the pool last; what has a gold label is graded.
    scored_as_labelled = config.teacher.store_states is False
    reducing: dict[str, Any] = {} if pca is None else {"projection": pca.out("projection")}
    if scored_as_labelled:
        reducing = {"fitted": fitted, "sample": {"states": list(config.trust.states), "seed": config.seed}}
    for split in splits[1:]:
        labelled[split] = _labelling(generation, teacher, split, **reducing)
        labels[split] = labelled[split].out("labels")
        if split != "pool" or config.splits.audit:
            grades[split] = graded(generation, split, split, labels[split])

    # Trust and signals score the labels.
    asking = answering(generation, teacher)
    signals = {split: signals_of(generation, asking, split, bought(labelled[split], labels[split])) for split in splits}
    scored = {
        split: Score(
            name=generation.name(f"score-{split}"),
            at=generation.at(split),
            labels=labels[split],
            fitted={} if scored_as_labelled and split != "source" else fitted,
            signals={name: stage.out("signal") for name, stage in signals[split].items()},
            of_source=split == "source",
            num_rows=generation.sizes[split],
        ).out("labels")
        for split in splits
    }
    shift = comparing(generation, labels)

    # Every arm selects as many rows as the budget says, among those that a student can be trained on.
    longest = limit(base, config.student)
    lengths = {} if longest is None else _lengths(generation, labels, longest)
    selected = _selected(generation, teacher, longest, labels, scored, grades, lengths)

    # Students learn the selected rows, and are tested beside their teacher and their base.
    pairs = preferences(generation, selected)
    learned = pairs if pairs is not None and METHODS[config.student.method].learns == "pairs" else selected
    students = taught(generation, teacher, learned, config.selection.arms)
    tests = students.tests
    tested = replace(generation, tested=tests.known)
    shallow = Students({}, {}, Tested({}, {}, tests.known))
    if first is not None and base is not None:
        shallow = taught(tested, teacher, first, config.chain.arms, prefix="shallow-")

    record = {
        "index": generation.index,
        "teacher": generation.teacher,
        "student_base": base,
        "labels": scored,
        "grades": grades,
        "trust": fitted[arms.REFERENCE_ARM],
        "trust_fit": fits[arms.REFERENCE_ARM].out("fit"),
        "selections": {arm: selected.out("arms", arm, "table") for arm in config.selection.arms},
        "formats": {arm: selected.out("arms", arm) for arm in config.selection.arms},
        "budget": selected.out("budget"),
        "unseen": selected.out("unseen").or_none,
        "dropped": selected.value("dropped"),
        **_kept(generation, selected),
        **({} if pairs is None else {"preferences": pairs.value("arms")}),
        **verified_by(selected),
        "shift": shift.out("shift"),
        **comparing_selected(generation, scored, selected),
        "tests": tests.main,
        "further_tests": tests.further,
        "label_counts": {split: labelled[split].value("counts") for split in splits},
        "projection": None if pca is None else pca.out("fit"),
        "asked": _asked(grades, tests.main),
        "unread": {name: stage.value("num_unread") for name, stage in signals["pool"].items()},
        "repeats": generation.repeats.out("counts"),
        "too_long": {split: stage.out("counts") for split, stage in lengths.items()},
        "training": students.training,
        "students": further(tested, teacher, learned),
    }
    without_a_chain = {
        "tests": {arm: shallow.tests.main[f"shallow-{arm}"] for arm in shallow.models},
        "training": shallow.training,
    }
    return GenerationStages(record, students.models, labels, search, shallow.tests.known, selected, without_a_chain)


def share_of(generation: GenerationSpec) -> dict[str, int]:
    """The ``curation.stages.label.RowShare`` of the pool that a generation labels, as JSON; the same in all chains."""
    config = generation.config
    return {"index": generation.index, "of": config.num_shares, "seed": derive(config.seed, "share")}


def labelled_splits(config: RunConfig) -> list[str]:
    """The splits that the teacher labels, the source first and the pool last."""
    calibration = ["calibration"] if config.selection.budget.needs_calibration else []
    return ["source", *calibration, *(f"probe-{name}" for name in config.splits.probes), "pool"]


def _labelling(
    generation: GenerationSpec,
    teacher: TeacherUse,
    split: str,
    **reducing: Any,
) -> Label | Read:
    """The teacher's labels of a split; of the pool those of the generation's share.

    ``reducing``: what takes the place of the states (``projection``, ``fitted``, ``sample``). Where a server's answers
    are read, it is the reader's: what is bought does not depend on it.
    """
    config, is_read = generation.config, generation.helpers.reader is not None
    labelled = Label(
        name=generation.name(f"label-{split}"),
        at=generation.at(split),
        examples=generation.tables[split],
        teacher=teacher,
        decoding=config.teacher.decoding,
        domain=config.domain_of(split).ungraded,
        seed=generation.seed(f"label-{split}"),
        share=share_of(generation) if split == "pool" and config.num_shares > 1 else None,
        **({} if is_read else reducing),
        signals=asked_of_teacher(generation, split),
        asks_teacher=generation.index == 0,
        num_rows=generation.sizes[split],
        needs=generation.needs,
        **generation.settings,
    )
    return reading(generation, labelled, split, **reducing)


def _asked(grades: Mapping[str, Out], tests: Mapping[str, Sequence[Out]]) -> dict[str, Out]:
    """How many labels the judge was asked about, by graded split and ``test-<model>`` (of several runs the first)."""
    found = {split: out for split, out in grades.items() if isinstance(out.stage, Judge)}
    if any(isinstance(run.stage, Judge) for runs in tests.values() for run in runs):
        found |= {f"test-{name}": runs[0] for name, runs in tests.items()}
    return {what: out.stage.value("num_asked") for what, out in found.items()}


def _projected(generation: GenerationSpec, labels: Out) -> Project | None:
    """The projection of the source split's states; ``None`` where states are stored as they are, or not at all."""
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
    """The search of the section ``tune`` on the labels of the source split."""
    config, tune = generation.config, generation.config.tune
    return Search(
        name=generation.name("search"),
        at=generation.at("source", of=arms.REFERENCE_ARM),
        labels=labels,
        grades=grades,
        stored=list(stored(config)),
        tune=tune.model_copy(update={"space": spelled_out(tune.space)}),
        trust=config.fitting.without({"search"}),
        share=share_of_search(config, generation.sizes["pool"]),
        risk=config.selection.budget.risk if tune.metric == "certified" else None,
        seed=config.seed,
        num_rows=generation.sizes["source"],
    )


def _fits(generation: GenerationSpec, labels: Out, grades: Out, search: Search) -> dict[str, Stage]:
    """The trust functions that the arms need, fitted on the source split, by name; that of the method always."""
    config, trust, examples = generation.config, generation.config.fitting, generation.tables["source"]

    def fitted(name: str, kind: str, of: str) -> Stage:
        function = arms.fitted_of([kind])[kind]
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
            closed=closed_in(config.domain_of("source"), trust.states, examples) if kind == "stacked" else None,
            teacher=f"the teacher of generation {generation.index}" if generation.index else None,
            num_rows=generation.sizes["source"],
        )

    others = arms.fitted_of(config.selection.used)
    own = search if config.trust.search else fitted("trust", config.trust.kind, arms.REFERENCE_ARM)
    return {arms.REFERENCE_ARM: own, **{name: fitted(f"trust-{name}", name, name) for name in others}}


def _lengths(generation: GenerationSpec, labels: Mapping[str, Out], longest: Limit) -> dict[str, MeasureLength]:
    """Rows by split that some arm could not train on: they are left out for all arms."""
    config = generation.config
    by_gold = [arms.ARMS[arm].gold for arm in config.selection.arms]
    found = {}
    for split in [split for split in ("calibration", "pool") if split in labels]:
        gold = generation.tables.get("audit" if split == "pool" else split)
        gold = gold if any(by_gold) and longest.completions is True else None
        # What the gold arms of the pool train on follows from these, the labels and the gold labels.
        rollouts = {"wanted": config.selection.gold_rollouts.source, "seed": config.seed}
        found[split] = MeasureLength(
            name=generation.name(f"length-{split}"),
            at=generation.at(split),
            examples=generation.tables[split],
            labels=labels[split],
            weak=not all(by_gold) or longest.completions is not True,
            gold=gold,
            domain=taught_domain(config, split),
            limit=longest,
            rollouts=rollouts if gold and split == "pool" else None,
            split=split,
            num_rows=generation.sizes[split],
        )
    return found


def _kept(generation: GenerationSpec, selected: Select) -> dict[str, Out]:
    """The selected rows with the columns of the pool's files that are named; nothing where none is."""
    config = generation.config
    if not config.selection.keep:
        return {}
    stage = Keep(
        name=generation.name("keep"),
        at=generation.at("pool"),
        selected={arm: selected.out("arms", arm, "table").or_none for arm in config.selection.arms},
        columns=list(config.selection.keep),
        id_column=config.sources[config.splits.pool.source].id_column,
        files=[file.to_json() for file in generation.pool_files],
        contents=[file.content for file in generation.pool_files],
        num_rows=None if config.selection.budget.n is None else config.selection.budget.n,
    )
    return {"kept": stage.value("files")}


def _selected(
    generation: GenerationSpec,
    teacher: TeacherUse,
    longest: Limit | None,
    labels: Mapping[str, Out],
    scored: Mapping[str, Out],
    grades: Mapping[str, Out],
    lengths: Mapping[str, MeasureLength],
) -> Select:
    """The selections of all arms, and what gold arms train on before them."""
    config = generation.config
    selection, budget = config.selection, config.selection.budget
    too_long = {split: stage.out("too_long").or_none for split, stage in lengths.items()}

    def choice(labels: Mapping[str, Out]) -> ChoiceInputs:
        splits = {
            split: ScoredSplit(labels=labels[split], grades=grades.get(split), too_long=too_long.get(split))
            for split in labels
        }
        return ChoiceInputs(
            pool=generation.tables["pool"],
            labels=labels["pool"],
            grades=grades.get("pool"),
            too_long=too_long.get("pool"),
            repeats=generation.repeats.out("repeats").or_none,
            labelled=generation.tables["source"],
            audit=generation.tables.get("audit"),
            measured=splits[budget.purity_split or "source"],
            calibration=splits.get("calibration"),
            domain=config.domain_of("pool"),
            selection=selection.without({"gold_rollouts", "quota", "keep", "verify"}),
            declared=declared(selection),
            seed=config.seed,
        )

    chosen = choice(scored)
    if (names := divided(selection, get_domain(config.domain_of("pool")))) is not None:
        quota = selection.quota if isinstance(selection.quota, dict) else None
        split = {"examples": generation.tables["source"], "labels": labels["source"], "grades": grades["source"]}
        chosen = replace(chosen, classes=Classes(names=names, wanted=quota, **split))
    verified = verifying(generation, chosen)
    if verified is not None:
        chosen = replace(chosen, verdicts=verified.out("verdicts"))
    rollouts = rolling_out(generation, teacher, choice=chosen, unscored=choice(labels), limit=longest)
    texts: Any = None if rollouts is None else rollouts.value("texts")
    if METHODS[config.student.method].learns != "completions":
        texts = {"source": "label", "samples": None}
    return Select(
        name=generation.name("select"),
        at=generation.at("pool"),
        choice=chosen,
        texts=texts,
        teacher=None if config.teacher.reader is not None else generation.teacher,  # what reads labels gave none
        generation=generation.index,
        num_rows=None if budget.n is None else budget.n * len(selection.arms),
    )
