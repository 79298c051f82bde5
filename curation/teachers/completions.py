"""Completions as columns: what backends fill and turn into a batch of ``schemas.completions``."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation.config.states import layers_of, parse
from curation.tables import schemas

Array = npt.NDArray[Any]

_GIVEN = ("mean_logprob", "num_prompt_tokens", "num_output_tokens", "truncated")
_SURENESS = tuple(name for name in schemas.NUMBERS if name not in _GIVEN)


class OfTokens(NamedTuple):
    """A number of each of an answer's tokens, told by its mean and by the least, the first and the last one."""

    mean: float
    least: float
    first: float
    last: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self | None:
        """The summary of all tokens' numbers; ``None`` if there are none."""
        return cls(sum(values) / len(values), min(values), values[0], values[-1]) if values else None


def completion_batch(
    *,
    row_ids: Sequence[int],
    completions: Sequence[str | None],
    mean_logprobs: Sequence[float | None],
    option_logprobs: Sequence[Sequence[float] | None] | None = None,
    option_scores: Sequence[Sequence[float] | None] | None = None,
    given_options: Sequence[int | None] | None = None,
    margins: Sequence[OfTokens | None] | None = None,
    negentropies: Sequence[OfTokens | None] | None = None,
    token_logprobs: Sequence[Sequence[float]] = (),
    num_token_logprobs: int = 0,
    num_prompt_tokens: Sequence[int | None],
    num_output_tokens: Sequence[int | None],
    truncated: Sequence[bool | None],
    states: Mapping[str, Array],
    state_dtype: str,
    errors: Sequence[str | None] | None = None,
) -> pa.RecordBatch:
    """A batch of ``schemas.completions`` of N rows; ``states`` maps a name to float32 hidden_ND.

    Of ``token_logprobs``, those of each answer's tokens in their order, the first ``num_token_logprobs`` are kept, the
    least, the first and the last. Those after the first may be left out but for the least one and the last.
    ``margins`` and ``negentropies`` are read of generated answers alone. What is told of options follows from
    ``option_scores``, by which one was chosen: ``option_logprobs`` where it is not given. ``given_options`` are the
    places of options that came with the rows and are read; ``None`` where the likeliest one is the answer.
    Columns whose argument is left out are null. A state that ``state_dtype`` cannot hold becomes an error row
    (``state_overflow``) with null states.
    """
    num_rows = len(row_ids)
    problems: list[str | None] = [None] * num_rows if errors is None else list(errors)
    stored: dict[str, Array] = {}
    for name, hidden_ND in states.items():
        with np.errstate(over="ignore"):
            stored[name] = hidden_ND.astype(state_dtype)
        for row in np.flatnonzero(~np.isfinite(stored[name]).all(axis=1)).tolist():
            if problems[row] is None:
                largest = float(np.abs(hidden_ND[row]).max())
                problems[row] = (
                    f"state_overflow: {name} holds {largest:.6g}, beyond {state_dtype}; "
                    "set teacher.state_dtype: float32"
                )
    bad_N = np.array([problem is not None for problem in problems], dtype=bool)
    state_size = next(iter(stored.values())).shape[1] if stored else 0
    schema = schemas.completions(tuple(states), state_dtype, state_size, num_token_logprobs)
    logprob_NK = np.zeros((num_rows, num_token_logprobs), dtype=np.float16)
    for row, values in enumerate(token_logprobs):
        kept = values[:num_token_logprobs]
        logprob_NK[row, : len(kept)] = kept
    option_logprobs = option_logprobs or [None] * num_rows
    places = given_options or [None] * num_rows
    scores = option_scores or option_logprobs
    by_options = [None if of_row is None else of_options(of_row, at) for of_row, at in zip(scores, places, strict=True)]
    sure = _sureness(token_logprobs, by_options, margins or (), negentropies or (), bad_N)
    given: dict[str, Any] = {
        "row_id": row_ids,
        "completion": completions,
        "mean_logprob": mean_logprobs,
        "option_logprobs": option_logprobs,
        "num_prompt_tokens": num_prompt_tokens,
        "num_output_tokens": num_output_tokens,
        "truncated": truncated,
        "error": problems,
    }
    columns = {name: pa.array(values, schema.field(name).type) for name, values in given.items()}
    columns |= {name: pa.array(found_N, schema.field(name).type, from_pandas=True) for name, found_N in sure.items()}
    if num_token_logprobs:
        columns[schemas.TOKEN_LOGPROBS] = _fixed_size_list(logprob_NK, bad_N)
    columns |= {schemas.state_column(name): _fixed_size_list(array_ND, bad_N) for name, array_ND in stored.items()}
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def by_name(states: Mapping[tuple[str, int], Array], names: Sequence[str]) -> dict[str, Array]:
    """States by name, hidden_ND, out of those by position and rank, whose layers (``layers_of``) stand side by side."""
    layers = layers_of(names)
    parts = {place: np.split(wide_ND, len(layers), axis=1) for place, wide_ND in states.items()}
    return {
        name: parts[state.position, state.rank][layers.index(state.layer)] for name in names for state in [parse(name)]
    }


def above(scores: Sequence[float], baselines: Sequence[float] | None) -> list[float]:
    """Scores of options less their baselines; an option that is impossible by its baseline stays so."""
    if baselines is None:
        return list(scores)
    pairs = zip(scores, baselines, strict=True)
    return [score if baseline == -math.inf else score - baseline for score, baseline in pairs]


def ranked(scores: Sequence[float], given: int | None = None) -> list[int]:
    """Places of the scores, from the largest to the smallest; of equal ones the first comes first.

    The place ``given``, of an option that is read and not chosen, comes before all others.
    """
    return sorted(range(len(scores)), key=lambda place: (place != given, -scores[place]))


def error_batch(
    row_ids: Sequence[int],
    errors: Sequence[str],
    states: Sequence[str],
    state_dtype: str,
    state_size: int,
    num_token_logprobs: int = 0,
) -> pa.RecordBatch:
    """A batch of error rows: everything null but the row id and the error."""
    nothing = [None] * len(row_ids)
    return completion_batch(
        row_ids=row_ids,
        completions=nothing,
        mean_logprobs=nothing,
        num_token_logprobs=num_token_logprobs,
        num_prompt_tokens=nothing,
        num_output_tokens=nothing,
        truncated=nothing,
        states={name: np.zeros((len(row_ids), state_size), dtype=np.float32) for name in states},
        state_dtype=state_dtype,
        errors=errors,
    )


def prompt_batch(
    row_ids: Sequence[int], num_prompt_tokens: Sequence[int], states: Mapping[str, Array], state_dtype: str
) -> pa.RecordBatch:
    """A batch for a gate of N rows: row id, tokens of the prompt, and states at its last one as they would be stored.

    ``states`` maps a name to float32 hidden_ND. A state that ``state_dtype`` cannot hold is null.
    """
    columns: dict[str, pa.Array] = {
        "row_id": pa.array(row_ids, pa.int64()),
        "num_prompt_tokens": pa.array(num_prompt_tokens, pa.int32()),
    }
    for name, hidden_ND in states.items():
        with np.errstate(over="ignore"):
            stored_ND = hidden_ND.astype(state_dtype)
        columns[schemas.state_column(name)] = _fixed_size_list(stored_ND, ~np.isfinite(stored_ND).all(axis=1))
    return pa.record_batch(columns)


def prompt_states(wide_ND: Array, kept: Sequence[str], wanted: Sequence[str]) -> dict[str, Array]:
    """The ``wanted`` states of the last prompt token, out of the layers of all that are ``kept``, side by side."""
    layers = layers_of(kept)
    parts = np.split(wide_ND, len(layers), axis=1)
    return {name: parts[layers.index(parse(name).layer)] for name in wanted}


def dropped_batch(
    row_ids: Sequence[int],
    num_prompt_tokens: Sequence[int],
    states: Sequence[str],
    state_dtype: str,
    state_size: int,
    num_token_logprobs: int = 0,
) -> pa.RecordBatch:
    """A batch of rows that a gate stopped: everything null but the row id and the tokens of prompt and answer (0)."""
    nothing = error_batch(row_ids, ["dropped"] * len(row_ids), states, state_dtype, state_size, num_token_logprobs)
    known = {
        "num_prompt_tokens": pa.array(num_prompt_tokens, pa.int32()),
        "num_output_tokens": pa.array([0] * len(row_ids), pa.int32()),
        "error": pa.nulls(len(row_ids), pa.string()),
    }
    columns = [known.get(name, nothing.column(name)) for name in nothing.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=nothing.schema)


def bad_options(options: Sequence[str], num_tokens: Sequence[int]) -> str | None:
    """The problem with the options of a request, as the error of its row; None: nothing."""
    if not options:
        return "bad_options: none given; a request with options needs at least one"
    empty = [place for place, number in enumerate(num_tokens) if number == 0]
    if empty:
        return f"bad_options: option {empty[0] + 1} of {len(options)}, {options[empty[0]]!r}, has no tokens"
    return None


def _sureness(
    token_logprobs: Sequence[Sequence[float]],
    by_options: Sequence[Mapping[str, float] | None],
    margins: Sequence[OfTokens | None],
    negentropies: Sequence[OfTokens | None],
    null_N: npt.NDArray[np.bool_],
) -> dict[str, Array]:
    """The columns of ``schemas.NUMBERS`` that follow from these, by name, float64 [N], NaN for a null."""
    sure = {name: np.full(len(null_N), np.nan) for name in _SURENESS}
    for row, values in enumerate(token_logprobs):
        if values:
            _set(sure, row, "logprob", min(values), values[0], values[-1])
    for name, found in (("margin", margins), ("negentropy", negentropies)):
        for row, of_tokens in enumerate(found):
            if of_tokens is not None and by_options[row] is None:
                sure[name][row] = of_tokens.mean
                _set(sure, row, name, *of_tokens[1:])
    for row, found_by_name in enumerate(by_options):
        for name, value in (found_by_name or {}).items():
            sure[name][row] = value
    for found_N in sure.values():
        found_N[null_N] = np.nan
    return sure


def _set(columns: Mapping[str, Array], row: int, name: str, least: float, first: float, last: float) -> None:
    for part, value in (("min", least), ("first", first), ("last", last)):
        columns[f"{part}_{name}"][row] = value


def of_options(scores: Sequence[float], given: int | None = None) -> dict[str, float]:
    """How sure the choice among options with these scores is, by the column's name; NaN where there is no margin.

    Of the option at the place ``given``, which came with its row, in place of the likeliest one: its margin is below
    zero where another one is likelier.
    """
    values = np.asarray(scores, dtype=np.float64)
    ascending, place = np.sort(values), int(values.argmax()) if given is None else given
    others = np.delete(values, place)
    with np.errstate(invalid="ignore"):  # an impossible option has the score -inf
        shifted = ascending - ascending[-1]
        weights = np.exp(shifted)
        shares = weights / weights.sum()
        logs = shifted - np.log(weights.sum())
        return {
            "margin": float(values[place] - others.max()) if len(others) else np.nan,
            "negentropy": float(shares @ np.where(shares > 0, logs, 0.0)),
            "option_share": float(np.exp(values[place] - ascending[-1]) / weights.sum()),
            "option_lead": float(values[place] - ascending.mean()),
            "num_options": len(values),
        }


def _fixed_size_list(array_ND: Array, null_N: npt.NDArray[np.bool_]) -> pa.FixedSizeListArray:
    values = pa.array(np.ascontiguousarray(array_ND).reshape(-1))
    mask = pa.array(null_N) if null_N.any() else None
    return pa.FixedSizeListArray.from_arrays(values, array_ND.shape[1], mask=mask)
