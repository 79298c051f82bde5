"""A run directory as exports and `curate explain` read it: its tables, students and selections, without Ray."""

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from curation.arms import REFERENCE_ARM, TRUST, Configured, Fitted
from curation.commands.export.files import is_on_hub
from curation.config import AnswersConfig, RunConfig, TrustConfig
from curation.config.load import load_config
from curation.errors import ExportError, TableError
from curation.json_types import Json, JsonView
from curation.pipeline.grading import choose_grading_stage
from curation.pipeline.growth import iter_prepare_records
from curation.pipeline.numbers import read_numbers_after
from curation.refs import ModelRef, TableRef, TrustRef
from curation.rundir.graph import Position, Stage
from curation.rundir.manifest import Manifest, StageRecord
from curation.stages.fit import FitTrust, Search
from curation.stages.label import Label, Read
from curation.stages.select import Select, WritePreferences
from curation.stages.training import TrainStudent
from curation.storage.paths import Place, require_reachable, to_place
from curation.tables import io
from curation.tables.schemas import FILE_SHIFT
from curation.trust import saved


def read_run(run: Place) -> tuple[RunConfig, Manifest]:
    """Return the configuration and the manifest of a run directory; refuse any other one, by an ``ExportError``."""
    require_reachable(run)
    if not all((run / name).is_file() for name in ("manifest.json", "config.yaml")):
        raise ExportError(
            f"{run}: is not a run directory (manifest.json or config.yaml is missing); give the run_dir of a run"
        )
    return load_config(run / "config.yaml", (f"run_dir={json.dumps(str(run))}",)), Manifest.load(run)


def choose_generation(config: RunConfig, generation: int | None, known: str) -> int:
    """Return the requested generation, or the last one; an error ends with ``known``, what the run has."""
    last = max(0, len(config.generations) - 1)
    if generation is not None and not 0 <= generation <= last:
        raise ExportError(f"generation {generation}: the run's generations are 0 to {last}; {known}")
    return last if generation is None else generation


def choose_arm(config: RunConfig, arm: str | None, known: str) -> str:
    """Return the requested arm, or ``trust`` or the only one; an error ends with ``known``, what the run has."""
    arms = config.selection.arms
    if arm is None and REFERENCE_ARM not in arms and len(arms) > 1:
        raise ExportError(f"arm: name one of the run's arms ({', '.join(arms)}); {known}")
    found = arm or (REFERENCE_ARM if REFERENCE_ARM in arms else arms[0])
    if found not in arms:
        raise ExportError(f"arm {found}: the run's arms are {', '.join(arms)}; {known}")
    return found


def get_fitting_class(config: RunConfig, trust: str) -> type[Stage]:
    """Return the class of the stage that fits a trust function.

    The manifest may also have a stage of the other class, which ran before the setting changed.
    """
    return Search if trust == REFERENCE_ARM and config.trust.search else FitTrust


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run directory with its configuration and manifest."""

    config: RunConfig
    manifest: Manifest

    @classmethod
    def of(cls, place: Place) -> Self:
        """Return the run in a directory; refuse a directory that is no run, and a run without rows."""
        config, manifest = read_run(place)
        if "prepare" not in manifest.stages:
            raise TableError(
                f"{place}: the run has no rows yet, its stage prepare is not done; `curate run {place}` continues it"
            )
        return cls(config=config, manifest=manifest)

    def stage(
        self, generation: int, split: str, *classes: type[Stage], of: str = "", branch: str = ""
    ) -> StageRecord | None:
        """Return the record of a stage on a split, of the first class that is done, or ``None``."""
        return self.manifest.find(Position(generation=generation, branch=branch, split=split, of=of), *classes)

    @cached_property
    def splits(self) -> dict[str, TableRef]:
        """The tables of prepared rows, by split, including ``audit`` if there is one."""
        found = [record.outputs["tables"] for record in iter_prepare_records(self.manifest)]
        return {name: TableRef.from_json(value) for tables in found for name, value in tables.items()}

    def one(self, ref: TableRef, row_id: int, columns: list[str] | None = None) -> Json | None:
        """Return the row with an id from a table, or ``None`` if there is none."""
        (at,) = io.find_offsets(ref, np.array([row_id], dtype=np.int64))
        if at < 0:
            return None
        present = io.open_table(ref).schema.names
        names = [name for name in present if columns is None or name in columns]
        row: Json = io.take_offsets(ref, np.array([at], dtype=np.int64), names).to_pylist()[0]
        return row

    def origin(self, row_id: int, split: str) -> Json:
        """Return where a row of a split comes from: its source, file and row number in the file."""
        source = self.config.splits.named()[split].source
        files, id_column = self.manifest.source_files.get(source, []), self.config.sources[source].id_column
        found: Json = {"source": source, "file": None, "row": None, "id_column": id_column}
        if id_column is None:
            index = row_id >> FILE_SHIFT
            file = next((file for file in files if file.index == index), None)
            found |= {"file": None if file is None else file.path, "row": row_id & ((1 << FILE_SHIFT) - 1)}
        elif len(files) == 1:
            found["file"] = files[0].path
        return found


@dataclass(frozen=True, kw_only=True)
class Student(RecordedRun):
    """A student with the run that trains it."""

    arm: str
    generation: int
    name: str = ""
    """The name of a further student; empty for the student that teaches the next generation."""
    record: StageRecord | None = None
    """The record of the stage that made what is exported, the student or its rows."""

    @property
    def branch(self) -> str:
        """The arm of the student's chain if that is not the main one, from the second generation on; else empty."""
        return self.arm if self.generation and self.arm in self.config.chain.arms[1:] else ""

    @property
    def home(self) -> str:
        """The prefix of the generation's stage names, as in messages and commands."""
        return f"gen-{self.generation}-{self.branch}" if self.branch else f"gen-{self.generation}"

    @property
    def training(self) -> str:
        """The name of the stage that trains the student; other stages of the generation are in ``home``."""
        return f"{self.home}-{self.name}/student-{self.arm}" if self.name else f"{self.home}/student-{self.arm}"

    @property
    def selecting(self) -> StageRecord | None:
        """The record of the stage that selected the student's rows."""
        return self.stage(self.generation, "pool", Select, branch=self.branch)

    @cached_property
    def measured(self) -> Json | None:
        """The generation's ``metrics.json``, or ``None`` if it was not computed after the exported part."""
        return None if self.record is None else read_numbers_after(self.manifest, self.record, self.generation)

    @property
    def numbers(self) -> Json | None:
        """The numbers of the generation; ``None`` outside the main chain, as cards have no results there."""
        return None if self.measured is None or self.branch else self.measured["numbers"]


@dataclass(frozen=True, kw_only=True)
class Trained(Student):
    """A student that was trained, with the record of its training."""

    record: StageRecord

    @property
    def model(self) -> ModelRef:
        """The reference to the student's weights."""
        return ModelRef.from_json(self.record.outputs["model"])

    @property
    def folder(self) -> Place:
        """The folder to which the training saved the student."""
        return to_place(self.model.adapter or self.model.base)


def find_student(run: Place, arm: str | None, generation: int | None, name: str | None = None) -> Trained:
    """Return the trained student of an arm and a generation, or raise an ``ExportError``."""
    config, manifest = read_run(run)
    if not config.generations:
        raise ExportError(f"{run}: the run only curates (it has no generations), so there is no student to export")
    done = [
        name
        for name, record in manifest.stages.items()
        if "training" in record.outputs and "digest" in record.inputs  # only trainings of students have both
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
    finish = f"`curate run {run} --until {student.training}` trains it"
    at = Position(generation=generation, branch=student.name or student.branch, of=arm)
    if (record := manifest.find(at, TrainStudent)) is None:
        raise ExportError(f"{run}: {student.training} is not trained yet; {finish}; {trained}")
    found = Trained(config=config, manifest=manifest, arm=arm, generation=generation, name=student.name, record=record)
    selected = student.selecting
    selected_digest = None if selected is None else selected.outputs["arms"].get(arm, {}).get("digest")
    if record.inputs["digest"] != selected_digest:
        raise ExportError(f"{run}: select changed since {found.training} was trained; {finish} again")
    if not found.folder.is_dir():
        raise ExportError(f"{found.folder}: the files of {found.training} are gone; restore them, or run it elsewhere")
    return found


def find_selection(config: RunConfig, manifest: Manifest, arm: str | None, generation: int) -> tuple[Student, TableRef]:
    """Return the student, trained or not, of an arm and the table of the arm's rows, or raise an ``ExportError``.

    The table has the schema ``schemas.SELECTION``, or ``schemas.PREFERENCES`` for pairs once these are written.
    """
    directory, arm = manifest.directory, choose_arm(config, arm, "give one of them")
    student = Student(config=config, manifest=manifest, arm=arm, generation=generation)
    selected = student.selecting
    outputs = {} if selected is None else selected.outputs
    if (made := (outputs.get("arms") or {}).get(arm)) is None:
        raise ExportError(
            f"{directory}: no rows of the arm {arm} yet, stage {student.home}/select is not done; "
            f"`curate run {directory}` goes on with it"
        )
    pairs = student.stage(generation, "pool", WritePreferences, branch=student.branch)
    if pairs is not None and pairs.inputs["selected"].get(arm) == made["table"]:
        made = pairs.outputs["arms"][arm]
    return replace(student, record=selected), TableRef.from_json(made["table"])


@dataclass(frozen=True, kw_only=True)
class Fit(RecordedRun):
    """A fitted trust function with the run that fitted it."""

    name: str
    generation: int
    record: StageRecord
    labelling: StageRecord
    """The record of the stage that made the labels of the source split."""

    def labels(self, split: str) -> StageRecord | None:
        """Return the record of the stage that made a split's labels with states (:func:`get_labels_stage`), or None."""
        return self.stage(self.generation, split, get_labels_stage(self.config))

    @property
    def trust(self) -> TrustRef:
        """Reference to the files of the fitted function."""
        return TrustRef.from_json(self.record.outputs["trust"])

    @property
    def teacher(self) -> ModelRef | None:
        """The model that labelled or read answers, whose files are there; None for a backend without weights."""
        if (found := self.labelling.inputs["model"]) is None:
            return None
        model = ModelRef.from_json(found)
        for path in (None if is_on_hub(model) else model.base, model.adapter):
            if path is not None and not to_place(path).is_dir():
                raise ExportError(f"{path}: the teacher's files are gone, and a package has their digest; restore them")
        return model

    @property
    def ask(self) -> AnswersConfig:
        """The configuration of the source's labels: backend, states and types, without decoding and server address."""
        key = self.labelling.inputs["ask"]
        return AnswersConfig.from_key({name: key[name] for name in AnswersConfig.model_fields if name in key})

    @cached_property
    def described(self) -> JsonView:
        """The trust function's description of itself (``curation.trust.saved``)."""
        return saved.read_description(self.trust)

    @property
    def settings(self) -> TrustConfig:
        """The settings of the fit."""
        return TrustConfig.from_key(self.described["fit"].get("config", self.record.inputs["trust"]))

    @property
    def seed(self) -> int:
        """The seed of the fit, which also divided the source into fit and validation rows."""
        return int(self.record.inputs["seed"])

    @cached_property
    def numbers(self) -> JsonView | None:
        """The generation's metrics with the verdict, or ``None`` if none were computed after this fit."""
        found = read_numbers_after(self.manifest, self.record, self.generation)
        return None if found is None else found["numbers"]


def get_labels_stage(config: RunConfig) -> type[Label | Read]:
    """Return the class of the stages that make labels with their states."""
    return Label if config.teacher.reading is None else Read


def find_fit(run: Place, trust: str | None, generation: int | None) -> Fit:
    """Return the trust function of a name and a generation (``trust``, the last), or raise an ``ExportError``."""
    config, manifest = read_run(run)
    fits = [name for name, record in manifest.stages.items() if {"trust", "fit"} <= record.outputs.keys()]
    there = f"fitted: {', '.join(sorted(fits)) or 'none'}"
    generation = choose_generation(config, generation, there)
    name = trust or REFERENCE_ARM
    try:
        known = TRUST.find(name)
    except ValueError as error:
        raise ExportError(f"--trust {name}: {error}; {there}") from error
    if not isinstance(known, Fitted | Configured):
        raise ExportError(
            f"--trust {name}: {known.words} is not fitted, so there is nothing to export: it needs no run; {there}"
        )
    kind = get_fitting_class(config, name)
    of = "search" if kind is Search else "trust" if name == REFERENCE_ARM else f"trust-{name}"
    stage = f"gen-{generation}/{of}"
    finish = f"`curate run {run} --until {stage}` fits it"
    record = manifest.find(Position(generation=generation, split="source", of=name), kind)
    if record is None or "trust" not in record.outputs:
        raise ExportError(f"{run}: {stage} is not done; {finish}; {there}")
    made: dict[str, StageRecord] = {}
    for what, made_by in (("labels", get_labels_stage(config)), ("grades", choose_grading_stage(config, "source"))):
        of_source = manifest.find(Position(generation=generation, split="source"), made_by)
        if of_source is None or record.inputs[what] != of_source.outputs.get(what):
            raise ExportError(f"{run}: the {what} of the source split changed since {stage} was done; {finish} again")
        made[what] = of_source
    return Fit(
        config=config, manifest=manifest, name=name, generation=generation, record=record, labelling=made["labels"]
    )
