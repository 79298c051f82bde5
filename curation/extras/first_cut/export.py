"""The first cut of a trust package: a trust function of prompts, and the held-out rows that set its threshold.

The function is fitted if the run kept the teacher's state at the last prompt token. It learns which rows the package's
own function would select (``write_cut_target``), from source rows that do not set the threshold.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from curation.arrays import Bools, Float64s, Int64s
from curation.commands.export.run import Fit
from curation.commands.export.trust import has_held_out_score, matches_fit, split_inputs
from curation.config import TrustConfig
from curation.config.external import GIVEN
from curation.config.states import parse
from curation.errors import DegenerateSourceError, UserError
from curation.extras.first_cut.config import Cascade
from curation.extras.first_cut.threshold import HeldOut, describe_first_cut, find_first_cut, write_held_out
from curation.filter.parts import PartFiles
from curation.hashing import derive, hash_unit
from curation.refs import TableRef, TrustRef
from curation.stopping import iter_checked
from curation.tables import io, schemas
from curation.trust import Scores, load_fitted
from curation.trust.states import StateTrust

KEEP = 0.1
"""Share of rows that the prompt function learns to find, and for which the packaged first cut is set."""
HELD_OUT = 0.3
"""Maximum share of source rows that set the threshold."""
KIND = "linear_probe"
MOST_ROWS = 20_000
"""Approximate maximum number of rows for the fit, since a probe of 4,096 numbers takes a minute or two."""

Mask = Callable[[Int64s], Bools]


def make_cascade(fit: Fit, folder: Path) -> tuple[Cascade, PartFiles] | str:
    """Return the first cut, with its function saved in ``folder``, or the reason why there is none."""
    states = fit.ask.states
    inputs = tuple(state for state in states if parse(state).position == "prompt_last")
    if fit.config.teacher.backend == GIVEN:
        return "labels made elsewhere are there, so that it would save no answer"
    if fit.config.teacher.reading is not None:
        return "a server's answers are bought before a model reads their prompts, so that it would save none"
    if not inputs:
        return (
            "the run kept no state of the last prompt token; for a cascade run again with teacher.states: "
            f"[{', '.join(['prompt_last', *states])}]"
        )
    labels = TableRef.from_json(fit.record.inputs["labels"])
    if io.count(labels, filter="option_logprobs IS NOT NULL"):
        return "its rows have options to choose from, and then the prompt is most of the cost"
    answered = io.read(labels, columns=["row_id"], filter=io.make_answered_filter(labels))
    answered_N: Int64s = answered["row_id"].to_numpy()
    full, seed = load_fitted(fit.trust), derive(fit.seed, "first cut held out")
    share = HELD_OUT * len(answered_N) / max(1, int(has_held_out_score(full, answered_N).sum()))

    def is_reserved(ids_N: Int64s) -> Bools:
        """Mask the source rows that set the threshold: rows with a held-out score, at most ``HELD_OUT`` of all."""
        return (hash_unit(ids_N, seed) < share) & has_held_out_score(full, ids_N)

    try:
        first = _fit_first_cut(fit, inputs, labels, is_reserved, folder)
        split, rows = _find_held_out(fit, first, labels, is_reserved, answered_N)
    except DegenerateSourceError as error:
        return f"the source has too few rows to fit it on ({error})"
    if rows is None:
        return "no labelled row has a held-out score; give splits.calibration"
    found = find_first_cut(rows, keep=KEEP)
    cascade = Cascade(
        inputs=inputs,
        states=tuple(state for state in states if state in {*inputs, *split_inputs(fit)[0]}),
        keep=KEEP,
        split=split,
        num_rows=len(rows.first_M),
        cut=found,
        words=describe_first_cut(found),
    )
    return cascade, PartFiles(first, partial(write_held_out, rows))


def _fit_first_cut(fit: Fit, inputs: tuple[str, ...], labels: TableRef, is_reserved: Mask, folder: Path) -> TrustRef:
    """Return a trust function of prompts, fitted to find what the package selects, on rows that are not reserved."""
    from train.trust import fit_rows, read_rows

    config = TrustConfig(states=inputs, fit_on="all", validation_fraction=fit.settings.validation_fraction)
    share, seed = MOST_ROWS / max(1, io.count(labels)), derive(fit.seed, "first cut")

    def takes(ids_N: Int64s) -> Bools:
        return (hash_unit(ids_N, seed) < share) & ~is_reserved(ids_N)

    target = write_cut_target(labels, fit.trust, takes, keep=KEEP, uri=str(folder / "wanted.lance"))
    rows = read_rows(labels, target, config, seed=fit.seed)
    return fit_rows(KIND, rows, config, seed=fit.seed, origin={"keep": KEEP}).save(folder / "first")


def _find_held_out(
    fit: Fit, first: TrustRef, labels: TableRef, is_reserved: Mask, answered_N: Int64s
) -> tuple[str, HeldOut | None]:
    """Return a split and its held-out rows: calibration rows if their states are stored, else unfitted source rows."""
    labelled = fit.labels("calibration")
    features = {name for ref in (first, fit.trust) for name in load_fitted(ref).features}
    if labelled is not None and matches_fit(fit, labelled):
        found = TableRef.from_json(labelled.outputs["labels"])
        if features <= set(io.open_table(found).schema.names):
            return "calibration", collect_held_out(found, first, fit.trust, lambda ids_N: np.ones_like(ids_N, np.bool_))
    has_rows = is_reserved(answered_N).any()
    return "source", collect_held_out(labels, first, fit.trust, is_reserved) if has_rows else None


def write_cut_target(labels: TableRef, full: TrustRef, takes: Mask, *, keep: float, uri: str) -> TableRef:
    """Write the target of the first function: whether the full function is to select a row (schema ``schemas.GRADES``).

    The first function thus predicts which rows a first cut must not lose, without gold labels. Predicting whether the
    label is right, as other trust functions do, works too but loses more. ``takes`` masks the rows to fit on by their
    ids; of these the full pass selects the share ``keep`` with the highest raw scores.
    """
    ids, raw = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    function = load_fitted(full)
    for batch in _iter_answered(labels, [function], takes):
        ids.append(batch.column("row_id").to_numpy())
        raw.append(_score_selectable(batch, function.raw_score(batch)))
    ids_N, raw_N = np.concatenate(ids), np.concatenate(raw)
    if not len(ids_N):
        raise UserError(
            f"{labels.uri}: no answered row to fit a first cut on; `curate inspect` shows why its rows failed"
        )
    num, order = len(ids_N), np.argsort(-np.nan_to_num(raw_N, nan=-np.inf), kind="stable")
    selected_N = np.zeros(num, dtype=np.bool_)
    selected_N[order[: round(keep * num)]] = True
    selected_N &= ~np.isnan(raw_N)
    columns = [ids_N, selected_N, np.zeros(num, dtype=np.bool_), pa.nulls(num, pa.string()), ids_N]
    return io.write(pa.table(columns, schema=schemas.GRADES).sort_by("row_id"), uri)


def collect_held_out(labels: TableRef, first: TrustRef, full: TrustRef, takes: Mask) -> HeldOut:
    """Return both scores and the tokens of the labelled rows that ``takes`` marks by id, for ``find_first_cut``.

    Neither function may have been fitted on these rows: ``curation.trust.parts`` says which part of the source a row
    is in. A row whose label could not be read is never selected by the full pass.
    """
    functions = [load_fitted(ref) for ref in (first, full)]
    parts: list[list[Float64s]] = [[np.zeros(0)] * 4]
    for batch in _iter_answered(labels, functions, takes):
        tokens = [batch.column(name).to_numpy() for name in ("num_prompt_tokens", "num_output_tokens")]
        full_B = _score_selectable(batch, functions[1].source_score(batch))
        parts.append([functions[0].raw_score(batch).astype(np.float64), full_B, *tokens])
    first_M, full_M, *tokens = (np.concatenate(column) for column in zip(*parts, strict=True))
    prompt_M, output_M = (tokens_M.astype(np.int64) for tokens_M in tokens)
    return HeldOut(first_M=first_M, full_M=full_M, prompt_tokens_M=prompt_M, output_tokens_M=output_M)


def _iter_answered(labels: TableRef, functions: Sequence[StateTrust], takes: Mask) -> Iterator[pa.RecordBatch]:
    """Yield the answered rows that ``takes`` marks, with the columns that the functions read."""
    features = dict.fromkeys(feature for function in functions for feature in function.features)
    columns = dict.fromkeys(["row_id", "label", "num_prompt_tokens", "num_output_tokens", *features])
    scanner = io.open_table(labels).scanner(columns=list(columns), filter=io.make_answered_filter(labels))
    for batch in iter_checked(scanner.to_batches()):
        yield batch.filter(pa.array(takes(batch.column("row_id").to_numpy())))


def _score_selectable(batch: pa.RecordBatch, score_N: Scores) -> Float64s:
    """Return the full function's scores, with NaN for rows that are never selected."""
    raw_N: Float64s = score_N.astype(np.float64)
    raw_N[batch.column("label").is_null().to_numpy(zero_copy_only=False)] = np.nan
    return raw_N
