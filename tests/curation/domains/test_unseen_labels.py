"""Labels that no labelled row has: which tasks they are counted in, and that arms that rank take their rows last."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from class_tables import job_of
from scipy.stats import beta

from curation.config import DomainConfig
from curation.domains import get_domain
from curation.domains.class_counts import OPEN, SeenLabels, collect_seen_labels, count_unseen, is_unseen
from curation.refs import TableRef
from curation.stages.pool_scores import PoolScores
from curation.stages.select import select
from curation.storage.paths import to_place
from curation.tables import io, schemas

TEXT = DomainConfig.model_validate({"name": "text", "prompt": "{{ asked }}", "reference": "answer"})


def labelled(folder: Path, golds: list[str]) -> TableRef:
    rows = {
        "row_id": list(range(len(golds))),
        "question": [f"text {place}" for place in range(len(golds))],
        "fields": ["{}"] * len(golds),
        "gold": golds,
        "error": pa.nulls(len(golds), pa.string()),
    }
    return io.write(pa.table(rows), str(folder / "labelled.lance"))


@pytest.mark.parametrize(
    ("golds", "labels"),
    [
        (["cat", "dog"] * 40, ("cat", "dog")),
        (["cat"] * 95 + ["a", "b", "c", "d", "e"], ("a", "b", "c", "cat", "d", "e")),  # 5 % of rows have their own
        (["cat"] * 94 + ["a", "b", "c", "d", "e", "f"], None),
        ([str(number) for number in range(200)], None),  # as in mathematics
        (["cat", "dog"] * 9, None),  # 18 rows
    ],
)
def test_labels_are_known_where_few_rows_have_one_of_their_own(
    tmp_path: Path, golds: list[str], labels: tuple[str, ...] | None
) -> None:
    found = collect_seen_labels(labelled(tmp_path, golds), TEXT)
    assert (None if found is None else found.labels) == labels


@pytest.mark.parametrize(
    ("options", "known"),
    [
        ({"name": "text", "prompt": "{{ asked }}", "reference": "answer", "check": "normalised"}, False),
        ({"name": "text", "prompt": "{{ asked }}", "reference": "answer", "check": "number"}, False),
        ({"name": "math"}, False),
        ({"name": "classification", "classes": ["cat", "dog"]}, True),
        ({"name": "mcqa"}, True),
        ({"name": "chess"}, True),
    ],
)
def test_only_labels_that_are_graded_by_equality_can_be_unseen(options: dict[str, object], known: bool) -> None:
    assert get_domain(DomainConfig.model_validate(options)).is_equality is known


def test_the_share_of_new_labels_is_about_that_of_labels_of_their_own() -> None:
    """Good and Turing: over 300 draws of 400 rows of 60 classes, the mean of both is the same."""
    rng, share_C = np.random.default_rng(0), np.geomspace(1, 300, 60)
    share_C /= share_C.sum()
    own, new = [], []
    for _ in range(300):
        count_C = rng.multinomial(400, share_C)
        own.append((count_C == 1).sum() / 400)
        new.append(share_C[count_C == 0].sum())
    assert np.mean(own) == pytest.approx(np.mean(new), abs=0.002) and 0.01 < np.mean(own) < OPEN


def test_labels_of_a_pool_are_counted_and_the_most_frequent_listed(local_ray, tmp_path: Path) -> None:
    seen = SeenLabels.of(Counter(cat=60, dog=39, cow=1))
    assert seen == (("cat", "cow", "dog"), 100, 1)
    given = ["cat"] * 50 + ["bird"] * 30 + [None] * 7 + ["cow"] + [f"fish {n}" for n in range(12)]
    rows = [{"row_id": n, "label": label, "error": None} for n, label in enumerate(given)]
    rows.append({"row_id": 500, "label": "bird", "error": "broken: no row"})
    schema = schemas.make_labels_schema([], "float16", 1)
    labels = io.write(pa.Table.from_pylist(rows, schema), str(tmp_path / "labels.lance"))
    found = count_unseen(labels, seen)
    assert (found.num_seen, found.num_read, found.num_rows, found.num_labels) == (3, 93, 42, 13)
    assert len(found.most) == 10 and found.most["bird"] == 30
    assert found.words.startswith("bird 30, fish ") and found.words.endswith(", and 3 more")
    assert found.expected == pytest.approx(beta.ppf(0.975, 2, 99))  # 1 of 100 rows
    assert is_unseen(pa.array(["cat", None, "bird"]), seen.labels).tolist() == [False, False, True]


@pytest.fixture
def pool(tmp_path: Path) -> tuple[TableRef, TableRef]:
    """Labels of 200 rows, of which the surest 60 are birds, and labelled rows without birds."""
    rows = [
        {"row_id": n, "label": "bird" if n < 60 else ("cat", "dog")[n % 2], "trust_raw": 9.0 - n / 100}
        for n in range(200)
    ]
    rows = [
        row | {"completion": f" {row['label']}", "trust_trust": 1 / (1 + np.exp(-row["trust_raw"]))} for row in rows
    ]
    schema = pa.schema(
        [
            *schemas.make_labels_schema([], "float16", 1),
            *(pa.field(f"trust_{n}", pa.float32()) for n in ("raw", "trust")),
        ]
    )
    labels = io.write(pa.Table.from_pylist(rows, schema), str(tmp_path / "labels.lance"))
    return labels, labelled(tmp_path, ["cat", "dog"] * 50)


def test_rows_of_unseen_labels_come_last(local_ray, pool: tuple[TableRef, TableRef]) -> None:
    labels, source = pool
    seen = collect_seen_labels(source, TEXT)
    assert seen is not None
    scores = PoolScores(labels=labels, trust="trust", seen=seen.labels)
    top = scores.top(150, 0).row_ids_n.tolist()
    assert top == [*range(60, 200), *range(10)]  # in the order of trust among themselves, too
    assert replace(scores, seen=None).top(60, 0).row_ids_n.tolist() == list(range(60))
    assert scores.num_trusted(0.5) == 140  # none of them passes a threshold
    assert scores.num_scored == 200  # but a large budget may take them


def test_arms_that_rank_take_unseen_labels_last_and_others_as_before(local_ray, tmp_path: Path) -> None:
    """Of 20 surest birds that no labelled row has."""
    domain = DomainConfig(name="classification", classes=["cat", "dog", "bird"])
    rows = [
        {
            "row_id": n,
            "text": f"animal {n}",
            "completion": " x",
            "label": "bird" if n < 20 else ("cat", "dog")[n % 2],
            "trust_raw": 9.0 - n / 10,
            "trust_trust": 0.9,
        }
        for n in range(100)
    ]
    source = [
        {"row_id": n, "text": f"known {n}", "gold": ("cat", "dog")[n % 2], "label": "cat", "completion": " cat"}
        | {"correct": n % 2 == 0, "judged": False, "trust_raw": 0.0, "trust_trust": 0.5}
        for n in range(60)
    ]
    selection = {"budget": {"n": 40}, "arms": ["trust", "naive"], "quota": "none"}
    job = job_of(tmp_path, rows, source, domain, ("cat", "dog", "bird"), selection)
    job = replace(job, divided={}, labelled=job.divided["quota"].examples)
    assert job.seen is not None and job.seen.labels == ("cat", "dog")
    _, found = select(job, to_place(str(tmp_path / "selected")))
    ids = {item.arm: io.read(item.table)["row_id"].to_pylist() for item in found}
    assert sorted(ids["trust"]) == list(range(20, 60))
    assert any(row_id < 20 for row_id in ids["naive"])  # a uniform draw is one of all rows
