"""MLflow: a run of an experiment, settings as parameters, curves by step, the report as artifacts."""

import posixpath
import re
import time

from curation.extras.tracking.config import MlflowConfig
from curation.extras.tracking.entry import TrackedRun
from curation.refs import fingerprint

ID_TAG = "curation.id"
NUM_PARAMS, NUM_METRICS = 100, 900
"""Maximum numbers of parameters and metrics per request: MLflow's servers accept 100 parameters, and 1,000 in all."""
MAX_PARAMETER = 500
"""Maximum length of a parameter that servers of all versions accept, in characters."""
MAX_TAG = 5000
MAX_NAME = 250
_FOREIGN = re.compile(r"[^\w.\- :/]")
"""Characters that MLflow refuses in the name of a parameter or metric."""


def make_valid_name(text: str) -> str:
    """Return the text if MLflow accepts it as a name; else a similar name with a digest, which is unique to the text.

    A name must be short, be a normal relative path, and contain only letters, digits and a few punctuation characters.
    """
    name = _FOREIGN.sub("_", text)
    if text and name == text and len(text) <= MAX_NAME and posixpath.normpath(text) == text and text[0] not in "./":
        return text
    near = posixpath.normpath(name[:MAX_NAME]).lstrip("./")[: MAX_NAME - 20]
    return f"{near}-{fingerprint(text)}"


class MlflowTracker:
    """A tracker that writes to the server or store of ``MlflowConfig``."""

    def __init__(self, config: MlflowConfig) -> None:
        from mlflow.tracking import MlflowClient

        self._experiment = config.experiment
        self._client = MlflowClient(tracking_uri=config.uri)

    def log(self, entry: TrackedRun) -> None:
        """Write an entry as a finished run."""
        from mlflow.entities import Metric, Param

        run_id, is_new = self._run(entry)
        now = int(1000 * time.time())
        metrics = [Metric(make_valid_name(name), float(value), now, 0) for name, value in entry.numbers.items()]
        curves = {make_valid_name(name): points for name, points in entry.curves.items()}
        for name, points in curves.items():  # MLflow would keep a step that is given again as another point
            known = set() if is_new else {point.step for point in self._client.get_metric_history(run_id, name)}
            metrics += [Metric(name, float(value), now, step) for step, value in points if step not in known]
        params = [Param(make_valid_name(name), value[:MAX_PARAMETER]) for name, value in entry.flat_settings().items()]
        while metrics or params:
            self._client.log_batch(run_id, metrics=metrics[:NUM_METRICS], params=params[:NUM_PARAMS])
            metrics, params = metrics[NUM_METRICS:], params[NUM_PARAMS:]
        for name, text in entry.files.items():
            self._client.log_text(run_id, text, name)
        self._client.set_terminated(run_id)

    def _run(self, entry: TrackedRun) -> tuple[str, bool]:
        """Return the id of the run with the entry's id, and whether it is new."""
        experiment = self._client.get_experiment_by_name(self._experiment)
        where = self._client.create_experiment(self._experiment) if experiment is None else experiment.experiment_id
        for run in self._client.search_runs([where], f"tags.`{ID_TAG}` = '{entry.id}'", max_results=1):
            return str(run.info.run_id), False
        tags = {
            ID_TAG: entry.id,
            **{make_valid_name(f"curation.{name}"): value[:MAX_TAG] for name, value in entry.tags.items()},
        }
        return str(self._client.create_run(where, run_name=entry.name, tags=tags).info.run_id), True
