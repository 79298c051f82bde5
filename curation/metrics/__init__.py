"""Numbers with their n and 95 % interval: ranking, calibration, shares, recovery, paired tests, verdicts, seeds."""

from curation.metrics.calibration import (
    NUM_BINS,
    Binning,
    BrierParts,
    ReliabilityBin,
    brier,
    brier_parts,
    ece,
    reliability,
)
from curation.metrics.clusters import inflation, share_right
from curation.metrics.estimates import CONFIDENCE, Estimate, SeedEstimate, over_seeds, proportion
from curation.metrics.paired import (
    ALPHA,
    MARGIN,
    Comparison,
    PairedTest,
    Verdict,
    detectable_difference,
    recovery,
)
from curation.metrics.paired_ranking import auc_difference, purity_difference
from curation.metrics.paired_runs import (
    RowDifferences,
    compare_rows,
    pooled_rows,
    recovery_of_averages,
    recovery_of_runs,
    row_differences,
    sign_flip,
    verdict_on_rows,
)
from curation.metrics.ranking import (
    auc,
    auc_value,
    coverage_points,
    purity_of_cells,
)
from curation.metrics.sampling import share_of_finite
from curation.metrics.strata import mean_over_strata, over_runs, weighted_mean

__all__ = [
    "ALPHA",
    "CONFIDENCE",
    "MARGIN",
    "NUM_BINS",
    "Binning",
    "BrierParts",
    "Comparison",
    "Estimate",
    "PairedTest",
    "ReliabilityBin",
    "RowDifferences",
    "SeedEstimate",
    "Verdict",
    "auc",
    "auc_difference",
    "auc_value",
    "brier",
    "brier_parts",
    "compare_rows",
    "coverage_points",
    "detectable_difference",
    "ece",
    "inflation",
    "mean_over_strata",
    "over_runs",
    "over_seeds",
    "pooled_rows",
    "proportion",
    "purity_difference",
    "purity_of_cells",
    "recovery",
    "recovery_of_averages",
    "recovery_of_runs",
    "reliability",
    "row_differences",
    "share_of_finite",
    "share_right",
    "sign_flip",
    "verdict_on_rows",
    "weighted_mean",
]
