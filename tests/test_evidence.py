"""The experiment of examples/evidence: its rows, gates, cells and tables; without training."""

import csv
import json
import random
from dataclasses import replace
from pathlib import Path

import chess
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import binomtest, t

from curation.domains.grading import Graded
from curation.domains.math import Math
from curation.refs import ModelRef
from examples.evidence import bases, cells, data, make_equations, make_mates, results, tables
from examples.evidence.gates import gates

EVIDENCE = Path(cells.__file__).parent
ROOT = EVIDENCE.parents[1]


@pytest.fixture(scope="module")
def games() -> list[dict]:
    """The rows of some games, played without an engine."""
    return [row for game in range(14) for row in make_mates.play(game, seed=7, engine=None)]


def test_every_listed_move_mates_and_no_other_does(games):
    assert len(games) > 15
    for row in games:
        board, mates = chess.Board(row["fen"]), set()
        for move in list(board.legal_moves):
            board.push(move)
            if board.is_checkmate():
                mates.add(move.uci())
            board.pop()
        assert set(row["mates"].split()) == mates and mates


def test_games_depend_on_their_seeds_alone(games):
    again = list(make_mates.play(3, seed=7, engine=None))
    assert again == [row for row in games if row["game"] == 3]
    assert list(make_mates.play(3, seed=8, engine=None)) != again
    assert {row["origin"] for row in games} <= {"random", "greedy"}  # greedy plays the engine's games
    most = max(sum(row["game"] == game for row in games) for game in range(14))
    assert most <= make_mates.MOST_A_GAME


def test_greedy_takes_what_gains_most():
    rng = random.Random(0)
    board = chess.Board("7k/8/8/1q1p4/2P5/8/8/7K w - - 0 1")
    assert greedy_moves(board, rng) == {"c4b5"}
    defended = chess.Board("7k/8/2p5/3p4/8/8/8/3Q3K w - - 0 1")  # a queen for a defended pawn is no gain
    assert len(greedy_moves(defended, rng)) > 3


def greedy_moves(board: chess.Board, rng: random.Random) -> set[str]:
    return {make_mates.greedy(board, rng).uci() for _ in range(40)}


def test_parts_share_no_game(tmp_path):
    games = [game for game in range(40) for _ in range(game % 4 + 1)]
    rows = pa.table({"fen": [f"row {place}" for place in range(len(games))], "game": games})
    parts = {"bases": 31, "deal": 20, "test": 9}
    data.cut(rows, tmp_path, parts)
    found = {part: pq.read_table(tmp_path / f"{part}.parquet") for part in parts}
    assert {part: len(table) for part, table in found.items()} == parts
    of_part = [set(table["game"].to_pylist()) for table in found.values()]
    assert not (of_part[0] & of_part[1] or of_part[1] & of_part[2] or of_part[0] & of_part[2])


def test_problems_are_exact_distinct_and_of_their_level():
    drawn = make_equations.problems(make_equations.SHARES | {4: 0.2, 5: 0.2}, seed=1)
    rows = [make_equations.row(*next(drawn)) for _ in range(3000)]
    assert len({row["problem"] for row in rows}) == 3000
    for row in rows:
        level, (first, sign, second, *rest) = int(row["level"]), row["problem"].split()
        numbers = int(first), int(second)
        assert rest == ["=", "?"] and (sign == "-") == (level == make_equations.DIFFERENCE)
        assert int(row["answer"]) == (numbers[0] - numbers[1] if sign == "-" else sum(numbers))
        digits = sorted((len(str(number)) for number in numbers), reverse=True)
        assert (
            digits == list(make_equations.DIGITS[level]) and min(len(first), len(second), len(row["answer"]) - 1) >= 3
        )
        assert row["solution"] == rf"\boxed{{{row['answer']}}}"
    shares = {level: sum(row["level"] == str(level) for row in rows) / 3000 for level in (1, 2, 3)}
    assert shares[1] < 0.1 < shares[2] < shares[3] + 0.1


def report(*, unparsed: int = 0, teacher: float = 0.45, right: float = 0.45, truth: float = 0.6, n: int = 4000) -> dict:
    return {
        "funnel": {"generations": [{"labelled": {"pool": {"rows": 20_000, "unparsed": unparsed}}}]},
        "teacher": {"test": {"value": teacher}, "pool": {"value": right}},
        "generations": [{"n": n}],
        "arms": [{"name": "trust"}, {"name": "ground_truth", "accuracy": {"value": truth}}],
    }


@pytest.mark.parametrize(
    ("change", "failed"),
    [
        ({}, []),
        ({"unparsed": 4001}, [0]),
        ({"unparsed": 4000}, []),
        ({"teacher": 0.29}, [1]),
        ({"teacher": 0.61, "truth": 0.8}, [1]),
        ({"truth": 0.54}, [2]),
        ({"n": 22_500}, [3]),
        ({"n": 22_499}, []),
        ({"right": 0.0}, [3]),
    ],
)
def test_gates_fail_where_their_condition_does(change, failed):
    found = gates(report(**change), num_pool=100_000)
    assert [place for place, gate in enumerate(found) if not gate.passed] == failed


def test_cells_have_directories_and_seeds_of_their_own_and_load(tmp_path, monkeypatch):
    names = [task.name for task in cells.TASKS]
    every = [*cells.gate_cells(tmp_path, names), *cells.cells(tmp_path, names, [0, 1])]
    assert len({cell.stamp for cell in every}) == len({cell.name for cell in every}) == len(every)
    shared = {cell.name: cell.directory.name for cell in every if cell.directory.name != cell.name}
    assert shared["mates-capped-1"] == "mates-1" and shared["grpo-0"] == "equations-0" and len(shared) == 6
    for cell in every:
        config = cell.config
        assert config.seed == cell.seed and str(config.directory) == str(cell.directory)
        assert cell.num_pool >= 20_000
        if cell.gates:
            assert "development" in config.sources["tests"].path and "ground_truth" in config.selection.arms


def test_a_cell_is_done_until_its_configuration_or_its_files_change(tmp_path):
    task = next(task for task in cells.TASKS if task.name == "equations")
    rows = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"problem": ["1 + 1 = ?"]}), rows)
    settings = tuple(f"sources.{name}.path={rows}" for name in ("problems", "tests", "longer", "differences"))
    cell = cells.Cell(
        name="x", task=replace(task, settings=settings), seed=0, gates=False, directory=tmp_path / "x", seconds=1
    )
    assert cell.done is None
    cell.stamp.parent.mkdir(parents=True)
    cell.stamp.write_text(json.dumps({"fingerprint": cell.fingerprint, "seconds": 3}))
    assert cell.done == {"fingerprint": cell.fingerprint, "seconds": 3}
    other = replace(cell, task=replace(task, settings=(*settings, "selection.budget.n=5")))
    assert other.done is None
    pq.write_table(pa.table({"problem": ["1 + 1 = ?", "1 + 2 = ?"]}), rows)
    assert cell.done is None


def test_differences_are_pooled_over_seeds_and_rows():
    rng, seeds, right = np.random.default_rng(0), [], []
    for _ in range(3):
        row_ids_N = np.sort(rng.choice(10_000, 400, replace=False))
        first_N, second_N = rng.random(400) < 0.6, rng.random(400) < 0.5
        seeds.append(
            {
                name: [Graded(row_ids_N=row_ids_N, correct_N=of, question_N=row_ids_N)]
                for name, of in (("a", first_N), ("b", second_N))
            }
        )
        right.append((first_N, second_N))
    found = results.pooled(seeds, "a", "b")
    only = [sum(int((one & ~other).sum()) for one, other in pairs) for pairs in (right, [(b, a) for a, b in right])]
    assert (found["num_first_only"], found["num_second_only"], found["n"]) == (*only, 1200)
    assert found["difference"] == pytest.approx((only[0] - only[1]) / 1200)
    assert found["p_value"] == pytest.approx(binomtest(max(only), sum(only), alternative="greater").pvalue)
    each = [float(one.mean() - other.mean()) for one, other in right]
    assert found["each"] == pytest.approx(each)
    margin = t.ppf(0.975, 2) * np.std(each, ddof=1) / 3**0.5
    assert found["seeds"]["high"] - found["seeds"]["value"] == pytest.approx(margin)
    assert results.pooled(seeds, "a", "c") is None


def test_tables_say_what_the_results_hold(tmp_path):
    made = json.loads((Path(__file__).parent / "data" / "evidence_results.json").read_text())
    page = tmp_path / "evidence.md"
    page.write_text(
        "Before\n<!-- table: arms-mates -->\noutdated\n<!-- end -->\nBetween\n<!-- table: gates -->\n<!-- end -->\n"
        "<!-- table: unknown -->\nkept\n<!-- end -->\n"
    )
    tables.write_docs(page, made)
    text = page.read_text()
    assert (
        "outdated" not in text and "kept" in text and text.startswith("Before\n<!-- table: arms-mates -->\n| model |")
    )
    line = next(line for line in text.splitlines() if line.startswith("| trust |"))
    assert line.split(" | ")[1:4] == ["90.0", "61.0 (60.0 to 62.0)", "-0.5 (-0.9 to -0.1) [-1.1 to +0.1]"]
    assert "| mates | teacher's accuracy | 45.0 | 30 % to 60 % | yes |" in text
    tables.write_docs(page, made)
    assert page.read_text() == text  # filled again, nothing changes
    split = tables.decomposition(made).splitlines()[-1]
    assert split == "| Mate in one, SFT | -0.5 | -0.3 | -0.2 |"
    made = tables.tables(made)
    assert made["chain"].splitlines()[2:4] == [
        "| first teacher | 40.0 (39.0 to 41.0) |  |",
        "| chain, trust | 50.0 (49.0 to 51.0) | 60.0 (59.0 to 61.0) |",
    ]
    assert "| 2 | chain, trust minus ground truth | +1.0 (-1.0 to +3.0) |" in made["chain-differences"]


def test_a_models_accuracy_is_the_share_of_right_answers():
    """By which a model of the experiment is trained until it is good enough; here of a model in this repository."""
    base = ModelRef(base=str(ROOT / "examples/bases/sums_teacher"))
    with (ROOT / "examples/own_data/labelled.csv").open() as file:
        rows = list(csv.DictReader(file))[:100]
    right = bases.accuracy(Math(instruction=""), base, rows)
    assert 0.2 < right < 0.8
    assert bases.accuracy(Math(instruction=""), base, [{**row, "answer": "-1"} for row in rows[:20]]) == 0.0
