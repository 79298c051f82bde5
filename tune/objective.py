"""The value of a trial: the AUC of one fit on a part of the labelled source rows that the fit never saw.

The source rows fall into ``folds`` folds, by a seeded hash of the row's question or of its group (``splits.group``), so
that rows of a group (a subject, a theme) stay on one side. A trial holds one fold out: neither its fit nor early
stopping nor calibration sees a row of it. All trials read the same rows: those with every input of the space.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from curation.arrays import Bools, Floats, Int64s
from curation.config import TrustConfig
from curation.domains.grading import read_grades
from curation.errors import ConfigError, DegenerateSourceError, SourceError
from curation.hashing import derive, hash_unit
from curation.json_types import Json
from curation.metrics import compute_auc_value
from curation.refs import TableRef
from curation.tables import io
from curation.tables.schemas import describe_mend, get_input_column
from curation.trust.parts import UNUSED, assign_parts, find_first_of_each, find_used
from curation.trust.stacked import list_stored_numbers
from train.trust import check_parts, compute_logits_at, fit_rows, join_inputs, read_inputs
from train.trust_loop import LabelledRows
from tune.space import Point


class Fold(NamedTuple):
    """The fold that a fit holds out, and its seeds."""

    number: int
    folds: int  # number of folds of the source
    seed: int  # seed of the folds and of the parts of the other rows, equal for fits to be compared
    fit_seed: int  # seed of initial weights and batches


class TrialRows(NamedTuple):
    """The labelled source rows that all trials read, ascending by row id; arrays that processes can share."""

    row_ids_N: Int64s
    unit_N: Int64s  # number that decides a row's fold: its cluster or its question (``Graded.unit_N``)
    correct_N: Bools
    parsed_N: Bools
    inputs: dict[str, Floats]  # each state [N, D] in its stored type, each scalar column [N, 1] in float32
    numbers_NK: npt.NDArray[np.float64]  # numbers of the answers that a stack reads, NaN for null
    numbers: tuple[str, ...]
    cluster_N: Int64s | None = None
    """The cluster of each row, which no part of a fit divides either, or None if ``splits.group`` is not set."""

    def rows(self, trust: TrustConfig, fold: Fold) -> LabelledRows:
        """Return the rows in the parts that a fit with these settings reads; :func:`train.trust.check_parts` raises."""
        all_rows = trust.model_copy(update={"source_share": 1.0})  # read_source has applied it
        part_N = assign_parts(self.row_ids_N, all_rows, fold.seed, unit_N=self.cluster_N)
        held_out_N = self.held_out_N(fold)
        part_N[held_out_N if trust.fit_on == "all" else held_out_N | ~self.parsed_N] = UNUSED
        inputs = [self.inputs[name] for name in trust.inputs]
        found = LabelledRows(
            hidden_ND=join_inputs(inputs),
            correct_N=self.correct_N,
            part_N=part_N,
            sizes=tuple(input_ND.shape[1] for input_ND in inputs),
            row_ids_N=self.row_ids_N,
            numbers_NK=self.numbers_NK,
            numbers=self.numbers,
            cluster_N=self.cluster_N,
        )
        check_parts(found, trust)
        return found

    def held_out_N(self, fold: Fold) -> Bools:
        """Return whether each row is in the fold that is held out."""
        unit_N = hash_unit(self.unit_N, derive(fold.seed, "tune folds"))
        held_N: Bools = np.minimum((unit_N * fold.folds).astype(np.int64), fold.folds - 1) == fold.number
        return held_N


def read_source(
    labels: TableRef, grades: TableRef, names: Sequence[str], trust: TrustConfig, seed: int
) -> tuple[TrialRows, int]:
    """Return the graded rows of the source split that have all of the named inputs, and how many graded rows lack one.

    Of rows with the same question only the first one is read, and of all the share that ``trust.source_share`` selects
    with the seed. ``names`` are states and scalar columns.

    Raises:
        SourceError: an input is not stored, or no row has all of them.
    """
    graded = read_grades(grades)
    stored = io.open_table(labels).schema
    if missing := [name for name in names if get_input_column(name) not in stored.names]:
        raise SourceError(
            f"tune: the source's labels do not hold {', '.join(missing)}; "
            f"{describe_mend(get_input_column(missing[0]))}, and {len(graded.row_ids_N):,} source rows are labelled "
            "again"
        )
    numbers, is_first_G = list_stored_numbers(stored), find_first_of_each(graded.question_N)
    read = read_inputs(labels, graded.row_ids_N, names, numbers, "error IS NULL")
    first_N = is_first_G[read.places_N]
    num_lacking = int(is_first_G.sum() - first_N.sum())
    first_N &= find_used(graded.row_ids_N[read.places_N], trust, seed)
    kept = graded.subset(read.places_N[first_N])
    if not len(kept.row_ids_N):
        raise SourceError(f"tune: none of {len(graded.row_ids_N):,} graded source rows has all of {', '.join(names)}")
    found = TrialRows(
        row_ids_N=kept.row_ids_N,
        unit_N=kept.unit_N,
        correct_N=kept.correct_N,
        parsed_N=read.parsed_N[first_N],
        inputs={name: input_ND[first_N] for name, input_ND in zip(names, read.inputs, strict=True)},
        numbers_NK=read.numbers_NK[first_N],
        numbers=numbers,
        cluster_N=kept.cluster_N,
    )
    return found, num_lacking


def check_folds(source: TrialRows, first: Fold) -> None:
    """Check that trials can be measured on these rows, which are divided as for the fold ``first``.

    Raises:
        ConfigError: fewer rows or groups than folds.
        DegenerateSourceError: a fold has only right or only wrong parsed labels.
    """
    num_groups = len(np.unique(source.unit_N))
    if num_groups < first.folds:
        raise ConfigError(f"tune.folds: {first.folds} folds of {num_groups:,} rows or groups; give fewer")
    for number in range(first.folds):
        held_N = source.held_out_N(first._replace(number=number)) & source.parsed_N
        num_right = int(source.correct_N[held_N].sum())
        if num_right in (0, int(held_N.sum())):
            raise DegenerateSourceError(
                f"tune: {num_right} of {int(held_N.sum())} parsed labels are right in fold {number} of {first.folds}, "
                "but both right and wrong ones are needed; give more source rows or fewer folds"
            )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a trial."""

    value: float  # AUC of the parsed rows of the held-out fold
    num_held_out: int
    seconds: float
    fit: Json  # record of the fit: rows of each part, steps, losses, validation AUCs


def run_trial(source: TrialRows, point: Point, fold: Fold) -> Outcome:
    """Fit a point on all folds but one, and measure it on that one; raise as :func:`train.trust.fit_rows`."""
    begun = time.monotonic()
    rows, held_N = source.rows(point.trust, fold), source.held_out_N(fold)
    trust = fit_rows(point.kind, rows, point.trust, seed=fold.fit_seed, origin={"seed": fold.fit_seed})
    measured_P = np.flatnonzero(held_N & source.parsed_N)
    value = compute_auc_value(compute_logits_at(trust, rows, measured_P), source.correct_N[measured_P])
    if not np.isfinite(value):
        raise ValueError(f"the AUC of the fold that was held out is {value}")
    return Outcome(
        value=value,
        num_held_out=int(held_N.sum()),
        seconds=time.monotonic() - begun,
        fit={key: item for key, item in trust.fit.items() if key != "seed"},
    )
