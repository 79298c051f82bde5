import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import beta, binomtest
from sklearn.metrics import roc_auc_score

from curation import tables
from curation.domains.chess import Chess
from curation.hashing import hash_unit
from curation.refs import ModelRef, TableRef, TrustRef
from curation.report import GenerationRecord, RunRecord, StageRecord, collect, write
from curation.report.html import render
from curation.report.measures import recovery_interval

SEED = 3
NUM_POOL, NUM_SOURCE, NUM_TEST, N = 400, 300, 250, 120
GOLD, OTHER = "e2e4", "d2d4"
FEN = "4k3/8/8/8/8/8/3PP3/4K3 w - - 0 1"
LABELLED = pa.schema([*tables.labels([], "float16", 1), tables.RAW_SCORE, tables.TRUST])


def save(folder: Path, name: str, table: pa.Table) -> TableRef:
    uri = str(folder / f"{name}.lance")
    lance.write_dataset(table, uri)
    return TableRef(uri=uri, version=lance.dataset(uri).version)


def examples(ids: np.ndarray, rng: np.random.Generator, *, gold: bool) -> pa.Table:
    columns = {"row_id": ids, "fen": [FEN] * len(ids), "rating": rng.integers(600, 2400, len(ids)).astype(np.int32)}
    if gold:
        columns["gold"] = [GOLD] * len(ids)
    return pa.table({**columns, "error": [None] * len(ids)}, schema=tables.examples(Chess.columns, gold=gold))


def weak(
    ids: np.ndarray, labels: list[str | None], errors: list[str | None], raw: np.ndarray, logprob: np.ndarray
) -> pa.Table:
    healthy = np.array([error is None for error in errors])
    trust = 1 / (1 + np.exp(-raw))
    columns = {
        "row_id": ids,
        "completion": [f" {label}" for label in labels],
        "label": labels,
        "mean_logprob": pa.array(logprob, mask=~healthy),
        "num_prompt_tokens": [40] * len(ids),
        "num_output_tokens": [1] * len(ids),
        "truncated": [False] * len(ids),
        "error": errors,
        "raw_score": pa.array(raw, mask=~healthy),
        "trust": pa.array(trust, mask=~healthy),
    }
    return pa.table(
        {name: pa.array(columns[name], type=LABELLED.field(name).type) for name in LABELLED.names}, schema=LABELLED
    )


def labelled(folder: Path, name: str, ids: np.ndarray, rng: np.random.Generator) -> tuple[TableRef, pa.Table]:
    """Three in ten right, one in twenty unparsed, two error rows; both scores tell right from wrong."""
    right = rng.random(len(ids)) < 0.3
    labels = [GOLD if r else None if rng.random() < 0.05 else OTHER for r in right]
    errors = ["bad_fen: x" if index in (5, 50) else None for index in range(len(ids))]
    raw = (2 * right + rng.normal(size=len(ids)) - 1).astype(np.float32)
    logprob = (-rng.exponential(np.where(right, 0.4, 1.2))).astype(np.float32)
    order = rng.permutation(len(ids))  # tables have no order
    table = weak(ids, labels, errors, raw, logprob).take(order)
    return save(folder, name, table), table


def selection(folder: Path, arm: str, rows: list[dict], source: str) -> TableRef:
    count = len(rows)
    columns = {
        "row_id": [row["row_id"] for row in rows],
        "arm": [arm] * count,
        "rank": list(range(count)),
        "trust": [0.5] * count,
        "prompt": ["p"] * count,
        "completion": [" c"] * count,
        "label": [GOLD if source == "gold" else row["label"] for row in rows],
        "label_source": [source] * count,
        "teacher": ["{}"] * count,
        "generation": [0] * count,
    }
    return save(folder, f"selection-{arm}", pa.table(columns, schema=tables.SELECTION).take(list(range(count))[::-1]))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def report(run: RunRecord) -> dict:
    return collect(run)


def make_run(folder: Path) -> RunRecord:
    rng = np.random.default_rng(0)
    pool_ids = np.arange(NUM_POOL) + (7 << tables.FILE_SHIFT)
    source_ids, test_ids = np.arange(NUM_SOURCE) + 1000, np.arange(NUM_TEST) + 5000
    pool, pool_table = labelled(folder, "labels-pool", pool_ids, rng)
    source, _ = labelled(folder, "labels-source", source_ids, rng)
    healthy = [row for row in pool_table.to_pylist() if row["error"] is None]
    parsed = [row for row in healthy if row["label"] is not None]
    orders = {
        "naive": [healthy[index] for index in rng.permutation(len(healthy))],
        "internal_confidence": sorted(parsed, key=lambda row: -row["mean_logprob"]),
        "neural": sorted(parsed, key=lambda row: -row["raw_score"]),
        "ground_truth": [healthy[index] for index in rng.permutation(len(healthy))],
    }

    def evaluation(name: str, accuracy: float) -> TableRef:
        labels = [GOLD if hit else OTHER for hit in rng.random(NUM_TEST) < accuracy]
        zeros = np.zeros(NUM_TEST, dtype=np.float32)
        return save(folder, f"test-{name}", weak(test_ids, labels, [None] * NUM_TEST, zeros, zeros))

    accuracies = {
        "base": 0.1,
        "teacher": 0.3,
        "naive": 0.35,
        "internal_confidence": 0.4,
        "neural": 0.55,
        "ground_truth": 0.6,
    }
    counts = {"rows": NUM_POOL, "unparsed": 12, "truncated": 3, "errors": {"bad_fen": 2}}
    return RunRecord(
        name="tiny",
        config={"name": "tiny", "trust": {"validation_fraction": 0.4}, "note": "<b>https://example.org</b>"},
        config_path="examples/tiny.yaml",
        seed=SEED,
        versions={"python": "3.11", "ray": "2.60.0"},
        command="curate run examples/tiny.yaml",
        domain=Chess(),
        prepared={
            "source": save(folder, "source", examples(source_ids, rng, gold=True)),
            "pool": save(folder, "pool", examples(pool_ids, rng, gold=False)),
            "test": save(folder, "test", examples(test_ids, rng, gold=True)),
            "audit": save(
                folder, "audit", pa.table({"row_id": pool_ids, "gold": [GOLD] * NUM_POOL}, schema=tables.AUDIT)
            ),
        },
        prepare_counts={
            "source": {"rows": NUM_SOURCE, "errors": {}},
            "pool": {"rows": NUM_POOL, "errors": {"bad_fen": 2}},
        },
        stages=[
            StageRecord(
                name="label pool", seconds=90.0, rows=400, rows_per_second=4.4, started="2026-01-01T00:00:00+00:00"
            ),
            StageRecord(name="fit", seconds=10.0, rows=300, rows_per_second=None, started="2026-01-01T00:02:00+00:00"),
        ],
        generations=[
            GenerationRecord(
                index=0,
                teacher=ModelRef(base="bases/teacher"),
                student_base=ModelRef(base="bases/student"),
                labels_source=source,
                labels_pool=pool,
                trust=TrustRef(uri="gen-0/trust", digest="00"),
                selections={
                    arm: selection(folder, arm, rows[:N], "gold" if arm == "ground_truth" else "weak")
                    for arm, rows in orders.items()
                },
                n=N,
                budget_is_oracle=False,
                evaluations={name: evaluation(name, accuracy) for name, accuracy in accuracies.items()},
                label_counts={"source": {**counts, "rows": NUM_SOURCE}, "pool": counts},
            )
        ],
    )


def changed(run: RunRecord, *, audit: bool = True, **fields: object) -> RunRecord:
    """The run with some fields of its generation replaced, and with or without its audit set."""
    prepared = {name: ref for name, ref in run.prepared.items() if audit or name != "audit"}
    return replace(run, prepared=prepared, generations=[replace(run.generations[0], **fields)])


def rows_of(ref: TableRef) -> list[dict]:
    return lance.dataset(ref.uri, version=ref.version).to_table().to_pylist()


def right_on_test(run: RunRecord, name: str) -> np.ndarray:
    rows = sorted(rows_of(run.generations[0].evaluations[name]), key=lambda row: row["row_id"])
    return np.array([row["label"] == GOLD for row in rows])


def by_name(report: dict) -> dict[str, dict]:
    return {arm["name"]: arm for arm in report["arms"]}


def test_purity_and_counts_of_the_arms(run: RunRecord, report: dict) -> None:
    arms = by_name(report)
    assert list(arms) == ["naive", "internal_confidence", "neural", "ground_truth"]
    for name in ("naive", "internal_confidence", "neural"):
        labels = [row["label"] for row in rows_of(run.generations[0].selections[name])]
        hits, arm = labels.count(GOLD), arms[name]
        assert arm["purity"]["value"] == hits / N and arm["purity"]["n"] == N
        assert arm["purity"]["low"] == pytest.approx(beta.ppf(0.025, hits, N - hits + 1))
        assert arm["purity"]["high"] == pytest.approx(beta.ppf(0.975, hits + 1, N - hits))
        assert arm["num_selected"] == N and arm["num_unparsed"] == labels.count(None)
        assert arm["label_source"] == "weak" and not arm["oracle"]
    truth = arms["ground_truth"]
    assert truth["purity_by_definition"] and truth["purity"]["value"] == 1 and truth["oracle"]
    assert truth["label_source"] == "gold" and truth["verdict"] is None
    assert arms["naive"]["num_unparsed"] > 0  # the fixture has some, else the count above shows nothing


def test_accuracy_recovery_and_paired_tests(run: RunRecord, report: dict) -> None:
    arms, right = by_name(report), {name: right_on_test(run, name) for name in run.generations[0].evaluations}
    base, truth = right["base"].mean(), right["ground_truth"].mean()
    assert report["base"]["value"] == base and report["teacher"]["test"]["value"] == right["teacher"].mean()
    for name in ("naive", "internal_confidence", "neural"):
        assert arms[name]["accuracy"]["value"] == right[name].mean()
        assert arms[name]["recovery"] == pytest.approx((right[name].mean() - base) / (truth - base))
        first, second = (right[name] & ~right["ground_truth"]).sum(), (~right[name] & right["ground_truth"]).sum()
        p_value = binomtest(int(max(first, second)), int(first + second), alternative="greater").pvalue
        assert arms[name]["p_value_vs_ground_truth"] == pytest.approx(p_value)
        expected = "near-lossless" if p_value >= 0.05 else "super-recovery" if first > second else "below ground truth"
        assert arms[name]["verdict"] == expected
    assert arms["naive"]["verdict"] == "below ground truth"
    assert arms["neural"]["weak_to_strong"] is True and arms["naive"]["weak_to_strong"] is False
    assert arms["ground_truth"]["weak_to_strong"] is None and arms["ground_truth"]["recovery_interval"] is None
    least = arms["neural"]["against_ground_truth"]["smallest_significant_difference"]
    discordant = int((right["neural"] != right["ground_truth"]).sum())
    wins = round((least * NUM_TEST + discordant) / 2)
    assert binomtest(wins, discordant, alternative="greater").pvalue <= 0.05
    assert binomtest(wins - 1, discordant, alternative="greater").pvalue > 0.05


def test_recovery_interval_agrees_with_resampled_rows(run: RunRecord, report: dict) -> None:
    arm, base, truth = (right_on_test(run, name) for name in ("neural", "base", "ground_truth"))
    rows_RN = np.random.default_rng(1).integers(0, NUM_TEST, (2000, NUM_TEST))
    base_R = base[rows_RN].mean(axis=1)
    ratios = (arm[rows_RN].mean(axis=1) - base_R) / (truth[rows_RN].mean(axis=1) - base_R)
    expected = np.quantile(ratios, [0.025, 0.975])
    assert by_name(report)["neural"]["recovery_interval"] == pytest.approx(expected, abs=0.03)
    assert recovery_interval(arm, truth, base, 0) is None  # ground truth below base


def test_trust_metrics_of_validation_and_pool(run: RunRecord, report: dict) -> None:
    record = run.generations[0]
    for where, ref in (("validation", record.labels_source), ("pool", record.labels_pool)):
        rows = [row for row in rows_of(ref) if row["error"] is None]
        if where == "validation":
            draw = hash_unit(np.array([row["row_id"] for row in rows]), SEED)
            rows = [row for row, unit in zip(rows, draw, strict=True) if unit < 0.4]
        right = np.array([row["label"] == GOLD for row in rows])
        measured = report["trust"][where]
        assert measured["num_rows"] == len(rows) and measured["share_right"]["value"] == right.mean()
        for name, column in (("neural", "raw_score"), ("internal_confidence", "mean_logprob")):
            score = np.array([row[column] for row in rows])
            trust = np.exp(score) if name == "internal_confidence" else np.array([row["trust"] for row in rows])
            assert measured[name]["auc"]["value"] == pytest.approx(roc_auc_score(right, score))
            assert measured[name]["brier"]["value"] == pytest.approx(np.mean((trust - right) ** 2))
            parsed = np.array([row["label"] is not None for row in rows])
            top = right[np.argsort(-np.where(parsed, score, -np.inf))[: measured["num_top"]]]
            assert measured[name]["purity_at_n"] == pytest.approx(
                measured[name]["purity_at_n"] | {"value": top.mean(), "n": len(top)}
            )
        assert sum(item["share_right"]["n"] for item in report["reliability"][where]["neural"]) == len(rows)
        assert sum(report["histogram"][where]["right"]) == right.sum()
        assert sum(report["histogram"][where]["wrong"]) == (~right).sum()
    assert report["trust"]["pool"]["num_top"] == N
    assert report["teacher"]["pool"]["n"] == NUM_POOL - 2


def test_purity_curves_pass_through_the_arms_and_end_at_the_pool(report: dict) -> None:
    curves, arms = report["purity_curves"], by_name(report)
    assert list(curves["arms"]) == ["naive", "internal_confidence", "neural"] and len(curves["points"]) <= 200
    for name, curve in curves["arms"].items():
        assert curve[curves["points"].index(N)] == arms[name]["purity"]
        assert curve[-1] == report["teacher"]["pool"]


def test_difficulty_of_the_selected(run: RunRecord, report: dict) -> None:
    ratings = {row["row_id"]: row["rating"] for row in rows_of(run.prepared["pool"])}
    picked = [ratings[row["row_id"]] for row in rows_of(run.generations[0].selections["neural"])]
    neural = report["difficulty"]["arms"]["neural"]
    assert neural["n"] == N and neural["mean"] == pytest.approx(np.mean(picked))
    assert neural["quantiles"]["0.5"] == np.median(picked) and sum(neural["shares"]) == pytest.approx(1)
    assert report["difficulty"]["pool"]["n"] == NUM_POOL


class Page(HTMLParser):
    """Collects every id and every link of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.headings = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.headings += tag in ("h2", "h3")
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data")]


def variants(run: RunRecord) -> dict[str, RunRecord]:
    record = run.generations[0]
    weak_arms = {arm: ref for arm, ref in record.selections.items() if arm != "ground_truth"}
    return {
        "full": run,
        "no audit": changed(run, audit=False, selections=weak_arms, evaluations={}, student_base=None),
        "no training": changed(run, evaluations={}, student_base=None),
        "oracle": changed(run, budget_is_oracle=True),
        "two generations": replace(run, generations=[record, replace(record, index=1)]),
        "nothing yet": replace(run, generations=[], stages=[], config_path=None),
    }


@pytest.mark.parametrize("name", ["full", "no audit", "no training", "two generations", "nothing yet"])
def test_page_and_numbers_of_every_kind_of_run(run: RunRecord, name: str, tmp_path: Path) -> None:
    report = collect(variants(run)[name])
    page_path, json_path = write(report, tmp_path)
    assert json.loads(json_path.read_text()) == report  # the numbers are the page's, and none is NaN
    text = page_path.read_text()
    page = Page(text)
    assert len(set(page.ids)) == len(page.ids)
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert not re.search(r"url\((?!#)|@import", text)
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(page.ids)
    assert "<b>https" not in text and page.headings >= 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]


def test_the_same_numbers_make_the_same_page(report: dict) -> None:
    assert render(report) == render(json.loads(json.dumps(report)))


def test_what_was_not_measured_is_absent_and_said_so(run: RunRecord, tmp_path: Path) -> None:
    report = collect(variants(run)["no audit"])
    assert all(arm["purity"] is None and arm["accuracy"] is None and arm["verdict"] is None for arm in report["arms"])
    assert (
        report["purity_curves"] is None
        and "pool" not in report["trust"]
        and report["teacher"] == {"test": None, "pool": None}
    )
    text = write(report, tmp_path)[0].read_text()
    assert "no audit set" in text and "No student was trained" in text


def test_every_arm_under_an_oracle_budget_is_stamped(run: RunRecord) -> None:
    assert all(arm["oracle"] for arm in collect(variants(run)["oracle"])["arms"])


def test_labels_all_right_leave_the_auc_undefined(run: RunRecord, tmp_path: Path) -> None:
    ids = np.arange(NUM_POOL) + (7 << tables.FILE_SHIFT)
    ones = np.ones(NUM_POOL, dtype=np.float32)
    table = weak(ids, [GOLD] * NUM_POOL, [None] * NUM_POOL, ones, -ones)
    report = collect(changed(run, labels_pool=save(tmp_path, "all-right", table)))
    assert report["trust"]["pool"]["neural"]["auc"] is None
    assert report["trust"]["pool"]["neural"]["purity_at_n"]["value"] == 1
    write(report, tmp_path)
