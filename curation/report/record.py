"""The input of a report: references and counts of a run, no data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from curation.domains import Domain
from curation.json_types import JsonView
from curation.refs import ModelRef, TableRef, TrustRef
from curation.report.groups import PossibleGroups
from curation.report.people import ReviewRecord

FORMAT = ("format", "completion_source", "format_note", "median_characters")
"""The facts that a report shows about the completions that an arm trains on."""
BASE, TEACHER, GROUND_TRUTH = "base", "teacher", "ground_truth"
MAIN, SHALLOW, PREDECESSOR = "main", "shallow", "predecessor"
"""Lines of a chained run: its main chain, students that learned from the first teacher without a chain, and the last
base taught by the base before it. Other chains are named by their arms."""


@dataclass(frozen=True, kw_only=True)
class StageSummary:
    """A finished stage: ``rows`` is the number of rows it worked on, ``started`` an ISO time."""

    name: str
    seconds: float
    rows: int
    rows_per_second: float | None
    started: str
    step: int = 0
    """The length of the longest chain of stages that leads to it."""
    after: Sequence[str] = ()
    """The stages that it waited for."""


@dataclass(frozen=True, kw_only=True)
class PassRecord:
    """The last run of a labelling pass; if the pass was resumed, earlier runs did the other rows."""

    name: str
    model: str
    """The model that was asked; "scripted" for a teacher without weights."""
    backend: str
    rows: int
    seconds: float
    total_rows: int
    prompt_tokens: int | None
    """Prompt tokens of all rows; ``None`` where tokens are not counted, as of signals."""
    output_tokens: int | None
    deaths: int
    """The number of actors' processes that died in the middle of a chunk."""
    teachers: Sequence[Mapping[str, float]]
    """One for each start of the model: ``start_seconds`` and ``Teacher.facts``; none where it ran already."""
    clipped_values: int = 0
    """Numbers of hidden states beyond float16 that were stored as its largest one."""
    dtype: str | None = None
    """The type that the model ran in; ``None`` without weights, and where nobody noted it."""
    recalled: str | None = None
    """The run directory in which the model gave these answers, if it was not asked again."""


@dataclass(frozen=True, kw_only=True)
class SpentRecord:
    """Amounts that a pass of a model has used, in all its runs or in those since a forecast was made."""

    actor_seconds: float
    prompt_tokens: int
    output_tokens: int
    chunks: int
    commits: int
    bytes: int
    """Bytes of its table, as it is now."""
    spans: Sequence[tuple[float, float]]
    """When each run of it began and ended, seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class GenerationRecord:
    """One generation: its teacher, its selections, and the results of its students."""

    index: int
    branch: str = ""
    """The chain that it belongs to; empty: the main one."""
    teacher: ModelRef | None
    """``None`` for a teacher without weights (the scripted one)."""
    student_base: ModelRef | None
    """The students' un-adapted base; ``None`` if the run only curates."""
    labels: Mapping[str, TableRef]
    """Labels by split, with the scores of the fitted trust functions and the signals as columns."""
    grades: Mapping[str, TableRef]
    """Grades by split with known gold labels (schema ``schemas.GRADES``); of the pool only with an audit set."""
    trust: TrustRef
    trust_fit: JsonView
    """A summary of the fit (``curation.stages.fit.describe_fit``)."""
    selections: Mapping[str, TableRef]
    """Selections by arm (schema ``schemas.SELECTION``)."""
    formats: Mapping[str, JsonView]
    """``curation.stages.select.Selection`` as JSON, by arm; the report shows the fields in ``FORMAT``."""
    budget: JsonView
    """``curation.stages.budget.ComputedBudget`` as JSON."""
    shift: JsonView
    """``curation.metrics.shift.Shift`` between a split and the pool as JSON, by split."""
    tests: Mapping[str, Sequence[TableRef]]
    """Grades of the test split by ``evaluation.decoding``, one table per run, by arm, ``base`` and ``teacher``; empty
    if nothing was trained."""
    label_counts: Mapping[str, JsonView]
    """Counts by split: ``rows`` in the labels table (error rows too), ``unparsed``, ``truncated`` and ``errors`` by
    kind."""
    projection: JsonView | None
    """``size`` of the states' projection, ``variance_kept`` and the ``num_rows`` it was fitted on; ``None`` without."""
    asked: Mapping[str, int]
    """The number of labels that the judge graded, by graded split and ``test-<model>`` (of several runs the first);
    splits without the judge are absent."""
    unread: Mapping[str, int]
    """The number of pool rows whose signal could not be read, by signal."""
    too_long: Mapping[str, JsonView]
    """``curation.stages.length.TooLong`` as JSON by split; empty if nothing was trained."""
    repeats: JsonView
    """``curation.stages.repeats.RepeatCounts`` of the pool as JSON."""
    training: Mapping[str, JsonView]
    """``train.models.TrainingRecord`` as JSON, by arm with a student."""
    students: Mapping[str, JsonView] = field(default_factory=dict)
    """``student_base``, ``tests``, ``further_tests`` and ``training`` of the further students, by name."""
    foreign: Mapping[str, JsonView] = field(default_factory=dict)
    """The share of foreign rows among those that pass the cut, by arm, as JSON of
    ``curation.stages.shift.describe_foreign``; arms without a measurement are left out."""
    unseen: JsonView | None = None
    """``curation.domains.unseen_labels.UnseenLabels`` as JSON; ``None`` where all of the pool's labels are seen, or
    labels are open."""
    dropped: Mapping[str, str] = field(default_factory=dict)
    """The arms that dropped out, since they could not be measured, and why, in words."""
    kept: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Files of the selected rows with columns of the user's (``curation.stages.keep``), by arm."""
    preferences: Mapping[str, JsonView] = field(default_factory=dict)
    """``curation.stages.selected.RowFiles`` as JSON, by arm; empty where the pool's rows are no pairs."""
    further_tests: Mapping[str, Mapping[str, Sequence[TableRef]]] = field(default_factory=dict)
    """Further ``tests``, by decoding of ``evaluation.also``."""
    features: Mapping[str, JsonView] = field(default_factory=dict)
    """Outputs of stages of features (``curation.features``) by name, by feature."""
    analysis: Mapping[str, JsonView] = field(default_factory=dict)
    """The same of their stages over a finished run (``curate analyze``)."""

    @property
    def name(self) -> str:
        """Name among all generations of the run: ``gen-1``, ``gen-1-naive``."""
        return f"gen-{self.index}-{self.branch}" if self.branch else f"gen-{self.index}"

    @property
    def n(self) -> int:
        """The budget of every arm."""
        return int(self.budget["n"])

    def of_student(self, name: str) -> "GenerationRecord":
        """Return the same generation with a further student in the place of the one that teaches."""
        return replace(self, students={}, **self.students[name])


@dataclass(frozen=True, kw_only=True)
class ChainRecord:
    """The chains of a run with several generations, beside those of its main chain."""

    arms: Sequence[str]
    """The arms whose students teach, the main chain's first."""
    branches: Mapping[str, Sequence[GenerationRecord]]
    """The generations from the second on of the other chains by arm; ``predecessor``: the last base, taught by the one
    before it."""
    shallow: Mapping[str, Mapping[str, JsonView]]
    """Students of the shallow line by generation (as text) and arm: ``tests`` (grades of the test split, one table per
    run) and ``training`` of its base's student that learned from the first teacher."""
    stages: Mapping[str, tuple[int, str]]
    """The generation and the line for which a stage was done first, by its name."""
    decisions: Sequence[JsonView]
    """Decisions by generation: ``signs`` and ``reasons`` (none: the chain went on), as
    ``curation.stages.handover`` decides; empty without a rule."""
    ended: str | None
    """Why the main chain has fewer generations than are configured, in words; ``None``: it has all."""
    branches_ended: Mapping[str, str] = field(default_factory=dict)
    """The same of the branches that did not reach their last generation."""


@dataclass(frozen=True, kw_only=True)
class RunInputs:
    """Inputs of the numbers of a generation, beside its own record."""

    config: JsonView
    """The run's configuration as JSON."""
    seed: int
    domain: Domain
    prepared: Mapping[str, TableRef]
    """The splits' tables by name; ``audit`` and ``test`` may be missing."""
    prepare_counts: Mapping[str, JsonView]
    """Counts by split: ``rows`` read (error rows too) and ``errors`` by kind."""
    overlap: JsonView
    """Questions that splits share, and how they were handled: ``stages.dropping.Overlap`` as JSON."""
    groups: Sequence[PossibleGroups] = ()
    """Columns of the files that may divide rows into groups; none where the files cannot be read any more."""


@dataclass(frozen=True, kw_only=True)
class RunRecord(RunInputs):
    """A whole run."""

    name: str
    config_path: str | None
    versions: Mapping[str, str]
    command: str
    stages: Sequence[StageSummary]
    passes: Sequence[PassRecord]
    generations: Sequence[GenerationRecord]
    numbers: Mapping[str, JsonView] = field(default_factory=dict)
    """The numbers of every generation (``report.numbers.compute_numbers``) by its name."""
    forecast: JsonView | None = None
    """The forecast that was saved in the run directory (``pipeline.planning.save``), if any."""
    spent: Mapping[str, SpentRecord] = field(default_factory=dict)
    """Amounts by stage of the forecast that has run since."""
    answers: Sequence[JsonView] = ()
    """Oddities of a server's answers (``Spending.findings``), where one is the teacher."""
    used: Mapping[str, SpentRecord] = field(default_factory=dict)
    """Amounts by pass of a model, in all its runs."""
    directory: str = "RUN_DIR"
    """The run directory, for the commands that the report names."""
    chain: ChainRecord | None = None
    """``None`` where no generation follows another."""
    reviews: Sequence[ReviewRecord] = ()
    """People's verdicts on its selections."""
    own_code: Mapping[str, str] = field(default_factory=dict)
    """The models whose own Python code was allowed to run, with the revision of the code, by role."""
