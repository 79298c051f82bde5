"""Trackers of experiments, MLflow and Weights & Biases: they are told of a finished run."""

from curation.features import Feature

_HERE = "curation.extras.tracking"
TRACKING = Feature(
    section=f"{_HERE}.config:TrackingConfig",
    is_on=True,
    require=f"{_HERE}.publish:require",
    publish=f"{_HERE}.publish:publish_report",
)
