"""A filter as a graph of stages: a pool in rounds, one round for all files that are new at a start.

Each round is read, labelled and scored in one pass, compared with the package's reference, and written; the cut is one
stage over the rounds that were there when it was made. Rounds that come later pass the same cut, so nothing that is
done depends on files that come later. What a stage's key holds is what its rows depend on: the package, not how its
teacher runs or where it lies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from curation.config import DomainConfig
from curation.config.filter import FilterConfig, KeepConfig
from curation.errors import ConfigError
from curation.package import TrustPackage, load
from curation.pipeline.asking import asked
from curation.pipeline.filter.cascade import Settled
from curation.pipeline.filter.writing import ranking, writing
from curation.refs import ModelRef, TableRef, fingerprint
from curation.rundir.graph import Built, Done, Outputs, Stage, ordered
from curation.rundir.run import Task
from curation.sources import SourceFile
from curation.stages.asking import TeacherUse
from curation.stages.cut import Calibration, calibration_digest, decide, read_calibration
from curation.stages.label_pool import LabelPool
from curation.stages.pool import PoolRows, read_pool
from curation.stages.shift import measure_against
from curation.stages.usable import SplitCounts, check_share
from curation.tables import io

CUT = "cut"


@dataclass(frozen=True, kw_only=True)
class Round:
    """The files that were new at one start."""

    name: str
    rows: PoolRows

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """In the order of their numbers."""
        return self.rows.files


class Stages(NamedTuple):
    """The stages of a round."""

    pool: Built
    label: LabelPool
    shift: Built | None
    """None if the trust function reads no hidden state."""
    write: Built


@dataclass(frozen=True, kw_only=True)
class Described:
    """The stages of a filter."""

    rounds: Mapping[str, Stages]
    cut: Built
    rank: Built | None
    """None if the output has no ranks."""

    @property
    def looking(self) -> list[Stage]:
        """The stages up to the shift tests."""
        return ordered(
            [part.value() for stages in self.rounds.values() for part in (stages.label, stages.shift) if part]
        )

    @property
    def all(self) -> list[Stage]:
        """All stages, each after those that it waits for."""
        ranked = [] if self.rank is None else [self.rank]
        return [*self.looking, self.cut, *ranked, *(stages.write for stages in self.rounds.values())]


def describe(
    config: FilterConfig,
    package: TrustPackage,
    teacher: ModelRef | None,
    rounds: Sequence[Round],
    *,
    made: Outputs | None,
    recut: bool,
    first_cut: Settled | None = None,
) -> Described:
    """The stages of a filter over ``rounds``; ``made``: the cut that is recorded, which is kept unless ``recut``.

    With a ``first_cut`` that is on, rows are dropped after their prompt.

    Raises:
        ConfigError: another rule, or other calibration rows, are given than those of the cut that is kept.
    """
    rule = rule_of(config.keep)
    if made is not None and not recut and made["rule"] != rule:
        raise ConfigError(
            f"{config.output_directory}: was cut by {_words(made['rule'])}, and is to be by {_words(rule)}; --recut "
            "cuts and writes all rows again (none is labelled again), or keep the old rule"
        )
    base = [rnd.name for rnd in rounds] if made is None or recut else list(made["rounds"])
    function = package.description.trust
    settings: dict[str, Any] = {"commit_seconds": config.commit_seconds, "fragment_mb": config.fragment_mb}
    ask, gated = config.teacher.asking(package.description.ask), {}
    if first_cut is not None and first_cut.inputs:
        ask, gated = ask.model_copy(update={"states": first_cut.told.states}), first_cut.inputs
    model = asked(teacher, ask, name="backend")
    looked = {rnd.name: _looking(config, package, model, rnd, settings, gated) for rnd in rounds}
    cut = Built(
        name=CUT,
        work=make_cut,
        inputs={
            "tables": [looked[name][1].out("labels") for name in base],
            "rounds": base,
            "rule": rule,
            "package": package.digest,
            "function": function,
            "seed": config.seed,
        },
        settings={"keep": config.keep, **_place_of(package)},
        revision=3,  # its threshold has another name
    )
    rank = (
        ranking(config, function, {name: looked[name][1] for name in base}, base, cut) if config.output.rank else None
    )
    stages = {}
    for rnd in rounds:
        pool, label_stage, shift = looked[rnd.name]
        ranked = rank if rnd.name in base else None
        written = writing(config, function, rnd.name, rnd.rows, pool, label_stage, cut, ranked)
        stages[rnd.name] = Stages(pool, label_stage, shift, written)
    return Described(rounds=stages, cut=cut, rank=rank)


def rule_of(keep: KeepConfig) -> dict[str, Any]:
    """The rule of a cut as JSON, with a digest of fresh calibration rows in place of their path."""
    rule = keep.model_dump(mode="json", exclude_none=True)
    if keep.certified is not None and (path := keep.certified.calibration) is not None:
        rule["certified"]["calibration"] = calibration_digest(path)
    return rule


def _place_of(package: TrustPackage) -> dict[str, Any]:
    """Where a stage reads the package, and the code that it may name."""
    return {"uri": package.uri, "allow_code": package.allow_code}


def _words(rule: Mapping[str, Any]) -> str:
    ((name, value),) = rule.items()
    return f"{name} {value}"


def _looking(
    config: FilterConfig,
    package: TrustPackage,
    model: TeacherUse,
    rnd: Round,
    settings: Mapping[str, Any],
    gated: Mapping[str, Any],
) -> tuple[Built, LabelPool, Built | None]:
    """The stages that read, label and test a round."""
    num_rows, told = rnd.rows.num_rows, package.description
    pool = Built(
        name=f"pool-{rnd.name}",
        work=read,
        inputs={
            "files": [file.to_json() for file in rnd.files],
            "domain": rnd.rows.domain,
            "columns": list(rnd.rows.columns),
        },
        settings={**settings, "max_error_rate": config.pool.max_error_rate},
        num_rows=num_rows,
    )
    labelled = LabelPool(
        name=f"label-{rnd.name}",
        teacher=model,
        decoding=told.decoding,
        examples=pool.table("pool"),
        seed=config.seed,
        num_rows=num_rows,
        package=package.digest,
        **_place_of(package),
        **settings,
        **gated,
    )
    states = told.sample.states
    shift = Built(
        name=f"shift-{rnd.name}",
        work=compare,
        inputs={"labels": labelled.out("labels"), "package": package.digest, "seed": config.seed, **gated},
        settings={**_place_of(package)},
        num_rows=num_rows,
    )
    return pool, labelled, shift if states else None


def read(
    task: Task,
    *,
    files: Sequence[dict[str, Any]],
    domain: DomainConfig,
    columns: Sequence[str],
    commit_seconds: float,
    fragment_mb: int,
    max_error_rate: float,
) -> Done:
    """Read the files of a round, and refuse them where too many rows cannot be used."""
    rows = PoolRows(files=tuple(map(SourceFile.from_json, files)), domain=domain, columns=tuple(columns))
    with task.progress() as update:
        found = read_pool(
            rows,
            str(task.directory / "pool.lance"),
            commit_seconds=commit_seconds,
            fragment_mb=fragment_mb,
            guard=task.guard,
            progress=update,
        )
    check_share("pool", found.table, SplitCounts(rows=found.rows, errors=found.errors), max_error_rate)
    return Done(outputs={"pool": found.table.to_json(), "errors": found.errors}, rows=found.rows)


def compare(
    task: Task,
    *,
    labels: TableRef,
    package: str,
    seed: int,
    uri: str,
    allow_code: Sequence[str],
    first_cut: Mapping[str, float] | None = None,
) -> Done:
    """Compare a round's hidden states with the package's; with a first cut, of rows that pass it, on each side."""
    packaged = load(uri, allow_code=allow_code)
    if first_cut is None:
        shift = measure_against(packaged.reference(), labels, seed=seed)
    else:
        from curation.stages.first_cut import passing

        assert packaged.first is not None, "settle refuses a package without"
        passes, states = passing(packaged.first, first_cut["threshold"]), packaged.description.sample.states
        shift = measure_against(packaged.reference(passes.states), labels, seed=seed, states=states, passes=passes)
    return Done(outputs={"shift": shift}, rows=io.count(labels))


def make_cut(
    task: Task,
    *,
    tables: Sequence[TableRef],
    rounds: Sequence[str],
    rule: Mapping[str, Any],
    package: str,
    function: str,
    seed: int,
    keep: KeepConfig,
    uri: str,
    allow_code: Sequence[str],
) -> Done:
    """Decide which rows pass."""
    rows, floor = None, None
    if keep.certified is not None:
        path = keep.certified.calibration
        rows, floor = (
            Calibration(load(uri, allow_code=allow_code).calibration(), None)
            if path is None
            else read_calibration(path)
        )
    found = decide(tables, function, keep, rows, seed=seed, floor=floor)
    threshold = found.threshold.to_json()
    task.say(f"{keep.words}: rows with a trust of {found.lowest_trust:.4f} and more pass")
    if found.num_short:
        task.say(f"{found.num_short:,} rows fewer than asked for: the first cut left no more with a readable label")
    outputs = {
        "id": fingerprint([threshold, rule])[:8],
        "threshold": threshold,
        "rule": rule,
        "rounds": list(rounds),
        "num_labelled": found.num_labelled,
        "num_dropped": found.num_dropped,
        "num_short": found.num_short,
        "num_scored": found.num_scored,
        "lowest_trust": found.lowest_trust,
        "risk": found.risk,
    }
    return Done(outputs=outputs, rows=found.num_labelled)
