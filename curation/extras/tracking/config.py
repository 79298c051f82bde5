"""The configuration section of experiment trackers."""

from curation.config.base import Section


class TrackingConfig(Section):
    """Experiment trackers to which a finished run is written; by default none.

    Where they are, and what a run belongs to there, is said by their own environment variables, on the driver's node.
    """

    mlflow: bool = False
    """MLflow: ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME``, by default ``trust-curation``."""
    wandb: bool = False
    """Weights & Biases: ``wandb login``, ``WANDB_ENTITY``, ``WANDB_MODE``, ``WANDB_PROJECT``, by default
    ``trust-curation``."""

    @property
    def given(self) -> list[str]:
        """The names of the trackers, which are those of their packages too."""
        return [name for name, is_on in self if is_on]
