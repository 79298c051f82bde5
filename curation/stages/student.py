"""The student stage: trains a student on the rows that an arm selected."""

from curation.config import SftConfig
from curation.json_types import Json
from curation.refs import TableRef
from curation.rundir.graph import Done, In, InEach, setting
from curation.rundir.run import Task
from curation.stages.training import Training


class TrainStudent(Training):
    """Trains a student by the method that is configured; again only where what its rows teach changed."""

    digest: In[str]
    """A digest of what the rows teach."""
    trained_by: str
    """The method's function, as the registry names it."""
    read: Json
    """Further arguments that the method reads."""
    rows: In[TableRef] = setting()
    """The selected rows, which the digest stands for."""
    examples: InEach[TableRef] = setting()
    """``examples``, the pool, for a method that reads it; the digest names the rows of it."""

    @property
    def inputs(self) -> Json:
        """The rows too, where the recipe reads more of them than the digest covers: their trust."""
        by_trust = isinstance(self.recipe, SftConfig) and self.recipe.weight_by_trust
        return {**super().inputs, **({"rows": self.rows} if by_trust else {})}

    def run(self, task: Task) -> Done:
        """Train."""
        return self._train(task, self.trained_by, self.rows, {**self.read, **self.examples})
