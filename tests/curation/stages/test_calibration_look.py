"""A probe's comparison of calibrated and plain options, from made-up scores, against scikit-learn's accuracy."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score

from curation.config import DecodingConfig, DomainConfig
from curation.domains import get_domain
from curation.stages.calibration_look import compare_calibration, with_blanks
from curation.stages.deal import POOL, make_example_table
from curation.stages.probe import FIRST_BESIDE
from curation.tables import io, schemas

CLASSES = ("anger", "joy", "sadness")
DOMAIN = get_domain(DomainConfig(name="classification", classes=list(CLASSES)))
BIAS = np.array([0.0, 3.0, -1.0])


def asked(folder: Path, num: int, *, signal: float, blanks: int = 3):
    """Labels of a teacher that likes joy best whatever the text is, and the gold labels of all but five rows."""
    rng = np.random.default_rng(0)
    gold_N = rng.integers(3, size=num)
    score_NC = rng.normal(size=(num, 3)) + signal * np.eye(3)[gold_N]
    scores = np.concatenate([np.zeros((blanks, 3)), score_NC]) + BIAS - 5
    columns = {
        "row_id": [*range(FIRST_BESIDE, FIRST_BESIDE + blanks), *range(num)],
        "completion": ["x"] * (num + blanks),
        "option_logprobs": pa.array(
            scores.tolist(), schemas.make_completions_schema((), "float16", 1).field("option_logprobs").type
        ),
        "error": pa.nulls(num + blanks, pa.string()),
    }
    golds = {row: CLASSES[place] for row, place in enumerate(gold_N.tolist()) if row >= 5}
    return io.write(pa.table(columns), str(folder / "labels.lance")), golds, score_NC[5:], gold_N[5:]


def test_the_shares_are_those_of_a_plain_count(tmp_path: Path):
    labels, golds, score_NC, gold_N = asked(tmp_path, 105, signal=2)
    before_N, after_N = (score_NC + BIAS).argmax(axis=1), score_NC.argmax(axis=1)
    changed = [(before_N == gold_N) & (after_N != gold_N), (before_N != gold_N) & (after_N == gold_N)]
    p = binomtest(int(changed[1].sum()), int(changed[0].sum() + changed[1].sum())).pvalue
    shares = [100 * accuracy_score(gold_N, found_N) for found_N in (after_N, before_N)]
    assert shares[0] > shares[1] + 10 and p < 0.05
    assert compare_calibration(labels, DOMAIN, golds) == (
        f"of 100 labelled rows {shares[0]:.1f} % are right with domain.calibrate: content_free, and {shares[1]:.1f} % "
        f"without (p = {p:.2g}): set domain.calibrate: content_free"
    )


def test_rows_with_several_labels_are_compared_by_their_sets(tmp_path: Path):
    domain = get_domain(DomainConfig(name="classification", classes=list(CLASSES), multi=True))
    rng = np.random.default_rng(0)
    bias_L, gold_NL = np.array([0.0, 4.0, -4.0]), rng.random((100, 3)) < 0.5
    gap_NL = np.concatenate([np.zeros((3, 3)), 4 * gold_NL - 2 + rng.normal(size=(100, 3))]) + bias_L
    ids = [*range(FIRST_BESIDE, FIRST_BESIDE + 3), *range(100)]
    columns = {
        "row_id": ids,
        "completion": ["x"] * 103,
        "option_logprobs": [np.stack([gaps, np.zeros(3)], axis=1).reshape(-1).tolist() for gaps in gap_NL],
        "error": pa.nulls(103, pa.string()),
    }
    labels = io.write(pa.table(columns), str(tmp_path / "labels.lance"))
    golds = {row: domain.gold({"label": np.array(CLASSES)[has_L].tolist()}) for row, has_L in enumerate(gold_NL)}
    shares = [100 * ((gap_NL[3:] > less_L) == gold_NL).all(axis=1).mean() for less_L in (bias_L, 0)]
    assert shares[0] > shares[1] + 10
    told = f"{shares[0]:.1f} % are right with domain.calibrate: content_free, and {shares[1]:.1f} % without"
    found = str(compare_calibration(labels, domain, golds))
    assert told in found and found.endswith("set domain.calibrate: content_free")


def test_nothing_is_recommended_without_a_difference(tmp_path: Path):
    labels, golds, *_ = asked(tmp_path, 45, signal=0)
    assert str(compare_calibration(labels, DOMAIN, golds)).endswith("no clear difference")
    assert compare_calibration(labels, DOMAIN, dict([*golds.items()][:29])) is None
    labels, golds, *_ = asked(tmp_path / "less", 45, signal=0, blanks=2)
    assert compare_calibration(labels, DOMAIN, golds) is None
    joy = dict.fromkeys(golds, "joy")
    labels, *_ = asked(tmp_path / "worse", 205, signal=0)
    assert str(compare_calibration(labels, DOMAIN, dict.fromkeys(range(5, 205), "joy") | joy)).endswith(
        "calibrate: none"
    )


@pytest.mark.parametrize(
    ("domain", "decoding", "num"),
    [
        (DOMAIN, {}, 3),
        (DOMAIN, {"normalise_options": True}, 0),
        (DOMAIN, {"constrained": "stepwise"}, 0),
        (get_domain(DomainConfig(name="math")), {}, 0),
    ],
)
def test_texts_without_content_are_asked_beside_the_sample(domain, decoding, num):
    raw = {"text": "It rains.", "problem": "1 + 1 = ?"}
    examples = make_example_table(domain, POOL, [7], [raw])
    found = with_blanks(examples, domain, DecodingConfig(**decoding))
    assert found.schema == examples.schema and found.num_rows == 1 + num and found.slice(num) == examples
    if num:
        assert found["text"].to_pylist()[:3] == ["N/A", "[MASK]", ""] and found["error"].null_count == 4
