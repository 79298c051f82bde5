"""Rows that gold arms train on, the longest row that a student can be trained on, and selected pairs of answers."""

from dataclasses import replace
from typing import Literal

from curation.arms import ARMS, TRUST
from curation.config import AskConfig, RunConfig, StudentConfig
from curation.domains import get_domain, preference_of
from curation.json_types import Json
from curation.pipeline.generation_spec import GenerationSpec
from curation.pipeline.grading import GONE, known_checker
from curation.refs import ModelRef
from curation.registry import METHODS
from curation.rundir.graph import Model, Out
from curation.stages.asking import TeacherUse
from curation.stages.chooser import ChoiceInputs, declared, is_verified
from curation.stages.length import Limit
from curation.stages.preferences import WritePreferences
from curation.stages.rollouts import RollOut
from curation.stages.select import Select
from curation.stages.verify import Verify, VerifyByJudge

_COUNTED: dict[str, bool | Literal["both"]] = {"completions": True, "labels": False, "pairs": "both"}
"""The completions that count among a student's tokens, by what its method learns from."""


def limit(student: Model | None, recipe: StudentConfig) -> Limit | None:
    """The longest row that a student can be trained on; ``None`` where none is trained."""
    if student is None:
        return None
    return Limit(
        student=replace(student, adapter=None) if isinstance(student, ModelRef) else student,
        max_length=recipe.max_length,
        chat_template=recipe.chat_template,
        completions=_COUNTED[METHODS[recipe.method].learns],
    )


def rolling_out(
    generation: GenerationSpec,
    teacher: TeacherUse,
    *,
    choice: ChoiceInputs,
    unscored: ChoiceInputs,
    limit: Limit | None,
) -> RollOut | None:
    """Where gold arms have their completions from; ``None`` without such arms, or where students learn none.

    ``unscored`` is the same choice of labels without scores: what is read where no score goes into the draw, so that
    another trust function asks the teacher nothing again.
    """
    selection = generation.config.selection.without({"quota", "keep", "verify"})
    arms = tuple(arm for arm in selection.arms if ARMS[arm].gold)
    if not arms or (limit is not None and limit.completions is not True):
        return None
    by_score = any(ARMS[arm].ranked for arm in arms) or selection.budget.reads_scores
    of_gold = selection.model_copy(update={"arms": arms, "required": ()})
    return RollOut(
        name=generation.name("rollouts"),
        at=generation.at("pool"),
        choice=replace(choice if by_score else unscored, selection=of_gold, declared=declared(of_gold)),
        teacher=teacher.changed(**AskConfig.BARE),
        decoding=generation.config.teacher.decoding,
        rollout_seed=generation.seed("rollouts"),
        limit=limit,
        **generation.settings,
    )


def verifying_stage(config: RunConfig) -> type[Verify] | type[VerifyByJudge] | None:
    """The class of the stage that checks the pool's best rows; ``None`` where none is wanted."""
    if config.selection.verify is None:
        return None
    return Verify if config.domain_of("pool").judge is None else VerifyByJudge


def verifying(generation: GenerationSpec, choice: ChoiceInputs) -> Verify | VerifyByJudge | None:
    """The check of the pool's best rows; ``None`` where none is wanted (``selection.verify``)."""
    selection = generation.config.selection
    if selection.verify is None or not any(is_verified(ARMS[arm], selection) for arm in selection.arms):
        return None
    arguments: Json = {
        "name": generation.name("verify"),
        "at": generation.at("pool"),
        "pool": choice.pool,
        "labels": choice.labels,
        "too_long": choice.too_long,
        "repeats": choice.repeats if selection.repeats == "one" else None,
        "labelled": choice.labelled if selection.unseen == "last" else None,
        "domain": choice.domain,
        "arm": selection.budget.reference,
        "ranking": replace(TRUST[ARMS[selection.budget.reference].trust], words=""),
        "rows": selection.verify,
        "seed": choice.seed,
        "num_rows": min(selection.verify, generation.sizes["pool"]),
    }
    if verifying_stage(generation.config) is Verify:
        return Verify(**arguments, checker=known_checker(choice.domain) or GONE)
    judge, model = generation.config.judge, generation.helpers.judge
    assert judge is not None and model is not None, "a judge that is asked is among the models"
    asked = model.changed(**AskConfig.BARE)
    return VerifyByJudge(**arguments, teacher=asked, decoding=judge.decoding, **generation.settings)


def verified_by(selected: Select) -> dict[str, Out]:
    """The counts of the rows that were checked, for the record; nothing where none is."""
    verdicts: object = selected.choice.verdicts
    return {"verified": verdicts.stage.value("counts")} if isinstance(verdicts, Out) else {}


def preferences(generation: GenerationSpec, selected: Select) -> WritePreferences | None:
    """The selected pairs with a chosen and a rejected answer; ``None`` where the pool's rows are no pairs."""
    config, domain = generation.config, generation.config.domain_of("pool")
    if preference_of(get_domain(domain)) is None:
        return None
    return WritePreferences(
        name=generation.name("preferences"),
        at=generation.at("pool"),
        selected={arm: selected.out("arms", arm, "table").or_none for arm in config.selection.arms},
        dropped=selected.value("dropped"),
        pool=generation.tables["pool"],
        domain=domain,
        num_rows=None if config.selection.budget.n is None else config.selection.budget.n * len(config.selection.arms),
    )
