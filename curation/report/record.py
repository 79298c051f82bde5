"""The input of a report: references to a run's tables and counts, without data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from curation.domains import Domain
from curation.json_types import JsonView
from curation.refs import ModelRef, TableRef, TrustRef

FORMAT = ("format", "completion_source", "format_note", "median_characters")
"""Fields that a report shows about the completions that an arm trains on."""
BASE, TEACHER, GROUND_TRUTH = "base", "teacher", "ground_truth"
PREDECESSOR = "predecessor"
"""Name of the line of a chained run in which the base before the last one teaches the last."""


@dataclass(frozen=True, kw_only=True)
class StageSummary:
    """A finished stage: ``rows`` is the number of rows it worked on, ``started`` an ISO time."""

    name: str
    seconds: float
    rows: int
    rows_per_second: float | None
    started: str


@dataclass(frozen=True, kw_only=True)
class PassRecord:
    """The last run of a labelling pass; if the pass was resumed, earlier runs labelled the other rows."""

    name: str
    model: str
    """Name of the model; "scripted" for a teacher without weights."""
    backend: str
    rows: int
    seconds: float
    total_rows: int
    prompt_tokens: int | None
    """Number of prompt tokens of all rows, or ``None`` if tokens are not counted, as in passes for signals."""
    output_tokens: int | None
    deaths: int
    """Number of actor processes that died in the middle of a chunk."""
    teachers: Sequence[Mapping[str, float]]
    """``start_seconds`` and ``Teacher.facts`` of each start of the model; empty if it was running already."""
    clipped_values: int = 0
    """Number of hidden-state values beyond the range of float16, which were clipped to it."""
    dtype: str | None = None
    """Data type that the model ran in, or ``None`` without weights or if it was not recorded."""


@dataclass(frozen=True, kw_only=True)
class GenerationRecord:
    """A generation: its teacher, its selections, and the results of its students."""

    index: int
    branch: str = ""
    """Name of the generation's chain; empty for the main chain."""
    teacher: ModelRef | None
    """Teacher of the generation, or ``None`` for one without weights, such as the scripted one."""
    student_base: ModelRef | None
    """Students' base without adapters, or ``None`` if the run only curates."""
    labels: Mapping[str, TableRef]
    """Labels by split, with the scores of the fitted trust functions and the signals as columns."""
    grades: Mapping[str, TableRef]
    """Grades by split with known gold labels (schema ``schemas.GRADES``); of the pool only with an audit set."""
    trust: TrustRef
    trust_fit: JsonView
    """Summary of the fit (``curation.stages.fit.FitTrust``)."""
    selections: Mapping[str, TableRef]
    """Selections by arm (schema ``schemas.SELECTION``)."""
    formats: Mapping[str, JsonView]
    """``curation.stages.select.Selection`` as JSON, by arm; the report shows the fields in ``FORMAT``."""
    budget: JsonView
    """``curation.stages.pool_scores.ComputedBudget`` as JSON."""
    shift: JsonView
    """``curation.metrics.shift.Shift`` between a split and the pool as JSON, by split."""
    tests: Mapping[str, Sequence[TableRef]]
    """Grades of the test split by ``evaluation.decoding``, one table per run, by arm, ``base`` and ``teacher``."""
    label_counts: Mapping[str, JsonView]
    """Counts by split: ``rows`` in the labels table, ``unparsed``, ``truncated``, and ``errors`` by kind."""
    asked: Mapping[str, int]
    """Number of labels that the judge graded, by split and ``test-<model>`` (the first of several runs)."""
    unread: Mapping[str, int]
    """Number of pool rows whose signal could not be read, by signal."""
    too_long: Mapping[str, JsonView]
    """``curation.stages.gold.TooLong`` as JSON by split; empty if nothing was trained."""
    repeats: JsonView
    """``curation.stages.overlap.RepeatCounts`` of the pool as JSON."""
    training: Mapping[str, JsonView]
    """``train.models.TrainingRecord`` as JSON, by arm with a student."""
    students: Mapping[str, JsonView] = field(default_factory=dict)
    """``student_base``, ``tests``, ``further_tests`` and ``training`` of the further students, by name."""
    foreign: Mapping[str, JsonView] = field(default_factory=dict)
    """Measured shares of foreign rows that pass the cut (``curation.stages.shift.describe_foreign``), by arm."""
    unseen: JsonView | None = None
    """``curation.domains.class_counts.UnseenLabels`` as JSON, or ``None`` without such labels or with open ones."""
    preferences: Mapping[str, JsonView] = field(default_factory=dict)
    """``curation.stages.select.WrittenRows`` as JSON, by arm; empty if the pool's rows are no pairs."""
    further_tests: Mapping[str, Mapping[str, Sequence[TableRef]]] = field(default_factory=dict)
    """Further ``tests``, by decoding of ``evaluation.also``."""
    features: Mapping[str, JsonView] = field(default_factory=dict)
    """Outputs of features' stages (``curation.features``) by name, by feature."""
    analysis: Mapping[str, JsonView] = field(default_factory=dict)
    """Outputs of features' stages over a finished run (``curate analyze``) by name, by feature."""

    @property
    def name(self) -> str:
        """Unique name of the generation in the run, e.g. ``gen-1``, ``gen-1-naive``."""
        return f"gen-{self.index}-{self.branch}" if self.branch else f"gen-{self.index}"

    @property
    def n(self) -> int:
        """The budget of every arm, a number of rows."""
        return int(self.budget["n"])


@dataclass(frozen=True, kw_only=True)
class ChainRecord:
    """The chains of a run with several generations, without the generations of its main chain."""

    arms: Sequence[str]
    """Arms whose students teach, the main chain's first."""
    branches: Mapping[str, Sequence[GenerationRecord]]
    """Generations of the other chains, from the second on, by arm or ``predecessor``."""
    shallow: Mapping[str, Mapping[str, JsonView]]
    """``tests`` and ``training`` of students that learned from the first teacher, by generation (as text) and arm."""
    decisions: Sequence[JsonView]
    """Decisions of ``curation.stages.handover`` by generation: ``signs`` and ``reasons`` (empty: the chain went on)."""
    ended: str | None
    """Why the main chain has fewer generations than configured, in words, or ``None`` if it has all."""
    branches_ended: Mapping[str, str] = field(default_factory=dict)
    """Why branches did not reach their last generation, in words, by branch."""


@dataclass(frozen=True, kw_only=True)
class ReviewRecord:
    """The verdicts on one selection, as ``curate review result`` wrote them."""

    name: str
    generation: int
    arm: str
    selection: TableRef
    """Selection from which the reviewed rows were drawn."""
    strata: Sequence[JsonView]
    """Strata: ``num_rows``, whether their rows are ``selected``, and the numbers of ``answers`` by kind."""
    people: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class PossibleGroups:
    """A column that may divide rows into groups, such as users."""

    column: str
    num_rows: int
    num_values: int
    """Number of distinct values of the column in these rows."""
    others: float
    """Share of the pool's rows that have other values."""

    @property
    def words(self) -> str:
        """Description of the column and its values."""
        return (
            f"the column {self.column} may divide rows into groups ({self.num_rows:,} labelled rows that were looked "
            f"at have {self.num_values:,} values, and {100 * self.others:.0f} % of the pool's rows have others)"
        )


@dataclass(frozen=True, kw_only=True)
class RunInputs:
    """The inputs of a generation's numbers that all generations of a run share."""

    config: JsonView
    seed: int
    domain: Domain
    prepared: Mapping[str, TableRef]
    """Tables of the splits by name; ``audit`` and ``test`` may be missing."""
    prepare_counts: Mapping[str, JsonView]
    """Counts by split: ``rows`` read (error rows too) and ``errors`` by kind."""
    overlap: JsonView
    """Questions that splits share, and how they were handled: ``stages.split_tables.Overlap`` as JSON."""
    groups: Sequence[PossibleGroups] = ()
    """Columns of the files that may divide rows into groups; empty if the files can no longer be read."""


@dataclass(frozen=True, kw_only=True)
class RunRecord(RunInputs):
    """The record of a whole run, the input of its report."""

    name: str
    config_path: str | None
    versions: Mapping[str, str]
    command: str
    stages: Sequence[StageSummary]
    passes: Sequence[PassRecord]
    generations: Sequence[GenerationRecord]
    numbers: Mapping[str, JsonView] = field(default_factory=dict)
    """Numbers of every generation (``report.numbers.compute_numbers``) by its name."""
    answers: Sequence[JsonView] = ()
    """Oddities in a server's answers (``Spending.findings``), if a server is the teacher."""
    used: Mapping[str, JsonView] = field(default_factory=dict)
    """Amounts that each pass of a model used, in all its runs: those of ``Spent``, and the ``bytes`` of its table."""
    directory: str = "RUN_DIR"
    """Run directory, for the commands that the report names."""
    chain: ChainRecord | None = None
    """Chains of the run, or ``None`` if no generation follows another."""
    reviews: Sequence[ReviewRecord] = ()
    """People's verdicts on the run's selections."""
    own_code: Mapping[str, str] = field(default_factory=dict)
    """Models whose own Python code was allowed to run, with the code's revision, by role."""
