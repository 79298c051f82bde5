"""What the gold arms of a generation train on, before they select: one stage, ``rollouts``."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from curation import progress
from curation.arms import ARMS
from curation.backends import identity, own_teacher
from curation.config import RunConfig
from curation.hashing import derive
from curation.learning import limit_of
from curation.places import Place
from curation.refs import ModelRef, TableRef
from curation.runs import Done, Generation, Run, say

if TYPE_CHECKING:
    from curation.stages.gold import GoldTexts
    from curation.stages.rollouts import Rollouts
    from curation.stages.select import SelectJob


def gold_arms(config: RunConfig) -> tuple[str, ...]:
    """The arms of a run that train on gold labels; without any there is no such stage."""
    return tuple(name for name in config.selection.arms if ARMS[name].gold)


def roll_out(
    run: Run,
    generation: Generation,
    job_with: "Callable[[GoldTexts], SelectJob]",
    inputs: Mapping[str, Any],
    *,
    unscored: Mapping[str, Any],
    student: ModelRef | None,
) -> "GoldTexts":
    """Where the gold arms of a selection have their completions from, none longer than ``student`` can be trained on.

    ``inputs`` are what the selection reads, as JSON; ``unscored`` the labels without scores, which is what this reads
    of them where no score goes into the draw, so that another trust function asks the teacher nothing again.
    """
    from curation.stages.gold import GoldTexts

    config, name, arms = run.config, generation.name("rollouts"), gold_arms(run.config)
    if not arms:
        return GoldTexts(source="answer")
    teacher, settings = own_teacher(run, generation), config.selection.gold_rollouts
    selection = config.selection.model_copy(update={"arms": arms})
    by_score = any(ARMS[arm].ranked for arm in arms) or selection.budget.reads_scores
    limit = None if student is None else limit_of(config, student)
    read = {
        **inputs,
        **({} if by_score else {"labels": unscored}),
        "limit": None if limit is None else asdict(limit),
        "selection": selection.model_dump(mode="json"),
        "model": None if generation.teacher is None else generation.teacher.to_json(),
        "teacher": identity(teacher),
        "decoding": config.teacher.decoding.model_dump(mode="json"),
    }

    def work(directory: Place) -> Done:
        from curation.stages.rollouts import RolloutJob
        from curation.stages.rollouts import roll_out as rollouts_stage

        job = replace(job_with(GoldTexts(source="answer")), selection=selection)
        asked = RolloutJob(
            examples=job.pool,
            uri="",
            domain=job.domain,
            teacher=teacher.model_copy(update={"states": ()}),
            model=generation.teacher,
            decoding=teacher.decoding.model_copy(update={"temperature": settings.temperature}),
            num_samples=settings.num_samples,
            seed=derive(config.seed, name),
            limit=limit,
            told=run.telemetry(name),
        )
        with progress.bar(name) as shown:
            made = rollouts_stage(
                job,
                asked,
                commit_seconds=config.commit_seconds,
                directory=directory,
                progress=run.progress(name, shown),
            )
        say(f"{name}: {_words(made)}")
        return Done(outputs={**asdict(made), "weak": made.weak._asdict()}, rows=made.num_asked)

    texts = run.stage(name, read, work)["texts"]
    samples = texts["samples"]
    return GoldTexts(source=texts["source"], samples=None if samples is None else TableRef.from_json(samples))


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
