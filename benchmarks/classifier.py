"""The way from a classifier's CSV files to a report, a selection and a filter, by the commands of docs/data-forms.md.

    python -m benchmarks.classifier --model FOLDER --data FOLDER [--work build/classifier] [--write-docs]

The rows are BANKING77 (77 intents of a bank's customers): 500 with their class, 2,000 without, and 300 for the filter.
The configuration and the commands are read from the page; the seconds of each command are printed. Then the 2,000 rows,
whose classes the run never saw, are ranked by trust and by its alternatives, on the same labels. Printed for each are
the AUC for right against wrong labels, and the purity of the best tenth:

- Plain confidence, the share of the likeliest class among the scored ones, and autolabel's mean log-probability of the
  label's tokens.
- cleanlab (``pip install cleanlab``; its lines are omitted if it is not installed): label quality scores and
  ``find_label_issues``, by class probabilities of the teacher (its scored options), of a logistic regression on the
  prompt's states that is cross-validated on the teacher's labels, as is usual for cleanlab, or fitted on the same 500
  labelled rows as trust.
"""

import argparse
import csv
import importlib
import importlib.util
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import lance
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from benchmarks.recorded import recorded
from curation.arrays import Float64s
from curation.metrics import compute_auc_value
from curation.refs import TableRef
from curation.tables import io, schemas

LABELLED, UNLABELLED, LATER = 500, 2_000, 300
DOCS = Path(__file__).parents[1] / "docs"
PAGE, TABLES = DOCS / "data-forms.md", DOCS / "log" / "classifier.md"
BEGIN, END = "<!-- table: python -m benchmarks.classifier --write-docs -->", "<!-- end of the classifier's table -->"
SECTION = re.compile(r"\n## 500 texts.*?(?=\n## )", re.DOTALL)
PEER = importlib.util.find_spec("cleanlab") is not None


class Rows(NamedTuple):
    """The graded labels of the pool's N rows, with the scores that rank them."""

    label_N: npt.NDArray[np.int64]
    """Class that the teacher gave to each row."""
    right_N: npt.NDArray[np.bool_]
    scores: Mapping[str, Float64s]
    """Scores by name; a larger score means a surer label."""
    selected: Mapping[str, npt.NDArray[np.bool_]]
    """Whether each selected row is right, by arm."""
    probabilities: Mapping[str, Float64s]
    """Class probabilities [N, number of classes] for cleanlab, by their origin."""


def write_files(data: Path, folder: Path, *, seed: int = 0) -> dict[str, str]:
    """Write the three files of the page; the classes of the unlabelled texts, which no run reads."""
    table = pq.read_table(data / "classification" / "banking77_train.parquet", columns=["text", "label"])
    order = np.random.default_rng(seed).permutation(len(table))
    rows = table.take(order[: LABELLED + UNLABELLED + LATER]).to_pylist()
    unlabelled, later = rows[LABELLED : LABELLED + UNLABELLED], rows[LABELLED + UNLABELLED :]
    parts = {
        "labelled.csv": (rows[:LABELLED], ["text", "label"]),
        "unlabelled.csv": (unlabelled, ["text"]),
        "later.csv": (later, ["text"]),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, (part, columns) in parts.items():
        text = StringIO(newline="")
        writer = csv.DictWriter(text, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(part)
        path, content = folder / name, text.getvalue().encode()
        if not path.exists() or path.read_bytes() != content:  # a run that goes on refuses sources written anew
            path.write_bytes(content)
    return {row["text"]: row["label"] for row in unlabelled}


def section() -> str:
    """Return the part of the page that begins it."""
    found = SECTION.search(PAGE.read_text())
    assert found is not None, f"{PAGE} has no section on 500 texts"
    return found[0]


def commands() -> list[list[str]]:
    """Return the calls of ``curate`` in the section's shell blocks, without the word itself."""
    blocks = re.findall(r"```sh\n(.*?)```", section(), re.DOTALL)
    return [line.split()[1:] for block in blocks for line in block.splitlines() if line.startswith("curate ")]


def in_a_process(words: list[str], folder: Path) -> None:
    """Call ``curate`` with these words in a folder."""
    subprocess.run([sys.executable, "-m", "curation.cli", *words], cwd=folder, check=True)


def run_page(
    folder: Path, model: Path, *, anyway: bool = False, curate: Callable[[list[str], Path], None] = in_a_process
) -> dict[str, float]:
    """Run the section's commands in a folder with the three files; the seconds of each.

    ``anyway`` filters whatever the verdict of the run is.
    """
    configuration = re.findall(r"```yaml\n(.*?)```", section(), re.DOTALL)[0]
    (folder / "tickets.yaml").write_text(configuration.replace("google/gemma-3-270m", str(model)))
    seconds: dict[str, float] = {}
    for words in commands():
        begun = time.monotonic()
        if anyway and words[0] == "filter":
            words = [*words, "--anyway"]
        curate(words, folder)
        seconds[words[0]] = time.monotonic() - begun
    return seconds


def read_rows(folder: Path, gold: Mapping[str, str]) -> Rows:
    """Return the pool's labels as the run left them, graded by the classes that it never saw."""
    stages = recorded(folder / "runs" / "tickets")
    outputs = {name: stage["outputs"] for name, stage in stages.items() if stage.get("outputs")}
    pool = TableRef.from_json(outputs["gen-0/score-pool"]["labels"])
    state, trust = schemas.get_state_column("prompt_last"), schemas.trust_column("trust")
    numbers = {"trust": trust, "autolabel: mean log-probability": "mean_logprob", "margin": "margin"}
    found = io.open_table(pool).to_table(columns=["row_id", "label", "option_logprobs", state, *numbers.values()])
    found = found.filter(found["label"].is_valid())
    texts = io.take(TableRef.from_json(outputs["prepare"]["tables"]["pool"]), found["row_id"].to_numpy(), ["text"])
    right_N = np.array(
        [gold[text] == label for text, label in zip(texts["text"].to_pylist(), found["label"].to_pylist(), strict=True)]
    )
    classes = sorted({row["label"] for row in csv.DictReader((folder / "labelled.csv").open(newline=""))})
    place = {name: number for number, name in enumerate(classes)}
    label_N = np.array([place[label] for label in found["label"].to_pylist()])
    teacher_NC = _softmax(np.array(found["option_logprobs"].to_pylist()))
    source = io.open_table(TableRef.from_json(outputs["gen-0/label-source"]["labels"]))
    source_table = source.to_table(columns=["row_id", state])
    gold_source = io.take(
        TableRef.from_json(outputs["prepare"]["tables"]["source"]), source_table["row_id"].to_numpy(), ["gold"]
    )
    source_ND, pool_ND = (np.array(table[state].to_pylist(), dtype=np.float64) for table in (source_table, found))
    source_N = np.array([place[label] for label in gold_source["gold"].to_pylist()])
    return Rows(
        label_N,
        right_N,
        {
            **{name: found[column].to_numpy() for name, column in numbers.items()},
            "plain confidence": teacher_NC.max(axis=1),
        },
        {
            arm: right_N[np.isin(found["row_id"].to_numpy(), _selected(folder, arm))]
            for arm in ("naive", "internal_confidence", "trust")
        },
        {
            "the teacher's probabilities": teacher_NC,
            "cross-validated on the labels": _cross_validated(pool_ND, label_N, len(classes)),
            "fitted on the labelled rows": _spread(_classifier().fit(source_ND, source_N), pool_ND, len(classes)),
        },
    )


def _selected(folder: Path, arm: str) -> list[int]:
    """Return the row ids of an arm's selection."""
    (path,) = (folder / "runs" / "tickets" / "gen-0").glob(f"select-*/{arm}.lance")
    found: list[int] = lance.dataset(str(path)).to_table(columns=["row_id"])["row_id"].to_pylist()
    return found


def _softmax(score_NC: Float64s) -> Float64s:
    powers_NC = np.exp(score_NC - score_NC.max(axis=1, keepdims=True))
    return np.asarray(powers_NC / powers_NC.sum(axis=1, keepdims=True))


def _classifier() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=1e-2, max_iter=1_000))


def _spread(fitted: Any, states_ND: Float64s, num_classes: int) -> Float64s:
    """Return the probabilities of all classes; those that were not fitted have next to none."""
    found_NC = np.full((len(states_ND), num_classes), 1e-9)
    found_NC[:, fitted.classes_] = fitted.predict_proba(states_ND)
    return np.asarray(found_NC / found_NC.sum(axis=1, keepdims=True))


def _cross_validated(states_ND: Float64s, label_N: npt.NDArray[np.int64], num_classes: int) -> Float64s:
    from sklearn.model_selection import KFold

    found_NC = np.empty((len(states_ND), num_classes))
    for fit_M, left_M in KFold(5, shuffle=True, random_state=0).split(states_ND):
        found_NC[left_M] = _spread(_classifier().fit(states_ND[fit_M], label_N[fit_M]), states_ND[left_M], num_classes)
    return found_NC


def quality(rows: Rows, of: str) -> Float64s:
    """Return cleanlab's label quality scores."""
    rank = importlib.import_module("cleanlab.rank")
    return np.asarray(rank.get_label_quality_scores(rows.label_N, rows.probabilities[of]))


def without_issue(rows: Rows, of: str) -> npt.NDArray[np.bool_]:
    """Return which rows have no issue by ``find_label_issues``, bool [N]."""
    find: Callable[..., Any] = importlib.import_module("cleanlab.filter").find_label_issues
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some classes were never given as a label
        return np.asarray(~find(rows.label_N, rows.probabilities[of], n_jobs=1))


def table(rows: Rows, seconds: Mapping[str, float]) -> str:
    """Return the findings as Markdown."""
    scores = dict(rows.scores)
    if PEER:
        scores |= {f"cleanlab, {of}": quality(rows, of) for of in rows.probabilities}
    tenth = len(rows.right_N) // 10
    took = ", ".join(f"{name} {count:.0f} s" for name, count in seconds.items())
    lines = [
        f"{len(rows.right_N):,} rows, of which {100 * rows.right_N.mean():.1f} % are right; {took}:",
        "",
        f"| ranked by | AUC | right among the best tenth ({tenth} rows) |",
        "| --- | ---: | ---: |",
    ]
    for name, score_N in sorted(scores.items(), key=lambda item: item[0] != "trust"):
        best = np.argsort(-score_N, kind="stable")[:tenth]
        shown = f"**{name}**" if name == "trust" else name
        lines.append(
            f"| {shown} | {compute_auc_value(score_N, rows.right_N):.3f} | {100 * rows.right_N[best].mean():.1f} % |"
        )
    lines += [
        f"| the run's selection by {arm}{'' if arm == 'naive' else ', with places by class'} | "
        f"| {100 * right_N.mean():.1f} % of {len(right_N)} |"
        for arm, right_N in rows.selected.items()
    ]
    if PEER:
        lines += ["", "| rows without an issue, by `find_label_issues` | kept | right | as many by trust |"]
        lines += ["| --- | ---: | ---: | ---: |"]
        for of in rows.probabilities:
            kept_N = without_issue(rows, of)
            best = np.argsort(-scores["trust"], kind="stable")[: kept_N.sum()]
            shares = (kept_N.mean(), rows.right_N[kept_N].mean(), rows.right_N[best].mean())
            lines.append(f"| {of} | {' | '.join(f'{100 * share:.1f} %' for share in shares)} |")
    return "\n".join(lines)


def main() -> None:
    """Write the files, run the page, and grade what it chose."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="the folder of gemma-3-270m, or of another model")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data sets")
    parser.add_argument("--work", type=Path, default=Path("build/classifier"), help="where files and run are kept")
    parser.add_argument("--write-docs", action="store_true", help="write the tables into docs/log/classifier.md")
    given = parser.parse_args()
    folder = given.work.absolute()
    gold = write_files(given.data.absolute(), folder)
    seconds = run_page(folder, given.model.absolute())
    if not PEER:
        print("cleanlab is not installed, so that its lines are left out: pip install cleanlab")
    found = table(read_rows(folder, gold), seconds)
    print(found)
    if given.write_docs:
        head, _, rest = TABLES.read_text().partition(BEGIN)
        TABLES.write_text(f"{head}{BEGIN}\n\n{found}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
