"""What gold arms train on, and the longest row that a student can be trained on."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from curation.arms import ARMS
from curation.config import AskConfig, DecodingConfig, SelectionConfig, StudentConfig
from curation.pipeline.asking import Asked, Running, passing, whole
from curation.refs import ModelRef
from curation.registry import METHODS
from curation.rundir.graph import Built, Done, Model
from curation.rundir.run import Task
from curation.stages.chooser import Choice, SelectJob, declared
from curation.stages.gold import GoldTexts
from curation.stages.length import Limit

if TYPE_CHECKING:
    from curation.stages.rollouts import Rollouts


def limit(student: Model | None, recipe: StudentConfig) -> Limit | None:
    """The longest row that a student can be trained on; ``None`` where none is trained."""
    if student is None:
        return None
    return Limit(
        student=replace(student, adapter=None) if isinstance(student, ModelRef) else student,
        max_length=recipe.max_length,
        chat_template=recipe.chat_template,
        completions=METHODS[recipe.method].learns == "completions",
    )


def rolling_out(
    name: str,
    *,
    choice: Choice,
    unscored: Choice,
    selection: SelectionConfig,
    asked: Asked,
    decoding: DecodingConfig,
    seed: int,
    limit: Limit | None,
    settings: Mapping[str, Any],
) -> Built | None:
    """Where gold arms have their completions from; ``None`` without such arms, or where students learn from labels.

    ``unscored`` is the same choice of labels without scores: what is read where no score goes into the draw, so that
    another trust function asks the teacher nothing again.
    """
    arms = tuple(arm for arm in selection.arms if ARMS[arm].gold)
    if not arms or (limit is not None and not limit.completions):
        return None
    by_score = any(ARMS[arm].ranked for arm in arms) or selection.budget.reads_scores
    of_gold = selection.model_copy(update={"arms": arms})
    inputs = {
        "choice": replace(choice if by_score else unscored, selection=of_gold, declared=declared(of_gold)),
        "decoding": decoding,
        "rollout_seed": seed,
        "limit": limit,
    }
    return asked.changed(**AskConfig.BARE).stage(name, roll_out, inputs, settings=settings, rows=None)


def roll_out(
    task: Task,
    *,
    choice: Choice,
    model: ModelRef | None,
    ask: AskConfig,
    backend: str,
    running: Running,
    decoding: DecodingConfig,
    rollout_seed: int,
    limit: Limit | None,
    commit_seconds: float,
    fragment_mb: int,
) -> Done:
    """Make the rollouts that the gold arms need, if any."""
    from curation.stages.rollouts import RolloutJob
    from curation.stages.rollouts import roll_out as rollouts_stage

    job = SelectJob.of(choice, texts=GoldTexts(source="answer"), teacher=model, generation=0)
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
        limit=limit,
        told=task.telemetry,
    )
    with passing(task, backend, running, commit_seconds) as (engine, how):
        made = rollouts_stage(job, replace(asked, engine=engine), directory=task.directory, **how)
    task.say(_words(made))
    return Done(outputs={**asdict(made), "weak": made.weak._asdict()}, rows=made.num_asked)


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
