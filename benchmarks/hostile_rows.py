"""Hostile rows: active text, missing and impossible values, in each format; and unreadable files.

Readable rows pass through a whole run, as data or as error rows, and are inert in terminal, report and exports.
"""

import csv
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from click.testing import CliRunner

from benchmarks.hostile_case import Case, Settings
from benchmarks.recorded import recorded
from curation.config import DomainConfig
from curation.domains import attempt, get_domain

TEXTS = (
    "<script>alert(1)</script>",
    "{{ 7 * 7 }}{% raw %}",
    "=HYPERLINK(1)",
    "NUL \x00 end",
    "\x1b]0;owned\x07\x9b2J\x7f",
    "\u202eturned\u2066",
    "x" * 10**6,
    '"""\r\n\t,;',
)
"""Texts of rows that must pass through a run unchanged."""
ACTING = "\x00\x07\x1b\x7f\x9b\u202e\u2066"
MISSING = (None, "", " ", "\t", "\u00a0", "nan", float("nan"))
"""Missing gold answers, which make error rows, except the text ``nan``, which is an answer."""
COMPLETIONS = [" <script>{{ 7 * 7 }}\x1b[31m\u202e \\boxed{1}", " \\boxed{2}"]
POSITIONS = (
    "kk6/8/8/8/8/8/8/K7 w - - 0 1",
    "8/8/8/8/8/8/8/8 w - - 0 1",
    "KK6/8/8/8/8/8/8/k7 w - - 0 1",
    "P6k/8/8/8/8/8/8/K7 w - - 0 1",
    "9/8/8/8/8/8/8/8 w - - 0 1",
    "k7/8/8/8/8/8/8/K7 x - - 0 1",
    "kR6/8/8/8/8/8/8/K7 w - - 0 1",
    "\x1b[2J",
)
"""Impossible positions of puzzles."""
FORMATS = ("jsonl", "csv", "parquet", "lance")
NUM_ROWS = 200
SPLITS: dict[str, Any] = {
    "source": {"from": "sums", "rows": 100},
    "pool": {"from": "sums"},
    "audit": True,
    "max_error_rate": 0.5,
}


def rows(answers: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
    """Make sums, each with a hostile text; every ninth has one of the ``answers`` instead of its own."""
    return [
        {
            "id": 2**63 - 1 - n,
            "problem": f"{TEXTS[n % 8]} What is {n} - {n} + 1?",
            "answer": answers[n // 9 % len(answers)] if answers and n % 9 == 0 else "1",
        }
        for n in range(NUM_ROWS)
    ]


def write_rows(path: Path, found: list[dict[str, Any]]) -> None:
    """Write a source file in the format of its suffix, as that format can hold the values."""
    if path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, found)))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(found[0]), quoting=csv.QUOTE_ALL)
            writer.writeheader()
            writer.writerows(found)
    else:
        texts = [{**row, "answer": row["answer"] if isinstance(row["answer"], str) else None} for row in found]
        table = pa.Table.from_pylist(texts)
        if path.suffix == ".parquet":
            pq.write_table(table, path)
        else:
            import lance

            lance.write_dataset(table, str(path))


def write_run(folder: Path, *, form: str = "jsonl", answers: tuple[Any, ...] = (), **sections: Any) -> Path:
    """Write a configuration over hostile rows, in a folder with spaces and letters of all kinds."""
    folder = folder / "#1 50%20? [x]* é 北京 \u200f run 'of' {{ x }}"
    folder.mkdir()
    write_rows(folder / f"sums é.{form}", rows(answers))
    config = {
        "name": "hostile",
        "run_dir": str(folder / "run ü"),
        "domain": "math",
        "sources": {"sums": {"path": f"sums é.{form}", "id_column": "id"}},
        "splits": SPLITS,
        "teacher": {"backend": "scripted", "scripted": {"completions": COMPLETIONS}},
        "selection": {"budget": {"n": 20}, "arms": ["naive", "internal_confidence"]},
        "ray": {"num_cpus": 2},
        **sections,
    }
    path = folder / "hostile run.yaml"
    path.write_text(yaml.safe_dump(config, allow_unicode=True))
    return path


def check_run(run: Path) -> int:
    """Check the page and the exports of a finished run; how many rows became error rows.

    Raises:
        AssertionError: a text acts, or is another one than in the source.
    """
    page = (run / "report.html").read_text()
    assert "<script>alert" not in page and not any(sign in page for sign in ACTING), "the page holds what acts"
    report = json.loads((run / "report.json").read_text())
    assert [arm["num_selected"] for arm in report["arms"]] == [20, 20], report["arms"]
    (exported,) = run.glob("gen-0/select-*/naive.lance")
    found = lance.dataset(str(exported)).to_table().to_pylist()
    for row in found:
        text = TEXTS[(2**63 - 1 - row["row_id"]) % 8]
        assert f"Problem: {text} What is" in row["prompt"] and row["completion"] in COMPLETIONS, row["row_id"]
    stages = recorded(run)
    counts = stages["prepare"]["outputs"]["counts"]
    return sum(sum(counts[split]["errors"].values()) for split in ("source", "audit"))


def try_all(folder: Path) -> Counter[str]:
    """Count rows carried through as data and as error rows; a run in each format."""
    from curation.cli import main

    counts: Counter[str] = Counter()
    chess = get_domain(DomainConfig(name="chess"))
    for position in POSITIONS:
        _, problem = attempt(chess.read, {"fen": position, "moves": "a1b1 a8b8", "rating": 1500})
        is_refused = problem and not problem.startswith("domain_failed")
        counts["refused" if is_refused else "failed"] += 1
        if not is_refused:
            print(f"rows: {position}: {problem or 'taken as a position'}")
    for form in FORMATS:
        below = folder / form
        below.mkdir()
        teacher = {"backend": "scripted", "scripted": {"completions": COMPLETIONS}, "max_error_rate": 0.5}
        config = write_run(below, form=form, answers=MISSING, teacher=teacher)
        run = config.parent / "run ü"
        looks = [["run", config], ["status", config], ["status", run], ["report", config], ["verify", run]]
        looks += [["inspect", run], ["inspect", run, "gen-0/label-pool", "--rows", "50"]]
        try:
            for arguments in looks:
                told = CliRunner().invoke(main, list(map(str, arguments)))
                if told.exception is not None and not isinstance(told.exception, SystemExit):
                    raise told.exception
                assert told.exit_code == 0, told.stderr
                assert not any(sign in told.output for sign in ACTING), f"{arguments[0]} prints what acts"
            num_errors = check_run(run)
        except AssertionError as error:
            print(f"rows, {form}: failed: {error}")
            counts["failed"] += NUM_ROWS
        except Exception as error:  # any other one is what is looked for
            print(f"rows, {form}: traceback: {type(error).__name__}: {error}")
            counts["traceback"] += NUM_ROWS
        else:
            counts += Counter({"refused": num_errors, "carried through": NUM_ROWS - num_errors})
    return counts


def content(name: str, text: bytes) -> Callable[[Path], Settings]:
    """Return a maker of a source file with these bytes."""

    def make(folder: Path) -> Settings:
        (folder / name).write_bytes(text)
        return {"domain": "math", "sources": {"puzzles": {"path": str(folder / name)}}}

    return make


_CSV = b"problem,answer\n" + b"What is 1 + 1?,2\n" * 40
_JSONL = b'{"problem": "What is 1 + 1?", "answer": "2"}\n' * 40
FILES = (
    Case(name="CSV with a lone quote", make=content("a.csv", _CSV + b'"What,2\n'), says="a.csv: record 41"),
    Case(name="CSV with a quote in a field", make=content("a.csv", _CSV + b'Wh"at,2\n"x"y,2\n'), says="a.csv: record"),
    Case(name="CSV with a field too many", make=content("a.csv", _CSV + b"a,b,c\n"), says="a.csv: record 41"),
    Case(name="CSV that is not UTF-8", make=content("a.csv", _CSV + b"\xff\xfe,2\n"), says="UTF-8"),
    Case(name="CSV whose header repeats a name", make=content("a.csv", b"a,a\n1,2\n"), says="a.csv: "),
    Case(name="JSONL that is not UTF-8", make=content("a.jsonl", _JSONL + b'{"problem": "\xff"}\n'), says="UTF-8"),
    Case(name="JSONL that is cut", make=content("a.jsonl", _JSONL + b'{"problem": "What'), says="a.jsonl: record"),
    Case(
        name="JSONL with half of a surrogate pair",
        make=content("a.jsonl", _JSONL + b'{"problem": "\\ud800", "answer": "2"}\n'),
        says="surrogate",
    ),
    Case(
        name="JSONL with a key twice",
        make=content("a.jsonl", _JSONL + b'{"problem": "a", "problem": "b", "answer": "2"}\n'),
        says="twice",
    ),
    Case(
        name="JSONL nested 10,000 deep",
        make=content("a.jsonl", _JSONL + b'{"problem": ' + b"[" * 10_000 + b"]" * 10_000 + b"}\n"),
        says="50 levels",
    ),
    Case(name="JSONL of a list", make=content("a.jsonl", _JSONL + b"[1, 2]\n"), says="a.jsonl: record"),
    Case(name="Parquet that is cut", make=content("a.parquet", b"PAR1" + b"\0" * 100), says="a.parquet: "),
    Case(name="Parquet that is text", make=content("a.parquet", _CSV), says="a.parquet: "),
    Case(name="no rows", make=content("a.jsonl", b""), says="a.jsonl: "),
)
"""Cases of unreadable files, which the first command that reads the file must refuse."""
