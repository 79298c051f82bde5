"""The configuration section of experiment trackers."""

from collections.abc import Mapping

from pydantic import field_validator

from curation.config.base import Section


class TrackingConfig(Section):
    """Experiment trackers to which a finished run is written, e.g. ``{mlflow: my-project}``; by default none.

    Where they are is said by their own environment variables, on the driver's node.
    """

    mlflow: str | None = None
    """Experiment of MLflow to which the run belongs. ``MLFLOW_TRACKING_URI`` is the server or store."""
    wandb: str | None = None
    """Project of Weights & Biases to which the run belongs. The key is from ``wandb login`` or ``WANDB_API_KEY``;
    ``WANDB_ENTITY`` is a team, ``WANDB_MODE=offline`` keeps the run for ``wandb sync``."""

    @field_validator("*", mode="before")
    @classmethod
    def _require_name(cls, value: object) -> object:
        if isinstance(value, Mapping):
            raise ValueError("is the name of an experiment or project alone; the tracker's environment has the rest")
        return value

    def given(self) -> dict[str, str]:
        """Return the project by tracker; a tracker's name is also the name of its package."""
        return {name: project for name, project in self if project is not None}
