"""Weights & Biases: a run's curves in the history, its main numbers in the summary, and its report as an artifact.

The history has a row for each step at which a student was measured, with the values of all students at this step.
"""

from collections import defaultdict

from curation.extras.tracking.config import WandbConfig
from curation.extras.tracking.entry import TrackedRun


class WandbTracker:
    """A tracker that writes to the project of ``WandbConfig``, or offline to W&B's own folder for ``wandb sync``."""

    def __init__(self, config: WandbConfig) -> None:
        self._config = config

    def log(self, entry: TrackedRun) -> None:
        """Write an entry as a finished run."""
        import wandb

        run = wandb.init(
            project=self._config.project,
            entity=self._config.entity,
            mode=self._config.mode,
            id=entry.id,
            resume="allow",
            name=entry.name,
            config={**entry.settings, "curation": dict(entry.tags)},
            settings=wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True),
        )
        rows: defaultdict[int, dict[str, float]] = defaultdict(dict)
        for name, points in entry.curves.items():
            for step, value in points:
                rows[step][name] = value
        for step in sorted(rows):
            if step >= run.step:  # W&B's history only grows; a run that is resumed has the steps before
                run.log(rows[step], step=step)
        for number, value in entry.numbers.items():
            run.summary[number] = value
        report = wandb.Artifact(f"report-{entry.id}", type="report")
        for name, text in entry.files.items():
            with report.new_file(name, mode="w", encoding="utf-8") as file:
                file.write(text)
        run.log_artifact(report)
        run.finish()
