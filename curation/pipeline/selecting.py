"""The stages by which every arm selects: too long rows, gold completions, the cuts, the written files."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from curation.arms import ARMS
from curation.config import AskConfig, RunConfig, StudentConfig
from curation.domains import get_domain, get_preference_function
from curation.features import parts
from curation.pipeline.extending import describe_divided
from curation.pipeline.generation_spec import GenerationSpec
from curation.pipeline.testing import get_taught_domain
from curation.refs import ModelRef
from curation.registry import METHODS
from curation.rundir.graph import Model, Out
from curation.stages.asking import TeacherUse
from curation.stages.budget import ScoredSplit
from curation.stages.chooser import ChoiceInputs, collect_declared
from curation.stages.length import Limit, MeasureLength
from curation.stages.rollouts import RollOut
from curation.stages.select import Select
from curation.stages.selected import Keep, WritePreferences

_COUNTED: dict[str, bool | Literal["both"]] = {"completions": True, "labels": False, "pairs": "both"}
"""The completions that count among a student's tokens, by what its method learns from."""


def limit(student: Model | None, recipe: StudentConfig) -> Limit | None:
    """Return the maximum length of a row that a student can be trained on, or None if no student is trained."""
    if student is None:
        return None
    return Limit(
        student=replace(student, adapter=None) if isinstance(student, ModelRef) else student,
        max_length=recipe.max_length,
        chat_template=recipe.chat_template,
        completions=_COUNTED[METHODS[recipe.method].learns],
    )


def describe_lengths(generation: GenerationSpec, labels: Mapping[str, Out], longest: Limit) -> dict[str, MeasureLength]:
    """Return the stages, by split, that find rows that some arm cannot train on; all arms leave these rows out."""
    config = generation.config
    by_gold = [ARMS[arm].gold for arm in config.selection.arms]
    found = {}
    for split in [split for split in ("calibration", "pool") if split in labels]:
        gold = generation.tables.get("audit" if split == "pool" else split)
        gold = gold if any(by_gold) and longest.completions is True else None
        # What the gold arms of the pool train on follows from these, the labels and the gold labels.
        rollouts = {"wanted": config.selection.gold_rollouts.source, "seed": config.seed}
        found[split] = MeasureLength(
            name=generation.name(f"length-{split}"),
            at=generation.at(split),
            examples=generation.tables[split],
            labels=labels[split],
            weak=not all(by_gold) or longest.completions is not True,
            gold=gold,
            domain=get_taught_domain(config, split),
            limit=longest,
            rollouts=rollouts if gold and split == "pool" else None,
            split=split,
            num_rows=generation.sizes[split],
        )
    return found


def describe_selection(
    generation: GenerationSpec,
    teacher: TeacherUse,
    longest: Limit | None,
    labels: Mapping[str, Out],
    scored: Mapping[str, Out],
    grades: Mapping[str, Out],
    lengths: Mapping[str, MeasureLength],
    left_out: Mapping[str, Out],
) -> Select:
    """Return the stage that selects for all arms, after rollouts for gold arms; ``left_out``: rows by feature."""
    config = generation.config
    selection, budget = config.selection, config.selection.budget
    too_long = {split: stage.out("too_long").or_none for split, stage in lengths.items()}

    def choice(labels: Mapping[str, Out]) -> ChoiceInputs:
        splits = {
            split: ScoredSplit(labels=labels[split], grades=grades.get(split), too_long=too_long.get(split))
            for split in labels
        }
        return ChoiceInputs(
            pool=generation.tables["pool"],
            labels=labels["pool"],
            grades=grades.get("pool"),
            too_long=too_long.get("pool"),
            repeats=generation.repeats.out("repeats").or_none,
            labelled=generation.tables["source"],
            audit=generation.tables.get("audit"),
            measured=splits[budget.purity_split or "source"],
            calibration=splits.get("calibration"),
            domain=config.domain_of("pool"),
            selection=selection.without({"gold_rollouts", *_list_unread(config)}),
            declared=collect_declared(selection),
            seed=config.seed,
        )

    divided = describe_divided(generation, {"labels": labels, "grades": grades})
    chosen = replace(choice(scored), left_out=left_out, divided=divided)
    rollouts = describe_rollouts(generation, teacher, choice=chosen, unscored=choice(labels), limit=longest)
    texts: Any = None if rollouts is None else rollouts.value("texts")
    if METHODS[config.student.method].learns != "completions":
        texts = {"source": "label", "samples": None}
    return Select(
        name=generation.name("select"),
        at=generation.at("pool"),
        choice=chosen,
        texts=texts,
        teacher=None if config.teacher.reader is not None else generation.teacher,  # what reads labels gave none
        generation=generation.index,
        num_rows=None if budget.n is None else budget.n * len(selection.arms),
    )


def _list_unread(config: RunConfig) -> set[str]:
    """Return the keys of ``selection`` that no choice of rows reads, among them those that ``divided`` stands for."""
    return {"keep", *(name for name, _, _ in parts(config, "divided"))}


def describe_rollouts(
    generation: GenerationSpec,
    teacher: TeacherUse,
    *,
    choice: ChoiceInputs,
    unscored: ChoiceInputs,
    limit: Limit | None,
) -> RollOut | None:
    """Return the stage that gives gold arms completions, or None without such arms, or if students learn none.

    ``unscored`` is the same choice, of labels without scores. It is used if the draw depends on no score, so that a
    changed trust function does not ask the teacher again.
    """
    selection = generation.config.selection.without(_list_unread(generation.config))
    arms = tuple(arm for arm in selection.arms if ARMS[arm].gold)
    if not arms or (limit is not None and limit.completions is not True):
        return None
    by_score = any(ARMS[arm].ranked for arm in arms) or selection.budget.reads_scores
    of_gold = selection.model_copy(update={"arms": arms, "required": ()})
    return RollOut(
        name=generation.name("rollouts"),
        at=generation.at("pool"),
        choice=replace(choice if by_score else unscored, selection=of_gold, declared=collect_declared(of_gold)),
        teacher=teacher.changed(**AskConfig.BARE),
        decoding=generation.config.teacher.decoding,
        rollout_seed=generation.seed("rollouts"),
        limit=limit,
        **generation.settings,
    )


def describe_preferences(generation: GenerationSpec, selected: Select) -> WritePreferences | None:
    """Return the stage that writes selected pairs as chosen and rejected answers, or None without pairs."""
    config, domain = generation.config, generation.config.domain_of("pool")
    if get_preference_function(get_domain(domain)) is None:
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


def describe_kept_columns(generation: GenerationSpec, selected: Select) -> dict[str, Out]:
    """Return the selected rows with the columns of the pool's files to keep; empty if no column is kept."""
    config = generation.config
    if not config.selection.keep:
        return {}
    stage = Keep(
        name=generation.name("keep"),
        at=generation.at("pool"),
        selected={arm: selected.out("arms", arm, "table").or_none for arm in config.selection.arms},
        columns=list(config.selection.keep),
        id_column=config.sources[config.splits.pool.source].id_column,
        files=[file.to_json() for file in generation.pool_files],
        contents=[file.content for file in generation.pool_files],
        num_rows=None if config.selection.budget.n is None else config.selection.budget.n,
    )
    return {"kept": stage.value("files")}
