"""Probes that ask a teacher about a random sample of a run's rows, by an actor that the run would start."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from curation.cluster import nodes
from curation.config import ActorsConfig, AskConfig, DecodingConfig, DomainConfig, RowsConfig
from curation.domains import get_domain
from curation.errors import ConfigError
from curation.hashing import derive
from curation.json_types import Json, JsonView
from curation.passes.run import make_dataset
from curation.refs import ModelRef, TrustRef, fingerprint
from curation.registry import BACKENDS
from curation.rundir.graph import Known, Out, Stage, Unknown, get_recorded, resolve_outputs, to_plain_json
from curation.signals import make_asks
from curation.sources import NOTHING, Assignment, SourceFile, make_assignment, read_rows_at
from curation.sources.readers import SampledRow
from curation.stages.asking import AskModel
from curation.stages.label import Label
from curation.stages.label_chunks import LabelJob
from curation.stages.probe import MeasuredCost, Population, probe
from curation.stages.score import ScoredOnly
from curation.stages.signal import MeasureSignal
from curation.stages.split_tables import POOL, make_example_table
from curation.storage.paths import Place
from curation.tables import io
from curation.tables.schemas import FILE_SHIFT
from curation.telemetry.console import say, tell_progress

NOTHING_ASKED = "its labels are columns of the source, and no model is asked"
"""Reason why a stage with a backend that asks no model is in no forecast."""
PROBE_ROWS = 300
"""Default number of rows of a probe. They suffice for the shares of errors and unparsed rows: if none is seen in 300
rows, the share is below 1 % (the default of ``teacher.max_error_rate``) with 95 % confidence."""
NUM_CHUNKS = 16
"""Number of chunks of a probe: the first ones warm the actor up, the others say how fast it is."""


@dataclass(frozen=True, kw_only=True)
class SplitRows:
    """The rows of some splits of one source, in its files."""

    files: Sequence[SourceFile]
    assignment: Assignment
    splits: Collection[str]
    seed: int = 0
    """Seed of the samples."""
    id_column: str | None = None
    """The column with the rows' ids, or None if ids follow from the rows' places."""

    @property
    def num(self) -> int:
        """The number of rows."""
        return sum(self.assignment.counts[name] for name in self.splits)

    def ids(self, drawn: Sequence[SampledRow]) -> list[int]:
        """Return the row ids that the prepare stage gives to these rows."""
        if self.id_column is None:
            return [(row.file << FILE_SHIFT) + row.row for row in drawn]
        return [int(row.raw[self.id_column]) for row in drawn]


@dataclass(frozen=True, kw_only=True)
class StageAsk:
    """The rows about which a stage will ask a teacher, and the settings for asking."""

    stage: str
    rows: int
    """Number of rows that are left to do."""
    drawn_from: SplitRows
    """The population of which the rows are a random part."""
    model: ModelRef | None
    """The model, or None for a teacher without weights."""
    ask: AskConfig
    """Settings for asking, with the chosen backend."""
    engine: AskConfig
    decoding: DecodingConfig
    domain: DomainConfig
    signals: Mapping[str, JsonView] = field(default_factory=dict)
    """Signals that the labelling actors measure in addition to labels, as ``stages.label.Label`` takes them."""
    fitted: Mapping[str, TrustRef] = field(default_factory=dict)
    """Trust functions by which actors score rows, storing only a sample's states; unknown before a run fits them."""
    states_share: float = 1.0
    """The share of rows whose states are stored."""
    seed: int | None = None
    """Seed of sampled answers if the stage will give the sample's rows the same answers, else None."""
    note: str | None = None
    """Difference between the probe's teacher and the stage's, if any."""

    @property
    def question(self) -> str:
        """A fingerprint that is equal for stages that ask the same of their rows; they share one sample."""
        ask = self.ask.model_copy(update=AskConfig.BARE).without({*AskConfig.SPREAD, "decoding"})
        files = [file.path for file in self.drawn_from.files]
        apart = {"shots", "stage", "seed"}
        signals = {name: {key: how[key] for key in how.keys() - apart} for name, how in self.signals.items()}
        parts: Json = {"ask": ask, "model": self.model, "decoding": self.decoding, "domain": self.domain}
        parts |= {"seed": self.seed, "fitted": self.fitted, "files": files, "signals": signals}
        return fingerprint(to_plain_json(parts, {}))


class AskGroup(NamedTuple):
    """The stages that ask the same of their rows, and the measured cost of a row."""

    askings: Sequence[StageAsk]
    measured: MeasuredCost


class LeftOut(NamedTuple):
    """A stage that asks a model and is not in a forecast, with the reason."""

    stage: str
    why: str


def collect_askings(
    stages: Iterable[Stage],
    config: RowsConfig,
    files: Mapping[str, Sequence[SourceFile]],
    known: Known,
    left: Mapping[str, int | None] = NOTHING,
    taken: Mapping[str, int] = NOTHING,
) -> tuple[list[StageAsk], list[LeftOut]]:
    """Return the requests of labelling stages to the run's first teacher, and the stages that are left out.

    ``known`` has the outputs of finished stages, ``left`` the number of rows that each of the others has left to do, by
    default all, and ``taken`` the number of rows of each split that was assigned before the others.
    """
    found: list[StageAsk] = []
    left_out: list[LeftOut] = []
    for stage in stages:
        why = None
        if not isinstance(stage, AskModel):
            continue
        if stage.num_rows is None:
            why = "how many rows it asks about depends on earlier answers"
        elif isinstance(stage, MeasureSignal) and stage.beside_labels:
            if cast(Out, stage.labels).stage.name not in known:
                continue  # the labelling actors measure it, too
            why = "its rows are labelled already, so it asks about them again"
        elif not stage.teacher.asks:
            why = NOTHING_ASKED
        elif not (isinstance(stage, Label) and stage.asks_teacher):
            why = "it asks another model than the first teacher"
        else:
            asking = _make_asking(stage, config, files, known, taken)
            if isinstance(asking, StageAsk):
                rows = left.get(stage.name, stage.num_rows)
                found += [replace(asking, rows=rows)] if rows else []
            else:
                why = asking
        if why is not None:
            left_out.append(LeftOut(stage.name, why))
    return found, left_out


def _make_asking(
    stage: Label, config: RowsConfig, files: Mapping[str, Sequence[SourceFile]], known: Known, taken: Mapping[str, int]
) -> StageAsk | str:
    """Return the request of a labelling stage, or the reason why it cannot be probed yet."""
    examples = cast(Out, stage.examples)
    note = None
    model: Any = stage.teacher.model
    while isinstance(model, Out):  # a model that is not trained yet is asked as its base
        out = model
        try:
            model = out.read(get_recorded(out, known))
        except Unknown:
            note = note or f"the probe asked the teacher's base, since {out.stage.name} is not done"
            model = out.stage.inputs.get("base")
    if model is None and stage.teacher.model is not None:
        return "its teacher does not exist yet; curate run --until makes it"
    try:
        signals = resolve_outputs(stage.signals, known)
    except Unknown as unknown:
        before = unknown.out.stage.name
        return f"its demonstrations depend on {before}; curate run --until {before} does that"
    source = config.splits.named()[examples.path[-1]].source
    teacher = stage.teacher
    is_paid = teacher.is_served and stage.decoding.temperature > 0  # the stage will find these answers
    return StageAsk(
        stage=stage.name,
        rows=stage.num_rows or 0,
        drawn_from=SplitRows(
            files=files[source],
            assignment=make_assignment(config, source, files[source], taken),
            splits=(examples.path[-1],),
            seed=derive(config.seed, f"probe:{source}"),
            id_column=config.sources[source].id_column if is_paid else None,
        ),
        model=model,
        ask=teacher.asked(stage.decoding),
        engine=teacher.started,
        decoding=stage.decoding,
        domain=stage.domain,
        signals=signals,
        states_share=0.0 if stage.fitted else 1.0,
        seed=stage.seed if is_paid else None,
        note=note,
    )


def probe_all(
    askings: Sequence[StageAsk],
    directory: Place,
    *,
    num_rows: int | None = None,
    commit_seconds: float,
    hold_cpus: bool,
) -> list[AskGroup]:
    """Label a sample for each kind of question, all with one actor, which is ended afterwards.

    ``num_rows``: rows per sample, by default a moderate number. Tables are written to ``directory``. Ray must be
    running.

    Raises:
        ConfigError: more rows are asked for than the largest population has.
        RunFailedError: an actor kept dying without completing any work.
    """
    by_question: dict[str, list[StageAsk]] = {}
    for asking in askings:
        by_question.setdefault(asking.question, []).append(asking)
    kinds = []
    for same in by_question.values():
        splits = dict.fromkeys(split for asking in same for split in asking.drawn_from.splits)
        kinds.append((replace(same[0].drawn_from, splits=tuple(splits)), same))
    kinds.sort(key=lambda kind: -kind[0].num)
    largest, _ = kinds[0]
    if num_rows is not None and num_rows > largest.num:
        raise ConfigError(
            f"--probe: {num_rows:,} rows are asked for, and {', '.join(largest.splits)} has {largest.num:,}; "
            "ask for fewer"
        )
    engine = askings[0].engine
    spread = {"min": 1, "initial": 1, "max": 1, "num_cpus": count_actor_cpus(engine)}
    actors = engine.actors.model_copy(update=spread)
    alone = engine.model_copy(update={"actors": actors})
    sample = num_rows or BACKENDS[askings[0].ask.backend].probe_rows or PROBE_ROWS
    found: list[AskGroup] = []
    with closing(make_dataset(alone, hold_cpus=hold_cpus)) as dataset:
        for rows, same in kinds:
            job = _make_job(same, rows, min(sample, rows.num), actors, directory / f"question-{len(found)}")
            left, stages = sum(asking.rows for asking in same), ", ".join(asking.stage for asking in same)
            paid = "; the server is paid for them, and the run finds their answers"
            say(
                f"probe of {stages}: labelling {min(sample, rows.num):,} rows drawn at random"
                f"{paid if same[0].ask.endpoint is not None else ''}"
            )
            population = Population(rows=max(left, 1), is_sampled=left == rows.num)
            measured = probe(job, dataset, population, commit_seconds=commit_seconds, update=tell_progress("probe"))
            found.append(AskGroup(tuple(same), measured))
    return found


def count_actor_cpus(engine: AskConfig) -> float:
    """Return the CPUs that an actor will have."""
    return engine.actors.cpus(engine.backend, [node["Resources"].get("CPU", 0) for node in nodes.list_living()])


def _make_job(
    askings: Sequence[StageAsk], rows: SplitRows, num: int, actors: ActorsConfig, directory: Place
) -> LabelJob:
    """Return the labelling of ``num`` of the ``rows``, with the states that any of the stages keeps."""
    most = max(askings, key=lambda asking: len(asking.ask.states))
    drawn = read_rows_at(rows.files, rows.assignment.draw(rows.splits, num, rows.seed))
    chunk_rows = max(1, min(most.ask.chunk_rows, -(-num // NUM_CHUNKS)))
    examples = make_example_table(get_domain(most.domain), POOL, rows.ids(drawn), [row.raw for row in drawn])
    return LabelJob(
        examples=io.write(examples, str(directory / "examples.lance")),
        labels_uri=str(directory / "labels.lance"),
        domain=most.domain,
        teacher=most.ask.model_copy(update={"chunk_seconds": math.inf, "chunk_rows": chunk_rows, "actors": actors}),
        engine=most.engine.model_copy(update={"actors": actors}),
        model=most.model,
        decoding=most.decoding,
        seed=derive(rows.seed, "answers") if most.seed is None else most.seed,
        reduction=ScoredOnly(fitted=tuple(most.fitted.items()), states=(), num_rows=0, seed=0) if most.fitted else None,
        asks=make_asks(most.signals, directory),
    )
