"""The configuration section of experiment trackers."""

from typing import Literal

from curation.config.base import Section


class MlflowConfig(Section):
    """The place in MLflow to which a finished run is written."""

    uri: str | None = None
    """Tracking server or store; by default the one that MLflow finds, first by ``MLFLOW_TRACKING_URI``."""
    experiment: str = "trust-curation"
    """Name of the experiment to which the run belongs."""


class WandbConfig(Section):
    """The place in Weights & Biases to which a run is written; the key is from ``wandb login`` or ``WANDB_API_KEY``."""

    project: str = "trust-curation"
    """Name of the project to which the run belongs."""
    entity: str | None = None
    """User or team; by default the user's own default."""
    mode: Literal["online", "offline"] = "online"
    """``offline`` keeps the run on this machine, for ``wandb sync``."""


class TrackingConfig(Section):
    """Experiment trackers to which a finished run is written, e.g. ``{mlflow: {}}``; by default none."""

    mlflow: MlflowConfig | None = None
    wandb: WandbConfig | None = None

    def given(self) -> dict[str, MlflowConfig | WandbConfig]:
        """Return the configured trackers by name, which is the name of the tracker's package too."""
        return {name: config for name, config in self if config is not None}
