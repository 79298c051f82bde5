"""The first cut in the labelling actors: prompts are scored, and only those above a threshold are answered.

``threshold`` sets the threshold and explains its guarantee. Each process checks whether the cut pays on its own rows:
after ``CHECK_ROWS`` prompts it turns the cut off if too few rows were dropped, and answers every row from then on.
Turning it off never loses a row and only lowers the cost. Which rows are answered then depends on the order of the
work, but the answers do not.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pyarrow as pa

from curation.arrays import Bools, Floats
from curation.config.states import parse
from curation.errors import ConfigError
from curation.extras.first_cut.threshold import CHECK_ROWS, can_still_pay
from curation.heavy import torch
from curation.refs import TrustRef
from curation.stages.gating import GateRule, PassingTest
from curation.tables import schemas
from curation.teachers import Request
from curation.trust import load_fitted

KNOWN_OF_PROMPTS = ("num_prompt_tokens",)
"""Numbers other than states that are known once a prompt has been read."""


@dataclass(frozen=True, kw_only=True)
class FirstCutRule(GateRule):
    """A first cut for a labelling pass."""

    key: ClassVar[str] = "first_cut"
    score: ClassVar[str] = "first_cut_raw"

    function: TrustRef
    """The fitted trust function of the prompt's states."""
    threshold: float
    """Raw score below which rows are not answered."""
    break_even: float
    """The share of dropped rows below which the cut costs more tokens than it saves (``threshold.FirstCut``)."""
    goal: Mapping[str, float] = field(default_factory=dict)
    """The goal that the threshold was set for, for the record."""
    check_rows: int = CHECK_ROWS
    """Number of prompts after which a process checks whether the cut pays."""

    def make_gate(self, states: Sequence[str]) -> "PromptGate":
        """Return the gate of a process (``PromptGate``)."""
        return PromptGate(self, states)

    def load_test(self) -> PassingTest:
        """Return the test of which rows would pass, by a function that reads only states."""
        function = load_fitted(self.function)
        inputs = tuple(function.inputs)

        def passes(states: Mapping[str, Floats]) -> Bools:
            hidden_ND = np.concatenate([states[name] for name in inputs], axis=1).astype(np.float32)
            passes_N: Bools = ~(function.raw(torch.from_numpy(hidden_ND)) < self.threshold)
            return passes_N

        return PassingTest(inputs, passes)

    def describe(self, asked: int, dropped: int, unasked: int) -> str:
        """Describe the effect of the cut."""
        off = f"; it turned itself off because it dropped too few, for {unasked:,} rows" if unasked else ""
        return f"first cut: {dropped:,} of {asked:,} rows were dropped after their prompt{off}"


class PromptGate:
    """A gate that scores prompts in a process, and holds the scores until they are written."""

    def __init__(self, cut: FirstCutRule, kept: Sequence[str]) -> None:
        """Take the rule of a first ``cut``; ``kept`` names the teacher's states.

        Raises:
            ConfigError: the function reads a value that is unknown after the prompt, or that the teacher does not keep.
        """
        self._cut, self._trust = cut, load_fitted(cut.function)
        features = self._trust.features
        self.states = tuple(state for state in kept if schemas.get_state_column(state) in features)
        known = [schemas.get_state_column(state) for state in self.states if parse(state).position == "prompt_last"]
        unknown = [name for name in features if name not in (*known, *KNOWN_OF_PROMPTS)]
        if unknown or not self.states:
            raise ConfigError(
                f"first cut: its trust function reads {', '.join(unknown) or 'no state'}; it may read the teacher's "
                f"states (teacher.states: {', '.join(kept)}) at the position prompt_last, and "
                f"{', '.join(KNOWN_OF_PROMPTS)}"
            )
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

    def check(self, request: Request) -> None:
        """Refuse a request whose answer is chosen among options."""
        if not request.is_drawn:
            raise ConfigError(
                f"first cut: row {request.row_id} has options to choose from, whose prompt is most of the cost, so "
                "that a first cut saves nothing; label without one"
            )

    def add_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows that the teacher has answered or dropped, with their scores and whether they are dropped."""
        with self._lock:
            raw_N = np.array([self._raw.pop(row, np.nan) for row in batch.column("row_id").to_pylist()], np.float32)
        added = [pa.array(raw_N, mask=np.isnan(raw_N)), pa.array(raw_N < self._cut.threshold)]
        schema = pa.schema([*batch.schema, *self._cut.columns])
        return pa.RecordBatch.from_arrays([*batch.columns, *added], schema=schema)
