"""The inputs of a run: the domain, the sources and the splits drawn from them.

Each domain's class has defaults of its own for the sections ``teacher``, ``evaluation`` and ``trust``: decoding, test
runs, the trust function's preset. The paper's values are in its App. "Training Details", "Evaluation Details", and the
table of NTF architectures.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from curation.config.base import Location, PositiveInt, Root, Section, Seed, Share
from curation.config.external import GivenConfig
from curation.config.files import BESIDE, FileText
from curation.json_types import Json, JsonView
from curation.label_columns import DOMAIN_NUMBERS
from curation.registry import DOMAINS, load_code

COMMA = ","
"""The default delimiter of CSV files, which as a default is in no cache key."""
CHECK_LIMITS = ("seconds", "batch_rows", "memory_mb", "processes", "sandbox")
"""Options that limit a checking command; verdicts on a program within the limits do not depend on them."""

Defaults = Mapping[str, JsonView]
"""Defaults that depend on the domain, by section and key."""
_DEFAULTS = TypeAdapter(dict[Literal["teacher", "evaluation", "trust"], dict[str, Any]])
Answering = Literal["by_row", "scored", "listed", "written", "reasoned"]
"""How the rows of a domain are answered.

``scored``: the likeliest of the options; ``listed``: written, and all possible answers are known (legal moves);
``written``: freely; ``reasoned``: in several lines of reasoning that end with the label; ``by_row``: known only when
the domain's method ``options`` has seen the row.
"""


class DomainTraits(NamedTuple):
    """Traits of a domain's class that a configuration uses before any row is read."""

    defaults: Defaults = MappingProxyType({})
    """Defaults of the domain; a section's own defaults apply to keys without one."""
    answering: Answering = "by_row"
    numbers: tuple[str, ...] = ()
    """Numbers that labels have beside those of all domains (``curation.label_columns.DOMAIN_NUMBERS``)."""
    once: JsonView = MappingProxyType({})
    """Options with which each row is asked once, as in tests."""
    needs: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Capabilities that a run must have (``curation.config.limits.CAPABILITIES``), by the option that needs them."""

    @property
    def reasons(self) -> bool:
        """Whether answers are several lines of reasoning that end with the label."""
        return self.answering == "reasoned"

    @property
    def generates(self) -> bool:
        """Whether a model writes the answers itself, as far as is known before a row is read."""
        return self.answering in ("listed", "written", "reasoned")

    @property
    def lists_answers(self) -> bool:
        """Whether the possible answers of a row may be listed (``curation.domains.Domain.candidates``)."""
        return self.answering in ("by_row", "scored", "listed")


def make_greedy_defaults(max_tokens: int, preset: str, *, stop: tuple[str, ...] = ()) -> Defaults:
    """Return defaults of a domain whose answers and tests are decoded greedily, once."""
    decoding = {"max_tokens": max_tokens, "temperature": 0.0, "stop": stop}
    tests = {"decoding": decoding, "num_runs": 1}
    return MappingProxyType({"teacher": {"decoding": decoding}, "evaluation": tests, "trust": {"preset": preset}})


class DomainConfig(Section):
    """A task interface by ``name`` (registered, an entry point's, or ``module:Class``); all other keys are its options.

    A plain string is the name alone.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    """``chess``, ``chess_mate``, ``classification``, ``mcqa``, ``math``, ``next_token``, ``pair``, ``text``, an entry
    point's name, or ``module:Class``."""
    given_labels: GivenConfig | None = None
    """The columns of labels made elsewhere, taken from ``teacher`` with ``backend: given``; set its keys."""

    @property
    def options(self) -> Json:
        """The keyword arguments of the domain's class."""
        return dict(self.model_extra or {})

    @property
    def traits(self) -> DomainTraits:
        """Traits of the domain's class with these options; ``ValueError`` if its ``defaults`` have the wrong shape."""
        try:
            made = load_code(DOMAINS.find(self.name))
        except ValueError:
            return DomainTraits(numbers=tuple(DOMAIN_NUMBERS))  # constructing the domain reports the error
        if not hasattr(made, "traits"):
            return DomainTraits()  # no domain, as constructing it reports
        traits: DomainTraits = made.traits(self.options)
        try:
            _DEFAULTS.validate_python(traits.defaults)
        except ValidationError as error:
            raise ValueError(
                f"domain: the defaults of {self.name!r} must be a mapping of the sections teacher, evaluation and "
                f"trust, each a mapping of its keys; found {traits.defaults!r}"
            ) from error
        return traits

    @property
    def lacks_classes(self) -> bool:
        """Whether ``classification`` is to take its classes from the labelled split."""
        return self.name == "classification" and self.options.get("classes") is None

    @property
    def check(self) -> Any:
        """The option ``check`` of the domain ``text``; ``None`` for other domains, or without a check."""
        return self.options.get("check") if self.name == "text" else None

    @property
    def command(self) -> list[str] | None:
        """The words of the command that grades for the domain ``text``; ``None`` without one."""
        words = self.check.get("command") if isinstance(self.check, Mapping) else None
        return words if isinstance(words, list) else None

    @property
    def judge(self) -> JsonView | None:
        """The options of the judge that grades every label of the domain ``text``; ``None`` without one."""
        options = self.check.get("judge") if isinstance(self.check, Mapping) else None
        return {} if self.check == "judge" else options if isinstance(options, Mapping) else None

    @property
    def ungraded(self) -> Self:
        """This domain without the check of ``text``, so that rows and labels do not depend on the check."""
        return self.with_options(check=None) if self.name == "text" else self

    @property
    def tested(self) -> Self:
        """The domain used in tests: :attr:`ungraded`, and each row is asked once."""
        once = {} if self.given_labels is not None else self.traits.once
        return self.ungraded.with_options(**once)

    @property
    def by_likelihood(self) -> Self:
        """The domain ``pair`` with answers compared by a model's likelihood of each, for students that learn pairs."""
        return self.with_options(**dict.fromkeys(self.traits.once), by="likelihood")

    @property
    def numbers(self) -> tuple[str, ...]:
        """Columns of numbers that only labels of this domain have; empty if the labels were made elsewhere."""
        return () if self.given_labels is not None else self.traits.numbers

    @property
    def agreeing(self) -> Self:
        """This domain for comparing two answers, neither of them gold: ``text`` compares normalised texts."""
        return self.with_options(check="normalised") if self.name == "text" and "check" in self.options else self

    @property
    def keyed(self) -> Self:
        """This domain for a cache key: without a checking command's limits and the folders of its files.

        The key of the stage that runs the command has a digest of the files.
        """
        if self.command is None:
            return self
        check = {name: value for name, value in self.options["check"].items() if name not in CHECK_LIMITS}
        words = [Path(word).name if Path(word).is_absolute() else word for word in self.command]
        return self.with_options(check={**check, "command": words})

    @property
    def portable(self) -> Self:
        """This domain for a trust package: without the command's words, but still marked as graded by a command."""
        return self if self.command is None else self.with_options(check="command")

    def with_options(self, **changed: object) -> Self:
        """Return this domain with some options changed, or left out where the change is ``None``."""
        options = {
            name: value
            for name, value in {**self.options, **changed}.items()
            if name not in changed or value is not None
        }
        if options == self.options:
            return self
        return type(self).model_validate({"name": self.name, "given_labels": self.given_labels, **options})

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: object) -> Any:
        """Read a text as a name; make words of a command that name files beside the configuration absolute."""
        if not isinstance(value, Mapping):
            return {"name": value} if isinstance(value, str) else value
        check = value.get("check")
        if not isinstance(check, Mapping) or not isinstance(check.get("command"), list):
            return value
        words = []
        for word in check["command"]:
            place = word.beside if isinstance(word, FileText) else None
            words.append(str(place) if isinstance(place, Path) and os.path.isfile(place) else word)
        return {**value, "check": {**check, "command": words}}


def _check_delimiter(sign: str) -> str:
    if len(sign) != 1 or sign in '"\r\n':
        raise ValueError('is not one character that can separate fields; give e.g. ";", "|" or "\\t" (a tab)')
    return sign


class SourceConfig(Section):
    """One named input: a file, folder or glob, local or any URL that pyarrow or fsspec takes."""

    path: Annotated[Location, BESIDE]
    """An absolute path, a path relative to the configuration file, or a URL."""
    domain: DomainConfig | None = None
    """The rows' domain if it differs from the run's, to measure trust out of domain."""
    format: Literal["auto", "parquet", "jsonl", "csv", "lance"] = "auto"
    """``parquet``, ``jsonl`` (an object on each line), ``csv`` or ``lance``; ``auto``: by the ending of each file. Text
    may be compressed (``.jsonl.gz``, ``.csv.bz2``, ``.ndjson.zst``)."""
    delimiter: Annotated[str, AfterValidator(_check_delimiter)] = COMMA
    """The character between the fields of CSV files, e.g. ``;`` or ``"\\t"`` (a tab). It is never guessed."""
    quoting: Literal["auto", "quotes", "none"] = "auto"
    """How quotes around a field of CSV files are read: ``quotes``, as part of the format (RFC 4180), or ``none``, as
    ordinary characters, as in many tab-separated files. ``auto`` means ``quotes``, but refuses a file that both ways
    can read, with different rows."""
    mixed: bool = False
    """Whether a folder or glob may mix splits or formats, such as ``train`` and ``test``, ``.csv`` and ``.jsonl``.
    Otherwise a mix is refused: test rows would be among the labelled ones, or rows twice."""
    id_column: str | None = None
    """A column of unique integers to use as row ids; without it, ids follow from the rows' positions."""


class SplitConfig(Section):
    """A part of one source: exactly ``rows``, a ``fraction`` of its rows, or (without either) all rows left."""

    source: str = Field(alias="from")
    """Name of one of the ``sources``."""
    rows: PositiveInt | None = None
    """Exact number of rows, drawn at random; with ``splits.group`` as close to it as whole groups allow."""
    fraction: Share | None = None
    """A share of the source's rows."""

    def _iter_problems(self) -> Iterator[str]:
        if self.rows is not None and self.fraction is not None:
            yield "takes rows or fraction, not both; leave one out"


class ProbeConfig(SplitConfig):
    """Labelled rows on which the fitted trust function is measured, besides the validation rows and the pool."""

    regime: Literal["ID", "OOD-dist", "OOD-domain"]
    """The paper's regime (section "Evaluation"): the benchmark of the fit, another one, or another task interface."""


class SplitsConfig(Section):
    """Disjoint parts of the sources, drawn by a seeded permutation of each source's rows."""

    adapt: SplitConfig | None = None
    """Labelled rows that teach the teacher the task's format (``teacher.adapt``)."""
    source: SplitConfig
    """Labelled rows on which trust is fitted and validated."""
    calibration: SplitConfig | None = None
    """Labelled rows from the pool's distribution, for calibrating a risk budget."""
    shots: SplitConfig | None = None
    """The fixed demonstrations of the ICL arm (five in the paper)."""
    pool: SplitConfig
    """The rows to label and to select from; they need no gold label."""
    test: SplitConfig | None = None
    """Labelled rows on which teacher, base and students are tested."""
    probes: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")], ProbeConfig] = Field(default={})
    """Further labelled sets on which trust is measured, by name: fit on one source, evaluate on many."""
    overlap: Literal["refuse", "drop", "report"] = "refuse"
    """How to handle the same question in two splits: ``refuse`` ends the run, except between source and pool, where the
    pool's row is dropped; ``drop`` removes the row from the split that comes later in the order test, calibration,
    probes, shots, source, adapt, pool; ``report`` keeps both. Dropped and kept rows are counted. Between test and
    probes, on which nothing is trained, such rows are counted and kept."""
    group: str | None = None
    """A column that names the group of a row, e.g. a user, a document or a patient, if rows of a group are alike. All
    rows of a group are then in one split of their source and in one fold of every fit, and intervals and guarantees
    count groups instead of rows. The files of source, calibration and pool must have the column; a row without a value
    is a group of its own."""
    audit: bool = False
    """Keep the pool's gold labels in an audit table: for purity, the ground-truth arm and oracle budgets."""
    max_error_rate: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Maximum share of a split's rows that cannot be used: they cannot be read, have duplicate options, or lack the
    gold label that their split needs. Above it, the run stops before anything is labelled."""

    def named(self) -> dict[str, SplitConfig]:
        """Return the configured splits, by name, in a fixed order; a probe's name starts with ``probe-``."""
        names = ("adapt", "source", "calibration", "shots", "test", "pool")
        given = {name: split for name in names if (split := getattr(self, name)) is not None}
        return given | {f"probe-{name}": probe for name, probe in self.probes.items()}

    def labelled(self) -> tuple[str, ...]:
        """Return the names of the configured splits that the teacher labels."""
        return tuple(name for name in self.named() if name not in ("adapt", "shots", "test"))


class RowsConfig(Root):
    """The definition of a run's rows: their sources, the splits, and the domain that reads them."""

    seed: Seed = 0
    """Seed of the splits and of all random draws. Another seed makes another run."""
    domain: DomainConfig = DomainConfig(name="chess")
    sources: Annotated[dict[str, SourceConfig], Field(min_length=1)]
    splits: SplitsConfig

    @property
    def ungraded(self) -> Json:
        """``domain`` and ``sources`` without checks, on which no row depends (:attr:`DomainConfig.ungraded`)."""
        return self.with_domains(lambda domain: domain.ungraded)

    def with_domains(self, change: Callable[[DomainConfig], DomainConfig]) -> Json:
        """Return ``domain`` and ``sources`` with every domain that they name changed."""
        sources = {
            name: source if source.domain is None else source.model_copy(update={"domain": change(source.domain)})
            for name, source in self.sources.items()
        }
        return {"domain": change(self.domain), "sources": sources}

    def domain_of(self, split: str) -> DomainConfig:
        """Return the task interface of a split's rows: its source's if that names one, else the run's.

        Columns of labels made elsewhere are read for splits that the teacher labels. For a test split of the same
        source only the completions are read, and gold labels grade them.
        """
        named = self.splits.named()
        domain = self.sources[named[split].source].domain or self.domain
        if domain.given_labels is None or split in self.splits.labelled():
            return domain
        labelled = {named[name].source for name in self.splits.labelled()}
        given = domain.given_labels.model_copy(update={"grade": None, "confidence": ()})
        is_there = split == "test" and named[split].source in labelled
        return domain.model_copy(update={"given_labels": given if is_there else None})

    def domains_of(self, source: str) -> dict[str, DomainConfig]:
        """Return the task interface of each split of a source, by the split's name."""
        return {name: self.domain_of(name) for name, split in self.splits.named().items() if split.source == source}
