"""The forecast of a run, from the stages that are left to do and a probe of its teacher."""

import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from curation.cluster import capacity
from curation.config import RayConfig, RunConfig
from curation.config.filter import FilterConfig
from curation.domains import get_domain
from curation.pipeline.forecasting import Forecast, Workforce, forecast_questions
from curation.pipeline.opened import OpenedRun
from curation.pipeline.probing import LeftOut, SplitRows, StageAsk, collect_askings, count_actor_cpus, probe_all
from curation.pipeline.session import joined
from curation.pipeline.stage_times import count_committed
from curation.refs import TableRef
from curation.rundir.graph import Known, Out, Stage, Unknown, get_recorded
from curation.sources import make_assignment
from curation.stages.deal import make_example_table
from curation.storage.paths import Place, Remote, remove, to_place
from curation.tables import io


def forecast_run(
    opened: OpenedRun, stages: Sequence[Stage], known: Known, *, num_rows: int | None
) -> tuple[Forecast | None, Sequence[LeftOut]]:
    """Return a forecast of the ``stages`` that ask the run's first teacher, if any, and the stages it leaves out.

    Ray is started or joined, and rows are labelled (see :func:`curation.pipeline.probing.probe_all`); the run
    directory is left as it is.
    """
    config, files = opened.config, opened.manifest.source_files
    done = partial(count_committed, opened.manifest, known=known)
    taken = opened.deals.taken(files)
    askings, left_out = collect_askings(stages, config, files, known, done, taken)
    if not askings:
        return None, left_out

    def find_shots(out: Out) -> TableRef:
        """Return the table of demonstrations, or make one of the same rows if it is not prepared."""
        try:
            table: TableRef = out.read(get_recorded(out, known))
            return table
        except Unknown:
            name = out.path[-1]
        source = config.splits.named()[name].source
        rows = SplitRows(
            files=files[source], assignment=make_assignment(config, source, files[source], taken), splits=(name,)
        )
        domain = get_domain(config.domain_of(name))
        raw = [row.raw for row in rows.draw(rows.num)]
        examples = make_example_table(domain, name, list(range(len(raw))), raw)
        return io.write(examples, str(directory / f"{name}.lance"))

    asked = [need for need in capacity.list_needs(config) if need.key.startswith("teacher.actors")]
    with joined(config.ray, asked), scratch(config.directory, config.ray) as directory:
        forecast = forecast_askings(askings, left_out, config, directory, num_rows=num_rows, shots=find_shots)
    return forecast, left_out


def forecast_askings(
    askings: Sequence[StageAsk],
    left_out: Sequence[LeftOut],
    config: RunConfig | FilterConfig,
    directory: Place,
    *,
    num_rows: int | None,
    shots: Callable[[Out], TableRef] | None = None,
) -> Forecast:
    """Return a forecast for ``askings``; samples are labelled in ``directory`` (:func:`scratch`). Ray must run."""
    questions = probe_all(
        askings,
        directory,
        num_rows=num_rows,
        commit_seconds=config.commit_seconds,
        hold_cpus=not capacity.is_one_machine(config.ray),
        shots=shots,
    )
    engine = askings[0].engine
    each = {**engine.actors.each, "CPU": count_actor_cpus(engine)}
    room = engine.actors.max
    if not capacity.can_autoscale():
        room = min(room, max(1, capacity.count_fitting(each)))
    return forecast_questions(
        questions,
        left_out,
        Workforce(actors=room, each=each, per_node=capacity.count_fitting_on_one(each)),
        config.prices,
        commit_seconds=config.commit_seconds,
        fragment_mb=config.fragment_mb,
        has_requests=isinstance(config.directory, Remote),
    )


@contextmanager
def scratch(run_directory: Place, settings: RayConfig) -> Iterator[Place]:
    """Yield a temporary folder that every actor can reach: beside the run directory, or local on one machine."""
    if isinstance(run_directory, Path) and capacity.is_one_machine(settings):
        with tempfile.TemporaryDirectory(prefix="curate-probe-") as local:
            yield to_place(local)
        return
    directory = run_directory.with_name(f"{run_directory.name}.probe-{uuid.uuid4().hex[:8]}")
    try:
        yield directory
    finally:
        remove(directory)
