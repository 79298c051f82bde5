"""Quality of trust in finished runs, from their tables alone: ``python -m benchmarks.trust_quality RUN_DIR...``.

It reads no report, so runs of any version can be compared. Each line has a run's purity of each arm's rows, AUC of
trust and of internal confidence on the parsed pool rows, and the Brier score of trust on parsed and on all pool rows
beside that of a constant, the share of right labels among the source's parsed, or all, rows. On all rows, trust is as
the run scored every row, and then 0 for unparsed rows, as in selection. Needs ``splits.audit``.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.recorded import recorded
from curation import metrics
from curation.domains.grading import read_grades
from curation.refs import TableRef
from curation.tables import io

COLUMNS = ["row_id", "label", "mean_logprob", "trust_raw", "trust_trust"]


def graded(outputs: Mapping[str, Any], labels: str, split: str, columns: list[str]) -> tuple[pa.Table, Any]:
    """Return the labels of a split that are graded, and which of them are right, both ascending by row id."""
    ref = TableRef.from_json(outputs[f"gen-0/{labels}-{split}"]["labels"])
    rows = io.read(ref, columns=columns, filter="error IS NULL").sort_by("row_id")
    found = read_grades(TableRef.from_json(outputs[f"gen-0/grade-{split}"]["grades"]))
    kept = rows.filter(pa.array(np.isin(rows["row_id"].to_numpy(), found.row_ids_N)))
    return kept, found.correct_N[np.isin(found.row_ids_N, rows["row_id"].to_numpy())]


def quality(directory: Path) -> dict[str, Any]:
    """Return the numbers of one run."""
    stages = recorded(directory)
    outputs = {name: stage["outputs"] for name, stage in stages.items()}
    pool, correct_N = graded(outputs, "score", "pool", COLUMNS)
    source, source_N = graded(outputs, "label", "source", ["row_id", "label"])
    parsed_N, known_N = (table["label"].is_valid().to_numpy() for table in (pool, source))
    raw_N, trust_N, logprob_N = (pool[name].to_numpy() for name in ("trust_raw", "trust_trust", "mean_logprob"))
    right = dict(zip(pool["row_id"].to_pylist(), correct_N.tolist(), strict=True))
    arms = {}
    for arm, item in outputs["gen-0/select"]["arms"].items():
        ids = io.read(TableRef.from_json(item["table"]), columns=["row_id"])["row_id"].to_pylist()
        arms[arm] = float(np.mean([right[row_id] for row_id in ids]))
    found: dict[str, Any] = {
        "purity": {arm: purity for arm, purity in arms.items() if arm != "ground_truth"},
        "auc_parsed": metrics.compute_auc_value(raw_N[parsed_N], correct_N[parsed_N]),
        "auc_parsed_internal_confidence": metrics.compute_auc_value(logprob_N[parsed_N], correct_N[parsed_N]),
    }
    for name, rows_N, of_N in (("parsed", parsed_N, known_N), ("all", parsed_N | True, known_N | True)):
        constant = np.full(int(rows_N.sum()), source_N[of_N].mean())
        found[f"brier_{name}"] = metrics.brier(trust_N[rows_N], correct_N[rows_N]).value
        found[f"brier_{name}_constant"] = metrics.brier(constant, correct_N[rows_N]).value
    found["brier_all_unparsed_at_0"] = metrics.brier(np.where(parsed_N, trust_N, 0.0), correct_N).value
    return found


def main() -> None:
    """Print a line a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    for directory in parser.parse_args().runs:
        found = quality(directory)
        purity = ", ".join(f"{arm} {100 * value:.1f}" for arm, value in found.pop("purity").items())
        print(
            f"{directory.name}: purity % {purity}; " + ", ".join(f"{key} {value:.4f}" for key, value in found.items())
        )


if __name__ == "__main__":
    main()
