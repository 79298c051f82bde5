"""Fits trust functions: those with a ``fit`` in a worker of Ray Train, the others in this process.

On several nodes ``output`` is a directory that all of them share, or in an object store.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import ray
import torch

from curation.arms import check_fit_options, find_fitted
from curation.arrays import Bools, Floats, Int64s
from curation.config import TrustConfig
from curation.domains.grading import read_grades
from curation.errors import ConfigError, DegenerateSourceError
from curation.hashing import derive
from curation.json_types import Json
from curation.refs import TableRef, TrustRef, fingerprint
from curation.registry import load_code
from curation.storage.inside import run_around, to_record
from curation.storage.paths import Place, to_place
from curation.tables import io
from curation.tables.schemas import get_input_column
from curation.telemetry.standing import Update
from curation.trust import Scores, saved
from curation.trust.attention import AttentionArchitecture, AttentionNet, AttentionTrust
from curation.trust.calibration import fit_calibration
from curation.trust.deep_ensemble import DeepEnsemble
from curation.trust.folded import PrincipalComponents, check_size, compute_principal_components
from curation.trust.neural import Architecture, NeuralTrust, NeuralTrustNet
from curation.trust.parts import FIT, NAMES, VALIDATION, assign_parts, make_candidates_filter
from curation.trust.stacked import list_stored_numbers, read_numbers
from curation.trust.states import SCORE_ROWS, StateTrust, read_states
from train.launch import Notes, launch, require_claim
from train.probes import ClosedLabels, with_classes
from train.trust_loop import LabelledRows, Note, drop_note, fit_arrays, note_part

BY_FOLDS = ("stacked", "fitted_confidence")
"""Trust functions that are cross-fitted on all labelled rows, so that no part of the rows needs both classes."""


def fit_trust(
    kind: str,
    labels: TableRef,
    grades: TableRef,
    config: TrustConfig,
    *,
    seed: int,
    output: Place,
    closed: ClosedLabels | None = None,
    update: Update = lambda standing: None,
) -> TrustRef:
    """Fit the trust function ``kind`` on labelled rows and save it to ``output``.

    ``closed``: the labels, if they are a closed set that the function reads. ``update`` receives the steps of networks.
    Raise as :func:`check_parts`, :func:`fit_rows` and :func:`train.launch.launch`.
    """
    output = output.resolve()
    rows = (read_labelled_rows if kind in BY_FOLDS else read_rows)(labels, grades, config, seed=seed)
    if closed is not None and config.states:
        rows = with_classes(rows, labels, closed)
    tables = to_record({"labels": labels.to_json(), "grades": grades.to_json()}, run_around(output))
    origin = {**tables, "config": config.model_dump(mode="json"), "seed": seed}
    if find_fitted([kind])[kind].fit is None:
        return fit_rows(kind, rows, config, seed=seed, origin=origin).save(output)
    task = {"kind": kind, "rows": [ray.put(tuple(rows))], "origin": origin, "seed": seed, "output": str(output)}
    name = f"trust-{fingerprint([kind, origin])}"
    launch(_fit_in_worker, task, config, name=name, output=output, update=update, unit="steps")
    return saved.pin(output)


def _fit_in_worker(task: Json, notes: Notes | None) -> None:
    """Fit and save the trust function in the training's only worker."""
    assert notes is not None, "TrustConfig has one worker"
    rows, config = LabelledRows(*ray.get(task["rows"][0])), task["config"]
    trust = fit_rows(task["kind"], rows, config, seed=task["seed"], origin=task["origin"], note=notes.note)
    require_claim()
    trust.save(to_place(task["output"]))


def fit_rows(
    kind: str,
    rows: LabelledRows,
    config: TrustConfig,
    *,
    seed: int,
    origin: Mapping[str, object],
    note: Note = drop_note,
) -> StateTrust:
    """Fit the trust function ``kind`` of ``curation.arms.TRUST`` on rows in memory, with the options of ``config``.

    A class without a ``fit`` has the class method ``fitted(hidden_ND, correct_N, config, origin, **options)``, which
    gets the fit rows' hidden states (projected as ``config.pca`` says) and whether each row's weak label is right.
    ``config`` has the keys that the kind reads; ``origin`` of the rows is recorded; ``note`` receives the steps of
    networks.

    Raises:
        RunFailedError: the loss is not finite.
        SourceError: the labels hold no number that a stack could read.
        DegenerateSourceError: all labels are right, or all are wrong, in a part.
        ConfigError: the function refuses an option.
    """
    fitted, options = find_fitted([kind])[kind], config.options.get(kind, {})
    check_fit_options("trust.options", kind, config, options)
    if fitted.fit is not None:
        fit = load_code(fitted.fit)
        return cast(StateTrust, fit(rows, config, seed=seed, origin=origin, note=note, **options))
    made_by = load_code(fitted.made_by)
    fit_F = rows.places(FIT)
    hidden_FD, pca = rows.hidden_ND[fit_F], compute_components(rows, config, made_by.default_pca)
    if pca is not None:
        hidden_FD = pca.project(torch.from_numpy(hidden_FD)).numpy()
    origin = {**origin, "seed": seed}
    trust = made_by.fitted(hidden_FD, rows.correct_N[fit_F], config, origin, **options)
    return _calibrate(trust.with_pca(pca), rows, config)


def fit_neural(
    rows: LabelledRows, config: TrustConfig, *, seed: int, origin: Mapping[str, object], note: Note = drop_note
) -> NeuralTrust:
    """Return a neural trust function of these rows; see :func:`train.trust_loop.fit_arrays`."""
    pca = compute_components(rows, config)
    read = rows if pca is None else project_rows(rows, pca)
    new_net = partial(NeuralTrustNet, Architecture.of(config, read.hidden_ND.shape[1]))
    return fit_arrays(read, config, new_net, NeuralTrust, seed=seed, origin=origin, note=note).with_pca(pca)


def fit_attention(
    rows: LabelledRows,
    config: TrustConfig,
    *,
    seed: int,
    origin: Mapping[str, object],
    note: Note = drop_note,
    num_heads: int = 4,
) -> AttentionTrust:
    """Return a network that attends over the inputs with ``num_heads`` heads, which divide the width."""
    new_net = partial(AttentionNet, AttentionArchitecture.of(config, rows.sizes, num_heads))
    return fit_arrays(rows, config, new_net, AttentionTrust, seed=seed, origin=origin, note=note)


def fit_deep_ensemble(
    rows: LabelledRows,
    config: TrustConfig,
    *,
    seed: int,
    origin: Mapping[str, object],
    note: Note = drop_note,
    members: int = 5,
) -> StateTrust:
    """Return the average of ``members`` neural trust functions with different seeds, calibrated."""
    if members < 2:
        raise ConfigError(f"trust.options.deep_ensemble.members: {members}; give 2 or more, or take the arm neural")
    seeds = [derive(seed, f"member {m}") for m in range(members)]
    notes = [note_part(note, m, members) for m in range(members)]
    fits = [fit_neural(rows, config, seed=s, origin={}, note=part) for s, part in zip(seeds, notes, strict=True)]
    record = {key: fits[0].fit[key] for key in ("num_fit", "num_validation", "share_right_fit")}
    courses = [{key: fit.fit[key] for key in ("seed", "steps", "losses", "validation_aucs", "best")} for fit in fits]
    record = {**origin, "seed": seed, **record, "members": courses}
    trust = DeepEnsemble([fit.net for fit in fits], config.inputs, record)
    return _calibrate(trust.with_pca(fits[0].pca), rows, config)


def compute_components(
    rows: LabelledRows, config: TrustConfig, default: int | None = None
) -> PrincipalComponents | None:
    """Return as many principal components of the fit rows' states as ``config`` requests, or None if that is 0."""
    fit_F, width = rows.places(FIT), sum(rows.sizes[: len(config.states)])
    size = min(default or 0, width, len(fit_F) - 1) if config.pca is None else config.pca
    if size < 1:
        return None
    batches = (torch.from_numpy(rows.hidden_ND[places_B])[:, :width] for places_B in _cut(fit_F))
    return compute_principal_components(batches, size=size)


def project_rows(rows: LabelledRows, pca: PrincipalComponents) -> LabelledRows:
    """Return the rows with their states replaced by the states' projection."""
    width, size = pca.shape
    projected_NK = np.empty((len(rows.hidden_ND), rows.hidden_ND.shape[1] - width + size), dtype=np.float32)
    for places_B in _cut(np.arange(len(projected_NK))):
        projected_NK[places_B] = pca.project(torch.from_numpy(rows.hidden_ND[places_B])).numpy()
    return rows._replace(hidden_ND=projected_NK, sizes=(projected_NK.shape[1],))


def _cut(places_M: Int64s) -> list[Int64s]:
    """Return the places in batches of ``SCORE_ROWS``."""
    return [places_M[start : start + SCORE_ROWS] for start in range(0, len(places_M), SCORE_ROWS)]


def _calibrate(trust: StateTrust, rows: LabelledRows, config: TrustConfig) -> StateTrust:
    """Return a trust function with its held-out scores, on which it is calibrated."""
    validation_V = rows.places(VALIDATION)
    raw_V = compute_logits_at(trust, rows, validation_V)
    trust.calibration = fit_calibration(raw_V, rows.correct_N[validation_V], config.calibration)
    trust.held_out = rows.held_out(validation_V, raw_V)
    return trust.noted(num_repeats=rows.num_repeats)


def compute_logits_at(trust: StateTrust, rows: LabelledRows, places_M: Int64s) -> Scores:
    """Return the logits of the rows at these places, float32 [M]."""
    parts = [
        trust.raw_with(torch.from_numpy(rows.hidden_ND[places_B]), rows.numbers_NK[places_B], rows.numbers)
        for places_B in _cut(places_M)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)


def read_rows(labels: TableRef, grades: TableRef, config: TrustConfig, *, seed: int) -> LabelledRows:
    """Return the rows of ``labels`` that a fit may use, are graded and have all states; see :func:`check_parts`."""
    rows = read_labelled_rows(labels, grades, config, seed=seed)
    check_parts(rows, config)
    return rows


def check_parts(rows: LabelledRows, config: TrustConfig) -> None:
    """Check that a function of these settings can be fitted on these rows.

    Raises:
        DegenerateSourceError: all labels are right, or all are wrong, among the rows of one part.
        ConfigError: ``config.pca`` requests more components than there are.
    """
    share = "" if config.source_share == 1 else ", a larger trust.source_share"
    words = "parsed weak labels" if config.fit_on == "parsed" else "weak labels"
    for part, name in enumerate(NAMES):
        of_N = rows.part_N == part
        num_rows, num_right = int(of_N.sum()), int(rows.correct_N[of_N].sum())
        if num_right in (0, num_rows):
            raise DegenerateSourceError(
                f"trust: {num_right} of {num_rows} {words} are right in the {name} part of the source, but both right "
                f"and wrong ones are needed; give more source rows, another trust.validation_fraction{share} or "
                "another teacher"
            )
    if config.pca is not None:
        width = sum(rows.sizes[: len(config.states)])
        check_size(config.pca, width=width, num_rows=len(rows.places(FIT)))


def read_labelled_rows(
    labels: TableRef, grades: TableRef, config: TrustConfig, *, seed: int, numbers: Sequence[str] | None = None
) -> LabelledRows:
    """Return the rows of :func:`read_rows` without checks, with ``numbers`` of the answers (by default all)."""
    graded = read_grades(grades)
    numbers = list_stored_numbers(io.open_table(labels).schema) if numbers is None else numbers
    read = read_inputs(labels, graded.row_ids_N, config.inputs, numbers, make_candidates_filter(config))
    graded = graded.subset(read.places_N)
    return LabelledRows(
        hidden_ND=join_inputs(read.inputs) if read.inputs else np.empty((len(read.places_N), 0), dtype=np.float16),
        correct_N=graded.correct_N,
        part_N=assign_parts(graded.question_N, config, seed, unit_N=graded.unit_N),
        sizes=tuple(input_ND.shape[1] for input_ND in read.inputs),
        row_ids_N=graded.row_ids_N,
        numbers_NK=read.numbers_NK,
        numbers=tuple(numbers),
        cluster_N=graded.cluster_N,
    )


def join_inputs(inputs: Sequence[Floats]) -> Floats:
    """Return the inputs of N rows side by side, [N, D]; a single one is not copied."""
    return inputs[0] if len(inputs) == 1 else np.concatenate(inputs, axis=1)


class ReadInputs(NamedTuple):
    """The inputs of N graded rows that have all of them, ascending by row id."""

    places_N: Int64s  # places of the rows among all graded ones
    parsed_N: Bools
    inputs: list[Floats]  # each state or scalar column, [N, D], in its stored type
    numbers_NK: npt.NDArray[np.float64]


def read_inputs(
    labels: TableRef, row_ids_G: Int64s, names: Sequence[str], numbers: Sequence[str], candidates: str | None
) -> ReadInputs:
    """Read inputs and ``numbers`` of the G graded rows that match a filter of Lance, batch by batch."""
    columns = [get_input_column(name) for name in names]
    num_rows = len(row_ids_G)
    present_G, parsed_G = np.zeros((2, num_rows), dtype=np.bool_)
    numbers_GK = np.full((num_rows, len(numbers)), np.nan)
    inputs: list[Floats] = []
    read = list(dict.fromkeys(["row_id", "label", *columns, *numbers]))
    for batch in io.open_table(labels).scanner(columns=read, filter=candidates).to_batches():
        states = read_states(batch, columns)
        row_ids_B = batch.column("row_id").to_numpy()
        places_B = np.searchsorted(row_ids_G, row_ids_B)
        use_B = (np.searchsorted(row_ids_G, row_ids_B, side="right") > places_B) & ~states.missing_N
        used = places_B[use_B]
        arrays = [column.numpy() for column in states.columns]
        inputs = inputs or [np.empty((num_rows, array.shape[1]), array.dtype) for array in arrays]
        for into_GD, array in zip(inputs, arrays, strict=True):
            into_GD[used] = array[use_B]
        numbers_GK[used] = read_numbers(batch, numbers)[use_B]
        parsed_G[used] = batch.column("label").is_valid().to_numpy(zero_copy_only=False)[use_B]
        present_G[used] = True
    (places_N,) = np.nonzero(present_G)
    kept = slice(None) if present_G.all() else places_N
    return ReadInputs(places_N, parsed_G[kept], [input_GD[kept] for input_GD in inputs], numbers_GK[kept])
