"""The source of a review: the candidate rows of a run's arm or of a filter, the selected ones, and their texts.

An :class:`Origin` refers to versions of tables, so that the result of a review is computed from the same tables that
its rows were drawn from, even if the run has made another selection since.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter

from curation.arms import ARMS, REFERENCE_ARM
from curation.arrays import Int64s
from curation.config import DomainConfig
from curation.config.filter import WORK
from curation.domains import attempt, get_domain
from curation.errors import ReviewError
from curation.features import is_divided
from curation.filter.output import MANIFEST
from curation.json_types import Json, JsonView
from curation.refs import TableRef
from curation.rundir.graph import Position
from curation.rundir.manifest import Manifest, StageRecord
from curation.selection.bound import Bound
from curation.selection.review import REACH, ScoredRows
from curation.stages.select import Select
from curation.storage.paths import Place, require_reachable
from curation.tables import io
from curation.trust import get_trust

SCORED = pa.schema(
    [("row_ids_N", pa.int64()), ("raw_N", pa.float32()), ("trust_N", pa.float32()), ("selected_N", pa.bool_())]
)
"""The columns of ``ScoredRows``."""
SPARE_ROWS = 1 << 20
"""Number of surplus rows that are held in memory before all but the best rows are dropped."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The selection of one arm of a run, or of a filter, with the tables that the selection was made from."""

    run: str
    """The run directory, or the output of a filter."""
    generation: int | None
    """The generation of the run; None for a filter."""
    arm: str
    """The arm, or the trust function of a filter's package."""
    function: str
    """The trust function by whose columns the rows are ranked."""
    ranked: bool
    """Whether the selection is the top of a ranking, neither drawn nor divided; only then there is a cut."""
    labels: tuple[TableRef, ...]
    pools: tuple[TableRef, ...]
    """The prepared rows of each table of ``labels``."""
    selection: TableRef | None
    """The selected rows; None for a filter."""
    threshold: Json | None
    """The threshold of a filter: a ``column`` of the labels and the ``bound`` on it (``score``, ``tie``, ``seed``);
    None for a run."""
    num_selected: int
    too_long: TableRef | None
    domain: Json
    n: int
    """The budget of the run, or the number of rows that a filter has written."""
    risk: Json | None
    """The certified cut of this arm; None if none was requested."""

    @classmethod
    def from_json(cls, value: JsonView) -> Self:
        """Return the inverse of :func:`dataclasses.asdict`."""
        return TypeAdapter(cls).validate_python(value)


def find(place: Place, arm: str | None) -> Origin:
    """Return the newest selection of an arm of a run (default: ``trust`` or the only arm), or that of a filter."""
    require_reachable(place)
    if (place / MANIFEST).is_file():
        return _find_in_filter(place, arm)
    if not (place / "manifest.json").is_file():
        raise ReviewError(
            f"{place}: is not a run directory (no manifest.json), nor the output of `curate filter` (no {MANIFEST})"
        )
    manifest = Manifest.load(place)
    found: list[StageRecord] = []
    while (record := manifest.find(Position(generation=len(found), split="pool"), Select)) is not None:
        found.append(record)
    if not found:
        raise ReviewError(f"{place}: nothing is selected yet; `curate run {place} --until gen-0/select` selects")
    return _find_in_run(place, len(found) - 1, found[-1], arm)


def _find_in_run(run: Place, generation: int, record: StageRecord, arm: str | None) -> Origin:
    arms, choice, budget = record.outputs["arms"], record.inputs["choice"], record.outputs["budget"]
    try:
        weak = [name for name in arms if not ARMS[name].gold]
    except KeyError as error:
        raise ReviewError(
            f"{run}: selected by the arm {error}, whose module cannot be imported here; give the command where it can"
        ) from error
    if arm is None:
        arm = REFERENCE_ARM if REFERENCE_ARM in weak else weak[0] if len(weak) == 1 else None
    if arm is None or arm not in weak:
        which = "name an arm of weak labels" if arm is None else f"{arm} is not one of them"
        if (why := (record.outputs.get("dropped") or {}).get(arm)) is not None:
            which = f"{arm} dropped out: {why}"
        gold = [name for name in arms if ARMS[name].gold]
        rest = f"; {', '.join(gold)} train on gold labels, which need no verdict" if gold else ""
        raise ReviewError(f"--arm: {which}; {run} has the arms {', '.join(weak) or 'none'}{rest}")
    risk = budget["risk"]  # a certified cut is that of the rows where it is of this arm, and not one by class
    long = choice.get("too_long")
    has_one_cut = budget["reference"] == arm and budget.get("asked") is None and "classes" not in (risk or {})
    return Origin(
        run=str(run),
        generation=generation,
        arm=arm,
        function=ARMS[arm].trust,
        ranked=ARMS[arm].takes_top
        and not is_divided(budget)
        and not choice.get("left_out")
        and not choice.get("repeats")
        and not record.outputs.get("unseen"),
        labels=(TableRef.from_json(choice["labels"]),),
        pools=(TableRef.from_json(choice["pool"]),),
        selection=TableRef.from_json(arms[arm]["table"]),
        threshold=None,
        num_selected=arms[arm]["num_rows"],
        too_long=None if long is None else TableRef.from_json(long),
        domain=choice["domain"],
        n=budget["n"],
        risk=risk if has_one_cut else None,
    )


def _find_in_filter(output: Place, arm: str | None) -> Origin:
    manifest = Manifest.load(output / WORK)
    stages = manifest.stages
    rounds = [name for name in manifest.files if f"write-{name}" in stages]
    if "cut" not in stages or not rounds:
        raise ReviewError(f"{output}: nothing is written yet; give the command of `curate filter` again")
    cut = stages["cut"]
    function = cut.inputs["function"]
    if arm not in (None, function):
        raise ReviewError(f"--arm {arm}: {output} is the output of a filter, which ranks by {function}; leave it out")
    num_written = sum(stages[f"write-{name}"].rows for name in rounds)
    return Origin(
        run=str(output),
        generation=None,
        arm=function,
        function=function,
        ranked=True,
        labels=tuple(TableRef.from_json(stages[f"label-{name}"].outputs["labels"]) for name in rounds),
        pools=tuple(TableRef.from_json(stages[f"pool-{name}"].outputs["pool"]) for name in rounds),
        selection=None,
        threshold=cut.outputs["threshold"],
        num_selected=num_written,
        too_long=None,
        domain=stages[f"pool-{rounds[0]}"].inputs["domain"],
        n=num_written,
        risk=cut.outputs["risk"],
    )


def find_review_rows(origin: Origin, *, floor: float | None = None) -> tuple[ScoredRows, int]:
    """Return the rows that score at least ``floor``, or, without a floor, the best rows: a review's region and more.

    Return the number of rows that could be selected, too. If the arm does not rank, return its selected rows. Scores
    are streamed, so memory grows with the region, not with the pool (if nothing is selected, the region is the pool).
    """
    try:
        selected_n = _read_ids(origin.selection)
        if not origin.ranked:
            unknown_n = np.full(len(selected_n), np.nan, dtype=np.float32)
            all_n = np.ones(len(selected_n), dtype=np.bool_)
            scored = ScoredRows(row_ids_N=selected_n, raw_N=unknown_n, trust_N=unknown_n, selected_N=all_n)
            return scored, len(selected_n)
        found, num_candidates = _find_best(origin, floor)
    except (OSError, ValueError) as error:
        raise ReviewError(
            f"{origin.run}: a table of its selection cannot be read ({error}); if the run directory was moved, "
            "draw again, as this review stands outside of it (--folder)"
        ) from error
    if origin.threshold is None:
        found = replace(found, selected_N=np.isin(found.row_ids_N, selected_n))
    return found, num_candidates


def _find_best(origin: Origin, floor: float | None) -> tuple[ScoredRows, int]:
    """Return rows from the floor on, or at least the best ``REACH * num_selected``, and the number of candidates."""
    function, threshold = get_trust(origin.function, 0), origin.threshold
    further = [] if threshold is None else [threshold["column"]]
    columns = list(dict.fromkeys(["row_id", *function.features, *further]))
    out_M, wanted = _read_ids(origin.too_long), REACH * origin.num_selected
    kept, num_kept, num_read = [SCORED.empty_table()], 0, 0
    for ref in origin.labels:
        scanner = io.open_table(ref).scanner(columns=columns, filter="error IS NULL AND label IS NOT NULL")
        for batch in scanner.to_batches():
            raw_B, ids_B = function.raw_score(batch), batch.column("row_id").to_numpy()
            passed_B = np.zeros(len(ids_B), dtype=np.bool_)
            if threshold is not None:
                score_B = batch.column(threshold["column"]).to_numpy(zero_copy_only=False)
                passed_B = Bound(**threshold["bound"]).passes(ids_B, score_B)
            may_B = np.isfinite(raw_B) & ~np.isin(ids_B, out_M)
            num_read += int(may_B.sum())
            rows = pa.table([ids_B, raw_B, function.score(batch), passed_B], schema=SCORED)
            kept.append(rows.filter(pa.array(may_B if floor is None else may_B & (raw_B >= floor))))
            num_kept += len(kept[-1])
            if floor is None and wanted and num_kept > 2 * wanted + SPARE_ROWS:
                joined = pa.concat_tables(kept)
                raw_N = joined["raw_N"].to_numpy()
                kept = [joined.filter(pa.array(raw_N >= np.partition(raw_N, num_kept - wanted)[num_kept - wanted]))]
                num_kept = len(kept[0])
    joined = pa.concat_tables(kept)
    return ScoredRows(**{name: joined[name].to_numpy() for name in SCORED.names}), num_read


def read_row_texts(origin: Origin, row_ids_M: Int64s) -> pa.Table:
    """Return prompt, weak label (null if unreadable) and completion of rows, in the order of the ids."""
    domain = get_domain(DomainConfig.model_validate(origin.domain))
    wanted = f"row_id IN ({', '.join(map(str, row_ids_M.tolist()))})"
    examples = {row["row_id"]: row for ref in origin.pools for row in io.read(ref, filter=wanted).to_pylist()}
    columns = ["row_id", "label", "completion"]
    labels = {row["row_id"]: row for ref in origin.labels for row in io.read(ref, columns, wanted).to_pylist()}
    rows = [{**labels[row_id], "prompt": attempt(domain.prompt, examples[row_id])[0]} for row_id in row_ids_M.tolist()]
    schema = pa.schema([(name, pa.string()) for name in ("prompt", "label", "completion")])
    return pa.Table.from_pylist(rows, schema=schema)


def _read_ids(ref: TableRef | None) -> Int64s:
    """Return the row ids of a table, int64 [M]; empty without a table."""
    found: Int64s = np.zeros(0, dtype=np.int64) if ref is None else io.read(ref, ["row_id"])["row_id"].to_numpy()
    return found
