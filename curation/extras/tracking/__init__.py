"""Experiment trackers, MLflow and Weights & Biases, to which a finished run is written."""

from curation.features import Feature

_HERE = "curation.extras.tracking"
TRACKING = Feature(
    section=f"{_HERE}.config:TrackingConfig",
    is_on=True,
    require=f"{_HERE}.publish:require",
    publish=f"{_HERE}.publish:publish_report",
)
