"""One generation: a teacher labels, trust is fitted and scores, arms select, students learn and are tested."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from curation import arms
from curation.arms import ARMS, REFERENCE_ARM
from curation.config import AskConfig
from curation.domains import get_domain, get_preference_function
from curation.features import parts
from curation.json_types import Json
from curation.pipeline.extending import describe_part
from curation.pipeline.grading import describe_grades
from curation.pipeline.roles import READER, GenerationSpec, Known, describe_teacher_use
from curation.pipeline.students import Students, describe_further_students, describe_lengths, describe_students
from curation.registry import METHODS
from curation.rundir.graph import Out, Stage
from curation.signals import ASKS_UNADAPTED, SIGNALS
from curation.stages.asking import TeacherUse
from curation.stages.chooser import ChoiceInputs, collect_declared
from curation.stages.fit import FitTrust, Search, find_closed_classes, list_stored_states
from curation.stages.gold import MeasureLength
from curation.stages.label import Label, Read
from curation.stages.pool_scores import ScoredSplit
from curation.stages.rollouts import RollOut
from curation.stages.score import Score
from curation.stages.select import Select, WritePreferences
from curation.stages.shift import MeasureSelectedShift, MeasureShift, MeasureTextShift
from curation.stages.signal import Judge, MeasureSignal
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
    config, base, tables = generation.config, generation.base, generation.tables
    budget, selecting = config.selection.budget, config.selection.arms
    num_selected = None if budget.n is None else budget.n * len(selecting)
    calibration = ["calibration"] if budget.needs_calibration else []
    splits = ["source", *calibration, *(f"probe-{name}" for name in config.splits.probes), "pool"]

    # The teacher labels the source split, and its labels are graded.
    ask = config.teacher.labelling.paid_in(str(config.directory))
    teacher = describe_teacher_use(generation.teacher, ask)
    unadapted = teacher
    if generation.unadapted != generation.teacher:
        unadapted = describe_teacher_use(generation.unadapted, config.teacher.ask.model_copy(update=AskConfig.BARE))
    labelled, signals = dict[str, Label | Read](), dict[str, dict[str, MeasureSignal]]()
    labelled["source"], signals["source"] = _describe_labels(generation, teacher, unadapted, "source")
    labels = {"source": labelled["source"].out("labels")}
    grades = {"source": describe_grades(generation, "source", "source", labels["source"])}

    # Trust is fitted on them: the method's function, found by a search if one is configured, and those of other arms.
    search = Search(
        **generation.place("search", "source", of=REFERENCE_ARM),
        labels=labels["source"],
        grades=grades["source"],
        stored=list(list_stored_states(config)),
        tune=config.tune.model_copy(update={"space": expand_preset(config.tune.space)}),
        trust=config.trust.without({"search"}),
        seed=config.seed,
    )
    fits: dict[str, Stage] = {REFERENCE_ARM: search}
    kinds = {kind: (f"trust-{kind}", kind) for kind in arms.find_fitted(config.selection.used)}
    if not config.trust.search:
        kinds = {REFERENCE_ARM: ("trust", config.trust.kind), **kinds}
    for of, (name, kind) in kinds.items():
        function, trust, closed = arms.find_fitted([kind])[kind], config.trust, None
        if kind == "stacked":
            closed = find_closed_classes(config.domain_of("source"), trust.states, tables["source"])
        fits[of] = FitTrust(
            **generation.place(name, "source", of=of),
            function=kind,
            made_by=function.made_by,
            fit_by=function.fit,
            labels=labels["source"],
            grades=grades["source"],
            trust=read_by(kind, function, config.fit_of(kind)).model_copy(update=trust.resources),
            seed=config.seed,
            closed=closed,
            teacher=f"the teacher of generation {generation.index}" if generation.index else None,
        )
    fitted = {name: stage.out("trust") for name, stage in fits.items()}

    # The teacher labels the other splits, the pool last; what has a gold label is graded.
    sample = {"states": list(config.trust.states), "seed": config.seed}
    reducing: Json = {} if config.teacher.store_states else {"fitted": fitted, "sample": sample}
    for split in splits[1:]:
        labelled[split], signals[split] = _describe_labels(generation, teacher, unadapted, split, **reducing)
        labels[split] = labelled[split].out("labels")
        if split != "pool" or config.splits.audit:
            grades[split] = describe_grades(generation, split, split, labels[split])

    # Trust and signals score the labels.
    scored, added = dict[str, Out](), Json()
    for split in splits:
        added = describe_part("columns", generation, {"labels": labels}, split)  # the last are the pool's
        columns = {name: stage.out("signal") for name, stage in signals[split].items()}
        for of_feature in added.values():
            columns |= of_feature
        scored[split] = Score(
            **generation.place(f"score-{split}", split),
            labels=labels[split],
            fitted={} if reducing and split != "source" else fitted,
            signals=columns,
            of_source=split == "source",
        ).out("labels")

    # Every arm selects as many rows as the budget says, among those that a student can be trained on.
    lengths = describe_lengths(generation, labels)
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
    }

    # If they are pairs, they are written as chosen and rejected answers.
    learned: Stage = selected
    if get_preference_function(get_domain(config.domain_of("pool"))) is not None:
        pairs = WritePreferences(
            **generation.place("preferences", "pool", num_rows=num_selected),
            selected=record["selections"],
            pool=tables["pool"],
            domain=config.domain_of("pool"),
        )
        record["preferences"] = pairs.value("arms")
        learned = pairs if METHODS[config.student.method].learns == "pairs" else selected

    # Splits, and the rows that pass the cuts, are compared by hidden states; without these, splits by texts.
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
    outs = (added, candidates, describe_part("selected", generation, record))
    names = dict.fromkeys(name for of_features in outs for name in of_features)
    record["features"] = {
        name: {key: out for of_features in outs for key, out in of_features.get(name, {}).items()} for name in names
    }
    tests = {arm: shallow.tests[f"shallow-{arm}"] for arm in shallow.models}
    without_a_chain = {"tests": tests, "training": shallow.training}
    return GenerationStages(record, students.models, labels, search, shallow.tested, selected, without_a_chain)


def _describe_labels(
    generation: GenerationSpec, teacher: TeacherUse, unadapted: TeacherUse, split: str, **reducing: Any
) -> tuple[Label | Read, dict[str, MeasureSignal]]:
    """Return the stage that labels a split or, for the pool, the generation's share of it, and those of its signals.

    If a local model reads a server's answers (``teacher.reader``), the stage that reads the answers is returned.
    ``unadapted``: the teacher before it was adapted. ``reducing``: what takes the place of the states (``fitted``,
    ``sample``). For a server's answers it goes to the stage that reads them, since the bought answers do not depend on
    it. All arms' signals are of the pool; of a split that the budget reads, those of its reference arm.
    """
    config, selection = generation.config, generation.config.selection
    reader, endpoint = generation.helpers.get(READER), config.teacher.endpoint
    reading = selection.used if split == "pool" else ()
    if split in ("calibration", selection.budget.purity_split):
        reading = (selection.budget.reference,)

    # A signal that asks the model that labels may be measured as it labels.
    asked: dict[str, Json] = {}
    beside: dict[str, Json] = {}
    for column, signal in arms.find_signals(reading).items():
        use = generation.helpers[signal.asks] if signal.asks != "teacher" else teacher
        use = unadapted if signal.asks == "teacher" and column in ASKS_UNADAPTED else use
        name, place = column if column in SIGNALS else signal.made_by, f"signal-{column}-{split}"
        settings = {
            "seed": generation.seed(place),
            "options": config.signals.options_of(signal),
            "shots": generation.tables["shots"] if signal.shots else None,
        }
        reward = config.signals.reward if signal.asks == "reward" else None
        placed = generation.place(place, split, of=column)
        asked[column] = {**placed, "signal": name, "teacher": use, "reward": reward, **settings}
        if use is teacher:
            beside[name] = {**settings, "stage": placed["name"]}
    labelled = Label(
        **generation.place(f"label-{split}", split),
        examples=generation.tables[split],
        teacher=teacher,
        decoding=config.teacher.decoding,
        domain=config.domain_of(split).ungraded,
        seed=generation.seed(f"label-{split}"),
        share=generation.pool_share if split == "pool" and config.num_shares > 1 else None,
        **(reducing if reader is None else {}),
        signals=beside,
        asks_teacher=generation.index == 0,
        needs=generation.needs,
        **generation.settings,
    )
    signals = {
        column: MeasureSignal(
            **{**of, "teacher": of["teacher"].changed(**AskConfig.BARE)},
            examples=generation.tables[split],
            labels=labelled.out("labels"),  # of a server: as they were bought
            domain=config.domain_of(split).agreeing,
            decoding=config.teacher.decoding,
            beside_labels=of["teacher"] is teacher,
            **generation.settings,
        )
        for column, of in asked.items()
    }
    if reader is None or endpoint is None:
        return labelled, signals
    read = Read(
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
    return read, signals


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

    def make_inputs(labels: Mapping[str, Out]) -> ChoiceInputs:
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
    divided = {name: inputs for name, inputs in divided.items() if inputs is not None}
    choice = replace(make_inputs(scored), left_out=left_out, divided=divided)
    texts: Any = None
    gold_arms = tuple(arm for arm in selection.arms if ARMS[arm].gold)
    if METHODS[config.student.method].learns != "completions":
        texts = {"source": "label", "samples": None}
    elif gold_arms:
        # Where the draw depends on no score, labels without scores stand for it, so that a changed trust function
        # does not ask the teacher again.
        by_score = any(ARMS[arm].ranked for arm in gold_arms) or budget.reads_scores
        of_gold = selection.model_copy(update={"arms": gold_arms})
        drawn = choice if by_score else make_inputs(labels)
        texts = RollOut(
            **generation.place("rollouts", "pool", num_rows=None),
            choice=replace(drawn, selection=of_gold, declared=collect_declared(of_gold)),
            teacher=teacher.changed(**AskConfig.BARE),
            decoding=config.teacher.decoding,
            rollout_seed=generation.seed("rollouts"),
            limit=lengths["pool"].limit if lengths else None,
            **generation.settings,
        ).value("texts")
    return Select(
        **generation.place("select", "pool", num_rows=None if budget.n is None else budget.n * len(selection.arms)),
        choice=choice,
        texts=texts,
        teacher=None if config.teacher.reader is not None else generation.teacher,  # a reader gave no labels
        generation=generation.index,
    )
