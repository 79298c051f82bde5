"""The label stages of a filter: the package's teacher answers a pool, and the package's trust function scores it.

Where the teacher reads a server's answers, another stage buys them before (``curation.stages.label.Label``).
"""

from collections.abc import Mapping
from typing import Any

from curation.config import DecodingConfig
from curation.filter.stages.packaged import Packaged
from curation.refs import TableRef
from curation.rundir.graph import Done, In, setting
from curation.rundir.run import Task
from curation.stages.asking import AskModel, TeacherUse
from curation.stages.first_cut import FirstCutRule
from curation.stages.label import Label
from curation.stages.read import Read


class LabelPool(AskModel, Packaged):
    """Labels and scores a round in one pass; of the states it stores the sample for the shift test alone."""

    Made = Label.Made

    examples: In[TableRef]
    seed: int
    first_cut: dict[str, float] | None = None
    """The threshold of a first cut, and what it was set for."""
    teacher: TeacherUse = setting()
    """How the package's teacher runs; the package says what it answers."""
    decoding: DecodingConfig = setting()
    revision: int = Label.revision

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Inputs that the labels depend on: the package, not how its teacher runs or where it lies."""
        first_cut = {} if self.first_cut is None else {"first_cut": self.first_cut}
        backend = self.teacher.ask.backend
        return {"examples": self.examples, "package": self.package, "backend": backend, "seed": self.seed, **first_cut}

    def run(self, task: Task) -> Done:
        """Label and score the rows."""
        package = self.loaded()
        description, cut = package.description, None
        states = dict.fromkeys(description.sample.states)
        if self.first_cut is not None:
            assert description.cascade is not None and package.first is not None, "settle refuses a package without"
            threshold, break_even = self.first_cut["threshold"], self.first_cut["break_even"]
            cut = FirstCutRule(function=package.first, threshold=threshold, break_even=break_even)
            states |= dict.fromkeys(description.cascade.inputs)
        label = Label(
            name=self.name,
            teacher=self.teacher,
            decoding=self.decoding,
            examples=self.examples,
            domain=description.domain,
            seed=self.seed,
            fitted={description.trust: package.trust},
            sample={"states": list(states), "seed": self.seed},
            commit_seconds=self.commit_seconds,
            fragment_mb=self.fragment_mb,
        )
        return label.answer(task, cut)


class ReadAnswers(AskModel, Packaged):
    """Reads and scores a server's answers to a round; of the states it stores the sample for the shift test alone."""

    Made = Read.Made

    examples: In[TableRef]
    answers: In[TableRef]
    """The labels table with the answers."""
    seed: int
    teacher: TeacherUse = setting()
    """How the model that reads runs; the package says what it keeps."""
    decoding: DecodingConfig = setting()
    revision: int = Read.revision

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Inputs that the scores depend on: the package, not how its teacher runs or where it lies."""
        tables = {"examples": self.examples, "answers": self.answers}
        return {**tables, "package": self.package, "backend": self.teacher.ask.backend, "seed": self.seed}

    def run(self, task: Task) -> Done:
        """Read and score the rows."""
        package = self.loaded()
        description = package.description
        assert description.served is not None, "the package names whose answers it reads"
        read = Read(
            name=self.name,
            teacher=self.teacher,
            decoding=self.decoding,
            examples=self.examples,
            answers=self.answers,
            domain=description.domain,
            reads_numbers=not description.served.top_logprobs,
            fitted={description.trust: package.trust},
            sample={"states": list(description.sample.states), "seed": self.seed},
            commit_seconds=self.commit_seconds,
            fragment_mb=self.fragment_mb,
        )
        return read.run(task)
