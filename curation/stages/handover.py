"""The stages at the end of a generation: its numbers, whether the student is to teach, and on which rows it must not.

Whether a chain goes on depends on signs of a generation's trust function that need no gold labels of the pool: AUC and
shift. A student is surer of rows that it was trained on, and right on them more often. Trust that is fitted, calibrated
or measured on such rows therefore promises too much for the pool.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from pyroaring import BitMap64

from curation import metrics
from curation.arms import REFERENCE_ARM
from curation.arrays import Int64s
from curation.config import DomainConfig, TrustConfig
from curation.config.run import StopConfig
from curation.domains import get_domain
from curation.errors import SourceError
from curation.json_types import Json
from curation.metrics import Estimate
from curation.refs import TableRef
from curation.report.numbers import compute_numbers
from curation.report.record import GenerationRecord, PossibleGroups, RunInputs
from curation.report.rows import read_graded_rows
from curation.rundir.graph import Done, In, InEach, Position, Stage, setting
from curation.rundir.manifest import Manifest
from curation.rundir.run import Task
from curation.stages.label import RowShare
from curation.stages.rows import read_ids
from curation.storage.inside import from_record, to_record
from curation.storage.json_files import read_json
from curation.storage.paths import to_place, write_atomically
from curation.tables import scans
from curation.tables.row_ids import find_missing_ids, include
from curation.trust.parts import VALIDATION, assign_parts


class HoldOut(Stage):
    """A stage that refuses a generation if a split, or its share of the pool, has a row that a student was trained on.

    All tables are from one source, in which a row has one id; the ids of ``trained`` rows are held as a bitmap.
    """

    class Made(NamedTuple):
        num_trained: int
        """Number of distinct rows on which the teacher and the students before it were trained."""
        num_rows: dict[str, int]

    trained: InEach[TableRef]
    splits: InEach[TableRef]
    share: Json
    """The :class:`curation.stages.label.RowShare` of the pool that the generation labels, as JSON."""
    teacher: str = setting()

    def run(self, task: Task) -> Done:
        """Compare row ids."""
        seen, share, num_rows = BitMap64(), RowShare(**self.share), dict[str, int]()
        for who, ref in self.trained.items():
            ids_N = read_ids(ref)
            self._refuse(ids_N[share.takes(ids_N)], "the generation's share of the pool", who)
            include(seen, ids_N)
        for split, ref in self.splits.items():
            num_rows[split] = 0
            for batch in scans.iter_table_batches(ref, {"row_id": "row_id"}, None):
                ids_N = batch.column("row_id").to_numpy()
                num_rows[split] += len(ids_N)
                self._refuse(ids_N[~find_missing_ids(ids_N, seen)], f"splits.{split}", "a student")
        made = self.Made(num_trained=len(seen), num_rows=num_rows)
        return Done(outputs=made, rows=sum(num_rows.values()))

    def _refuse(self, shared_N: Int64s, where: str, who: str) -> None:
        if len(shared_N):
            raise SourceError(
                f"{where}: {len(shared_N):,} of its rows (e.g. row {shared_N[0]}) have trained {who}, and "
                f"{self.teacher} answers them: trust fitted, calibrated or measured on rows that trained the teacher "
                "does not hold for the pool; keep each row in one split, or take a new run directory if the splits "
                "were changed in this one"
            )


@dataclass(frozen=True, kw_only=True)
class Signs:
    """Signs of a generation's trust function."""

    function: str
    """The trust function, by its name in ``curation.arms.TRUST``."""
    auc: Estimate
    """AUC on parsed validation rows of the source; NaN if all labels are right or all wrong."""
    compared: str
    shift: Json


def find_stop_reasons(signs: Signs, stop: StopConfig) -> list[str]:
    """Return the reasons to stop the chain, one clause each; empty if it goes on."""
    found = []
    if not signs.auc.low > stop.min_auc:  # also of NaN
        shown = "has no AUC" if math.isnan(signs.auc.value) else f"has an AUC of {_format_interval(signs.auc)}"
        function = "trust" if signs.function == REFERENCE_ARM else f"{signs.function} trust"
        found.append(
            f"{function} {shown} on {signs.auc.n:,} parsed validation rows, which is not shown to be above "
            f"chain.stop.min_auc {stop.min_auc:g}"
        )
    auc = signs.shift["auc"]
    if auc["low"] is not None and auc["low"] > stop.max_shift:  # null: too few rows for a test
        found.append(
            f"a classifier tells the pool's hidden states from those of the {signs.compared} rows with an AUC of "
            f"{_format_interval(Estimate(**auc))}, above chain.stop.max_shift {stop.max_shift:g}"
        )
    return found


def _format_interval(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


class GoOn(Stage):
    """A stage that decides whether the student of a generation is to teach, and reports why if the chain stops."""

    class Made(NamedTuple):
        go_on: bool | None
        """True, or None if the chain stops, so that stages that need it do nothing."""
        absent: dict[str, str | None]
        signs: Json
        reasons: list[str]

    functions: Sequence[str]
    """Names of trust functions; the first one with scores in the labels is examined."""
    source: In[TableRef]
    grades: In[TableRef]
    shift: In[Json]
    trust: TrustConfig
    stop: StopConfig
    seed: int
    generation: int = setting()

    def run(self, task: Task) -> Done:
        """Read the signs, and decide whether to go on."""
        signs = self.read_signs()
        reasons = find_stop_reasons(signs, self.stop)
        why = f"the chain stops after generation {self.generation}: {'; '.join(reasons)}" if reasons else None
        if why is not None:
            task.say(f"{why} (chain.stop: null goes on)")
        as_json = {**asdict(signs), "auc": signs.auc.to_json()}
        made = self.Made(go_on=None if reasons else True, absent={"go_on": why}, signs=as_json, reasons=reasons)
        return Done(outputs=made, rows=0)

    def read_signs(self) -> Signs:
        """Return the signs of the first of ``functions`` that has scores in the ``source`` labels."""
        graded = read_graded_rows(self.source, self.grades, tuple(self.functions))
        name = next(name for name in self.functions if name in graded.scores)
        is_held_N = assign_parts(graded.row_ids_N, self.trust, self.seed, unit_N=graded.cluster_N) == VALIDATION
        parsed = graded.subset(is_held_N).readable
        compared = "calibration" if "calibration" in self.shift else "source"
        return Signs(
            function=name,
            auc=metrics.auc(parsed.scores[name].raw_N, parsed.correct_N, cluster_N=parsed.cluster_N),
            compared=compared,
            shift=self.shift[compared],
        )


class ComputeNumbers(Stage):
    """A stage that computes the numbers of a generation (``report.numbers.compute_numbers``)."""

    class Made(NamedTuple):
        metrics: str
        """The path of ``metrics.json``: ``numbers``, and the settings ``made_by``; paths below the run directory are
        relative to it."""

    config: Json
    seed: int
    domain: DomainConfig
    prepared: dict[str, TableRef]
    prepare_counts: Json
    overlap: Json
    record: GenerationRecord
    revision: int = 3  # a sample of a large pool instead of a grid
    find_groups: Callable[[], Sequence[PossibleGroups]] = setting()
    """Function that finds columns of the files that may divide rows into groups."""
    made_by: Json = setting()
    """``command`` and ``versions`` of the run, and its ``stages`` by name: when each started, and its seconds."""

    def run(self, task: Task) -> Done:
        """Compute the numbers, and write them to ``metrics.json``."""
        inputs = RunInputs(
            config=self.config,
            seed=self.seed,
            domain=get_domain(self.domain),
            prepared=self.prepared,
            prepare_counts=self.prepare_counts,
            overlap=self.overlap,
            groups=self.find_groups(),
        )
        numbers = compute_numbers(inputs, self.record)
        path = task.directory / "metrics.json"
        content = to_record({"numbers": numbers, "made_by": dict(self.made_by)}, task.manifest.directory)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
        return Done(outputs=self.Made(metrics=str(path)), rows=numbers["num_pool"])


def read_numbers(manifest: Manifest, generation: int, branch: str = "") -> Json | None:
    """Return the content of a generation's ``metrics.json``, or None if the file is missing or cannot be read."""
    record = manifest.find(Position(generation=generation, branch=branch), ComputeNumbers)
    if record is None:
        return None
    try:
        content: Json = from_record(read_json(to_place(record.outputs["metrics"])), manifest.directory)
    except (OSError, ValueError):
        return None
    return content
