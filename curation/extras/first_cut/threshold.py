"""The first cut of a cascade: a cheap score drops rows before the teacher writes their answers.

The first score is known after the prompt; the full score only after the answer. A row is *lost* if the full cut would
select it and the first cut drops it. The threshold is set on held-out labelled rows, on which neither score's function
was fitted, so that at most a stated share of the selected rows is lost, with a stated confidence.

**Why this holds.** Let A be the rows that the full cut selects. Given how many held-out rows are in A, say K, they are
independent draws from A. Rows below the r-th smallest of their first scores are dropped. The share of A below an order
statistic follows a beta distribution whatever the scores' own distribution (Wilks, "Determination of Sample Sizes for
Setting Tolerance Limits", 1941), and it is at most ``loss`` with probability P(Bin(K, loss) >= r). The largest r for
which that is at least the confidence is taken: then the exact binomial bound (Clopper and Pearson 1934) on r - 1 lost
rows of K is at most ``loss``. It is one order statistic and no search, so no correction is needed; if scores tie, fewer
rows are dropped.

With a threshold of the full score, A is known. With a share ``keep`` of the pool, the pool's own threshold is not known
before it is labelled, but K then follows Bin(M, keep): the threshold is the smallest over all K of an interval that
holds K with probability 1 - ``COUNT_SHARE`` * delta, and each K is given the rest of delta.

The guarantee holds for rows drawn as the held-out rows were, not for a pool whose distribution has shifted.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy

from curation.arrays import Bools, Float64s, Int64s
from curation.errors import ConfigError, PackageError, UserError
from curation.filter.package.folder import TrustPackage, read_rows, to_floats
from curation.json_types import Json, JsonView
from curation.metrics.estimates import TAIL, Estimate, compute_proportion
from curation.selection.risk.rules import compute_exact_upper
from curation.storage.cache import fetch_folder

FILE = "cascade.parquet"
"""The file of a package with the held-out rows, by ``SCHEMA``."""
SCHEMA = pa.schema(
    [("first", pa.float32()), ("raw", pa.float32()), ("prompt_tokens", pa.int32()), ("output_tokens", pa.int32())]
)
COUNT_SHARE = 0.1
"""Part of delta spent on the number of held-out rows in the selected share of the pool, which is unknown."""
LEAST_SAVED = 0.05
"""Smallest share of the teacher's tokens that a first cut must save to be on. A cut that saves 1 to 3 %, with prompts
of 29 tokens and answers of 2, makes a run no faster or even slower (``benchmarks.cascade``)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOut:
    """M labelled rows in any order, drawn like those of the pool, on which neither function was fitted."""

    first_M: Float64s
    """The raw score that is known after the prompt; NaN for a row that has none and always passes."""
    full_M: Float64s
    """The raw score by which the full pass selects; NaN or -inf for a row that it never selects."""
    prompt_tokens_M: Int64s
    output_tokens_M: Int64s

    def __post_init__(self) -> None:
        lengths = {len(column) for column in (self.first_M, self.full_M, self.prompt_tokens_M, self.output_tokens_M)}
        if len(lengths) != 1 or 0 in lengths:
            raise UserError(
                f"first cut: held-out columns of {sorted(lengths)} rows; give the same rows, at least one, to all"
            )


def write_held_out(rows: HeldOut, folder: Path) -> None:
    """Write the rows into the folder of a package."""
    scores = (pa.array(scores_M, pa.float32(), from_pandas=True) for scores_M in (rows.first_M, rows.full_M))
    tokens = (pa.array(tokens_M, pa.int32()) for tokens_M in (rows.prompt_tokens_M, rows.output_tokens_M))
    pq.write_table(pa.table([*scores, *tokens], schema=SCHEMA), folder / FILE)


def read_held_out(package: TrustPackage) -> HeldOut:
    """Return the rows of a package; a ``PackageError`` if it has none, or the file holds something else."""
    if "cascade" not in package.description.parts:
        why = (
            "its run kept no state of the last prompt token, or its rows allowed none (`curate export-trust` says "
            "which); leave cascade out, or run again with teacher.states: [prompt_last, output_last] (and what else "
            "trust reads), and export that run"
        )
        if package.description.ask.reads_given:
            why = (
                "its model reads answers that are there before the prompt is read, so that a first cut would save "
                "none; leave cascade out"
            )
        elif package.description.served is not None:
            why = "a server answers, and keeps no state of a prompt; leave cascade out"
        raise PackageError(f"{package.uri}: holds no first cut, so that a filter cannot have a cascade: {why}")
    with package.reading(FILE):
        table = read_rows(fetch_folder(package.uri) / FILE, SCHEMA)
        first_M, full_M = (to_floats(table[name]).astype(np.float64) for name in ("first", "raw"))
        prompt_M, output_M = (table[name].to_numpy().astype(np.int64) for name in ("prompt_tokens", "output_tokens"))
    return HeldOut(first_M=first_M, full_M=full_M, prompt_tokens_M=prompt_M, output_tokens_M=output_M)


def find_first_cut(
    rows: HeldOut,
    *,
    keep: float | None = None,
    full_threshold: float | None = None,
    loss: float = 0.01,
    confidence: float = 0.95,
    fed_twice: float = 0.0,
    seed: int = 0,
) -> Json:
    """Return the first cut that loses at most ``loss`` of the rows that the full pass selects.

    Args:
        rows: the held-out rows.
        keep: share of the pool that the full pass selects, the best by the full score.
        full_threshold: lowest full raw score that the full pass selects, instead of ``keep``.
        loss: the largest share of the selected rows that may be lost, in (0, 1).
        confidence: probability, over draws of the held-out rows, with which that holds, in (0, 1).
        fed_twice: prompt tokens of a passing row that are fed again for its answer (0 if the model keeps their state).
        seed: seed that orders rows whose full scores tie, since ``keep`` may select only some of them.

    Returns:
        The arguments as JSON; ``threshold``, the first score below which rows are dropped, or None with the reason,
        ``off``; ``limit``, the threshold that ``loss`` allows, whether it pays or not, or None; ``num_held_out`` rows,
        of which the full pass selects ``num_selected`` (about, by ``keep``); ``bound``, the exact upper bound on the
        share of lost rows, or None; estimates of the share of the pool that is ``dropped``, as if the threshold had
        been fixed beforehand, and of the teacher's tokens ``saved`` (negative if the cut costs some); ``guarantee``.

    Raises:
        ConfigError: a share is outside (0, 1), or not exactly one of ``keep`` and ``full_threshold`` is given.
    """
    if (keep is None) == (full_threshold is None):
        raise ConfigError(f"first cut: keep {keep} and full_threshold {full_threshold}; give exactly one of them")
    for name, value in (("keep", keep), ("loss", loss), ("confidence", confidence)):
        if value is not None and not 0 < value < 1:
            raise ConfigError(f"first cut: {name} {value} is not a share between 0 and 1, both excluded")
    delta, num_rows = 1 - confidence, len(rows.first_M)
    first_M = np.where(np.isnan(rows.first_M), np.inf, rows.first_M.astype(np.float64))
    full_M = np.where(np.isnan(rows.full_M), -np.inf, rows.full_M.astype(np.float64))
    # By the full score, the best first.
    ranked_M = first_M[np.lexsort((np.random.default_rng(seed).random(num_rows), -full_M))]
    if full_threshold is not None:
        what = f"a raw score of at least {full_threshold:g}"
        num_selected = int((rows.full_M >= full_threshold).sum())
        counts = np.array([num_selected])
    else:  # how many rows belong to the selected share of a pool is random
        assert keep is not None, "one of the two is given"
        what, num_selectable = f"the best {keep:.3g} of the pool", int((full_M > -np.inf).sum())
        num_selected = min(round(keep * num_rows), num_selectable)
        tail = COUNT_SHARE * delta / 2
        low, high = (int(scipy.stats.binom.ppf(share, num_rows, keep)) for share in (tail, 1 - tail))
        counts = np.minimum(np.arange(low, high + 1), num_selectable)
        delta *= 1 - COUNT_SHARE
    threshold = math.inf
    for count in np.unique(counts).tolist():
        rank = compute_tolerance_rank(count, loss, delta)
        limit = float(np.partition(ranked_M[:count], rank - 1)[rank - 1]) if rank else -math.inf
        threshold = min(threshold, limit)
    dropped_M = first_M < threshold
    saved = _estimate_saved(rows, dropped_M, fed_twice)
    least = math.ceil(math.log(delta) / math.log1p(-loss) - 1e-9)  # the fewest rows with (1 - loss) ** rows <= delta
    off: str | None = None
    if threshold == -np.inf and int(counts.min()) < least:
        off = (
            f"of {num_rows:,} held-out rows only {int(counts.min()):,} are sure to be among the selected ones, and "
            f"{least:,} are needed to show a loss of at most {loss:g} with confidence {confidence:g}; give the run "
            "more rows (splits.source or splits.calibration), or allow a larger loss"
        )
    elif not dropped_M.any():
        off = "it would drop no row: the first score does not tell the rows apart that the full pass selects"
    elif saved.value < LEAST_SAVED:
        off = (
            f"it would save {saved.value:.2%} of the teacher's tokens by dropping {dropped_M.mean():.1%} of the rows, "
            f"less than {LEAST_SAVED:.0%} (prompts of {rows.prompt_tokens_M.mean():.0f} tokens, answers of "
            f"{rows.output_tokens_M.mean():.0f})"
        )
    lost = int((ranked_M[:num_selected] < threshold).sum())
    guarantee = (
        f"at most {loss:g} of the rows that the full pass would select ({what}) are lost, with confidence "
        f"{confidence:g} (exact binomial); assumes that the held-out rows are drawn as the pool's"
    )
    return {
        "threshold": float(threshold) if off is None else None,
        "off": off,
        "limit": float(threshold) if threshold > -np.inf else None,
        "loss": loss,
        "confidence": confidence,
        "keep": keep,
        "full_threshold": full_threshold,
        "num_held_out": num_rows,
        "num_selected": num_selected,
        "bound": None if off else float(compute_exact_upper(np.array([num_selected]), np.array([lost]), delta)[0]),
        "dropped": compute_proportion(int(dropped_M.sum()), num_rows).to_json(),
        "saved": saved.to_json(),
        "guarantee": guarantee if off is None else "none: the first cut is off",
    }


def describe_first_cut(found: JsonView) -> str:
    """Return one sentence on a first cut for terminal and report."""
    if found["off"] is not None:
        return f"first cut off: {found['off']}"
    dropped, saved = found["dropped"], found["saved"]
    return (
        f"first cut on: about {dropped['value']:.1%} of the rows are dropped before their answer "
        f"({format_bounds(dropped)}), {saved['value']:.1%} of the tokens saved ({format_bounds(saved)}); "
        f"{found['guarantee']}"
    )


def format_bounds(share: JsonView) -> str:
    """Return the bounds of a share in percent; a single row has none."""
    low, high = (math.nan if share[bound] is None else share[bound] for bound in ("low", "high"))
    return f"{low:.1%} to {high:.1%}"


def compute_tolerance_rank(num_rows: int, loss: float, delta: float) -> int:
    """Return the largest r with P(Bin(num_rows, loss) <= r - 1) <= delta; 0 if there is none."""
    return int((scipy.special.bdtr(np.arange(math.ceil(loss * num_rows) + 1), num_rows, loss) <= delta).sum())


def _estimate_saved(rows: HeldOut, dropped_M: Bools, fed_twice: float) -> Estimate:
    """Estimate the share of tokens that is saved, a ratio of means with an interval by the delta method."""
    tokens_M = (rows.prompt_tokens_M + rows.output_tokens_M).astype(np.float64)
    gain_M = np.where(dropped_M, rows.output_tokens_M, -fed_twice)
    num_rows, mean = len(tokens_M), float(tokens_M.mean())
    value = float(gain_M.mean()) / mean
    spread = float(np.std(gain_M - value * tokens_M, ddof=1)) if num_rows > 1 else math.nan
    margin = float(scipy.special.ndtri(1 - TAIL)) * (spread / (mean * math.sqrt(num_rows)))
    return Estimate(value=value, low=value - margin, high=value + margin, n=num_rows)
