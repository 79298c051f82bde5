"""The tables of an ablation from tables of scored rows, against numbers computed here."""

import json

import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score

from curation.extras.ablate.tables import collect, format_markdown, write
from curation.tables import io
from curation.tables.schemas import GRADES
from curation.trust import saved


def scored(path, correct_N, parsed_N, raw_N):
    ids_N, none = np.arange(len(raw_N)), pa.nulls(len(raw_N), pa.string())
    labels = {"row_id": ids_N, "label": pa.array(["x"] * len(raw_N), mask=~parsed_N), "error": none}
    labels |= {"trust_raw": raw_N, "trust_trust": (1 / (1 + np.exp(-raw_N))).astype(np.float32)}
    grades = {"row_id": ids_N, "correct": correct_N, "judged": np.zeros(len(raw_N), bool), "problem": none}
    grades["question"] = pa.nulls(len(raw_N), pa.int64())
    return {
        "labels": io.write(pa.table(labels), f"{path}-labels.lance"),
        "grades": io.write(pa.table(grades, schema=GRADES), f"{path}-grades.lance"),
        "trust": None,
        "function": "trust",
        "seed": 0,
    }


def fitted(path, num_fit):
    weights = {"weight": torch.zeros(1)}
    return saved.save(path, weights, {"fit": {"num_fit": num_fit, "variance_kept": 0.5}})


@pytest.fixture
def record(tmp_path):
    seeds, rows = {}, {}
    for seed in (0, 1, 2):
        rng = np.random.default_rng(seed)
        parsed_N = rng.random(400) < 0.6
        correct_N = parsed_N & (rng.random(400) < 0.4)
        raws = {
            name: (correct_N + rng.normal(0, scale, 400)).astype(np.float32) for name, scale in (("a", 1), ("b", 2))
        }
        tables = {
            name: {"pool": scored(tmp_path / f"{name}{seed}", correct_N, parsed_N, raw)} for name, raw in raws.items()
        }
        seeds[seed] = {
            "rows": tables,
            "fits": {"a": fitted(tmp_path / f"trust{seed}", 100 + seed)},
            "tests": {},
        }
        rows[seed] = (correct_N, parsed_N, raws)
    config = {
        "title": "Noise",
        "sets": ["pool"],
        "variants": {"a": {}, "b": {"function": "internal_confidence"}},
        "reference": "a",
        "students": False,
    }
    made = {
        "name": "noise",
        "command": "curate ablate noise.yaml",
        "config": config,
        "versions": {"torch": "2"},
        "shares": {"a": 0.1, "b": 0.1},
        "seeds": seeds,
    }
    return made, rows


def test_a_line_is_the_mean_over_seeds_and_its_difference_the_paired_one(record):
    made, rows = record
    first, second = collect(**made)["lines"]
    aucs, purities = [], []
    for correct_N, parsed_N, raws in rows.values():
        aucs.append([roc_auc_score(correct_N[parsed_N], raws[name][parsed_N]) for name in "ab"])
        best = [np.argsort(np.where(parsed_N, -raws[name], np.inf), kind="stable")[:40] for name in "ab"]
        purities.append([correct_N[places].mean() for places in best])
    assert first["auc"]["value"] == pytest.approx(np.mean(aucs, axis=0)[0])
    assert second["purity"]["value"] == pytest.approx(np.mean(purities, axis=0)[1])
    assert first["differences"] == {} and first["num_fit"] == [100, 101, 102]
    difference_R = np.subtract(*np.transpose(aucs)[::-1])
    found = second["differences"]["auc"]
    assert found["rows"]["value"] == found["seeds"]["value"] == pytest.approx(difference_R.mean())
    half = stats.t.ppf(0.975, 2) * difference_R.std(ddof=1) / np.sqrt(3)
    assert found["seeds"]["high"] == pytest.approx(difference_R.mean() + half)
    assert found["rows"]["low"] < difference_R.mean() < found["rows"]["high"]
    right = [correct_N[parsed_N].mean() for correct_N, parsed_N, _ in rows.values()]
    assert first["constant_brier"]["value"] == pytest.approx(np.mean([share * (1 - share) for share in right]))


def test_the_markdown_has_a_line_a_variant_and_no_column_without_numbers(record, tmp_path):
    content = collect(**record[0])
    text = format_markdown(content)
    head, _, *lines = text.strip().split("\n")
    assert head.startswith("| variant | fit rows | variance kept | AUC |") and "set" not in head
    assert [line.split(" | ")[0] for line in lines] == ["| a", "| b"]
    assert write(content, tmp_path).read_text() == text
    assert json.loads((tmp_path / "noise.json").read_text()) == json.loads(json.dumps(content))


def test_variants_with_other_labels_are_not_paired(record, tmp_path):
    made, rows = record
    correct_N, parsed_N, raws = rows[2]
    made["seeds"][2]["rows"]["b"]["pool"] = scored(tmp_path / "other", ~correct_N & parsed_N, parsed_N, raws["b"])
    _, second = collect(**made)["lines"]
    assert second["differences"] == {}
