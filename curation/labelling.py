"""What a generation's teacher gives for a split: labels, signals, grades and trust scores.

Each function here is one stage: what it reads and how it is done, handed to :meth:`curation.runs.Run.stage`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from curation import arms, models, progress, store
from curation.config import DecodingConfig, TeacherConfig, TrainSection, TrustConfig
from curation.errors import RunFailedError
from curation.hashing import derive
from curation.learning import base_model, teacher_model
from curation.refs import ModelRef, ProjectionRef, TableRef, TrustRef
from curation.runs import Done, Run, say


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What a generation works with."""

    index: int
    teacher: ModelRef | None
    tables: dict[str, TableRef]
    num_shares: int

    def name(self, stage: str) -> str:
        """The name of one of its stages, e.g. ``gen-0/select``."""
        return f"gen-{self.index}/{stage}"


PROBE_KEYS = {"states", "class_weight", "validation_fraction"}
"""What of ``TrustConfig`` a linear probe reads."""

# What changes how labels are made, not what they are: how rows are spread over actors. What is stored of the states
# goes into the inputs as the trust functions or the projection that it takes.
_SPREAD = {"actors", "chunk_rows", "max_error_rate", "store_states"}


def label(
    run: Run,
    generation: Generation,
    split: str,
    *,
    projection: ProjectionRef | None = None,
    fitted: Mapping[str, TrustRef] | None = None,
) -> TableRef:
    """The teacher's labels of a split; of the pool those of the generation's share.

    With all states; with their ``projection`` instead; or with the scores of ``fitted`` trust functions instead.
    """
    from curation.stages.label import Share
    from curation.stages.reduce import Projected, Reduction, ScoredOnly

    share = Share()
    if split == "pool" and generation.num_shares > 1:
        share = Share(index=generation.index, of=generation.num_shares, seed=derive(run.config.seed, "share"))
    reduction: Reduction | None = None if projection is None else Projected(projection=projection)
    if fitted is not None:
        reduction = ScoredOnly(
            fitted=tuple(fitted.items()),
            states=run.config.trust.states,
            num_rows=store.count(generation.tables[split]) // share.of,
            seed=run.config.seed,
        )
    teacher = run.config.teacher
    return complete(
        run, generation, f"label-{split}", split, generation.teacher, teacher, teacher.decoding, share, reduction
    )


def complete(
    run: Run,
    generation: Generation,
    stage: str,
    split: str,
    model: ModelRef | None,
    teacher: TeacherConfig,
    decoding: DecodingConfig,
    share: Any,
    reduction: Any = None,
) -> TableRef:
    """Label a split with a model: the label stage of a teacher, and the test of a student."""
    from curation.stages.label import count_labels
    from curation.stages.label import label as label_stage
    from curation.stages.label_actor import LabelJob

    name = generation.name(stage)
    job = LabelJob(
        examples=generation.tables[split],
        labels_uri="",
        domain=run.config.domain_of(split),
        teacher=teacher,
        model=model,
        decoding=decoding,
        seed=derive(run.config.seed, name),
        reduction=reduction,
    )
    inputs = {
        "examples": job.examples.to_json(),
        "model": None if model is None else model.to_json(),
        "domain": job.domain.model_dump(mode="json"),
        "teacher": teacher.model_dump(mode="json", exclude={"model", "adapt", "decoding", *_SPREAD}),
        "decoding": decoding.model_dump(mode="json"),
        "seed": job.seed,
        "share": asdict(share),
        **({} if reduction is None else reduction.to_json()),
    }

    def work(directory: Path) -> Done:
        with progress.bar(name) as shown:
            ref = label_stage(
                replace(job, labels_uri=str(directory / "labels.lance")),
                state_size=teacher.scripted.state_size if model is None else models.state_size(model),
                share=share,
                commit_seconds=run.config.commit_seconds,
                progress=run.progress(name, shown),
            )
        counts = count_labels(ref)
        return Done(outputs={"labels": ref.to_json(), "counts": asdict(counts)}, rows=counts.rows)

    return TableRef.from_json(run.stage(name, inputs, work)["labels"])


def grade(run: Run, generation: Generation, stage: str, split: str, labels: TableRef) -> TableRef:
    """Which labels of a split are right, by the domain's rule and, where it is asked, the judge (``tables.GRADES``)."""
    name = generation.name(f"grade-{stage}")
    gold = generation.tables["audit" if split == "pool" else split]
    domain = run.config.domain_of(split)
    inputs = {"labels": labels.to_json(), "gold": gold.to_json(), "domain": domain.model_dump(mode="json")}

    def work(directory: Path) -> Done:
        from curation.stages.grade import grade as grade_stage

        with progress.bar(name) as shown:
            ref = grade_stage(labels, gold, domain, str(directory / "grades.lance"), progress=shown)
        return Done(outputs={"grades": ref.to_json()}, rows=store.count(ref))

    grades = TableRef.from_json(run.stage(name, inputs, work)["grades"])
    judge = run.config.judge
    return _judged(run, generation, stage, split, labels, grades) if judge and split in judge.splits else grades


def _judged(run: Run, generation: Generation, stage: str, split: str, labels: TableRef, grades: TableRef) -> TableRef:
    config = run.config
    assert config.judge is not None, "asked only where a judge is given"
    name = generation.name(f"judge-{stage}")
    judge = base_model(run, config.judge.model, "gen-0/judge-base")
    gold = generation.tables["audit" if split == "pool" else split]
    asked = _asker(config.teacher).model_copy(update={"chat_template": config.judge.chat_template})
    inputs = {
        "grades": grades.to_json(),
        "labels": labels.to_json(),
        "gold": gold.to_json(),
        "judge": judge.to_json(),
        "decoding": config.judge.decoding.model_dump(mode="json"),
        "domain": config.domain_of(split).model_dump(mode="json"),
        "teacher": asked.model_dump(mode="json", exclude={"model", "adapt", "decoding", *_SPREAD}),
        "seed": derive(config.seed, name),
    }

    def work(directory: Path) -> Done:
        import numpy as np

        from curation.stages.grade import overrule
        from curation.stages.signal import SignalJob, signal

        wrong_N = store.read(grades, columns=["row_id"], filter="correct = false")["row_id"].to_numpy()
        parsed_N = store.read(labels, columns=["row_id"], filter="label IS NOT NULL")["row_id"].to_numpy()
        assert config.judge is not None, "asked only where a judge is given"
        job = SignalJob(
            signal="judge",
            examples=generation.tables[split],
            labels=labels,
            uri=str(directory / "verdicts.lance"),
            domain=config.domain_of(split),
            teacher=asked,
            model=judge,
            decoding=config.judge.decoding,
            seed=derive(config.seed, name),
            gold=gold,
        )
        with progress.bar(name) as shown:
            verdicts = signal(
                job,
                np.intersect1d(wrong_N, parsed_N),
                commit_seconds=config.commit_seconds,
                progress=run.progress(name, shown),
            )
        ref = overrule(grades, verdicts, str(directory / "grades.lance"))
        return Done(outputs={"grades": ref.to_json()}, rows=store.count(verdicts))

    return TableRef.from_json(run.stage(name, inputs, work)["grades"])


def signal(run: Run, generation: Generation, name: str, split: str, labels: TableRef) -> TableRef:
    """One more number for each row of a split that has a weak label (``tables.SIGNAL``)."""
    config = run.config
    stage = generation.name(f"signal-{name}-{split}")
    options: dict[str, Any] = {}
    model, teacher, reward = generation.teacher, _asker(config.teacher), None
    if name == "icl_mean_logprob":
        options["shots"] = store.read(generation.tables["shots"], filter="error IS NULL").to_pylist()
    elif name == "self_consistency":
        options = config.signals.self_consistency.model_dump()
    elif name == "ensemble_agreement":
        assert config.signals.second_teacher is not None, "RunConfig refuses an ensemble of one"
        model = teacher_model(run, config.signals.second_teacher, generation.tables, "second-teacher")
    elif name == "reward":
        reward = config.signals.reward
        assert reward is not None, "RunConfig refuses a reward arm without a model"
        model = base_model(run, reward.model, "gen-0/reward-base")
        teacher = teacher.model_copy(update={"chat_template": reward.chat_template})
    seed = derive(config.seed, stage)
    inputs = {
        "labels": labels.to_json(),
        "examples": generation.tables[split].to_json(),
        "domain": config.domain_of(split).model_dump(mode="json"),
        "options": options,
        "model": None if model is None else model.to_json(),
        "reward": None if reward is None else reward.model_dump(mode="json"),
        "teacher": teacher.model_dump(mode="json", exclude={"model", "adapt", *_SPREAD}),
        "seed": seed,
    }

    def work(directory: Path) -> Done:
        from curation.stages.signal import SignalJob
        from curation.stages.signal import signal as signal_stage

        job = SignalJob(
            signal=name,
            examples=generation.tables[split],
            labels=labels,
            uri=str(directory / "signal.lance"),
            domain=config.domain_of(split),
            teacher=teacher,
            model=model,
            decoding=config.teacher.decoding,
            seed=seed,
            options=options,
            reward=reward,
        )
        parsed_N = store.read(labels, columns=["row_id"], filter="label IS NOT NULL AND error IS NULL")
        with progress.bar(stage) as shown:
            ref = signal_stage(
                job,
                parsed_N["row_id"].to_numpy(),
                commit_seconds=config.commit_seconds,
                progress=run.progress(stage, shown),
            )
        num_rows, num_read = store.count(ref), store.count(ref, filter="value IS NOT NULL")
        if num_rows and not num_read:
            raise RunFailedError(
                f"none of {num_rows:,} rows gave a value that can be read, so no arm can rank by it; "
                "look at the model and its answers, or drop the arm"
            )
        return Done(outputs={"signal": ref.to_json(), "num_unread": num_rows - num_read}, rows=num_rows)

    return TableRef.from_json(run.stage(stage, inputs, work)["signal"])


def project(run: Run, generation: Generation, labels: TableRef, size: int) -> tuple[TableRef, ProjectionRef]:
    """The source split's labels with the projection of their hidden states as a column, and the projection."""
    config = run.config
    inputs = {
        "labels": labels.to_json(),
        "size": size,
        "states": list(config.trust.states),
        "validation_fraction": config.trust.validation_fraction,
        "seed": config.seed,
    }

    def work(directory: Path) -> Done:
        from curation.stages.project import add_projection, fit_pca
        from curation.trust.pca import load_projection

        ref = fit_pca(
            labels,
            config.trust.states,
            size=size,
            validation_fraction=config.trust.validation_fraction,
            seed=config.seed,
            output=directory / "pca",
        )
        kept = load_projection(ref).fit["variance_kept"]
        say(f"{generation.name('pca')}: {size} components keep {kept:.1%} of the variance")
        outputs = {"labels": add_projection(labels, ref).to_json(), "projection": ref.to_json(), "variance_kept": kept}
        return Done(outputs=outputs, rows=store.count(labels))

    outputs = run.stage(generation.name("pca"), inputs, work)
    return TableRef.from_json(outputs["labels"]), ProjectionRef.from_json(outputs["projection"])


def fit(run: Run, generation: Generation, labels: TableRef, grades: TableRef) -> dict[str, TrustRef]:
    """The trust functions that the arms need, fitted on the source split, by name; the neural one always."""
    config = run.config
    names = dict.fromkeys((arms.REFERENCE_ARM, *arms.fitted_of(config.selection.used)))
    fitted: dict[str, TrustRef] = {}
    for name in names:
        read = PROBE_KEYS if name == "linear_probe" else set(TrustConfig.model_fields) - TrainSection.RESOURCES
        inputs = {
            "labels": labels.to_json(),
            "grades": grades.to_json(),
            "trust": config.fitting.model_dump(mode="json", include=read),
            "seed": config.seed,
        }

        def work(directory: Path, name: str = name) -> Done:
            from train.trust import FITS

            trust = FITS[name](labels, grades, config.fitting, seed=config.seed, output=directory)
            return Done(outputs={"trust": trust.to_json()}, rows=store.count(labels))

        stage = "trust" if name == arms.REFERENCE_ARM else f"trust-{name}"
        fitted[name] = TrustRef.from_json(run.stage(generation.name(stage), inputs, work)["trust"])
    return fitted


def score(
    run: Run,
    generation: Generation,
    split: str,
    labels: TableRef,
    fitted: Mapping[str, TrustRef],
    signals: Mapping[str, TableRef],
) -> TableRef:
    """The labels of a split with the scores of the fitted trust functions and the signals as columns."""

    def work(directory: Path) -> Done:
        from curation.stages.score import score as score_stage

        scored = score_stage(labels, fitted, signals)
        return Done(outputs={"labels": scored.to_json()}, rows=store.count(scored))

    inputs = {
        "labels": labels.to_json(),
        "trust": {name: ref.to_json() for name, ref in fitted.items()},
        "signals": {name: ref.to_json() for name, ref in signals.items()},
    }
    return TableRef.from_json(run.stage(generation.name(f"score-{split}"), inputs, work)["labels"])


def _asker(teacher: TeacherConfig) -> TeacherConfig:
    """How a model is asked that no hidden states are wanted of."""
    return teacher.model_copy(update={"states": ()})
