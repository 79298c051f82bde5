"""Fits trust functions: networks through Ray Train (``train.trust_workers``), the others locally.

On several nodes ``output`` is a directory that all of them share, or in an object store.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from inspect import signature
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import ray
import torch

from curation.arms import find_fitted
from curation.arrays import Floats, Int64s
from curation.config import TrustConfig
from curation.domains.grading import read_grades
from curation.errors import ConfigError, DegenerateSourceError, ModelError
from curation.hashing import derive
from curation.json_types import Json, JsonView
from curation.refs import TableRef, TrustRef, fingerprint
from curation.registry import check_options, load_code
from curation.storage.inside import run_around, to_record
from curation.storage.paths import Place
from curation.tables import io
from curation.tables.schemas import get_input_column
from curation.trust import Scores, load_fitted, saved
from curation.trust.attention import AttentionArchitecture, AttentionNet, AttentionTrust, check_heads
from curation.trust.calibration import fit_calibration
from curation.trust.components import PrincipalComponents, check_size, compute_principal_components
from curation.trust.deep_ensemble import DeepEnsemble
from curation.trust.neural import Architecture, NeuralTrust, NeuralTrustNet
from curation.trust.parts import FIT, NAMES, VALIDATION, assign_parts, make_candidates_filter
from curation.trust.stacked import read_numbers
from curation.trust.states import SCORE_ROWS, StateTrust, read_states
from train import course
from train.launch import remove
from train.rounding import round_trust
from train.trust_loop import Ends, LabelledRows, Shard, end_never, fit_arrays
from train.trust_workers import fit_net


def fit_trust(labels: TableRef, grades: TableRef, config: TrustConfig, *, seed: int, output: Place) -> TrustRef:
    """Fit the neural trust function and save it to ``output``.

    Raises:
        DegenerateSourceError: all labels are right, or all are wrong, among the rows of one part.
        RunFailedError: the fit failed more than ``config.max_failures`` times; the same call resumes it.
    """
    return _fit_by_workers(fit_neural_on, labels, grades, config, seed, output)


def _fit_by_workers(
    fit: Callable[..., StateTrust],
    labels: TableRef,
    grades: TableRef,
    config: TrustConfig,
    seed: int,
    output: Place,
    **options: object,
) -> TrustRef:
    rows = ray.put(tuple(read_rows(labels, grades, config, seed=seed)))
    origin = describe_origin(labels, grades, config, seed, output)
    return fit_net(fit, rows, config, origin, seed=seed, output=output.resolve(), **options)


def fit_deep_ensemble(
    labels: TableRef, grades: TableRef, config: TrustConfig, *, seed: int, output: Place, members: int = 5
) -> TrustRef:
    """Fit ``members`` networks on the same rows with different seeds, and save their average to ``output``.

    The members share the parts of the source. A killed fit resumes at the member that it had reached.

    Raises:
        ConfigError: fewer than two members.
        DegenerateSourceError, RunFailedError: as :func:`fit_trust`.
    """
    seeds = _derive_member_seeds(seed, members)
    rows = read_rows(labels, grades, config, seed=seed)
    output = output.resolve()
    origin = describe_origin(labels, grades, config, seed, output)
    shared = ray.put(tuple(rows))
    kept = output.with_name(f"{output.name}.members") / fingerprint(origin)
    fits = []
    for m, own in enumerate(seeds):
        with course.part(m, members):
            fits.append(fit_member(fit_neural_on, shared, config, origin, own, kept / str(m)))
    ref = _average_members(fits, rows, config, origin).save(output)
    remove(kept.parent)
    return ref


def _derive_member_seeds(seed: int, members: int) -> list[int]:
    """Return the seed of each member of an ensemble; raise ``ConfigError`` for fewer than two members."""
    if members < 2:
        raise ConfigError(f"trust.options.deep_ensemble.members: {members}; give 2 or more, or take the arm neural")
    return [derive(seed, f"member {m}") for m in range(members)]


def _average_members(
    fits: Sequence[NeuralTrust], rows: LabelledRows, config: TrustConfig, origin: Mapping[str, object]
) -> StateTrust:
    """Return the average of members that were fitted on these rows, calibrated."""
    record = {key: fits[0].fit[key] for key in ("num_fit", "num_validation", "share_right_fit")}
    courses = [{key: fit.fit[key] for key in ("seed", "steps", "losses", "validation_aucs", "best")} for fit in fits]
    trust = DeepEnsemble([fit.net for fit in fits], config.inputs, {**origin, **record, "members": courses})
    return round_trust(_calibrate(trust.with_pca(fits[0].pca), rows, config), rows, config)


def fit_member(
    fit: Callable[..., NeuralTrust],
    rows: "ray.ObjectRef[Any]",
    config: TrustConfig,
    origin: Mapping[str, object],
    seed: int,
    output: Place,
) -> NeuralTrust:
    """Return one of several networks, loaded from ``output`` or else fitted by :func:`train.trust_workers.fit_net`."""
    try:
        ref = saved.pin(output)
    except ModelError:
        ref = fit_net(fit, rows, config, origin, seed=seed, output=output)
    return cast(NeuralTrust, load_fitted(ref))


def fit_attention(
    labels: TableRef, grades: TableRef, config: TrustConfig, *, seed: int, output: Place, num_heads: int = 4
) -> TrustRef:
    """Fit a network that attends over the inputs with ``num_heads`` heads, and save it to ``output``.

    Raises:
        ConfigError: the heads do not divide the width.
        DegenerateSourceError, RunFailedError: as :func:`fit_trust`.
    """
    check_heads(num_heads, config.width)
    return _fit_by_workers(fit_attention_on, labels, grades, config, seed, output, num_heads=num_heads)


def fit_here(
    made_by: Any,
    labels: TableRef,
    grades: TableRef,
    config: TrustConfig,
    *,
    seed: int,
    output: Place,
    options: JsonView = MappingProxyType({}),
) -> TrustRef:
    """Fit a trust function in this process on the same rows as :func:`fit_trust`, without validation rows.

    ``made_by.fitted(hidden_ND, correct_N, config, origin, **options)`` makes a trust function from hidden states
    (projected as ``config.pca`` says) and whether each row's weak label is right. ``config`` has the keys that its line
    in ``curation.arms.TRUST`` reads, ``options`` are its own settings (``trust.options``), ``origin`` is the rows'.

    Raises:
        DegenerateSourceError: all labels are right, or all wrong, among the rows of one part.
        ConfigError: ``fitted`` does not take one of the options.
    """
    check_options("trust.options", made_by.fitted, None, None, config, None, **options)
    rows, origin = read_rows(labels, grades, config, seed=seed), describe_origin(labels, grades, config, seed, output)
    return _fit_calibrated(made_by, rows, config, origin, **options).save(output)


def fit_rows(
    kind: str,
    rows: LabelledRows,
    config: TrustConfig,
    *,
    seed: int,
    origin: Mapping[str, object],
    ends: Ends = end_never,
) -> StateTrust:
    """Fit the trust function ``kind`` of ``curation.arms.TRUST`` on rows in memory, in this process.

    The result is what the stage of that kind would save for these rows. ``origin`` is their origin, for the record,
    ``seed`` that of weights and batches, and ``ends`` is as for :func:`train.trust_loop.fit_arrays`, for kinds that fit
    one network.

    Raises:
        RunFailedError: the loss is not finite.
        DegenerateSourceError: all labels are right, or all are wrong, in a part.
        ConfigError: the function refuses an option, or a user's function has ``fit`` but no ``fit_rows``.
    """
    fitted, options = find_fitted([kind])[kind], config.options.get(kind, {})
    if fitted.fit_rows is not None:
        of_rows = load_code(fitted.fit_rows)
        how = {"seed": seed, "origin": origin, **({"ends": ends} if "ends" in signature(of_rows).parameters else {})}
        check_options("trust.options", of_rows, rows, config, **how, **options)
        return cast(StateTrust, of_rows(rows, config, **how, **options))
    if fitted.fit is not None:
        raise ConfigError(f"{kind}: its line in TRUST says what fits it from tables (fit), but no fit_rows")
    return _fit_calibrated(load_code(fitted.made_by), rows, config, {**origin, "seed": seed}, **options)


def fit_neural_on(
    rows: LabelledRows,
    config: TrustConfig,
    *,
    seed: int,
    origin: Mapping[str, object],
    shard: Shard | None = None,
    ends: Ends = end_never,
) -> NeuralTrust:
    """Return a neural trust function of these rows; see :func:`train.trust_loop.fit_arrays`."""
    pca = compute_components(rows, config)
    read = rows if pca is None else project_rows(rows, pca)
    new_net = partial(NeuralTrustNet, Architecture.of(config, read.hidden_ND.shape[1]))
    fitted = fit_arrays(read, config, new_net, seed=seed, shard=shard, ends=ends)
    trust = NeuralTrust(fitted.net, config.inputs, {**origin, "seed": seed, **asdict(fitted.record)}).with_pca(pca)
    trust.calibration, trust.held_out = fitted.calibration, fitted.held_out
    return round_trust(trust, rows, config)


def fit_attention_on(
    rows: LabelledRows,
    config: TrustConfig,
    *,
    seed: int,
    origin: Mapping[str, object],
    shard: Shard | None = None,
    ends: Ends = end_never,
    num_heads: int = 4,
) -> AttentionTrust:
    """Return a network that attends over the inputs of these rows; see :func:`fit_attention`."""
    new_net = partial(AttentionNet, AttentionArchitecture.of(config, rows.sizes, num_heads))
    fitted = fit_arrays(rows, config, new_net, seed=seed, shard=shard, ends=ends)
    trust = AttentionTrust(fitted.net, config.inputs, {**origin, "seed": seed, **asdict(fitted.record)})
    trust.calibration, trust.held_out = fitted.calibration, fitted.held_out
    return trust


def fit_deep_ensemble_on(
    rows: LabelledRows, config: TrustConfig, *, seed: int, origin: Mapping[str, object], members: int = 5
) -> StateTrust:
    """Return the average of ``members`` neural trust functions of these rows; see :func:`fit_deep_ensemble`."""
    fits = [fit_neural_on(rows, config, seed=own, origin=origin) for own in _derive_member_seeds(seed, members)]
    return _average_members(fits, rows, config, {**origin, "seed": seed})


def _fit_calibrated(made_by: Any, rows: LabelledRows, config: TrustConfig, origin: Json, **options: Any) -> StateTrust:
    """Return a calibrated trust function fitted on the fit rows."""
    fit_F = rows.places(FIT)
    hidden_FD = rows.hidden_ND[fit_F]
    pca = compute_components(rows, config, made_by.default_pca)
    if pca is not None:
        hidden_FD = pca.project(torch.from_numpy(hidden_FD)).numpy()
    trust = made_by.fitted(hidden_FD, rows.correct_N[fit_F], config, origin, **options)
    return _calibrate(trust.with_pca(pca), rows, config)


def compute_components(
    rows: LabelledRows, config: TrustConfig, default: int | None = None
) -> PrincipalComponents | None:
    """Return as many principal components of the fit rows' states as ``config`` requests, or None without any."""
    fit_F, width = rows.places(FIT), sum(rows.sizes[: len(config.states)])
    size = min(default or 0, width, len(fit_F) - 1) if config.pca is None else config.pca
    if size < 1:
        return None
    batches = (torch.from_numpy(rows.hidden_ND[places_B])[:, :width] for places_B in _cut(fit_F))
    return compute_principal_components(batches, size=size, key="trust.pca")


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


def describe_origin(labels: TableRef, grades: TableRef, config: TrustConfig, seed: int, output: Place) -> Json:
    """Return the inputs of a fit as JSON, with tables relative to the run directory that ``output`` lies in."""
    tables = to_record({"labels": labels.to_json(), "grades": grades.to_json()}, run_around(output))
    return {**tables, "config": config.model_dump(mode="json"), "seed": seed}


def read_rows(labels: TableRef, grades: TableRef, config: TrustConfig, *, seed: int) -> LabelledRows:
    """Return the rows of ``labels`` that a fit may use, are graded and have all states, read batch by batch.

    Raises:
        DegenerateSourceError: all labels are right, or all are wrong, among the rows of one part.
        ConfigError: ``config.pca`` requests more components than there are.
    """
    rows = read_labelled_rows(labels, grades, config, seed=seed)
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
        check_size(config.pca, width=width, num_rows=len(rows.places(FIT)), key="trust.pca")
    return rows


def read_labelled_rows(
    labels: TableRef, grades: TableRef, config: TrustConfig, *, seed: int, numbers: Sequence[str] = ()
) -> LabelledRows:
    """Return the rows of :func:`read_rows`, with ``numbers`` of the answers and without checks."""
    graded = read_grades(grades)
    columns = [get_input_column(name) for name in config.inputs]
    numbers_NK = np.full((len(graded.row_ids_N), len(numbers)), np.nan)
    hidden_ND: Floats | None = None
    sizes: tuple[int, ...] = ()
    present_N = np.zeros(len(graded.row_ids_N), dtype=np.bool_)
    read = list(dict.fromkeys(["row_id", *columns, *numbers]))
    for batch in io.open_table(labels).scanner(columns=read, filter=make_candidates_filter(config)).to_batches():
        states = read_states(batch, columns)
        row_ids_B = batch.column("row_id").to_numpy()
        places_B = np.searchsorted(graded.row_ids_N, row_ids_B)
        known_B = np.searchsorted(graded.row_ids_N, row_ids_B, side="right") > places_B
        use_B = known_B & ~states.missing_N
        hidden_BD = torch.cat(states.columns, dim=1).numpy() if columns else np.empty((len(row_ids_B), 0), np.float16)
        if hidden_ND is None:
            hidden_ND = np.empty((len(graded.row_ids_N), sum(states.sizes)), dtype=hidden_BD.dtype)
            sizes = states.sizes
        hidden_ND[places_B[use_B]] = hidden_BD[use_B]
        numbers_NK[places_B[use_B]] = read_numbers(batch, numbers)[use_B]
        present_N[places_B[use_B]] = True
    if hidden_ND is None:
        hidden_ND = np.empty((len(graded.row_ids_N), 0), dtype=np.float16)
    return LabelledRows(
        hidden_ND=hidden_ND if present_N.all() else hidden_ND[present_N],
        correct_N=graded.correct_N[present_N],
        part_N=assign_parts(graded.question_N[present_N], config, seed, unit_N=graded.unit_N[present_N]),
        sizes=sizes,
        row_ids_N=graded.row_ids_N[present_N],
        cluster_N=None if graded.cluster_N is None else graded.cluster_N[present_N],
        numbers_NK=numbers_NK[present_N],
        numbers=tuple(numbers),
    )
