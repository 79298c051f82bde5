import hashlib
import json
import random
import runpy
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curation.config import DomainConfig
from curation.domains import get_domain, plain_identity
from curation.domains.mcqa import INSTRUCTION, LETTERS, Mcqa
from curation.errors import ConfigError, RowError
from curation.models import create, load_tokenizer

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared" / "data" / "mcqa"
DUPLICATES = {  # as upstream, by SOURCES.md; all other rows are healthy
    "mmlu_dev": 1,
    "mmlu_test": 9,
    "mmlu_validation": 3,
    "openbookqa_train": 3,
    "sciq_test": 9,
    "sciq_train": 33,
    "sciq_validation": 2,
    "socialiqa_train": 33,
    "socialiqa_validation": 5,
}
ROWS = {"arc_challenge": 2_590, "arc_easy": 5_197, "openbookqa": 5_957, "sciq": 13_679, "socialiqa": 35_364}
ROWS |= {"mmlu": 15_858}
DATASETS = [pytest.param(name, id=f"mcqa-{name}") for name in ROWS]

DOMAINS = {"letters": Mcqa(), "texts": Mcqa(option_style="texts"), "generative": Mcqa(generative=True)}
STYLES = pytest.mark.parametrize("domain", list(DOMAINS.values()), ids=list(DOMAINS))
RAW = {"question": "Which is a fruit?", "choices": ["chair", "plum", "Monday"], "answer": 1}
FORMS = {
    "shared": RAW,
    "mmlu": RAW | {"subject": "botany"},
    "arc": {
        "id": "Q_1",
        "question": RAW["question"],
        "choices": {"text": RAW["choices"], "label": ["A", "B", "C"]},
        "answerKey": "B",
    },
    "arc, digits": {
        "id": "Q_2",
        "question": RAW["question"],
        "choices": {"text": RAW["choices"], "label": ["1", "2", "3"]},
        "answerKey": "2",
    },
    "openbookqa": {
        "id": "7-1",
        "question_stem": RAW["question"],
        "choices": {"text": RAW["choices"], "label": ["A", "B", "C"]},
        "answerKey": "B",
    },
    "sciq": {
        "question": RAW["question"],
        "distractor3": "Friday",
        "distractor1": "chair",
        "distractor2": "Monday",
        "correct_answer": "plum",
        "support": "A plum grows on a tree.",
    },
    "socialiqa": {
        "context": "Kit bit into a plum.",
        "question": RAW["question"],
        "answerA": "chair",
        "answerB": "plum",
        "answerC": "Monday",
        "label": "2",
    },
}
BY_FORM = pytest.mark.parametrize("raw", list(FORMS.values()), ids=list(FORMS))


def example(*choices: str, question: str = "Which is a fruit?") -> dict:
    return {"question": question, "choices": list(choices)}


@pytest.mark.long
@pytest.mark.parametrize("dataset", DATASETS)
def test_every_shared_dataset_is_read_rendered_and_graded(dataset: str):
    """Exceptions to "gold grades right": rows with duplicate options, which become error rows; none else."""
    if not SHARED.is_dir():
        pytest.skip(f"no shared data at {SHARED}")
    files = sorted(SHARED.glob(f"{dataset}_*.parquet"))
    num_rows = 0
    for file in files:
        errors: Counter[str] = Counter()
        for raw in pq.read_table(file).to_pylist():
            num_rows += 1
            try:
                seen = Mcqa().read(raw)
            except RowError as error:
                errors[error.kind] += 1
                with pytest.raises(RowError, match=error.kind):
                    Mcqa().gold(raw)
                continue
            gold = Mcqa().gold(raw)
            letters = LETTERS[: len(seen["choices"])]
            assert seen["choices"][letters.index(gold)] == raw["choices"][raw["answer"]].strip()
            for style, domain in DOMAINS.items():
                prompt = domain.prompt(seen)
                assert seen["question"] in prompt and prompt.endswith("\nAnswer:")
                listed = "\n".join(f"{at}. {text}" for at, text in zip(letters, seen["choices"], strict=True))
                assert (f"\n{listed}\nAnswer:" in prompt) == (style != "texts")
                labels = [domain.parse(domain.answer(letter, seen), seen) for letter in letters]
                assert labels == list(letters)
                assert [domain.is_correct(label, gold) for label in labels] == [letter == gold for letter in letters]
        wanted = DUPLICATES.get(file.stem, 0)
        assert errors == ({"duplicate_options": wanted} if wanted else {}), file.stem
    assert num_rows == ROWS[dataset]


@BY_FORM
def test_mcqa_reads_the_forms_in_which_the_datasets_are_published(raw: dict):
    domain = Mcqa()
    assert any(set(form) <= set(raw) for form in domain.forms)
    seen, gold = domain.read(raw), domain.gold(raw)
    assert list(seen) == domain.columns.names
    assert pa.table({name: [value] for name, value in seen.items()}, schema=domain.columns).to_pylist() == [seen]
    assert seen["choices"][LETTERS.index(gold)] == "plum" and {"chair", "Monday"} < set(seen["choices"])
    assert seen["question"] == ("Kit bit into a plum. " if "context" in raw else "") + RAW["question"]
    if "correct_answer" not in raw:  # the row's own order
        assert seen["choices"] == RAW["choices"] and gold == "B"


@BY_FORM
@pytest.mark.parametrize("padding", ["", " ", "\n"])
def test_mcqa_reads_every_form_through_parquet_with_blanks_at_the_ends(raw: dict, padding: str, tmp_path: Path):
    def padded(value):
        if isinstance(value, dict):
            return {name: padded(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [padded(inner) for inner in value]
        return f"{padding}{value}{padding}" if isinstance(value, str) else value

    pq.write_table(pa.Table.from_pylist([padded(raw)]), tmp_path / "rows.parquet")
    (back,) = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert Mcqa().read(back) == Mcqa().read(raw) and Mcqa().gold(back) == Mcqa().gold(raw)


@BY_FORM
def test_what_the_mcqa_pool_keeps_does_not_depend_on_the_answer(raw: dict):
    seen = Mcqa().read(raw)
    if "correct_answer" in raw:
        names = ["correct_answer", "distractor1", "distractor2", "distractor3"]
        for turn in range(4):
            turned = dict(zip(names, [raw[name] for name in names[turn:] + names[:turn]], strict=True))
            assert Mcqa().read(raw | turned) == seen
        return
    (name,) = {"answer", "answerKey", "label"} & set(raw)
    for answer in (None, "", 0, 2, "C", "9"):
        assert Mcqa().read(raw | {name: answer}) == seen
    assert Mcqa().read({key: value for key, value in raw.items() if key != name}) == seen
    for missing in ({name: None}, {name: ""}):
        assert Mcqa().gold(raw | missing) is None
    assert Mcqa().gold({key: value for key, value in raw.items() if key != name}) is None


def test_sciq_order_tells_nothing_of_the_gold_and_never_changes():
    def row(number: int) -> dict:
        words = [hashlib.md5(f"{number} {place}".encode()).hexdigest()[:6] for place in range(4)]
        names = ("correct_answer", "distractor1", "distractor2", "distractor3")
        return {"question": f"Question {number}?", **dict(zip(names, words, strict=True))}

    places = Counter(Mcqa().gold(row(number)) for number in range(4_000))
    assert sum((places[letter] - 1_000) ** 2 / 1_000 for letter in "ABCD") < 16.3  # chi-square, 3 df, p = .001
    same = Counter(Mcqa().gold(row(number) | {"correct_answer": "same"}) for number in range(1_000))
    assert max(same.values()) < 320  # nor does a word stand in one place
    assert "".join(Mcqa().gold(row(number)) for number in range(8)) == "CCCADCBD"  # in every process and version


def test_letter_prompt_of_mcqa():
    seen = Mcqa().read(RAW)
    assert Mcqa().prompt(seen) == "Which is a fruit?\nA. chair\nB. plum\nC. Monday\nAnswer:"
    assert Mcqa().options(seen) == (" A", " B", " C")
    shots = [example("fig", "lamp") | {"gold": "A"}, example("tin", "tea", "pear") | {"gold": "C"}]
    assert Mcqa().prompt(seen, shots=shots) == (
        "Which is a fruit?\nA. fig\nB. lamp\nAnswer: A\n\n"
        "Which is a fruit?\nA. tin\nB. tea\nC. pear\nAnswer: C\n\n"
        "Which is a fruit?\nA. chair\nB. plum\nC. Monday\nAnswer:"
    )


def test_text_prompt_of_mcqa():
    domain = DOMAINS["texts"]
    seen = domain.read(RAW)
    assert domain.prompt(seen) == "Question: Which is a fruit?\nAnswer:"
    assert domain.options(seen) == (" chair", " plum", " Monday")
    assert domain.prompt(seen, shots=[example("fig", "lamp") | {"gold": "A"}]) == (
        "Question: Which is a fruit?\nAnswer: fig\n\nQuestion: Which is a fruit?\nAnswer:"
    )


def test_generative_prompt_of_mcqa():
    domain = DOMAINS["generative"]
    seen = domain.read(RAW)
    assert domain.options(seen) is None
    assert domain.prompt(seen) == f"{INSTRUCTION}\n\n{Mcqa().prompt(seen)}"
    assert domain.prompt(seen, shots=[example("fig", "lamp") | {"gold": "A"}]) == (
        f"{INSTRUCTION}\n\nWhich is a fruit?\nA. fig\nB. lamp\nAnswer: The answer is (A).\n\n{Mcqa().prompt(seen)}"
    )


@STYLES
def test_mcqa_takes_two_to_eight_options(domain: Mcqa):
    for count in range(2, 9):
        raw = {"question": "q", "choices": [f"option {number}" for number in range(count)], "answer": count - 1}
        seen, gold = domain.read(raw), domain.gold(raw)
        assert gold == LETTERS[count - 1] and domain.parse(domain.answer(gold, seen), seen) == gold
        assert domain.options(seen) is None or len(set(domain.options(seen))) == count


@pytest.mark.parametrize(
    ("completion", "label"),
    [(" B", "B"), ("B", "B"), ("\n B \n", "B"), ("b", None), ("B.", None), ("D", None), ("A B", None), ("", None)],
)
def test_mcqa_letters_are_read(completion: str, label: str | None):
    assert Mcqa().parse(completion, example("chair", "plum", "Monday")) == label


@pytest.mark.parametrize(
    ("completion", "label"),
    [
        (" a red plum", "B"),
        ("a  red\n plum ", "B"),
        ("a Red plum", None),
        ("a red plum or so", None),
        ("B", None),
        ("AA", "C"),
        ("Aa", "D"),
        (" ", None),
    ],
)
def test_mcqa_texts_are_read(completion: str, label: str | None):
    assert DOMAINS["texts"].parse(completion, example("chair", "a red  plum", "AA", "Aa")) == label


@pytest.mark.parametrize(
    ("completion", "label"),
    [
        (" A plum grows on a tree. The answer is (B).", "B"),
        (" The answer is B.", "B"),
        (" the answer is: C", "C"),
        (" so THE ANSWER IS\n(B)", "B"),
        ("**The answer is: (A)**", "A"),
        ("The answer is **B**", "B"),
        ("The answer is B, as A is not", "B"),
        ("The answer is (A). No: a chair is no fruit. The answer is (B).", "B"),
        ("The answer is (B). The answer is (D).", None),  # no such option
        ("The answer is (X)", None),
        ("The answer is A matter of taste", None),
        ("The answer is (b)", None),
        ("The answer is plum", None),
        ("B", None),
        ("(B)", None),
        ("", None),
    ],
)
def test_mcqa_reasoning_ends_in_its_last_statement(completion: str, label: str | None):
    assert DOMAINS["generative"].parse(completion, example("chair", "plum", "Monday")) == label


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"choices": []}, "no_options"),
        ({"choices": ["plum"]}, "no_options"),
        ({"choices": "['plum', 'chair']"}, "no_options"),
        ({"choices": {"text": [], "label": []}}, "no_options"),
        ({"choices": [str(number) for number in range(9)]}, "too_many_options"),
        ({"choices": ["plum", "chair", "plum"]}, "duplicate_options"),
        ({"choices": ["a plum", "chair", " a  plum\n"]}, "duplicate_options"),
        ({"choices": ["plum", None]}, "null_field"),
        ({"choices": ["plum", "  "]}, "null_field"),
        ({"choices": ["plum", 7]}, "null_field"),
        ({"choices": None}, "null_field"),
        ({"choices": {"text": None, "label": None}}, "null_field"),
        ({"question": None}, "null_field"),
        ({"question": " \n"}, "null_field"),
    ],
)
def test_bad_mcqa_rows_are_refused(change: dict, kind: str):
    for method in (Mcqa().read, Mcqa().gold):
        with pytest.raises(RowError) as caught:
            method(RAW | change)
        assert caught.value.kind == kind


@pytest.mark.parametrize("name", ["correct_answer", "distractor2", "context", "answerC", "question_stem"])
def test_missing_text_of_an_mcqa_form_is_refused(name: str):
    raw = next(raw for raw in FORMS.values() if name in raw)
    with pytest.raises(RowError, match=f"null_field: {name}"):
        Mcqa().read(raw | {name: None})


def test_duplicate_mcqa_options_in_every_form():
    same = {"text": ["plum", "plum"], "label": ["A", "B"]}
    changes = {"arc": {"choices": same}, "openbookqa": {"choices": same}, "sciq": {"distractor2": "plum"}}
    for name, change in (changes | {"socialiqa": {"answerC": "chair"}}).items():
        with pytest.raises(RowError, match="duplicate_options"):
            Mcqa().read(FORMS[name] | change)


@pytest.mark.parametrize(
    ("form", "change"),
    [
        *(("shared", {"answer": answer}) for answer in (3, -1, 1.5, True, "D")),
        *(("arc", {"answerKey": key}) for key in ("D", "2", "b")),
        *(("arc, digits", {"answerKey": key}) for key in ("4", "0", "B")),
        ("arc", {"choices": {"text": RAW["choices"], "label": ["A", "B"]}}),
        ("arc", {"choices": {"text": RAW["choices"], "label": ["A", "B", "B"]}}),
        ("arc", {"choices": {"text": RAW["choices"], "label": None}}),
        *(("socialiqa", {"label": label}) for label in ("0", "4", "B")),
    ],
)
def test_mcqa_answers_out_of_range_are_refused_where_gold_is_read(form: str, change: dict):
    raw = FORMS[form] | change
    assert Mcqa().read(raw) == Mcqa().read(FORMS[form])
    with pytest.raises(RowError, match="bad_answer"):
        Mcqa().gold(raw)


@pytest.mark.parametrize("choices", [["chair", "plum"], {"text": ["chair", "plum"], "label": ["A", "B"]}])
@pytest.mark.parametrize("key", ["answer", "answerKey"])
def test_the_answer_of_listed_options_has_either_name(choices: object, key: str):
    assert Mcqa().gold({"question": "Which?", "choices": choices, key: "B"}) == "B"


@STYLES
def test_mcqa_labels_are_right_by_equality_and_difficulty_is_unknown(domain: Mcqa):
    assert domain.is_correct("A", "A") and not domain.is_correct("A", "B") and not domain.is_correct(None, "A")
    assert domain.difficulty(domain.read(RAW)) is None


def test_the_mcqa_domain_is_made_with_its_options():
    made = get_domain(DomainConfig.model_validate({"name": "mcqa", "option_style": "texts"}))
    assert isinstance(made, Mcqa) and made.options(made.read(RAW)) == (" chair", " plum", " Monday")
    for wrong in ({"option_style": "words"}, {"option_style": "texts", "generative": True}, {"style": "texts"}):
        with pytest.raises(ConfigError, match="style"):
            get_domain(DomainConfig.model_validate({"name": "mcqa"} | wrong))


def test_mcqa_vocabulary_spells_every_prompt_and_answer(tmp_path: Path):
    vocabulary = Mcqa().vocabulary()
    made = create(
        tmp_path,
        family="qwen3",
        shape={"hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8},
        words=vocabulary.words,
        pattern=vocabulary.pattern,
        seed=0,
    )
    tokenizer = load_tokenizer(made)
    for domain in DOMAINS.values():
        text = domain.prompt(domain.read(RAW)) + domain.answer("B", domain.read(RAW))
        ids = tokenizer(text)["input_ids"]
        assert len(ids) == len(text) and tokenizer.decode(ids) == text


def shipped(name: str) -> list[dict]:
    return [json.loads(line) for line in (ROOT / f"examples/data/{name}.jsonl").read_text().splitlines()]


def test_shipped_mcqa_rows_are_healthy_and_distinct():
    rows = shipped("mcqa")
    assert len(rows) == len({row["question"] for row in rows}) == 6_000
    assert {len(Mcqa().read(row)["choices"]) for row in rows} == {2, 3, 4}
    golds = Counter(Mcqa().gold(row) for row in rows)
    assert min(golds[letter] for letter in "ABCD") > 400


def test_shipped_mcqa_and_math_rows_are_what_the_script_makes():
    made = runpy.run_path(str(ROOT / "examples/make_rows.py"))
    named = {"mcqa": ("MCQA", "question"), "mcqa_other": ("MCQA_OTHER", "question"), "math": ("MATH", "problem")}
    for name, (kinds, key) in named.items():
        rows = shipped(name)
        assert rows == made["rows"](made[kinds], key, random.Random(made["SEED"]))
        assert len({row[key] for row in rows}) == len(rows)


def test_signs_that_are_not_seen_make_no_other_question():
    one = plain_identity("Which gas is lighter?", ["Helium", "Argon"])
    for text in (
        "Which\u200b gas is lighter?\ufeff",
        "Which gas is ligh\u00adter?",
        "WHICH gas is \u202alighter\u202c?",
    ):
        assert plain_identity(text, ["He\u200dlium", "ARGON"]) == one, text
    assert plain_identity("Which\u2009gas is lighter?", ["Helium", "Argon"]) == one  # a thin space is one
