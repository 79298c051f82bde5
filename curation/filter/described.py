"""A filter as a graph of stages: a pool in rounds, one round for all files that are new at a start.

Each round is read, labelled and scored in one pass, compared with the package's rows, and written. The cut is one
stage over the rounds that existed when it was made, and later rounds use it, so finished work does not depend on files
that are added later. A cache key has the package, but not how its teacher runs or where the package is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curation.config.filter import FilterConfig
from curation.errors import ConfigError
from curation.features import parts
from curation.filter.package.folder import TrustPackage
from curation.filter.stages.cut import MakeCut, compute_calibration_digest
from curation.filter.stages.pool import PoolRows, ReadPool, Write
from curation.filter.stages.pool_shift import ComparePool
from curation.json_types import Json, JsonView
from curation.pipeline.roles import describe_teacher_use
from curation.refs import ModelRef
from curation.rundir.graph import Outputs, Stage, order_stages
from curation.stages.asking import GateRule, TeacherUse
from curation.stages.label import Label, Read
from curation.storage.paths import Place

CUT = "cut"


class PackagedTeacher(TeacherUse):
    """The teacher of a package; in cache keys, the package's digest stands for the model and how it is asked."""

    package: str

    @property
    def inputs(self) -> Json:
        """The inputs on which the teacher's answers depend, without its place and how it runs."""
        return {"package": self.package, "backend": self.ask.backend}


@dataclass(frozen=True, kw_only=True)
class Stages:
    """All stages of a round: those that read and label it, the shift test, and the one that writes its rows."""

    pool: ReadPool
    buy: Label | None
    """Stage that gets a server's answers, which the package's teacher reads; None if the teacher answers itself."""
    label: Label | Read
    shift: ComparePool | None
    """Shift test, or None if the package has nothing to compare a pool with."""
    write: Write


@dataclass(frozen=True, kw_only=True)
class Described:
    """The stages of a filter."""

    rounds: Mapping[str, Stages]
    cut: MakeCut

    @property
    def before_writing(self) -> list[Stage]:
        """The stages up to the cut and the shift tests."""
        tests = [stages.shift.value() for stages in self.rounds.values() if stages.shift is not None]
        return order_stages([self.cut.value(), *(stages.label.value() for stages in self.rounds.values()), *tests])


@dataclass(frozen=True, kw_only=True)
class FilterInputs:
    """The inputs from which a feature settles its gate of a filter."""

    section: Any
    config: FilterConfig
    package: TrustPackage
    rounds: Mapping[str, int]
    cut_rounds: Sequence[str] | None
    """The rounds from which the recorded cut was made; None if a cut is to be made."""
    labelled: JsonView
    """The recorded inputs of the stage that labelled the first round; empty before there are labels."""


@dataclass(frozen=True, kw_only=True)
class FilterGate:
    """A gate before the labels of a filter, which is off by default."""

    rule: GateRule | None = None
    """The rule of the stages that label and compare, or None if the gate is off."""
    inputs: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    """States that the teacher keeps for the rule and the package's function."""
    words: tuple[str, ...] = ()
    """Lines for the terminal, also if the gate is off."""
    note: str | None = None
    """Effect of the gate in words, for a forecast, whose probe ignores the gate."""
    collect: Callable[[Sequence[JsonView], bool], Json] = lambda counts, of_all: {}
    """A function from the counts of labels to entries of ``filter.json``: for all rounds, or else for one."""


def settle_gate(**inputs: Any) -> FilterGate:
    """Return the gate of a filter's features; ``inputs`` are the fields of :class:`FilterInputs` but ``section``."""
    found = {name: (settle, section) for name, settle, section in parts(inputs["config"], "gate")}
    if len(found) > 1:
        raise ConfigError(f"{' and '.join(found)}: each drops rows before they are labelled; give one of them")
    gates = (settle(FilterInputs(section=section, **inputs)) for settle, section in found.values())
    return next(gates, FilterGate())


def describe(
    config: FilterConfig,
    package: TrustPackage,
    teacher: ModelRef | None,
    rounds: Sequence[PoolRows],
    *,
    made: Outputs | None,
    recut: bool,
    gate: FilterGate,
) -> Described:
    """Return the stages of a filter over ``rounds``; the recorded cut, ``made``, and its rule stay unless ``recut``."""
    rule, package = config.keep.model_dump(mode="json", exclude_none=True), package.at(get_package_place(config))
    if config.keep.certified is not None and (path := config.keep.certified.calibration) is not None:
        rule["certified"]["calibration"] = compute_calibration_digest(path)
    if made is not None and not recut and made["rule"] != rule:
        was, now = (f"{name} {value}" for of in (made["rule"], rule) for name, value in of.items())
        raise ConfigError(
            f"{config.output_directory}: was cut by {was}, and is to be by {now}; --recut cuts and writes all rows "
            "again (none is labelled again), or keep the old rule"
        )
    fitted, sample, paid = package.description, package.description.sample, str(config.directory)
    ask, server = config.teacher.asking(fitted.ask).paid_in(paid), None
    if gate.rule is not None:
        ask = ask.model_copy(update={"states": gate.states})
    model = PackagedTeacher(**vars(describe_teacher_use(teacher, ask)), package=package.digest)
    if fitted.bought is not None:
        server = describe_teacher_use(None, config.teacher.buying(fitted.bought).paid_in(paid))
    labelling = {rnd.name: _describe_labelling(config, package, rnd, gate, model, server) for rnd in rounds}
    labels = {name: label.out("labels") for name, (_, _, label) in labelling.items()}
    packaged: Json = {"package": package.digest, "uri": package.uri, "allow_code": package.allow_code}
    packaged["seed"] = config.seed
    cut = MakeCut(
        name=CUT,
        tables={name: labels[name] for name in (labels if made is None or recut else made["rounds"])},
        rule=rule,
        keep=config.keep,
        function=fitted.trust,
        **packaged,
    )
    described = {}
    for rnd in rounds:
        pool, buy, label = labelling[rnd.name]
        shift = None
        if sample.states or sample.num_texts:
            shift = ComparePool(
                name=f"shift-{rnd.name}",
                labels=labels[rnd.name],
                examples=pool.out("pool"),
                threshold=cut.out("threshold"),
                function=fitted.trust,
                num_rows=rnd.num_rows,
                gate=gate.rule,
                **packaged,
            )
        write = Write(
            name=f"write-{rnd.name}",
            labels=labels[rnd.name],
            examples=pool.out("pool"),
            threshold=cut.out("threshold"),
            form=config.output.format,
            rows=rnd,
            function=fitted.trust,
            output=str(config.output_directory / "data"),
        )
        described[rnd.name] = Stages(pool=pool, buy=buy, label=label, shift=shift, write=write)
    return Described(rounds=described, cut=cut)


def get_package_place(config: FilterConfig) -> Place:
    """Return the place of the package's copy that the stages read, which is made before the first stage starts."""
    return config.directory / "package"


def _describe_labelling(
    config: FilterConfig,
    package: TrustPackage,
    rnd: PoolRows,
    gate: FilterGate,
    model: PackagedTeacher,
    server: TeacherUse | None,
) -> tuple[ReadPool, Label | None, Label | Read]:
    """Return the stages that read a round, get a server's answers if the teacher reads such, and label the round."""
    fitted = package.description
    committing: Json = {"commit_seconds": config.commit_seconds, "fragment_mb": config.fragment_mb}
    pool = ReadPool(
        name=f"pool-{rnd.name}",
        files=[file.to_json() for file in rnd.files],
        contents=[file.content for file in rnd.files],
        domain=rnd.domain,
        columns=list(rnd.columns),
        max_error_rate=config.pool.max_error_rate,
        num_rows=rnd.num_rows,
        **committing,
    )
    asking: dict[str, Any] = {"domain": fitted.domain, "decoding": fitted.decoding, "examples": pool.out("pool")}
    asking |= {"num_rows": rnd.num_rows, **committing}
    reading: dict[str, Any] = {
        "name": f"label-{rnd.name}",
        "teacher": model,
        "fitted": {fitted.trust: package.trust},
        "sample": {"states": list(dict.fromkeys([*fitted.sample.states, *gate.inputs])), "seed": config.seed},
        **asking,
    }
    if server is None:
        return pool, None, Label(seed=config.seed, gate=gate.rule, **reading)
    buy = Label(name=f"buy-{rnd.name}", teacher=server, seed=config.seed, **asking)
    assert fitted.served is not None, "the package names whose answers it reads"
    return pool, buy, Read(answers=buy.out("labels"), reads_numbers=not fitted.served.top_logprobs, **reading)
