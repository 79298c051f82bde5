"""One generation: a teacher labels, trust is fitted and scores, arms select, students learn and are tested."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from curation import arms, report, store
from curation.backends import own_teacher, settled
from curation.config import ModelConfig, PcaConfig, RunConfig, TeacherConfig
from curation.labelling import answer, label
from curation.learning import base_model, too_long, train_model
from curation.measuring import grade, signal
from curation.places import Place
from curation.refs import ModelRef, TableRef
from curation.rollouts import gold_arms, roll_out
from curation.runs import Done, Generation, Run, say
from curation.trusting import fit, project, score

if TYPE_CHECKING:
    from curation.stages.gold import GoldTexts
    from curation.stages.select import SelectJob


def run_generation(run: Run, generation: Generation) -> tuple[report.GenerationRecord, dict[str, ModelRef]]:
    """Label, fit, score, select, train and test; the record for the report and the students by arm."""
    config = run.config
    splits, store_states = labelled_splits(config), config.teacher.store_states
    signals = {split: signals_on(config, split) for split in splits}
    at_first = splits if store_states is True else splits[:1]
    labels = {split: label(run, generation, split, signals=signals[split]) for split in at_first}
    grades = {"source": grade(run, generation, "source", "source", labels["source"])}
    projection = None
    if isinstance(store_states, PcaConfig):
        labels["source"], projection = project(run, generation, labels["source"], store_states.pca)
    fitted = fit(run, generation, labels["source"], grades["source"])
    as_labelled = fitted if store_states is False else None
    for split in splits[len(labels) :]:
        labels[split] = label(run, generation, split, signals=signals[split], projection=projection, fitted=as_labelled)
    scored = {}
    for split in splits:
        if split != "source" and (split != "pool" or config.splits.audit):
            grades[split] = grade(run, generation, split, split, labels[split])
        measured = {name: signal(run, generation, name, split, labels[split]) for name in signals[split]}
        functions = {} if as_labelled is not None and split != "source" else fitted
        scored[split] = score(run, generation, split, labels[split], functions, measured)
    shift = _shift(run, generation, labels)
    base = _student_base(run, generation)
    longer = {} if base is None else {s: too_long(run, generation, s, labels[s], base) for s in length_splits(config)}
    budget, selected = _select(run, generation, labels, scored, grades, longer, base)
    selections = {arm: TableRef.from_json(item["table"]) for arm, item in selected.items()}
    students, tests = _students(run, generation, base, selected)
    record = report.GenerationRecord(
        index=generation.index,
        teacher=generation.teacher,
        student_base=base,
        labels=scored,
        grades=grades,
        trust=fitted[arms.REFERENCE_ARM],
        trust_fit=run.manifest.stages[generation.name("trust")].outputs["fit"],
        selections=selections,
        formats={arm: {key: item[key] for key in report.FORMAT} for arm, item in selected.items()},
        budget=budget,
        shift=shift,
        tests=tests,
        label_counts={
            split: run.manifest.stages[generation.name(f"label-{split}")].outputs["counts"] for split in splits
        },
        projection=None if projection is None else run.manifest.stages[generation.name("pca")].outputs["fit"],
        asked=_asked(run, generation, grades, tests),
        unread={
            name: run.manifest.stages[generation.name(f"signal-{name}-pool")].outputs["num_unread"]
            for name in signals["pool"]
        },
        too_long={split: run.manifest.stages[generation.name(f"length-{split}")].outputs for split in longer},
        training={arm: run.manifest.stages[generation.name(f"student-{arm}")].outputs["training"] for arm in students},
    )
    return record, students


def generation_stages(config: RunConfig, index: int) -> list[str]:
    """The names of a generation's stages, in the order in which they are done."""

    def made(name: str, model: ModelConfig | None) -> list[str]:
        return [f"{name}-base"] if index == 0 and model is not None and model.init is not None else []

    def settling(role: str, *, once: bool = False) -> list[str]:
        return [f"backend-{role}"] if config.teacher.backend == "auto" and not (once and index) else []

    def grading(stage: str, split: str) -> list[str]:
        judge = config.judge
        if judge is None or split not in judge.splits:
            return [f"grade-{stage}"]
        return [f"grade-{stage}", *made("judge", judge.model), *settling("judge", once=True), f"judge-{stage}"]

    splits, store_states = labelled_splits(config), config.teacher.store_states
    labelling = [f"label-{split}" for split in splits]
    stages = settling("teacher")
    stages += labelling if store_states is True else labelling[:1]
    stages += grading("source", "source")
    stages += ["pca"] if isinstance(store_states, PcaConfig) else []
    stages += ["trust"]
    stages += [f"trust-{name}" for name in arms.fitted_of(config.selection.used) if name != arms.REFERENCE_ARM]
    stages += labelling if store_states is not True else []
    for split in splits:
        if split != "source" and (split != "pool" or config.splits.audit):
            stages += grading(split, split)
        for name in signals_on(config, split):
            if name == "ensemble_agreement" and index == 0:
                stages += made("second-teacher", config.signals.second_teacher)
                stages += ["second-teacher"] if config.teacher.adapt is not None else []
                stages += settling("second-teacher")
            if name == "reward" and (reward := config.signals.reward) is not None:
                stages += made("reward", reward.model)
                stages += settling("reward", once=True) if reward.kind == "verifier" else []
            stages.append(f"signal-{name}-{split}")
        stages.append(f"score-{split}")
    stages += ["shift"]
    if config.generations and config.generations[index].student.init is not None:
        stages += ["student-base"]
    stages += [f"length-{split}" for split in length_splits(config)]
    stages += [*(["rollouts"] if gold_arms(config) else []), "select"]
    if config.generations:
        stages += [f"student-{arm}" for arm in config.selection.arms]
        stages += settling("student")
        for name in ("teacher", "base", *config.selection.arms):
            for stage in test_stages(config, name):
                stages += [stage, *grading(stage, "test")]
    return [f"gen-{index}/{stage}" for stage in dict.fromkeys(stages)]


def labelled_splits(config: RunConfig) -> list[str]:
    """The splits that the teacher labels, the source first and the pool last."""
    calibration = ["calibration"] if config.selection.budget.risk is not None else []
    return ["source", *calibration, *(f"probe-{name}" for name in config.splits.probes), "pool"]


def length_splits(config: RunConfig) -> list[str]:
    """The splits whose over-long rows are left out: the pool and what calibrates its cut, if students are trained."""
    labelled = labelled_splits(config) if config.generations else []
    return [split for split in labelled if split in ("calibration", "pool")]


def signals_on(config: RunConfig, split: str) -> tuple[str, ...]:
    """The signals that are made for a split: the arms' for the pool, the reference arm's where a budget reads it."""
    selection = config.selection
    if split == "pool":
        return arms.signals_of(selection.used)
    reads_reference = split in ("calibration", selection.budget.purity_split)
    return arms.signals_of((selection.budget.reference,)) if reads_reference else ()


def test_stages(config: RunConfig, name: str) -> list[str]:
    """The stages that test one model, one a run."""
    runs = config.evaluation.num_runs
    return [f"test-{name}" if runs == 1 else f"test-{name}-{number}" for number in range(runs)]


def _asked(run: Run, generation: Generation, graded: Iterable[str], tested: Iterable[str]) -> dict[str, int]:
    """How many labels the judge was asked about, by graded split and ``test-<model>``, where it was asked at all."""
    judge = run.config.judge
    if judge is None:
        return {}
    stages = {split: split for split in graded if split in judge.splits}
    if "test" in judge.splits:
        stages |= {f"test-{name}": test_stages(run.config, name)[0] for name in tested}
    return {what: run.manifest.stages[generation.name(f"judge-{stage}")].rows for what, stage in stages.items()}


def _shift(run: Run, generation: Generation, labels: Mapping[str, TableRef]) -> dict[str, Any]:
    """How the teacher's states of the pool differ from those of the source and, where there is one, the calibration."""
    config = run.config
    compared = {split: labels[split] for split in ("source", "calibration") if split in labels}
    inputs = {
        "pool": labels["pool"].to_json(),
        "compared": {split: ref.to_json() for split, ref in compared.items()},
        "states": list(config.fitting.states),
        "seed": config.seed,
    }

    def work(directory: Place) -> Done:
        from curation.stages.shift import measure_shift

        found = {
            split: measure_shift(ref, labels["pool"], config.fitting.states, seed=config.seed)
            for split, ref in compared.items()
        }
        return Done(outputs=found, rows=store.count(labels["pool"]))

    return run.stage(generation.name("shift"), inputs, work)


def _select(
    run: Run,
    generation: Generation,
    labels: Mapping[str, TableRef],
    scored: Mapping[str, TableRef],
    grades: Mapping[str, TableRef],
    longer: Mapping[str, TableRef | None],
    base: ModelRef | None,
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The budget and each arm's ``Selection``, both as JSON."""
    config, tables = run.config, generation.tables
    audit = tables.get("audit")
    measured = config.selection.budget.purity_split or "source"
    read = (measured, "calibration", "pool")
    inputs = {
        "pool": tables["pool"].to_json(),
        "labels": {split: scored[split].to_json() for split in read if split in scored},
        "grades": {split: grades[split].to_json() for split in read if split in grades},
        "audit": None if audit is None else audit.to_json(),
        "too_long": {split: ref.to_json() for split, ref in longer.items() if ref is not None},
        "domain": config.domain_of("pool").model_dump(mode="json"),
        "selection": config.selection.model_dump(mode="json", exclude={"gold_rollouts"}),
        "seed": config.seed,
    }

    def job_with(texts: "GoldTexts") -> "SelectJob":
        from curation.stages.budget import Scored
        from curation.stages.select import SelectJob

        rows = {
            split: Scored(labels=ref, grades=grades.get(split), too_long=longer.get(split))
            for split, ref in scored.items()
        }
        return SelectJob(
            pool=tables["pool"],
            labels=scored["pool"],
            audit=audit,
            grades=grades.get("pool"),
            measured=rows[measured],
            too_long=longer.get("pool"),
            texts=texts,
            calibration=rows.get("calibration"),
            domain=config.domain_of("pool"),
            selection=config.selection,
            teacher=generation.teacher,
            generation=generation.index,
            seed=config.seed,
        )

    unscored = {split: labels[split].to_json() for split in read if split in scored}
    texts = roll_out(run, generation, job_with, inputs, unscored=unscored, student=base)
    inputs["texts"] = asdict(texts)

    def work(directory: Place) -> Done:
        from curation.stages.select import select

        budget, selections = select(job_with(texts), directory)
        for selection in selections:
            say(f"{generation.name('select')}: {selection.words}")
        chosen = {selection.arm: asdict(selection) for selection in selections}
        outputs = {"budget": asdict(budget), "arms": chosen}
        return Done(outputs=outputs, rows=sum(selection.num_rows for selection in selections))

    outputs = run.stage(generation.name("select"), inputs, work)
    if not outputs["budget"]["n"]:
        say(f"{generation.name('select')}: NOTHING IS SELECTED: {outputs['budget']['risk']['guarantee']}")
    return outputs["budget"], outputs["arms"]


def _student_base(run: Run, generation: Generation) -> ModelRef | None:
    """What the generation's students are trained from; None where none are."""
    if not run.config.generations:
        return None
    return base_model(run, run.config.generations[generation.index].student, generation.name("student-base"))


def _students(
    run: Run, generation: Generation, base: ModelRef | None, selected: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, ModelRef], dict[str, list[TableRef]]]:
    """The students by arm, and the grades of every model's tests, a table a run."""
    config = run.config
    if base is None:
        return {}, {}
    students = {}
    for arm, item in selected.items():
        if item["num_rows"]:
            rows = TableRef.from_json(item["table"])
            name = generation.name(f"student-{arm}")
            students[arm] = train_model(run, name, base, config.student, rows, item["digest"])
    asked = settled(run, config.teacher, base, generation.name("backend-student"))
    tests = {"teacher": _tests(run, generation, "teacher", generation.teacher, own_teacher(run, generation))}
    for name, model in {"base": base, **students}.items():
        tests[name] = _tests(run, generation, name, model, asked)
    return students, tests


def _tests(
    run: Run, generation: Generation, name: str, model: ModelRef | None, teacher: TeacherConfig
) -> list[TableRef]:
    """The grades of a model's answers to the test split, one table a run."""
    tables = []
    for stage in test_stages(run.config, name):
        labels = answer(run, generation, stage, model, teacher)
        tables.append(grade(run, generation, stage, "test", labels))
    return tables
