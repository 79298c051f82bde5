"""Finds a fitted trust function and the labels of its fit in a run directory, by configuration and manifest alone."""

from dataclasses import dataclass
from functools import cached_property

from curation.arms import REFERENCE_ARM, TRUST, Configured, Fitted
from curation.commands.export.files import is_on_hub
from curation.commands.export.run import choose_generation, get_fitting_class, get_fitting_stage, read_run
from curation.config import AnswersConfig, RunConfig, TrustConfig
from curation.errors import ExportError
from curation.json_types import JsonView
from curation.pipeline.grading import choose_grading_stage
from curation.pipeline.numbers import read_numbers_after
from curation.refs import ModelRef, TrustRef
from curation.rundir.graph import Position, Stage
from curation.rundir.manifest import Manifest, StageRecord
from curation.stages.label import Label
from curation.stages.read import Read
from curation.storage.paths import Place, to_place
from curation.trust import saved


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fitted trust function with the run that fitted it."""

    config: RunConfig
    manifest: Manifest
    name: str
    """A name of ``curation.arms.TRUST``."""
    generation: int
    record: StageRecord
    """The record of the stage that fitted the function."""

    def stage(self, split: str, *classes: type[Stage]) -> StageRecord | None:
        """Return the record of the generation's stage on a split, of the first class that is done, or ``None``."""
        return self.manifest.find(Position(generation=self.generation, split=split), *classes)

    def labels(self, split: str) -> StageRecord | None:
        """Return the record of the stage that made a split's labels with their states, or ``None`` if it is not done.

        If a model reads a server's answers, this is the reading stage.
        """
        return self.stage(split, get_labels_stage(self.config))

    @property
    def labelling(self) -> StageRecord:
        """The record of the stage that made the labels of the source split."""
        found = self.labels("source")
        assert found is not None, "find_fit refuses a run without it"
        return found

    @property
    def trust(self) -> TrustRef:
        """Reference to the files of the fitted function."""
        return TrustRef.from_json(self.record.outputs["trust"])

    @property
    def teacher(self) -> ModelRef | None:
        """The model that labelled or read answers; ``None`` for a backend without weights.

        Raises:
            ExportError: the model's files are missing.
        """
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
    """Return the fitted trust function with a name (default: ``trust``) of a generation (default: the last).

    Raises:
        ExportError: the directory is not a run, or has no such function that was fitted on its newest labels.
    """
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
    stage = f"gen-{generation}/{get_fitting_stage(config, name)}"
    finish = f"`curate run {run} --until {stage}` fits it"
    record = manifest.find(Position(generation=generation, split="source", of=name), get_fitting_class(config, name))
    if record is None or "trust" not in record.outputs:
        raise ExportError(f"{run}: {stage} is not done; {finish}; {there}")
    fit = Fit(config=config, manifest=manifest, name=name, generation=generation, record=record)
    if fit.settings.states == ("pca",):
        raise ExportError(
            f"{run}: with teacher.store_states {config.teacher.store_states!r} the trust function reads a projection "
            "that was made of the stored states, not the states themselves; export from a run with store_states: true "
            "or false (trust.pca keeps as many components within the function)"
        )
    classes: dict[str, type[Stage]] = {
        "labels": get_labels_stage(config),
        "grades": choose_grading_stage(config, "source"),
    }
    for what, kind in classes.items():
        made = fit.stage("source", kind)
        if made is None or record.inputs[what] != made.outputs.get(what):
            raise ExportError(f"{run}: the {what} of the source split changed since {stage} was done; {finish} again")
    return fit
