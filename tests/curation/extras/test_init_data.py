"""``curate init --data``: files of several tasks, what is guessed, and what is refused where nobody can be asked."""

import csv
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from curation.cli import main
from curation.config.load import load_config
from curation.errors import SourceError
from curation.extras.init.table import look

Row = dict[str, Any]
MODEL = Path(__file__).parents[3] / "examples" / "bases" / "sums_teacher"
CLASSES = ("card arrival", "lost card", "refund")
TEXTS = [{"id": f"t-{n}", "text": f"customer {n} asks about {CLASSES[n % 3]} {n * 7}"} for n in range(60)]
SUMS = [{"id": f"s-{n}", "problem": f"{n} + {3 * n} = ?", "answer": str(4 * n)} for n in range(40)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, rows: Sequence[Row], delimiter: str = ",") -> str:
    path = Path(name)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
        return name
    with gzip.open(path, "wt", newline="") if path.suffix == ".gz" else path.open("w", newline="") as file:
        if ".jsonl" in name:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    return name


def without(rows: Sequence[Row], *names: str) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def init(*arguments: object) -> str:
    given = ["init", "--data", *map(str, arguments), "--model", str(MODEL)]
    done = CliRunner().invoke(main, given, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*arguments: object) -> str:
    done = CliRunner().invoke(main, ["init", "--data", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 2 and len(done.stderr.splitlines()) == 1 and not Path("curation.yaml").exists()
    return done.stderr


def valid() -> list[str]:
    done = CliRunner().invoke(main, ["validate", "curation.yaml"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def test_texts_with_classes_in_two_files() -> None:
    labelled = write("labelled.csv", [row | {"label": CLASSES[n % 3]} for n, row in enumerate(TEXTS)])
    unlabelled = write("unlabelled.csv", [{"id": f"u-{n}", "text": f"where is my order {n}?"} for n in range(50)])
    told = init(unlabelled, labelled)  # in whatever order
    assert "the task is classification: 3 different answers in 60 rows" in told
    assert "the only column that just one of the files has" in told and "curate validate curation.yaml" in told
    config = load_config("curation.yaml")
    assert config.domain.options == {"text": "text", "label": "label", "classes": sorted(CLASSES)}
    assert config.sources["labelled"].path.endswith("/labelled.csv") and not config.splits.audit
    text = Path("curation.yaml").read_text()
    assert text.endswith("curate export RUN_DIR -o DIR --columns id\n")
    assert "# - the right answer is 'label'" in text and max(map(len, text.splitlines())) <= 120
    lines = valid()
    assert {"split source: 60 rows", "split pool: 50 rows"} <= set(lines)
    assert "exists already" in CliRunner().invoke(main, ["init", "--data", labelled]).stderr


def test_sums_in_files_of_other_kinds() -> None:
    labelled = write("sums.jsonl.gz", SUMS)
    unlabelled = write("more.parquet", without(SUMS, "answer"))
    assert "the task is math: 100% of the answers are numbers or formulas" in init(labelled, unlabelled)
    assert load_config("curation.yaml").domain.name == "math" and not load_config("curation.yaml").domain.options
    renamed = [{"task": row["problem"], "gold": row["answer"]} for row in SUMS]
    init(write("a.csv", renamed), "-o", "a.yaml")
    assert load_config("a.yaml").domain.options == {"problem": "task", "answer": "gold"}
    assert "--columns" not in Path("a.yaml").read_text()


def test_one_labelled_file_is_split_and_its_pool_is_audited(puzzles: list[Row]) -> None:
    init(write("sums.csv", SUMS, ";"))
    config = load_config("curation.yaml")
    assert config.splits.audit and config.splits.source.fraction == 0.4
    assert config.sources["labelled"].delimiter == ";"
    assert {"split source: 16 rows", "split pool: 24 rows"} <= set(valid())
    Path("curation.yaml").unlink()
    assert "are those that the domain chess reads" in init(write("puzzles.parquet", puzzles[:40]))
    assert load_config("curation.yaml").domain.name == "chess"


def test_questions_with_options_in_a_list_and_in_columns() -> None:
    questions = [{"question": f"Which is {n}?", "choices": [str(n), str(n + 1)], "answer": 0} for n in range(40)]
    init(write("a.jsonl", questions), write("b.jsonl", without(questions, "answer")), "-o", "a.yaml")
    assert load_config("a.yaml").domain.name == "mcqa" and not load_config("a.yaml").domain.options
    flat = [
        {"qid": f"q{n}", "question": f"Which is {n}?", "A": n, "B": n + 1, "C": n + 2, "correct": "B"}
        for n in range(40)
    ]
    assert "A, B, C look like the options" in init(write("a.csv", flat), write("b.csv", without(flat, "correct")))
    expected = {"question": "question", "choices": ["A", "B", "C"], "answer": "correct"}
    assert load_config("curation.yaml").domain.options == expected
    assert "split source: 40 rows" in valid()


def test_classes_that_are_numbers_get_lines_for_their_names() -> None:
    rows = [{"text": f"a letter of somebody, number {n}", "target": n % 2} for n in range(40)]
    assert "put each class's name after its number" in init(write("a.csv", rows))
    assert load_config("curation.yaml").domain.options["classes"] == {"0": "0", "1": "1"}


TOPICS = [[name for place, name in enumerate(("card", "fee", "app")) if n >> place & 1] for n in range(8)] * 5
MESSAGES = [{"text": f"message {n} of a customer about {n * 7}"} for n in range(40)]


def joined(separator: str, empty: str, of: Sequence[Sequence[str]] = TOPICS) -> list[Row]:
    """The messages with their topics as texts."""
    return [row | {"topics": separator.join(own) or empty} for row, own in zip(MESSAGES, of, strict=True)]


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("a.jsonl", [row | {"topics": own} for row, own in zip(MESSAGES, TOPICS, strict=True)]),
        ("a.parquet", [row | {"topics": own} for row, own in zip(MESSAGES, TOPICS, strict=True)]),
        ("a.csv", [row | {"topics": json.dumps(own)} for row, own in zip(MESSAGES, TOPICS, strict=True)]),
        ("a.csv", [row | {"topics": str(own)} for row, own in zip(MESSAGES, TOPICS, strict=True)]),
        ("a.csv", joined(", ", "none")),
    ],
)
def test_rows_with_several_labels_are_noticed(name: str, rows: list[Row]) -> None:
    assert "a row may have several, in a list or between commas" in init(write(name, rows), "--answer", "topics")
    options = load_config("curation.yaml").domain.options
    assert options == {"text": "text", "label": "topics", "multi": True}
    assert {"split source: 16 rows", "split pool: 24 rows"} <= set(valid())


def test_a_sign_within_names_is_no_separator() -> None:
    kinds = ("IT, software", "sales, marketing", "other")
    init(write("a.csv", [row | {"label": kinds[n % 3]} for n, row in enumerate(MESSAGES)]))
    assert load_config("curation.yaml").domain.options == {"text": "text", "label": "label", "classes": sorted(kinds)}
    Path("curation.yaml").unlink()
    line = refused(write("b.csv", [row | {"label": f"word{n}, word{n + 1}"} for n, row in enumerate(MESSAGES)]))
    assert "40 different answers in 40 rows" in line
    pairs = [{"problem": f"The digits of {n}?", "answer": f"{n % 7}, {n % 5}"} for n in range(40)]
    assert "the task is math: 100% of the answers are numbers" in init(write("c.csv", pairs))


PAIRS = [{"prompt": f"Name a number above {n}.", "chosen": str(n + 1), "rejected": str(n - 1)} for n in range(40)]
OPEN = [{"prompt": f"Name a number below {n}.", "first": str(n + 1), "second": str(n - 1)} for n in range(40)]


def test_pairs_of_answers_are_known_by_their_columns() -> None:
    told = init(write("open.csv", OPEN), write("pairs.jsonl", PAIRS))
    assert "those that the domain pair reads" in told and "pairs.jsonl has the right answers" in told
    config = load_config("curation.yaml")
    assert config.domain.name == "pair" and not config.splits.audit
    assert {"split source: 40 rows", "split pool: 40 rows"} <= set(valid())


def test_answers_that_are_objects_are_compared_as_json() -> None:
    found = [{"who": f"customer {n}", "total": n / 2, "paid": n % 2 == 0} for n in range(40)]
    notes = write("notes.jsonl", [{"note": f"a note of {n}", "data": one} for n, one in enumerate(found)])
    assert "Which column has the right answer?" in refused(notes)
    assert "the task is text: the right answers are JSON objects" in init(notes, "--answer", "data")
    expected = {"prompt": "{{ note }}\nJSON:", "reference": "data", "check": "json"}
    assert load_config("curation.yaml").domain.options == expected and valid()


def test_free_answers_by_domain() -> None:
    rows = [{"the question": f"Who wrote book {n}?", "answer": f"author {n} of somewhere"} for n in range(40)]
    assert "an answer is right if it has the same words" in init(write("a.csv", rows), "--domain", "text")
    expected = {"prompt": '{{ row["the question"] }}\nAnswer:', "reference": "answer", "check": "normalised"}
    assert load_config("curation.yaml").domain.options == expected and valid()
    numbers = [{"text": f"A box of {n} and {n} apples", "answer": f"{2 * n:,}"} for n in range(990, 1030)]
    init(write("b.csv", numbers), "--domain", "text", "-o", "b.yaml")
    assert load_config("b.yaml").domain.options["check"] == "number"


def test_labels_made_elsewhere_are_known_by_their_confidence() -> None:
    made = [row | {"api_says": CLASSES[n % 3], "api_score": n / 60} for n, row in enumerate(TEXTS)]
    labelled = write("a.csv", [row | {"label": CLASSES[(n + n % 2) % 3]} for n, row in enumerate(made)])
    done = CliRunner().invoke(main, ["init", "--data", labelled, write("b.csv", made)], catch_exceptions=False)
    assert done.exit_code == 0 and "the teacher is" not in done.output
    teacher = load_config("curation.yaml").teacher
    assert (teacher.backend, teacher.completion, teacher.confidence) == ("given", "api_says", ("api_score",))
    assert load_config("curation.yaml").selection.arms == ("naive", "given_api_score", "trust") and valid()
    init(labelled, "b.csv", "-o", "read.yaml")  # a model is named: it reads the labels
    read = load_config("read.yaml").teacher
    assert read.backend == "given" and read.reader is not None and read.reader.model.path == str(MODEL)


def test_labels_made_elsewhere_with_grades_in_place_of_right_answers() -> None:
    made = [{"text": row["text"], "answer": CLASSES[n % 3], "confidence": n / 60} for n, row in enumerate(TEXTS)]
    labelled = write("a.csv", [row | {"ok": n % 2} for n, row in enumerate(made) if n % 3 < 2])
    init(labelled, write("b.csv", made), "-o", "a.yaml")
    config = load_config("a.yaml")
    assert (config.teacher.completion, config.teacher.grade) == ("answer", "ok")
    assert config.domain.options["classes"] == sorted(CLASSES)  # one is in the second file alone
    without_grades = [row | {"label": CLASSES[n % 3]} for n, row in enumerate(TEXTS)]
    init(write("c.csv", without_grades), "-o", "c.yaml")
    assert load_config("c.yaml").teacher.backend == "transformers"


def test_conversations_are_the_text_and_no_labels() -> None:
    rows = [
        {"tags": f"t{n}", "dialog": [{"role": "user", "content": f"hello, number {n}"}], "ended": CLASSES[n % 3]}
        for n in range(40)
    ]
    line = refused(write("a.jsonl", rows))
    assert "Which column has the right answer?" in line
    init("a.jsonl", "--answer", "ended")
    assert load_config("curation.yaml").domain.options["text"] == "dialog" and valid()


def test_options_say_what_columns_do_not() -> None:
    rows = [
        {"title": f"a title, {n}", "notes": f"some notes, number {n}", "one": CLASSES[n % 3], "two": n % 2}
        for n in range(40)
    ]
    path = write("a.csv", rows)
    line = refused(path)
    assert "Which column has the right answer?" in line and "a.csv has title, notes, one, two" in line
    assert "give --answer COLUMN" in line
    line = refused(path, "--answer", "one")
    assert "Which column does the teacher read?" in line and "give --text COLUMN" in line
    assert "has no column 'onne' for --answer" in refused(path, "--answer", "onne")
    init(path, "--answer", "one", "--text", "title,notes")
    assert load_config("curation.yaml").domain.options["text"] == ["title", "notes"]


def test_what_no_domain_can_grade_is_refused_with_the_option() -> None:
    rows = [{"question": f"Who wrote book {n}?", "answer": f"an author called {n} of somewhere"} for n in range(40)]
    line = refused(write("a.csv", rows))
    assert "40 different answers in 40 rows" in line and "is the task math, classification or text?" in line
    assert "give --domain (text: free answers, which a rule or a program checks), or a class of your own" in line
    half = [row | {"answer": row["answer"] if n % 2 else ""} for n, row in enumerate(SUMS)]
    assert "column 'answer' has a value in 50% of the rows alone" in refused(write("b.csv", half))
    assert "no such file" in refused("none.csv")
    assert "give one file of labelled rows" in refused()
    assert "chess reads fen and moves" in refused(write("c.csv", SUMS), "--domain", "chess")
    assert "name them by --choices" in refused("c.csv", "--domain", "mcqa")
    done = CliRunner().invoke(main, ["init", "--answer", "x"])
    assert done.exit_code == 2 and "--answer: describes your files; name them by --data" in done.stderr


def test_the_delimiter_that_fits_the_header_says_why_a_file_cannot_be_read() -> None:
    Path("quotes.csv").write_text('text\tlabel\n"one\tpos\ntwo"\tneg\n')
    with pytest.raises(SourceError, match=r"record 1 is one row of 2 lines .*set quoting: none"):
        look("quotes.csv")
    Path("excel.csv").write_text("text;label;;\n" + "".join(f"t{n};{n % 2};;\n" for n in range(40)))
    assert look("excel.csv").columns == ("text", "label")
