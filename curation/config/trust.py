"""The trust function and its fit."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from curation.config.base import PositiveInt, Share, TrainSection
from curation.states import parse


def _trust_state(name: str) -> str:
    if name != "pca":
        parse(name)
    return name


class TrustConfig(TrainSection):
    """The neural trust function and its fit (paper, section "Neural Trust Functions", table of NTF architectures).

    Ours, and to be switched off: early stopping on validation AUC (``patience: null``) and standardised inputs
    (``standardise: false``). Not given in the paper: stochastic depth, expansion, batch size, epochs.
    """

    preset: Literal["world_knowledge", "quantitative_reasoning", "strategy_games"] = "strategy_games"
    """Unset, the one of the run's domain (``curation.config.defaults``); of a domain that has none, this."""
    states: tuple[Annotated[str, AfterValidator(_trust_state)], ...] = ("output_last",)
    """Names among ``teacher.states``; the fit itself reads ``pca`` where ``teacher.store_states`` asks for it."""
    depth: PositiveInt = 4
    width: PositiveInt = 512
    expansion: Annotated[float, Field(gt=0)] = 2.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    stochastic_depth: Annotated[float, Field(ge=0, lt=1)] = 0.1
    learning_rate: Annotated[float, Field(gt=0)] = 1e-5
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    class_weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Strength of the class reweighting: class c weighs (N / (2 N_c)) ** class_weight; 0 is none, 1 is balanced."""
    batch_size: PositiveInt = 256
    max_epochs: PositiveInt = 50
    patience: PositiveInt | None = 5
    """Epochs without a better validation AUC before stopping; ``null`` runs all epochs and keeps the last."""
    standardise: bool = True
    validation_fraction: Share = 0.2

    @classmethod
    def presets(cls) -> Mapping[str, Mapping[str, Any]]:
        """One a domain, the values of the paper's table."""
        return {
            "world_knowledge": {"learning_rate": 5e-5, "class_weight": 1.0},
            "quantitative_reasoning": {
                "depth": 8,
                "width": 1024,
                "learning_rate": 1e-5,
                "weight_decay": 1e-3,
                "class_weight": 1.0,
            },
            "strategy_games": {"learning_rate": 1e-5, "class_weight": 0.5},
        }
