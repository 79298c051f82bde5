"""The first cut in the labelling actors: prompts are scored, and only those above a threshold are answered.

``curation.selection.cascade`` sets the threshold and explains its guarantee. Each process checks whether the cut pays
on its own rows: after ``cascade.CHECK_ROWS`` prompts it turns the cut off if too few rows were dropped, and answers
every row from then on. Turning it off never loses a row and only lowers the cost. Which rows are answered then depends
on the order of the work, but the answers do not.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from curation.arrays import Bools, Float64s, Floats, Int64s
from curation.config.states import parse
from curation.errors import ConfigError, UserError
from curation.heavy import torch
from curation.refs import TableRef, TrustRef
from curation.selection.cascade import CHECK_ROWS, HeldOut, can_still_pay
from curation.stopping import iter_checked
from curation.tables import io, schemas
from curation.trust import Scores, load_fitted

if TYPE_CHECKING:
    from curation.trust.states import StateTrust


KNOWN_OF_PROMPTS = ("num_prompt_tokens",)
"""Numbers other than states that are known once a prompt has been read."""


@dataclass(frozen=True, kw_only=True)
class FirstCutRule:
    """A first cut for a labelling pass; pickled to every actor."""

    function: TrustRef
    """The fitted trust function of the prompt's states."""
    threshold: float
    """Raw score below which rows are not answered."""
    break_even: float
    """The share of dropped rows below which the cut does not pay (``cascade.FirstCut``)."""
    goal: Mapping[str, float] = field(default_factory=dict)
    """The goal that the threshold was set for, for the record."""
    check_rows: int = CHECK_ROWS
    """Number of prompts after which a process checks whether the cut pays."""


class PromptGate:
    """A ``curation.teachers.Gate`` that scores prompts in a process, and holds the scores until they are written."""

    def __init__(self, cut: FirstCutRule, kept: Sequence[str]) -> None:
        """Take the rule of a first ``cut``; ``kept`` names the teacher's states.

        Raises:
            ConfigError: the function reads a value that is unknown after the prompt, or that the teacher does not keep.
        """
        self._cut, self._trust = cut, load_fitted(cut.function)
        self.states = find_prompt_states(self._trust, kept)
        self.num_asked, self.num_dropped, self.is_off = 0, 0, False
        self._raw: dict[int, float] = {}
        self._lock = threading.Lock()

    def __call__(self, prompts: pa.RecordBatch) -> Bools:
        """Return whether each row is to be answered, bool [N]; rows without a score are."""
        if self.is_off:
            return np.ones(prompts.num_rows, dtype=np.bool_)
        raw_N = self._trust.raw_score(prompts)
        passes_N: Bools = ~(raw_N < self._cut.threshold)
        with self._lock:
            self._raw.update(zip(prompts.column("row_id").to_pylist(), raw_N.tolist(), strict=True))
            self.num_asked += len(raw_N)
            self.num_dropped += int((~passes_N).sum())
            if self.num_asked >= self._cut.check_rows:
                self.is_off = not can_still_pay(self.num_asked, self.num_dropped, self._cut.break_even)
        return passes_N

    def columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the columns of ``schemas.FIRST_CUT`` for rows that the teacher has answered or dropped."""
        with self._lock:
            raw_N = np.array([self._raw.pop(row, np.nan) for row in batch.column("row_id").to_pylist()], np.float32)
        return [pa.array(raw_N, mask=np.isnan(raw_N)), pa.array(raw_N < self._cut.threshold)]


@dataclass(frozen=True, kw_only=True, eq=False)
class Passing:
    """A test of which rows would pass a first cut, by stored states."""

    states: tuple[str, ...]
    """Names of the states that the function reads, in order."""
    function: "StateTrust"
    threshold: float

    def __call__(self, states: Mapping[str, Floats]) -> Bools:
        """Return whether each row passes, bool [N], given each state [N, D] by name."""
        hidden_ND = np.concatenate([states[name] for name in self.states], axis=1).astype(np.float32)
        passes_N: Bools = ~(self.function.raw(torch.from_numpy(hidden_ND)) < self.threshold)
        return passes_N


def load_passing(cut: FirstCutRule | None) -> Passing | None:
    """Return the test of which rows would pass ``cut``, whose function reads only states; None without a first cut."""
    if cut is None:
        return None
    found = load_fitted(cut.function)
    return Passing(states=tuple(found.inputs), function=found, threshold=cut.threshold)


def find_prompt_states(trust: "StateTrust", kept: Sequence[str]) -> tuple[str, ...]:
    """Return those of a teacher's kept states that a function of prompts reads.

    Raises:
        ConfigError: see :class:`PromptGate`.
    """
    states = tuple(state for state in kept if schemas.get_state_column(state) in trust.features)
    known = {schemas.get_state_column(state) for state in states if parse(state).position == "prompt_last"}
    unknown = [name for name in trust.features if name not in known and name not in KNOWN_OF_PROMPTS]
    if unknown or not states:
        raise ConfigError(
            f"first cut: its trust function reads {', '.join(unknown) or 'no state'}; it may read the teacher's states "
            f"(teacher.states: {', '.join(kept)}) at the position prompt_last, and {', '.join(KNOWN_OF_PROMPTS)}"
        )
    return states


def write_cut_target(
    labels: TableRef, full: TrustRef, takes: Callable[[Int64s], Bools], *, keep: float, uri: str
) -> TableRef:
    """Write the target of the first function: whether the full function is to select a row (schema ``schemas.GRADES``).

    The first function thus predicts which rows a first cut must not lose, without gold labels. Predicting whether the
    label is right, as other trust functions do, works too but loses more.

    Args:
        labels: answered rows.
        full: the full function.
        takes: function from row ids to a mask of the rows to fit on.
        keep: the share of them that the full pass selects, the best by its raw score.
        uri: where to write.

    Raises:
        UserError: no row is taken.
    """
    ids: list[Int64s] = [np.zeros(0, dtype=np.int64)]
    raw: list[Float64s] = [np.zeros(0)]
    function = load_fitted(full)
    for batch in _iter_answered(labels, [function], takes):
        ids.append(batch.column("row_id").to_numpy())
        raw.append(_mask_unselectable(batch, function.raw_score(batch)))
    ids_N, raw_N = np.concatenate(ids), np.concatenate(raw)
    if not len(ids_N):
        raise UserError(
            f"{labels.uri}: no answered row to fit a first cut on; `curate inspect` shows why its rows failed"
        )
    order = np.argsort(-np.nan_to_num(raw_N, nan=-np.inf), kind="stable")
    chosen_N = np.zeros(len(ids_N), dtype=np.bool_)
    chosen_N[order[: round(keep * len(ids_N))]] = True
    chosen_N &= ~np.isnan(raw_N)
    columns = [ids_N, chosen_N, np.zeros(len(ids_N), dtype=np.bool_), pa.nulls(len(ids_N), pa.string()), ids_N]
    return io.write(pa.table(columns, schema=schemas.GRADES).sort_by("row_id"), uri)


def collect_held_out(labels: TableRef, first: TrustRef, full: TrustRef, takes: Callable[[Int64s], Bools]) -> HeldOut:
    """Return both scores and the tokens of the labelled rows that ``takes`` marks by id, for ``cascade.first_cut``.

    Neither function may have been fitted on these rows: ``curation.trust.parts`` says which part of the source a row
    is in. A row whose label could not be read is never selected by the full pass.

    Raises:
        SourceError: the labels lack a column that a function reads.
        UserError: no row is taken.
    """
    functions = [load_fitted(ref) for ref in (first, full)]
    parts: list[list[Float64s]] = [[np.zeros(0)] * 4]
    for batch in _iter_answered(labels, functions, takes):
        tokens = [batch.column(name).to_numpy() for name in ("num_prompt_tokens", "num_output_tokens")]
        full_B = _mask_unselectable(batch, functions[1].source_score(batch))
        parts.append([functions[0].raw_score(batch).astype(np.float64), full_B, *tokens])
    first_M, full_M, prompt_M, output_M = (np.concatenate(column) for column in zip(*parts, strict=True))
    return HeldOut(
        first_M=first_M,
        full_M=full_M,
        prompt_tokens_M=prompt_M.astype(np.int64),
        output_tokens_M=output_M.astype(np.int64),
    )


def _iter_answered(
    labels: TableRef, functions: "Sequence[StateTrust]", takes: Callable[[Int64s], Bools]
) -> Iterator[pa.RecordBatch]:
    """Yield the answered rows that ``takes`` marks, with the columns that the functions read."""
    features = dict.fromkeys(feature for function in functions for feature in function.features)
    columns = dict.fromkeys(["row_id", "label", "num_prompt_tokens", "num_output_tokens", *features])
    for batch in iter_checked(
        io.open_table(labels).scanner(columns=list(columns), filter=io.make_answered_filter(labels)).to_batches()
    ):
        yield batch.filter(pa.array(takes(batch.column("row_id").to_numpy())))


def _mask_unselectable(batch: pa.RecordBatch, score_N: Scores) -> Float64s:
    """Return the full function's scores, with NaN for rows that are never selected."""
    raw_N: Float64s = score_N.astype(np.float64)
    raw_N[batch.column("label").is_null().to_numpy(zero_copy_only=False)] = np.nan
    return raw_N
