"""Which signals a run asks for, and the stages that measure them."""

from typing import Any

from curation import arms
from curation.config import AskConfig, RunConfig
from curation.pipeline.given import Generation
from curation.rundir.graph import Out
from curation.signals import SIGNALS
from curation.stages.asking import TeacherUse
from curation.stages.signal import MeasureSignal


def signals_on(config: RunConfig, split: str) -> dict[str, arms.Signal]:
    """The signals that are made for a split: the arms' for the pool, the reference arm's where a budget reads it."""
    selection = config.selection
    if split == "pool":
        return arms.signals_of(selection.used)
    reads_reference = split in ("calibration", selection.budget.purity_split)
    return arms.signals_of((selection.budget.reference,)) if reads_reference else {}


def asked_of_teacher(generation: Generation, split: str) -> dict[str, dict[str, Any]]:
    """The signals that ask the labelling model, which may measure them as it labels, and what their values follow."""
    signals = signals_on(generation.config, split).values()
    return {_named(signal): _how(generation, signal, split) for signal in signals if signal.asks == "teacher"}


def signals_of(generation: Generation, teacher: TeacherUse, split: str, labels: Out) -> dict[str, MeasureSignal]:
    """A stage for each signal of a split, by column."""
    signals = signals_on(generation.config, split)
    return {column: _signal(generation, teacher, signal, split, labels) for column, signal in signals.items()}


def _named(signal: arms.Signal) -> str:
    """The name that ``curation.signals.get_signal`` finds it by."""
    return signal.column if signal.column in SIGNALS else signal.made_by


def _how(generation: Generation, signal: arms.Signal, split: str) -> dict[str, Any]:
    """The part of a signal that its values depend on beside the model."""
    return {
        "seed": generation.seed(f"signal-{signal.column}-{split}"),
        "options": generation.config.signals.options_of(signal),
        "shots": generation.tables["shots"] if signal.shots else None,
    }


def _signal(generation: Generation, teacher: TeacherUse, signal: arms.Signal, split: str, labels: Out) -> MeasureSignal:
    config = generation.config
    answering = {"teacher": teacher, **generation.others.roles}[signal.asks]
    return MeasureSignal(
        name=generation.name(f"signal-{signal.column}-{split}"),
        signal=_named(signal),
        examples=generation.tables[split],
        labels=labels,
        domain=config.domain_of(split),
        teacher=answering.changed(**AskConfig.BARE),
        decoding=config.teacher.decoding,
        reward=config.signals.reward if signal.asks == "reward" else None,
        beside_labels=signal.asks == "teacher",
        num_rows=generation.sizes[split],
        **_how(generation, signal, split),
        **generation.settings,
    )
