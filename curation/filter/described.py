"""A filter as a graph of stages: a pool in rounds, one round for all files that are new at a start.

Each round is read, labelled and scored in one pass, compared with the package's reference, and written; the cut is one
stage over the rounds that existed when it was made. Later rounds use the same cut, so finished work does not depend on
files that are added later. A stage's cache key has what its rows depend on: the package, but not how its teacher runs
or where the package is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curation.config.filter import FilterConfig, KeepConfig
from curation.errors import ConfigError
from curation.filter.extending import FilterGate
from curation.filter.package.folder import TrustPackage
from curation.filter.stages.certifying import compute_calibration_digest
from curation.filter.stages.cut import MakeCut
from curation.filter.stages.kept_shift import MeasureKept
from curation.filter.stages.packaged import PackagedTeacher
from curation.filter.stages.pool import PoolRows, ReadPool
from curation.filter.stages.pool_shift import MeasurePoolShift
from curation.filter.stages.ranking import Rank
from curation.filter.stages.write import Write
from curation.json_types import Json
from curation.metrics.shift import MAX_ROWS
from curation.pipeline.roles import describe_teacher_use
from curation.refs import ModelRef
from curation.rundir.graph import Out, Outputs, Stage, order_stages
from curation.stages.asking import TeacherUse
from curation.stages.label import Label
from curation.stages.read import Read
from curation.storage.paths import Place

CUT = "cut"


@dataclass(frozen=True, kw_only=True)
class Round(PoolRows):
    """A round of a filter: the files that were new at one start."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Looking:
    """The stages of a round that read and label it."""

    pool: ReadPool
    buy: Label | None
    """Stage that gets a server's answers, which the package's teacher reads; None if the teacher answers itself."""
    label: Label | Read


@dataclass(frozen=True, kw_only=True)
class Stages(Looking):
    """All stages of a round: those that read and label it, both shift tests, and the one that writes its rows."""

    shift: MeasurePoolShift | None
    """Shift test of all rows, or None if the package has nothing to compare a pool with."""
    kept: MeasureKept
    """Shift test of the rows that pass the cut."""
    write: Write


@dataclass(frozen=True, kw_only=True)
class Described:
    """The stages of a filter."""

    rounds: Mapping[str, Stages]
    cut: MakeCut
    rank: Rank | None
    """Stage that ranks the rows, or None if the output has no ranks."""

    @property
    def looking(self) -> list[Stage]:
        """The stages up to the shift tests of all rows."""
        looks = (part for stages in self.rounds.values() for part in (stages.label, stages.shift) if part)
        return order_stages([part.value() for part in looks])

    @property
    def cutting(self) -> list[Stage]:
        """The stages up to the shift tests of the rows that pass, after which nothing is written yet."""
        return [*self.looking, self.cut, *(stages.kept for stages in self.rounds.values())]

    @property
    def all(self) -> list[Stage]:
        """All stages, each after those on which it depends."""
        return [*self.cutting, *([self.rank] if self.rank else []), *(stages.write for stages in self.rounds.values())]


def describe(
    config: FilterConfig,
    package: TrustPackage,
    teacher: ModelRef | None,
    rounds: Sequence[Round],
    *,
    made: Outputs | None,
    recut: bool,
    gate: FilterGate,
) -> Described:
    """Return the stages of a filter over ``rounds``; ``made`` is the recorded cut, which is kept unless ``recut``.

    Raises:
        ConfigError: the cut is kept, but was made by another rule or other calibration rows.
    """
    rule, package = make_rule_json(config.keep), package.at(get_package_place(config))
    if made is not None and not recut and made["rule"] != rule:
        raise ConfigError(
            f"{config.output_directory}: was cut by {_format_rule(made['rule'])}, and is to be by "
            f"{_format_rule(rule)}; --recut cuts and writes all rows again (none is labelled again), or keep the old "
            "rule"
        )
    base = [rnd.name for rnd in rounds] if made is None or recut else list(made["rounds"])
    function = package.description.trust
    settings: dict[str, Any] = {"commit_seconds": config.commit_seconds, "fragment_mb": config.fragment_mb}
    ask = config.teacher.asking(package.description.ask).paid_in(str(config.directory))
    if gate.rule is not None:
        ask = ask.model_copy(update={"states": gate.states})
    model = PackagedTeacher(**vars(describe_teacher_use(teacher, ask, name="backend")), package=package.digest)
    server = None
    if (bought := package.description.bought) is not None:
        buying = config.teacher.buying(bought).paid_in(str(config.directory))
        server = describe_teacher_use(None, buying, name="backend-server")
    looked = {rnd.name: _describe_looking(config, package, model, server, rnd, settings, gate) for rnd in rounds}
    labels = {name: looked[name].label.out("labels") for name in base}
    packaged: Json = {"package": package.digest, "uri": package.uri, "allow_code": package.allow_code}
    cut = MakeCut(name=CUT, tables=labels, rule=rule, function=function, seed=config.seed, keep=config.keep, **packaged)
    rank = None
    if config.output.rank:
        rank = Rank(name="rank", tables=labels, threshold=cut.out("threshold"), function=function, seed=config.seed)
    stages = {}
    for place, rnd in enumerate(rounds):
        together = {name: looked[name] for name in choose_pooled(rounds[: place + 1])}
        write = _describe_writing(config, function, rnd, looked[rnd.name], cut, rank if rnd.name in base else None)
        common: Json = {"seed": config.seed, "num_rows": rnd.num_rows, "gate": gate.rule, **packaged}
        kept = MeasureKept(
            name=f"kept-{rnd.name}",
            tables={name: of.label.out("labels") for name, of in together.items()},
            threshold=cut.out("threshold"),
            function=function,
            **common,
        )
        shift = _describe_comparison(package, together, rnd, common)
        stages[rnd.name] = Stages(**vars(looked[rnd.name]), shift=shift, kept=kept, write=write)
    return Described(rounds=stages, cut=cut, rank=rank)


def choose_pooled(rounds: Sequence[Round]) -> list[str]:
    """Return the names of the newest rounds with at most ``MAX_ROWS`` rows in total, at least one round, newest last.

    These rounds are tested together, so that small rounds add up.
    """
    names: list[str] = []
    num_rows = 0
    for rnd in reversed(rounds):
        if names and num_rows + rnd.num_rows > MAX_ROWS:
            break
        names.append(rnd.name)
        num_rows += rnd.num_rows
    return names[::-1]


def make_rule_json(keep: KeepConfig) -> dict[str, Any]:
    """Return the rule of a cut as JSON, with a digest of fresh calibration rows in place of their path."""
    rule = keep.model_dump(mode="json", exclude_none=True)
    if keep.certified is not None and (path := keep.certified.calibration) is not None:
        rule["certified"]["calibration"] = compute_calibration_digest(path)
    return rule


def get_package_place(config: FilterConfig) -> Place:
    """Return the place of the package's copy that the stages read, which is made before the first stage starts."""
    return config.directory / "package"


def _format_rule(rule: Mapping[str, object]) -> str:
    ((name, value),) = rule.items()
    return f"{name} {value}"


def _describe_looking(
    config: FilterConfig,
    package: TrustPackage,
    model: TeacherUse,
    server: TeacherUse | None,
    rnd: Round,
    settings: Mapping[str, Any],
    gate: FilterGate,
) -> Looking:
    """Return the stages that read and label a round; ``server`` is the teacher whose answers the model reads."""
    num_rows, description = rnd.num_rows, package.description
    pool = ReadPool(
        name=f"pool-{rnd.name}",
        files=[file.to_json() for file in rnd.files],
        contents=[file.content for file in rnd.files],
        domain=rnd.domain,
        columns=list(rnd.columns),
        max_error_rate=config.pool.max_error_rate,
        num_rows=num_rows,
        **settings,
    )
    common: dict[str, Any] = {
        "domain": description.domain,
        "decoding": description.decoding,
        "examples": pool.out("pool"),
        "num_rows": num_rows,
        **settings,
    }
    states = [*description.sample.states, *gate.inputs]
    reading: dict[str, Any] = {
        "name": f"label-{rnd.name}",
        "teacher": model,
        "fitted": {description.trust: package.trust},
        "sample": {"states": list(dict.fromkeys(states)), "seed": config.seed},
        "needs": [model.backend] if isinstance(model.backend, Out) else [],
    }
    if server is None:
        label = Label(seed=config.seed, gate=gate.rule, **common, **reading)
        return Looking(pool=pool, buy=None, label=label)
    served = description.served
    assert served is not None, "the package names whose answers it reads"
    buy = Label(name=f"buy-{rnd.name}", teacher=server, seed=config.seed, **common)
    read = Read(answers=buy.out("labels"), reads_numbers=not served.top_logprobs, **common, **reading)
    return Looking(pool=pool, buy=buy, label=read)


def _describe_comparison(
    package: TrustPackage, together: Mapping[str, Looking], rnd: Round, common: Json
) -> MeasurePoolShift | None:
    """Return the stage that compares a round with the package; ``together`` has the rounds to pool, by name."""
    sample = package.description.sample
    if not sample.states and not sample.num_texts:
        return None
    labels = {rnd.name: together[rnd.name].label.out("labels")}
    return MeasurePoolShift(
        name=f"shift-{rnd.name}",
        tables=labels if sample.states else {name: of.pool.out("pool") for name, of in together.items()},
        **common,
    )


def _describe_writing(
    config: FilterConfig, function: str, rnd: Round, looked: Looking, cut: MakeCut, rank: Rank | None
) -> Write:
    """Return the stage that writes a round; ``rank`` is the stage that ranks its rows, None if they have no ranks."""
    output = config.output
    return Write(
        name=f"write-{rnd.name}",
        labels=looked.label.out("labels"),
        examples=looked.pool.out("pool"),
        threshold=cut.out("threshold"),
        cut=cut.out("id"),
        form=output.format,
        rows_per_file=output.rows_per_file,
        partition_by=list(output.partition_by),
        with_rank=output.rank,
        ranks=None if rank is None else rank.out("ranks"),
        first_rank=0 if rank is None else rank.out("starts", rnd.name),
        rows=rnd,
        function=function,
        output=str(config.output_directory / "data"),
        commit_seconds=config.commit_seconds,
    )
