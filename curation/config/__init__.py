"""The configuration of a run: pydantic models. An unknown key is an error that names the nearest known key.

Defaults follow the paper where it gives a value (App. "Training Details", "Detailed NTF Architectures"); docs/method.md
names each choice that the paper leaves open. Relative paths of sources and models are relative to the file.
"""

from typing import TYPE_CHECKING, Any

from curation.config.base import TrainSection
from curation.config.inputs import DomainConfig, RowsConfig, SourceConfig, SplitConfig
from curation.config.models import InitConfig, LmStudentConfig, LoraConfig, ModelConfig, SftConfig, StudentConfig
from curation.config.selection import BudgetConfig, RiskConfig
from curation.config.signals import RewardConfig
from curation.config.teacher import (
    ActorsConfig,
    AnswersConfig,
    AskConfig,
    DecodingConfig,
    ScriptedConfig,
    TeacherConfig,
)
from curation.config.trust import TrustConfig
from curation.config.tune import TuneConfig

if TYPE_CHECKING:
    from curation.config.run import PricesConfig, RayConfig, RunConfig, SelectionConfig

__all__ = [
    "ActorsConfig",
    "AnswersConfig",
    "AskConfig",
    "BudgetConfig",
    "DecodingConfig",
    "DomainConfig",
    "InitConfig",
    "LmStudentConfig",
    "LoraConfig",
    "ModelConfig",
    "PricesConfig",
    "RayConfig",
    "RewardConfig",
    "RiskConfig",
    "RowsConfig",
    "RunConfig",
    "ScriptedConfig",
    "SelectionConfig",
    "SftConfig",
    "SourceConfig",
    "SplitConfig",
    "StudentConfig",
    "TeacherConfig",
    "TrainSection",
    "TrustConfig",
    "TuneConfig",
]


def __getattr__(name: str) -> Any:
    """Return a class of ``run``, imported late: ``run`` imports all features' sections, which import this package."""
    if name not in ("PricesConfig", "RayConfig", "RunConfig", "SelectionConfig"):
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from curation.config import run

    return getattr(run, name)
