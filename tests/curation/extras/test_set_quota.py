"""Places by class where labels are sets: a row counts by its rarest class, and what sets cannot have is refused."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from class_tables import SEED, Row, job_of

from curation.config import DomainConfig, SelectionConfig
from curation.domains import get_domain
from curation.domains.class_counts import RarestClass
from curation.errors import ConfigError
from curation.extras.quotas.division import describe_settings, find_divided_classes
from curation.hashing import derive, hash64
from curation.selection.class_shares import estimate_shares
from curation.selection.quotas import allocate
from curation.stages.chooser import SelectJob
from curation.stages.select import select
from curation.tables import io, schemas

NUM_POOL, NUM_SOURCE, N = 600, 300, 90
CLASSES, SHARES = ("often", "rare", "middle"), (0.6, 0.1, 0.3)
STRATA = (*CLASSES, "none")
DOMAIN = DomainConfig(name="classification", classes=list(CLASSES), multi=True)


def labelled(num_rows: int, first: int, rng: np.random.Generator) -> list[Row]:
    """Rows whose teacher errs in one class of five, is surest of the empty set, and cannot be read of one in ten."""
    rows: list[Row] = []
    for number in rng.permutation(num_rows):
        is_held = rng.random(3) < SHARES
        said = is_held ^ (rng.random(3) < 0.2 * np.array([1, 0.3, 1]))
        gold, label = (", ".join(np.array(CLASSES)[held]) or "none" for held in (is_held, said))
        row = {"row_id": first + int(number), "gold": gold, "label": None if rng.random() < 0.1 else label}
        raw = float(np.float32(rng.normal() + 3 * (label == "none")).round(1))
        row |= {"text": f"text {number}", "completion": label, "judged": False, "trust_raw": raw, "trust_trust": 0.5}
        rows.append(row | {"correct": row["label"] == gold})
    return rows


def stratum(label: str) -> str:
    names = label.split(", ")
    return next(name for name in ("rare", "middle", "often", "none") if name in names)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> tuple[SelectJob, list[Row], list[Row]]:
    folder, rng = tmp_path_factory.mktemp("by-set"), np.random.default_rng(0)
    rows, source = labelled(NUM_POOL, 1 << schemas.FILE_SHIFT, rng), labelled(NUM_SOURCE, 0, rng)
    selection = {"budget": {"n": N}, "arms": ("naive", "trust")}
    job = job_of(folder, rows, source, DOMAIN, STRATA, selection)
    return job, rows, source


def test_a_row_counts_by_the_rarest_class_of_its_set(pool):
    job, _, source = pool
    found = job.divided["quota"].groups(get_domain(DOMAIN).label_sets)
    assert isinstance(found, RarestClass) and found.names == STRATA
    labels = ["often", "often, rare, middle", "often, middle", "none", None, "tax", "rare, tax"]
    assert found.places(pa.array(labels)).tolist() == [0, 1, 2, 3, 4, 4, 4]
    golds = Counter(name for row in source for name in row["gold"].split(", "))
    assert golds["rare"] < golds["middle"] < golds["often"]  # so that the strata above are those of these rows


def test_the_best_of_each_stratum_are_taken_by_its_estimated_share(pool, tmp_path: Path):
    job, rows, source = pool
    budget, made = select(job, tmp_path)
    trust = io.read(next(item for item in made if item.arm == "trust").table).to_pylist()
    counts = np.zeros((4, 5), dtype=np.int64)
    for row in source:
        counts[
            STRATA.index(stratum(row["gold"])), 4 if row["label"] is None else STRATA.index(stratum(row["label"]))
        ] += 1
    read = [row for row in rows if row["label"] is not None]
    size_S = [sum(stratum(row["label"]) == name for row in read) for name in STRATA]
    wanted = estimate_shares(STRATA, np.array([*size_S, len(rows) - len(read)]), counts)
    assert budget.divided["quota"].classes == STRATA
    assert (
        budget.divided["quota"].shares == pytest.approx(wanted.shares) and budget.divided["quota"].basis == "confusion"
    )
    left = Counter(dict(zip(STRATA, allocate(wanted.shares, size_S, N).tolist(), strict=True)))
    ties = hash64(np.array([row["row_id"] for row in read]), derive(SEED, "ties"))
    best = []
    for _, row in sorted(zip(ties, read, strict=True), key=lambda pair: (-pair[1]["trust_raw"], int(pair[0]))):
        if left[stratum(row["label"])]:
            left[stratum(row["label"])] -= 1
            best.append(row["row_id"])
    assert [row["row_id"] for row in trust] == best and len(best) == N

    def shares(chosen: list[Row], column: str) -> Any:
        return np.array([np.mean([name in row[column].split(", ") for row in chosen]) for name in STRATA])

    # Without places by class trust takes rows without classes; with them each class has about its share of the pool.
    top = sorted(read, key=lambda row: row["trust_raw"])[-N:]
    true = shares(rows, "gold")
    assert np.abs(shares(top, "label") - true).max() > 0.4
    assert np.abs(shares(trust, "label") - true).max() < 0.15


def settings(**given: Any) -> SelectionConfig:
    return SelectionConfig.model_validate({"budget": {"n": 10}, "arms": ["trust"]} | given)


def test_places_of_sets_are_told_and_what_cannot_be_is_refused():
    domain = get_domain(DOMAIN)
    assert (
        find_divided_classes(settings(), domain) == STRATA
        and find_divided_classes(settings(quota="none"), domain) is None
    )
    run: Any = SimpleNamespace(domain_of=lambda _: DOMAIN)
    (words,) = describe_settings(run, settings())
    assert "places of arms that rank go to the 3 classes and to rows of none, each row by its rarest class, by" in words
    assert "none: the best rows are selected" in next(describe_settings(run, settings(quota="none")))
    for changes, problem in (
        (
            {"budget": {"risk": {"alpha": 0.1, "per": "label"}}},
            r"risk\.per: label: with domain\.multi .* leave per out",
        ),
        ({"max_per_label": 5}, r"max_per_label: 5: .*domain\.multi.*set selection\.quota: none, or leave"),
    ):
        with pytest.raises(ConfigError, match=problem):
            find_divided_classes(settings(**changes), domain)
    assert find_divided_classes(settings(quota="none", max_per_label=5), domain) is None
    assert find_divided_classes(settings(budget={"threshold": 0.5}, max_per_label=5), domain) is None
