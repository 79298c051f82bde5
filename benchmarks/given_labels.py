"""Trust in labels made elsewhere, with and without a reader, beside cleanlab on the same columns.

    python -m benchmarks.given_labels --model FOLDER --data FOLDER [--work build/given_labels] [--write-docs]

The rows are tweets with a gold label (irony of TweetEval). A quarter of the labels are flipped, and each label has a
noisy confidence. A model reads every tweet and its label once (``teacher.reader``; resumable). Then, for each of
several splits into labelled and other rows, each arm ranks the other rows by the probability that their label is right.
Printed are AUC and purity of the best 10 and 25 %: means over the splits with standard deviations.

The peer is cleanlab (``pip install cleanlab``; its lines are omitted if it is not installed): its label quality scores
of out-of-sample class probabilities by a logistic regression on what the reader gives before the label: the states of
the prompt's end and the log-odds of the two classes. The regression is fitted on the given labels of all rows, as is
usual for cleanlab, or on the gold labels of the labelled rows, as trust is. States of the label itself would reveal the
given label. The rows kept by cleanlab are those that ``find_label_issues`` does not name.
"""

import argparse
import importlib
import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.real.arms import fitted
from benchmarks.recorded import recorded
from curation.arrays import Float64s
from curation.config import RunConfig, TrustConfig
from curation.metrics import compute_auc_value
from curation.refs import TableRef
from curation.tables import io, schemas
from curation.trust.class_probe import LABEL
from curation.trust.parts import FIT, VALIDATION
from curation.trust.stacked import list_stored_numbers
from train.probes import ClosedLabels, with_classes
from train.trust import read_labelled_rows
from train.trust_loop import LabelledRows

CLASSES = {"irony": "ironic", "non_irony": "not ironic"}
FLIPPED, STATES = 0.25, ("prompt_last", "output_mean", "output_last")
CONFIDENCE = "given_confidence"
RESULTS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "log" / "given-labels.md"
BEGIN, END = "<!-- table: python -m benchmarks.given_labels --write-docs -->", "<!-- end of table -->"
PEER = importlib.util.find_spec("cleanlab") is not None


class Rows(NamedTuple):
    """All rows of the run, with the inputs of cleanlab."""

    trust: LabelledRows
    given_N: npt.NDArray[np.int64]
    """Class of each given label."""
    before_ND: Float64s
    """The reader's columns that do not depend on the label: states of the prompt's end, and log-odds of the classes."""

    def part(self, places_M: npt.NDArray[np.int64], *, labelled: bool) -> "Rows":
        """Return some of the rows; ``labelled``: in the parts of a fit."""
        part_M = np.full(len(places_M), FIT, dtype=np.int8)
        if labelled:
            part_M[: len(places_M) // 5] = VALIDATION
        rows = self.trust._replace(
            hidden_ND=np.asarray(self.trust.hidden_ND)[places_M],
            correct_N=self.trust.correct_N[places_M],
            row_ids_N=np.arange(len(places_M), dtype=np.int64),
            numbers_NK=self.trust.numbers_NK[places_M],
            part_N=part_M,
            gold_N=None if self.trust.gold_N is None else self.trust.gold_N[places_M],
        )
        return Rows(rows, self.given_N[places_M], self.before_ND[places_M])


def write_rows(data: Path, path: Path, num_rows: int, *, seed: int = 0) -> None:
    """Write the rows: text, gold label, given label, its confidence.

    The log-odds of the confidence are normal with deviation 1 and mean 1, of flipped labels -0.2.
    """
    files = [data / "classification" / f"tweeteval_irony_{part}.parquet" for part in ("train", "val")]
    table = pa.concat_tables(pq.read_table(file, columns=["text", "label"]) for file in files).slice(0, num_rows)
    rng, other = np.random.default_rng(seed), dict(zip(CLASSES, reversed(CLASSES), strict=True))
    flipped_N = rng.random(len(table)) < FLIPPED
    confidence_N = 1 / (1 + np.exp(-(1 - 1.2 * flipped_N + rng.normal(size=len(table)))))
    answers = [
        other[label] if flip else label for label, flip in zip(table["label"].to_pylist(), flipped_N, strict=True)
    ]
    table = table.append_column("answer", pa.array(answers)).append_column("confidence", pa.array(confidence_N))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def configuration(model: Path, work: Path, *, num_rows: int, dtype: str) -> RunConfig:
    """Return the run whose labels the model reads, those of the source: the deals are made of its rows."""
    return RunConfig.model_validate(
        {
            "name": "given-labels",
            "run_dir": str(work / "run"),
            "domain": {"name": "classification", "classes": CLASSES},
            "sources": {"rows": {"path": str(work / "rows.parquet")}},
            "splits": {
                "source": {"from": "rows", "rows": num_rows},
                "pool": {"from": "rows"},
                "overlap": "drop",
            },
            "teacher": {
                "backend": "given",
                "completion": "answer",
                "confidence": "confidence",
                "reader": {"model": {"path": str(model)}},
                "dtype": dtype,
                "states": list(STATES),
                "token_logprobs": 8,
                "chunk_rows": 128,
                "actors": {"min": 2, "max": 2},
            },
            "trust": {"states": list(STATES)},
            "selection": {"budget": {"share": 0.25}},
        }
    )


def read_rows(directory: Path) -> Rows:
    """Return the graded rows of the run."""
    stages = recorded(directory)
    labels = io.find_latest(stages["gen-0/label-source"]["outputs"]["labels"]["uri"])
    grades = TableRef.from_json(stages["gen-0/grade-source"]["outputs"]["grades"])
    numbers = list_stored_numbers(io.open_table(labels).schema)
    trust = read_labelled_rows(labels, grades, TrustConfig(states=STATES), seed=0, numbers=numbers)
    gold = TableRef.from_json(stages["prepare"]["outputs"]["tables"]["source"])
    trust = with_classes(trust, labels, ClosedLabels(tuple(CLASSES), gold))
    state = schemas.get_state_column("prompt_last")
    table = io.take(labels, trust.row_ids_N, ["label", "option_logprobs", state])
    score_N2 = np.array(table["option_logprobs"].to_pylist())
    state_ND = np.array(table[state].to_pylist(), dtype=np.float64)
    given_N = np.array([list(CLASSES).index(label) for label in table["label"].to_pylist()])
    return Rows(trust, given_N, np.c_[state_ND, score_N2[:, 1] - score_N2[:, 0]])


def is_graded(directory: Path) -> bool:
    """Return whether the rows of a run are read and graded."""
    manifest = directory / "manifest.json"
    stages = json.loads(manifest.read_text())["stages"] if manifest.exists() else {}
    return bool(stages.get("gen-0/grade-source", {}).get("outputs"))


def column(name: str) -> Callable[[Rows, Rows, int], Float64s]:
    """Return a way to score by a number alone, which needs no labelled row."""
    return lambda source, pool, seed: pool.trust.numbers_NK[:, pool.trust.numbers.index(name)]


def trusted(*, states: bool, numbers: Callable[[str], bool]) -> Callable[[Rows, Rows, int], Float64s]:
    """Return a way to score by the default trust function on some of the inputs."""

    def some(rows: LabelledRows) -> LabelledRows:
        kept = [name for name in rows.numbers if name == LABEL or numbers(name)]
        rows = rows._replace(
            numbers=tuple(kept), numbers_NK=rows.numbers_NK[:, [rows.numbers.index(name) for name in kept]]
        )
        return rows if states else rows._replace(hidden_ND=np.empty((len(rows.part_N), 0), np.float16), sizes=())

    score = fitted("stacked", STATES if states else ())
    return lambda source, pool, seed: score(some(source.trust), some(pool.trust), seed).raw_N


def _classifier() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=1e-3, max_iter=3000))


def by_given(source: Rows, pool: Rows, seed: int) -> Float64s:
    """Return class probabilities of the pool, cross-validated on the given labels of all rows."""
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    before_ND, given_N = np.concatenate([source.before_ND, pool.before_ND]), np.r_[source.given_N, pool.given_N]
    found_N2 = cross_val_predict(_classifier(), before_ND, given_N, cv=folds, method="predict_proba")
    return np.asarray(found_N2[len(source.given_N) :])


def by_gold(source: Rows, pool: Rows, seed: int) -> Float64s:
    """Return class probabilities of the pool, fitted on gold labels of labelled rows; of two classes a grade tells."""
    gold_N = np.where(source.trust.correct_N, source.given_N, 1 - source.given_N)
    return np.asarray(_classifier().fit(source.before_ND, gold_N).predict_proba(pool.before_ND))


def by_confidence(source: Rows, pool: Rows, seed: int) -> Float64s:
    """Return class probabilities of the pool by the confidence, which is that of the given label."""
    confidence_N = column(CONFIDENCE)(source, pool, seed)
    found_N2 = np.empty((len(confidence_N), 2))
    at_N = np.arange(len(confidence_N))
    found_N2[at_N, pool.given_N], found_N2[at_N, 1 - pool.given_N] = confidence_N, 1 - confidence_N
    return found_N2


Probabilities = Callable[[Rows, Rows, int], Float64s]


def quality(*probabilities: Probabilities) -> Callable[[Rows, Rows, int], Float64s]:
    """Return a way to score by cleanlab's label quality of class probabilities; several kinds by its ensemble."""

    def score(source: Rows, pool: Rows, seed: int) -> Float64s:
        rank = importlib.import_module("cleanlab.rank")
        found = [kind(source, pool, seed) for kind in probabilities]
        if len(found) == 1:
            return np.asarray(rank.get_label_quality_scores(pool.given_N, found[0]))
        return np.asarray(rank.get_label_quality_ensemble_scores(pool.given_N, found, verbose=False))

    return score


PEERS: Mapping[str, tuple[Probabilities, ...]] = {
    "cleanlab, the confidence alone": (by_confidence,),
    "cleanlab, reader's columns": (by_given,),
    "cleanlab, both": (by_given, by_confidence),
    "cleanlab, reader's columns, fitted on gold": (by_gold,),
    "cleanlab, both, fitted on gold": (by_gold, by_confidence),
}
ARMS: Mapping[str, Callable[[Rows, Rows, int], Float64s]] = {
    "the confidence": column(CONFIDENCE),
    "trust without a reader": trusted(states=False, numbers=lambda name: name == CONFIDENCE),
    "reader's margin": column("margin"),
    "trust with a reader, without the confidence": trusted(states=True, numbers=lambda name: name != CONFIDENCE),
    "trust with a reader": trusted(states=True, numbers=lambda name: True),
    **({name: quality(*kinds) for name, kinds in PEERS.items()} if PEER else {}),
}


def measured(raw_N: Float64s, right_N: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Return the AUC of a score, and the purity of its best rows."""
    order = np.argsort(-raw_N, kind="stable")
    best = {f"purity_{share}": float(right_N[order[: len(order) * share // 100]].mean()) for share in (10, 25)}
    return {"auc": compute_auc_value(raw_N, right_N), **best}


def kept(pool: Rows, raw_N: Float64s, probabilities_N2: Float64s) -> dict[str, float]:
    """Count the rows in which ``find_label_issues`` sees no issue, beside as many by a score."""
    filtering = importlib.import_module("cleanlab.filter")
    kept_N = ~filtering.find_label_issues(pool.given_N, probabilities_N2, n_jobs=1)
    best = np.argsort(-raw_N, kind="stable")[: kept_N.sum()]
    right_N = pool.trust.correct_N
    return {
        "share": float(kept_N.mean()),
        "purity": float(right_N[kept_N].mean()),
        "purity_of_trust": float(right_N[best].mean()),
    }


def bench(rows: Rows, *, num_labelled: int, deals: int) -> dict[str, Any]:
    """Measure all arms over the deals."""
    draws: dict[str, list[dict[str, float]]] = {name: [] for name in ARMS}
    found_kept: dict[str, list[dict[str, float]]] = {name: [] for name in PEERS if PEER and len(PEERS[name]) == 1}
    for deal in range(deals):
        order = np.random.default_rng(deal).permutation(len(rows.given_N))
        source, pool = (
            rows.part(places, labelled=is_source)
            for places, is_source in ((order[:num_labelled], True), (order[num_labelled:], False))
        )
        raw = {name: np.nan_to_num(score(source, pool, deal), nan=-1e30) for name, score in ARMS.items()}
        for name, raw_N in raw.items():
            draws[name].append(measured(raw_N, pool.trust.correct_N))
        for name, of_kept in found_kept.items():
            of_kept.append(kept(pool, raw["trust with a reader"], PEERS[name][0](source, pool, deal)))
        print(f"deal {deal}: " + ", ".join(f"{name} {of[-1]['auc']:.3f}" for name, of in draws.items()), flush=True)
    return {
        "labelled": num_labelled,
        "others": len(rows.given_N) - num_labelled,
        "deals": deals,
        "share_right": float(rows.trust.correct_N.mean()),
        "arms": {name: _summary(found) for name, found in draws.items()},
        "issues": {name: _summary(found) for name, found in found_kept.items()},
    }


def _summary(draws: list[dict[str, float]]) -> dict[str, float]:
    means = {name: float(np.mean([draw[name] for draw in draws])) for name in draws[0]}
    return means | {f"{name}_deviation": float(np.std([draw[name] for draw in draws])) for name in draws[0]}


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [
        f"{results['labelled']:,} labelled rows, {results['others']:,} others, of which "
        f"{100 * results['share_right']:.1f} % are right; means over {results['deals']} deals ± standard deviation:",
        "",
        "| ranked by | AUC | purity of the best 10 % | of the best 25 % |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, found in results["arms"].items():
        cells = [f"{found['auc']:.3f} ± {found['auc_deviation']:.3f}"]
        cells += [
            f"{100 * found[key]:.1f} ± {100 * found[f'{key}_deviation']:.1f}" for key in ("purity_10", "purity_25")
        ]
        label = f"**{name}**" if name == "trust with a reader" else name
        lines.append(f"| {label} | {' | '.join(cells)} |")
    if results["issues"]:
        lines.append("")
        lines += ["| rows without an issue, by `find_label_issues` | kept | right | as many by trust with a reader |"]
        lines += ["| --- | ---: | ---: | ---: |"]
        for name, found in results["issues"].items():
            shares = (found[key] for key in ("share", "purity", "purity_of_trust"))
            lines.append(f"| {name} | {' | '.join(f'{100 * share:.1f} %' for share in shares)} |")
    return "\n".join(lines)


def main() -> None:
    """Read, measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="the reader's folder")
    parser.add_argument("--data", type=Path, help="the folder of the data sets")
    parser.add_argument("--work", type=Path, default=Path("build/given_labels"), help="where labels are kept")
    parser.add_argument("--dtype", default="float32", help="of the reader: bfloat16 where the processor has it")
    parser.add_argument("--labelled", type=int, default=600, help="labelled rows of a deal")
    parser.add_argument("--rows", type=int, default=2_000, help="all rows that are read")
    parser.add_argument("--deals", type=int, default=10, help="deals of the rows into labelled ones and others")
    parser.add_argument("--write-docs", action="store_true", help="write the table into docs/log/given-labels.md")
    given = parser.parse_args()
    work = given.work.absolute()
    if not is_graded(work / "run"):
        if given.model is None or given.data is None:
            parser.error("--model and --data are needed to read the labels")
        from curation.pipeline.running import run_part

        write_rows(given.data.absolute(), work / "rows.parquet", given.rows + 1)  # one row for the pool
        config = configuration(given.model.absolute(), work, num_rows=given.rows, dtype=given.dtype)
        run_part(config, "gen-0/grade-source")
    if not PEER:
        print("cleanlab is not installed, so that its lines are left out: pip install cleanlab")
    results = bench(read_rows(work / "run"), num_labelled=given.labelled, deals=given.deals)
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    print(table(results))
    if given.write_docs:
        head, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n\n{table(results)}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
