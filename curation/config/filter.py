"""The configuration of ``curate filter``: a trust package, a pool, where rows are written, and which rows are kept."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Field, create_model

from curation.config.base import Directory, Location, PositiveInt, Root, Section, Seed, Share
from curation.config.external import EndpointConfig
from curation.config.files import BESIDE
from curation.config.inputs import SourceConfig
from curation.config.models import ModelConfig
from curation.config.run import PricesConfig, RayConfig
from curation.config.selection import RiskConfig
from curation.config.teacher import ActorsConfig, AnswersConfig, AskConfig, BackendName, PassConfig, ScriptedConfig
from curation.errors import ConfigError
from curation.features import iter_found, sections
from curation.storage.paths import Place, to_place

Format = Literal["parquet", "jsonl"]
WORK = "_curation"
"""Name of an output's folder with labels and the record of stages."""

COLUMNS = ("row_id", "prompt", "completion", "label", "trust", "trust_raw", "source_file", "error")
"""Columns that a filter writes or needs in its tables; columns of the pool cannot have these names."""


class PoolConfig(SourceConfig):
    """The rows to filter: a file, folder or glob, local or a URL.

    Ids follow from the rows' positions, and the package says how rows are read, so ``id_column`` and ``domain`` are
    refused.
    """

    columns: tuple[str, ...] = ()
    """Columns of the pool's files that are written beside the domain's own, e.g. a document's id or address."""
    max_error_rate: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Maximum share of new files' rows that cannot be used (unreadable, or with duplicate options), above which the
    filter stops before it labels them."""

    def _iter_problems(self) -> Iterator[str]:
        if self.domain is not None:
            yield "domain: the trust package says how rows are read; leave it out"
        if self.id_column is not None:
            yield f"id_column: ids are positions here; to keep the column write columns: [{self.id_column}]"
        if taken := [name for name in self.columns if name in COLUMNS]:
            yield f"columns: {taken[0]!r} is a column that the filter writes itself; rename it in the pool"
        if len(set(self.columns)) != len(self.columns):
            yield "columns: names a column twice"


class OutputConfig(Section):
    """Location and format of the rows that pass."""

    path: Directory
    """A folder or a URL (``s3://``, ``gs://``), relative to the working directory. One output belongs to one package
    and one pool."""
    format: Format = "parquet"
    """Format of the files with the rows that pass."""


class CertifiedConfig(RiskConfig):
    """A cut certified by calibration rows (as ``selection.budget.risk`` of runs): at most ``alpha`` are wrong."""

    calibration: Annotated[str | None, BESIDE] = None
    """A Parquet file with the columns ``raw``, ``trust`` and ``correct``: graded rows of this pool's distribution,
    scored by the package. Unset: the calibration rows that the package holds."""


class KeepConfig(Section):
    """The rule by which rows pass; exactly one is set."""

    n: PositiveInt | None = None
    """The number of rows with the highest raw score."""
    share: Share | None = None
    """The share of the rows that were labelled without error, unparsed ones included, with the highest raw score."""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """Minimum trust of a row that passes."""
    certified: CertifiedConfig | None = None

    @property
    def rule(self) -> str:
        """The name of the rule that is set."""
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)

    @property
    def words(self) -> str:
        """The rule and its value in words."""
        value = getattr(self, self.rule)
        if isinstance(value, CertifiedConfig):
            return f"certified at alpha {value.alpha:g}"
        return f"{self.rule} {value:,}"

    def _iter_problems(self) -> Iterator[str]:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            known = ", ".join(type(self).model_fields)
            yield f"takes exactly one of {known}; found {' and '.join(given) or 'none'}"


class FilterTeacherConfig(PassConfig):
    """Settings that run the package's teacher. Decoding, states, precision and template are fixed by the package."""

    backend: BackendName | None = None
    """Unset: the package's. Backends with weights (``transformers``, ``vllm``) may replace each other."""
    model: ModelConfig | None = None
    """Where the teacher's weights are, if not where the package says; they must be the same."""
    scripted: ScriptedConfig | None = None
    """Speed and faults of the scripted teacher, for dry runs."""
    endpoint: EndpointConfig | None = None
    """The server that answers, if one labelled for the package; ``model``, ``kind``, ``top_logprobs`` and ``body`` are
    those of the package. If a model reads the server's answers, the other keys of ``teacher`` are that model's."""

    def asking(self, answers: AnswersConfig) -> AskConfig:
        """Return settings to ask a package's teacher or reader: ``answers`` of the package, the others from here."""
        theirs, is_served = dict(answers), answers.endpoint is not None
        script = (self.scripted or ScriptedConfig()).model_copy(update=dict(answers.scripted))
        ours = {name: getattr(self, name) for name in PassConfig.model_fields} | {"scripted": script}
        ours["endpoint"] = self.endpoint if is_served else None
        return AskConfig(**theirs | ours | ({} if self.backend is None or is_served else {"backend": self.backend}))

    def buying(self, answers: AnswersConfig) -> AskConfig:
        """Return settings to ask a server whose answers a model reads, by actors without that model's resources."""
        asked = self.asking(answers)
        return asked.model_copy(update={"actors": asked.actors.model_copy(update=ActorsConfig.WITHOUT_GPU)})


class CoreFilterConfig(Root):
    """One filter: a package applied to a pool that may grow."""

    package: Annotated[Location, BESIDE]
    """The folder or URL of a trust package (``curate export-trust``)."""
    pool: PoolConfig
    output: OutputConfig
    keep: KeepConfig
    teacher: FilterTeacherConfig = FilterTeacherConfig()
    allow_code: tuple[str, ...] = ()
    """Code that the package may name although neither this version nor an installed package registers it, each
    ``module:NAME`` as the package has it: it is imported and run."""
    anyway: bool = False
    """Whether to use a package even if the verdict of its run is "do not use"."""
    seed: Seed = 0
    """Seed of ties at the cut, of sampled answers, and of the rows that the shift test draws."""
    on_shift: Literal["warn", "fail", "ignore"] = "warn"
    """Action if the pool's states (without states, the words of its questions) differ clearly from the package's:
    ``warn`` writes, says so and exits with code 3; ``fail`` exits with code 3 before anything is written; ``ignore``
    writes, and records it in the manifest alone."""
    commit_seconds: Annotated[float, Field(ge=0)] = 2.0
    """Seconds between two commits of a pass; more if commits are slow."""
    fragment_mb: PositiveInt = 256
    """Size of a table fragment after the compaction that ends a pass, in MiB."""
    ray: RayConfig = RayConfig()
    prices: PricesConfig | None = None
    """Prices by which ``curate plan`` and the summary compute the cost of labelling."""

    def _iter_problems(self) -> Iterator[str]:
        yield from iter_found(self, "problems")

    @property
    def output_directory(self) -> Place:
        """The output's absolute path, since workers have working directories of their own."""
        return to_place(self.output.path).absolute()

    @property
    def directory(self) -> Place:
        """The folder of labels and the record of stages; readers of data sets skip names that start with ``_``."""
        return self.output_directory / WORK


def keep_of(text: str) -> dict[str, Any]:
    """Return the ``keep`` section that ``--keep`` means: a share if below 1, else a number of rows; or refuse it."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if 0 < value < 1:
        return {"share": value}
    if value >= 1 and value.is_integer():
        return {"n": int(value)}
    raise ConfigError(f"--keep: {text!r} is neither a share between 0 and 1 nor a whole number of rows above 0")


if TYPE_CHECKING:
    FilterConfig: TypeAlias = CoreFilterConfig
else:
    _sections = sections(CoreFilterConfig.model_fields.keys(), "filter")
    FilterConfig = create_model(
        "FilterConfig", __base__=CoreFilterConfig, __module__=__name__, __doc__=CoreFilterConfig.__doc__, **_sections
    )
