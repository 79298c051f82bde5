"""A test, on a probe's labelled rows, of whether calibrating options by content-free prompts improves labels."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from curation.config import DecodingConfig
from curation.domains import Domain
from curation.refs import TableRef
from curation.stages.probe import FIRST_BESIDE
from curation.tables import io
from curation.teachers.completions import choose_in_pairs, rank_options, subtract_baselines
from curation.teachers.wrapped import compute_baselines

FEWEST = 30
"""Minimum number of labelled rows for a comparison."""
CLEAR = 0.05
"""The p-value below which one of the two settings is recommended."""


def with_blanks(examples: pa.Table, domain: Domain, decoding: DecodingConfig) -> pa.Table:
    """Put examples without content before the others, if the domain has any and options are scored by sums."""
    if decoding.normalise_options or decoding.constrained == "stepwise" or not domain.blanks:
        return examples
    rows = [{"row_id": FIRST_BESIDE + place, **blank} for place, blank in enumerate(domain.blanks)]
    return pa.concat_tables([pa.Table.from_pylist(rows, schema=examples.schema), examples])


def compare_calibration(labels: TableRef, domain: Domain, golds: Mapping[int, str]) -> str | None:
    """Return in words how many rows are right with and without calibration, or None if too few can be compared.

    ``golds``: the gold labels by row id. Both settings are compared by an exact test of the rows on which they differ
    (McNemar 1947).
    """
    from scipy.stats import binomtest

    columns = io.read(labels, ["row_id", "option_logprobs"], io.make_answered_filter(labels)).to_pylist()
    found = {row["row_id"]: row["option_logprobs"] for row in columns if row["option_logprobs"] is not None}
    ids = range(FIRST_BESIDE, FIRST_BESIDE + len(domain.blanks))
    blanks = [found[row_id] for row_id in ids if row_id in found]
    rows = {row_id: scores for row_id, scores in found.items() if row_id in golds}
    if len(blanks) < max(len(domain.blanks), 1) or len(rows) < FEWEST:
        return None
    least, options = compute_baselines(blanks, in_pairs=domain.in_pairs), domain.options(domain.blanks[0]) or ()
    plain, calibrated = (
        [domain.is_correct(_label(scores, less, options, domain), golds[row_id]) for row_id, scores in rows.items()]
        for less in (None, least)
    )
    gained = sum(now and not before for before, now in zip(plain, calibrated, strict=True))
    lost = sum(before and not now for before, now in zip(plain, calibrated, strict=True))
    p = float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    after = "no clear difference"
    if p < CLEAR:
        after = "set domain.calibrate: " + ("content_free" if gained > lost else "none")
    num = len(rows)
    return (
        f"of {num:,} labelled rows {100 * sum(calibrated) / num:.1f} % are right with domain.calibrate: content_free, "
        f"and {100 * sum(plain) / num:.1f} % without (p = {p:.2g}): {after}"
    )


def _label(scores: Sequence[float], less: Sequence[float] | None, options: Sequence[str], domain: Domain) -> str | None:
    if domain.in_pairs:
        answer = "".join(options[place] for place in choose_in_pairs(scores, less)[0])
    else:
        answer = options[rank_options(subtract_baselines(scores, less))[0]]
    return domain.parse(answer, domain.blanks[0])
