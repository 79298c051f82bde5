"""The description of a trust package: teacher, how it is asked, domain, trust function, its quality, its origin."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from curation.config import AnswersConfig, DecodingConfig, DomainConfig
from curation.config.base import Section, Seed
from curation.config.endpoint import ENDPOINT, ServedConfig
from curation.refs import ModelRef


def _without_code(teacher: ModelRef) -> ModelRef:
    if teacher.code is not None:
        raise ValueError("a package allows no code to run; whoever uses it does, by teacher.model.allow_remote_code")
    return teacher


class Interval(Section):
    """A number with its 95 % interval and number of rows; ``None`` where it is not defined."""

    value: float | None
    low: float | None
    high: float | None
    n: int


class Measured(Section):
    """How well the trust function tells right labels from wrong on one set of rows (``curation.report.trusted``)."""

    rows: str
    """``validation``: source rows that are held out of the fit's weights, by which it may have been stopped. ``pool``:
    graded rows of the run's pool, which no fit has seen."""
    num_rows: int
    """Rows with a label that could be read; only these can be selected."""
    share_right: Interval | None
    auc: Interval | None
    ece: Interval | None
    brier: Interval | None
    num_top: int
    purity: Interval | None
    """The share of right labels among the ``num_top`` rows with the highest score."""


class CalibrationRows(Section):
    """The rows of ``calibration.parquet``."""

    split: str
    """``calibration``: the run's split of that name, drawn from the pool's own distribution. ``source``: the rows
    of the source split with held-out scores, which chose a penalty or a step to stop at."""
    num_rows: int
    """Graded rows, unparsed ones too: those have no score."""
    num_right: int
    chose: bool = False
    """These rows also took part in choosing the function (a search, or network against probe): a cut that is certified
    by them is a little too optimistic."""


class Sample(Section):
    """The rows of ``shift.safetensors``: labelled rows of the source split, drawn by a hash of the row id."""

    split: str = "source"
    num_rows: int
    states: tuple[str, ...]
    """None where the trust function reads no hidden state."""
    num_texts: Annotated[int, Field(ge=0)] = 0
    """Different questions whose hashed words the file holds in place of states; 0 with states, and in old packages."""


class Cascade(Section):
    """A first trust function, which scores prompts alone, and the first cut by it (``curation.selection.cascade``)."""

    inputs: tuple[str, ...]
    """The states that it reads, in order; all are of the last prompt token."""
    states: tuple[str, ...]
    """States that the teacher keeps where it and the package's own function are used, in the order of the run."""
    keep: float
    """The share of the rows that it was fitted to find."""
    split: str
    """The part of each row of ``cascade.parquet``, as in :class:`CalibrationRows`."""
    num_rows: int
    """These are labelled rows on which neither function was fitted."""
    cut: dict[str, Any]
    """The first cut for a filter that keeps the share ``keep`` (``FirstCut.to_json``)."""
    words: str
    """The same in a sentence."""

    @property
    def loss(self) -> float:
        """The largest share of the selected rows that its cut may lose."""
        return float(self.cut["loss"])

    @property
    def confidence(self) -> float:
        """With which that holds."""
        return float(self.cut["confidence"])


class Question(Section):
    """A stored example with what the teacher was asked and what it said, so that another version is noticed."""

    example: dict[str, Any]
    """The domain's own columns."""
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
    """The stage that fitted the trust function."""
    fingerprint: str
    """Fingerprint of that stage's inputs, as the run's manifest has it."""
    seed: Seed
    command: str
    """The command that wrote the package."""


STOP = "do not use"


class RunVerdict(Section):
    """The verdict of the run's report on the rows that the package's trust function chose."""

    level: Literal["use it", "use with care", "do not use"]
    """The level of ``curation.report.verdict``."""
    sentence: str
    next: str = ""
    """The next step that the gravest finding names; empty without a finding."""


class Description(Section):
    """The content of ``package.json`` but for the digests. Unknown keys are refused."""

    teacher: Annotated[ModelRef, AfterValidator(_without_code)] | None
    """The model whose labels and states the trust function was fitted on; ``None`` for a backend without weights."""
    teacher_digests: dict[str, str] = Field(default={})
    """``curation.storage.digest.compute_model_digest`` of ``base`` and ``adapter``, of those that are folders. A hub
    id is known by its commit (``teacher.revision``)."""
    state_size: Annotated[int, Field(ge=0, le=1 << 20)]
    """Numbers of one hidden state."""
    ask: AnswersConfig
    """How the teacher is asked, with the states that the trust function reads and with the backend that the run used.
    Where and how it runs is for the user of the package to say."""
    bought: AnswersConfig | None = None
    """How the server is asked whose answers the teacher only reads; ``None``: it reads none of a server."""
    decoding: DecodingConfig
    seed: Seed
    """Seed of sampled completions: with the same row ids they are those of the run's pool."""
    domain: DomainConfig
    questions: tuple[Question, ...] = ()
    """A few rows of the run; empty where no row of this domain can be written as JSON."""
    trust: str
    """The trust function that was asked for, a name of ``curation.arms.TRUST``."""
    kind: str
    """The kind that was fitted. It differs from ``trust`` if a search or a small source led to another one."""
    inputs: tuple[str, ...]
    """The states and scalar columns that it reads, in order."""
    fit: dict[str, Any]
    """How the fit went (``curation.stages.fit.describe_fit``), with the calibration of trust."""
    calibration: CalibrationRows | None
    """``None``: the package holds no calibration rows, so that no cut can be certified without fresh ones."""
    sample: Sample
    cascade: Cascade | None = None
    """``None``: the package holds no first cut."""
    evaluation: tuple[Measured, ...] = ()
    """Empty where no report of the run told of this fit."""
    verdict: RunVerdict | None = None
    """``None`` where no report of the run judged rows that this function chose."""
    versions: dict[str, str]
    """Versions of the packages that wrote it."""
    made: Made
    created: str
    """ISO time, UTC."""

    @property
    def served(self) -> ServedConfig | None:
        """The section of the server that answers; ``None`` if a model here answers."""
        return (self.bought or self.ask).endpoint

    @model_validator(mode="after")
    def _reads_what_is_bought(self) -> Self:
        if (bought := self.bought) is None:
            return self
        if bought.backend != ENDPOINT or bought.endpoint is None or bought.states:
            raise ValueError("bought: is how a server is asked, and names another backend, no model, or hidden states")
        if self.teacher is None or not self.ask.reads_given or self.ask.endpoint is not None:
            raise ValueError("ask: is how a model reads a server's answers (bought), and it does not read, or is none")
        return self

    @property
    def content(self) -> Mapping[str, Any]:
        """The part of the package that its use depends on: all but when, where and by which command it was written."""
        excluded: dict[str, Any] = {"created": True, "versions": True, "teacher": {"code"}}
        if self.cascade is None:
            excluded["cascade"] = True
        if self.verdict is None:
            excluded["verdict"] = True
        if not self.sample.num_texts:
            excluded["sample"] = {"num_texts"}
        content = self.model_dump(mode="json", exclude=excluded)
        content["made"] = {key: content["made"][key] for key in ("run", "generation", "stage", "fingerprint", "seed")}
        return content
