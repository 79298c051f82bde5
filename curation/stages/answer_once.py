"""The test stage of configured models, which reuses answers of earlier runs instead of asking the model again."""

from curation.errors import REFUSALS
from curation.heavy import ray
from curation.rundir.graph import Done, setting
from curation.rundir.run import Task
from curation.stages import answers
from curation.stages.label import Label, count_labels
from curation.storage.paths import to_place


class AnswerOnce(Label):
    """A stage that labels the test split, or reuses the answers that the model gave in an earlier run.

    If the folder cannot be read or written, the run goes on without the answers kept there.
    """

    kept_in: str = setting()
    """Folder in which answers are kept."""

    def run(self, task: Task) -> Done:
        """Reuse the kept answers, or label the split and keep its answers."""
        entry = None
        try:
            job = self.job(task)
            entry = answers.find_answers_entry(job, to_place(self.kept_in), revision=self.revision)
            if (kept := answers.find(entry)) is not None:
                result = answers.recall(job, kept)
                task.say(f"the answers are those of {kept.run}, kept in {entry.path}")
                task.manifest.event("recalled", stage=task.name, run=kept.run, entry=str(entry.path))
                counts = count_labels(result.table)
                record = {**self.teacher.record(result), "recalled": kept.run}
                return Done(outputs=self.Made(labels=result.table, counts=counts, pass_=record), rows=counts.rows)
        except (*REFUSALS, ray.exceptions.RayError) as error:
            task.say(f"no answers are taken from {self.kept_in}: {error}")
        done = super().run(task)
        try:
            if entry is not None:
                answers.keep(entry, done.outputs.labels, str(task.manifest.directory))
        except REFUSALS as error:
            task.say(f"the answers are not kept for other runs: {error}")
        return done
