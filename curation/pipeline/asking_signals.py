"""The signals that a run asks for, and the stages that measure them."""

from collections.abc import Mapping

from curation import arms
from curation.config import AskConfig, RunConfig
from curation.json_types import Json
from curation.pipeline.generation_spec import GenerationSpec
from curation.pipeline.roles import describe_teacher_use
from curation.rundir.graph import Out
from curation.signals import ASKS_UNADAPTED, SIGNALS
from curation.stages.asking import TeacherUse
from curation.stages.signal import MeasureSignal

UNADAPTED = "the teacher before it was adapted"
"""Role of the unadapted teacher; its spaces keep it apart from the names in ``signals.models``."""


def get_split_signals(config: RunConfig, split: str) -> dict[str, arms.Signal]:
    """Return the signals of a split: all arms' for the pool, the reference arm's if a budget reads the split."""
    selection = config.selection
    if split == "pool":
        return arms.find_signals(selection.used)
    reads_reference = split in ("calibration", selection.budget.purity_split)
    return arms.find_signals((selection.budget.reference,)) if reads_reference else {}


def find_teacher_signals(generation: GenerationSpec, split: str) -> dict[str, Json]:
    """Return the signals that the labelling model may measure as it labels, with the settings that they depend on."""
    signals = get_split_signals(generation.config, split).values()
    return {
        _get_name(signal): {
            **_describe_settings(generation, signal, split),
            "stage": _name_stage(generation, signal, split),
        }
        for signal in signals
        if _needs_teacher(generation, signal)
    }


def get_asked_models(generation: GenerationSpec, teacher: TeacherUse) -> dict[str, TeacherUse]:
    """Return the models that a generation's signals ask, by role; ``UNADAPTED`` is the teacher before adaptation."""
    before = teacher
    if generation.unadapted != generation.teacher and UNADAPTED in map(
        _get_role, get_split_signals(generation.config, "pool").values()
    ):
        ask = generation.config.teacher.ask.model_copy(update=AskConfig.BARE)
        before = describe_teacher_use(generation.unadapted, ask, name=generation.name("backend-teacher-unadapted"))
    return {"teacher": teacher, UNADAPTED: before, **generation.helpers.roles}


def describe_signals(
    generation: GenerationSpec, roles: Mapping[str, TeacherUse], split: str, labels: Out
) -> dict[str, MeasureSignal]:
    """Return a stage for each signal of a split, by column; ``roles`` are those of :func:`get_asked_models`."""
    signals = get_split_signals(generation.config, split)
    return {column: _describe_signal(generation, roles, signal, split, labels) for column, signal in signals.items()}


def _get_role(signal: arms.Signal) -> str:
    return UNADAPTED if signal.asks == "teacher" and signal.column in ASKS_UNADAPTED else signal.asks


def _needs_teacher(generation: GenerationSpec, signal: arms.Signal) -> bool:
    was_adapted = generation.unadapted != generation.teacher
    return _get_role(signal) == "teacher" or (_get_role(signal) == UNADAPTED and not was_adapted)


def _get_name(signal: arms.Signal) -> str:
    """Return the name by which ``curation.signals.get_signal`` finds a signal."""
    return signal.column if signal.column in SIGNALS else signal.made_by


def _name_stage(generation: GenerationSpec, signal: arms.Signal, split: str) -> str:
    return generation.name(f"signal-{signal.column}-{split}")


def _describe_settings(generation: GenerationSpec, signal: arms.Signal, split: str) -> Json:
    """Return the settings other than the model on which a signal's values depend."""
    return {
        "seed": generation.seed(f"signal-{signal.column}-{split}"),
        "options": generation.config.signals.options_of(signal),
        "shots": generation.tables["shots"] if signal.shots else None,
    }


def _describe_signal(
    generation: GenerationSpec, roles: Mapping[str, TeacherUse], signal: arms.Signal, split: str, labels: Out
) -> MeasureSignal:
    config = generation.config
    reading = [arm for arm in dict.fromkeys(config.selection.used) if arms.ARMS[arm].signal == signal]
    required = {arm: key for arm in reading if (key := config.selection.required_by(arm)) is not None}
    return MeasureSignal(
        name=_name_stage(generation, signal, split),
        at=generation.at(split, of=signal.column),
        signal=_get_name(signal),
        examples=generation.tables[split],
        labels=labels,
        domain=config.domain_of(split).agreeing,
        teacher=roles[_get_role(signal)].changed(**AskConfig.BARE),
        decoding=config.teacher.decoding,
        reward=config.signals.reward if signal.asks == "reward" else None,
        beside_labels=_needs_teacher(generation, signal),
        required=required,
        num_rows=generation.sizes[split],
        **_describe_settings(generation, signal, split),
        **generation.settings,
    )
