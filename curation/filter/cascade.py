"""The first cut of a filter: its threshold is set on the package's held-out rows, for the rule of ``keep``.

The goal of the first cut is recorded with the labels. Later starts keep it unless the filter is to keep more rows, so
that new files, and a cut that is made again, label nothing twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from curation.config.filter import CascadeConfig, FilterConfig
from curation.errors import ConfigError
from curation.filter.package import Cascade, TrustPackage
from curation.json_types import Json, JsonView
from curation.refs import TrustRef
from curation.registry import BACKENDS
from curation.selection.cascade import FirstCut, find_first_cut
from curation.stages.first_cut import FirstCutRule
from curation.teachers import can_gate
from curation.trust import load_fitted

Goal = Mapping[str, float]
"""Goal of a first cut: rows to keep (``share`` or least ``trust``), their maximum ``loss``, and its ``confidence``."""


@dataclass(frozen=True, kw_only=True)
class Settled:
    """The first cut of a filter, on or off."""

    goal: Goal
    found: FirstCut
    packaged: Cascade

    def rule(self, function: TrustRef | None) -> FirstCutRule | None:
        """Return the rule for the stages that label and compare, by a function of prompts, or ``None`` if it is off."""
        found = self.found
        if found.threshold is None:
            return None
        assert function is not None, "settle refuses a package without"
        return FirstCutRule(
            function=function, threshold=found.threshold, break_even=found.break_even, goal=dict(self.goal)
        )

    @property
    def left_out_of_forecasts(self) -> str | None:
        """A note on the cut's expected saving, which the probe of a forecast ignores; None if the cut is off."""
        if self.found.threshold is None:
            return None
        saved = self.found.saved
        return (
            f"forecast of the full pass: by the held-out rows the first cut saves {saved.value:.1%} of its tokens "
            f"({saved.low:.1%} to {saved.high:.1%})"
        )


def settle(
    config: FilterConfig, package: TrustPackage, num_rows: int, before: Mapping[str, object] | None
) -> Settled | None:
    """Return the first cut that a configuration requests, or None if it requests none.

    Args:
        config: the configuration of the filter.
        package: the filter's package.
        num_rows: the number of pool rows among which ``keep.n`` are kept.
        before: the goal of the first cut with which existing labels were made, if any.

    Raises:
        PackageError: the package has no first cut.
        ConfigError: the backend supports none, or the filter is to keep more rows than the existing labels allow.
    """
    if (asked := config.cascade) is None:
        return None
    rows, packaged = package.held_out(), package.description.cascade
    assert packaged is not None and package.first is not None, "held_out refuses a package without"
    backend = config.teacher.asking(package.description.ask).backend
    if not can_gate(backend):
        raise ConfigError(
            f"cascade: the backend {backend} does not support a first cut (its label takes no gate); take another "
            "backend, or leave cascade out"
        )
    goal = _choose_goal(config, asked, packaged, num_rows, before)
    if "trust" in goal:
        trust_M = load_fitted(package.trust).to_trust(rows.full_M.astype(np.float32)).astype(np.float64)
        rows = replace(rows, full_M=np.where(np.isnan(rows.full_M), np.nan, trust_M))
    found = find_first_cut(
        rows,
        keep=goal.get("share"),
        full_threshold=float(np.float32(goal["trust"])) if "trust" in goal else None,
        loss=goal["loss"],
        confidence=goal["confidence"],
        fed_twice=max(BACKENDS[name].fed_twice for name in (BACKENDS if backend == "auto" else [backend])),
    )
    return Settled(goal=goal, found=found, packaged=packaged)


def compute_saving(settled: Settled, counts: Sequence[JsonView]) -> Json:
    """Return the saving of the first cut, from the counts of labelling stages, as JSON."""
    dropped, unasked = (sum(count[name] for count in counts) for name in ("dropped", "unasked"))
    spent = sum(count["prompt_tokens"] + count["output_tokens"] for count in counts)
    passed = sum(count["rows"] - sum(count["errors"].values()) for count in counts) - dropped - unasked
    tokens = settled.found.tokens_saved(dropped, 0 if settled.found.threshold is None else passed)
    ends = {name: value for name in ("value", "low", "high") if np.isfinite(value := getattr(tokens, name))}
    shares = {name: round(value / (spent + value), 6) if spent + value > 0 else None for name, value in ends.items()}
    return {"dropped": dropped, "unasked": unasked, "tokens_saved": tokens.to_json(), "share_saved": shares}


def _choose_goal(
    config: FilterConfig, asked: CascadeConfig, packaged: Cascade, num_rows: int, before: JsonView | None
) -> Goal:
    """Return the goal of the first cut: that of ``cascade.keep``, or that of existing labels, or that of ``keep``."""
    keep = config.keep
    kind, value = "trust", keep.threshold
    if value is None:
        kind, value = "share", keep.share if keep.n is None else keep.n / max(1, num_rows)
        assert value is not None, "the configuration refuses other rules"
        if value >= 1:
            raise ConfigError(f"cascade: keep.n {keep.n:,} is all of the pool's {num_rows:,} rows; leave cascade out")
    if asked.keep is not None:
        if kind == "share" and value > asked.keep:
            raise ConfigError(
                f"cascade.keep: {asked.keep:g} is less than the share {value:g} that keep.{keep.rule} keeps, so that "
                "rows of it might be dropped beyond the stated loss; give at least that share"
            )
        kind, value = "share", asked.keep
    elif before is not None:
        was = before.get(kind)
        if was is None or (value > was * (1 + 1e-9) if kind == "share" else value < was):
            (name,) = (name for name in ("share", "trust") if name in before)
            raise ConfigError(
                f"keep.{keep.rule}: keeps rows that the first cut of this output was not set for ({name} "
                f"{before[name]:g}), so that some of them were dropped; with cascade.keep (the share of the pool that "
                "is to be kept) all rows are labelled again"
            )
        value = before[kind]
    loss, confidence = asked.loss or packaged.loss, asked.confidence or packaged.confidence
    return {kind: value, "loss": loss, "confidence": confidence}
