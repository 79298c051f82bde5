"""The grade stage: pairs joined by id, graded in parallel by the domain's own rule; verdicts that overrule it."""

from contextlib import contextmanager
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

from curation.config import DomainConfig
from curation.domains import Example, Identity, get_domain
from curation.domains.chess import Chess
from curation.domains.grading import grade_pairs, read_grades
from curation.domains.mcqa import Mcqa
from curation.errors import ConfigError, RowError
from curation.refs import TableRef
from curation.stages import grade as stage
from curation.stages.grade import grade
from curation.stages.signal import apply_verdicts
from curation.tables import io, schemas

CHESS = DomainConfig(name="chess")


def save(folder: Path, name: str, table: pa.Table) -> TableRef:
    """In a random order, in several fragments."""
    order = np.random.default_rng(len(name)).permutation(table.num_rows)
    uri = str(folder / f"{name}.lance")
    lance.write_dataset(table.take(order), uri, max_rows_per_file=700)
    return io.find_latest(uri)


def audit(ids, golds: list[str | None]) -> pa.Table:
    """Gold labels without solutions."""
    nothing = pa.nulls(len(golds), pa.string())
    return pa.table([pa.array(ids), pa.array(golds), nothing, nothing], schema=schemas.AUDIT)


def test_rows_are_joined_by_id_whatever_the_order(local_ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "PAIRS", 300)  # some tasks, which come back in any order
    rng, num_rows = np.random.default_rng(0), 2000
    ids = rng.permutation(num_rows + 500) * 400_000_007
    labels = [None if unit < 0.1 else "e2e4" if unit < 0.4 else "d2d4" for unit in rng.random(num_rows)]
    errors = ["bad: x" if unit < 0.05 else None for unit in rng.random(num_rows)]
    golds = [None if unit < 0.2 else "d2d4" if unit < 0.6 else "e2e4" for unit in rng.random(num_rows + 400)]
    weak = save(tmp_path, "labels", pa.table({"row_id": ids[:num_rows], "label": labels, "error": errors}))
    gold = save(tmp_path, "gold", audit(ids[100:], golds))
    told: list[tuple[int, int]] = []
    positions = [f"8/8/8/8/{k // 2}/8/k7/7K w - - 0 1" for k in range(num_rows + 500)]  # of every two rows one
    asked = save(tmp_path, "examples", pa.table({"row_id": ids, "fen": positions, "rating": [1500] * len(positions)}))
    ref = grade(
        weak, gold, asked, CHESS, str(tmp_path / "grades.lance"), progress=lambda at: told.append((at.rows, at.total))
    )

    known = dict(zip(ids[100:].tolist(), golds, strict=True))
    expected = {
        row_id: label == known[row_id]
        for row_id, label, error in zip(ids[:num_rows].tolist(), labels, errors, strict=True)
        if error is None and known.get(row_id) is not None
    }
    table = io.read(ref)
    assert table.schema.equals(schemas.GRADES)
    assert dict(zip(table["row_id"].to_pylist(), table["correct"].to_pylist(), strict=True)) == expected
    position = dict(zip(ids.tolist(), positions, strict=True))
    questions = dict(zip(table["row_id"].to_pylist(), table["question"].to_pylist(), strict=True))
    pairs = {(question, position[row_id]) for row_id, question in questions.items()}
    assert (
        len(pairs) == len(set(questions.values())) == len({position[row_id] for row_id in questions}) < len(questions)
    )
    graded = read_grades(ref)
    assert graded.question_N.tolist() == [questions[row_id] for row_id in graded.row_ids_N.tolist()]
    assert (np.diff(graded.row_ids_N) > 0).all() and graded.correct_N.dtype == np.bool_
    assert 0 < graded.correct_N.sum() < len(expected) < num_rows and not any(table["judged"].to_pylist())
    assert told[-1][0] == len(expected) and len(told) > 3 and {total for _, total in told} == {errors.count(None)}
    again = grade(weak, gold, asked, CHESS, ref.uri)  # a stage that was cut off grades anew
    assert io.read(again).equals(table)

    nothing = save(tmp_path, "none", audit([1, 2], [None, "e2e4"]))
    assert io.count(grade(weak, nothing, asked, CHESS, str(tmp_path / "empty.lance"))) == 0


def test_pairs_are_graded_by_the_domains_own_rule() -> None:
    math = get_domain(DomainConfig(name="math"))
    labels, golds = pa.array([r"\frac{1}{2}", "3", None, "2"]), pa.array(["0.5", "4", "4", "2.0"])
    correct_N, problems = grade_pairs(labels, golds, math)
    assert correct_N.tolist() == [True, False, False, True] and problems == [None] * 4
    chess = get_domain(CHESS)
    assert grade_pairs(labels, golds, chess)[0].tolist() == [False] * 4
    assert [len(part) for part in grade_pairs(labels[:0], golds[:0], chess)] == [0, 0]


class Unasked(Mcqa):
    """Cannot say what identifies some questions, as users' code may."""

    def identity(self, example: Example) -> Identity:
        if example["question"] == "What?":
            raise KeyError("what")
        return super().identity(example)


def test_rows_that_ask_the_same_question_have_the_same_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [
        ("Which is red?", ["grass", "blood", "snow"]),
        ("which is  red?", ["Snow", "grass", "blood"]),  # in another order, and written otherwise
        ("Which is red?", ["grass", "blood", "milk"]),
        ("Which is green?", ["grass", "blood", "snow"]),
        ("What?", ["this", "that"]),
        ("What?", ["this", "that"]),
        ("Which is green?", ["blood", "snow", "grass"]),
    ]
    ids = [30, 10, 40, 60, 20, 70, 50]
    columns = {"row_id": ids, "question": [text for text, _ in asked], "choices": [options for _, options in asked]}
    examples = save(tmp_path, "examples", pa.table(columns))
    weak = save(tmp_path, "labels", pa.table({"row_id": ids, "label": ["A"] * 7, "error": pa.nulls(7, pa.string())}))
    gold = save(tmp_path, "gold", audit(ids, list("ABABABA")))
    mcqa = DomainConfig(name="mcqa")
    monkeypatch.setattr(stage, "load_domain", lambda config: Unasked())
    parts = [stage._grade(*call) for call in stage._iter_calls(weak, gold, examples, mcqa)]
    table = pa.concat_tables(parts)
    assert table.schema.equals(schemas.GRADES) and table["row_id"].to_pylist() == sorted(ids)
    found = dict(zip(table["row_id"].to_pylist(), table["question"].to_pylist(), strict=True))
    assert found[30] == found[10] and found[60] == found[50]
    assert found[20] is None and found[70] is None
    assert len(set(found.values())) == 4, "three questions, and rows whose question is not known"
    graded = read_grades(io.write(table, str(tmp_path / "grades.lance")))
    assert graded.question_N[[1, 6]].tolist() == [20, 70], "such a row is a question of its own"
    assert graded.question_N[[0, 2]].tolist() == [found[10]] * 2
    old = read_grades(io.write(table.drop_columns(["question"]), str(tmp_path / "old.lance")))
    assert old.question_N.tolist() == sorted(ids)  # grades of an earlier release say no question


class Undecided(Chess):
    """Fails on some labels, as users' code may."""

    def is_correct(self, label: str | None, gold: str) -> bool:
        if label == "d2d4":
            raise RowError("timeout: the answers are too long")
        if label is None:
            raise ZeroDivisionError
        return super().is_correct(label, gold)


def test_what_a_domain_cannot_decide_is_wrong_and_said_so() -> None:
    correct_N, problems = grade_pairs(pa.array(["e2e4", "d2d4", None]), pa.array(["e2e4", "d2d4", "e2e4"]), Undecided())
    assert correct_N.tolist() == [True, False, False]
    assert problems == [None, "timeout: the answers are too long", "domain_failed: ZeroDivisionError:"]


def test_a_verdict_overrules_what_was_wrong_and_nothing_else(tmp_path: Path) -> None:
    columns = {"row_id": [1, 2, 3, 4, 5], "correct": [True, False, False, False, True], "judged": [False] * 5}
    columns |= {"problem": [None, "timeout: x", None, None, None], "question": [7, None, 9, -3, 7]}
    grades = io.write(pa.table(columns, schema=schemas.GRADES), str(tmp_path / "grades.lance"))
    verdicts = {"row_id": [5, 4, 2, 3, 9], "value": [0.0, None, 1.0, 0.0, 1.0], "error": [None] * 5}
    found = io.write(pa.table(verdicts, schema=schemas.SIGNAL), str(tmp_path / "verdicts.lance"))
    judged = io.read(apply_verdicts(grades, found, str(tmp_path / "judged.lance")))
    assert judged.schema.equals(schemas.GRADES)
    assert judged["correct"].to_pylist() == [True, True, False, False, True]
    assert judged["judged"].to_pylist() == [False, True, False, False, False]
    assert judged["problem"].to_pylist() == columns["problem"]
    assert judged["question"].to_pylist() == columns["question"]


class _Task:
    """The part of a run's task that the stage uses."""

    guard = staticmethod(lambda: None)

    def __init__(self, directory: Path) -> None:
        self.directory, self.said = directory, []

    @contextmanager
    def progress(self):
        yield lambda at: None

    def say(self, sentence: str) -> None:
        self.said.append(sentence)


def test_a_command_goes_on_after_what_is_committed(local_ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "CHECKED_ROWS", 20)
    mode, script = tmp_path / "mode", tmp_path / "check.py"
    script.write_text(
        f"import json, sys\nmode = open({str(mode)!r}).read()\n"
        "for line in sys.stdin:\n"
        "    if mode == 'broken' and json.loads(line)['row']['n'] >= 20:\n        sys.exit('no more')\n"
        "    print('true' if mode == 'broken' else 'false')\n"
    )
    check = {"command": ["python", str(script)]}
    options = {"name": "text", "prompt": "{{ n }}?", "reference": "answer", "check": check}
    config = DomainConfig.model_validate(options)
    domain = get_domain(config)
    ids = list(range(60))
    read = [{"row_id": n, **domain.read({"n": n}), "gold": str(n), "error": None} for n in ids]
    schema = schemas.make_examples_schema(domain.columns, gold=True)
    examples = save(tmp_path, "examples", pa.Table.from_pylist(read, schema=schema))
    weak = [{"row_id": n, "label": None if n == 7 else str(n), "error": None} for n in ids]
    weak_schema = pa.schema([("row_id", pa.int64()), ("label", pa.string()), ("error", pa.string())])
    labels = save(tmp_path, "labels", pa.Table.from_pylist(weak, schema=weak_schema))
    made = stage.Grade(
        name="grade", labels=labels, gold=examples, examples=examples, domain=config, checker=domain.checker
    )
    (tmp_path / "stage").mkdir()
    mode.write_text("broken")
    with pytest.raises(ConfigError, match="fails on each of 20 rows"):
        made.run(_Task(tmp_path / "stage"))
    mode.write_text("all wrong")  # no part of the digest, so that it tells who was asked again
    done = made.run(_Task(tmp_path / "stage"))
    table = io.read(done.outputs.grades)
    assert table["row_id"].to_pylist() == ids and table.schema.equals(schemas.GRADES) and done.rows == 60
    assert table["correct"].to_pylist() == [n < 20 and n != 7 for n in ids]  # an unparsed label is wrong, and not asked
    assert table["problem"].null_count == 60 and len(set(table["question"].to_pylist())) == 60
    script.write_text("print('true')")
    with pytest.raises(ConfigError, match="not those of the driver"):
        made.run(_Task(tmp_path / "changed"))


def test_a_domain_that_grades_many_rows_is_asked_once_and_may_fail() -> None:
    class Many(Chess):
        asked = 0

        def check(self, labels, golds, examples):
            self.asked += 1
            if len(labels) == 1:
                raise OSError("no space left")
            if len(labels) == 3:
                raise ConfigError("nothing can be graded")
            return [True] if len(labels) == 2 else [True, RowError("check_failed: x"), False, 1]

    def graded(number: int) -> tuple[list[bool], list[str | None]]:
        texts = pa.array(["e2e4"] * number)
        correct_N, problems = grade_pairs(texts, texts, domain, [{}] * number)
        return correct_N.tolist(), problems

    domain = Many()
    assert graded(4) == ([True, False, False, True], [None, "check_failed: x", None, None]) and domain.asked == 1
    assert graded(1) == ([False], ["domain_failed: OSError: no space left"])
    assert graded(2) == ([False] * 2, ["domain_failed: check gave 1 verdicts for 2 rows"] * 2)
    with pytest.raises(ConfigError):
        graded(3)


def test_grades_have_the_clusters_of_the_rows_and_a_judge_keeps_them(tmp_path: Path) -> None:
    ids = [30, 10, 40, 20]
    columns = {"row_id": ids, "question": [f"Which is {i}?" for i in ids], "choices": [["this", "that"]] * 4}
    examples = pa.table(columns).append_column(schemas.CLUSTER, pa.array([7, None, 7, -5], pa.int64()))
    asked = save(tmp_path, "examples", examples)
    weak = save(tmp_path, "labels", pa.table({"row_id": ids, "label": ["A"] * 4, "error": pa.nulls(4, pa.string())}))
    gold = save(tmp_path, "gold", audit(ids, list("ABAA")))
    parts = [stage._grade(*call) for call in stage._iter_calls(weak, gold, asked, DomainConfig(name="mcqa"))]
    ref = io.write(pa.concat_tables(parts), str(tmp_path / "grades.lance"))
    graded = read_grades(ref)
    assert graded.row_ids_N.tolist() == [10, 20, 30, 40] and graded.cluster_N is not None
    assert graded.cluster_N.tolist() == [graded.question_N[0], -5, 7, 7], "a row without a group is one of its own"
    assert graded.unit_N is graded.cluster_N
    verdicts = pa.table({"row_id": [10], "value": [1.0], "error": pa.nulls(1, pa.string())})
    judged = read_grades(apply_verdicts(ref, save(tmp_path, "verdicts", verdicts), str(tmp_path / "judged.lance")))
    np.testing.assert_array_equal(judged.cluster_N, graded.cluster_N)
    assert judged.correct_N.tolist() == [True, True, True, True]
