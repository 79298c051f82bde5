"""What a report is made from: references and counts of a run, no data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curation.domains import Domain
from curation.refs import ModelRef, TableRef, TrustRef

BASE, TEACHER, GROUND_TRUTH = "base", "teacher", "ground_truth"


@dataclass(frozen=True, kw_only=True)
class StageRecord:
    """A finished stage: ``rows`` is what it worked on, ``started`` an ISO time."""

    name: str
    seconds: float
    rows: int
    rows_per_second: float | None
    started: str


@dataclass(frozen=True, kw_only=True)
class GenerationRecord:
    """One generation: who labelled, what was selected, how the students did."""

    index: int
    teacher: ModelRef | None
    """``None`` for a teacher without weights (the scripted one)."""
    student_base: ModelRef | None
    """The students' un-adapted base; ``None`` where the run only curates."""
    labels_source: TableRef
    """Scored, like ``labels_pool``: with the columns ``raw_score`` and ``trust``."""
    labels_pool: TableRef
    trust: TrustRef
    selections: Mapping[str, TableRef]
    """Schema ``tables.SELECTION``, by arm."""
    n: int
    """The budget of every arm."""
    budget_is_oracle: bool
    """The budget was counted with the audit's gold labels."""
    evaluations: Mapping[str, TableRef]
    """Labels of the test split by arm, ``base`` and ``teacher``; empty where nothing was trained."""
    label_counts: Mapping[str, Mapping[str, Any]]
    """Of ``source`` and ``pool``: ``rows`` in the labels table (error rows too), ``unparsed``, ``truncated`` and
    ``errors`` by kind."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A whole run."""

    name: str
    config: Mapping[str, Any]
    """The run's configuration as JSON."""
    config_path: str | None
    seed: int
    versions: Mapping[str, str]
    command: str
    domain: Domain
    prepared: Mapping[str, TableRef]
    """The splits' tables by name; ``audit`` and ``test`` may be missing."""
    prepare_counts: Mapping[str, Mapping[str, Any]]
    """By split: ``rows`` read (error rows too) and ``errors`` by kind."""
    stages: Sequence[StageRecord]
    generations: Sequence[GenerationRecord]
