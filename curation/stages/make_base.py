"""The stage that makes a model from scratch."""

from typing import NamedTuple

from curation import models
from curation.config import DomainConfig, InitConfig
from curation.domains import get_domain
from curation.refs import ModelRef
from curation.rundir.graph import Done, Stage
from curation.rundir.run import Task


class MakeBase(Stage):
    """Makes a model of random weights, with a tokenizer of the domain's vocabulary."""

    class Made(NamedTuple):
        model: ModelRef

    init: InitConfig
    domain: DomainConfig
    seed: int
    num_rows: int | None = 0

    def run(self, task: Task) -> Done:
        """Make the model."""
        vocabulary = get_domain(self.domain).vocabulary()
        ref = models.create(
            task.directory,
            family=self.init.family,
            shape=self.init.shape(),
            words=vocabulary.words,
            pattern=vocabulary.pattern,
            seed=self.seed,
        )
        return Done(outputs=self.Made(model=ref), rows=0)
