"""Which arms may be compared: students that trained on as many rows, for as many epochs, in one format.

Arms should differ only in their selection. If training itself differed, a difference in accuracy says nothing about the
selection, so the report gives no verdict, p-value or recovery.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from curation.report.headline import name_of
from curation.report.record import GROUND_TRUTH

Json = Mapping[str, Any]

ALIKE = {
    "rows_trained": "rows trained on",
    "rows_dropped": "rows dropped in training",
    "epochs": "epochs",
    "format": "format",
}
"""What two students must have in common, in words; an arm without one of these values is not compared by it."""
CLAIMS = ("recovery", "recovery_interval", "verdict", "paper_verdict", "p_value_vs_ground_truth")
"""The numbers that compare an arm's student with ground truth's."""


def withheld(arms: Sequence[Json]) -> str | None:
    """Why these arms' students cannot be compared, in words; None if they can, or if there is at most one."""
    trained = [arm for arm in arms if arm.get("rows_trained") is not None]
    found = []
    for key, words in ALIKE.items():
        values = {name_of(arm): arm[key] for arm in trained if arm.get(key) is not None}
        if len(set(values.values())) > 1:
            found.append(f"{words}: " + ", ".join(f"{name} {_shown(value)}" for name, value in values.items()))
    return f"the students trained differently ({'; '.join(found)})" if found else None


def withhold(arms: Sequence[Json]) -> list[dict[str, Any]]:
    """The arms' entries, without comparisons to a ground truth that trained differently.

    ``withheld`` of each entry says why, and is None if nothing is withheld.
    """
    truth = next((arm for arm in arms if arm["name"] == GROUND_TRUTH), None)
    entries = []
    for arm in arms:
        reason = None if truth is None or arm is truth else withheld([arm, truth])
        entries.append({**arm, **(dict.fromkeys(CLAIMS) if reason else {}), "withheld": reason})
    return entries


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
