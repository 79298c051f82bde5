"""Inputs that the stages of a generation are described from: the configuration, the models, the tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from curation.config import RunConfig
from curation.hashing import derive
from curation.json_types import Json
from curation.refs import ModelRef
from curation.rundir.graph import Model, Out, Position, Table
from curation.sources import SourceFile
from curation.stages.asking import TeacherUse
from curation.stages.repeats import FindRepeats
from curation.stages.training import Training

Known = Mapping[str, Mapping[str, Sequence[Out]]]
"""The grades of tests that are described already, by what is asked (``pipeline.testing``) and by decoding."""


@dataclass(frozen=True, kw_only=True)
class HelperModels:
    """The models that a run asks beside its teacher, the same in every generation."""

    roles: Mapping[str, TeacherUse]
    """Models that signals ask, by the name in ``curation.arms.Signal.asks``."""
    judge: TeacherUse | None
    reader: TeacherUse | None = None
    """The model that reads a server's answers."""


@dataclass(frozen=True, kw_only=True)
class GenerationSpec:
    """Inputs of a generation."""

    config: RunConfig
    index: int
    teacher: Model | None
    """``None`` for a teacher without weights."""
    helpers: HelperModels
    tables: Mapping[str, Table]
    """Tables of the splits, by name."""
    repeats: FindRepeats
    """Finds the pool rows that repeat a question."""
    sizes: Mapping[str, int]
    """The number of rows of each split; of the pool only the generation's share."""
    pool_files: Sequence[SourceFile] = ()
    base: Model | None = None
    """The model that its students are trained from; ``None`` where none are."""
    branch: str = ""
    """Names the stages of a generation that is not the main chain's."""
    needs: Sequence[Out] = ()
    """Without one of these there is no generation: the student that teaches, the decision that it may, a check."""
    tested: Known = field(default_factory=dict)
    """Tests of earlier generations; a model that is asked the same way again is not tested again."""

    def name(self, stage: str) -> str:
        """Return the name of one of its stages, e.g. ``gen-0/select``."""
        return f"gen-{self.index}-{self.branch}/{stage}" if self.branch else f"gen-{self.index}/{stage}"

    def at(self, split: str | None = None, *, of: str = "") -> Position:
        """Return the position of one of its stages: the split it works on, and what tells it from others there."""
        return Position(generation=self.index, branch=self.branch, split=split, of=of)

    def seed(self, what: str) -> int:
        """Return the seed of something that this generation alone draws, equal in all chains."""
        return derive(self.config.seed, f"gen-{self.index}/{what}")

    @property
    def unadapted(self) -> Model | None:
        """The teacher as it was before this run, or an adapter, taught it the task; else the teacher itself."""
        teacher = self.teacher
        if isinstance(teacher, Out) and isinstance(teacher.stage, Training):
            teacher = teacher.stage.base
        return replace(teacher, adapter=None) if isinstance(teacher, ModelRef) and teacher.adapter else teacher

    @property
    def settings(self) -> Json:
        """How passes write."""
        return {"commit_seconds": self.config.commit_seconds, "fragment_mb": self.config.fragment_mb}

    def gold(self, split: str) -> Table:
        """Return the table with a split's gold labels."""
        return self.tables["audit" if split == "pool" else split]
