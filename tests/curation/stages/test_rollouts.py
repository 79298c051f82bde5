"""Rollouts for gold labels: which rows are asked about, until when, exactly once; and what gold arms train on."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from curation.arms import ARMS
from curation.config import ActorsConfig, DecodingConfig, DomainConfig, ScriptedConfig, SelectionConfig, TeacherConfig
from curation.domains.mcqa import Mcqa
from curation.refs import ModelRef
from curation.stages.chooser import Chooser, SelectJob
from curation.stages.gold import GoldTexts, Limit
from curation.stages.pool_scores import ComputedBudget, ScoredSplit
from curation.stages.rollouts import (
    NO,
    UNKNOWN,
    YES,
    GoldRollouts,
    RolloutJob,
    count_to_resolve,
    draw,
    roll_out,
)
from curation.stages.select import Selection, select
from curation.tables import io, schemas
from curation.teachers.scripted import ScriptedTeacher

pytestmark = pytest.mark.long

NUM_ROWS, N = 300, 40
DOMAIN = DomainConfig.model_validate({"name": "mcqa", "generative": True})
THOUGHTS = tuple(f" Some thought of {letter}. The answer is ({letter})." for letter in "ABCD")
SCRIPT = ScriptedConfig(completions=THOUGHTS)
ARM_NAMES = ("naive", "trust", "trust_gold", "ground_truth")
LABELLED = pa.schema(
    [
        *schemas.make_labels_schema([], "float16", 1),
        pa.field("trust_raw", pa.float32()),
        pa.field("trust_trust", pa.float32()),
    ]
)


def save(folder: Path, name: str, rows: list[dict], schema: pa.Schema):
    order = np.random.default_rng(len(name)).permutation(len(rows))
    return io.write(pa.Table.from_pylist(rows, schema=schema).take(order), str(folder / f"{name}.lance"))


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    """Questions, their gold letters and what a teacher made of them: a tenth unparsed, some without gold."""
    rng, made = np.random.default_rng(3), []
    for place in range(NUM_ROWS):
        gold, label = "ABCD"[rng.integers(4)], None if place % 10 == 7 else "ABCD"[rng.integers(4)]
        made.append(
            {
                "row_id": (3 << 40) + 7 * place,
                "question": f"Question {place}?",
                "choices": ["one", "two", "three", "four"],
                "gold": None if place % 12 == 5 else gold,
                "label": label,
                "completion": " Hm." if label is None else THOUGHTS["ABCD".index(label)],
                "mean_logprob": -1.0,
                "trust_raw": float(rng.normal() + 2 * (label == gold)),
                "trust_trust": 0.5,
                "solution": f" Since it is so. The answer is ({gold}).",
            }
        )
    return made


@pytest.fixture(scope="module")
def job(rows: list[dict], tmp_path_factory) -> SelectJob:
    folder = tmp_path_factory.mktemp("pool")
    labels = save(folder, "labels", rows, LABELLED)
    graded = [
        {"row_id": row["row_id"], "correct": row["label"] == row["gold"], "judged": False}
        for row in rows
        if row["gold"] is not None
    ]
    return SelectJob(
        pool=save(folder, "pool", rows, schemas.make_examples_schema(Mcqa.columns, gold=False)),
        labels=labels,
        audit=save(folder, "audit", [row | {"solution": None} for row in rows], schemas.AUDIT),
        grades=io.write(pa.Table.from_pylist(graded, schema=schemas.GRADES), str(folder / "grades.lance")),
        texts=GoldTexts(source="answer"),
        measured=ScoredSplit(labels=labels, grades=None),
        calibration=None,
        domain=DOMAIN,
        selection=selection(),
        teacher=None,
        generation=0,
        seed=11,
    )


def selection(n: int = N, arms: tuple[str, ...] = ARM_NAMES, **settings) -> SelectionConfig:
    return SelectionConfig.model_validate({"budget": {"n": n}, "arms": arms, "gold_rollouts": settings})


def rolled_out(job: SelectJob, asked: RolloutJob, directory: Path) -> GoldRollouts:
    return roll_out(job, replace(asked, uri=str(directory / "rollouts.lance")), commit_seconds=0.2)


def asking(job: SelectJob, script: ScriptedConfig = SCRIPT, *, num_samples: int = 8, chunk_rows: int = 20):
    actors = ActorsConfig(max=2)
    teacher = TeacherConfig(backend="scripted", scripted=script, chunk_rows=chunk_rows, actors=actors)
    return RolloutJob(
        examples=job.pool,
        uri="",
        domain=DOMAIN,
        teacher=teacher,
        model=None,
        decoding=DecodingConfig(temperature=0.7),
        num_samples=num_samples,
        seed=5,
    )


def chosen(job: SelectJob, texts: GoldTexts, folder: Path) -> dict[str, tuple[Selection, list[dict]]]:
    _, selections = select(replace(job, texts=texts), folder)
    return {item.arm: (item, io.read(item.table).to_pylist()) for item in selections}


def test_a_row_is_sampled_until_gold_grades_it_right_or_the_samples_end(rows: list[dict]):
    known = [row for row in rows if row["gold"] is not None]
    teacher = ScriptedTeacher(TeacherConfig(backend="scripted", scripted=SCRIPT))
    domain, decoding = Mcqa(generative=True), DecodingConfig()
    asked = {num: draw(domain, teacher, known, decoding, num_samples=num, seed=2) for num in (1, 8)}
    gold = {row["row_id"]: row["gold"] for row in known}
    for num, found in asked.items():
        assert [row["row_id"] for row in found] == list(gold)
        for row in found:
            if (completion := row.get("completion")) is None:
                assert row["num_samples"] == num
            else:
                assert completion == THOUGHTS["ABCD".index(gold[row["row_id"]])] and 1 <= row["num_samples"] <= num
        share = np.mean([row.get("completion") is not None for row in found])
        assert share == pytest.approx(1 - 0.75**num, abs=0.09)  # the script guesses one of four
    first = {row["row_id"]: row.get("completion") for row in asked[1]}
    more = {row["row_id"]: row.get("completion") for row in asked[8]}
    assert all(more[row_id] == completion for row_id, completion in first.items() if completion)
    assert len({row["num_samples"] for row in asked[8]}) > 4


def test_a_right_sample_that_the_student_cannot_be_trained_on_is_none(rows: list[dict]):
    class Short(Limit):
        def allows(self, prompt: str, completion: str) -> bool:
            return prompt.endswith("Answer:") and len(completion) < 5

    limit = Short(student=ModelRef(base="none"), max_length=1, chat_template=False)
    teacher = ScriptedTeacher(TeacherConfig(backend="scripted", scripted=SCRIPT))
    asked = [row for row in rows if row["gold"] is not None][:20]
    free, held = (
        draw(Mcqa(generative=True), teacher, asked, DecodingConfig(), num_samples=8, seed=1, limit=of)
        for of in (None, limit)
    )
    assert any(row.get("completion") for row in free) and not any(row.get("completion") for row in held)
    assert {row["num_samples"] for row in held} == {8}


def test_errors_and_rows_that_cannot_be_asked_give_no_rollout(rows: list[dict]):
    known = [row for row in rows if row["gold"] is not None][:20]
    failing = SCRIPT.model_copy(update={"error_rows": (known[0]["row_id"],)})
    teacher = ScriptedTeacher(TeacherConfig(backend="scripted", scripted=failing))
    broken = [known[0], known[1] | {"choices": None}, *known[2:]]
    found = draw(Mcqa(generative=True), teacher, broken, DecodingConfig(), num_samples=20, seed=2)
    assert [row.get("completion") is None for row in found] == [True, True, *[False] * 18]
    assert found[0]["num_samples"] == 20 and found[1]["num_samples"] == 0


@pytest.mark.parametrize(
    ("state", "n", "rate", "num"),
    [
        ("yyy???", 3, 1.0, 0),  # enough before the first unknown one
        ("nnny", 3, 1.0, 0),  # too few, and nobody left to ask
        ("???????", 3, 1.0, 3),
        ("y?n?y?", 3, 1.0, 4),
        ("y?n?y?", 3, 0.5, 5),
        ("y?n?????", 3, 0.5, 6),
        ("y?n?????", 9, 0.5, 8),  # all of them
        ("yy?yyy", 3, 0.001, 4),  # the weak right one behind it is enough, if it gives nothing
    ],
)
def test_the_draw_is_resolved_as_far_as_the_budget_may_reach(state: str, n: int, rate: float, num: int):
    codes = np.array([{"y": YES, "n": NO, "?": UNKNOWN}[letter] for letter in state], dtype=np.int8)
    assert count_to_resolve(codes, n, rate) == num


@pytest.mark.parametrize("pass_at_k", [0.0, 0.3, 1.0])
def test_rounds_end_with_the_first_n_of_the_draw_and_ask_nobody_behind_the_nth_right_one(pass_at_k: float):
    rng = np.random.default_rng(int(10 * pass_at_k))
    for _ in range(50):
        right_M = rng.random(200) < 0.2
        truth_M = right_M | (rng.random(200) < pass_at_k)
        state_M, n, rate, rounds = np.where(right_M, YES, UNKNOWN).astype(np.int8), 30, 1.0, 0
        while num := count_to_resolve(state_M, n, rate):
            new = np.flatnonzero(state_M[:num] == UNKNOWN)
            assert len(new)
            state_M[new] = np.where(truth_M[new], YES, NO)
            asked_M = ~right_M & (state_M != UNKNOWN)
            rate, rounds = max(truth_M[asked_M].sum(), 1) / asked_M.sum(), rounds + 1
        first = np.flatnonzero(state_M == YES)[:n]
        assert first.tolist() == np.flatnonzero(truth_M)[:n].tolist() and rounds < 12
        if right_M.sum() >= n:
            assert np.flatnonzero(asked_M).max(initial=0) <= np.flatnonzero(right_M)[n - 1]


def test_gold_arms_train_on_rollouts_that_gold_grades_right(local_ray, job: SelectJob, rows, tmp_path: Path):
    log = tmp_path / "log"
    script = SCRIPT.model_copy(update={"log": str(log)})
    made = rolled_out(job, asking(job, script), tmp_path)
    assert made.weak.format == "rollout" and made.weak.num_bare == 0
    assert made.texts.source == "sample" and (made.num_gold, made.num_solved) == (275, 0)
    table = io.read(made.texts.samples)
    assert table.schema.equals(schemas.ROLLOUTS)

    by_id = {row["row_id"]: row for row in rows}
    right = {row["row_id"] for row in rows if row["gold"] is not None and row["label"] == row["gold"]}
    asked = table["row_id"].to_pylist()
    assert not right & set(asked) and len(asked) == len(set(asked)) == made.num_asked
    assert Counter(map(int, log.read_text().split())) == dict(zip(asked, table["num_samples"].to_pylist(), strict=True))
    assert made.num_asked < 3 * N  # of 225 rows that are wrong

    arms = chosen(job, made.texts, tmp_path / "out")
    found = {row["row_id"]: row["completion"] for row in table.to_pylist() if row["completion"] is not None}
    for name in ("ground_truth", "trust_gold"):
        item, taught = arms[name]
        assert (item.format, item.completion_source) == ("rollout", "sample")
        for row in taught:
            gold = by_id[row["row_id"]]["gold"]
            assert row["label"] == gold and row["label_source"] == "gold"
            assert row["completion"] == THOUGHTS["ABCD".index(gold)]
            assert row["completion_source"] == ("weak" if row["row_id"] in right else "sample")
        assert {row["completion_source"] for row in taught} == {"weak", "sample"}

    # Ground truth: the first n rows of the one draw that can be taught.
    budget = ComputedBudget(n=275, rule="n", reference="trust", oracle=False)
    whole = Chooser(job, budget).cut(ARMS["ground_truth"]).row_ids_n.tolist()
    can = [row_id for row_id in whole if row_id in right | set(found)]
    assert [row["row_id"] for row in sorted(arms["ground_truth"][1], key=lambda row: row["rank"])] == can[:N]
    last = whole.index(can[N - 1])
    assert set(whole[:last]) <= right | set(asked)  # nobody before it was passed over

    # Trust, gold: trust's own rows with gold labels, and what is missing is said.
    trust = {row["row_id"] for row in arms["trust"][1] if by_id[row["row_id"]]["gold"] is not None}
    item, taught = arms["trust_gold"]
    assert {row["row_id"] for row in taught} >= trust & (right | set(found))
    num_missing = N - len(taught)
    expected = None if not num_missing else f"{num_missing} of {N} rows have no rollout that gold grades right"
    assert item.format_note == expected
    item, _ = arms["naive"]
    assert (item.format, item.completion_source, item.format_note) == ("rollout", "weak", None)
    lengths = [len(row["completion"]) for row in arms["naive"][1]]
    assert item.median_characters == np.median(lengths)
    assert arms["ground_truth"][0].words == ("ground_truth: gold labels, rollouts from sample, median 38 characters")

    # The same again asks nobody; what a run that was cut off left is gone on with, in whatever round it was.
    again = rolled_out(job, asking(job, script), tmp_path)
    assert again == made and len(log.read_text().split()) == made.num_samples
    kept = table.slice(0, 10)
    io.write(kept, str(tmp_path / "cut" / "rollouts.lance"))
    log.unlink()
    resumed = rolled_out(job, asking(job, script), tmp_path / "cut")
    assert io.read(resumed.texts.samples).sort_by("row_id").equals(table.sort_by("row_id"))
    assert not set(map(int, log.read_text().split())) & set(kept["row_id"].to_pylist())


def test_rows_that_the_teacher_never_solves_are_missed_and_said_to_be(local_ray, job: SelectJob, rows, tmp_path: Path):
    only_a = ScriptedConfig(completions=THOUGHTS[:1])
    wanted = replace(job, selection=selection(n=200))
    made = rolled_out(wanted, asking(job, only_a, num_samples=1, chunk_rows=100), tmp_path)
    right = {row["row_id"] for row in rows if row["gold"] is not None and row["label"] == row["gold"]}
    can = right | {row["row_id"] for row in rows if row["gold"] == "A"}
    assert made.num_asked == made.num_gold - len(right)  # all that there are to ask
    arms = chosen(wanted, made.texts, tmp_path / "out")
    item, taught = arms["ground_truth"]
    assert {row["row_id"] for row in taught} == can and item.num_rows == len(can) < 200
    assert item.format_note == f"{200 - len(can)} of 200 rows have no rollout that gold grades right"
    assert arms["trust"][0].num_rows == 200
    nothing = chosen(wanted, GoldTexts(source="solution"), tmp_path / "none")["ground_truth"][0]
    assert nothing.num_rows == 0 and nothing.format_note == "200 of 200 rows have no rollout in the dataset"


def test_gold_arms_train_on_worked_solutions_where_the_dataset_has_them(job: SelectJob, rows, tmp_path: Path):
    audit = save(tmp_path, "solved", [row if row["gold"] else row | {"solution": None} for row in rows], schemas.AUDIT)
    solved = replace(job, audit=audit)
    made = rolled_out(solved, asking(job), tmp_path)
    assert made.texts == GoldTexts(source="solution") and made.num_solved == made.num_gold == 275
    arms, by_id = chosen(solved, made.texts, tmp_path / "out"), {row["row_id"]: row for row in rows}
    for name in ("ground_truth", "trust_gold"):
        item, taught = arms[name]
        assert (item.num_rows, item.format, item.completion_source) == (N, "rollout", "solution")
        assert item.format_note is None
        for row in taught:
            assert row["completion"] == by_id[row["row_id"]]["solution"] and row["completion_source"] == "solution"
            assert row["label"] == by_id[row["row_id"]]["gold"]


def test_bare_answers_beside_rollouts_are_a_choice_that_is_stamped(job: SelectJob, tmp_path: Path):
    wanted = replace(job, selection=selection(source="answers"))
    made = rolled_out(wanted, asking(job), tmp_path)
    assert made.texts == GoldTexts(source="answer")
    arms = chosen(wanted, made.texts, tmp_path / "out")
    item, taught = arms["ground_truth"]
    assert (item.format, item.completion_source, arms["naive"][0].format) == ("answer", "answer", "rollout")
    assert "bare answers, where the weak arms train on rollouts" in item.format_note
    assert {row["completion"] for row in taught} == {f" The answer is ({letter})." for letter in "ABCD"}


def test_where_weak_completions_are_bare_answers_gold_ones_are_too(job: SelectJob, rows, tmp_path: Path):
    bare = [row | {"completion": f" The answer is ({row['label']})."} for row in rows]
    wanted = replace(job, labels=save(tmp_path, "bare", bare, LABELLED), selection=selection(source="samples"))
    made = rolled_out(wanted, asking(job), tmp_path)
    assert made.weak.format == "answer" and made.weak.num_bare == made.weak.num_rows == 270
    arms = chosen(wanted, made.texts, tmp_path / "out")
    assert {item.format for item, _ in arms.values()} == {"answer"}
    assert {item.completion_source for item, _ in arms.values()} == {"weak", "answer"}
    assert all(item.format_note is None for item, _ in arms.values())
