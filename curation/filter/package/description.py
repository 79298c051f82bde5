"""The description of a trust package. It may be a stranger's, so code that it names is checked before any import."""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, create_model, model_validator

from curation.arms import TRUST, Fitted
from curation.config import AnswersConfig, DecodingConfig, DomainConfig
from curation.config.base import Section, Seed
from curation.config.external import ENDPOINT, ServedConfig
from curation.errors import PackageError
from curation.features import features
from curation.filter.parts import PackagePart
from curation.refs import ModelRef
from curation.registry import BACKENDS, DOMAINS, find_installed, load_code


def _refuse_remote_code(teacher: ModelRef) -> ModelRef:
    if teacher.code is not None:
        raise ValueError("a package allows no code to run; whoever uses it does, by teacher.model.allow_remote_code")
    return teacher


class CalibrationRows(Section):
    """The rows of ``calibration.parquet``."""

    split: str
    """Split of the rows: ``calibration``, drawn from the pool's own distribution, or ``source``, those of its rows with
    held-out scores, which chose a penalty or a step to stop at."""
    num_rows: int
    """Number of graded rows, including unparsed ones, which have no score."""
    num_right: int
    chose: bool = False
    """Whether these rows also took part in choosing the function (a search, or network against probe), so that a cut
    that they certify is a little too optimistic."""


class Sample(Section):
    """The rows of ``shift.safetensors``: labelled rows of the source split, drawn by a hash of the row id."""

    split: str = "source"
    num_rows: int
    states: tuple[str, ...]
    """Hidden states that the trust function reads; empty if it reads none."""
    num_texts: Annotated[int, Field(ge=0)] = 0
    """Number of distinct questions whose hashed words replace states; 0 with states, and in old packages."""


class Question(Section):
    """A stored example with the teacher's prompt and answer, by which a change of the domain's code is detected."""

    example: dict[str, Any]
    prompt: str
    options: tuple[str, ...] | None
    completion: str
    label: str | None


class Made(Section):
    """The run that the package comes from."""

    run: str
    directory: str
    generation: int
    stage: str
    fingerprint: str
    """Fingerprint of that stage's inputs, from the run's manifest."""
    seed: Seed
    command: str


STOP = "do not use"


class RunVerdict(Section):
    """The verdict of the run's report on the rows that the package's trust function chose."""

    level: Literal["use it", "use with care", "do not use"]
    sentence: str
    next: str = ""
    """Next step of the gravest finding; empty without a finding."""


class CoreDescription(Section):
    """The description in ``package.json``, without the parts of features. Unknown keys are refused."""

    teacher: Annotated[ModelRef, AfterValidator(_refuse_remote_code)] | None
    """Model whose labels and states the trust function was fitted on; ``None`` for a backend without weights."""
    teacher_digests: dict[str, str] = Field(default={})
    """``curation.storage.digest.compute_model_digest`` of ``base`` and ``adapter``, if they are folders. A hub id is
    identified by its commit (``teacher.revision``)."""
    state_size: Annotated[int, Field(ge=0, le=1 << 20)]
    ask: AnswersConfig
    """How the teacher is asked, with the states that the trust function reads and with the backend that the run used.
    The user of the package decides where and how it runs."""
    bought: AnswersConfig | None = None
    """How the server is asked whose answers the teacher only reads, or ``None`` if it reads no server's answers."""
    decoding: DecodingConfig
    seed: Seed
    """Seed of sampled completions; with the same row ids, completions are those of the run's pool."""
    domain: DomainConfig
    questions: tuple[Question, ...] = ()
    """A few rows of the run; empty if no row of this domain can be written as JSON."""
    trust: str
    kind: str
    """Kind of the fitted function, which differs from ``trust`` if a search or a small source led to another one."""
    inputs: tuple[str, ...]
    """States and scalar columns that the function reads, in order."""
    fit: dict[str, Any]
    """Summary of the fit (``curation.stages.fit.FitTrust``), with the calibration of trust."""
    calibration: CalibrationRows | None
    """Calibration rows, or ``None`` if the package has none, so that only fresh ones can certify a cut."""
    sample: Sample
    evaluation: tuple[dict[str, Any], ...] = ()
    """Quality of the function, for people, by set of ``rows``: ``validation``, source rows that fitted no weights but
    may have stopped the fit, or ``pool``, graded rows of the run's pool, which no fit has seen. ``num_rows`` have a
    label that could be read; ``purity`` is of the ``num_top`` best. Empty if no report of the run measured this fit."""
    verdict: RunVerdict | None = None
    """Verdict of the run's report, or ``None`` if no report judged rows that this function chose."""
    versions: dict[str, str]
    made: Made
    created: str

    @property
    def served(self) -> ServedConfig | None:
        """The section of the server that answers, or ``None`` if a local model answers."""
        return (self.bought or self.ask).endpoint

    @model_validator(mode="after")
    def _check_bought(self) -> Self:
        if (bought := self.bought) is None:
            return self
        if bought.backend != ENDPOINT or bought.endpoint is None or bought.states:
            raise ValueError(
                "bought: describes how a server is asked, but names another backend, no model, or hidden states"
            )
        if self.teacher is None or not self.ask.reads_given or self.ask.endpoint is not None:
            raise ValueError("ask: has to describe a model that reads the server's answers (bought), and does not")
        return self

    @property
    def parts(self) -> dict[str, PackagePart]:
        """The parts of features that the package has, by name."""
        return {name: part for name in PARTS if (part := getattr(self, name)) is not None}

    @property
    def content(self) -> Mapping[str, Any]:
        """The part of the description that use depends on, without time, place and command of the export."""
        excluded: dict[str, Any] = {"created": True, "versions": True, "teacher": {"code"}}
        excluded |= {name: True for name in (*PARTS, "verdict") if getattr(self, name) is None}
        if not self.sample.num_texts:
            excluded["sample"] = {"num_texts"}
        content = self.model_dump(mode="json", exclude=excluded)
        content["made"] = {key: content["made"][key] for key in ("run", "generation", "stage", "fingerprint", "seed")}
        return content


PARTS: Mapping[str, type[PackagePart]] = {
    name: load_code(feature.package) for name, feature in features().items() if feature.package is not None
}
"""Classes of the parts that a package may have, by name."""
if TYPE_CHECKING:
    Description: TypeAlias = CoreDescription
else:
    _parts = {name: (part | None, None) for name, part in PARTS.items()}
    Description = create_model("Description", __base__=CoreDescription, __module__=__name__, **_parts)


def refuse_code(uri: str, description: object, allowed: Collection[str]) -> None:
    """Refuse a description, as ``package.json`` has it, that names code which is neither registered nor allowed."""
    if not isinstance(description, Mapping):
        return  # which the schema refuses
    domain = description.get("domain")
    names = [*_iter_domains(domain)]
    for key in ("ask", "bought"):
        if isinstance(asked := description.get(key), Mapping):
            names.append((f"{key}.backend", asked.get("backend"), BACKENDS.names))
    names.append(("trust", description.get("trust"), TRUST.names))
    for key, name, registered in names:
        if isinstance(name, str) and name not in registered and name not in allowed:
            raise _make_unknown_error(uri, key, name)
    if (command := _find_command(domain)) is not None:
        raise PackageError(
            f"{uri}: its domain brings a command to check answers, {command!r}, and a package never brings one; "
            "nothing of it was run. Export it again with this version, which leaves it out"
        )


def refuse_maker(uri: str, name: object, allowed: Collection[str]) -> None:
    """Refuse a class, ``module:Class``, unless it makes a registered trust function or is allowed."""
    brought = (TRUST.find(kind) for group in TRUST.groups for kind in find_installed(group))
    known = itertools.chain((TRUST[kind] for kind in TRUST), brought)
    if name not in allowed and not any(isinstance(trust, Fitted) and trust.made_by == name for trust in known):
        raise _make_unknown_error(uri, "made_by", name)


def _iter_domains(value: object) -> Iterator[tuple[str, object, Collection[str]]]:
    """Yield the names of a domain and of the domains that it wraps, such as ``next_token``'s."""
    name = value.get("name") if isinstance(value, Mapping) else value
    yield "domain", name, DOMAINS.names
    if isinstance(value, Mapping):
        yield from _iter_domains(value.get("of"))


def _find_command(domain: object) -> Any:
    """Return the command that a domain, or a domain that it wraps, configures as its check; None without one."""
    parts: Iterable[object] = domain if isinstance(domain, list) else ()
    if isinstance(domain, Mapping):
        check, parts = domain.get("check"), domain.values()
        if isinstance(check, Mapping) and "command" in check:
            return check["command"]
    return next((found for part in parts if (found := _find_command(part)) is not None), None)


def _make_unknown_error(uri: str, key: str, name: object) -> PackageError:
    return PackageError(
        f"{uri}: names {name!r} as {key}, which neither this version nor an installed package registers; nothing of it "
        f"was imported. Install the package that brings it or, if you have read that code, add --allow-code {name}"
    )
