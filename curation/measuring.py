"""What is found of weak labels: signals, one more number a row, and grades, right or wrong.

Each function here is one stage: what it reads and how it is done, handed to :meth:`curation.runs.Run.stage`.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from curation import progress, store
from curation.backends import identity, own_teacher, settled
from curation.compaction import compact
from curation.config import TeacherConfig
from curation.errors import RunFailedError
from curation.hashing import Int64s, derive
from curation.learning import base_model, teacher_model
from curation.places import Place, place
from curation.refs import TableRef, fingerprint
from curation.runs import Done, Generation, Run
from curation.signals import ASK_AGAIN

if TYPE_CHECKING:
    from curation.stages.asks import Ask
    from curation.stages.signal import SignalJob


def grade(run: Run, generation: Generation, stage: str, split: str, labels: TableRef) -> TableRef:
    """Which labels of a split are right, by the domain's rule and, where it is asked, the judge (``tables.GRADES``)."""
    name = generation.name(f"grade-{stage}")
    gold = _gold(generation, split)
    domain = run.config.domain_of(split)
    inputs = {"labels": labels.to_json(), "gold": gold.to_json(), "domain": domain.model_dump(mode="json")}

    def work(directory: Place) -> Done:
        from curation.stages.grade import grade as grade_stage

        with progress.bar(name) as shown:
            ref = grade_stage(labels, gold, domain, str(directory / "grades.lance"), progress=run.progress(name, shown))
        return Done(outputs={"grades": ref.to_json()}, rows=store.count(ref))

    grades = TableRef.from_json(run.stage(name, inputs, work)["grades"])
    judge = run.config.judge
    return _judged(run, generation, stage, split, labels, grades) if judge and split in judge.splits else grades


def _judged(run: Run, generation: Generation, stage: str, split: str, labels: TableRef, grades: TableRef) -> TableRef:
    from curation.stages.asks import Ask
    from curation.stages.signal import SignalJob

    config, name = run.config, generation.name(f"judge-{stage}")
    assert config.judge is not None, "asked only where a judge is given"
    judge = base_model(run, config.judge.model, "gen-0/judge-base")
    asked = _asker(settled(run, config.teacher, judge, "gen-0/backend-judge"))
    job = SignalJob(
        ask=Ask(signal="judge", seed=derive(config.seed, name), uri=""),
        examples=generation.tables[split],
        labels=labels,
        domain=config.domain_of(split),
        teacher=asked.model_copy(update={"chat_template": config.judge.chat_template}),
        model=judge,
        decoding=config.judge.decoding,
        gold=_gold(generation, split),
    )
    inputs = {"grades": grades.to_json(), **_inputs(job)}

    def work(directory: Place) -> Done:
        from curation.stages.grade import overrule

        # Unparsed rows are among them: the paper's judge is asked where the parser cannot verify an answer.
        wrong_N = store.read(grades, columns=["row_id"], filter="correct = false")["row_id"].to_numpy()
        verdicts = _measured(run, name, job, str(directory / "verdicts.lance"), wrong_N)
        ref = overrule(grades, verdicts, str(directory / "grades.lance"))
        return Done(outputs={"grades": ref.to_json()}, rows=store.count(verdicts))

    return TableRef.from_json(run.stage(name, inputs, work)["grades"])


def ask(run: Run, generation: Generation, signal: str, split: str, directory: Place) -> "Ask":
    """A signal of a split; its values are to stand in ``directory``, by a name that tells other settings apart."""
    from curation.stages.asks import Ask

    options: dict[str, Any] = {}
    if signal == "icl_mean_logprob":
        options["shots"] = store.read(generation.tables["shots"], filter="error IS NULL").to_pylist()
    elif signal == "self_consistency":
        options = run.config.signals.self_consistency.model_dump()
    seed = derive(run.config.seed, generation.name(f"signal-{signal}-{split}"))
    name = f"{signal}-{fingerprint({'options': options, 'seed': seed})[:8]}.lance"
    return Ask(signal=signal, options=options, seed=seed, uri=str(directory / name))


def signal(run: Run, generation: Generation, name: str, split: str, labels: TableRef) -> TableRef:
    """One more number for each row of a split that has a weak label (``tables.SIGNAL``)."""
    from curation.stages.signal import SignalJob

    config = run.config
    stage = generation.name(f"signal-{name}-{split}")
    model, teacher = generation.teacher, config.teacher
    if name == "ensemble_agreement":
        assert config.signals.second_teacher is not None, "RunConfig refuses an ensemble of one"
        model = teacher_model(run, config.signals.second_teacher, generation.tables, "second-teacher")
        teacher = settled(run, teacher, model, "gen-0/backend-second-teacher")
    elif name == "reward":
        reward = config.signals.reward
        assert reward is not None, "RunConfig refuses a reward arm without a model"
        model = base_model(run, reward.model, "gen-0/reward-base", trust_remote_code=reward.runs_code)
        if reward.kind == "verifier":
            teacher = settled(run, teacher, model, "gen-0/backend-reward")
        teacher = teacher.model_copy(update={"chat_template": reward.chat_template})
    else:
        teacher = own_teacher(run, generation)
    job = SignalJob(
        # Beside the labels, where the labelling actors put it.
        ask=ask(run, generation, name, split, place(labels.uri).parent),
        examples=generation.tables[split],
        labels=labels,
        domain=config.domain_of(split),
        teacher=_asker(teacher),
        model=model,
        decoding=config.teacher.decoding,
        reward=config.signals.reward if name == "reward" else None,
    )

    def work(directory: Place) -> Done:
        uri = job.ask.uri if name in ASK_AGAIN else str(directory / "signal.lance")
        parsed = store.read(labels, columns=["row_id"], filter="label IS NOT NULL AND error IS NULL")
        ref = _measured(run, stage, job, uri, parsed["row_id"].to_numpy())
        num_rows, num_read = store.count(ref), store.count(ref, filter="value IS NOT NULL")
        if num_rows and not num_read:
            raise RunFailedError(
                f"none of {num_rows:,} rows gave a value that can be read, so no arm can rank by it; "
                "look at the model and its answers, or drop the arm"
            )
        return Done(outputs={"signal": ref.to_json(), "num_unread": num_rows - num_read}, rows=num_rows)

    return TableRef.from_json(run.stage(stage, _inputs(job), work)["signal"])


def _inputs(job: "SignalJob") -> dict[str, Any]:
    """What the values depend on, as JSON."""
    return {
        "labels": job.labels.to_json(),
        "examples": job.examples.to_json(),
        "gold": None if job.gold is None else job.gold.to_json(),
        "domain": job.domain.model_dump(mode="json"),
        "options": dict(job.ask.options),
        "model": None if job.model is None else job.model.to_json(),
        "reward": None if job.reward is None else job.reward.model_dump(mode="json"),
        "teacher": identity(job.teacher),
        "decoding": job.decoding.model_dump(mode="json"),
        "seed": job.ask.seed,
    }


def _measured(run: Run, stage: str, job: "SignalJob", uri: str, row_ids_N: Int64s) -> TableRef:
    from curation.stages.signal import signal as signal_stage

    job = replace(job, ask=replace(job.ask, uri=uri), told=run.telemetry(stage))
    with progress.bar(stage) as shown:
        update = run.progress(stage, shown)
        ref = signal_stage(job, row_ids_N, commit_seconds=run.config.commit_seconds, progress=update)
    return compact(ref, run.config.fragment_mb)


def _gold(generation: Generation, split: str) -> TableRef:
    return generation.tables["audit" if split == "pool" else split]


def _asker(teacher: TeacherConfig) -> TeacherConfig:
    """How a model is asked that no hidden states are wanted of."""
    return teacher.model_copy(update={"states": ()})
