import random
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curation.config import DomainConfig
from curation.domains import get_domain
from curation.domains.equivalence.answers import PlainNumber
from curation.domains.equivalence.latex import parse_measured
from curation.domains.math import CUE, INSTRUCTION, Math, find_last_box
from curation.errors import ConfigError, RowError

DOMAIN = Math(timeout=30)
DATA = Path(__file__).parents[4] / "shared" / "data" / "math"
FILES = {  # rows, rows without an answer, rows without a level
    "aime_1983_2023": (975, 0, 0),
    "aime_2024": (30, 0, 0),
    "gsm8k_test": (1319, 0, 1319),
    "gsm8k_train": (7473, 0, 7473),
    "math500_test": (500, 0, 0),
    "math_test": (5000, 0, 0),
    "math_train": (7474, 2, 2),
    "omni_math_test": (4428, 9 + 103, 0),
}
TEXT_ONLY = {"problem": "How many?", "difficulty": None}

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the real rows are not at {DATA}")


def gold_of(raw: dict) -> str | None:
    """The gold label; ``None`` of a row without one, as of 103 answers of Omni-MATH that are prose."""
    try:
        return DOMAIN.gold(raw)
    except RowError as error:
        assert error.kind == "bad_value" and "is prose" in str(error)
        return None


def rows(name: str) -> list[dict]:
    return pq.read_table(DATA / f"{name}.parquet").to_pylist()


@pytest.mark.long
@needs_data
@pytest.mark.parametrize("name", FILES)
def test_math_files_are_read_and_rendered_and_their_gold_answers_grade_right(name):
    """For 100 % of the rows that have an answer, without exceptions; as written, and in other delimiters."""
    counts = dict.fromkeys(("rows", "no answer", "no level"), 0)
    for raw in rows(name):
        example, gold = DOMAIN.read(raw), gold_of(raw)
        counts["rows"] += 1
        counts["no answer"] += gold is None
        counts["no level"] += DOMAIN.difficulty(example) is None
        assert list(example) == DOMAIN.columns.names
        assert DOMAIN.prompt(example) == f"{INSTRUCTION}\n\nProblem: {raw['problem'].strip()}\n{CUE}"
        if gold is not None:
            label = DOMAIN.parse(f"Since {raw['problem']}, so:{DOMAIN.answer(gold, example)}", example)
            assert label == gold, raw["id"]
            assert DOMAIN.is_correct(label, gold) and DOMAIN.is_correct(rf"\[ {label} \]", gold), raw["id"]
    assert tuple(counts.values()) == FILES[name]


@pytest.mark.long
@needs_data
@pytest.mark.parametrize("name", FILES)
def test_math_files_grade_another_rows_different_answer_wrong(name):
    golds = sorted({gold for raw in rows(name) if (gold := gold_of(raw)) is not None})
    seeded = random.Random(7)
    checked = 0
    while checked < 300:
        gold, other = seeded.sample(golds, 2)
        values = [PlainNumber.read(parse_measured(answer).text) for answer in (gold, other)]
        if parse_measured(gold).text == parse_measured(other).text or (
            all(values) and values[0].value == values[1].value
        ):
            continue  # "x = 5" and "x=5", 0.5 and 1/2
        assert not DOMAIN.is_correct(other, gold), (gold, other)
        checked += 1


@pytest.mark.parametrize(
    ("raw", "gold", "difficulty"),
    [
        ({"problem": "How many?", "answer": "025", "level": "15", "subject": None, "source": "aime"}, "025", 15.0),
        (
            {
                "problem": "How many?",
                "solution": r"Not \boxed{1}, since $x=\frac{1}{2}$: \boxed{\frac{1}{2}}.",
                "level": "Level 3",
                "type": "Algebra",
            },
            r"\frac{1}{2}",
            3.0,
        ),
        (
            {"problem": "How many?", "solution": r"\boxed{8}", "answer": "7", "level": 5, "unique_id": "test/1.json"},
            "7",
            5.0,
        ),
        ({"question": "How many?", "answer": "2+2 = <<2+2=4>>4 thousand\n#### 4,000"}, "4,000", None),
        ({"problem": "How many?", "solution": "So 2.", "answer": r"$\boxed{2}$", "difficulty": 4.5}, "2", 4.5),
        ({"ID": "1983-1", "Year": 1983, "Problem Number": 7, "Question": "How many?", "Answer": "60"}, "60", 7.0),
        ({"ID": "2024-I-1", "Problem": "How many?", "Solution": r"\boxed{5}", "Answer": 204}, "204", None),
        ({"problem": "How many?", "solution": r"It is $\boxed 2$.", "level": "Level ?"}, "2", None),
        ({"problem": "How many?", "answer": r"\frac{1}{2^{15}", "difficulty": float("nan")}, r"\frac{1}{2^{15}}", None),
        ({"problem": "How many?", "answer": r"\boxed{1}, \boxed{2}"}, r"\boxed{1}, \boxed{2}", None),
        ({"problem": "How many?"}, None, None),
        ({"problem": "How many?", "answer": None, "solution": None}, None, None),
        ({"problem": "How many?", "answer": "  ", "level": None}, None, None),
    ],
)
def test_math_rows_are_read_as_hugging_face_ships_them(raw, gold, difficulty):
    assert any(set(form) <= set(raw) for form in DOMAIN.forms)
    example = DOMAIN.read(raw)
    assert example == {"problem": "How many?", "difficulty": difficulty}
    assert DOMAIN.difficulty(example) == difficulty and DOMAIN.gold(raw) == gold
    assert pa.Table.from_pylist([example], schema=DOMAIN.columns).to_pylist() == [example]


@pytest.mark.parametrize("raw", [{"problem": None, "answer": "1"}, {"question": " \n", "answer": "1"}])
def test_math_rows_without_a_problem_are_error_rows(raw):
    with pytest.raises(RowError) as raised:
        DOMAIN.read(raw)
    assert raised.value.kind == "null_field"


def test_math_solutions_without_a_box_are_error_rows():
    with pytest.raises(RowError) as raised:
        DOMAIN.gold({"problem": "How many?", "solution": "Clearly two."})
    assert raised.value.kind == "no_box"


@pytest.mark.parametrize(
    ("completion", "label"),
    [
        (r"so \boxed{5}.", "5"),
        (r"\boxed{1} or rather \boxed{ 2 }", "2"),
        (r"\fbox{3}", "3"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\left\{ 1, 2 \right\}}", r"\left\{ 1, 2 \right\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        (r"\boxed{a \boxed{b} c}", r"a \boxed{b} c"),
        ("\\boxed\n {7}", "7"),
        (r"$\boxed 5$", "5"),
        (r"\boxed -12 is it", "-12"),
        (r"{\boxed{5}", "5"),
        (r"\boxed{5}} }", "5"),
        (r"\boxed{4, no: \boxed{5}", "5"),  # an early box that never closes hides no later one
        (r"\\\boxed{6}", "6"),
        (r"\boxed{5} and then \boxed{6", None),
        (r"\boxed{6", None),
        (r"\boxed{5} and then \boxed", None),
        (r"\boxed{}", None),
        (r"\boxed{ }", None),
        (r"\boxedx{5}", None),
        ("the answer is 5", None),
        ("", None),
    ],
)
def test_math_parse_takes_the_last_box(completion, label):
    assert DOMAIN.parse(completion, TEXT_ONLY) == label


@pytest.mark.parametrize(
    "text",
    [
        "{" * 10**6,
        "}" * 10**6,
        "\\" * 10**6,
        r"\boxed{" * 140_000,
        r"\boxed" * 160_000,
        r"\boxed " * 140_000,
        r"\boxed a" * 120_000,
        r"\boxed{5}" * 110_000,
        r"\boxed" + " " * 10**6,
        " " * 10**6 + r"\boxed{5}",
        r"\boxed{" + "a{}" * 330_000 + "}",
    ],
    ids=lambda text: text[:8],
)
def test_math_parse_is_linear_on_a_megabyte(text):
    began = time.perf_counter()
    find_last_box(text)
    assert time.perf_counter() - began < 5


def test_math_prompt_with_shots_and_answer():
    shot = {"problem": "What is $1+1$?", "difficulty": 1.0, "gold": r"\frac{4}{2}"}
    prompt = DOMAIN.prompt({"problem": "What is $2+2$?", "difficulty": None}, shots=[shot])
    assert prompt == (
        "Solve the problem. Reason step by step, and put the final answer within \\boxed{}.\n\n"
        "Problem: What is $1+1$?\nSolution: The final answer is \\boxed{\\frac{4}{2}}.\n\n"
        "Problem: What is $2+2$?\nSolution:"
    )
    assert DOMAIN.options(shot) is None
    assert DOMAIN.parse(DOMAIN.answer(shot["gold"], shot), shot) == shot["gold"]


def test_math_unparsed_labels_are_wrong():
    assert not DOMAIN.is_correct(None, "5")
    assert not DOMAIN.is_correct("", "5")
    with pytest.raises(RowError, match=r"exploded: .* within the bounds"):
        DOMAIN.is_correct("{" * 60 + "x" + "}" * 60, "y")


def test_math_instruction_is_an_option():
    example = {"problem": "1 + 1 = ?", "difficulty": None}
    assert Math(instruction="").prompt(example) == DOMAIN.prompt(example).removeprefix(f"{INSTRUCTION}\n\n")


def test_math_example_says_nothing_of_the_answer():
    raw = {"problem": "How many?", "answer": "17", "solution": r"\boxed{17}", "level": "4", "subject": "Algebra"}
    assert DOMAIN.read(raw) == DOMAIN.read(raw | {"answer": "18", "solution": r"\boxed{18}"})
    assert "17" not in DOMAIN.prompt(DOMAIN.read(raw))


def test_math_vocabulary_is_printable_ascii_and_the_line_end():
    vocabulary = DOMAIN.vocabulary()
    assert len(vocabulary.words) == len(set(vocabulary.words)) == 96
    assert set(DOMAIN.prompt(TEXT_ONLY)) <= set(vocabulary.words)


def test_math_domain_is_found_by_name_and_takes_a_timeout():
    assert isinstance(get_domain(DomainConfig(name="math", timeout=2)), Math)


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan"), "5", None, True])
def test_math_timeout_is_a_positive_number(timeout):
    with pytest.raises(ConfigError, match=r"timeout: .*: Input should be "):
        Math(timeout=timeout)


@pytest.mark.parametrize(
    ("raw", "solution"),
    [
        (  # MATH, MATH-500
            {"problem": "How many?", "solution": r"Not \boxed{1}, since $x=1/2$: $\boxed{\frac{1}{2}}$.", "level": "3"},
            r" Not \boxed{1}, since $x=1/2$: $\boxed{\frac{1}{2}}$.",
        ),
        (  # GSM8K
            {"question": "How many?", "answer": "Two and two\nare 2+2 = <<2+2=4>>4 thousand.\n#### 4,000"},
            " Two and two\nare 2+2 = 4 thousand. The final answer is \\boxed{4,000}.",
        ),
        (  # Omni-MATH, whose solutions box an answer or do not
            {"problem": "How many?", "solution": "So 2.", "answer": "2", "difficulty": 4.5},
            r" So 2. The final answer is \boxed{2}.",
        ),
        (
            {"problem": "How many?", "solution": r"So it is \boxed{", "answer": "2"},
            r" So it is \boxed{ The final answer is \boxed{2}.",
        ),
        (  # AIME
            {"ID": "2024-I-1", "Problem": "How many?", "Solution": r"Hence \boxed{204}.", "Answer": 204},
            r" Hence \boxed{204}.",
        ),
        ({"problem": "How many?", "answer": "7"}, None),
        ({"problem": "How many?", "answer": "#### 7"}, None),
        ({"problem": "How many?", "solution": " \n", "answer": "7"}, None),
        ({"problem": "How many?"}, None),
    ],
)
def test_math_solutions_are_completions_that_state_the_gold_answer(raw, solution):
    assert DOMAIN.solution(raw) == solution
    if solution is not None:
        example = DOMAIN.read(raw)
        assert set(example) == {"problem", "difficulty"}
        assert DOMAIN.parse(solution, example) == DOMAIN.gold(raw)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("**Answer:** 5", "5"),
        ("**Final answer: 5**", "5"),
        ("Ans: 5", "5"),
        ("Die Antwort ist 5.", "5"),
        ("La réponse est 5.", "5"),
        ("Ответ: 5", "5"),
        ("所以答案是5。", "5"),
        ("答え\uff1a5", "5"),
        ("因为小明有三个苹果\uff0c又买了两个苹果\uff0c所以他一共有五个苹果\uff0c也就是5个。", None),
        ("偶函数", "偶函数"),
    ],
)
def test_an_answer_that_states_the_gold_label_in_words_of_several_languages(answer: str, gold: str | None) -> None:
    assert gold_of({"problem": "How many?", "answer": answer}) == gold


@needs_data
@pytest.mark.parametrize("name", FILES)
def test_math_files_with_worked_solutions_give_them_as_right_completions(name):
    """For 99 % of the rows that carry one and have a gold answer."""
    raws = [raw for raw in rows(name) if raw.get("solution") or "####" in str(raw["answer"])]
    if not raws:
        pytest.skip(f"{name} has final answers alone")
    solved = [(solution, gold) for raw in raws if (gold := gold_of(raw)) and (solution := DOMAIN.solution(raw))]
    right = sum(DOMAIN.is_correct(DOMAIN.parse(solution, TEXT_ONLY), gold) for solution, gold in solved)
    assert len(solved) >= 0.99 * len(raws) and right >= 0.99 * len(solved)
