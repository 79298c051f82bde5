"""The source of a review: the candidate rows of a run's arm, the selected ones, and their texts.

An :class:`Origin` refers to versions of tables, so that the result of a review is computed from the same tables that
its rows were drawn from, even if the run has made another selection since.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from curation.arms import ARMS, REFERENCE_ARM
from curation.arrays import Int64s
from curation.config import DomainConfig
from curation.domains import attempt, get_domain
from curation.errors import ReviewError
from curation.features import is_divided
from curation.json_types import Json
from curation.refs import TableRef
from curation.rundir.graph import Position
from curation.rundir.manifest import Manifest, StageRecord
from curation.selection.review import REACH, ScoredRows
from curation.stages.select import Select
from curation.storage.paths import Place, require_reachable
from curation.tables import io
from curation.trust import get_trust

SCORED = pa.schema([("row_ids_N", pa.int64()), ("raw_N", pa.float32()), ("trust_N", pa.float32())])
"""The columns of ``ScoredRows`` that are read from a table of labels."""
SPARE_ROWS = 1 << 20
"""Number of surplus rows that are held in memory before all but the best rows are dropped."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The selection of one arm of a run, with the tables that the selection was made from."""

    run: str
    generation: int
    arm: str
    function: str
    """The trust function by whose columns the rows are ranked."""
    ranked: bool
    """Whether the selection is the top of a ranking, neither drawn nor divided; only then there is a cut."""
    labels: TableRef
    pool: TableRef
    selection: TableRef
    num_selected: int
    too_long: TableRef | None
    domain: Json
    n: int
    """The budget of the run."""
    risk: Json | None
    """The certified cut of this arm; None if none was requested."""


def find_origin(run: Place, arm: str | None) -> Origin:
    """Return the newest selection of an arm of a run (default: ``trust`` or the only arm)."""
    require_reachable(run)
    if not (run / "manifest.json").is_file():
        raise ReviewError(f"{run}: is not a run directory (no manifest.json); give the run_dir of a run")
    manifest = Manifest.load(run)
    found: list[StageRecord] = []
    while (record := manifest.find(Position(generation=len(found), split="pool"), Select)) is not None:
        found.append(record)
    if not found:
        raise ReviewError(f"{run}: nothing is selected yet; `curate run {run} --until gen-0/select` selects")
    record = found[-1]
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
        gold = [name for name in arms if ARMS[name].gold]
        rest = f"; {', '.join(gold)} train on gold labels, which need no verdict" if gold else ""
        raise ReviewError(f"--arm: {which}; {run} has the arms {', '.join(weak) or 'none'}{rest}")
    risk = budget["risk"]
    long = choice.get("too_long")
    has_one_cut = budget["reference"] == arm and budget.get("asked") is None and "classes" not in (risk or {})
    return Origin(
        run=str(run),
        generation=len(found) - 1,
        arm=arm,
        function=ARMS[arm].trust,
        ranked=ARMS[arm].takes_top
        and not is_divided(budget)
        and not choice.get("left_out")
        and not choice.get("repeats")
        and not record.outputs.get("unseen"),
        labels=TableRef.from_json(choice["labels"]),
        pool=TableRef.from_json(choice["pool"]),
        selection=TableRef.from_json(arms[arm]["table"]),
        num_selected=arms[arm]["num_rows"],
        too_long=None if long is None else TableRef.from_json(long),
        domain=choice["domain"],
        n=budget["n"],
        risk=risk if has_one_cut else None,
    )


def find_review_rows(origin: Origin, *, floor: float | None = None) -> ScoredRows:
    """Return the rows that score at least ``floor``, or, without a floor, the best rows: a review's region and more.

    If the arm does not rank, return its selected rows. Scores are streamed, so memory grows with the region, not with
    the pool (if nothing is selected, the region is the pool).
    """
    try:
        selected_n = _read_ids(origin.selection)
        if origin.ranked:
            return _find_best(origin, selected_n, floor)
        unknown_n = np.full(len(selected_n), np.nan, dtype=np.float32)
        all_n = np.ones(len(selected_n), dtype=np.bool_)
        return ScoredRows(row_ids_N=selected_n, raw_N=unknown_n, trust_N=unknown_n, selected_N=all_n)
    except (OSError, ValueError) as error:
        raise ReviewError(
            f"{origin.run}: a table of its selection cannot be read ({error}); if the run directory was moved, "
            "draw again, as this review stands outside of it (--folder)"
        ) from error


def _find_best(origin: Origin, selected_n: Int64s, floor: float | None) -> ScoredRows:
    """Return the rows that score at least ``floor`` or, without a floor, at least the best ``REACH * num_selected``."""
    function = get_trust(origin.function, 0)
    columns = list(dict.fromkeys(["row_id", *function.features]))
    excluded_M: Int64s = np.zeros(0, dtype=np.int64) if origin.too_long is None else _read_ids(origin.too_long)
    kept, num_kept, least = [SCORED.empty_table()], 0, REACH * origin.num_selected
    scanner = io.open_table(origin.labels).scanner(columns=columns, filter="error IS NULL AND label IS NOT NULL")
    for batch in scanner.to_batches():
        raw_B, ids_B = function.raw_score(batch), batch.column("row_id").to_numpy()
        eligible_B = np.isfinite(raw_B) & ~np.isin(ids_B, excluded_M)
        if floor is not None:
            eligible_B &= raw_B >= floor
        rows = pa.table([ids_B, raw_B, function.score(batch)], schema=SCORED)
        kept.append(rows.filter(pa.array(eligible_B)))
        num_kept += len(kept[-1])
        if floor is None and least and num_kept > 2 * least + SPARE_ROWS:
            joined = pa.concat_tables(kept)
            raw_N = joined["raw_N"].to_numpy()
            kept = [joined.filter(pa.array(raw_N >= np.partition(raw_N, num_kept - least)[num_kept - least]))]
            num_kept = len(kept[0])
    found = {name: column.to_numpy() for name, column in zip(SCORED.names, pa.concat_tables(kept).columns, strict=True)}
    return ScoredRows(**found, selected_N=np.isin(found["row_ids_N"], selected_n))


def read_row_texts(origin: Origin, row_ids_M: Int64s) -> pa.Table:
    """Return prompt, weak label (null if unreadable) and completion of rows, in the order of the ids."""
    domain = get_domain(DomainConfig.model_validate(origin.domain))
    among = f"row_id IN ({', '.join(map(str, row_ids_M.tolist()))})"
    examples = {row["row_id"]: row for row in io.read(origin.pool, filter=among).to_pylist()}
    labels = {
        row["row_id"]: row for row in io.read(origin.labels, ["row_id", "label", "completion"], among).to_pylist()
    }
    rows = [{**labels[row_id], "prompt": attempt(domain.prompt, examples[row_id])[0]} for row_id in row_ids_M.tolist()]
    schema = pa.schema([(name, pa.string()) for name in ("prompt", "label", "completion")])
    return pa.Table.from_pylist(rows, schema=schema)


def _read_ids(ref: TableRef) -> Int64s:
    found: Int64s = io.read(ref, ["row_id"])["row_id"].to_numpy()
    return found
