"""Answered rows, which backends fill in, and their conversion to batches of ``schemas.make_completions_schema``.

Options in pairs are yes and no of several questions about one prompt, each answered by the likelier of the two. The
answer joins the yes or no of all questions. With the questions taken as independent, each set of answers counts as an
option whose score is the sum of its parts. The chosen set is then the likeliest, the second likeliest differs in the
least sure question, and the sureness of the choice (:func:`compute_pair_sureness`) follows from the pairs.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation.config import AskConfig
from curation.config.states import find_layers, parse
from curation.tables import schemas
from curation.teachers import Request

Array = npt.NDArray[Any]

_GIVEN = ("mean_logprob", "num_prompt_tokens", "num_output_tokens", "truncated")
_COPIED = ("row_id", "completion", "option_logprobs", *_GIVEN)
_SURENESS = tuple(name for name in schemas.NUMBERS if name not in _GIVEN)


class OfTokens(NamedTuple):
    """Summary of one number per token of an answer: its mean, least, first and last value."""

    mean: float
    least: float
    first: float
    last: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self | None:
        """Return a summary of the numbers of all tokens, or ``None`` if there are no tokens."""
        return cls(sum(values) / len(values), min(values), values[0], values[-1]) if values else None


class AnsweredRow(NamedTuple):
    """A row and its answer from a backend; a field that the backend does not know stays ``None`` and is stored null."""

    row_id: int
    completion: str | None = None
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    truncated: bool | None = None  # whether the answer was cut off at the maximum number of tokens
    mean_logprob: float | None = None
    token_logprobs: Sequence[float] = ()
    """Log-probabilities of the answer's tokens in order. Beyond the first ones, which are stored, a backend may give
    only the least and the last."""
    margins: OfTokens | None = None  # margins of the tokens; used for generated answers only, like ``negentropies``
    negentropies: OfTokens | None = None
    option_logprobs: Sequence[float] | None = None
    option_scores: Sequence[float] | None = None  # scores by which an option was chosen; ``option_logprobs`` if unset
    given_option: int | None = None
    """Index of the option that came with the row and is the answer; if unset, the likeliest option is the answer."""
    in_pairs: bool = False  # whether the options form pairs, and one option of each pair is chosen
    error: str | None = None


def make_drawn_row(
    row_id: int, text: str | None, num_prompt: int, numbers: Sequence[Sequence[float]], *, truncated: bool = False
) -> AnsweredRow:
    """Return a row with a generated or read answer; ``numbers`` are log-probability, margin and negentropy by token."""
    logprobs, margins, negentropies = ([of_token[place] for of_token in numbers] for place in range(3))
    return AnsweredRow(
        row_id=row_id,
        completion=text,
        num_prompt_tokens=num_prompt,
        num_output_tokens=len(numbers),
        truncated=truncated,
        mean_logprob=sum(logprobs) / len(numbers) if numbers else None,
        token_logprobs=logprobs,
        margins=OfTokens.of(margins),
        negentropies=OfTokens.of(negentropies),
    )


def completion_batch(
    rows: Sequence[AnsweredRow],
    *,
    states: Mapping[str, Array],
    state_dtype: str,
    num_token_logprobs: int = 0,
    answered: bool = True,
) -> pa.RecordBatch:
    """Return a batch of ``schemas.make_completions_schema`` of N rows; ``states`` maps a name to float32 hidden_ND.

    For each answer the log-probabilities of the first ``num_token_logprobs`` tokens are stored, and the least, the
    first and the last one. States are stored as :func:`clip_states` returns them; a row whose state holds an infinity
    or NaN becomes an error row (``state_overflow``) with null states. Without ``answered`` no row has an answer: all
    states are null.
    """
    problems = [row.error for row in rows]
    stored: dict[str, Array] = {}
    for name, hidden_ND in states.items():
        stored[name] = clip_states(hidden_ND, state_dtype)
        for place in np.flatnonzero(~np.isfinite(hidden_ND).all(axis=1)).tolist():
            if problems[place] is None:
                first = hidden_ND[place][~np.isfinite(hidden_ND[place])][0]
                problems[place] = (
                    f"state_overflow: {name} holds {first}: the model's own numbers overflowed; "
                    "set teacher.dtype to bfloat16 or float32"
                )
    bad_N = np.array([problem is not None or not answered for problem in problems], dtype=bool)
    state_size = next(iter(stored.values())).shape[1] if stored else 0
    schema = schemas.make_completions_schema(tuple(states), state_dtype, state_size, num_token_logprobs)
    columns: dict[str, pa.Array] = {"error": pa.array(problems, schema.field("error").type)}
    for name in _COPIED:
        columns[name] = pa.array([getattr(row, name) for row in rows], schema.field(name).type)
    for name, found_N in _compute_sureness(rows, bad_N).items():
        columns[name] = pa.array(found_N, schema.field(name).type, from_pandas=True)
    if num_token_logprobs:
        logprob_NK = np.zeros((len(rows), num_token_logprobs), dtype=np.float16)
        for place, row in enumerate(rows):
            kept = row.token_logprobs[:num_token_logprobs]
            logprob_NK[place, : len(kept)] = kept
        columns[schemas.TOKEN_LOGPROBS] = _make_fixed_size_list(logprob_NK, bad_N)
    columns |= {
        schemas.get_state_column(name): _make_fixed_size_list(array_ND, bad_N) for name, array_ND in stored.items()
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def clip_states(hidden_ND: Array, state_dtype: str) -> Array:
    """Convert states to the type in which they are stored; finite numbers are clipped to its range, others are kept."""
    limit = np.finfo(state_dtype).max.astype(hidden_ND.dtype)
    return np.where(np.isinf(hidden_ND), hidden_ND, hidden_ND.clip(-limit, limit)).astype(state_dtype)


def count_clipped(completions: pa.Table) -> int:
    """Count the numbers of stored float16 states that equal the largest float16, because they were clipped.

    Without clipping, only a model's numbers from 65,488 to 65,520 are rounded to it.
    """
    states = [completions[name] for name in filter(schemas.is_state, completions.column_names)]
    chunks = [chunk for state in states if state.type.value_type == pa.float16() for chunk in state.chunks]
    values = (np.abs(chunk.flatten().to_numpy(zero_copy_only=False)) for chunk in chunks)
    return sum(int(np.count_nonzero(value_N == np.finfo(np.float16).max)) for value_N in values)


def make_answered_batch(
    rows: Sequence[AnsweredRow], states: Mapping[tuple[str, int], Array], config: AskConfig
) -> pa.RecordBatch:
    """Return :func:`completion_batch` of ``config``'s states, given hidden_ND of all layers by position and rank."""
    layers = find_layers(config.states)
    parts = {place: np.split(wide_ND, len(layers), axis=1) for place, wide_ND in states.items()}
    asked = {name: parse(name) for name in config.states}
    return completion_batch(
        rows,
        states={name: parts[of.position, of.rank][layers.index(of.layer)] for name, of in asked.items()},
        state_dtype=config.state_dtype,
        num_token_logprobs=config.token_logprobs,
    )


def subtract_baselines(scores: Sequence[float], baselines: Sequence[float] | None) -> list[float]:
    """Return scores of options minus their baselines; a score whose baseline is -inf is returned unchanged."""
    if baselines is None:
        return list(scores)
    pairs = zip(scores, baselines, strict=True)
    return [score if baseline == -math.inf else score - baseline for score, baseline in pairs]


def rank_options(scores: Sequence[float], given: int | None = None) -> list[int]:
    """Return indices of the scores in descending order, equal ones in their order; ``given``, if set, precedes all."""
    return sorted(range(len(scores)), key=lambda place: (place != given, -scores[place]))


def error_batch(
    errors: Mapping[int, str], config: AskConfig, state_size: int, *, stopped: Mapping[int, int] | None = None
) -> pa.RecordBatch:
    """Return a batch of rows without an answer: error rows, given errors by row id, and rows that a gate stopped.

    An error row has only row id and error. A row of ``stopped``, which has numbers of prompt tokens by row id, has only
    row id, that number, and 0 as the answer's number of tokens.
    """
    rows = [AnsweredRow(row_id, error=error) for row_id, error in errors.items()]
    rows += [AnsweredRow(row_id, None, number, 0) for row_id, number in (stopped or {}).items()]
    return completion_batch(
        rows,
        states={name: np.zeros((len(rows), state_size), dtype=np.float32) for name in config.states},
        state_dtype=config.state_dtype,
        num_token_logprobs=config.token_logprobs,
        answered=False,
    )


def prompt_batch(
    row_ids: Sequence[int], num_prompt_tokens: Sequence[int], states: Mapping[str, Array], state_dtype: str
) -> pa.RecordBatch:
    """Return N rows for a gate: row id, number of prompt tokens, and the last one's states as they would be stored.

    ``states`` maps a name to float32 hidden_ND. A state that holds an infinity or NaN is null.
    """
    columns: dict[str, pa.Array] = {
        "row_id": pa.array(row_ids, pa.int64()),
        "num_prompt_tokens": pa.array(num_prompt_tokens, pa.int32()),
    }
    for name, hidden_ND in states.items():
        null_N = np.asarray(~np.isfinite(hidden_ND).all(axis=1))
        columns[schemas.get_state_column(name)] = _make_fixed_size_list(clip_states(hidden_ND, state_dtype), null_N)
    return pa.record_batch(columns)


def find_options_problem(options: Sequence[str], num_tokens: Sequence[int]) -> str | None:
    """Return the problem with a request's options, as the error of its row, or None if they are valid."""
    if not options:
        return "bad_options: none given; a request with options needs at least one"
    for place, number in enumerate(num_tokens):
        if number == 0:
            return f"bad_options: option {place + 1} of {len(options)}, {options[place]!r}, has no tokens"
    return None


def _compute_sureness(rows: Sequence[AnsweredRow], null_N: npt.NDArray[np.bool_]) -> dict[str, Array]:
    """Return the columns of ``schemas.NUMBERS`` computed from the rows, by name, float64 [N], with NaN for null."""
    sure = {name: np.full(len(rows), np.nan) for name in _SURENESS}
    for place in np.flatnonzero(~null_N).tolist():
        row, numbers = rows[place], dict[str, float]()
        of_tokens = {"logprob": OfTokens.of(row.token_logprobs)}
        scores = row.option_logprobs if row.option_scores is None else row.option_scores
        if scores is None:
            of_tokens |= {"margin": row.margins, "negentropy": row.negentropies}
        elif row.in_pairs:
            numbers = compute_pair_sureness(scores)
        else:
            numbers = compute_option_sureness(scores, row.given_option)
        for name, found in of_tokens.items():
            if found is not None:
                numbers |= {f"min_{name}": found.least, f"first_{name}": found.first, f"last_{name}": found.last}
                numbers |= {} if name == "logprob" else {name: found.mean}
        for name, value in numbers.items():
            sure[name][place] = value
    return sure


def compute_option_sureness(scores: Sequence[float], given: int | None = None) -> dict[str, float]:
    """Return the sureness of a choice among options by their scores, by column name; NaN margin for a single option.

    The chosen option is the likeliest one, or the one at index ``given``, which came with its row; its margin is
    negative if another option is likelier.
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


def compute_pair_gaps(scores: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return the first option's score minus the second's for each of L pairs; 0 where both are impossible."""
    first_L, second_L = np.asarray(scores, dtype=np.float64).reshape(-1, 2).T
    with np.errstate(invalid="ignore"):
        gap_L: npt.NDArray[np.float64] = np.nan_to_num(first_L - second_L, nan=0.0, posinf=np.inf, neginf=-np.inf)
    return gap_L


def compute_pair_sureness(scores: Sequence[float]) -> dict[str, float]:
    """Return the sureness of a choice within each of L pairs; each of the 2^L sets of answers counts as an option.

    ``num_options`` is the number of pairs whose first option is chosen.
    """
    gap_L = compute_pair_gaps(scores)
    other_L = np.exp(-np.abs(gap_L)) / (1 + np.exp(-np.abs(gap_L)))
    log_L, rest_L = np.log1p(-other_L), np.log(other_L, where=other_L > 0, out=np.zeros_like(other_L))
    return {
        "margin": float(np.abs(gap_L).min()),
        "negentropy": float(((1 - other_L) * log_L + other_L * rest_L).sum()),
        "option_share": float(np.exp(log_L.sum())),
        "option_lead": float(np.abs(gap_L).sum() / 2),
        "num_options": int((gap_L > 0).sum()),
    }


def choose_in_pairs(scores: Sequence[float], baselines: Sequence[float] | None = None) -> tuple[list[int], list[float]]:
    """Return the index of the chosen option of each pair, and its log-probability in its pair, without baselines.

    That is the option with the larger score, minus baselines if given; the second, no, if equal.
    """
    is_no_L = compute_pair_gaps(subtract_baselines(scores, baselines)) <= 0
    gap_L = compute_pair_gaps(scores)
    places_L = 2 * np.arange(len(gap_L)) + is_no_L
    return places_L.tolist(), (-np.logaddexp(0.0, np.where(is_no_L, gap_L, -gap_L))).tolist()


def make_paired_row(
    request: Request, scores: Sequence[float], *, num_prompt_tokens: int, lengths: Sequence[int]
) -> AnsweredRow:
    """Return a row with its answer, given the log-probabilities and numbers of tokens (``lengths``) of its options.

    Its token log-probabilities have one number per question: that of the chosen yes or no.
    """
    (places, logprobs), options = choose_in_pairs(scores, request.baselines), request.options or ()
    return AnsweredRow(
        row_id=request.row_id,
        completion="".join(options[place] for place in places),
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=sum(lengths[place] for place in places),
        truncated=False,
        mean_logprob=float(np.mean(logprobs)),
        token_logprobs=logprobs,
        option_logprobs=scores,
        option_scores=subtract_baselines(scores, request.baselines),
        in_pairs=True,
    )


def _make_fixed_size_list(array_ND: Array, null_N: npt.NDArray[np.bool_]) -> pa.FixedSizeListArray:
    values = pa.array(np.ascontiguousarray(array_ND).reshape(-1))
    mask = pa.array(null_N) if null_N.any() else None
    return pa.FixedSizeListArray.from_arrays(values, array_ND.shape[1], mask=mask)
