"""Numbers with their n and 95 % interval: ranking, calibration, shares, recovery, paired tests, verdicts, seeds."""

from curation.metrics.calibration import (
    NUM_BINS,
    Binning,
    BrierParts,
    ReliabilityBin,
    brier,
    compute_brier_parts,
    compute_reliability,
    ece,
)
from curation.metrics.clusters import compute_inflation, compute_share_right
from curation.metrics.estimates import CONFIDENCE, Estimate, SeedEstimate, average_over_seeds, compute_proportion
from curation.metrics.paired import (
    ALPHA,
    MARGIN,
    Comparison,
    PairedTest,
    Verdict,
    compute_recovery,
    find_detectable_difference,
)
from curation.metrics.paired_ranking import compute_auc_difference, compute_purity_difference
from curation.metrics.paired_runs import (
    RowDifferences,
    compare_rows,
    compute_averaged_recovery,
    compute_row_differences,
    compute_rows_verdict,
    compute_runs_recovery,
    compute_sign_flip,
    pool_strata,
)
from curation.metrics.ranking import (
    auc,
    compute_auc_value,
    compute_cell_purity,
    list_coverage_points,
)
from curation.metrics.sampling import compute_finite_share
from curation.metrics.strata import average_over_runs, average_over_strata, compute_weighted_mean

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
    "average_over_runs",
    "average_over_seeds",
    "average_over_strata",
    "brier",
    "compare_rows",
    "compute_auc_difference",
    "compute_auc_value",
    "compute_averaged_recovery",
    "compute_brier_parts",
    "compute_cell_purity",
    "compute_finite_share",
    "compute_inflation",
    "compute_proportion",
    "compute_purity_difference",
    "compute_recovery",
    "compute_reliability",
    "compute_row_differences",
    "compute_rows_verdict",
    "compute_runs_recovery",
    "compute_share_right",
    "compute_sign_flip",
    "compute_weighted_mean",
    "ece",
    "find_detectable_difference",
    "list_coverage_points",
    "pool_strata",
]
