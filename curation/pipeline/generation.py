"""One generation: a teacher labels, trust is fitted and scores, arms select, students learn and are tested."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from curation import arms
from curation.config import JudgeConfig, PcaConfig, RunConfig, SftConfig
from curation.hashing import derive
from curation.pipeline.asking import Asked, asked
from curation.pipeline.asking_signals import asked_of_teacher, signals_of
from curation.pipeline.given import Generation, Known
from curation.pipeline.labelling import labelling
from curation.pipeline.learning import student
from curation.pipeline.measuring import graded
from curation.pipeline.searching import searching
from curation.pipeline.selecting import Measured, choosing, limit, measuring_length, rolling_out, selecting
from curation.pipeline.testing import Tested, testing
from curation.pipeline.trusting import fitting, projecting, scoring, shifting
from curation.rundir.graph import Built, Model, Out


class Described(NamedTuple):
    """The stages of one generation, by what is taken from them."""

    record: dict[str, Any]
    """The fields of ``report.GenerationRecord``."""
    students: dict[str, Out]
    """By arm."""
    answers: dict[str, Out]
    """The teacher's labels by split, before scores are added."""
    search: Built
    """For the trust function; part of the run only with ``trust.search``."""
    tested: Known
    """The tests of this and all earlier generations."""
    selected: Built
    """The selections of all arms."""
    shallow: dict[str, Any]
    """``tests`` and ``training`` by arm of the students that learned from the first teacher without a chain."""


def describe_generation(generation: Generation, first: Built | None = None) -> Described:
    """The stages of one generation.

    ``first``: the selections of the first one, on which the base is trained too, for each of ``chain.arms``.
    """
    config = generation.config
    splits, store_states = labelled_splits(config), config.teacher.store_states
    teacher = asked(generation.teacher, config.teacher.ask, name=generation.name("backend-teacher"))
    source = _labelling(generation, teacher, "source")
    labelled, grades = {"source": source}, {"source": graded(generation, "source", "source", source.table("labels"))}
    labels = {"source": source.table("labels")}
    pca = None
    if isinstance(store_states, PcaConfig):
        pca = projecting(
            generation.name("pca"),
            labels["source"],
            config.trust,
            size=store_states.pca,
            seed=config.seed,
            rows=generation.sizes["source"],
        )
        labels["source"] = pca.table("labels")
    search = searching(generation, labels["source"], grades["source"])
    fits = _fits(generation, labels["source"], grades["source"], search)
    fitted = {name: stage.trust("trust") for name, stage in fits.items()}
    scored_as_labelled = store_states is False
    for split in splits[1:]:
        labelled[split] = _labelling(
            generation,
            teacher,
            split,
            projection=None if pca is None else pca.projection("projection"),
            fitted=fitted if scored_as_labelled else None,
        )
        labels[split] = labelled[split].table("labels")
    scored, unread = {}, {}
    for split in splits:
        if split != "source" and (split != "pool" or config.splits.audit):
            grades[split] = graded(generation, split, split, labels[split])
        signals = signals_of(generation, teacher, split, labels[split])
        if split == "pool":
            unread = {name: stage.value("num_unread") for name, stage in signals.items()}
        functions = {} if scored_as_labelled and split != "source" else fitted
        measured = {name: stage.table("signal") for name, stage in signals.items()}
        rows = generation.sizes[split]
        scored[split] = scoring(
            generation.name(f"score-{split}"),
            labels[split],
            functions,
            measured,
            of_source=split == "source",
            rows=rows,
        ).table("labels")
    shift = shifting(
        generation.name("shift"),
        labels["pool"],
        {split: labels[split] for split in ("source", "calibration") if split in labels},
        config.fitting.states,
        seed=config.seed,
        rows=generation.sizes["pool"],
    )
    base = generation.base
    selected, lengths = _selected(generation, teacher, base, labels, scored, grades)
    students = {} if base is None else {arm: _student(generation, base, selected, arm) for arm in config.selection.arms}
    tests = Tested({}, {}, {}) if base is None else testing(generation, teacher, base, students)
    shallow: dict[str, Built] = {}
    beside = Tested({}, {}, tests.known)
    if first is not None and base is not None:
        shallow = {
            f"shallow-{arm}": _student(generation, base, first, arm, name=f"student-shallow-{arm}")
            for arm in config.chain.arms
        }
        beside = testing(replace(generation, tested=tests.known), teacher, base, shallow)
    judge, selection_arms = config.judge, config.selection.arms
    record = {
        "index": generation.index,
        "teacher": generation.teacher,
        "student_base": base,
        "labels": scored,
        "grades": grades,
        "trust": fitted[arms.REFERENCE_ARM],
        "trust_fit": fits[arms.REFERENCE_ARM].value("fit"),
        "selections": {arm: selected.table("arms", arm, "table") for arm in selection_arms},
        "formats": {arm: selected.value("arms", arm) for arm in selection_arms},
        "budget": selected.value("budget"),
        "shift": shift.value("shift"),
        "tests": tests.main,
        "further_tests": tests.further,
        "label_counts": {split: labelled[split].value("counts") for split in splits},
        "projection": None if pca is None else pca.value("fit"),
        "asked": _asked(judge, grades, tests.main),
        "unread": unread,
        "too_long": {split: stage.value("counts") for split, stage in lengths.items()},
        "training": {arm: stage.value("training") for arm, stage in students.items()},
    }
    taught = {arm: stage.model("model") for arm, stage in students.items()}
    without_a_chain = {
        "tests": {arm: beside.main[f"shallow-{arm}"] for arm in config.chain.arms if shallow},
        "training": {arm: shallow[f"shallow-{arm}"].value("training") for arm in config.chain.arms if shallow},
    }
    return Described(record, taught, labels, search, beside.known, selected, without_a_chain)


def share_of(generation: Generation) -> dict[str, int]:
    """The ``curation.stages.label.Share`` of the pool that a generation labels, as JSON; the same in all chains."""
    config = generation.config
    return {"index": generation.index, "of": config.num_shares, "seed": derive(config.seed, "share")}


def labelled_splits(config: RunConfig) -> list[str]:
    """The splits that the teacher labels, the source first and the pool last."""
    calibration = ["calibration"] if config.selection.budget.needs_calibration else []
    return ["source", *calibration, *(f"probe-{name}" for name in config.splits.probes), "pool"]


def _labelling(
    generation: Generation,
    teacher: Asked,
    split: str,
    *,
    projection: Out | None = None,
    fitted: Mapping[str, Out] | None = None,
) -> Built:
    """The teacher's labels of a split; of the pool those of the generation's share."""
    config = generation.config
    return labelling(
        generation.name(f"label-{split}"),
        examples=generation.tables[split],
        asked=teacher,
        decoding=config.teacher.decoding,
        domain=config.domain_of(split),
        seed=generation.seed(f"label-{split}"),
        rows=generation.sizes[split],
        settings=generation.settings,
        share=share_of(generation) if split == "pool" and config.num_shares > 1 else None,
        projection=projection,
        fitted=fitted,
        sample=None if fitted is None else {"states": list(config.trust.states), "seed": config.seed},
        signals=asked_of_teacher(generation, split),
        asks_teacher=generation.index == 0,
        needs=generation.needs,
    )


def _asked(judge: JudgeConfig | None, grades: Mapping[str, Out], tests: Mapping[str, Sequence[Out]]) -> dict[str, Out]:
    """How many labels the judge was asked about, by graded split and ``test-<model>`` (of several runs the first)."""
    if judge is None:
        return {}
    found = {split: grades[split] for split in grades if split in judge.splits}
    if "test" in judge.splits:
        found |= {f"test-{name}": runs[0] for name, runs in tests.items()}
    return {what: out.stage.value("num_asked") for what, out in found.items()}


def _fits(generation: Generation, labels: Out, grades: Out, search: Built) -> dict[str, Built]:
    """The trust functions that the arms need, fitted on the source split, by name; that of the method always."""
    config = generation.config

    def fitted(name: str, kind: str) -> Built:
        return fitting(
            generation.name(name),
            kind,
            arms.fitted_of([kind])[kind],
            labels,
            grades,
            config.fitting,
            seed=config.seed,
            rows=generation.sizes["source"],
            teacher=f"the teacher of generation {generation.index}" if generation.index else None,
        )

    others = arms.fitted_of(config.selection.used)
    own = search if config.trust.search else fitted("trust", config.trust.kind)
    return {arms.REFERENCE_ARM: own, **{name: fitted(f"trust-{name}", name) for name in others}}


def _selected(
    generation: Generation,
    teacher: Asked,
    base: Model | None,
    labels: Mapping[str, Out],
    scored: Mapping[str, Out],
    grades: Mapping[str, Out],
) -> tuple[Built, dict[str, Built]]:
    """The selection, and by split the rows that are too long for a student."""
    config = generation.config
    longest = limit(base, config.student)
    lengths = {}
    if longest is not None:
        lengths = {
            split: measuring_length(
                generation.name(f"length-{split}"),
                split=split,
                examples=generation.tables[split],
                labels=labels[split],
                gold=generation.tables.get("audit") if split == "pool" else generation.tables[split],
                selection=config.selection,
                limit=longest,
                domain=config.domain_of(split),
                seed=config.seed,
                rows=generation.sizes[split],
            )
            for split in labels
            if split in ("calibration", "pool")
        }
    too_long = {split: stage.table("too_long") for split, stage in lengths.items()}

    def choice(labels: Mapping[str, Out]) -> dict[str, Any]:
        splits = {
            split: Measured(labels=labels[split], grades=grades.get(split), too_long=too_long.get(split))
            for split in labels
        }
        return choosing(
            pool=generation.tables["pool"],
            pool_labels=splits["pool"],
            audit=generation.tables.get("audit"),
            measured=splits[config.selection.budget.purity_split or "source"],
            calibration=splits.get("calibration"),
            domain=config.domain_of("pool"),
            selection=config.selection,
            seed=config.seed,
        )

    chosen = choice(scored)
    rollouts = rolling_out(
        generation.name("rollouts"),
        choice=chosen,
        unscored=choice(labels),
        selection=config.selection,
        asked=teacher,
        decoding=config.teacher.decoding,
        seed=generation.seed("rollouts"),
        limit=longest,
        settings=generation.settings,
    )
    n = config.selection.budget.n
    stage = selecting(
        generation.name("select"),
        choice=chosen,
        rollouts=rollouts,
        recipe=config.student,
        teacher=generation.teacher,
        generation=generation.index,
        rows=None if n is None else n * len(config.selection.arms),
    )
    return stage, lengths


def _student(generation: Generation, base: Model, selected: Built, arm: str, name: str | None = None) -> Built:
    config, recipe = generation.config, generation.config.student
    if isinstance(recipe, SftConfig) and isinstance(arms.TRUST[arms.ARMS[arm].trust], arms.Draw):
        recipe = recipe.without({"weight_by_trust"})
    return student(
        generation.name(name or f"student-{arm}"),
        base,
        selected.table("rows_of", arm),
        selected.value("arms", arm, "digest"),
        recipe,
        config.domain_of("pool"),
        generation.tables["pool"],
        seed=derive(config.seed, f"gen-{generation.index}"),  # one for all arms of a generation
        num=config.selection.budget.n,
        needs=generation.needs,
    )
