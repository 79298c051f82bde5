"""What is found of weak labels: signals, one more number a row, and grades, right or wrong."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from curation.config import AskConfig, DecodingConfig, DomainConfig, RewardConfig
from curation.errors import RunFailedError
from curation.pipeline.asking import Asked, Running, pass_of, passing, whole
from curation.pipeline.given import Generation
from curation.pipeline.labelling import ask_of
from curation.refs import ModelRef, TableRef
from curation.rundir.graph import Built, Done, Out, Table
from curation.rundir.run import Task
from curation.stages.grade import Grade
from curation.storage.paths import place

if TYPE_CHECKING:
    from curation.hashing import Int64s
    from curation.stages.signal import SignalJob


def graded(generation: Generation, stage: str, split: str, labels: Out) -> Out:
    """Which labels of a split are right, by the domain's rule and, where it is asked, the judge (``GRADES``)."""
    config, rows = generation.config, generation.sizes[split]
    gold, domain = generation.gold(split), config.domain_of(split)
    by_rule = Grade(
        name=generation.name(f"grade-{stage}"),
        labels=labels,
        gold=gold,
        examples=generation.tables[split],
        domain=domain,
        num_rows=rows,
    )
    judge = config.judge
    if judge is None or split not in judge.splits:
        return by_rule.out("grades")
    assert generation.others.judge is not None, "a judge that is configured is among the models"
    judged = judging(
        generation.name(f"judge-{stage}"),
        grades=by_rule.out("grades"),
        examples=generation.tables[split],
        labels=labels,
        gold=gold,
        domain=domain,
        asked=generation.others.judge.changed(**AskConfig.BARE),
        decoding=judge.decoding,
        seed=generation.seed(f"judge-{stage}"),
        settings=generation.settings,
        rows=None,
    )
    return judged.table("grades")


def judging(
    name: str,
    *,
    grades: Out,
    examples: Table,
    labels: Out,
    gold: Table,
    domain: DomainConfig,
    asked: Asked,
    decoding: DecodingConfig,
    seed: int,
    settings: Mapping[str, Any],
    rows: int | None,
) -> Built:
    """The grades, with what a judge calls right of the labels that the domain's rule calls wrong."""
    inputs = {
        "grades": grades,
        "examples": examples,
        "labels": labels,
        "gold": gold,
        "domain": domain,
        "decoding": decoding,
        "seed": seed,
    }
    return asked.stage(name, judge, inputs, settings=settings, rows=rows)


def judge(
    task: Task,
    *,
    grades: TableRef,
    examples: TableRef,
    labels: TableRef,
    gold: TableRef,
    domain: DomainConfig,
    model: ModelRef,
    ask: AskConfig,
    backend: str,
    running: Running,
    decoding: DecodingConfig,
    seed: int,
    commit_seconds: float,
    fragment_mb: int,
) -> Done:
    """Ask the judge about the labels that are wrong by the rule, unparsed ones too.

    The paper's judge is asked where the parser cannot verify an answer.
    """
    from curation.stages.asks import Ask
    from curation.stages.grade import overrule
    from curation.stages.signal import SignalJob
    from curation.tables import io

    wrong_N = io.read(grades, columns=["row_id"], filter="correct = false")["row_id"].to_numpy()
    job = SignalJob(
        ask=Ask(signal="judge", seed=seed, uri=str(task.directory / "verdicts.lance")),
        examples=examples,
        labels=labels,
        domain=domain,
        teacher=whole(ask, backend, running, decoding),
        model=model,
        decoding=decoding,
        gold=gold,
        told=task.telemetry,
    )
    verdicts, asking = _measured(task, job, wrong_N, backend, running, commit_seconds, fragment_mb)
    ref = overrule(grades, verdicts, str(task.directory / "grades.lance"))
    asked = io.count(verdicts)
    return Done(outputs={"grades": ref.to_json(), "num_asked": asked, "pass": asking}, rows=asked)


def signalling(
    name: str,
    *,
    signal: str,
    how: Mapping[str, Any],
    examples: Table,
    labels: Out,
    domain: DomainConfig,
    asked: Asked,
    decoding: DecodingConfig,
    reward: RewardConfig | None,
    beside_labels: bool,
    settings: Mapping[str, Any],
    rows: int | None,
) -> Built:
    """One more number for each row of a split that has a weak label (``schemas.SIGNAL``).

    ``how``: ``seed``, ``options`` of the signal's class, and the table of ``shots`` for one that shows demonstrations.
    ``beside_labels``: the labelling actors may have measured it, and have put it beside their labels.
    """
    inputs = {
        "signal": signal,
        **how,
        "examples": examples,
        "labels": labels,
        "domain": domain,
        "decoding": decoding,
        "reward": reward,
    }
    return asked.stage(name, measure, inputs, settings={**settings, "beside_labels": beside_labels}, rows=rows)


def measure(
    task: Task,
    *,
    signal: str,
    seed: int,
    options: Mapping[str, Any],
    shots: TableRef | None,
    examples: TableRef,
    labels: TableRef,
    domain: DomainConfig,
    model: ModelRef | None,
    ask: AskConfig,
    backend: str,
    running: Running,
    decoding: DecodingConfig,
    reward: RewardConfig | None,
    beside_labels: bool,
    commit_seconds: float,
    fragment_mb: int,
) -> Done:
    """Measure the signal where the labelling actors have not.

    Raises:
        RunFailedError: of no row a value can be read.
    """
    from curation.stages.signal import SignalJob
    from curation.tables import io

    # Beside the labels, where the labelling actors put it; a model of its own writes beside other records of its stage.
    directory = place(labels.uri).parent if beside_labels else task.directory
    job = SignalJob(
        ask=ask_of(signal, seed=seed, options=options, shots=shots, directory=directory),
        examples=examples,
        labels=labels,
        domain=domain,
        teacher=whole(ask, backend, running, decoding),
        model=model,
        decoding=decoding,
        reward=reward,
        told=task.telemetry,
    )
    parsed = io.read(labels, columns=["row_id"], filter="label IS NOT NULL AND error IS NULL")
    row_ids_N = parsed["row_id"].to_numpy()
    ref, asking = _measured(task, job, row_ids_N, backend, running, commit_seconds, fragment_mb)
    num_rows, num_read = io.count(ref), io.count(ref, filter="value IS NOT NULL")
    if num_rows and not num_read:
        raise RunFailedError(
            f"none of {num_rows:,} rows gave a value that can be read, so no arm can rank by it; "
            "look at the model and its answers, or drop the arm"
        )
    return Done(outputs={"signal": ref.to_json(), "num_unread": num_rows - num_read, "pass": asking}, rows=num_rows)


def _measured(
    task: Task,
    job: "SignalJob",
    row_ids_N: "Int64s",
    backend: str,
    running: Running,
    commit_seconds: float,
    fragment_mb: int,
) -> tuple[TableRef, dict[str, Any]]:
    """The compacted table, and what the report says of the pass."""
    from curation.stages.signal import signal as signal_stage
    from curation.tables.compaction import compact

    with passing(task, backend, running, commit_seconds) as (engine, how):
        result = signal_stage(replace(job, engine=engine), row_ids_N, **how)
    return compact(result.table, fragment_mb, guard=task.guard), pass_of(result, backend, job.model)
