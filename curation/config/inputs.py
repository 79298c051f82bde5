"""What goes into a run: the domain, the sources and the splits that are drawn from them."""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from curation.config.base import PositiveInt, Section, Share


class DomainConfig(Section):
    """A task interface by ``name`` (registered, an entry point's, or ``module:Class``); all other keys are its options.

    A plain string is the name alone.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def options(self) -> dict[str, Any]:
        """What the domain's class is constructed with."""
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class SourceConfig(Section):
    """One named input: a file, folder or glob, local or any URL that pyarrow or fsspec takes."""

    path: str
    domain: DomainConfig | None = None
    """The rows' task interface where it is another than the run's: to measure trust out of its domain."""
    format: Literal["auto", "parquet", "jsonl", "csv", "lance"] = "auto"
    id_column: str | None = None
    """A column of unique integers to use as row ids; position-based ids otherwise."""


class SplitConfig(Section):
    """A share of one source: exactly ``rows``, a ``fraction`` of its rows, or (neither given) all that is left."""

    source: str = Field(alias="from")
    rows: PositiveInt | None = None
    fraction: Share | None = None

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.rows is not None and self.fraction is not None:
            raise ValueError("takes rows or fraction, not both")
        return self


class ProbeConfig(SplitConfig):
    """Labelled rows on which the fitted trust function is measured, beside the validation rows and the pool."""

    regime: Literal["ID", "OOD-dist", "OOD-domain"]
    """In the paper's terms (section "Evaluation"): the fit's own benchmark, another one, another task interface."""


class SplitsConfig(Section):
    """Disjoint parts of the sources, drawn by a seeded permutation of each source's rows."""

    adapt: SplitConfig | None = None
    source: SplitConfig
    calibration: SplitConfig | None = None
    """Labelled rows of the pool's own distribution, on which a risk budget is calibrated."""
    shots: SplitConfig | None = None
    """The fixed demonstrations of the ICL arm (five in the paper)."""
    pool: SplitConfig
    test: SplitConfig | None = None
    probes: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")], ProbeConfig] = Field(default={})
    """Further labelled sets on which trust is measured, by name: fit on one source, evaluate on many."""
    overlap: Literal["refuse", "drop", "report"] = "refuse"
    """What is done where two splits ask the same question: end the run, take the row out of the split that comes later
    in the order test, calibration, probes, shots, source, adapt, pool, or keep both; the last two count them. Between
    test and probes, from which nothing is learned, such rows are counted and kept."""
    audit: bool = False
    """Keep the pool's gold labels in an audit table: for purity, the ground-truth arm and oracle budgets."""

    def named(self) -> dict[str, SplitConfig]:
        """The splits that are given, by name, in a fixed order; a probe's name starts with ``probe-``."""
        names = ("adapt", "source", "calibration", "shots", "test", "pool")
        given = {name: split for name in names if (split := getattr(self, name)) is not None}
        return given | {f"probe-{name}": probe for name, probe in self.probes.items()}


class RowsConfig(Section):
    """What the rows of a run are: where they come from, how they are dealt, and how they are read."""

    seed: Annotated[int, Field(ge=0)] = 0
    domain: DomainConfig = DomainConfig(name="chess")
    sources: Annotated[dict[str, SourceConfig], Field(min_length=1)]
    splits: SplitsConfig

    def domain_of(self, split: str) -> DomainConfig:
        """The task interface of a split's rows: its source's, where that names one."""
        return self.sources[self.splits.named()[split].source].domain or self.domain
