"""The control without a teacher: equal to scikit-learn's cross-validation; absent where there is nothing to learn."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from test_verdict import HEALTHY, about

from curation.domains import Domain
from curation.domains.classification import Classification
from curation.domains.mcqa import Mcqa
from curation.hashing import derive
from curation.refs import TableRef
from curation.report.checks import WORD, Control, measure_control
from curation.report.rows import FunctionScores, GradedRows
from curation.report.rules import CARE, USE
from curation.report.verdict import reach_verdict
from curation.tables import io

CLASSES = ("cards", "loans", "savings")
WORDS = {"cards": "card chip pin lost", "loans": "loan rate monthly debt", "savings": "interest account yearly plan"}
SEED = 3


def made(folder: Path, num_rows: int) -> tuple[TableRef, GradedRows, list[str]]:
    """Texts of a word of their class and four of any; a teacher that is right on half of them, whatever it trusts."""
    rng = np.random.default_rng(0)
    every = " ".join(WORDS.values()).split()
    gold = [CLASSES[number % 3] for number in range(num_rows)]
    texts = [" ".join(rng.permutation([*rng.choice(WORDS[name].split(), 1), *rng.choice(every, 4)])) for name in gold]
    data = pa.table({"row_id": pa.array(range(num_rows), pa.int64()), "text": texts, "gold": gold})
    score = FunctionScores(raw_N=rng.normal(size=num_rows), trust_N=np.full(num_rows, 0.5))
    held = GradedRows(
        row_ids_N=np.arange(num_rows),
        correct_N=rng.random(num_rows) < 0.5,
        parsed_N=np.ones(num_rows, dtype=np.bool_),
        scores={"trust": score},
    )
    return io.write(data, str(folder / "source.lance")), held, texts


def test_numbers_equal_those_of_scikit_learns_cross_validation(tmp_path: Path) -> None:
    examples, held, texts = made(tmp_path, 300)
    domain = Classification(classes=CLASSES)
    found = measure_control(examples, domain, held, "trust", 0.25, seed=SEED, confidence=0.95)
    words = TfidfVectorizer(sublinear_tf=True, max_features=50_000, token_pattern=WORD)
    model = make_pipeline(words, LogisticRegression(C=10.0, max_iter=1000))
    gold = np.array([CLASSES[number % 3] for number in range(300)])
    folds = KFold(5, shuffle=True, random_state=derive(SEED, "control folds") % (1 << 32))
    given = cross_val_predict(
        model, [domain.prompt({"text": text}) for text in texts], gold, cv=folds, method="predict_proba"
    )
    right = np.array(sorted(CLASSES))[given.argmax(axis=1)] == gold
    assert found is not None and found.accuracy.value == pytest.approx(right.mean()) and 0.5 < right.mean() < 0.95
    first = np.argsort(-given.max(axis=1), kind="stable")[:75]
    assert found.top.value == pytest.approx(right[first].mean()) and found.top.n == found.trust_top.n == 75
    assert found.trust_top.value == held.correct_N[np.argsort(-held.scores["trust"].raw_N)[:75]].mean()


def test_rows_whose_class_is_not_known_are_left_out(tmp_path: Path) -> None:
    examples, held, _ = made(tmp_path, 300)
    graded = io.read(examples).set_column(2, "gold", pa.array(["grade: right", "grade: wrong"] * 150))
    table = io.write(graded, str(tmp_path / "graded.lance"))
    assert (
        measure_control(table, Classification(classes=CLASSES), held, "trust", 0.25, seed=SEED, confidence=0.95) is None
    )


@pytest.mark.parametrize(("num_rows", "domain"), [(49, Classification(classes=CLASSES)), (300, Mcqa())])
def test_few_rows_and_open_labels_have_no_control(tmp_path: Path, num_rows: int, domain: Domain) -> None:
    examples, held, _ = made(tmp_path, num_rows)
    assert measure_control(examples, domain, held, "trust", 0.25, seed=SEED, confidence=0.95) is None


@pytest.mark.parametrize(("top", "level"), [((0.875, 0.66, 0.97), CARE), ((0.70, 0.45, 0.88), USE)])
def test_a_control_that_wins_is_a_finding(top: tuple[float, float, float], level: str) -> None:
    trust = about(0.575, 0.36, 0.77, 40)
    beside = Control(accuracy=about(0.6, 0.5, 0.7, 300), top=about(*top, 40), trust_top=trust)
    found = reach_verdict(replace(HEALTHY, control=beside), "d")
    assert found.level == level
    if level == CARE:
        assert [item["rule"] for item in found.findings] == ["control"]
        assert "is right on 87.5\u00a0% of the 40 that it is surest of" in found.sentence
        assert "57.5\u00a0%" in found.sentence and "Label with such a classifier" in found.findings[0]["next"]
