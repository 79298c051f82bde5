import json
from dataclasses import dataclass, replace
from pathlib import Path

import chess
import lance
import numpy as np
import pyarrow as pa
import pytest

from curation.arms import ARMS as ALL_ARMS
from curation.config import DomainConfig, SelectionConfig
from curation.domains.chess import Chess
from curation.errors import BudgetError, RunFailedError
from curation.hashing import derive, hash64, hash_unit
from curation.refs import ModelRef, TableRef
from curation.selection.quotas import allocate, assign_bins
from curation.stages.chooser import SelectJob, require_measurable
from curation.stages.gold import GoldTexts
from curation.stages.pool_scores import ScoredSplit
from curation.stages.select import Selection, select, write_rows
from curation.stages.training import write_adaptation_rows
from curation.storage.paths import to_place
from curation.tables import io, schemas

SEED, N = 5, 60
EVERY = tuple(arm for arm in ALL_ARMS if arm != "order_agreement")  # that of pairs alone
NUM_POOL, NUM_UNPARSED, NUM_ERRORS = 300, 40, 10
ARMS = ("naive", "internal_confidence", "trust", "ground_truth")
GOLD, OTHER = "e2e4", "d2d4"
SIGNALS = ("icl_mean_logprob", "verbalized_confidence", "ensemble_agreement", "self_consistency", "reward")
FITTED = (
    "attention",
    "boosted_trees",
    "deep_ensemble",
    "fitted_confidence",
    "linear_probe",
    "neural",
    "ntf",
    "stacked",
)
"""All but the trust one."""
RANKED_BY = {
    "trust": "trust_raw",
    "margin": "margin",
    "entropy": "negentropy",
    "min_logprob": "min_logprob",
    "last_logprob": "last_logprob",
    **{name: f"{name}_raw" for name in FITTED},
    "internal_confidence": "mean_logprob",
    **dict(
        zip(("icl_confidence", "verbalized_confidence", "ensemble", "self_consistency", "reward"), SIGNALS, strict=True)
    ),
}
LABELLED = schemas.make_labels_schema([], "float16", 1)


def save(folder: Path, name: str, columns: dict, schema: pa.Schema) -> TableRef:
    """A table in a random order, since tables have none, in two fragments."""
    arrays = [pa.array(columns.get(field.name, [None] * len(columns["row_id"])), field.type) for field in schema]
    order = np.random.default_rng(len(name)).permutation(len(columns["row_id"]))
    uri = str(folder / f"{name}.lance")
    table = pa.Table.from_arrays(arrays, schema=schema).take(order)
    return TableRef(uri=uri, version=lance.write_dataset(table, uri, max_rows_per_file=len(order) // 2 + 1).version)


@dataclass(frozen=True, kw_only=True)
class Made:
    """The tables of a pool and the same rows in memory, by row id."""

    job: SelectJob
    rows: dict[int, dict]
    gold: dict[int, str]


def grades_of(folder: Path, name: str, rows: list[dict], gold: dict[int, str]) -> TableRef:
    """Which labels are right, said by hand: rows without an error whose gold label is known, ascending by row id."""
    known = sorted((row for row in rows if row["error"] is None and row["row_id"] in gold), key=lambda r: r["row_id"])
    found = [
        {"row_id": row["row_id"], "correct": row["label"] == gold[row["row_id"]], "judged": False} for row in known
    ]
    return io.write(pa.Table.from_pylist(found, schema=schemas.GRADES), str(folder / f"{name}.lance"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Labels whose unparsed and error rows have the highest scores, ties among the others, and a few without gold."""
    folder, rng = tmp_path_factory.mktemp("pool"), np.random.default_rng(1)
    ids = rng.permutation(NUM_POOL) + (3 << schemas.FILE_SHIFT)
    right = rng.random(NUM_POOL) < 0.4
    raw = np.where(right, 20, 0) + rng.normal(size=NUM_POOL).round(1) + 20  # a float32 sigmoid of all of them is 1
    logprob = -rng.exponential(np.where(right, 0.3, 0.9)).round(1)
    raw[:NUM_UNPARSED], logprob[:NUM_UNPARSED] = 1000.0, 0.0
    raw[-NUM_ERRORS:], logprob[-NUM_ERRORS:] = 2000.0, 0.0
    logprob[NUM_UNPARSED : NUM_UNPARSED + 20] = 0.0  # more of them than tie otherwise, among the best
    labels = [None if index < NUM_UNPARSED else GOLD if hit else OTHER for index, hit in enumerate(right)]
    unread = np.arange(NUM_POOL) % 7 == 3
    columns = {
        "row_id": ids.tolist(),
        "completion": [f" {label or 'resigns'} #{index}" for index, label in enumerate(labels)],
        "label": labels,
        "mean_logprob": logprob,
        "trust_raw": raw.astype(np.float32),
        "trust_trust": np.ones(NUM_POOL, dtype=np.float32),
        **{f"{name}_raw": rng.normal(size=NUM_POOL).astype(np.float32) for name in FITTED},
        **{f"{name}_trust": np.ones(NUM_POOL, dtype=np.float32) for name in FITTED},
        "margin": 4 * rng.exponential(size=NUM_POOL),
        "negentropy": -rng.exponential(size=NUM_POOL),
        "min_logprob": -rng.exponential(size=NUM_POOL),
        "last_logprob": -rng.exponential(size=NUM_POOL),
        "icl_mean_logprob": -rng.exponential(size=NUM_POOL),
        "verbalized_confidence": rng.random(NUM_POOL),
        "ensemble_agreement": right.astype(float),
        "self_consistency": rng.integers(0, 9, NUM_POOL) / 8,
        "reward": rng.normal(size=NUM_POOL) * 9,
        "error": [None] * (NUM_POOL - NUM_ERRORS) + ["teacher_failed: x"] * NUM_ERRORS,
    }
    for name in SIGNALS:
        columns[name] = [None if hole else float(np.float32(v)) for v, hole in zip(columns[name], unread, strict=True)]
    examples = {
        "row_id": ids.tolist(),
        "fen": [f"4k3/8/8/8/8/8/3PP3/4K3 w - - {index % 50} {index + 1}" for index in range(NUM_POOL)],
        "rating": [None if index % 11 == 5 else 900 + 8 * int(z) for index, z in enumerate(raw - 20 * right)],
    }
    golds = [None if index % 10 == 7 else GOLD for index in range(NUM_POOL)]
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    gold = {row_id: gold for row_id, gold in zip(ids.tolist(), golds, strict=True) if gold}
    added = [pa.field(name, pa.float32()) for name in columns if name not in LABELLED.names]
    scored = save(folder, "labels", columns, pa.schema([*LABELLED, *added]))
    return Made(
        job=SelectJob(
            pool=save(folder, "pool", examples, schemas.make_examples_schema(Chess.columns, gold=False)),
            labels=scored,
            audit=save(folder, "audit", {"row_id": ids.tolist(), "gold": golds}, schemas.AUDIT),
            grades=grades_of(folder, "grades", rows, gold),
            measured=ScoredSplit(labels=scored, grades=None),
            calibration=None,
            domain=DomainConfig(name="chess"),
            selection=SelectionConfig.model_validate({"budget": {"n": N}, "arms": ARMS}),
            teacher=ModelRef(base="bases/teacher", revision="00ff", adapter="runs/x/adapter"),
            generation=2,
            seed=SEED,
            texts=GoldTexts(source="answer"),
        ),
        rows={
            row["row_id"]: row | {"fen": fen, "rating": rating}
            for row, fen, rating in zip(rows, examples["fen"], examples["rating"], strict=True)
        },
        gold=gold,
    )


@pytest.fixture(scope="module")
def selected(made: Made, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Selection]:
    return run(made, tmp_path_factory.mktemp("out"))


def run(made: Made, folder: Path, **changes: object) -> dict[str, Selection]:
    budget, selections = select(replace(made.job, **changes), folder)
    assert all(selection.num_rows == budget.n for selection in selections)
    return {selection.arm: selection for selection in selections}


def budget(made: Made, arms: tuple[str, ...] = ARMS, **rule: object) -> SelectionConfig:
    return SelectionConfig.model_validate({"budget": rule, "arms": arms})


def rows_of(selection: Selection) -> list[dict]:
    return lance.dataset(selection.table.uri, version=selection.table.version).to_table().to_pylist()


def ids_of(selection: Selection) -> list[int]:
    return [row["row_id"] for row in rows_of(selection)]


def draw(row_id: int, seed: int = SEED) -> float:
    return float(np.float32(hash_unit(np.array([row_id]), derive(seed, "draw"))[0]))


def expected(made: Made, arm: str, n: int = N) -> list[int]:
    """The rule of an arm as a sort of all rows that it may take."""
    rows = [row for row in made.rows.values() if row["error"] is None]
    if (column := RANKED_BY.get(arm)) is not None:
        rows = [row for row in rows if row["label"] is not None and row[column] is not None]
        score = {row["row_id"]: float(np.float32(row[column])) for row in rows}
    else:
        score = {row["row_id"]: draw(row["row_id"]) for row in rows if arm == "naive" or row["row_id"] in made.gold}
    tie = {row_id: int(hash64(np.array([row_id]), derive(SEED, "ties"))[0]) for row_id in score}
    return sorted(score, key=lambda row_id: (-score[row_id], tie[row_id]))[:n]


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_takes_its_rows_in_its_order(made: Made, selected: dict[str, Selection], arm: str):
    rows = rows_of(selected[arm])
    assert [row["row_id"] for row in rows] == expected(made, arm)
    assert [row["rank"] for row in rows] == list(range(N)) and {row["arm"] for row in rows} == {arm}


def test_the_fixture_can_tell_the_rules_apart(made: Made):
    ranked = expected(made, "internal_confidence", NUM_POOL)
    scores = [made.rows[row_id]["mean_logprob"] for row_id in ranked]
    assert scores[N - 1] == scores[N]  # the cut goes through a tie
    assert {row["trust_trust"] for row in made.rows.values()} == {1.0}  # which only the raw score can order
    chosen = [tuple(expected(made, arm)) for arm in ARMS]
    assert len(set(chosen)) == len(ARMS)


def test_unparsed_rows_are_drawn_but_never_ranked_and_error_rows_are_neither(
    made: Made, selected: dict[str, Selection], tmp_path: Path
):
    num_healthy, num_parsed = NUM_POOL - NUM_ERRORS, NUM_POOL - NUM_ERRORS - NUM_UNPARSED
    everything = run(made, tmp_path, selection=budget(made, ("naive",), n=num_healthy))["naive"]
    ranked = run(made, tmp_path, selection=budget(made, ("trust", "internal_confidence"), n=num_parsed))
    for arm in ("naive", "ground_truth"):
        assert any(made.rows[row_id]["label"] is None for row_id in ids_of(selected[arm]))
    assert sum(row["label"] is None for row in rows_of(everything)) == NUM_UNPARSED
    for selection in (*ranked.values(), selected["trust"], selected["internal_confidence"]):
        assert all(made.rows[row_id]["label"] is not None for row_id in ids_of(selection))
    for selection in (everything, *ranked.values(), *selected.values()):
        assert all(made.rows[row_id]["error"] is None for row_id in ids_of(selection))


def test_ground_truth_teaches_gold_and_says_so(made: Made, selected: dict[str, Selection]):
    for row in rows_of(selected["ground_truth"]):
        assert (row["label"], row["completion"], row["label_source"]) == (GOLD, f" {GOLD}", "gold")
        assert row["row_id"] in made.gold
    assert {arm: selection.oracle for arm, selection in selected.items()} == {
        "naive": False,
        "internal_confidence": False,
        "trust": False,
        "ground_truth": True,
    }


def test_weak_arms_teach_the_teachers_own_words(made: Made, selected: dict[str, Selection]):
    for arm in ("naive", "internal_confidence", "trust"):
        for row in rows_of(selected[arm]):
            weak = made.rows[row["row_id"]]
            assert (row["label"], row["completion"]) == (weak["label"], weak["completion"])
            assert row["label_source"] == "weak"


def test_naive_and_ground_truth_share_one_draw(made: Made, selected: dict[str, Selection], tmp_path: Path):
    naive = ids_of(run(made, tmp_path / "a", selection=budget(made, n=2 * N))["naive"])
    with_gold = [row_id for row_id in naive if row_id in made.gold]
    assert ids_of(selected["ground_truth"]) == with_gold[:N] and naive[:N] == ids_of(selected["naive"])
    everyone = save(tmp_path, "audit-of-all", {"row_id": list(made.rows), "gold": [GOLD] * NUM_POOL}, schemas.AUDIT)
    whole = run(made, tmp_path / "b", audit=everyone)
    assert ids_of(whole["naive"]) == ids_of(whole["ground_truth"])


def test_naive_among_parsed_is_the_naive_draw_without_what_cannot_be_read(made: Made, tmp_path: Path):
    num_parsed = NUM_POOL - NUM_ERRORS - NUM_UNPARSED
    control = run(made, tmp_path / "a", selection=budget(made, ("naive_parsed",), n=num_parsed))["naive_parsed"]
    parsed = [row_id for row_id in expected(made, "naive", NUM_POOL) if made.rows[row_id]["label"] is not None]
    assert ids_of(control) == parsed and control.threshold is None and not control.oracle
    with pytest.raises(BudgetError, match=f"arm naive_parsed: .* n = {num_parsed + 1} is more"):
        run(made, tmp_path / "b", selection=budget(made, ("naive_parsed",), n=num_parsed + 1))


def test_the_seed_moves_the_draws_and_the_ties_and_nothing_else(made: Made, selected: dict[str, Selection], tmp_path):
    other = run(made, tmp_path, seed=SEED + 1)
    assert ids_of(other["naive"]) != ids_of(selected["naive"])
    assert set(ids_of(other["internal_confidence"])) != set(ids_of(selected["internal_confidence"]))
    best = [made.rows[row_id]["mean_logprob"] for row_id in ids_of(other["internal_confidence"])]
    assert best == [made.rows[row_id]["mean_logprob"] for row_id in ids_of(selected["internal_confidence"])]


def test_rows_carry_prompt_trust_and_lineage(made: Made, selected: dict[str, Selection]):
    for arm, selection in selected.items():
        for row in rows_of(selection):
            weak = made.rows[row["row_id"]]
            assert row["prompt"] == Chess().prompt({"fen": weak["fen"]})
            assert chess.Board(weak["fen"]).fullmove_number == int(row["prompt"].split("Fullmove: ")[1].split()[0])
            own = {"trust": weak["trust_trust"], "internal_confidence": np.exp(weak["mean_logprob"])}
            assert row["trust"] == pytest.approx(own.get(arm, draw(row["row_id"])), rel=1e-6)
            assert row["generation"] == 2
            assert ModelRef.from_json(json.loads(row["teacher"])) == made.job.teacher


@pytest.mark.parametrize("arm", ARMS)
def test_exports_hold_the_table_ready_for_training(selected: dict[str, Selection], arm: str):
    selection = selected[arm]
    table = lance.dataset(selection.table.uri, version=selection.table.version).to_table()
    assert table.schema.names == schemas.SELECTION.names and table.schema.types == schemas.SELECTION.types
    lines = table.to_pylist()
    assert len(lines) == N
    assert all(isinstance(line[key], str) for line in lines for key in ("prompt", "completion"))
    assert not any("error" in line or "gold" in line for line in lines)


def test_thresholds_are_raw_scores_of_the_arms_that_rank(made: Made, selected: dict[str, Selection]):
    assert selected["naive"].threshold is None and selected["ground_truth"].threshold is None
    for arm, column in (("trust", "trust_raw"), ("internal_confidence", "mean_logprob")):
        lowest = min(float(np.float32(made.rows[row_id][column])) for row_id in ids_of(selected[arm]))
        assert selected[arm].threshold == lowest


def test_the_digest_is_of_what_a_student_learns(made: Made, selected: dict[str, Selection], tmp_path: Path):
    other = run(made, tmp_path, teacher=None, generation=0)
    assert {arm: item.digest for arm, item in other.items()} == {arm: item.digest for arm, item in selected.items()}
    assert len({item.digest for item in selected.values()}) == len(ARMS)
    assert {row["teacher"] for row in rows_of(other["naive"])} == {None}


@pytest.mark.parametrize("cap", [1, 50, 10_000])
def test_the_oracle_budget_counts_right_weak_labels_up_to_its_cap(made: Made, tmp_path: Path, cap: int):
    weak = [made.rows[row_id] for row_id in made.gold]
    num_right = sum(row["error"] is None and row["label"] == made.gold[row["row_id"]] for row in weak)
    assert 50 < num_right < NUM_POOL
    chosen = run(made, tmp_path, selection=budget(made, oracle=True, cap=cap))
    for arm in ARMS:
        assert ids_of(chosen[arm]) == expected(made, arm, min(num_right, cap))
    assert all(selection.oracle for selection in chosen.values())


@pytest.mark.parametrize("arm", sorted(RANKED_BY))
def test_every_ranking_arm_takes_the_highest_of_its_own_column(made: Made, tmp_path: Path, arm: str):
    (selection,) = run(made, tmp_path, selection=budget(made, (arm,), n=N)).values()
    assert ids_of(selection) == expected(made, arm)
    column = RANKED_BY[arm]
    assert selection.threshold == min(np.float32(made.rows[row_id][column]) for row_id in ids_of(selection))
    assert all(made.rows[row_id][column] is not None for row_id in ids_of(selection))  # unread ones are never taken
    assert not selection.oracle and all(0 <= row["trust"] <= 1 for row in rows_of(selection))


def bins_of(made: Made, num_bins: int) -> dict[int, int]:
    """The difficulty bin of every labelled row, by row id."""
    rows = [row for row in made.rows.values() if row["error"] is None]
    ratings = [np.nan if row["rating"] is None else row["rating"] for row in rows]
    return dict(zip((row["row_id"] for row in rows), assign_bins(np.array(ratings), num_bins).tolist(), strict=True))


def profile(made: Made, row_ids: list[int], num_bins: int = 10) -> list[int]:
    bins = bins_of(made, num_bins)
    return np.bincount([bins[row_id] for row_id in row_ids], minlength=num_bins + 1).tolist()


def drawn(made: Made, quotas: list[int], num_bins: int = 10) -> list[int]:
    """The first of each bin in the order of the naive draw, all in that order."""
    bins, left = bins_of(made, num_bins), list(quotas)
    taken = []
    for row_id in expected(made, "naive", NUM_POOL):
        if left[bins[row_id]]:
            left[bins[row_id]] -= 1
            taken.append(row_id)
    return taken


@pytest.mark.parametrize("num_bins", [1, 4, 10])
def test_stratified_draws_by_the_pools_own_difficulties(made: Made, tmp_path: Path, num_bins: int):
    selection = budget(made, ("naive", "naive_stratified"), n=N).model_copy(update={"difficulty_bins": num_bins})
    chosen = run(made, tmp_path, selection=selection)
    sizes = profile(made, expected(made, "naive", NUM_POOL), num_bins)
    assert sizes[-1] > 10  # rows of unknown difficulty are a bin of their own
    quotas = profile(made, ids_of(chosen["naive_stratified"]), num_bins)
    assert np.abs(np.array(quotas) - N * np.array(sizes) / sum(sizes)).max() < 1
    assert ids_of(chosen["naive_stratified"]) == drawn(made, quotas, num_bins)
    assert chosen["naive_stratified"].threshold is None and not chosen["naive_stratified"].oracle


def test_distribution_aware_draws_by_the_teachers_accuracy_and_is_an_oracle(made: Made, tmp_path: Path):
    (selection,) = run(made, tmp_path, selection=budget(made, ("naive_distribution_aware",), n=N)).values()
    bins, right, known = bins_of(made, 10), np.zeros(11), np.zeros(11)
    for row_id, bin_ in bins.items():
        if row_id in made.gold:
            known[bin_] += 1
            right[bin_] += made.rows[row_id]["label"] == made.gold[row_id]
    quotas = profile(made, ids_of(selection))
    assert quotas == allocate(right / np.maximum(known, 1), np.bincount(list(bins.values())), N).tolist()
    assert ids_of(selection) == drawn(made, quotas) and selection.oracle
    assert quotas != profile(made, ids_of(run(made, tmp_path, selection=budget(made, ("naive",), n=N))["naive"]))
    assert {row["label_source"] for row in rows_of(selection)} == {"weak"}


@pytest.mark.parametrize("reference", ["trust", "self_consistency"])
def test_matched_has_the_difficulties_of_the_reference_arm(made: Made, tmp_path: Path, reference: str):
    arms = (reference, "naive_matched")
    chosen = run(made, tmp_path, selection=budget(made, arms, n=N, reference=reference))
    quotas = profile(made, ids_of(chosen[reference]))
    assert profile(made, ids_of(chosen["naive_matched"])) == quotas
    assert ids_of(chosen["naive_matched"]) == drawn(made, quotas)
    assert set(ids_of(chosen["naive_matched"])) != set(ids_of(chosen[reference]))


def test_a_rule_of_a_gold_arm_chooses_among_rows_with_gold_and_is_no_plain_draw(made: Made, tmp_path: Path):
    everyone = save(tmp_path, "audit-of-all", {"row_id": list(made.rows), "gold": [GOLD] * NUM_POOL}, schemas.AUDIT)
    arms = ("trust", "naive_matched", "ground_truth", "ground_truth@matched", "trust_gold@stratified")
    chosen = run(made, tmp_path, selection=budget(made, arms, n=N), audit=everyone)
    matched = chosen["ground_truth@matched"]
    assert profile(made, ids_of(matched)) == profile(made, ids_of(chosen["trust"]))
    assert set(ids_of(matched)) != set(ids_of(chosen["ground_truth"]))
    assert {row["label_source"] for row in rows_of(matched)} == {"gold"}
    assert profile(made, ids_of(chosen["trust_gold@stratified"])) != profile(made, ids_of(chosen["trust"]))
    some = run(made, tmp_path / "some", selection=budget(made, arms, n=N))["ground_truth@matched"]
    assert some.num_rows == N and set(ids_of(some)) <= set(made.gold)


def test_files_of_an_arm_have_its_whole_name_with_dots(tmp_path: Path):
    target = to_place(tmp_path) / "mine.arms:OWN.lance"
    written = write_rows([schemas.SELECTION.empty_table()], schemas.SELECTION, target, ("completion", "row_id"))
    assert Path(written.table.uri).name == "mine.arms:OWN.lance"


def test_gold_of_the_trusted_rows_is_the_trusted_selection_with_other_answers(made: Made, tmp_path: Path):
    everyone = save(tmp_path, "audit-of-all", {"row_id": list(made.rows), "gold": [GOLD] * NUM_POOL}, schemas.AUDIT)
    arms = ("trust", "trust_gold")
    chosen = run(made, tmp_path, selection=budget(made, arms, n=3 * N), audit=everyone)
    assert ids_of(chosen["trust_gold"]) == ids_of(chosen["trust"])
    assert chosen["trust_gold"].oracle and not chosen["trust"].oracle
    assert chosen["trust_gold"].threshold == chosen["trust"].threshold
    weak, gold = (rows_of(chosen[arm]) for arm in arms)
    assert any(row["label"] != GOLD for row in weak)
    assert all((row["label"], row["completion"], row["label_source"]) == (GOLD, f" {GOLD}", "gold") for row in gold)
    assert [row["trust"] for row in gold] == [row["trust"] for row in weak]
    some = run(made, tmp_path / "some", selection=budget(made, arms, n=N))  # rows without gold are passed over
    passed = [row_id for row_id in expected(made, "trust", NUM_POOL) if row_id in made.gold]
    assert ids_of(some["trust_gold"]) == passed[:N]


@pytest.mark.long
def test_all_arms_under_one_budget_that_reads_gold_are_oracles(made: Made, tmp_path: Path):
    chosen = run(made, tmp_path, selection=budget(made, EVERY, oracle=True, cap=20))
    assert list(chosen) == list(EVERY) and all(item.oracle and item.num_rows == 20 for item in chosen.values())
    told = run(made, tmp_path / "n", selection=budget(made, EVERY, n=20))
    oracles = {"trust_gold", "ground_truth", "naive_distribution_aware"}
    assert {arm for arm, item in told.items() if item.oracle} == oracles
    assert {arm: item.digest for arm, item in told.items()} == {arm: item.digest for arm, item in chosen.items()}


def test_risk_without_a_certified_threshold_selects_nothing_at_all(made: Made, tmp_path: Path):
    rows = [row for row in made.rows.values() if row["row_id"] in made.gold][:60]
    wrong = grades_of(tmp_path, "all-wrong", rows, dict.fromkeys(made.gold, "a2a3"))
    selection = budget(made, EVERY, risk={"alpha": 0.1})
    found, selections = select(
        replace(made.job, selection=selection, calibration=ScoredSplit(labels=made.job.labels, grades=wrong)), tmp_path
    )
    assert (found.n, found.threshold, found.rule) == (0, None, "risk")
    assert found.risk is not None and found.risk["guarantee"].startswith("none")
    for item in selections:
        assert item.num_rows == 0 and item.threshold is None and rows_of(item) == []
        assert lance.dataset(item.table.uri).schema.names == schemas.SELECTION.names


@pytest.mark.parametrize("arm", ["verbalized_confidence", "reward", "icl_confidence"])
@pytest.mark.parametrize("cap", [None, 1000])
def test_rows_whose_signal_could_not_be_read_rank_behind_all_others(
    made: Made, tmp_path: Path, arm: str, cap: int | None
):
    parsed = [row for row in made.rows.values() if row["error"] is None and row["label"] is not None]
    num_read = sum(row[RANKED_BY[arm]] is not None for row in parsed)
    assert 0 < num_read < len(parsed) - 5
    chosen = SelectionConfig.model_validate({"budget": {"n": num_read + 5}, "arms": (arm,), "max_per_label": cap})
    (selection,) = run(made, tmp_path, selection=chosen).values()
    rows = rows_of(selection)
    assert [row["row_id"] for row in rows[:num_read]] == expected(made, arm, num_read)
    last = [made.rows[row["row_id"]] for row in rows[num_read:]]
    assert len(last) == 5 and all(row[RANKED_BY[arm]] is None and row["label"] is not None for row in last)
    assert {row["trust"] for row in rows[num_read:]} == {0.0}
    assert selection.threshold is None  # no score divides them from the rest
    assert selection.format_note == f"of 5 of {num_read + 5} rows no value could be read: they rank last"
    num_unread = sum(row["label"] is None for row in made.rows.values())
    too_many = (
        f"selection.budget: n = {len(parsed) + 1} is more than the {len(parsed)} .*; {num_unread} rows have no label"
    )
    with pytest.raises(BudgetError, match=too_many):
        run(made, tmp_path / "more", selection=budget(made, (arm,), n=len(parsed) + 1))


def test_an_arm_whose_signal_nobody_could_read_is_refused(made: Made, tmp_path: Path):
    rows = io.read(made.job.labels)
    column = rows.schema.get_field_index("verbalized_confidence")
    none = rows.set_column(column, "verbalized_confidence", pa.nulls(len(rows), pa.float32()))
    labels = io.write(none, str(tmp_path / "labels.lance"))
    arms = budget(made, ("naive", "verbalized_confidence", "reward"), n=N)
    reference = budget(made, ("naive",), threshold=0.5, reference="verbalized_confidence")
    num_parsed = sum(row["error"] is None and row["label"] is not None for row in made.rows.values())
    why = f"the arm verbalized_confidence cannot be measured: none of {num_parsed} rows gave a value .* selection.arms"
    for selection in (arms, reference):
        with pytest.raises(RunFailedError, match=why):
            require_measurable(replace(made.job, labels=labels, selection=selection))
        require_measurable(replace(made.job, selection=selection))
    require_measurable(replace(made.job, labels=labels, selection=budget(made, ("naive", "reward"), n=N)))


@pytest.mark.parametrize(
    ("arm", "most"),
    [
        ("naive", NUM_POOL - NUM_ERRORS),
        ("trust", NUM_POOL - NUM_ERRORS - NUM_UNPARSED),
        ("internal_confidence", NUM_POOL - NUM_ERRORS - NUM_UNPARSED),
        ("ground_truth", None),
    ],
)
def test_a_budget_that_an_arm_cannot_meet_is_refused(made: Made, tmp_path: Path, arm: str, most: int | None):
    if most is None:
        most = sum(made.rows[row_id]["error"] is None for row_id in made.gold)
    assert len(ids_of(run(made, tmp_path, selection=budget(made, (arm,), n=most))[arm])) == most
    with pytest.raises(BudgetError, match=f"n = {most + 1}") as caught:
        run(made, tmp_path, selection=budget(made, (arm,), n=most + 1))
    assert str(most) in str(caught.value)


def long_rows(made: Made, folder: Path, row_ids: list[int]) -> TableRef:
    columns = {"row_id": sorted(row_ids), "weak": [True] * len(row_ids), "gold": [False] * len(row_ids)}
    return save(folder, "too-long", columns, schemas.TOO_LONG)


@pytest.mark.long
def test_rows_that_are_too_long_are_left_out_by_all_arms_alike(
    made: Made, selected: dict[str, Selection], tmp_path: Path
):
    long = {row_id for selection in selected.values() for row_id in ids_of(selection)[: N // 3]}
    short = replace(made, rows={row_id: row for row_id, row in made.rows.items() if row_id not in long})
    out = long_rows(made, tmp_path, list(long))
    chosen = run(made, tmp_path, selection=budget(made, EVERY, n=N), too_long=out)
    for arm, selection in chosen.items():
        assert selection.num_rows == N and not long & set(ids_of(selection)), arm
    for arm in ARMS:
        assert ids_of(chosen[arm]) == expected(short, arm)
    by_share = run(made, tmp_path / "share", selection=budget(made, ("naive",), share=0.1), too_long=out)
    assert by_share["naive"].num_rows == (NUM_POOL - NUM_ERRORS) // 10  # of all that is labelled
    passing = [row for row in short.rows.values() if row["error"] is None and row["label"] is not None]
    by_trust = run(made, tmp_path / "trust", selection=budget(made, ("naive", "trust"), threshold=1.0), too_long=out)
    assert {len(ids_of(selection)) for selection in by_trust.values()} == {len(passing)}  # met to the last row


def test_a_budget_that_long_rows_make_too_large_says_so(made: Made, tmp_path: Path):
    healthy = [row_id for row_id, row in made.rows.items() if row["error"] is None]
    out = long_rows(made, tmp_path, healthy[:200])
    with pytest.raises(
        BudgetError, match=r"n = 91 is more than the 90 of .*200 rows are longer than student\.max_length"
    ):
        run(made, tmp_path, selection=budget(made, ("naive",), n=91), too_long=out)


def test_without_an_audit_set_the_other_arms_select_as_before(
    made: Made, selected: dict[str, Selection], tmp_path: Path
):
    blind = run(made, tmp_path, audit=None, grades=None, selection=budget(made, ARMS[:3], n=N))
    for arm, selection in blind.items():
        assert selection.digest == selected[arm].digest and not selection.oracle


def test_what_a_run_that_was_cut_off_left_is_replaced(made: Made, tmp_path: Path):
    (tmp_path / "naive.lance" / "data").mkdir(parents=True)
    (tmp_path / "naive.lance" / "data" / "half.lance").write_bytes(b"half a fi")
    small = budget(made, ("naive",), n=3)
    first, second = (run(made, tmp_path, selection=small)["naive"] for _ in range(2))
    assert first.digest == second.digest and rows_of(first) == rows_of(second) and len(rows_of(second)) == 3


def test_adaptation_rows_are_all_healthy_rows_with_their_gold(tmp_path: Path):
    fens = [f"4k3/8/8/8/8/8/3PP3/4K3 w - - 0 {index + 1}" for index in range(20)]
    columns = {
        "row_id": list(range(100, 120)),
        "fen": [None if index == 4 else fen for index, fen in enumerate(fens)],
        "gold": [None if index == 4 else (GOLD, OTHER)[index % 2] for index in range(20)],
        "error": ["bad_fen: x" if index == 4 else None for index in range(20)],
    }
    examples = save(tmp_path, "adapt-split", columns, schemas.make_examples_schema(Chess.columns, gold=True))
    ref, left_out = write_adaptation_rows(examples, DomainConfig(name="chess"), tmp_path / "out")
    assert left_out == {104: "bad_fen: x"}
    table = lance.dataset(ref.uri, version=ref.version).to_table()
    assert table.schema.names == schemas.SELECTION.names
    rows = sorted(table.to_pylist(), key=lambda row: row["row_id"])
    assert [row["row_id"] for row in rows] == [row_id for row_id in range(100, 120) if row_id != 104]
    for row in rows:
        index = row["row_id"] - 100
        gold = (GOLD, OTHER)[index % 2]
        assert (row["prompt"], row["completion"]) == (Chess().prompt({"fen": fens[index]}), f" {gold}")
        assert (row["label"], row["label_source"], row["arm"]) == (gold, "gold", "adapt")
