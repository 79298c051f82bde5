"""The label stages of a filter: the package's teacher answers a pool, and the package's trust function scores it.

Where the teacher reads a server's answers, another stage buys them before (``curation.stages.label.Label``).
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from curation.config import DecodingConfig
from curation.filter.package import TrustPackage
from curation.filter.stages.packaged import Packaged
from curation.refs import TableRef
from curation.rundir.graph import Done, In, setting
from curation.rundir.run import Task
from curation.stages.asking import AskModel, TeacherUse
from curation.stages.first_cut import FirstCutRule
from curation.stages.label import Label, MakeLabels
from curation.stages.read import Read

Labelling = TypeVar("Labelling", bound=MakeLabels)


class ScoreRound(AskModel, Packaged):
    """Labels a round with the package's scores; of the states it stores the sample for the shift test alone."""

    Made = MakeLabels.Made

    examples: In[TableRef]
    seed: int
    teacher: TeacherUse = setting()
    """How the package's model runs; the package says what it answers and keeps."""
    decoding: DecodingConfig = setting()

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Inputs that labels and scores depend on: the package, not how its model runs or where it lies."""
        backend = self.teacher.ask.backend
        return {"examples": self.examples, "package": self.package, "backend": backend, "seed": self.seed}

    def by_package(
        self, stage: type[Labelling], package: TrustPackage, further: Iterable[str] = (), **own: Any
    ) -> Labelling:
        """The stage of a run that does the work; its sample has the package's states and ``further`` ones."""
        description = package.description
        return stage(
            name=self.name,
            teacher=self.teacher,
            decoding=self.decoding,
            examples=self.examples,
            domain=description.domain,
            fitted={description.trust: package.trust},
            sample={"states": list(dict.fromkeys([*description.sample.states, *further])), "seed": self.seed},
            commit_seconds=self.commit_seconds,
            fragment_mb=self.fragment_mb,
            **own,
        )


class LabelPool(ScoreRound):
    """Labels and scores a round in one pass."""

    first_cut: dict[str, float] | None = None
    """The threshold of a first cut, and what it was set for."""
    revision: int = Label.revision

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Inputs that the labels depend on: a first cut, too."""
        return {**super().inputs, **({} if self.first_cut is None else {"first_cut": self.first_cut})}

    def run(self, task: Task) -> Done:
        """Label and score the rows."""
        package, cut = self.loaded(), None
        further: tuple[str, ...] = ()
        if self.first_cut is not None:
            cascade = package.description.cascade
            assert cascade is not None and package.first is not None, "settle refuses a package without"
            threshold, break_even = self.first_cut["threshold"], self.first_cut["break_even"]
            cut = FirstCutRule(function=package.first, threshold=threshold, break_even=break_even)
            further = cascade.inputs
        return self.by_package(Label, package, further, seed=self.seed).answer(task, cut)


class ReadAnswers(ScoreRound):
    """Reads and scores a server's answers to a round."""

    answers: In[TableRef]
    """The labels table with the answers."""
    revision: int = Read.revision

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Inputs that the scores depend on: the answers, too."""
        return {**super().inputs, "answers": self.answers}

    def run(self, task: Task) -> Done:
        """Read and score the rows."""
        package = self.loaded()
        served = package.description.served
        assert served is not None, "the package names whose answers it reads"
        read = self.by_package(Read, package, answers=self.answers, reads_numbers=not served.top_logprobs)
        return read.run(task)
