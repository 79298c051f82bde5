"""Finds a trained student in a run directory by configuration and manifest, without sources, a cluster or Ray."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from curation.arms import ARMS, TRUST, Configured, Fitted
from curation.commands.export.run import choose_arm, choose_generation, get_fitting_class, read_run
from curation.config import RunConfig
from curation.errors import ExportError
from curation.json_types import JsonView
from curation.pipeline.numbers import read_numbers_after
from curation.refs import ModelRef, TableRef
from curation.rundir.graph import Position, Stage
from curation.rundir.manifest import Manifest, StageRecord
from curation.stages.label import Label
from curation.stages.preferences import WritePreferences
from curation.stages.score import Score
from curation.stages.select import Select
from curation.stages.training import TrainStudent
from curation.storage.paths import Place, to_place


@dataclass(frozen=True, kw_only=True)
class Student:
    """A student with the run that trains it."""

    config: RunConfig
    manifest: Manifest
    arm: str
    generation: int
    name: str = ""
    """The name of a further student; empty for the student that teaches the next generation."""

    @property
    def run(self) -> str:
        """The name of the run."""
        return self.config.name

    @property
    def branch(self) -> str:
        """The arm of the student's chain if that is not the main one, from the second generation on; else empty."""
        return self.arm if self.generation and self.arm in self.config.chain.arms[1:] else ""

    @property
    def home(self) -> str:
        """The prefix of the generation's stage names, as in messages and commands."""
        return f"gen-{self.generation}-{self.branch}" if self.branch else f"gen-{self.generation}"

    @property
    def stage(self) -> str:
        """The name of the stage that trains the student; other stages of the generation are in ``home``."""
        return f"{self.home}-{self.name}/student-{self.arm}" if self.name else f"{self.home}/student-{self.arm}"

    @property
    def trained(self) -> StageRecord | None:
        """The record of the stage that trained the student, or None."""
        at = Position(generation=self.generation, branch=self.name or self.branch, of=self.arm)
        return self.manifest.find(at, TrainStudent)

    @property
    def record(self) -> StageRecord:
        """The record of the stage that trained the student."""
        assert self.trained is not None, "find_student refuses a run without it"
        return self.trained

    def of_generation(self, split: str, *classes: type[Stage], of: str = "") -> StageRecord | None:
        """Return the record of a split's first finished stage among the classes, or ``None`` if none is finished."""
        at = Position(generation=self.generation, branch=self.branch, split=split, of=of)
        return self.manifest.find(at, *classes)

    @property
    def selecting(self) -> StageRecord | None:
        """The record of the stage that selected the student's rows."""
        return self.of_generation("pool", Select)

    @property
    def trust(self) -> StageRecord | None:
        """The record of the stage that fitted the arm's trust function; ``None`` if nothing is fitted."""
        trust = ARMS[self.arm].trust
        if not isinstance(TRUST[trust], Fitted | Configured):
            return None
        return self.of_generation("source", get_fitting_class(self.config, trust), of=trust)

    @cached_property
    def model(self) -> ModelRef:
        """The reference to the student's weights."""
        return ModelRef.from_json(self.record.outputs["model"])

    @cached_property
    def base(self) -> ModelRef:
        """The model that the student was trained from."""
        return ModelRef.from_json(self.record.inputs["base"])

    @property
    def folder(self) -> Place:
        """The folder to which the training saved the student."""
        return to_place(self.model.adapter or self.model.base)

    @cached_property
    def measured(self) -> JsonView | None:
        """The generation's ``metrics.json`` with the verdict, if computed after this training, else ``None``."""
        return read_numbers_after(self.manifest, self.record, self.generation)


def _find_changed_stage(student: Student) -> str | None:
    """Return a stage that ran again after the student was trained, which replaced its outputs, or ``None``."""
    selected, scored = student.selecting, student.of_generation("pool", Score)
    digests = {} if selected is None else {name: item["digest"] for name, item in selected.outputs["arms"].items()}
    if selected is None or student.record.inputs["digest"] != digests.get(student.arm):
        return "select"
    if scored is not None and selected.inputs["choice"]["labels"] != scored.outputs["labels"]:
        return "score-pool"
    fitted, arm = student.trust, ARMS[student.arm]
    if arm.ranked and fitted is not None:
        scoring = [student.of_generation("pool", kind) for kind in (Score, Label)]
        if fitted.outputs["trust"]["digest"] not in json.dumps([item.inputs for item in scoring if item is not None]):
            return fitted.name
    return None


def iter_students(config: RunConfig, manifest: Manifest) -> Iterator[Student]:
    """Yield every student of a run's configuration, trained or not."""
    for generation, described in enumerate(config.generations):
        for arm in config.selection.arms:
            for name in ("", *described.students):
                student = Student(config=config, manifest=manifest, arm=arm, generation=generation, name=name)
                if not (name and student.branch):  # further students learn from the main chain's selections
                    yield student


def find_student(run: Place, arm: str | None, generation: int | None, name: str | None = None) -> Student:
    """Return the trained student of an arm and a generation, or raise an ``ExportError``."""
    config, manifest = read_run(run)
    if not config.generations:
        raise ExportError(f"{run}: the run only curates (it has no generations), so there is no student to export")
    done = [
        name
        for name, record in manifest.stages.items()
        if "training" in record.outputs and "digest" in record.inputs  # which no other training has
    ]
    trained = f"trained students: {', '.join(sorted(done)) or 'none'}"
    generation = choose_generation(config, generation, trained)
    arm = choose_arm(config, arm, trained)
    student = Student(config=config, manifest=manifest, arm=arm, generation=generation, name=name or "")
    if name is not None and name not in (further := config.generations[generation].students):
        raise ExportError(
            f"--student {name}: the students of generation {generation} that do not teach are "
            f"{', '.join(further) or 'none'}; leave it out for that one; {trained}"
        )
    if student.name and student.branch:
        raise ExportError(
            f"--student {name}: learns from the main chain's selections, and the arm {arm} has a chain of its own; "
            f"name another arm; {trained}"
        )
    finish = f"`curate run {run} --until {student.stage}` trains it"
    selected = student.selecting
    if selected is not None and (why := (selected.outputs.get("dropped") or {}).get(arm)) is not None:
        raise ExportError(
            f"{run}: the arm {arm} dropped out of generation {generation}, so that it has no student: {why}; export "
            f"another arm; {trained}"
        )
    if student.trained is None:
        raise ExportError(f"{run}: {student.stage} is not trained yet; {finish}; {trained}")
    if (changed := _find_changed_stage(student)) is not None:
        raise ExportError(f"{run}: {changed} changed since {student.stage} was trained; {finish} again")
    if not student.folder.is_dir():
        raise ExportError(f"{student.folder}: the files of {student.stage} are gone; restore them, or run it elsewhere")
    return student


def find_selection(config: RunConfig, manifest: Manifest, arm: str | None, generation: int) -> tuple[Student, TableRef]:
    """Return the student, trained or not, of an arm and the table of the arm's rows.

    The table has the schema ``schemas.SELECTION``, or ``schemas.PREFERENCES`` for pairs once these are written.

    Raises:
        ExportError: the run has no such arm, the arm dropped out, or its rows are not selected yet.
    """
    directory, arm = manifest.directory, choose_arm(config, arm, "give one of them")
    student = Student(config=config, manifest=manifest, arm=arm, generation=generation)
    selected = student.selecting
    outputs = {} if selected is None else selected.outputs
    if (why := (outputs.get("dropped") or {}).get(arm)) is not None:
        raise ExportError(f"{directory}: the arm {arm} dropped out of generation {generation}: {why}; take another arm")
    if (made := (outputs.get("arms") or {}).get(arm)) is None:
        raise ExportError(
            f"{directory}: no rows of the arm {arm} yet, stage {student.home}/select is not done; "
            f"`curate run {directory}` goes on with it"
        )
    pairs = student.of_generation("pool", WritePreferences)
    if pairs is not None and pairs.inputs["selected"].get(arm) == made["table"]:
        made = pairs.outputs["arms"][arm]
    return student, TableRef.from_json(made["table"])
