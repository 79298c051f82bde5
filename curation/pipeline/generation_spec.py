"""The inputs of the description of a generation's stages: the configuration, the models, the tables."""

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
"""Grades of tests described so far, by the model's questions (``pipeline.testing``) and by decoding."""


@dataclass(frozen=True, kw_only=True)
class HelperModels:
    """The models that a run asks besides its teacher, the same in every generation."""

    roles: Mapping[str, TeacherUse]
    """Models that signals ask, by the name in ``curation.arms.Signal.asks``."""
    judge: TeacherUse | None
    reader: TeacherUse | None = None
    """The model that reads a server's answers."""


@dataclass(frozen=True, kw_only=True)
class GenerationSpec:
    """The inputs from which a generation's stages are described."""

    config: RunConfig
    index: int
    teacher: Model | None
    """The teacher, or None if it has no weights."""
    helpers: HelperModels
    tables: Mapping[str, Table]
    """Tables of the splits, by name."""
    repeats: FindRepeats
    """The stage that finds the pool rows that repeat a question."""
    sizes: Mapping[str, int]
    """The number of rows of each split; for the pool, of the generation's share."""
    pool_files: Sequence[SourceFile] = ()
    base: Model | None = None
    """The base model of the generation's students, or None if none are trained."""
    branch: str = ""
    """Name of the branch in stage names; "" for the main chain."""
    needs: Sequence[Out] = ()
    """Outputs without which there is no generation: the student that teaches, the decision to go on, a check."""
    tested: Known = field(default_factory=dict)
    """Tests of earlier generations; a model that is asked the same way again is not tested again."""

    def name(self, stage: str) -> str:
        """Return the name of a stage of the generation, e.g. ``gen-0/select``."""
        return f"gen-{self.index}-{self.branch}/{stage}" if self.branch else f"gen-{self.index}/{stage}"

    def at(self, split: str | None = None, *, of: str = "") -> Position:
        """Return the position of a stage of the generation: its split, and ``of``, which tells it from others."""
        return Position(generation=self.index, branch=self.branch, split=split, of=of)

    def seed(self, what: str) -> int:
        """Return the seed of a draw of this generation only, equal in all chains."""
        return derive(self.config.seed, f"gen-{self.index}/{what}")

    @property
    def unadapted(self) -> Model | None:
        """The teacher before this run or an adapter taught it the task, or the teacher itself if neither did."""
        teacher = self.teacher
        if isinstance(teacher, Out) and isinstance(teacher.stage, Training):
            teacher = teacher.stage.base
        return replace(teacher, adapter=None) if isinstance(teacher, ModelRef) and teacher.adapter else teacher

    @property
    def settings(self) -> Json:
        """Settings of how passes write tables."""
        return {"commit_seconds": self.config.commit_seconds, "fragment_mb": self.config.fragment_mb}

    def gold(self, split: str) -> Table:
        """Return the table with a split's gold labels."""
        return self.tables["audit" if split == "pool" else split]
