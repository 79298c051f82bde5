"""Forecast of a filter's labelling."""

from collections.abc import Sequence

from curation.extras.plan.forecasting import Forecast, count_rows_left, forecast_askings, open_scratch
from curation.filter.opened import OpenedFilter
from curation.filter.package.folder import TrustPackage, copy_package
from curation.hashing import derive
from curation.metrics.shift import MAX_ROWS
from curation.pipeline.probing import NOTHING_ASKED, LeftOut, SplitRows, StageAsk
from curation.pipeline.work import joined
from curation.registry import BACKENDS
from curation.rundir.graph import Known, Stage
from curation.sources import Assignment, Permutation
from curation.stages.split_tables import POOL


def forecast_filter(
    opened: OpenedFilter, stages: Sequence[Stage], known: Known, *, num_rows: int | None
) -> tuple[Forecast | None, Sequence[LeftOut]]:
    """Return a forecast of the labelling stages in ``stages``, for which Ray labels rows, and the stages left out."""
    rounds, config = opened.described.rounds, opened.config
    reads = [of.label for of in rounds.values() if of.buy is not None and of.label in stages]
    left_out = [LeftOut(stage.name, "it reads the answers of a server, by another model") for stage in reads]
    asking = {name: stage for name, of in rounds.items() if (stage := of.buy or of.label) in stages}
    left = {name: rows for name, stage in asking.items() if (rows := count_rows_left(stage, opened.manifest, known))}
    if not left:
        return None, left_out
    description = opened.package.description
    if not BACKENDS[(description.bought or description.ask).backend].asks:
        return None, [LeftOut(asking[name].name, NOTHING_ASKED) for name in left]
    with joined(config.ray, opened.needs), open_scratch(config.output_directory, config.ray) as directory:
        askings = make_askings(opened, left, copy_package(opened.package, directory / "package"))
        return forecast_askings(askings, (), config, directory, num_rows=num_rows), left_out


def make_askings(opened: OpenedFilter, left: dict[str, int], package: TrustPackage) -> list[StageAsk]:
    """Return requests of labelling stages, for rounds with ``left`` rows; one sample is drawn from all their files."""
    description = package.description
    files = [file for rnd in opened.rounds if rnd.name in left for file in rnd.files]
    num = sum(file.num_rows for file in files)
    drawn_from = SplitRows(
        files=files,
        assignment=Assignment(counts={POOL: num}, permutation=Permutation(size=num, seed=0)),
        splits=(POOL,),
        seed=derive(opened.config.seed, "probe"),
    )
    kept = len(description.sample.states) / max(1, len(description.ask.states))
    askings = []
    for rnd in opened.rounds:
        if rnd.name not in left:
            continue
        stages = opened.described.rounds[rnd.name]
        stage = stages.buy or stages.label
        teacher = stage.teacher
        asking = StageAsk(
            stage=stage.name,
            rows=left[rnd.name],
            drawn_from=drawn_from,
            model=teacher.model,
            ask=teacher.asked(description.decoding),
            engine=teacher.started,
            decoding=description.decoding,
            domain=description.domain,
            seed=opened.config.seed,
            fitted={} if stages.buy is not None else {description.trust: package.trust},
            states_share=kept * min(1.0, MAX_ROWS / rnd.num_rows),
            note=opened.gate.note,
        )
        askings.append(asking)
    return askings
