"""Trackers of experiments that are told of a finished run."""

from typing import Literal

from curation.config.base import Section


class MlflowConfig(Section):
    """Where MLflow keeps a finished run."""

    uri: str | None = None
    """A tracking server or store; unset: what MLflow itself finds, first of all ``MLFLOW_TRACKING_URI``."""
    experiment: str = "trust-curation"
    """The experiment under which the run is kept."""


class WandbConfig(Section):
    """Where Weights & Biases keep a finished run; the key is theirs to find (``wandb login``, ``WANDB_API_KEY``)."""

    project: str = "trust-curation"
    """The project under which the run is kept."""
    entity: str | None = None
    """A user or team; unset: the user's default."""
    mode: Literal["online", "offline"] = "online"
    """``offline`` keeps it on this machine, for ``wandb sync``."""


class TrackingConfig(Section):
    """Trackers of experiments that are told of a finished run; none unless named (``{mlflow: {}}``)."""

    mlflow: MlflowConfig | None = None
    wandb: WandbConfig | None = None

    def given(self) -> dict[str, MlflowConfig | WandbConfig]:
        """Return the trackers that are named; a tracker's name is its package's too."""
        named = {"mlflow": self.mlflow, "wandb": self.wandb}
        return {name: config for name, config in named.items() if config is not None}
