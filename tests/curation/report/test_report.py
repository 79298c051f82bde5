import html
import json
import re
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest
from computed import collect
from scipy.stats import beta, binomtest, entropy
from sklearn.metrics import brier_score_loss, roc_auc_score

from curation.arms import ARMS
from curation.domains.chess import Chess
from curation.extras.tracking.publish import make_entry
from curation.hashing import derive, hash_unit
from curation.metrics import compute_runs_recovery
from curation.refs import ModelRef, TableRef, TrustRef
from curation.report import FORMAT, GenerationRecord, PassRecord, RunRecord, StageSummary, write
from curation.report.headline import format_interval, render_sentences
from curation.report.html import render
from curation.report.rows import UNPARSED, rank_for_arm, read_graded_rows
from curation.report.tested import CLAIMS, explain_withheld
from curation.selection.risk import calibrate
from curation.tables import io, schemas

pytestmark = pytest.mark.long

SEED = 3
NUM_POOL, NUM_SOURCE, NUM_TEST, N = 400, 300, 250, 120
GOLD, OTHER = "e2e4", "d2d4"
FEN = "4k3/8/8/8/8/8/3PP3/4K3 w - - 0 1"
FREE_COLUMNS = ("margin", "min_logprob", "last_logprob")
"""Columns of free signals: of the first, one that is the same everywhere, and one that is null."""
LABELLED = schemas.make_labels_schema([], "float16", 1)
for _name in ("trust_raw", "trust_trust", "ensemble_agreement", *FREE_COLUMNS):
    if _name not in LABELLED.names:
        LABELLED = LABELLED.append(pa.field(_name, pa.float32()))
SAME = {
    "auc": {"value": 0.51, "low": 0.46, "high": 0.56, "n": 300},
    "p_value": 0.4,
    "num_source": 300,
    "num_pool": 400,
    "differs": False,
    "strength": "none shown",
    "warning": None,
}
TRAINED = {"num_rows": N, "num_dropped": 0, "num_epochs": 3, "losses": [1.0], "seconds": 2.0}
DIFFERENT = {**SAME, "p_value": 1e-9, "differs": True, "strength": "clear", "warning": "The pool's states differ."}


def save(folder: Path, name: str, table: pa.Table) -> TableRef:
    uri = str(folder / f"{name}.lance")
    lance.write_dataset(table, uri)
    return TableRef(uri=uri, version=lance.dataset(uri).version)


def examples(ids: np.ndarray, rng: np.random.Generator, *, gold: bool) -> pa.Table:
    columns = {"row_id": ids, "fen": [FEN] * len(ids), "rating": rng.integers(600, 2400, len(ids)).astype(np.int32)}
    if gold:
        columns["gold"] = [GOLD] * len(ids)
    return pa.table(
        {**columns, "error": [None] * len(ids)}, schema=schemas.make_examples_schema(Chess.columns, gold=gold)
    )


WEAK_FORMAT = {
    "format": "rollout",
    "completion_source": "weak",
    "format_note": None,
    "median_characters": 80.0,
    "num_rows": 60,
}
FORMATS = {"ground_truth": WEAK_FORMAT | {"completion_source": "sample", "format_note": "3 of 9 rows have no rollout"}}


def weak(
    ids: np.ndarray,
    labels: list[str | None],
    errors: list[str | None],
    raw: np.ndarray,
    logprob: np.ndarray,
    margin: np.ndarray | None = None,
    held: np.ndarray | None = None,
) -> pa.Table:
    """A scored labels table; a fitted function has scores of the rows ``held`` out."""
    healthy = np.array([error is None for error in errors])
    held = healthy if held is None else healthy & held
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
        "trust_raw": pa.array(raw, mask=~held),
        "trust_trust": pa.array(trust, mask=~held),
        "margin": pa.array(logprob if margin is None else margin, mask=~healthy),
        "min_logprob": pa.array(np.full(len(ids), -1.5), mask=~healthy),
        "ensemble_agreement": pa.array((raw > 0).astype(np.float32), mask=~healthy | (np.arange(len(ids)) % 9 == 0)),
    }
    arrays = [pa.array(columns.get(field.name, pa.nulls(len(ids))), type=field.type) for field in LABELLED]
    return pa.table(arrays, schema=LABELLED)


def graded(
    folder: Path, name: str, ids: np.ndarray, correct: list[bool], judged: int = 0, problems: int = 0
) -> TableRef:
    """The grades of the rows, ascending; some by a judge, some that the rule could not decide."""
    rows = [{"row_id": int(ids[i]), "correct": bool(correct[i]), "judged": False} for i in np.argsort(ids)]
    for row in [row for row in rows if row["correct"]][:judged]:
        row["judged"] = True
    for row in [row for row in rows if not row["correct"]][:problems]:
        row["problem"] = "timeout: x"
    return save(folder, f"grades-{name}", pa.Table.from_pylist(rows, schema=schemas.GRADES))


def by_hand(folder: Path, name: str, table: pa.Table, **counts: int) -> TableRef:
    """The grades of a labels table, right where the label is ``GOLD``."""
    healthy = [row for row in table.to_pylist() if row["error"] is None]
    return graded(
        folder, name, np.array([r["row_id"] for r in healthy]), [r["label"] == GOLD for r in healthy], **counts
    )


def labelled(
    folder: Path,
    name: str,
    ids: np.ndarray,
    rng: np.random.Generator,
    *,
    share: float = 0.3,
    signal: float = 2.0,
    steep: float = 1.0,
    held_out: float = 1.0,
) -> tuple[TableRef, pa.Table]:
    """Three in ten right, one in twenty unparsed, two error rows; all scores tell right from wrong.

    ``signal`` is what a right label adds to the raw score, half of it to the margin; ``steep`` stretches the score.
    ``held_out``: the share of rows that no fit has seen, by a hash of their ids.
    """
    right = rng.random(len(ids)) < share
    labels = [GOLD if r else None if rng.random() < 0.05 else OTHER for r in right]
    errors = ["bad_fen: x" if index in (5, 50) else None for index in range(len(ids))]
    raw = (steep * (signal * right + rng.normal(size=len(ids)) - signal / 2)).astype(np.float32)
    logprob = (-rng.exponential(np.where(right, 0.4, 1.2))).astype(np.float32)
    margin = 0.5 * signal * right + np.random.default_rng(int(ids[0])).normal(size=len(ids))
    order = rng.permutation(len(ids))  # tables have no order
    table = weak(ids, labels, errors, raw, logprob, margin, hash_unit(ids, SEED) < held_out).take(order)
    return save(folder, name, table), table


def selection(folder: Path, arm: str, rows: list[dict], source: str) -> TableRef:
    count = len(rows)
    columns = {
        "row_id": [row["row_id"] for row in rows],
        "arm": [arm] * count,
        "rank": list(range(count)),
        "trust": [row.get("trust_trust", 0.5) for row in rows],
        "prompt": ["p"] * count,
        "completion": [" c"] * count,
        "label": [GOLD if source == "gold" else row["label"] for row in rows],
        "label_source": [source] * count,
        "completion_source": ["sample" if source == "gold" else "weak"] * count,
        "teacher": ["{}"] * count,
        "generation": [0] * count,
    }
    return save(folder, f"selection-{arm}", pa.table(columns, schema=schemas.SELECTION).take(list(range(count))[::-1]))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def report(run: RunRecord) -> dict:
    return collect(run)


def make_run(
    folder: Path,
    seed: int = 0,
    first_test: int = 5000,
    *,
    of_all: dict[str, float] | None = None,
    of_pool: dict[str, float] | None = None,
    held_out: float = 0.4,
) -> RunRecord:
    """A run by hand; ``of_all`` and ``of_pool`` change what :func:`labelled` draws.

    ``held_out``: the share of the source's rows that the fit of trust has not seen.
    """
    rng = np.random.default_rng(seed)
    pool_ids = np.arange(NUM_POOL) + (7 << schemas.FILE_SHIFT)
    source_ids, test_ids = np.arange(NUM_SOURCE) + 1000, np.arange(NUM_TEST) + first_test
    of_all = of_all or {}
    pool, pool_table = labelled(folder, "labels-pool", pool_ids, rng, **(of_all | (of_pool or {})))
    source, source_table = labelled(folder, "labels-source", source_ids, rng, **of_all, held_out=held_out)
    probe, probe_table = labelled(folder, "labels-probe", np.arange(120) + 9000, rng)
    probe_table = probe_table.filter(pa.compute.is_null(probe_table["error"]))
    healthy = [row for row in pool_table.to_pylist() if row["error"] is None]
    parsed = [row for row in healthy if row["label"] is not None]
    orders = {
        "naive": [healthy[index] for index in rng.permutation(len(healthy))],
        "internal_confidence": sorted(parsed, key=lambda row: -row["mean_logprob"]),
        "trust": sorted(parsed, key=lambda row: -row["trust_raw"]),
        "ground_truth": [healthy[index] for index in rng.permutation(len(healthy))],
    }

    def evaluation(name: str, accuracy: float) -> TableRef:
        return graded(folder, f"test-{name}", test_ids, (rng.random(NUM_TEST) < accuracy).tolist())

    accuracies = {
        "base": 0.1,
        "teacher": 0.3,
        "naive": 0.35,
        "internal_confidence": 0.4,
        "trust": 0.55,
        "ground_truth": 0.6,
    }
    counts = {"rows": NUM_POOL, "unparsed": 12, "truncated": 3, "errors": {"bad_fen": 2}}
    return RunRecord(
        name="tiny",
        config={
            "name": "tiny",
            "trust": {},
            "evaluation": {"margin": 0.02},
            "splits": {
                "pool": {"from": "one"},
                "calibration": {"from": "one"},
                "probes": {"far": {"regime": "OOD-domain"}, "near": {"regime": "OOD-dist"}},
            },
            "note": "<b>https://example.org</b>",
        },
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
                folder,
                "audit",
                pa.table([pool_ids, [GOLD] * NUM_POOL, *[pa.nulls(NUM_POOL, pa.string())] * 2], schema=schemas.AUDIT),
            ),
        },
        prepare_counts={
            "calibration": {"rows": 100, "errors": {}},
            "source": {"rows": NUM_SOURCE, "errors": {}},
            "pool": {"rows": NUM_POOL, "errors": {"bad_fen": 2}},
        },
        overlap={"pairs": [], "dropped": {}, "uncompared": {"pool": {}}},
        stages=[
            StageSummary(
                name="label pool", seconds=90.0, rows=400, rows_per_second=4.4, started="2026-01-01T00:00:00+00:00"
            ),
            StageSummary(name="fit", seconds=10.0, rows=300, rows_per_second=None, started="2026-01-01T00:02:00+00:00"),
        ],
        passes=[
            PassRecord(
                name="gen-0/label-pool",
                model="bases/teacher",
                backend="vllm",
                rows=200,
                seconds=50.0,
                deaths=3,
                total_rows=400,
                prompt_tokens=10_000,
                output_tokens=4_000,
                teachers=[
                    {"start_seconds": seconds, "kv_cache_tokens": 2**20, "max_running": 256} for seconds in (20, 40, 90)
                ],
            ),
            PassRecord(
                name="gen-0/test-base",
                model="bases/student",
                backend="transformers",
                rows=0,
                seconds=0.1,
                deaths=0,
                total_rows=0,
                prompt_tokens=0,
                output_tokens=0,
                teachers=[],
            ),
        ],
        generations=[
            GenerationRecord(
                index=0,
                teacher=ModelRef(base="bases/teacher"),
                student_base=ModelRef(base="bases/student"),
                formats={arm: FORMATS.get(arm, WEAK_FORMAT) for arm in ARMS},
                labels={"source": source, "pool": pool, **dict.fromkeys(("probe-far", "probe-near"), probe)},
                grades={
                    "source": by_hand(folder, "source", source_table),
                    "pool": by_hand(folder, "pool", pool_table, judged=3, problems=2),
                    "probe-near": by_hand(folder, "near", probe_table),
                    "probe-far": graded(
                        folder, "far", probe_table["row_id"].to_numpy(), [False] * probe_table.num_rows
                    ),
                },
                trust=TrustRef(uri="gen-0/trust", digest="00"),
                trust_fit={
                    "kind": "linear_probe",
                    "num_fit": 140,
                    "share_right_fit": 0.3,
                    "num_repeats": 20,
                    "choice": None,
                },
                asked={},
                selections={
                    arm: selection(folder, arm, rows[:N], "gold" if arm == "ground_truth" else "weak")
                    for arm, rows in orders.items()
                },
                budget={"n": N, "rule": "n", "reference": "trust", "oracle": False, "threshold": None, "risk": None},
                shift={"source": SAME},
                tests={name: [evaluation(name, accuracy)] for name, accuracy in accuracies.items()},
                label_counts={"source": {**counts, "rows": NUM_SOURCE}, "pool": counts},
                unread={},
                repeats={"num_pool": 200, "num_rows": 0, "num_questions": 0},
                too_long={
                    "pool": {
                        "table": {},
                        "num_rows": 398,
                        "num_too_long": 9,
                        "num_weak": 9,
                        "num_gold": 3,
                        "num_gold_only": 0,
                    }
                },
                training={arm: TRAINED for arm in orders},
            )
        ],
    )


def variant(run: RunRecord, **fields: object) -> RunRecord:
    """The run with some fields of its generation replaced."""
    return replace(run, generations=[replace(run.generations[0], **fields)])


def changed(run: RunRecord, *, audit: bool = True, budget: dict | None = None, **fields: object) -> RunRecord:
    """The run with some fields of its generation replaced, and with or without its audit set."""
    record = run.generations[0]
    prepared = {name: ref for name, ref in run.prepared.items() if audit or name != "audit"}
    grades = {split: ref for split, ref in record.grades.items() if audit or split != "pool"}
    fields = {"grades": grades, "budget": {**record.budget, **(budget or {})}, **fields}
    return replace(run, prepared=prepared, generations=[replace(record, **fields)])


def rows_of(ref: TableRef) -> list[dict]:
    return lance.dataset(ref.uri, version=ref.version).to_table().to_pylist()


def right_on_test(run: RunRecord, name: str) -> np.ndarray:
    return np.array([row["correct"] for row in rows_of(run.generations[0].tests[name][0])])


def by_name(report: dict) -> dict[str, dict]:
    return {arm["name"]: arm for arm in report["arms"]}


def test_purity_and_counts_of_the_arms(run: RunRecord, report: dict) -> None:
    arms = by_name(report)
    assert list(arms) == ["naive", "internal_confidence", "trust", "ground_truth"]
    for name in ("naive", "internal_confidence", "trust"):
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
    for name, arm in arms.items():
        expected = FORMATS.get(name, WEAK_FORMAT)
        assert {key: arm[key] for key in FORMAT} == {key: expected[key] for key in FORMAT}
    assert arms["naive"]["num_unparsed"] > 0  # the fixture has some, else the count above shows nothing


def test_labels_are_counted(run: RunRecord, report: dict) -> None:
    record = run.generations[0]
    for name, ref in record.selections.items():
        counts = Counter(row["label"] for row in rows_of(ref) if row["label"] is not None)
        found = report["diversity"]["arms"][name]
        assert (found["num_rows"], found["num_labels"]) == (counts.total(), len(counts))
        assert found["perplexity"] == pytest.approx(np.exp(entropy([*counts.values()])))
        assert found["largest"] == max(counts.values()) / counts.total()
    parsed = [row for row in rows_of(record.labels["pool"]) if row["error"] is None and row["label"] is not None]
    right = sum(row["label"] == GOLD for row in parsed)
    assert report["diversity"]["pool"]["num_rows"] == len(parsed)
    blind = changed(run, audit=False, selections={"trust": record.selections["trust"]}, tests={}, training={})
    capped = {"n": round(right * 0.9), "max_per_label": 7, "asked": 2 * right, "limited_by": "trust"}
    page = render(collect(replace(blind, generations=[replace(blind.generations[0], budget=record.budget | capped)])))
    assert f"leaves {capped['n']} of {capped['asked']} rows: no more fit in trust" in page


def test_the_page_says_what_each_arms_completions_are(report: dict) -> None:
    page = render(report)
    assert page.count('<td data-label="Label">weak<span class="ci">rollouts</span></td>') == 3
    gold = '<td data-label="Label">gold<span class="ci">own rollouts graded right</span>'
    assert f'{gold}<span class="ci wrap">3 of 9 rows' in page
    assert "easier rows than the pool's" in page
    for source, words in (("answer", "bare answers"), ("solution", "worked solutions")):
        changed = json.loads(json.dumps(report))
        for arm in changed["generations"][0]["arms"]:
            arm["completion_source"] = source
        assert words in render(changed) and "easier rows" not in render(changed)


def test_the_page_counts_what_is_odd_about_a_server_s_answers(report: dict) -> None:
    odd = {"kind": "other_model", "answers": 1234, "words": "came from another model", "example": "'<b>m'"}
    page = render({**report, "answers": [odd]})
    assert "1,234 answers of the server came from another model, e.g. &#39;&lt;b&gt;m&#39;." in page
    assert report["answers"] == [] and "answers of the server" not in render(report)


def test_accuracy_recovery_and_paired_tests(run: RunRecord, report: dict) -> None:
    arms, right = by_name(report), {name: right_on_test(run, name) for name in run.generations[0].tests}
    base, truth = right["base"].mean(), right["ground_truth"].mean()
    assert report["base"]["value"] == base and report["teacher"]["test"]["value"] == right["teacher"].mean()
    for name in ("naive", "internal_confidence", "trust"):
        assert arms[name]["accuracy"]["value"] == right[name].mean()
        assert arms[name]["recovery"] == pytest.approx((right[name].mean() - base) / (truth - base))
        first, second = (right[name] & ~right["ground_truth"]).sum(), (~right[name] & right["ground_truth"]).sum()
        p_value = binomtest(int(max(first, second)), int(first + second), alternative="greater").pvalue
        assert arms[name]["p_value_vs_ground_truth"] == pytest.approx(p_value)
        expected = "near-lossless" if p_value >= 0.05 else "super-recovery" if first > second else "below ground truth"
        assert arms[name]["paper_verdict"] == expected
        least = arms[name]["against_ground_truth"]["low"]
        assert (arms[name]["verdict"] == "near-lossless") == (least > -0.02) and arms[name]["margin"] == 0.02
    assert arms["naive"]["verdict"] == arms["naive"]["paper_verdict"] == "below ground truth"
    # 250 rows do not show that a student loses less than two points, whatever the paper's verdict says.
    assert (arms["trust"]["verdict"], arms["trust"]["paper_verdict"]) == ("inconclusive", "near-lossless")
    assert arms["trust"]["weak_to_strong"] is True and arms["naive"]["weak_to_strong"] is False
    gold = changed(run, selections={"trust_gold": run.generations[0].selections["trust"]})
    gold = changed(gold, tests={**run.generations[0].tests, "trust_gold": run.generations[0].tests["trust"]})
    assert by_name(collect(gold))["trust_gold"]["weak_to_strong"] is None  # never of gold labels
    assert arms["ground_truth"]["weak_to_strong"] is None and arms["ground_truth"]["recovery_interval"] is None


def test_recovery_interval_agrees_with_resampled_rows(run: RunRecord, report: dict) -> None:
    arm, base, truth = (right_on_test(run, name) for name in ("trust", "base", "ground_truth"))
    rows_RN = np.random.default_rng(1).integers(0, NUM_TEST, (2000, NUM_TEST))
    base_R = base[rows_RN].mean(axis=1)
    ratios = (arm[rows_RN].mean(axis=1) - base_R) / (truth[rows_RN].mean(axis=1) - base_R)
    expected = np.quantile(ratios, [0.025, 0.975])
    assert by_name(report)["trust"]["recovery_interval"] == pytest.approx(expected, abs=0.03)
    assert compute_runs_recovery(arm[:, None], truth[:, None], base[:, None]) is None  # ground truth below base


def source_rows(run: RunRecord) -> tuple[list[dict], list[dict]]:
    """The healthy source rows, and those of validation: parsed ones with a score, as large a share of the others."""
    rows = [row for row in rows_of(run.generations[0].labels["source"]) if row["error"] is None]
    parsed = [row for row in rows if row["label"] is not None]
    held = [row for row in parsed if row["trust_raw"] is not None]
    draw = hash_unit(np.array([row["row_id"] for row in rows]), derive(SEED, UNPARSED))
    beside = [
        row for row, unit in zip(rows, draw, strict=True) if row["label"] is None and unit < len(held) / len(parsed)
    ]
    assert 0.3 < len(held) / len(parsed) < 0.5 and beside
    return rows, [*held, *beside]


def is_right(rows: list[dict]) -> np.ndarray:
    return np.array([row["label"] == GOLD for row in rows])


SCORES = {
    "trust": (lambda row: row["trust_raw"], lambda row: row["trust_trust"]),
    "internal_confidence": (lambda row: row["mean_logprob"], lambda row: np.exp(row["mean_logprob"])),
    "margin": (lambda row: row["margin"], lambda row: 1 / (1 + np.exp(-row["margin"]))),  # no arm: measured only
}


@pytest.mark.parametrize("where", ["validation", "pool"])
def test_trust_metrics_of_validation_and_pool(run: RunRecord, report: dict, where: str) -> None:
    everything = [row for row in rows_of(run.generations[0].labels["pool"]) if row["error"] is None]
    source, held = source_rows(run)
    everything = held if where == "validation" else everything
    rows, source = ([row for row in part if row["label"] is not None] for part in (everything, source))
    right, measured = is_right(rows), report["trust"][where]["parsed"]
    assert measured["num_rows"] == len(rows) and measured["share_right"]["value"] == right.mean()
    num_top = N if where == "pool" else round(N / (NUM_POOL - 2) * len(everything))
    assert measured["num_top"] == num_top
    assert set(measured["functions"]) == set(SCORES)
    for name, (raw_of, trust_of) in SCORES.items():
        score, trust = (np.array([of(row) for row in rows]) for of in (raw_of, trust_of))
        found = measured["functions"][name]
        assert found["auc"]["value"] == pytest.approx(roc_auc_score(right, score)) and found["auc"]["n"] == len(rows)
        assert found["brier"]["value"] == pytest.approx(brier_score_loss(right, trust))
        top = right[np.argsort(-score)[:num_top]]
        assert (found["purity_at_n"]["value"], found["purity_at_n"]["n"]) == (pytest.approx(top.mean()), len(top))
    value, share = is_right(source).mean(), right.mean()
    assert measured["constant"]["value"] == pytest.approx(value)
    assert measured["constant"]["brier"]["value"] == pytest.approx(share * (1 - share) + (share - value) ** 2)
    assert measured["constant"]["ece"]["value"] == pytest.approx(abs(share - value))


def test_unparsed_rows_are_in_no_metric_and_no_figure(run: RunRecord, report: dict) -> None:
    for where in ("validation", "pool"):
        parsed = report["trust"][where]["parsed"]
        assert sum(item["share_right"]["n"] for item in report["reliability"][where]["trust"]) == parsed["num_rows"]
    assert report["trust"]["fit"] == run.generations[0].trust_fit
    labels, given = report["evidence"]["labels"], report["diversity"]["pool"]
    assert (labels["num_labelled"], labels["num_given"]) == (given["num_rows"], given["num_labels"])
    assert labels["num_selected"] == report["diversity"]["arms"]["trust"]["num_labels"]
    assert report["teacher"]["pool"]["n"] == NUM_POOL - 2


def test_of_a_large_pool_a_sample_is_measured_and_all_selected_rows(
    run: RunRecord, report: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["curation.report.numbers"], "MOST_GRADED", NUM_POOL // 2)
    found = collect(run)
    assert report["pool_sample"] is None and 0.3 * NUM_POOL < found["pool_sample"] < 0.7 * NUM_POOL
    for arm, whole in zip(found["arms"], report["arms"], strict=True):
        assert arm["purity"] == whole["purity"], "of all selected rows"
    assert found["evidence"]["pool"]["top"] == report["evidence"]["pool"]["top"]
    assert found["trust"]["validation"] == report["trust"]["validation"]
    sampled, whole = found["trust"]["pool"], report["trust"]["pool"]
    assert 0 < sampled["parsed"]["num_rows"] < found["pool_sample"]
    assert sampled["parsed"]["num_top"] == pytest.approx(N / 2, abs=1)
    for name in SCORES:
        one, other = (of["parsed"]["functions"][name]["auc"] for of in (sampled, whole))
        assert one["low"] <= other["value"] <= one["high"]
    curves = [of["purity_curves"] for of in (found, report)]
    assert curves[0]["points"][-1] == pytest.approx(curves[1]["points"][-1], rel=0.2)
    assert "rows drawn at random" in render(found) and "rows drawn at random" not in render(report)


def test_a_base_that_passes_the_teacher_by_itself_takes_the_claim_away(run: RunRecord, report: dict) -> None:
    for arm in report["arms"]:  # the paired difference is that of the means, on the same rows
        change = arm["accuracy"]["value"] - report["base"]["value"]
        assert arm["against_base"]["difference"] == pytest.approx(change) and arm["against_base"]["n"] > 0
    teacher = {"test": {"value": 0.41, "low": 0.38, "high": 0.44}}
    generation = {"teacher": teacher, "base": report["base"], "asked_unlike": None}
    main = {"against_teacher": {"difference": 0.153, "low": 0.12, "high": 0.187}, "weak_to_strong": True}
    for low, words in ((0.01, ": weak-to-strong."), (-0.03, "the training is not shown to help (+2.0 points [")):
        against = {"difference": 0.02, "low": low, "high": 0.05}
        (line,) = render_sentences("weak_to_strong", generation, {**main, "against_base": against})
        assert line.startswith("It passes its weak teacher (41.0") and words in line


def test_the_headline_names_the_control_of_parsed_labels(run: RunRecord, report: dict) -> None:
    record = run.generations[0]
    assert "a uniform draw of parsed labels" not in report["headline"][0]
    parsed = [row for row in rows_of(record.labels["pool"]) if row["error"] is None and row["label"] is not None]
    control = selection(Path(record.labels["pool"].uri).parent, "naive_parsed", parsed[:N], "weak")
    found = collect(changed(run, selections={**record.selections, "naive_parsed": control}))
    purity, naive = (by_name(found)[name]["purity"] for name in ("naive_parsed", "naive"))
    assert purity["value"] == is_right(parsed[:N]).mean()
    words = (
        f"against {format_interval(purity)} with a uniform draw of parsed labels and {format_interval(naive)} with a "
        "uniform draw of all labels"
    )
    assert words in found["headline"][0]
    curve = found["purity_curves"]["arms"]["naive_parsed"]
    assert curve[-1] == found["teacher"]["pool"] and "naive among parsed" in render(found)


def test_purity_curves_pass_through_the_arms_and_end_at_the_pool(report: dict) -> None:
    curves, arms = report["purity_curves"], by_name(report)
    assert list(curves["arms"]) == ["naive", "internal_confidence", "trust"] and len(curves["points"]) <= 200
    for name, curve in curves["arms"].items():
        assert curve[curves["points"].index(N)] == arms[name]["purity"]
        assert curve[-1] == report["teacher"]["pool"]


def test_difficulty_of_the_selected(run: RunRecord, report: dict) -> None:
    ratings = {row["row_id"]: row["rating"] for row in rows_of(run.prepared["pool"])}
    picked = [ratings[row["row_id"]] for row in rows_of(run.generations[0].selections["trust"])]
    trust = report["difficulty"]["arms"]["trust"]
    assert trust["n"] == N and trust["mean"] == pytest.approx(np.mean(picked))
    assert trust["quantiles"]["0.5"] == np.median(picked)
    assert report["difficulty"]["pool"]["n"] == NUM_POOL


def unlike(run: RunRecord, **changes: dict) -> RunRecord:
    """The run with another training of some arms."""
    training = run.generations[0].training
    return changed(run, training={**training, **{arm: {**TRAINED, **fields} for arm, fields in changes.items()}})


def test_students_that_trained_alike_keep_their_verdicts(report: dict) -> None:
    assert report["trained_unlike"] is None and "No verdict" not in render(report)
    for arm in report["arms"]:
        assert (arm["rows_trained"], arm["rows_dropped"], arm["epochs"], arm["withheld"]) == (N, 0, 3, None)
    page = render(report)
    assert page.count('<span class="ci">3 epochs</span>') == 4 and "trained on, " not in page
    assert report["funnel"]["generations"][0]["too_long"]["pool"]["num_too_long"] == 9
    assert "9 longer than <code>student.max_length</code>, out for all arms (9 with the weak label, 3 with the" in page


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_epochs": 1}, "epochs: trust 1, ground truth 3"),
        ({"num_rows": N - 1}, f"rows trained on: trust {N - 1}, ground truth {N}"),
        ({"num_dropped": 1}, "rows dropped in training: trust 1, ground truth 0"),
    ],
)
def test_an_arm_that_trained_otherwise_than_ground_truth_has_no_verdict(
    run: RunRecord, report: dict, fields: dict, words: str
) -> None:
    found = collect(unlike(run, trust=fields))
    arms, before = by_name(found), by_name(report)
    assert words in arms["trust"]["withheld"] and words.split(":")[0] in found["trained_unlike"]
    assert all(arms["trust"][claim] is None for claim in CLAIMS)
    assert arms["trust"]["accuracy"] == before["trust"]["accuracy"]
    for name in ("naive", "internal_confidence", "ground_truth"):  # each is held against ground truth alone
        assert arms[name] == before[name]
    assert all(before["trust"][claim] is not None for claim in CLAIMS)
    page = render(found)
    assert "<b>No verdict:</b> the students trained differently" in page and "No verdict: trained differently" in page
    sentence = found["headline"][1]
    assert "as many gold labels" not in sentence and "gives no verdict, since the students trained differ" in sentence
    assert not any(verdict in " ".join(found["headline"]) for verdict in ("near-lossless", "recovery", "p = "))
    numbers = make_entry(found, "/runs/test", {}).numbers
    assert "gen-0/trust/recovery" not in numbers and "gen-0/naive/recovery" in numbers


def test_a_student_is_not_called_weak_to_strong_where_labels_were_asked_for_in_another_way(
    run: RunRecord, report: dict
) -> None:
    assert report["asked_unlike"] is None and by_name(report)["trust"]["weak_to_strong"] is True
    ways = {"teacher": {"decoding": {"constrained": "scored"}}}
    found = collect(replace(run, config={**run.config, **ways}))
    told = "labels were asked for by the likeliest of the listed answers, tests freely"
    assert found["asked_unlike"] == told
    for arm, before in zip(found["arms"], report["arms"], strict=True):
        assert arm == {**before, "weak_to_strong": None}
    assert not any("weak-to-strong" in sentence for sentence in found["headline"])
    assert any(sentence.endswith(f"labels that it learned from: {told}.") for sentence in found["headline"])
    assert f"<b>Not called weak-to-strong:</b> {told}" in render(found)
    alike = ways | {"evaluation": {**run.config["evaluation"], "decoding": {"constrained": "scored"}}}
    assert collect(replace(run, config={**run.config, **alike}))["asked_unlike"] is None
    mcqa = collect(replace(run, config={**run.config, **ways, "domain": {"name": "mcqa", "options": {}}}))
    assert mcqa["asked_unlike"] is None, "its options are scored anyhow"


def test_a_ground_truth_that_trained_otherwise_leaves_no_verdict_at_all(run: RunRecord) -> None:
    found = collect(unlike(run, ground_truth={"num_rows": N - 2, "num_dropped": 2}))
    assert all(arm["verdict"] is None and (arm["withheld"] or arm["name"] == "ground_truth") for arm in found["arms"])
    weak_arms = {arm: ref for arm, ref in run.generations[0].selections.items() if arm != "ground_truth"}
    alone = collect(replace_selections(unlike(run, naive={"num_epochs": 1}), weak_arms))
    assert alone["trained_unlike"] is not None and "<b>Not comparable:</b>" in render(alone)


def replace_selections(run: RunRecord, selections: dict[str, TableRef]) -> RunRecord:
    return replace(run, generations=[replace(run.generations[0], selections=selections)])


def test_what_makes_arms_comparable() -> None:
    arm = {"name": "trust", "rows_trained": 5, "rows_dropped": 0, "epochs": 3}
    truth = {**arm, "name": "ground_truth"}
    untrained = {**arm, "rows_trained": None, "rows_dropped": None, "epochs": None}
    assert explain_withheld([arm, truth]) is None and explain_withheld([arm]) is None and explain_withheld([]) is None
    assert explain_withheld([untrained, truth]) is None
    assert (
        explain_withheld([{**arm, "format": "rollout"}, truth]) is None
    )  # what is not said is not held against an arm
    assert explain_withheld([{**arm, "format": "rollout"}, {**truth, "format": "rollout"}]) is None
    told = explain_withheld([{**arm, "format": "rollout", "rows_trained": 4_321}, {**truth, "format": "answer"}])
    assert told is not None and "format: trust rollout, ground truth answer" in told
    assert "rows trained on: trust 4,321, ground truth 5" in told


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


RISK = {"alpha": 0.25, "delta": 0.1, "rule": "fixed_sequence", "kind": "threshold"}
HOPELESS = {**RISK, "alpha": 0.01}
NUM_CALIBRATION = 500


def with_risk(run: RunRecord, settings: dict, every: int = 0, **fields: object) -> RunRecord:
    """The run with a budget that was calibrated on rows like the pool's; each ``every``-th of both is too long."""
    record = run.generations[0]
    folder = Path(tempfile.mkdtemp(dir=Path(record.labels["pool"].uri).parent))
    labels, table = labelled(
        folder, "labels-calibration", np.arange(NUM_CALIBRATION) + 20_000, np.random.default_rng(9)
    )
    rows = [row for row in table.to_pylist() if row["error"] is None]
    pool = [row for row in rows_of(record.labels["pool"]) if row["error"] is None]

    def scores_of(part: list[dict]) -> np.ndarray:
        may = [row["label"] is not None and not is_too_long(row, every) for row in part]
        return np.array([row["trust_raw"] if chosen else -np.inf for row, chosen in zip(part, may, strict=True)])

    raw_M, raw_N = scores_of(rows), scores_of(pool)
    cut = calibrate(raw_M, is_right(rows), raw_N, **settings, seed=derive(SEED, "risk"))
    n = 0 if cut.threshold is None else int((raw_N >= cut.threshold).sum())
    grades = by_hand(folder, "calibration", table)
    budget = {"n": n, "rule": "risk", "threshold": cut.threshold, "risk": {**settings, **asdict(cut)}}
    more = changed(run, budget=budget, shift={"source": SAME, "calibration": SAME}, **fields)
    found = more.generations[0]
    return variant(
        more,
        labels={**found.labels, "calibration": labels},
        grades={**found.grades, "calibration": grades},
        too_long={name: too_long_rows(folder, name, of, every) for name, of in (("calibration", rows), ("pool", pool))},
    )


def is_too_long(row: dict, every: int) -> bool:
    return every > 0 and row["row_id"] % every == 0


def too_long_rows(folder: Path, split: str, rows: list[dict], every: int) -> dict:
    """What the length stage tells of a split, whose rows are too long with the weak label."""
    ids = sorted(row["row_id"] for row in rows if is_too_long(row, every))
    table = pa.table([ids, [True] * len(ids), [False] * len(ids)], schema=schemas.TOO_LONG)
    counts = {"num_rows": len(rows), "num_too_long": len(ids), "num_weak": len(ids), "num_gold": 0, "num_gold_only": 0}
    return {"table": save(folder, f"too-long-{split}", table).to_json(), **counts}


def save_once(record: GenerationRecord, name: str, table: pa.Table) -> TableRef:
    uri = str(Path(record.labels["pool"].uri).with_name(f"{name}.lance"))
    return io.write(table, uri)


def variants(run: RunRecord) -> dict[str, RunRecord]:
    record = run.generations[0]
    weak_arms = {arm: ref for arm, ref in record.selections.items() if arm != "ground_truth"}
    nothing = dict.fromkeys(record.selections, save_once(record, "nothing", schemas.SELECTION.empty_table()))
    return {
        "full": run,
        "no audit": changed(run, audit=False, selections=weak_arms, tests={}, training={}, student_base=None),
        "no training": changed(run, tests={}, training={}, student_base=None),
        "oracle": changed(run, budget={"oracle": True, "rule": "oracle"}),
        "risk": changed(with_risk(run, RISK), shift={"source": DIFFERENT, "calibration": SAME}),
        "nothing certified": with_risk(
            run,
            HOPELESS,
            selections=nothing,
            tests={name: record.tests[name] for name in ("base", "teacher")},
            training={},
        ),
        "many runs": changed(
            run, tests={name: [*refs, record.tests["naive"][0]] for name, refs in record.tests.items()}
        ),
        "two generations": replace(run, generations=[record, replace(record, index=1)]),
        "nothing yet": replace(run, generations=[], stages=[], passes=[], config_path=None),
    }


@pytest.mark.parametrize(
    "name",
    ["full", "no audit", "no training", "two generations", "nothing yet", "risk", "nothing certified", "many runs"],
)
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


def test_a_tracker_is_told_the_numbers_of_the_report(report: dict) -> None:
    numbers = make_entry(report, "/runs/test", {}).numbers
    for arm in report["generations"][0]["arms"]:
        at = f"gen-0/{arm['name']}"
        assert numbers[f"{at}/purity"] == arm["purity"]["value"] and numbers[f"{at}/num_selected"] == N
        assert numbers[f"{at}/accuracy_low"] == arm["accuracy"]["low"]
        assert numbers[f"{at}/recovery"] == arm["recovery"]
    auc = report["generations"][0]["trust"]["pool"]["parsed"]["functions"]["trust"]["auc"]
    assert numbers["gen-0/trust/trust/pool_auc"] == auc["value"] and numbers["gen-0/trust/trust/pool_auc_n"] == auc["n"]
    assert all(isinstance(value, int | float) for value in numbers.values())


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


def test_without_gold_of_the_pool_the_arms_show_the_purity_that_the_source_foresees(
    run: RunRecord, report: dict
) -> None:
    blind = collect(variants(run)["no audit"])
    foreseen = {arm["name"]: arm["foreseen_purity"] for arm in blind["arms"]}
    assert foreseen["trust"] == blind["evidence"]["foreseen"]["purity"]
    rows = [row for row in source_rows(run)[0] if row["error"] is None]
    draws = [arm for arm in foreseen if not ARMS[arm].ranked and not ARMS[arm].gold]
    assert draws
    for arm in draws:
        assert foreseen[arm]["value"] == pytest.approx(is_right(rows).mean())
    assert "Foreseen purity" in render(blind) and "Nobody has gold labels of the pool" in render(blind)
    assert all(arm["foreseen_purity"] is None for arm in report["arms"]) and "Foreseen purity" not in render(report)


def test_every_arm_under_an_oracle_budget_is_stamped(run: RunRecord) -> None:
    assert all(arm["oracle"] for arm in collect(variants(run)["oracle"])["arms"])


def test_labelled_sets_of_all_regimes_are_measured_with_the_one_fit(run: RunRecord, report: dict) -> None:
    regimes = {item["set"]: item for item in report["regimes"]}
    assert {name: item["regime"] for name, item in regimes.items()} == {
        "validation": "ID",
        "far": "OOD-domain",
        "near": "OOD-dist",
        "pool": "pool",
    }
    graded = [row for row in rows_of(run.generations[0].labels["probe-near"]) if row["error"] is None]
    rows = [row for row in graded if row["label"] is not None]
    right, raw = is_right(rows), np.array([row["trust_raw"] for row in rows])
    near = regimes["near"]
    assert len(graded) == 118 and near["n"] == len(rows) < 118 and near["share_right"]["value"] == np.mean(right)
    assert near["auc"]["value"] == pytest.approx(roc_auc_score(right, raw))
    assert near["brier"]["value"] == pytest.approx(brier_score_loss(right, [row["trust_trust"] for row in rows]))
    # The same share is taken as n is of the labelled pool.
    num_top = round(N / (NUM_POOL - 2) * len(graded))
    top = right[np.argsort(-raw)[:num_top]]
    assert near["num_top"] == near["purity_at_n"]["n"] == num_top and near["purity_at_n"]["value"] == top.mean()
    assert near["purity_at_n"]["low"] == pytest.approx(beta.ppf(0.025, top.sum(), num_top - top.sum() + 1))
    constant = is_right([row for row in source_rows(run)[0] if row["label"] is not None]).mean()
    assert near["constant"]["brier"]["value"] == pytest.approx(brier_score_loss(right, np.full(len(rows), constant)))
    assert regimes["far"]["auc"] is None and regimes["far"]["share_right"]["value"] == 0
    for name in ("validation", "pool"):
        found = report["trust"][name]["parsed"]["functions"]["trust"]
        assert all(regimes[name][number] == found[number] for number in ("auc", "ece", "brier", "purity_at_n"))
    text = render(report)
    assert "Fitted on one source, evaluated on many" in text and "OOD-domain" in text
    alone = run.config | {"splits": {**run.config["splits"], "probes": {}}}
    blind = changed(replace(run, config=alone), audit=False, selections={})
    assert [item["set"] for item in collect(blind)["regimes"]] == ["validation"]
    assert "evaluated on many" not in render(collect(blind))


def test_a_risk_guarantee_is_claimed_only_where_calibration_and_pool_are_alike(run: RunRecord) -> None:
    same_source = variants(run)["risk"]
    report = collect(same_source)
    guarantee = same_source.generations[0].budget["risk"]["guarantee"]
    assert guarantee.startswith("expected noise of what is selected at most 0.25 with probability at least 0.9")
    assert report["guarantee"]["claimed"] and "by construction" in report["guarantee"]["exchangeable"]
    text = unescape(render(report))
    assert f"<b>Guarantee.</b> {guarantee}" in text and "Shift, source against pool." in text
    splits = {**run.config["splits"], "calibration": {"from": "two"}}
    for shift, claimed in ((SAME, True), (DIFFERENT, False), ({**SAME, "strength": "untested"}, False)):
        elsewhere = changed(
            replace(same_source, config=run.config | {"splits": splits}), shift={"source": SAME, "calibration": shift}
        )
        found = collect(elsewhere)
        assert found["guarantee"]["claimed"] == claimed and "user's word" in found["guarantee"]["exchangeable"]
        assert ("No guarantee is claimed:" in render(found)) != claimed
    foreign = {"trust": {"share": None, "p_value": 0, "by": "distance", "alarm": True, "warning": "9 % are unlike"}}
    alike = replace(same_source, config=run.config | {"splits": splits})
    found = collect(changed(alike, shift={"source": SAME, "calibration": SAME}, foreign=foreign))
    assert found["guarantee"]["withheld"] == "9 % are unlike"
    assert collect(changed(same_source, foreign=foreign))["guarantee"]["claimed"], "both are parts of one source"
    uncorrected = with_risk(run, {**RISK, "rule": "hoeffding"})
    assert "not for the one that the search chose" in collect(uncorrected)["guarantee"]["withheld"]
    later = replace(same_source, generations=[replace(same_source.generations[0], index=1)])
    assert "calibrated on the same rows" in collect(later)["guarantee"]["withheld"]
    counts = {**run.prepare_counts, "calibration": {"rows": 100, "errors": {"no_gold": 7}}}
    assert (
        "7 calibration rows without"
        in collect(replace(same_source, prepare_counts=counts))["guarantee"]["exchangeable"]
    )
    overlap = {**run.overlap, "dropped": {"pool": 12}}
    found = collect(replace(same_source, overlap=overlap))["guarantee"]["exchangeable"]
    assert found.startswith("on the user's word") and "12 rows of both were dropped" in found
    assert collect(run)["guarantee"] is None and "Guarantee" not in render(collect(run))


def test_risk_that_selects_nothing_is_said_loudly(run: RunRecord) -> None:
    report = collect(variants(run)["nothing certified"])
    assert report["budget"]["n"] == 0
    assert list(report["purity_curves"]["arms"]) == ["naive", "internal_confidence", "trust"]
    assert report["purity_curves"]["points"][0] > 0  # what there would have been to choose from
    assert all(arm["num_selected"] == 0 and arm["accuracy"] is None for arm in report["arms"])
    assert all(arm["purity"] is None for arm in report["arms"])
    assert not report["guarantee"]["claimed"]
    assert report["headline"][0].startswith("Nothing was selected of 398 labelled pool rows")
    text = render(report)
    needed = f"About {report['guarantee']['needed']:,} calibration rows would have sufficed"
    assert "<b>Nothing is selected.</b>" in text and needed in text


def test_several_test_runs_are_averaged_over_rows_and_told_one_by_one(run: RunRecord) -> None:
    report = collect(variants(run)["many runs"])
    first, second = right_on_test(run, "trust"), right_on_test(run, "naive")
    mean = (first + second.astype(int)) / 2
    found = by_name(report)["trust"]["accuracy"]
    assert found["value"] == pytest.approx(mean.mean()) and found["n"] == NUM_TEST
    half = 1.96 * mean.std() / NUM_TEST**0.5
    assert (found["low"], found["high"]) == pytest.approx((mean.mean() - half, mean.mean() + half), abs=2e-3)
    assert found["runs"]["value"] == pytest.approx(mean.mean()) and found["runs"]["n"] == 2
    text = render(report)
    assert "the mean of 2 runs with a seed each" in text
    assert "differences and verdicts are of each row's mean over its runs" in text and "first run" not in text


def test_recovery_is_withheld_where_ground_truth_is_not_surely_above_its_base(run: RunRecord) -> None:
    tests = run.generations[0].tests
    report = collect(changed(run, tests={**tests, "ground_truth": tests["naive"], "base": tests["teacher"]}))
    arms = by_name(report)
    gain = right_on_test(run, "naive").mean() - right_on_test(run, "teacher").mean()
    assert gain > 0, "the ratio could be computed"
    for arm in ("trust", "naive", "ground_truth"):
        assert arms[arm]["recovery"] is None and arms[arm]["recovery_interval"] is None
    differs = f"differs from the base by {100 * gain:+.1f} points ("
    assert differs in arms["trust"]["recovery_withheld"]
    assert f"It is withheld here: {arms['trust']['recovery_withheld']}." in html.unescape(render(report))
    found = next(item for item in report["verdict"]["findings"] if item["rule"] == "students")
    assert found["level"] == "use with care" and differs.replace("the base", "its base") in found["finding"]
    assert "250 test rows show: after 120 rows, 3 epochs that of ground truth" in found["finding"]


def test_students_that_learned_raise_no_finding_and_have_a_recovery(report: dict) -> None:
    assert by_name(report)["trust"]["recovery_withheld"] is None
    assert all(item["rule"] != "students" for item in report["verdict"]["findings"])


def test_five_runs_are_paired_by_the_means_of_the_rows(run: RunRecord, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    ids = np.arange(NUM_TEST) + 5000
    hard = rng.random(NUM_TEST)  # the same rows are hard for every model
    right = {
        name: rng.random((NUM_TEST, 5)) < np.clip(skill + 0.5 - hard, 0.02, 0.98)[:, None]
        for name, skill in (("base", 0.1), ("teacher", 0.3), ("trust", 0.5), ("ground_truth", 0.6))
    }
    tests = {
        name: [graded(tmp_path, f"{name}-{number}", ids, of_run.tolist()) for number, of_run in enumerate(runs.T)]
        for name, runs in right.items()
    }
    arm = by_name(collect(changed(run, tests=tests)))["trust"]
    mean = {name: runs.mean(axis=1) for name, runs in right.items()}
    base, truth = mean["base"].mean(), mean["ground_truth"].mean()
    assert arm["recovery"] == pytest.approx((mean["trust"].mean() - base) / (truth - base), abs=1e-12)
    first = right["trust"][:, 0].mean(), right["base"][:, 0].mean(), right["ground_truth"][:, 0].mean()
    assert arm["recovery"] != pytest.approx((first[0] - first[1]) / (first[2] - first[1]), abs=0.01)  # not of one run

    # Interval and p-value: a plain bootstrap of the rows, and 20,000 drawn flips of the signs of their differences.
    naive = []
    for _ in range(2000):
        rows = rng.integers(0, NUM_TEST, NUM_TEST)
        means = {name: values[rows].mean() for name, values in mean.items()}
        naive.append((means["trust"] - means["base"]) / (means["ground_truth"] - means["base"]))
    low, high = np.quantile(naive, [0.025, 0.975])
    assert arm["recovery_interval"] == pytest.approx([low, high], abs=0.15 * (high - low))
    apart = mean["trust"] - mean["ground_truth"]
    flips = rng.choice([-1, 1], size=(20_000, NUM_TEST)) @ apart
    against = arm["against_ground_truth"]
    assert against["p_value"] == pytest.approx((flips <= apart.sum() + 1e-9).mean(), abs=0.01)
    assert against["better"] == "second" and against["n"] == NUM_TEST and "num_first_only" not in against
    assert against["difference"] == pytest.approx(apart.mean(), abs=1e-12)
    assert against["low"] < apart.mean() < against["high"]
    half = 1.96 * apart.std() / NUM_TEST**0.5
    assert [against["low"], against["high"]] == pytest.approx(
        [apart.mean() - half, apart.mean() + half], abs=0.3 * half
    )
    assert arm["p_value_vs_ground_truth"] == against["p_value"] and arm["weak_to_strong"] is True
    assert arm["verdict"] in ("inconclusive", "below ground truth")


def test_rows_that_a_signal_left_unread_and_grades_of_a_judge_are_counted(run: RunRecord) -> None:
    record = run.generations[0]
    report = collect(
        changed(
            run,
            selections={**record.selections, "ensemble": record.selections["naive"]},
            unread={"ensemble_agreement": 44},
        )
    )
    arms = by_name(report)
    assert arms["ensemble"]["num_unread"] == 44 and arms["naive"]["num_unread"] is None
    graded = report["funnel"]["generations"][0]["graded"]["pool"]
    right = round(report["teacher"]["pool"]["value"] * (NUM_POOL - 2))
    assert graded == {"rows": NUM_POOL - 2, "right": right, "judged": 3, "problems": {"timeout": 2}}
    text = render(report)
    assert "44 of the pool unread" in text and "3 right by the judge alone" in text and "2 timeout" in text


def test_the_curve_of_a_uniform_arm_goes_on_at_random_after_its_rows(run: RunRecord) -> None:
    """Unparsed rows are drawn like any other, so that purity beyond the budget is that of the pool."""
    record = run.generations[0]
    judged = read_graded_rows(record.labels["pool"], record.grades["pool"], ["naive", "trust"])
    picked = np.array([row["row_id"] for row in rows_of(record.selections["naive"])])
    for arm, last in (("naive", False), ("trust", True)):
        parsed = judged.parsed_N[rank_for_arm(judged, arm, picked, SEED)][N:]
        unparsed = np.flatnonzero(~parsed)
        assert len(unparsed) > 3 and (unparsed.min() >= parsed.sum()) == last


def test_labels_all_right_leave_the_auc_undefined(run: RunRecord, tmp_path: Path) -> None:
    ids = np.arange(NUM_POOL) + (7 << schemas.FILE_SHIFT)
    ones = np.ones(NUM_POOL, dtype=np.float32)
    table = weak(ids, [GOLD] * NUM_POOL, [None] * NUM_POOL, ones, -ones)
    labels = {**run.generations[0].labels, "pool": save(tmp_path, "all-right", table)}
    grades = {**run.generations[0].grades, "pool": by_hand(tmp_path, "all-right", table)}
    report = collect(changed(run, labels=labels, grades=grades))
    trust = report["trust"]["pool"]["parsed"]["functions"]["trust"]
    assert trust["auc"] is None and trust["purity_at_n"]["value"] == 1
    write(report, tmp_path)


def test_a_pass_has_the_speed_of_its_last_run_and_the_medians_of_its_engines(report: dict) -> None:
    label, test = report["passes"]
    assert label["output_tokens_per_second"] == pytest.approx(4_000 * 200 / 400 / 50)
    assert label["prompt_tokens_per_second"] == pytest.approx(10_000 * 200 / 400 / 50)
    assert label["starts"] == 3
    assert label["teacher"] == {"start_seconds": 40, "kv_cache_tokens": 2**20, "max_running": 256}
    assert test["output_tokens_per_second"] is None and test["teacher"] == {}
    page = render(report)
    assert "1,048,576" in page and "Passes of models" in page
