"""From scores to rows: what is too long for the students, what gold arms train on, and each arm's selection."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from curation.arms import ARMS, TRUST
from curation.config import AskConfig, DecodingConfig, DomainConfig, SelectionConfig, StudentConfig
from curation.pipeline.asking import Asked, Running, passing, whole
from curation.refs import ModelRef, TableRef
from curation.registry import METHODS
from curation.rundir.graph import Done, Model, Out, Stage, Table
from curation.rundir.run import Task

if TYPE_CHECKING:
    from curation.stages.budget import Scored
    from curation.stages.chooser import SelectJob
    from curation.stages.length import Limit
    from curation.stages.rollouts import Rollouts


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A labelled split, and what stages found of it."""

    labels: Out
    grades: Out | None
    too_long: Out | None
    """Rows that no student can be trained on; absent where there are none."""

    @property
    def inputs(self) -> dict[str, Any]:
        """As inputs of a stage."""
        too_long = None if self.too_long is None else self.too_long.or_none
        return {"labels": self.labels, "grades": self.grades, "too_long": too_long}


def limit(student: Model | None, recipe: StudentConfig) -> dict[str, Any] | None:
    """The longest row that a student can be trained on, as an input of a stage; ``None`` where none is trained."""
    if student is None:
        return None
    tokenizer = replace(student, adapter=None) if isinstance(student, ModelRef) else student
    return {
        "student": tokenizer,
        "max_length": recipe.max_length,
        "chat_template": recipe.chat_template,
        "completions": METHODS[recipe.method].learns == "completions",
    }


def measuring_length(
    name: str,
    *,
    split: str,
    examples: Table,
    labels: Out,
    gold: Table | None,
    selection: SelectionConfig,
    limit: Mapping[str, Any],
    domain: DomainConfig,
    seed: int,
    rows: int | None,
) -> Stage:
    """The labelled rows of a split that some arm could not train a student on.

    What is left out of the selection for one arm is left out for all. The output ``too_long`` is null rather than an
    empty table where there are none, so that another limit which leaves nothing out redoes no selection.
    """
    arms = [ARMS[arm] for arm in selection.arms]
    gold = gold if any(arm.gold for arm in arms) and limit["completions"] else None
    inputs: dict[str, Any] = {
        "examples": examples,
        "labels": labels,
        "weak": not all(arm.gold for arm in arms) or not limit["completions"],
        "gold": gold,
        "domain": domain,
        "limit": limit,
        # What the gold arms of the pool train on follows from these, the labels and the gold labels.
        "rollouts": {"wanted": selection.gold_rollouts.source, "seed": seed} if gold and split == "pool" else None,
    }
    return Stage(name=name, work=measure_length, inputs=inputs, settings={"split": split}, rows=rows)


def measure_length(
    task: Task,
    *,
    split: str,
    examples: TableRef,
    labels: TableRef,
    weak: bool,
    gold: TableRef | None,
    domain: DomainConfig,
    limit: dict[str, Any],
    rollouts: dict[str, Any] | None,
) -> Done:
    """Count the tokens of what students would be trained on."""
    from curation.stages.gold import decide
    from curation.stages.length import LengthJob, Limit, too_long
    from curation.tables import io

    solutions = False
    if gold is not None and rollouts is not None:
        solutions = decide(examples, labels, gold, domain, **rollouts).source == "solution"
    longest = Limit(**limit)
    job = LengthJob(
        examples=examples, labels=labels, weak=weak, gold=gold, solutions=solutions, domain=domain, limit=longest
    )
    with task.progress() as update:
        found = too_long(job, str(task.directory / "too_long.lance"), split=split, progress=update)
    if found.num_too_long:
        first = io.open_table(found.table).to_table(columns=["row_id"], limit=3)["row_id"].to_pylist()
        more = ", ..." if found.num_too_long > len(first) else ""
        task.say(
            f"{found.num_too_long:,} of {found.num_rows:,} labelled rows have more than "
            f"{longest.max_length:,} tokens (student.max_length) and are no candidates for any arm: "
            f"{', '.join(map(str, first))}{more}; `curate inspect {task.manifest.directory} {task.name}` lists them"
        )
    counts = asdict(found)
    outputs = {"counts": counts, "too_long": counts["table"] if found.num_too_long else None}
    return Done(outputs=outputs, rows=found.num_rows)


def choosing(
    *,
    pool: Table,
    pool_labels: Measured,
    audit: Table | None,
    measured: Measured,
    calibration: Measured | None,
    domain: DomainConfig,
    selection: SelectionConfig,
    seed: int,
) -> dict[str, Any]:
    """What a selection reads, as inputs of a stage."""
    return {
        "pool": pool,
        **pool_labels.inputs,
        "audit": audit,
        "measured": measured.inputs,
        "calibration": None if calibration is None else calibration.inputs,
        "domain": domain,
        "selection": selection.without({"gold_rollouts"}),
        "declared": declared(selection),
        "seed": seed,
    }


def declared(selection: SelectionConfig) -> dict[str, Any]:
    """What the registries say of the arms and the budget, but for the words: another line is another selection."""
    arms = {name: replace(ARMS[name], words="") for name in selection.used}
    trusts = {arm.trust: replace(TRUST[arm.trust], words="") for arm in arms.values()}
    return {"arms": arms, "trust": trusts, "budget": selection.budget.declared}


def rolling_out(
    name: str,
    *,
    choice: Mapping[str, Any],
    unscored: Mapping[str, Any],
    selection: SelectionConfig,
    asked: Asked,
    decoding: DecodingConfig,
    seed: int,
    limit: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
) -> Stage | None:
    """Where gold arms have their completions from; ``None`` without such arms, or where students learn from labels.

    ``unscored`` is the same choice of labels without scores: what is read where no score goes into the draw, so that
    another trust function asks the teacher nothing again.
    """
    arms = tuple(arm for arm in selection.arms if ARMS[arm].gold)
    if not arms or (limit is not None and not limit["completions"]):
        return None
    by_score = any(ARMS[arm].ranked for arm in arms) or selection.budget.reads_scores
    of_gold = selection.model_copy(update={"arms": arms})
    inputs = {
        "choice": {**(choice if by_score else unscored), "selection": of_gold, "declared": declared(of_gold)},
        "decoding": decoding,
        "rollout_seed": seed,
        "limit": limit,
    }
    return asked.changed(**AskConfig.BARE).stage(name, roll_out, inputs, settings=settings, rows=None)


def roll_out(
    task: Task,
    *,
    choice: dict[str, Any],
    model: ModelRef | None,
    ask: AskConfig,
    backend: str,
    running: Running,
    decoding: DecodingConfig,
    rollout_seed: int,
    limit: dict[str, Any] | None,
    commit_seconds: float,
    fragment_mb: int,
) -> Done:
    """Make the rollouts that the gold arms need, if any."""
    from curation.stages.rollouts import RolloutJob
    from curation.stages.rollouts import roll_out as rollouts_stage

    job = _job(choice, texts=None, teacher=model, generation=0)
    settings = job.selection.gold_rollouts
    asked = RolloutJob(
        examples=job.pool,
        uri="",
        domain=job.domain,
        teacher=whole(ask, backend, running, decoding),
        model=model,
        decoding=decoding.model_copy(update={"temperature": settings.temperature}),
        num_samples=settings.num_samples,
        seed=rollout_seed,
        limit=_limit(limit),
        told=task.telemetry,
    )
    with passing(task, backend, running, commit_seconds) as (engine, how):
        made = rollouts_stage(job, replace(asked, engine=engine), directory=task.directory, **how)
    task.say(_words(made))
    return Done(outputs={**asdict(made), "weak": made.weak._asdict()}, rows=made.num_asked)


def selecting(
    name: str,
    *,
    choice: Mapping[str, Any],
    rollouts: Stage | None,
    recipe: StudentConfig,
    teacher: Model | None,
    generation: int,
    rows: int | None,
) -> Stage:
    """The budget and each arm's ``Selection``."""
    texts: Any = None if rollouts is None else rollouts.value("texts")
    if METHODS[recipe.method].learns == "labels":
        texts = {"source": "label", "samples": None}
    inputs = {"choice": choice, "texts": texts, "teacher": teacher, "generation": generation}
    revision = 2 if choice["selection"].budget.risk is None else 3  # a certified cut counts questions, not rows
    return Stage(name=name, work=select, inputs=inputs, revision=revision, rows=rows)


def select(
    task: Task,
    *,
    choice: dict[str, Any],
    texts: dict[str, Any] | None,
    teacher: ModelRef | None,
    generation: int,
) -> Done:
    """Cut the pool for every arm, and write what each selected.

    The output ``rows_of`` holds the arms' tables once more, null where an arm selected nothing: it has no student.
    """
    from curation.stages.select import select as select_stage

    job = _job(choice, texts=texts, teacher=teacher, generation=generation)
    budget, selections = select_stage(job, task.directory)
    for selection in selections:
        task.say(selection.words)
    if budget.asked is not None:
        task.say(
            f"selection.max_per_label: with at most {budget.max_per_label:,} rows of a label {budget.n:,} of "
            f"{budget.asked:,} rows fit in the arm {budget.limited_by}; all arms select {budget.n:,}"
        )
    if not budget.n:
        task.say(f"NOTHING IS SELECTED: {(budget.risk or {})['guarantee']}")
    outputs = {
        "budget": asdict(budget),
        "arms": {selection.arm: asdict(selection) for selection in selections},
        "rows_of": {
            selection.arm: selection.table.to_json() if selection.num_rows else None for selection in selections
        },
    }
    return Done(outputs=outputs, rows=sum(selection.num_rows for selection in selections))


def _job(
    choice: dict[str, Any], *, texts: dict[str, Any] | None, teacher: ModelRef | None, generation: int
) -> "SelectJob":
    from curation.stages.chooser import SelectJob
    from curation.stages.gold import GoldTexts

    gold = GoldTexts(source="answer")
    if texts is not None:
        samples = texts["samples"]
        gold = GoldTexts(source=texts["source"], samples=None if samples is None else TableRef.from_json(samples))
    calibration = choice["calibration"]
    return SelectJob(
        **{
            **{key: value for key, value in choice.items() if key != "declared"},
            "measured": _scored(choice["measured"]),
            "calibration": None if calibration is None else _scored(calibration),
        },
        texts=gold,
        teacher=teacher,
        generation=generation,
    )


def _scored(measured: dict[str, Any]) -> "Scored":
    from curation.stages.budget import Scored

    return Scored(**measured)


def _limit(limit: dict[str, Any] | None) -> "Limit | None":
    from curation.stages.length import Limit

    return None if limit is None else Limit(**limit)


def _words(made: "Rollouts") -> str:
    weak = made.weak
    share = f"{weak.num_bare:,} of {weak.num_rows:,} weak completions are bare answers"
    if made.texts.source == "answer":
        return f"{share}; gold arms train on bare answers"
    if made.texts.source == "solution":
        return f"{share}; gold arms train on worked solutions, of {made.num_solved:,} of {made.num_gold:,} rows"
    return (
        f"{share}; gold arms train on the teacher's own rollouts that gold grades right: of {made.num_asked:,} rows "
        f"with a wrong weak label {made.num_found:,} are right in one of {made.num_samples:,} further samples"
    )
