"""The configuration of a run: pydantic models. An unknown key is an error that names the nearest known key.

Defaults follow the paper where it gives a value (App. "Training Details", "Detailed NTF Architectures"); docs/method.md
names each choice that the paper leaves open. Relative paths of sources and models are relative to the file.
"""

from typing import TYPE_CHECKING, Any

from curation.config.base import TrainSection as TrainSection
from curation.config.evaluation import RewardConfig as RewardConfig
from curation.config.inputs import DomainConfig as DomainConfig
from curation.config.inputs import RowsConfig as RowsConfig
from curation.config.inputs import SourceConfig as SourceConfig
from curation.config.inputs import SplitConfig as SplitConfig
from curation.config.models import InitConfig as InitConfig
from curation.config.models import LmStudentConfig as LmStudentConfig
from curation.config.models import LoraConfig as LoraConfig
from curation.config.models import ModelConfig as ModelConfig
from curation.config.models import SftConfig as SftConfig
from curation.config.models import StudentConfig as StudentConfig
from curation.config.selection import BudgetConfig as BudgetConfig
from curation.config.selection import RiskConfig as RiskConfig
from curation.config.teacher import ActorsConfig as ActorsConfig
from curation.config.teacher import AnswersConfig as AnswersConfig
from curation.config.teacher import AskConfig as AskConfig
from curation.config.teacher import DecodingConfig as DecodingConfig
from curation.config.teacher import ScriptedConfig as ScriptedConfig
from curation.config.teacher import TeacherConfig as TeacherConfig
from curation.config.trust import TrustConfig as TrustConfig
from curation.config.trust import TuneConfig as TuneConfig

if TYPE_CHECKING:
    from curation.config.run import PricesConfig as PricesConfig
    from curation.config.run import RayConfig as RayConfig
    from curation.config.run import RunConfig as RunConfig
    from curation.config.run import SelectionConfig as SelectionConfig


def __getattr__(name: str) -> Any:
    """Return a class of ``run``, imported late: ``run`` imports all features' sections, which import this package."""
    if name not in ("PricesConfig", "RayConfig", "RunConfig", "SelectionConfig"):
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from curation.config import run

    return getattr(run, name)
