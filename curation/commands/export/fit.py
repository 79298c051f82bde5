"""Finds a fitted trust function and the labels of its fit in a run directory, by configuration and manifest alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation.arms import REFERENCE_ARM, TRUST, Configured, Fitted
from curation.arrays import Int64s
from curation.commands.export.files import is_on_hub
from curation.commands.export.run import (
    RecordedRun,
    choose_generation,
    get_fitting_class,
    get_fitting_stage,
    read_run,
)
from curation.config import AnswersConfig, DecodingConfig, RunConfig, TrustConfig
from curation.domains import get_domain
from curation.domains.given import as_asked
from curation.domains.grading import read_grades
from curation.errors import ExportError
from curation.filter.package.checks import collect_questions
from curation.filter.package.description import CalibrationRows, Question
from curation.filter.package.folder import SCORES, pack_words
from curation.json_types import JsonView
from curation.metrics.shift import sample_words
from curation.pipeline.grading import choose_grading_stage
from curation.pipeline.numbers import read_numbers_after
from curation.refs import ModelRef, TableRef, TrustRef
from curation.rundir.graph import Position
from curation.rundir.manifest import StageRecord
from curation.selection.budget import GradedScores
from curation.stages.label import Label, Read
from curation.stages.shift import get_states, sample_rows, sample_texts
from curation.storage.paths import Place, to_place
from curation.tables import io, schemas
from curation.trust import Scores, saved
from curation.trust.parts import find_independent

if TYPE_CHECKING:
    from curation.trust.states import StateTrust


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
    stage = f"gen-{generation}/{get_fitting_stage(config, name)}"
    finish = f"`curate run {run} --until {stage}` fits it"
    record = manifest.find(Position(generation=generation, split="source", of=name), get_fitting_class(config, name))
    if record is None or "trust" not in record.outputs:
        raise ExportError(f"{run}: {stage} is not done; {finish}; {there}")
    made: dict[str, StageRecord] = {}
    for what, kind in (("labels", get_labels_stage(config)), ("grades", choose_grading_stage(config, "source"))):
        of_source = manifest.find(Position(generation=generation, split="source"), kind)
        if of_source is None or record.inputs[what] != of_source.outputs.get(what):
            raise ExportError(f"{run}: the {what} of the source split changed since {stage} was done; {finish} again")
        made[what] = of_source
    fit = Fit(
        config=config, manifest=manifest, name=name, generation=generation, record=record, labelling=made["labels"]
    )
    return fit


SAMPLE_BYTES = 32 << 20
"""Maximum size of ``shift.safetensors`` in bytes, unless ``SAMPLE_ROWS`` rows need more."""
SAMPLE_ROWS = 500
NUM_READ = 50
"""Number of rows that are searched for questions to store."""

Keep = Callable[[Int64s], npt.NDArray[np.bool_]]
Reference = Mapping[str, npt.NDArray[Any]]


def split_inputs(fit: Fit) -> tuple[list[str], list[str]]:
    """Return the hidden states and the scalar columns that the function reads, in order."""
    inputs = list(fit.described["inputs"])
    columns = [name for name in inputs if not schemas.is_state(schemas.get_input_column(name))]
    return [name for name in inputs if name not in columns], columns


def read_questions(fit: Fit) -> tuple[Question, ...]:
    """Return questions from a few labelled rows of the pool, or else of a source of the same domain."""
    config, decoding = fit.config.domain_of("pool"), DecodingConfig.from_key(fit.labelling.inputs["decoding"])
    domain = as_asked(get_domain(config), decoding)
    for split in ("pool", "source"):
        labelling = fit.labels(split)
        if labelling is None or fit.config.domain_of(split) != config:
            continue
        tables = TableRef.from_json(labelling.inputs["examples"]), TableRef.from_json(labelling.outputs["labels"])
        return collect_questions(domain, _iter_rows(*tables))
    return ()


def _iter_rows(examples: TableRef, labels: TableRef) -> Iterator[tuple[dict[str, Any], str, str | None]]:
    scanner = io.open_table(labels).scanner(
        columns=["row_id", "completion", "label"],
        filter="error IS NULL AND label IS NOT NULL",
        limit=NUM_READ,
        scan_in_order=True,
    )
    found = {row["row_id"]: row for row in scanner.to_table().to_pylist()}
    wanted = ", ".join(map(str, found)) or "NULL"
    for example in io.read(examples, filter=f"row_id IN ({wanted})").to_pylist():
        row = found[example["row_id"]]
        yield example, row["completion"], row["label"]


def sample_reference(fit: Fit, function: "StateTrust", further: Sequence[str] = ()) -> Reference:
    """Return states of a sample of source rows in their stored dtype, limited by ``SAMPLE_BYTES`` and ``SAMPLE_ROWS``.

    The result has the states that the function reads, ``further`` ones, and the rows' held-out scores, named by
    ``SCORES``. Without states, it has the hashed words of a sample of the source's questions.
    """
    states = list(dict.fromkeys([*split_inputs(fit)[0], *further]))
    if not states:
        domain = get_domain(fit.config.domain_of("source").ungraded)
        texts = sample_texts(TableRef.from_json(fit.labelling.inputs["examples"]), domain, fit.seed)
        return pack_words(sample_words(texts, seed=fit.seed))
    stored = [schemas.get_raw_column(fit.name), schemas.trust_column(fit.name)]
    labels = TableRef.from_json(fit.record.inputs["labels"])
    scored = set(stored) <= set(io.open_table(labels).schema.names)
    read = ["row_id", "label", *(stored if scored else function.features)]
    rows = sample_rows(labels, states, fit.seed, read)
    dtype = np.dtype(fit.ask.state_dtype)
    found = get_states(rows, states)
    width = sum(states_ND.shape[1] for states_ND in found.values()) * dtype.itemsize
    most = min(len(rows), max(SAMPLE_ROWS, SAMPLE_BYTES // width))
    taken = np.sort(np.random.default_rng(fit.seed).permutation(len(rows))[:most])
    kept = {name: states_ND[taken].astype(dtype) for name, states_ND in found.items()}
    if not most:
        return kept
    (batch,) = rows.take(taken).combine_chunks().to_batches()
    raw_N, trust_N = _compute_held_out_scores(batch, function, stored if scored else None)
    return {**kept, **dict(zip(SCORES, (raw_N, trust_N), strict=True))}


def _compute_held_out_scores(
    batch: pa.RecordBatch, function: "StateTrust", stored: Sequence[str] | None
) -> list[Scores]:
    """Return raw scores and trust of source rows, float32 [N] each; NaN without a label or a held-out score."""
    if stored is not None:
        raw_N, trust_N = (batch.column(column).to_numpy(zero_copy_only=False) for column in stored)
    else:
        raw_N = function.source_score(batch)
        trust_N = function.to_trust(raw_N)
    parsed_N = batch.column("label").is_valid().to_numpy(zero_copy_only=False)
    return [np.where(parsed_N, score_N, np.float32(np.nan)).astype(np.float32) for score_N in (raw_N, trust_N)]


def read_calibration_rows(fit: Fit, function: "StateTrust") -> tuple[GradedScores | None, CalibrationRows | None]:
    """Return graded rows with held-out scores, of the calibration split or else of the source, or ``None``."""
    labelled = grades = None
    if fit.config.splits.calibration is not None:
        labelled = fit.labels("calibration")
        grades = fit.stage(fit.generation, "calibration", choose_grading_stage(fit.config, "calibration"))
    keep: Keep | None = None
    split, chose = "calibration", False
    if (
        labelled is not None
        and grades is not None
        and is_of(fit, labelled)
        and grades.inputs["labels"] == labelled.outputs["labels"]
    ):
        labels, graded = TableRef.from_json(labelled.outputs["labels"]), TableRef.from_json(grades.outputs["grades"])
    else:
        split, chose = "source", True  # they chose a penalty, a step to stop at, or the function itself
        labels, graded = (TableRef.from_json(fit.record.inputs[name]) for name in ("labels", "grades"))
        keep = partial(has_held_out_score, function)
    rows = _read_graded(labels, graded, fit.name, function, keep)
    if get_domain(fit.config.domain_of("pool")).closed_labels() is None:
        rows = rows._replace(label_M=None)  # nothing is cut by label
    if not len(rows.correct_M):
        return None, None
    return rows, CalibrationRows(
        split=split, num_rows=len(rows.correct_M), num_right=int(rows.correct_M.sum()), chose=chose
    )


def has_held_out_score(function: "StateTrust", row_ids_N: Int64s) -> npt.NDArray[np.bool_]:
    """Return which source rows have a score by weights that were not fitted on them, bool [N]."""
    held_out = getattr(function, "held_out", None)
    if held_out is None:
        return np.zeros(len(row_ids_N), dtype=np.bool_)
    found_N: npt.NDArray[np.bool_] = np.isin(row_ids_N, held_out.row_ids_N[~np.isnan(held_out.raw_N)])
    return found_N


def is_of(fit: Fit, labelled: StageRecord) -> bool:
    """Return whether a split was labelled like the source and, if it is scored at all, scored by this fit."""
    source, own = fit.labelling.inputs, (labelled.inputs.get("fitted") or {}).get(fit.name)
    same = all(labelled.inputs[key] == source[key] for key in ("model", "ask", "backend", "decoding"))
    return same and (own is None or own["digest"] == fit.trust.digest)


def _read_graded(
    labels: TableRef, grades: TableRef, name: str, function: "StateTrust", keep: Keep | None
) -> GradedScores:
    """Return independent graded rows that pass ``keep``, by row id; scores are NaN without a readable label."""
    graded = read_grades(grades)
    table = io.open_table(labels)
    stored = [schemas.get_raw_column(name), schemas.trust_column(name)]
    scored = set(stored) <= set(table.schema.names)  # while it was labelled: then the states are not all there
    features = stored if scored else list(function.features)
    parts: list[tuple[npt.NDArray[Any], ...]] = []
    columns = list(dict.fromkeys(["row_id", "label", *features]))
    for batch in table.scanner(columns=columns, filter="error IS NULL").to_batches():
        row_ids_B = batch.column("row_id").to_numpy()
        kept_B = np.isin(row_ids_B, graded.row_ids_N)
        kept_B &= True if keep is None else keep(row_ids_B)
        batch = batch.filter(pa.array(kept_B))
        scores = _compute_held_out_scores(
            batch, function, stored if scored else None
        )  # of another split the plain ones
        parts.append((row_ids_B[kept_B], batch.column("label").to_numpy(zero_copy_only=False), *scores))
    if not parts:
        none = np.zeros(0, dtype=np.float32)
        return GradedScores(none, none, none.astype(np.bool_))
    row_ids_M, label_M, raw_M, trust_M = (np.concatenate(part) for part in zip(*parts, strict=True))
    order_M = np.argsort(row_ids_M)
    place_M = np.searchsorted(graded.row_ids_N, row_ids_M[order_M])
    raw_M, trust_M = (scores_M[order_M].astype(np.float32) for scores_M in (raw_M, trust_M))
    found = GradedScores(raw_M, trust_M, graded.correct_N[place_M], label_M[order_M])
    cluster_M = None if graded.cluster_N is None else graded.cluster_N[place_M]
    return found.subset(find_independent(graded.question_N[place_M], row_ids_M[order_M], cluster_M))
