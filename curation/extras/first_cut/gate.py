"""The first cut of a filter: prompts are scored, and only those above a threshold are answered.

The threshold is set on the package's held-out rows, for the rule of ``keep``; ``threshold`` explains its guarantee. The
goal of the first cut is recorded with the labels. Later starts keep it unless the filter is to keep more rows, so that
new files, and a cut that is made again, label nothing twice.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from curation.arrays import Bools, Floats
from curation.config.states import parse
from curation.errors import ConfigError
from curation.extras.first_cut.config import Cascade, CascadeConfig
from curation.extras.first_cut.threshold import describe_first_cut, find_first_cut, format_bounds, read_held_out
from curation.filter.described import FilterGate, FilterInputs, get_package_place
from curation.heavy import torch
from curation.json_types import Json, JsonView
from curation.refs import TrustRef
from curation.registry import BACKENDS
from curation.stages.asking import GateRule, PassingTest
from curation.tables import schemas
from curation.teachers import Request, can_gate
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
    goal: Mapping[str, float] = field(default_factory=dict)
    """The goal that the threshold was set for, for the record."""

    def make_gate(self, states: Sequence[str]) -> "PromptGate":
        """Return the gate of a process (``PromptGate``)."""
        return PromptGate(self, states)

    def load_test(self) -> PassingTest:
        """Return the test of which rows would pass, by a function that reads only states."""
        function = load_fitted(self.function)

        def passes(states: Mapping[str, Floats]) -> Bools:
            hidden_ND = np.concatenate([states[name] for name in function.inputs], axis=1).astype(np.float32)
            return np.asarray(~(function.raw(torch.from_numpy(hidden_ND)) < self.threshold))

        return PassingTest(tuple(function.inputs), passes)

    def describe(self, asked: int, dropped: int) -> str:
        """Describe the effect of the cut."""
        return f"first cut: {dropped:,} of {asked:,} rows were dropped after their prompt"


class PromptGate:
    """A gate that scores prompts in a worker process, and holds the scores until they are written."""

    def __init__(self, cut: FirstCutRule, kept: Sequence[str]) -> None:
        """Refuse a ``cut`` whose function reads ``kept`` states other than the prompt's."""
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
        self._raw: dict[int, float] = {}
        self._lock = threading.Lock()

    def __call__(self, prompts: pa.RecordBatch) -> Bools:
        """Return whether each row is to be answered, bool [N]; rows without a score are."""
        raw_N = self._trust.raw_score(prompts)
        passes_N: Bools = ~(raw_N < self._cut.threshold)
        with self._lock:
            self._raw.update(zip(prompts.column("row_id").to_pylist(), raw_N.tolist(), strict=True))
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


def settle(inputs: FilterInputs) -> FilterGate:
    """Return the first cut that a filter's configuration requests; refuse what the package or labels do not allow."""
    config, package = inputs.config, inputs.package
    rows, packaged = read_held_out(package), package.description.parts["cascade"]
    assert isinstance(packaged, Cascade), "the feature's class"
    backend = config.teacher.asking(package.description.ask).backend
    if not can_gate(backend):
        raise ConfigError(
            f"cascade: the backend {backend} does not support a first cut (its label takes no gate); take another "
            "backend, or leave cascade out"
        )
    goal = _choose_goal(inputs, inputs.section, packaged)
    if "trust" in goal:
        trust_M = load_fitted(package.trust).to_trust(rows.full_M.astype(np.float32)).astype(np.float64)
        rows = replace(rows, full_M=np.where(np.isnan(rows.full_M), np.nan, trust_M))
    found = find_first_cut(
        rows,
        keep=goal.get("share"),
        full_threshold=float(np.float32(goal["trust"])) if "trust" in goal else None,
        loss=goal["loss"],
        confidence=goal["confidence"],
        fed_twice=BACKENDS[backend].fed_twice,
    )
    words = describe_first_cut(found)

    def collect(counts: Sequence[JsonView], of_all: bool) -> Json:
        """Return the effect of the first cut, from the counts of labelling stages, as JSON."""
        evidence = {**goal, "words": words, "found": found} if of_all else {}
        return {"first_cut": {**evidence, "dropped": sum(count["dropped"] for count in counts)}}

    off = FilterGate(words=(words,), collect=collect)
    if found["threshold"] is None:
        return off
    function = package.at(get_package_place(config)).functions["cascade"]
    rule = FirstCutRule(function=function, threshold=found["threshold"], goal=goal)
    saved = found["saved"]
    note = (
        f"forecast of the full pass: by the held-out rows the first cut saves {saved['value']:.1%} of its tokens "
        f"({format_bounds(saved)})"
    )
    return replace(off, rule=rule, inputs=packaged.inputs, states=packaged.states, note=note)


def _choose_goal(inputs: FilterInputs, section: CascadeConfig, packaged: Cascade) -> dict[str, float]:
    """Return the goal (``share`` or least ``trust``, ``loss``, ``confidence``) of existing labels or of ``keep``."""
    keep, before = inputs.config.keep, inputs.labelled.get("first_cut", {}).get("goal")
    among = inputs.cut_rounds or list(inputs.rounds)
    if inputs.cut_rounds is None and before is None:  # files that arrive during the first round do not count
        among = among[:1]
    num_rows = sum(inputs.rounds[name] for name in among)
    kind, value = "trust", keep.threshold
    if value is None:
        kind, value = "share", keep.share if keep.n is None else keep.n / max(1, num_rows)
        assert value is not None, "the configuration refuses other rules"
        if value >= 1:
            raise ConfigError(f"cascade: keep.n {keep.n:,} is all of the pool's {num_rows:,} rows; leave cascade out")
    if before is not None:
        was = before.get(kind)
        if was is None or (value > was * (1 + 1e-9) if kind == "share" else value < was):
            (name,) = (name for name in ("share", "trust") if name in before)
            raise ConfigError(
                f"keep.{keep.rule}: keeps rows that the first cut of this output was not set for ({name} "
                f"{before[name]:g}), so that some of them were dropped; filter into another output"
            )
        value = before[kind]
    limits = {name: getattr(section, name) or float(packaged.cut[name]) for name in ("loss", "confidence")}
    return {kind: value, **limits}


def describe_saved(content: JsonView) -> Iterator[str]:
    """Yield lines on the first cut of a filter, if it has one, and how many rows it dropped."""
    if (cut := content.get("first_cut")) is not None:
        yield str(cut["words"])
        yield f"first cut: {cut['dropped']:,} of {content['rows']:,} rows were dropped after their prompt"
