"""The stages by which every arm selects: too long rows, gold completions, the cuts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from curation.arms import ARMS
from curation.config import AskConfig
from curation.features import parts
from curation.pipeline.extending import describe_part
from curation.pipeline.roles import GenerationSpec
from curation.pipeline.students import get_taught_domain
from curation.refs import ModelRef
from curation.registry import METHODS
from curation.rundir.graph import Out
from curation.stages.asking import TeacherUse
from curation.stages.budget import ScoredSplit
from curation.stages.chooser import ChoiceInputs, collect_declared
from curation.stages.length import Limit, MeasureLength
from curation.stages.rollouts import RollOut
from curation.stages.select import Select

_COUNTED: dict[str, bool | Literal["both"]] = {"completions": True, "labels": False, "pairs": "both"}
"""The completions that count among a student's tokens, by what its method learns from."""


def describe_lengths(generation: GenerationSpec, labels: Mapping[str, Out]) -> dict[str, MeasureLength]:
    """Return the stages, by split, that find rows that some arm cannot train on; all arms leave these rows out.

    Without students there are none.
    """
    config, base, recipe = generation.config, generation.base, generation.config.student
    if base is None:
        return {}
    limit = Limit(
        student=replace(base, adapter=None) if isinstance(base, ModelRef) else base,
        max_length=recipe.max_length,
        chat_template=recipe.chat_template,
        completions=_COUNTED[METHODS[recipe.method].learns],
    )
    by_gold = [ARMS[arm].gold for arm in config.selection.arms]
    found = {}
    for split in [split for split in ("calibration", "pool") if split in labels]:
        gold = generation.tables.get("audit" if split == "pool" else split)
        gold = gold if any(by_gold) and limit.completions is True else None
        # What the gold arms of the pool train on follows from these, the labels and the gold labels.
        rollouts = {"wanted": config.selection.gold_rollouts.source, "seed": config.seed}
        found[split] = MeasureLength(
            **generation.place(f"length-{split}", split),
            examples=generation.tables[split],
            labels=labels[split],
            weak=not all(by_gold) or limit.completions is not True,
            gold=gold,
            domain=get_taught_domain(config, split),
            limit=limit,
            rollouts=rollouts if gold and split == "pool" else None,
            split=split,
        )
    return found


def describe_selection(
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

    def choose(labels: Mapping[str, Out]) -> ChoiceInputs:
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
    read = {name: inputs for name, inputs in divided.items() if inputs is not None}
    choice = replace(choose(scored), left_out=left_out, divided=read)
    texts: Any = None
    gold_arms = tuple(arm for arm in selection.arms if ARMS[arm].gold)
    if METHODS[config.student.method].learns != "completions":
        texts = {"source": "label", "samples": None}
    elif gold_arms:
        # Where the draw depends on no score, labels without scores stand for it, so that a changed trust function
        # does not ask the teacher again.
        by_score = any(ARMS[arm].ranked for arm in gold_arms) or budget.reads_scores
        of_gold = selection.model_copy(update={"arms": gold_arms, "required": ()})
        drawn = replace(choice if by_score else choose(labels), selection=of_gold, declared=collect_declared(of_gold))
        texts = RollOut(
            name=generation.name("rollouts"),
            at=generation.at("pool"),
            choice=drawn,
            teacher=teacher.changed(**AskConfig.BARE),
            decoding=config.teacher.decoding,
            rollout_seed=generation.seed("rollouts"),
            limit=lengths["pool"].limit if lengths else None,
            **generation.settings,
        ).value("texts")
    return Select(
        name=generation.name("select"),
        at=generation.at("pool"),
        choice=choice,
        texts=texts,
        teacher=None if config.teacher.reader is not None else generation.teacher,  # what reads labels gave none
        generation=generation.index,
        num_rows=None if budget.n is None else budget.n * len(selection.arms),
    )
