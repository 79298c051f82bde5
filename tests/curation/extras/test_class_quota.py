"""Arms whose places are divided among classes (``selection.quota``): each against its own ranking within classes."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from class_tables import SEED, Row, job_of, write
from pydantic import ValidationError
from sklearn.metrics import confusion_matrix

from curation.config import DomainConfig, SelectionConfig
from curation.config.filter import KeepConfig
from curation.domains import get_domain
from curation.domains.class_counts import count_confusion, count_given
from curation.domains.classification import Classification
from curation.errors import BudgetError, ConfigError
from curation.extras.quotas.division import describe_settings, find_divided_classes
from curation.hashing import derive, hash64, hash_unit
from curation.selection.class_shares import estimate_shares
from curation.selection.quotas import allocate
from curation.selection.risk import calibrate
from curation.stages.chooser import SelectJob
from curation.stages.pool_scores import ComputedBudget, ScoredSplit
from curation.stages.select import select
from curation.tables import io, scans, schemas

NUM_POOL, NUM_SOURCE, N = 600, 300, 90
CLASSES = ("anger", "joy", "optimism", "sadness")
DOMAIN = DomainConfig(name="classification", classes=list(CLASSES))
ARMS = ("naive", "naive_parsed", "internal_confidence", "trust", "trust_gold", "ground_truth")


def labelled(num_rows: int, first: int, shares: list[float], rng: np.random.Generator) -> list[Row]:
    """Rows whose teacher calls most errors "joy", is surest of "joy", and writes what cannot be read of one in ten."""
    rows: list[Row] = []
    for number in rng.permutation(num_rows):
        gold = CLASSES[rng.choice(4, p=shares)]
        label = gold if rng.random() < 0.6 else "joy" if rng.random() < 0.8 else CLASSES[rng.choice(4)]
        raw = float(np.float32(rng.normal() + 1.5 * (label == gold) + 2 * (label == "joy")).round(1))
        rows.append(
            {
                "row_id": first + int(number),
                "text": f"text {number}",
                "gold": gold,
                "label": None if rng.random() < 0.1 else label,
                "completion": f" {label}",
                "mean_logprob": float(np.float32(-np.exp(-raw))),
                "trust_raw": raw,
                "trust_trust": float(np.float32(1 / (1 + np.exp(-raw)))),
                "judged": False,
            }
        )
        rows[-1]["correct"] = rows[-1]["label"] == gold
    return rows


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> tuple[SelectJob, list[Row], list[Row]]:
    folder, rng = tmp_path_factory.mktemp("by-class"), np.random.default_rng(0)
    rows = labelled(NUM_POOL, 1 << schemas.FILE_SHIFT, [0.3, 0.2, 0.1, 0.4], rng)
    source = labelled(NUM_SOURCE, 0, [0.25, 0.25, 0.25, 0.25], rng)
    job = job_of(folder, rows, source, DOMAIN, CLASSES, {"budget": {"n": N}, "arms": ARMS}, audited=True)
    return job, rows, source


def chosen(job: SelectJob, folder: Path, **changes: Any) -> tuple[ComputedBudget, dict[str, list[Row]]]:
    given = {"budget": {"n": N}, "arms": ARMS} | changes
    budget, made = select(replace(job, selection=SelectionConfig.model_validate(given)), folder)
    return budget, {item.arm: io.read(item.table).to_pylist() for item in made}


def best(rows: list[Row], score: Callable[[Row], float], quotas: dict[str, int]) -> list[int]:
    """The ids of the best rows of each class, in rank order."""
    ranked = sorted(
        rows, key=lambda row: (-score(row), int(hash64(np.array([row["row_id"]]), derive(SEED, "ties"))[0]))
    )
    left, taken = Counter(quotas), []
    for row in ranked:
        if left[row["label"]] > 0:
            left[row["label"]] -= 1
            taken.append(row["row_id"])
    return taken


def raw(row: Row) -> float:
    return row["trust_raw"]


def draw(row: Row) -> float:
    return float(np.float32(hash_unit(np.array([row["row_id"]]), derive(SEED, "draw"))[0]))


def ids(rows: list[Row]) -> list[int]:
    return [row["row_id"] for row in rows]


def by_class(rows: list[Row]) -> dict[str, int]:
    return {name: sum(row["label"] == name for row in rows) for name in CLASSES}


def confused(rows: list[Row]) -> Any:
    """The labelled rows by class and label, by scikit-learn."""
    names = [*CLASSES, "none"]
    return confusion_matrix([row["gold"] for row in rows], [row["label"] or "none" for row in rows], labels=names)[:4]


def test_counts_are_those_of_scikit_learn(pool):
    job, rows, source = pool
    found = count_confusion(
        job.divided["quota"].examples, job.divided["quota"].labels, job.divided["quota"].grades, CLASSES
    )
    assert found.tolist() == confused(source).tolist()
    found = count_given(job.labels, CLASSES)
    assert found.tolist() == [*by_class(rows).values(), sum(row["label"] is None for row in rows)]


def test_a_question_counts_once_and_a_grade_is_no_class(pool, tmp_path: Path):
    job, _, source = pool
    rows = sorted(source, key=lambda row: row["row_id"])
    asked = write(tmp_path, "asked", [row | {"question": row["row_id"] // 3} for row in rows], schemas.GRADES)
    assert (
        count_confusion(job.divided["quota"].examples, job.divided["quota"].labels, asked, CLASSES).sum()
        == NUM_SOURCE / 3
    )
    only = [row | {"gold": "grade: right" if row["correct"] else "grade: wrong"} for row in rows]
    examples = write(tmp_path, "graded", only, schemas.make_examples_schema(Classification.columns, gold=True))
    classes = replace(job.divided["quota"], examples=examples)
    shares = classes.shares(job.labels)
    assert shares.basis == "counts" and shares.num_labelled == 0


def test_every_arm_that_ranks_takes_the_best_of_each_class(pool, tmp_path: Path):
    job, rows, source = pool
    budget, made = chosen(job, tmp_path)
    read = [row for row in rows if row["label"] is not None]
    counts = confused(source)
    given_T = np.array([*by_class(rows).values(), len(rows) - len(read)])
    wanted = estimate_shares(CLASSES, given_T, counts)
    assert budget.n == N
    assert (
        budget.divided["quota"].shares == pytest.approx(wanted.shares) and budget.divided["quota"].basis == "confusion"
    )
    quotas = dict(zip(CLASSES, allocate(wanted.shares, given_T[:-1], N).tolist(), strict=True))
    assert ids(made["trust"]) == ids(made["trust_gold"]) == best(read, raw, quotas)
    assert ids(made["internal_confidence"]) == best(read, lambda row: row["mean_logprob"], quotas)
    for arm in ("trust", "internal_confidence"):
        assert by_class(made[arm]) == quotas, arm
    # What trust takes without them is of one class, and the pool's shares are far from that.
    plain = by_class(sorted(read, key=raw)[-N:])
    assert plain["joy"] > 0.7 * N and quotas["joy"] < 0.4 * N and min(quotas.values()) >= 3
    true = np.array([sum(row["gold"] == name for row in rows) for name in CLASSES]) / len(rows)
    assert np.abs(np.array(wanted.shares) - true).sum() / 2 < 0.1
    assert np.abs(given_T[:-1] / len(read) - true).sum() / 2 > 0.2  # the teacher's own counts are farther off


def test_uniform_draws_are_what_they_are(pool, tmp_path: Path):
    job, rows, _ = pool
    _, made = chosen(job, tmp_path)
    read = [row for row in rows if row["label"] is not None]
    everything = {None: NUM_POOL, **dict.fromkeys(CLASSES, NUM_POOL)}
    assert ids(made["naive"]) == ids(made["ground_truth"]) == best(rows, draw, everything)[:N]
    assert ids(made["naive_parsed"]) == best(read, draw, everything)[:N]


def test_places_without_a_row_go_to_the_others(pool, tmp_path: Path):
    job, rows, _ = pool
    read = [row for row in rows if row["label"] is not None]
    has = by_class(read)
    budget, made = chosen(job, tmp_path, budget={"n": len(read) - 5})
    quotas = by_class(made["trust"])
    wanted = allocate(budget.divided["quota"].shares, np.full(len(CLASSES), NUM_POOL), budget.n)
    lacking = [name for name, places in zip(CLASSES, wanted, strict=True) if places > has[name]]
    assert lacking and all(quotas[name] == has[name] for name in lacking)
    assert len(made["trust"]) == budget.n and ids(made["trust"]) == best(read, raw, quotas)
    with pytest.raises(
        BudgetError, match=f"arm trust: .*n = {NUM_POOL:,} is more than the {len(read):,} of {NUM_POOL:,}"
    ):
        chosen(job, tmp_path / "n", arms=("trust",), budget={"n": NUM_POOL})


def test_a_cap_bounds_the_places_of_a_class(pool, tmp_path: Path):
    job, rows, _ = pool
    read = [row for row in rows if row["label"] is not None]
    budget, made = chosen(job, tmp_path, arms=("trust", "naive"), max_per_label=25)
    assert budget.n == N and max(by_class(made["trust"]).values()) == 25
    assert ids(made["trust"]) == best(read, raw, by_class(made["trust"]))
    budget, made = chosen(job, tmp_path / "less", arms=("trust", "naive_parsed"), max_per_label=10)
    assert (budget.n, budget.asked) == (40, N) and by_class(made["trust"]) == dict.fromkeys(CLASSES, 10)


def test_rows_above_a_threshold_keep_their_classes(pool, tmp_path: Path):
    job, rows, _ = pool
    passing = [row for row in rows if row["label"] is not None and row["trust_trust"] >= 0.9]
    budget, made = chosen(job, tmp_path, arms=("trust",), budget={"threshold": 0.9})
    assert "quota" not in budget.divided and {*ids(made["trust"])} == {*ids(passing)}


def certifying(job: SelectJob, folder: Path) -> tuple[SelectJob, list[Row]]:
    """The job with 1,500 calibration rows, each question twice: the second does not count."""
    rows = labelled(1500, 1 << 50, [0.25, 0.25, 0.25, 0.25], np.random.default_rng(8))
    table = pa.Table.from_pylist(rows).append_column("error", pa.nulls(len(rows), pa.string()))
    again = table.set_column(0, "row_id", pa.array(table["row_id"].to_numpy() + 10_000))
    labels = io.write(pa.concat_tables([table, again]), str(folder / "calibration.lance"))
    graded = [row | {"row_id": row["row_id"] + more, "question": row["row_id"]} for more in (0, 10_000) for row in rows]
    graded.sort(key=lambda row: row["row_id"])
    return replace(
        job, calibration=ScoredSplit(labels=labels, grades=write(folder, "cg", graded, schemas.GRADES))
    ), rows


def test_each_class_has_a_certified_cut_of_its_own(pool, tmp_path: Path):
    job, rows, _ = pool
    job, labelled_rows = certifying(job, tmp_path)
    read = [row for row in rows if row["label"] is not None]
    risk = {"alpha": 0.25, "delta": 0.2, "per": "label"}
    budget, made = chosen(job, tmp_path, arms=("trust", "internal_confidence", "naive"), budget={"risk": risk})
    cuts, tested = {}, [row for row in labelled_rows if row["label"] is not None]
    for name in CLASSES:
        own = [row for row in tested if row["label"] == name]
        scores, right = [row["trust_raw"] for row in own], np.array([row["correct"] for row in own])
        cuts[name] = calibrate(
            scores, right, [raw(row) for row in read if row["label"] == name], alpha=0.25, delta=0.05
        )
    limits = {name: np.inf if cut.threshold is None else cut.threshold for name, cut in cuts.items()}
    wanted = [row for row in read if raw(row) >= limits[row["label"]]]
    assert {*ids(made["trust"])} == {*ids(wanted)} and budget.n == len(wanted) > 20 and budget.is_cut
    assert 0 < sum(limit < np.inf for limit in limits.values()) < 4  # of most classes rows pass, of one none does
    without = next(name for name in CLASSES if limits[name] == np.inf)
    assert budget.risk is not None and budget.risk["per"] == "label" and without in budget.risk["guarantee"]
    assert by_class(made["internal_confidence"]) == by_class(made["trust"])  # arms that rank have its places
    assert [line["num_pool"] for line in budget.risk["classes"]] == [*by_class(wanted).values()]
    assert [line["num_kept"] for line in budget.risk["classes"]] == [cut.num_kept for cut in cuts.values()]
    assert len(made["naive"]) == budget.n
    none, made = chosen(job, tmp_path / "none", arms=("trust",), budget={"risk": risk | {"alpha": 0.001}})
    assert none.n == 0 and not none.divided and made["trust"] == []
    assert none.risk is not None and "no cut is certified in any of 4 classes" in none.risk["guarantee"]


def test_cuts_of_classes_that_cannot_be_are_refused():
    risk = {"alpha": 0.1, "per": "label"}
    assert find_divided_classes(settings(budget={"risk": risk}), get_domain(DOMAIN)) == CLASSES
    run: Any = SimpleNamespace(domain_of=lambda _: DOMAIN)
    (line,) = describe_settings(run, settings(budget={"risk": risk}))
    assert "per: label: each of 4 classes has" in line
    assert "per" not in settings(budget={"risk": {"alpha": 0.1}}).budget.to_key()["risk"]
    with pytest.raises(ConfigError, match=r"risk\.per: label: domain chess has no closed set of labels; leave per out"):
        find_divided_classes(settings(budget={"risk": risk}), get_domain(DomainConfig(name="chess")))
    for changes, words in (
        ({"quota": "none"}, "quota: none: .*budget.risk.per: label"),
        ({"max_per_label": 3}, "max_per_label: leaves out certified rows"),
    ):
        with pytest.raises(ValidationError, match=words):
            settings(budget={"risk": risk}, **changes)


def test_ray_tasks_choose_the_same_rows(pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local_ray: None):
    job = certifying(pool[0], tmp_path)[0]
    risk = {"risk": {"alpha": 0.25, "delta": 0.2, "per": "label"}}
    made = [
        chosen(job, tmp_path / f"one{place}", arms=("trust",), **more)
        for place, more in enumerate(({}, {"budget": risk}))
    ]
    monkeypatch.setattr(scans, "ROWS_IN_PROCESS", 100)
    monkeypatch.setattr(scans, "ROWS_A_TASK", 150)
    again = [
        chosen(job, tmp_path / f"many{place}", arms=("trust",), **more)
        for place, more in enumerate(({}, {"budget": risk}))
    ]
    assert again == made


def settings(**changes: Any) -> SelectionConfig:
    return SelectionConfig.model_validate({"budget": {"n": 5}, **changes})


def test_which_runs_have_quotas():
    domain = get_domain(DOMAIN)
    assert find_divided_classes(settings(), domain) == CLASSES
    assert find_divided_classes(settings(budget={"share": 0.1}), domain) == CLASSES
    for without in ({"quota": "none"}, {"budget": {"risk": {"alpha": 0.1}}}, {"budget": {"threshold": 0.5}}):
        assert find_divided_classes(settings(**without), domain) is None
    assert find_divided_classes(settings(), get_domain(DomainConfig(name="chess"))) is None


def test_quotas_that_do_not_go_with_the_domain_are_refused():
    with pytest.raises(ConfigError, match=r"max_per_label counts by 'text'; .* set selection\.quota: none"):
        find_divided_classes(settings(max_per_label=3, max_per_label_by="text"), get_domain(DOMAIN))


def test_quotas_that_cannot_be_are_refused():
    for quota in ("some", {"a": 1}):
        with pytest.raises(ValidationError, match="'auto' or 'none'"):
            settings(quota=quota)
    assert "quota" not in settings().to_key() and settings(quota="none").model_dump()["quota"] == "none"


def test_filters_have_no_quotas():
    with pytest.raises(ValidationError, match=r"quota\s+Extra inputs are not permitted"):
        KeepConfig.model_validate({"n": 5, "quota": "auto"})
