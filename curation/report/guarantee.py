"""Whether the guarantee of a risk-controlled budget is claimed, what it assumes, and why it is withheld."""

from curation.features import list_divisions
from curation.json_types import Json
from curation.report.record import GenerationRecord, RunInputs

UNLABELLED_KINDS = ("no_gold", "bad_answer", "no_box", "illegal_move", "bad_gold")
"""Kinds of error rows of a labelled split that would be valid in the pool, whose gold labels are not read."""


def collect_guarantee(run: RunInputs, record: GenerationRecord) -> Json | None:
    """Return a risk-controlled budget's guarantee and assumption; ``withheld`` says why it is not claimed, if so."""
    risk = record.budget["risk"]
    if risk is None:
        return None
    splits, strength = run.config["splits"], record.shift["calibration"]["strength"]
    no_gold = sum(
        number for kind, number in run.prepare_counts["calibration"]["errors"].items() if kind in UNLABELLED_KINDS
    )
    dropped = sum(run.overlap["dropped"].get(split, 0) for split in ("calibration", "pool"))
    by_construction = splits["calibration"]["from"] == splits["pool"]["from"] and not no_gold and not dropped
    by_construction = by_construction and not is_excluded_by_gold(
        record
    )  # in the pool this excludes only rows with a gold label
    withheld, foreign = None, record.foreign.get(record.budget["reference"])
    if not record.n:
        withheld = "nothing is selected"
    elif record.budget.get("asked") is not None:
        names = " and ".join(f"selection.{name}" for name in list_divisions() if record.budget.get(name) is not None)
        withheld = (
            f"{names} leaves {record.n:,} of {record.budget['asked']:,} certified rows, and those of "
            "rarer labels may have more wrong labels"
        )
    elif risk["rule"] == "hoeffding":
        withheld = "the uncorrected rule holds for each threshold by itself, not for the one that the search chose"
    elif record.index:
        withheld = (
            "an earlier generation's selection was calibrated on the same rows, so this generation's scores are not "
            "independent of them"
        )
    elif not by_construction and strength != "none shown":
        withheld = "only the user's word says that calibration rows are like the pool's; their hidden states are " + (
            "too few to compare" if strength == "untested" else "different"
        )
    elif not by_construction and foreign is not None:
        withheld = foreign["warning"]
    return {
        "text": risk["guarantee"],
        "exchangeable": "by construction: both are random parts of one source"
        if by_construction
        else "on the user's word"
        + (f": {no_gold:,} calibration rows without a usable gold label were left out" if no_gold else "")
        + (f"; {dropped:,} rows of both were dropped for what other splits ask" if dropped else ""),
        "claimed": withheld is None,
        "withheld": withheld,
        "needed": risk["needed"],
        "needed_basis": risk["needed_basis"],
    }


def is_excluded_by_gold(record: GenerationRecord) -> bool:
    """Return whether rows are excluded for all arms only because their gold completion is too long."""
    return any(found["num_gold_only"] for found in record.too_long.values())
