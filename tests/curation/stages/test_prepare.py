import json
from pathlib import Path
from typing import Any

import chess
import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curation.config import DomainConfig, RunConfig
from curation.domains.chess import Chess
from curation.errors import ConfigError, SourceError
from curation.refs import TableRef
from curation.sources import check_unchanged, compute_cluster, discover
from curation.stages.prepare import PreparedRefs, SplitWriting, prepare
from curation.tables import io
from curation.telemetry.standing import Update

NUM_ROWS = 240


pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.fixture(scope="module")
def puzzles() -> list[dict[str, Any]]:
    """Positions of random games, each with the two moves that follow; no position stands there twice."""
    rng = np.random.default_rng(0)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < NUM_ROWS + 40:
        board = chess.Board()
        for _ in range(int(rng.integers(4, 40))):
            moves = list(board.legal_moves)
            if not moves:
                break
            board.push(moves[rng.integers(len(moves))])
        fen = board.fen()
        line: list[str] = []
        while len(line) < 2 and (moves := list(board.legal_moves)):
            line.append(moves[rng.integers(len(moves))].uci())
            board.push_uci(line[-1])
        if len(line) == 2:
            row = {"fen": fen, "moves": " ".join(line), "rating": int(rng.integers(600, 2_400))}
            rows[Chess().read(row)["fen"]] = row
    return list(rows.values())


def config(splits: dict[str, Any], **sources: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "test",
            "seed": 3,
            "sources": sources,
            "splits": splits,
            "teacher": {"backend": "scripted"},
            "selection": {"budget": {"n": 1}, "arms": ["naive"]},
        }
    )


SPLITS = {
    "adapt": {"from": "all", "rows": 20},
    "source": {"from": "all", "rows": 60},
    "calibration": {"from": "all", "fraction": 0.125},
    "test": {"from": "all", "rows": 30},
    "pool": {"from": "all"},
    "audit": True,
}
COUNTS = {"adapt": 20, "source": 60, "calibration": 30, "test": 30, "pool": 100, "audit": 100}


def run(settings: RunConfig, directory: Path, progress: Update | None = None, **options: Any) -> PreparedRefs:
    files = {name: discover(source) for name, source in settings.sources.items()}
    return prepare(settings, directory, files, writing=SplitWriting(chunk_rows=50, progress=progress), **options)


def content(ref: TableRef) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = io.read(ref).to_pylist()
    return rows


def write_parts(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows in three files of three formats, in the order of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows[:110]), folder / "a.parquet", row_group_size=40)
    (folder / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[110:180]))
    lance.write_dataset(pa.Table.from_pylist(rows[180:]), str(folder / "c.lance"))
    return folder


def test_every_row_once_in_its_split(puzzles: list[dict[str, Any]], tmp_path: Path) -> None:
    rows = puzzles[:NUM_ROWS]
    folder = write_parts(tmp_path / "in", rows)
    told: list[tuple[int, int]] = []
    settings = config(SPLITS, all={"path": f"file://{folder}", "mixed": True})
    refs = run(settings, tmp_path / "out", progress=lambda at: told.append((at.rows, at.total)))
    assert {name: counts.rows for name, counts in refs.counts.items()} == COUNTS
    assert all(not counts.errors for counts in refs.counts.values())
    assert told[0] == (0, 340) and told[-1] == (340, 340)

    starts = {0: 0, 1: 110, 2: 180}
    seen = []
    for name, ref in refs.tables.items():
        table = content(ref)
        assert [row["row_id"] for row in table] == sorted(row["row_id"] for row in table)
        for row in table:
            raw = rows[starts[row["row_id"] >> 40] + (row["row_id"] & (1 << 40) - 1)]
            wanted = {"row_id": row["row_id"], **Chess().read(raw), "gold": Chess().gold(raw), "error": None}
            if name == "pool":
                del wanted["gold"]
            if name == "audit":
                wanted = {key: wanted[key] for key in ("row_id", "gold")} | {"solution": None, "solution_error": None}
            assert row == wanted
        if name != "audit":
            seen += [row["row_id"] for row in table]
    assert len(seen) == len(set(seen)) == NUM_ROWS
    assert [row["row_id"] for row in content(refs.tables["audit"])] == [
        row["row_id"] for row in content(refs.tables["pool"])
    ]

    assert run(settings, tmp_path / "out") == refs  # nothing to do: no new version
    again = run(settings, tmp_path / "other")
    assert all(content(again.tables[name]) == content(ref) for name, ref in refs.tables.items())

    write_more = pa.Table.from_pylist(puzzles[NUM_ROWS:])
    pq.write_table(write_more, folder / "aa.parquet")  # other splits now: the tables are begun anew
    before = discover(settings.sources["all"])[:1]
    files = {"all": discover(settings.sources["all"], before)}
    check_unchanged(before, files["all"])
    grown = prepare(settings, tmp_path / "out", files, writing=SplitWriting(chunk_rows=50))
    assert grown.counts["pool"].rows == 240 + 40 - 20 - 60 - 35 - 30
    assert content(refs.tables["pool"]) == content(again.tables["pool"])  # the pinned version still reads


def test_what_is_committed_is_not_written_again(puzzles: list[dict[str, Any]], tmp_path: Path) -> None:
    settings = config(SPLITS, all={"path": str(write_parts(tmp_path / "in", puzzles[:NUM_ROWS])), "mixed": True})
    whole = run(settings, tmp_path / "out")
    fragments = {}
    for name, number in (("pool", 2), ("test", 0)):  # as if the run had ended after some commits
        uri = whole.tables[name].uri
        fragments[name] = [fragment.metadata for fragment in lance.dataset(uri).get_fragments()][:number]
        kept = lance.LanceOperation.Overwrite(lance.dataset(uri).schema, fragments[name])
        lance.LanceDataset.commit(uri, kept)
    told: list[tuple[int, int]] = []
    again = run(settings, tmp_path / "out", progress=lambda at: told.append((at.rows, at.total)))
    assert 0 < told[0][0] < told[-1][0] == 340
    assert again.counts == whole.counts
    assert [row["row_id"] for row in content(again.tables["pool"])] == [
        row["row_id"] for row in content(whole.tables["pool"])
    ]
    assert again.tables["source"] == whole.tables["source"]
    first = lance.dataset(again.tables["pool"].uri).get_fragments()[0].data_files()
    assert [file.path for file in first] == [file.path for file in fragments["pool"][0].data_files()]


def test_tiny_files_are_read_many_at_a_time(puzzles: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, row in enumerate(puzzles[:NUM_ROWS]):
        (tmp_path / "in" / f"{number:03}.jsonl").write_text(json.dumps(row) + "\n")
    refs = run(config(SPLITS, all={"path": str(tmp_path / "in")}), tmp_path / "out")
    found = {row["row_id"]: row["fen"] for name in refs.tables if name != "audit" for row in content(refs.tables[name])}
    assert found == {number << 40: Chess().read(row)["fen"] for number, row in enumerate(puzzles[:NUM_ROWS])}
    for ref in refs.tables.values():
        assert len(lance.dataset(ref.uri, version=ref.version).get_fragments()) <= -(-NUM_ROWS // 50)


def test_bad_rows_are_error_rows(puzzles: list[dict[str, Any]], tmp_path: Path) -> None:
    good = puzzles[:60]
    bad = [
        {**good[0], "fen": "no board"},
        {**good[1], "fen": None},
        {**good[2], "moves": None},
        {**good[3], "moves": "a1a1 a2a3"},
        {**puzzles[70], "moves": puzzles[70]["moves"].split()[0] + " h1h1"},  # gold alone is bad
        {**puzzles[71], "moves": puzzles[71]["moves"].split()[0]},  # no gold
        {**good[4], "rating": "high"},
        {**good[5], "rating": 10**12},
    ]
    for part, rows in (("labelled", good[:30]), ("pool", good[30:])):
        lines = [json.dumps(row) for row in [*rows[:10], *bad, *rows[10:]]]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(lines))
    settings = config(
        {"source": {"from": "one"}, "pool": {"from": "two"}, "audit": True},
        one={"path": str(tmp_path / "labelled.jsonl")},
        two={"path": str(tmp_path / "pool.jsonl")},
    )
    refs = run(settings, tmp_path / "out")
    common = {"null_field": 2, "bad_fen": 1, "bad_rating": 1, "bad_value": 1}
    assert refs.counts["source"].rows == refs.counts["pool"].rows == refs.counts["audit"].rows == 38
    assert refs.counts["source"].errors == {**common, "illegal_move": 2, "no_gold": 1}
    assert refs.counts["pool"].errors == {**common, "illegal_move": 1}
    assert refs.counts["audit"].errors == {"no_gold": 8}
    failed = [row for row in content(refs.tables["source"]) if row["error"]]
    assert [row["row_id"] for row in failed] == list(range(10, 18))
    assert all(row["fen"] is row["rating"] is row["gold"] is None for row in failed)


def test_too_many_bad_rows_are_refused_and_a_higher_limit_goes_on(tmp_path: Path) -> None:
    rows = [
        {"question": f"Number {n}?", "choices": ["a", "a" if n % 10 == 0 else "b"], "answer": 0 if n < 100 else None}
        for n in range(200)
    ]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows[:100])))
    (tmp_path / "pool.jsonl").write_text("\n".join(map(json.dumps, rows[100:])))
    settings = config(
        {"source": {"from": "one"}, "pool": {"from": "two"}},
        one={"path": str(tmp_path / "questions.jsonl")},
        two={"path": str(tmp_path / "pool.jsonl")},
    ).model_copy(update={"domain": DomainConfig(name="mcqa")})
    told = (
        r"splits\.source: 10 of 100 rows cannot be used \(duplicate_options 10\), more than splits.max_error_rate 0.05"
        r"; `curate inspect \S+ --where"
    )
    with pytest.raises(SourceError, match=told):
        run(settings, tmp_path / "out", max_error_rate=0.05)
    before = sorted((tmp_path / "out").rglob("*.lance/data/*"))
    refs = run(settings, tmp_path / "out", max_error_rate=0.1)
    assert sorted((tmp_path / "out").rglob("*.lance/data/*")) == before  # nothing is read again
    assert refs.counts["pool"].errors == {"duplicate_options": 10}  # the pool needs no gold label
    audited = settings.model_copy(update={"splits": settings.splits.model_copy(update={"audit": True})})
    with pytest.raises(
        SourceError, match=r"splits\.audit: keeps gold labels of the pool, but none of its 100 rows has one"
    ):
        run(audited, tmp_path / "audited")
    wrong = [{**row, "answer": "Z"} for row in rows[100:]]
    (tmp_path / "pool.jsonl").write_text("\n".join(map(json.dumps, wrong)))
    with pytest.raises(SourceError, match=r"splits\.audit: keeps gold labels"):
        run(audited, tmp_path / "refused")


def test_the_same_example_in_two_splits_is_refused(puzzles: list[dict[str, Any]], tmp_path: Path) -> None:
    parts = {"one": puzzles[:30], "two": puzzles[30:60], "three": [{**puzzles[40], "rating": 1}, *puzzles[60:90]]}
    for name, rows in parts.items():
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    sources = {name: {"path": str(tmp_path / f"{name}.parquet")} for name in parts}
    with pytest.raises(
        SourceError,
        match=r"splits test and pool share questions, 1 rows of pool \(1 the same\); .* row 10 of test and row 0 .*fen",
    ):
        run(
            config({"source": {"from": "one"}, "test": {"from": "two"}, "pool": {"from": "three"}}, **sources),
            tmp_path / "a",
        )
    with pytest.raises(SourceError, match=r"splits test and source share questions, 1 rows of source"):
        run(
            config({"source": {"from": "three"}, "test": {"from": "two"}, "pool": {"from": "one"}}, **sources),
            tmp_path / "b",
        )


@pytest.mark.parametrize("split", ["calibration", "shots", "probe-near", "adapt"])
def test_the_same_example_in_a_further_split_is_refused(
    puzzles: list[dict[str, Any]], tmp_path: Path, split: str
) -> None:
    """Calibration rows that were fitted on break the guarantee, shots of the pool give its answers away."""
    other = "source" if split == "calibration" else "pool"
    parts = {"source": puzzles[:30], "pool": puzzles[30:60], "mine": puzzles[60:80]}
    for name, rows in parts.items():
        leaked = [{**parts[other][7], "rating": 1}] if name == "mine" else []
        pq.write_table(pa.Table.from_pylist([*rows, *leaked]), tmp_path / f"{name}.parquet")
    sources = {name: {"path": str(tmp_path / f"{name}.parquet")} for name in parts}
    mine = (
        {"probes": {"near": {"from": "mine", "regime": "OOD-dist"}}} if "probe" in split else {split: {"from": "mine"}}
    )
    settings = config({"source": {"from": "source"}, "pool": {"from": "pool"}, **mine}, **sources)
    with pytest.raises(SourceError, match=rf"splits .*{split}.* share questions, 1 rows of ") as told:
        run(settings, tmp_path / "a")
    assert f" {other} " in str(told.value)


def test_splits_of_other_domains_are_read_by_their_own_and_never_compared(
    puzzles: list[dict[str, Any]], tmp_path: Path
) -> None:
    pq.write_table(pa.Table.from_pylist(puzzles[:60]), tmp_path / "chess.parquet")
    questions = [{"question": f"What is {a} plus 1?", "choices": ["1", f"{a + 1}"], "answer": 1} for a in range(1, 20)]
    (tmp_path / "mcqa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    settings = config(
        {
            "source": {"from": "chess", "rows": 30},
            "pool": {"from": "chess"},
            "probes": {"far": {"from": "mcqa", "regime": "OOD-domain"}},
        },
        chess={"path": str(tmp_path / "chess.parquet")},
        mcqa={"path": str(tmp_path / "mcqa.jsonl"), "domain": "mcqa"},
    )
    refs = run(settings, tmp_path / "out")
    assert refs.counts["probe-far"].rows == 19 and not refs.counts["probe-far"].errors
    rows = content(refs.tables["probe-far"])
    assert {row["gold"] for row in rows} == {"B"} and rows[0].keys() == {
        "row_id",
        "question",
        "choices",
        "gold",
        "error",
    }
    assert refs.counts["pool"].rows == 30
    missing = config(
        {"source": {"from": "mcqa", "rows": 5}, "pool": {"from": "mcqa"}},
        mcqa=settings.sources["mcqa"].model_dump() | {"domain": "math"},
    )
    assert run(missing, tmp_path / "as-math").counts["pool"].rows == 14  # a question is a problem, too
    with pytest.raises(SourceError, match=r"mcqa\.jsonl: has no column 'fen' \(it has: question, choices, answer;"):
        run(
            config(
                {"source": {"from": "mcqa", "rows": 5}, "pool": {"from": "mcqa"}},
                mcqa={"path": str(tmp_path / "mcqa.jsonl")},
            ),
            tmp_path / "as-chess",
        )


def test_own_ids(puzzles: list[dict[str, Any]], tmp_path: Path) -> None:
    rows = [{**row, "id": 1_000 - index} for index, row in enumerate(puzzles[:70])]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    settings = config(
        {"source": {"from": "x", "rows": 30}, "pool": {"from": "x"}},
        x={"path": str(tmp_path / "x.parquet"), "id_column": "id"},
    )
    refs = run(settings, tmp_path / "out")
    for ref in refs.tables.values():
        for row in content(ref):
            assert row["fen"] == Chess().read(rows[1_000 - row["row_id"]])["fen"]
    assert run(settings, tmp_path / "out") == refs


def test_mistakes_of_the_user(puzzles: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in puzzles[:20]))
    source = {"x": {"path": str(path)}}
    with pytest.raises(ConfigError, match="both take the rest"):
        run(config({"source": {"from": "x"}, "pool": {"from": "x"}}, **source), tmp_path / "a")
    with pytest.raises(SourceError, match="ask for 25 rows"):
        run(config({"source": {"from": "x", "rows": 25}, "pool": {"from": "x"}}, **source), tmp_path / "b")
    settings = config({"source": {"from": "x", "rows": 5}, "pool": {"from": "x"}}, **source)
    files = {"x": discover(settings.sources["x"])}
    path.write_text(path.read_text().replace('"moves"', "moves"))
    with pytest.raises(SourceError, match=r"^\S+x\.jsonl: record 1 is not JSON"):  # found in a task
        prepare(settings, tmp_path / "c", files)
    path.write_text("".join(json.dumps({"fen": "x", "moves": "x"}) + "\n" for _ in range(9)))
    with pytest.raises(SourceError, match=r"none of its 5 rows is usable \(bad_fen 5\); `curate inspect \S+` "):
        run(settings, tmp_path / "d")


def test_worked_solutions_stand_in_the_audit_table_alone(local_ray, tmp_path: Path) -> None:
    """Some rows have none, one that of another problem, one no answer."""
    rows = [
        {"problem": f"{n} + {n}?", "solution": f"It is {n} twice." if n % 5 else None, "answer": f"{2 * n}"}
        for n in range(60)
    ]
    for n in range(3, 60, 10):
        rows[n] |= {"solution": rf"Clearly \boxed{{{2 * n + 1}}}."}
        rows[n + 1] |= {"answer": None}
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    splits = {"source": {"from": "sums", "rows": 20}, "pool": {"from": "sums"}, "audit": True}
    settings = config(splits, sums={"path": str(tmp_path / "sums.jsonl"), "domain": "math"})
    refs = run(settings, tmp_path / "out")
    audit, pool = content(refs.tables["audit"]), content(refs.tables["pool"])
    assert set(pool[0]) == {"row_id", "problem", "difficulty", "error"}
    assert [row["row_id"] for row in audit] == [row["row_id"] for row in pool]
    found = {"bad_solution": 0, "no_gold": 0}
    for row in audit:
        n = row["row_id"]
        has = n % 5 and n % 10 not in (3, 4)
        assert row["gold"] == rows[n]["answer"]
        assert row["solution"] == (rf" It is {n} twice. The final answer is \boxed{{{2 * n}}}." if has else None)
        bad = f"bad_solution: it states '{2 * n + 1}', the gold label is '{2 * n}'" if n % 10 == 3 else None
        assert row["solution_error"] == bad
        found["bad_solution"] += bad is not None
        found["no_gold"] += row["gold"] is None
    assert refs.counts["audit"].errors == found and all(found.values())


def test_groups_stay_whole_and_their_numbers_stand_in_the_tables(puzzles: list[dict[str, Any]], tmp_path: Path) -> None:
    users = [None if place < 3 else f"u{place % 17}" for place in range(NUM_ROWS)]
    rows = [{**row, "user": user} for row, user in zip(puzzles[:NUM_ROWS], users, strict=True)]
    settings = config({**SPLITS, "group": "user"}, all={"path": str(write_parts(tmp_path / "in", rows)), "mixed": True})
    refs = run(settings, tmp_path / "out")
    starts, user_of, split_of = {0: 0, 1: 110, 2: 180}, {}, {}
    for name, ref in refs.tables.items():
        if name == "audit":
            continue
        for row in content(ref):
            user = users[starts[row["row_id"] >> 40] + (row["row_id"] & (1 << 40) - 1)]
            assert row["row_cluster"] == compute_cluster(user)
            if user is not None:
                user_of[row["row_cluster"]] = user
                assert split_of.setdefault(user, name) == name
    assert len(user_of) == 17 and set(split_of.values()) == {"adapt", "source", "calibration", "test", "pool"}
    sizes = {name: counts.rows for name, counts in refs.counts.items()}
    assert sum(rows for name, rows in sizes.items() if name != "audit") == NUM_ROWS and abs(sizes["source"] - 60) <= 15
    assert run(settings, tmp_path / "out") == refs
