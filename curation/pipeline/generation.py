"""One generation: a teacher labels, trust is fitted and scores, arms select, students learn and are tested."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast

from curation import arms
from curation.arms import ARMS, REFERENCE_ARM
from curation.config import AskConfig
from curation.domains import get_domain, get_preference_function
from curation.features import parts
from curation.hashing import derive
from curation.json_types import Json
from curation.pipeline.extending import describe_part
from curation.pipeline.grading import describe_grades
from curation.pipeline.roles import READER, GenerationSpec, Known, describe_teacher_use
from curation.pipeline.students import Students, describe_further_students, describe_students, get_taught_domain
from curation.refs import ModelRef
from curation.registry import METHODS
from curation.rundir.graph import Out, Stage
from curation.signals import ASKS_UNADAPTED, SIGNALS
from curation.stages.asking import TeacherUse
from curation.stages.chooser import ChoiceInputs, collect_declared
from curation.stages.fit import FitTrust, Search, find_closed_classes, get_search_share, list_stored_states
from curation.stages.gold import Limit, MeasureLength
from curation.stages.label import Label, Read
from curation.stages.pool_scores import ScoredSplit
from curation.stages.rollouts import RollOut
from curation.stages.score import Score
from curation.stages.select import Select, WritePreferences
from curation.stages.shift import MeasureSelectedShift, MeasureShift, MeasureTextShift
from curation.stages.signal import Judge, MeasureSignal
from curation.trust.parts import read_by
from tune.space import expand_preset

UNADAPTED = "the teacher before it was adapted"
"""Role of the unadapted teacher; its spaces keep it apart from the names in ``signals.models``."""


_COUNTED: dict[str, bool | Literal["both"]] = {"completions": True, "labels": False, "pairs": "both"}
"""The completions that count among a student's tokens, by what its method learns from."""


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
    config, base, tables = generation.config, generation.base, generation.tables
    budget, selecting = config.selection.budget, config.selection.arms
    calibration = ["calibration"] if budget.needs_calibration else []
    splits = ["source", *calibration, *(f"probe-{name}" for name in config.splits.probes), "pool"]

    # The teacher labels the source split, and its labels are graded.
    ask = config.teacher.labelling.paid_in(str(config.directory))
    teacher = describe_teacher_use(generation.teacher, ask, name=generation.name("backend-teacher"))
    labelled: dict[str, Label | Read] = {"source": _describe_labelling(generation, teacher, "source")}
    labels: dict[str, Out] = {"source": labelled["source"].out("labels")}
    grades = {"source": describe_grades(generation, "source", "source", labels["source"])}

    # Trust is fitted on them: the method's function, found by a search if one is configured, and those of other arms.
    search = Search(
        **generation.place("search", "source", of=REFERENCE_ARM),
        labels=labels["source"],
        grades=grades["source"],
        stored=list(list_stored_states(config)),
        tune=config.tune.model_copy(update={"space": expand_preset(config.tune.space)}),
        trust=config.trust.without({"search"}),
        share=get_search_share(config, generation.sizes["pool"]),
        risk=budget.risk if config.tune.metric == "certified" else None,
        seed=config.seed,
    )
    fits: dict[str, Stage] = {REFERENCE_ARM: search}
    if not config.trust.search:
        fits[REFERENCE_ARM] = _describe_fit(generation, "trust", config.trust.kind, REFERENCE_ARM, search)
    for kind in arms.find_fitted(config.selection.used):
        fits[kind] = _describe_fit(generation, f"trust-{kind}", kind, kind, search)
    fitted = {name: stage.out("trust") for name, stage in fits.items()}

    # The teacher labels the other splits, the pool last; what has a gold label is graded.
    reducing: dict[str, Any] = {}
    if not config.teacher.store_states:
        reducing = {"fitted": fitted, "sample": {"states": list(config.trust.states), "seed": config.seed}}
    for split in splits[1:]:
        labelled[split] = _describe_labelling(generation, teacher, split, **reducing)
        labels[split] = labelled[split].out("labels")
        if split != "pool" or config.splits.audit:
            grades[split] = describe_grades(generation, split, split, labels[split])

    # Trust and signals score the labels.
    signals, added = _describe_signals(generation, teacher, labelled, labels), {}
    scored = {}
    for split in splits:
        added[split] = describe_part("columns", generation, {"labels": labels}, split)
        columns = {name: stage.out("signal") for name, stage in signals[split].items()}
        for of_feature in added[split].values():
            columns |= of_feature
        scored[split] = Score(
            **generation.place(f"score-{split}", split),
            labels=labels[split],
            fitted={} if reducing and split != "source" else fitted,
            signals=columns,
            of_source=split == "source",
        ).out("labels")

    # Every arm selects as many rows as the budget says, among those that a student can be trained on.
    lengths = _describe_lengths(generation, labels)
    too_long = {split: stage.out("counts") for split, stage in lengths.items()}
    record: dict[str, Any] = {"labels": scored, "grades": grades, "too_long": too_long}
    candidates = describe_part("candidates", generation, record)
    left_out = {name: outs["left_out"] for name, outs in candidates.items()}
    selected = _describe_selection(generation, teacher, labels, scored, grades, lengths, left_out)
    record |= {
        "index": generation.index,
        "teacher": generation.teacher,
        "student_base": base,
        "trust": fitted[REFERENCE_ARM],
        "trust_fit": fits[REFERENCE_ARM].out("fit"),
        "selections": {arm: selected.out("arms", arm, "table") for arm in selecting},
        "formats": {arm: selected.out("arms", arm) for arm in selecting},
        "budget": selected.out("budget"),
        "unseen": selected.out("unseen").or_none,
        "dropped": selected.value("dropped"),
    }

    # If they are pairs, they are written as chosen and rejected answers.
    learned: Stage = selected
    if get_preference_function(get_domain(config.domain_of("pool"))) is not None:
        pairs = WritePreferences(
            name=generation.name("preferences"),
            at=generation.at("pool"),
            selected={arm: table.or_none for arm, table in record["selections"].items()},
            dropped=selected.value("dropped"),
            pool=tables["pool"],
            domain=config.domain_of("pool"),
            num_rows=None if budget.n is None else budget.n * len(selecting),
        )
        record["preferences"] = pairs.value("arms")
        learned = pairs if METHODS[config.student.method].learns == "pairs" else selected

    # Splits, and the rows that pass the cuts, are compared by hidden states or, if there are none, splits by texts.
    similar = [split for split in ("source", "calibration") if split in labels]
    compared: Json = {
        **generation.place("shift", "pool"),
        "pool": labels["pool"],
        "compared": {split: labels[split] for split in similar},
        "states": list(config.compared),
        "seed": config.seed,
    }
    if config.has_states:
        shift = MeasureShift(**compared)
    else:
        examples = {split: tables[split] for split in (*similar, "pool")}
        shift = MeasureTextShift(**compared, examples=examples, domain=config.domain_of("pool").ungraded)
    record["shift"] = shift.out("shift")
    ranking = [arm for arm in selecting if ARMS[arm].ranked and not ARMS[arm].gold]
    if config.has_states and ranking:
        foreign = MeasureSelectedShift(
            **generation.place("selected-shift", "pool"),
            source=scored["source"],
            pool=scored["pool"],
            thresholds={arm: selected.out("arms", arm, "threshold").or_none for arm in ranking},
            states=list(config.compared),
            seed=config.seed,
        )
        record["foreign"] = foreign.out("foreign")

    # Students learn the selected rows, and are tested beside their teacher and their base.
    students = describe_students(generation, teacher, learned, selecting)
    tested = replace(generation, tested=students.tested)
    shallow = Students({}, {}, {}, {}, students.tested)
    if first is not None and base is not None:
        shallow = describe_students(tested, teacher, first, config.chain.arms, prefix="shallow-")

    # The judge is asked about some labels of the graded splits and of each tested model's first run.
    judged = {split: out for split, out in grades.items() if isinstance(out.stage, Judge)}
    if any(isinstance(run.stage, Judge) for runs in students.tests.values() for run in runs):
        judged |= {f"test-{name}": runs[0] for name, runs in students.tests.items()}
    record |= {
        "tests": students.tests,
        "further_tests": students.further_tests,
        "label_counts": {split: labelled[split].value("counts") for split in splits},
        "asked": {what: out.stage.value("num_asked") for what, out in judged.items()},
        "unread": {name: stage.value("num_unread") for name, stage in signals["pool"].items()},
        "repeats": generation.repeats.out("counts"),
        "training": students.training,
        "students": describe_further_students(tested, teacher, learned),
    }
    outs = (added["pool"], candidates, describe_part("selected", generation, record))
    names = dict.fromkeys(name for of_features in outs for name in of_features)
    record["features"] = {
        name: {key: out for of_features in outs for key, out in of_features.get(name, {}).items()} for name in names
    }
    without_a_chain = {
        "tests": {arm: shallow.tests[f"shallow-{arm}"] for arm in shallow.models},
        "training": shallow.training,
    }
    return GenerationStages(record, students.models, labels, search, shallow.tested, selected, without_a_chain)


def get_pool_share(generation: GenerationSpec) -> dict[str, int]:
    """Return a generation's share of the pool (``curation.stages.label.RowShare``) as JSON, the same in all chains."""
    config = generation.config
    return {"index": generation.index, "of": config.num_shares, "seed": derive(config.seed, "share")}


def _describe_labelling(generation: GenerationSpec, teacher: TeacherUse, split: str, **reducing: Any) -> Label | Read:
    """Return the stage that labels a split or, for the pool, the generation's share of it.

    If a local model reads a server's answers (``teacher.reader``), the stage that reads the answers is returned.
    ``reducing``: what takes the place of the states (``fitted``, ``sample``). For a server's answers it goes to
    the stage that reads them, since the bought answers do not depend on it.
    """
    config, reader, endpoint = generation.config, generation.helpers.get(READER), generation.config.teacher.endpoint
    signals = _find_asked_signals(generation, split)
    labelled = Label(
        **generation.place(f"label-{split}", split),
        examples=generation.tables[split],
        teacher=teacher,
        decoding=config.teacher.decoding,
        domain=config.domain_of(split).ungraded,
        seed=generation.seed(f"label-{split}"),
        share=get_pool_share(generation) if split == "pool" and config.num_shares > 1 else None,
        **(reducing if reader is None else {}),
        signals={asked.name: {**asked.settings, "stage": asked.stage} for asked in signals if asked.asks_labelling},
        asks_teacher=generation.index == 0,
        needs=generation.needs,
        **generation.settings,
    )
    if reader is None or endpoint is None:
        return labelled
    return Read(
        **generation.place(f"read-{split}", split),
        examples=generation.tables[split],
        answers=labelled.out("labels"),
        domain=labelled.domain,
        teacher=reader,
        decoding=labelled.decoding,
        reads_numbers=not endpoint.top_logprobs,
        **reducing,
        **generation.settings,
    )


def _describe_fit(generation: GenerationSpec, name: str, kind: str, of: str, search: Search) -> FitTrust:
    """Return the stage that fits a trust function on the rows that the search for one would read."""
    config, trust, function = generation.config, generation.config.trust, arms.find_fitted([kind])[kind]
    closed = None
    if kind == "stacked":
        closed = find_closed_classes(config.domain_of("source"), trust.states, generation.tables["source"])
    return FitTrust(
        **generation.place(name, "source", of=of),
        function=kind,
        made_by=function.made_by,
        fit_by=function.fit,
        labels=search.labels,
        grades=search.grades,
        trust=read_by(kind, function, config.fit_of(kind)).model_copy(update=trust.resources),
        seed=config.seed,
        closed=closed,
        teacher=f"the teacher of generation {generation.index}" if generation.index else None,
    )


class _AskedSignal(NamedTuple):
    """A signal of a split, and whom it asks."""

    signal: arms.Signal
    name: str
    """The name by which ``curation.signals.get_signal`` finds the signal."""
    role: str
    """The model that is asked: ``teacher``, ``UNADAPTED`` or a helper's role."""
    asks_labelling: bool
    """Whether it asks the model that labels, which may thus measure the signal as it labels."""
    stage: str
    settings: Json
    """The settings other than the model on which the signal's values depend."""


def _find_asked_signals(generation: GenerationSpec, split: str) -> list[_AskedSignal]:
    """Return the signals of a split: all arms' for the pool, the reference arm's if a budget reads the split."""
    config, selection = generation.config, generation.config.selection
    reading = selection.used if split == "pool" else ()
    if split in ("calibration", selection.budget.purity_split):
        reading = (selection.budget.reference,)
    was_adapted = generation.unadapted != generation.teacher
    found = []
    for column, signal in arms.find_signals(reading).items():
        role = UNADAPTED if signal.asks == "teacher" and column in ASKS_UNADAPTED else signal.asks
        settings = {
            "seed": generation.seed(f"signal-{column}-{split}"),
            "options": config.signals.options_of(signal),
            "shots": generation.tables["shots"] if signal.shots else None,
        }
        found.append(
            _AskedSignal(
                signal=signal,
                name=column if column in SIGNALS else signal.made_by,
                role=role,
                asks_labelling=role == "teacher" or (role == UNADAPTED and not was_adapted),
                stage=generation.name(f"signal-{column}-{split}"),
                settings=settings,
            )
        )
    return found


def _describe_signals(
    generation: GenerationSpec, teacher: TeacherUse, labelled: Mapping[str, Label | Read], labels: Mapping[str, Out]
) -> dict[str, dict[str, MeasureSignal]]:
    """Return a stage for each signal, by split and column."""
    config = generation.config
    asked = {split: _find_asked_signals(generation, split) for split in labelled}
    roles = {"teacher": teacher, UNADAPTED: teacher, **generation.helpers}
    if any(item.role == UNADAPTED and not item.asks_labelling for item in asked["pool"]):
        ask = config.teacher.ask.model_copy(update=AskConfig.BARE)
        name = generation.name("backend-teacher-unadapted")
        roles[UNADAPTED] = describe_teacher_use(generation.unadapted, ask, name=name)
    found: dict[str, dict[str, MeasureSignal]] = {}
    for split, stage in labelled.items():
        # Further questions are about a server's answers as they were bought.
        answers = cast(Out, stage.answers) if isinstance(stage, Read) else labels[split]
        found[split] = {
            item.signal.column: MeasureSignal(
                name=item.stage,
                at=generation.at(split, of=item.signal.column),
                signal=item.name,
                examples=generation.tables[split],
                labels=answers,
                domain=config.domain_of(split).agreeing,
                teacher=roles[item.role].changed(**AskConfig.BARE),
                decoding=config.teacher.decoding,
                reward=config.signals.reward if item.signal.asks == "reward" else None,
                beside_labels=item.asks_labelling,
                num_rows=generation.sizes[split],
                **item.settings,
                **generation.settings,
            )
            for item in asked[split]
        }
    return found


def _describe_lengths(generation: GenerationSpec, labels: Mapping[str, Out]) -> dict[str, MeasureLength]:
    """Return the stages, by split, that find rows that some arm cannot train on; all arms leave these rows out.

    Without students there are none.
    """
    config, base, recipe = generation.config, generation.base, generation.config.student
    if base is None:
        return {}
    limit = Limit(
        student=replace(base, adapter=None) if isinstance(base, ModelRef) else base,
        max_length=recipe.max_length,
        chat_template=recipe.chat_template,
        completions=_COUNTED[METHODS[recipe.method].learns],
    )
    by_gold = [ARMS[arm].gold for arm in config.selection.arms]
    found = {}
    for split in [split for split in ("calibration", "pool") if split in labels]:
        gold = generation.tables.get("audit" if split == "pool" else split)
        gold = gold if any(by_gold) and limit.completions is True else None
        # What the gold arms of the pool train on follows from these, the labels and the gold labels.
        rollouts = {"wanted": config.selection.gold_rollouts.source, "seed": config.seed}
        found[split] = MeasureLength(
            **generation.place(f"length-{split}", split),
            examples=generation.tables[split],
            labels=labels[split],
            weak=not all(by_gold) or limit.completions is not True,
            gold=gold,
            domain=get_taught_domain(config, split),
            limit=limit,
            rollouts=rollouts if gold and split == "pool" else None,
            split=split,
        )
    return found


def _describe_selection(
    generation: GenerationSpec,
    teacher: TeacherUse,
    labels: Mapping[str, Out],
    scored: Mapping[str, Out],
    grades: Mapping[str, Out],
    lengths: Mapping[str, MeasureLength],
    left_out: Mapping[str, Out],
) -> Select:
    """Return the stage that selects for all arms, after rollouts for gold arms; ``left_out``: rows by feature."""
    config, budget, tables = generation.config, generation.config.selection.budget, generation.tables
    too_long = {split: stage.out("too_long").or_none for split, stage in lengths.items()}
    # ``divided`` stands for these keys.
    selection = config.selection.without({name for name, _, _ in parts(config, "divided")})

    def choose(labels: Mapping[str, Out]) -> ChoiceInputs:
        splits = {
            split: ScoredSplit(labels=labels[split], grades=grades.get(split), too_long=too_long.get(split))
            for split in labels
        }
        return ChoiceInputs(
            pool=tables["pool"],
            labels=labels["pool"],
            grades=grades.get("pool"),
            too_long=too_long.get("pool"),
            repeats=generation.repeats.out("repeats").or_none,
            labelled=tables["source"],
            audit=tables.get("audit"),
            measured=splits[budget.purity_split or "source"],
            calibration=splits.get("calibration"),
            domain=config.domain_of("pool"),
            selection=selection.without({"gold_rollouts"}),
            declared=collect_declared(config.selection),
            seed=config.seed,
        )

    divided = describe_part("divided", generation, {"labels": labels, "grades": grades})
    read = {name: inputs for name, inputs in divided.items() if inputs is not None}
    choice = replace(choose(scored), left_out=left_out, divided=read)
    texts: Any = None
    gold_arms = tuple(arm for arm in selection.arms if ARMS[arm].gold)
    if METHODS[config.student.method].learns != "completions":
        texts = {"source": "label", "samples": None}
    elif gold_arms:
        # Where the draw depends on no score, labels without scores stand for it, so that a changed trust function
        # does not ask the teacher again.
        by_score = any(ARMS[arm].ranked for arm in gold_arms) or budget.reads_scores
        of_gold = selection.model_copy(update={"arms": gold_arms})
        drawn = replace(choice if by_score else choose(labels), selection=of_gold, declared=collect_declared(of_gold))
        texts = RollOut(
            name=generation.name("rollouts"),
            at=generation.at("pool"),
            choice=drawn,
            teacher=teacher.changed(**AskConfig.BARE),
            decoding=config.teacher.decoding,
            rollout_seed=generation.seed("rollouts"),
            limit=lengths["pool"].limit if lengths else None,
            **generation.settings,
        ).value("texts")
    return Select(
        name=generation.name("select"),
        at=generation.at("pool"),
        choice=choice,
        texts=texts,
        teacher=None if config.teacher.reader is not None else generation.teacher,  # what reads labels gave none
        generation=generation.index,
        num_rows=None if budget.n is None else budget.n * len(selection.arms),
    )
