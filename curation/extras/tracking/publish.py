"""Publishing of a finished run to MLflow and Weights & Biases, whose errors are reported and never fail the run."""

import importlib.util
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from curation.errors import ConfigError
from curation.escaping import format_error
from curation.extras.tracking.config import TrackingConfig
from curation.json_types import JsonView
from curation.refs import fingerprint
from curation.storage.paths import Place

SECONDS = 120.0
"""Time limit of a tracker, since some clients retry an unreachable server forever."""
ID_TAG = "curation.id"
NUM_PARAMS, NUM_METRICS = 100, 900
"""Maximum numbers of parameters and metrics per request: MLflow's servers accept 100 parameters, and 1,000 in all."""
MAX_PARAMETER = 500
"""Maximum length of a parameter that MLflow's servers of all versions accept, in characters."""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A finished run as a tracker records it."""

    id: str
    """Digest of the settings and the run directory, so that a repeated command writes the same entry."""
    name: str
    settings: JsonView
    """The nested configuration."""
    numbers: Mapping[str, float]
    """Numbers by name, e.g. ``gen-0/trust/purity``; interval and number of rows end in ``_low``, ``_high``, ``_n``."""
    curves: Mapping[str, Sequence[tuple[int, float]]]
    """Points of each student's training by name, e.g. ``gen-0/trust/training/loss``, in ascending order of steps. A
    step is an optimizer step, or a logging interval if the training method records no steps."""
    tags: Mapping[str, str]
    """The run directory, the domain, and the software versions."""
    files: Mapping[str, str]
    """Texts of the report's files by file name."""


def require(config: TrackingConfig) -> None:
    """Refuse trackers whose packages are not installed."""
    for name in config.given():
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:  # a plain folder, such as the one that W&B creates
            raise ConfigError(
                f'tracking.{name}: the package {name} is not installed; pip install "trust-curation[{name}]", '
                "or leave the key out"
            )


def publish_report(config: TrackingConfig, report: JsonView, directory: Place) -> Iterator[str]:
    """Publish the report of the run in a directory to each tracker; yield a sentence for each tracker that failed."""
    if config.given():
        files = {name: (directory / name).read_text() for name in ("report.html", "report.json")}
        yield from publish(config, make_entry(report, str(directory), files))


def publish(config: TrackingConfig, entry: TrackedRun) -> Iterator[str]:
    """Publish an entry to each tracker; yield a sentence for each that failed, or timed out and is abandoned."""
    for name, project in config.given().items():
        problems: list[str] = []

        def log(name: str = name, project: str = project, problems: list[str] = problems) -> None:
            try:
                TRACKERS[name](project, entry)
            except Exception as error:  # a client of another project, its server, the network: none may cost the run
                problems.append(f"{type(error).__name__}: {format_error(error)}")

        thread = threading.Thread(target=log, daemon=True)
        thread.start()
        thread.join(SECONDS)
        if thread.is_alive():
            problems = [f"no end after {SECONDS:.0f} s"]
        yield from (f"tracking.{name} failed ({problem}); the run is complete without it" for problem in problems[:1])


def make_entry(report: JsonView, directory: str, files: Mapping[str, str]) -> TrackedRun:
    """Return the entry of a run's report (``curation.report.collect``)."""
    return TrackedRun(
        id=fingerprint({"directory": directory, "settings": report["config"]})[:16],
        name=report["name"],
        settings=report["config"],
        numbers=dict(_iter_numbers(report)),
        curves=dict(_iter_curves(report)),
        tags={"run_dir": directory, "domain": report["domain"], **report["versions"]},
        files=files,
    )


def _iter_numbers(report: JsonView) -> Iterator[tuple[str, float]]:
    yield "seconds", sum(stage["seconds"] for stage in report["stages"])
    for generation in report["generations"]:
        at = f"gen-{generation['index']}"
        yield f"{at}/num_pool", generation["num_pool"]
        yield from _iter_estimate(f"{at}/teacher/accuracy", generation["teacher"]["test"])
        yield from _iter_estimate(f"{at}/teacher/pool_accuracy", generation["teacher"]["pool"])
        for arm in generation["arms"]:
            yield f"{at}/{arm['name']}/num_selected", arm["num_selected"]
            yield from _iter_estimate(f"{at}/{arm['name']}/purity", arm["purity"])
        for place, student in _iter_students(generation):
            yield from _iter_estimate(f"{place}/base/accuracy", student["base"])
            for arm in student["arms"]:
                yield from _iter_estimate(f"{place}/{arm['name']}/accuracy", arm["accuracy"])
                if arm["recovery"] is not None:
                    yield f"{place}/{arm['name']}/recovery", arm["recovery"]
        for rows in ("validation", "pool"):
            functions = generation["trust"].get(rows, {}).get("parsed", {}).get("functions", {})
            for function, found in functions.items():
                for number in ("auc", "ece", "brier"):
                    yield from _iter_estimate(f"{at}/trust/{function}/{rows}_{number}", found[number])


def _iter_curves(report: JsonView) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    for generation in report["generations"]:
        trained = {
            f"{place}/{arm}": own for place, of in _iter_students(generation) for arm, own in of["training"].items()
        }
        for place, training in trained.items():
            curves = dict(training["curves"])
            steps = [round(step) for step in curves.pop("step")]
            for name, values in curves.items():
                if points := [(step, value) for step, value in zip(steps, values, strict=True) if value is not None]:
                    yield f"{place}/training/{name}", points


def _iter_students(generation: JsonView) -> Iterator[tuple[str, JsonView]]:
    """Yield each student's place and numbers: first the student that becomes a teacher, then the others."""
    at = f"gen-{generation['index']}"
    yield at, generation
    yield from ((f"{at}/students/{student['name']}", student) for student in generation["students"])


def _iter_estimate(name: str, estimate: JsonView | None) -> Iterator[tuple[str, float]]:
    """Yield an estimate's value, interval and number of rows; nothing if the estimate is undefined."""
    if estimate is not None and estimate["value"] is not None:
        yield name, estimate["value"]
        yield from ((f"{name}_{key}", estimate[key]) for key in ("low", "high", "n") if estimate[key] is not None)


def iter_leaves(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings as pairs of a dotted key and a text."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from iter_leaves(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, str(value)


def log_to_mlflow(project: str, entry: TrackedRun) -> None:
    """Write an entry as a finished run: settings as parameters, curves by step, the report as artifacts."""
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    def clean_name(text: str) -> str:
        return re.sub(r"[^\w.\- :/]", "_", text)  # MLflow takes no other characters

    client = MlflowClient()
    experiment = client.get_experiment_by_name(project)
    where = client.create_experiment(project) if experiment is None else experiment.experiment_id
    before = client.search_runs([where], f"tags.`{ID_TAG}` = '{entry.id}'", max_results=1)
    tags = {clean_name(f"curation.{name}"): value for name, value in entry.tags.items()}
    run = before[0] if before else client.create_run(where, run_name=entry.name, tags={ID_TAG: entry.id, **tags})
    run_id, now = str(run.info.run_id), int(1000 * time.time())

    metrics = [Metric(clean_name(number), float(value), now, 0) for number, value in entry.numbers.items()]
    for curve, points in entry.curves.items():  # MLflow keeps a step that is logged again as another point
        known = {point.step for point in client.get_metric_history(run_id, clean_name(curve))} if before else set()
        metrics += [Metric(clean_name(curve), float(value), now, step) for step, value in points if step not in known]
    params = [Param(clean_name(key), value[:MAX_PARAMETER]) for key, value in iter_leaves(entry.settings)]
    while metrics or params:
        client.log_batch(run_id, metrics=metrics[:NUM_METRICS], params=params[:NUM_PARAMS])
        metrics, params = metrics[NUM_METRICS:], params[NUM_PARAMS:]
    for file, text in entry.files.items():
        client.log_text(run_id, text, file)
    client.set_terminated(run_id)


def log_to_wandb(project: str, entry: TrackedRun) -> None:
    """Write an entry as a finished run: curves as history by step, numbers as summary, the report as artifact."""
    import wandb

    run = wandb.init(
        project=project,
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


TRACKERS: dict[str, Callable[[str, TrackedRun], None]] = {"mlflow": log_to_mlflow, "wandb": log_to_wandb}
"""Functions that write an entry, which replaces the one with the same id, by the tracker's package."""
