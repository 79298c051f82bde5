"""Signals asked of real and scripted teachers, against transformers and against what the teachers themselves say."""

from collections.abc import Mapping
from typing import Any

import chess
import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

from curation.config import DecodingConfig, ModelConfig, ScriptedConfig, TeacherConfig
from curation.domains.chess import Chess
from curation.domains.math import Math
from curation.domains.mcqa import Mcqa
from curation.errors import RowError
from curation.hashing import derive
from curation.models import create, load_model, load_tokenizer
from curation.refs import ModelRef
from curation.signals import SIGNALS, Answer, Row, Weak, get_signal, label_request, measure
from curation.signals.methods import VERDICT_QUESTION, VERDICTS, SelfConsistency
from curation.signals.verbalized import QUESTION
from curation.teachers import Teacher, load_teacher

GREEDY = DecodingConfig(max_tokens=6)
SHOTS = [
    {"question": "Which of these flies?", "choices": ["a stone", "a lark"], "gold": "B"},
    {"question": "Which is a colour?", "choices": ["blue", "seven", "loud"], "gold": "A"},
]
QUESTIONS = [
    {"question": "Which is a fruit?", "choices": ["pear", "rope", "wool", "a brick"]},
    {"question": "What melts in the sun?", "choices": ["snow", "iron"]},
    {"question": "Who plays the violin in an orchestra?", "choices": ["a violinist", "a pilot", "no one"]},
    {"question": "Where do fish live?", "choices": ["in water", "in trees", "in books"]},
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[ModelRef]:
    """Two random models of one token a character."""
    vocabulary = Mcqa().vocabulary()
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    shape |= {"head_dim": 16, "intermediate_size": 64, "max_position_embeddings": 512}
    root = tmp_path_factory.mktemp("models")
    return [
        create(
            root / str(seed), family="qwen3", shape=shape, words=vocabulary.words, pattern=vocabulary.pattern, seed=seed
        )
        for seed in (1, 2)
    ]


@pytest.fixture(scope="module")
def teachers(models: list[ModelRef]) -> list[Teacher]:
    return [load_teacher(TeacherConfig(model=ModelConfig(path=ref.base), batch_tokens=2000), ref) for ref in models]


def scripted(*completions: str, **settings: Any) -> Teacher:
    script = ScriptedConfig(completions=completions, **settings)
    return load_teacher(TeacherConfig(backend="scripted", scripted=script), None)


def labelled(
    domain: Any, teacher: Teacher, examples: list[Mapping[str, Any]], seed: int = 0
) -> dict[int, Mapping[str, Any]]:
    requests = [label_request(domain, 5 * place, example) for place, example in enumerate(examples)]
    return {row["row_id"]: row for batch in teacher.label(requests, GREEDY, seed=seed) for row in batch.to_pylist()}


def weak_rows(domain: Any, teacher: Teacher, examples: list[Mapping[str, Any]]) -> list[Row]:
    rows = []
    for row_id, row in sorted(labelled(domain, teacher, examples).items()):
        example = examples[row_id // 5]
        label = domain.parse(row["completion"], example)
        rows.append((row_id, example, Weak(label=label, completion=row["completion"])))
    return rows


def logprobs(ref: ModelRef, prompt: str, completion: str) -> np.ndarray:
    """The log-probability of each token of a completion, from one plain pass over the whole text."""
    model, tokenizer = load_model(ref), load_tokenizer(ref)
    ids, start = tokenizer(prompt + completion)["input_ids"], len(tokenizer(prompt)["input_ids"])
    with torch.inference_mode():
        logits_TV = model(torch.tensor([ids])).logits[0].numpy()
    return log_softmax(logits_TV, axis=-1)[range(start - 1, len(ids) - 1), ids[start:]]


def test_each_signal_is_registered_under_its_column() -> None:
    options = {"icl_mean_logprob": {"shots": SHOTS}}
    assert {name: get_signal(name, **options.get(name, {})).name for name in SIGNALS} == {
        name: name for name in SIGNALS
    }


@pytest.mark.parametrize("style", ["letters", "texts"])
def test_icl_is_the_answers_mean_logprob_after_the_demonstrations(
    style: str, models: list[ModelRef], teachers: list[Teacher]
) -> None:
    domain = Mcqa(option_style=style)
    rows = weak_rows(domain, teachers[0], QUESTIONS)
    values = measure(get_signal("icl_mean_logprob", shots=SHOTS), domain, teachers[0], rows, GREEDY, seed=3)
    for row_id, example, weak in rows:
        prompt = domain.prompt(example, shots=SHOTS)
        assert all(f"{shot['question']}" in prompt for shot in SHOTS)
        assert values[row_id] == pytest.approx(logprobs(models[0], prompt, weak.completion).mean(), abs=1e-5)


def test_icl_scores_written_answers_but_no_empty_one(models: list[ModelRef], teachers: list[Teacher]) -> None:
    domain = Mcqa(generative=True)
    answers = [" Ropes do not grow. The answer is (A).", "", " It", " x" * 400]
    rows = [(i, QUESTIONS[i], Weak(label="A", completion=answers[i])) for i in range(4)]
    values = measure(get_signal("icl_mean_logprob", shots=SHOTS), domain, teachers[0], rows, GREEDY, seed=0)
    for i in (0, 2):
        expected = logprobs(models[0], domain.prompt(QUESTIONS[i], shots=SHOTS), answers[i]).mean()
        assert values[i] == pytest.approx(expected, abs=1e-5)
    assert values[1] is None
    assert values[3] is None  # beyond the model's context


def test_ensemble_is_whether_two_teachers_agree(teachers: list[Teacher]) -> None:
    domain, examples = Mcqa(option_style="texts"), QUESTIONS * 3
    rows = weak_rows(domain, teachers[0], examples)
    signal = get_signal("ensemble_agreement")
    assert set(measure(signal, domain, teachers[0], rows, GREEDY, seed=0).values()) == {1.0}
    second = labelled(domain, teachers[1], examples)
    agree = {row_id: float(second[row_id]["completion"] == weak.completion) for row_id, _, weak in rows}
    assert measure(signal, domain, teachers[1], rows, GREEDY, seed=0) == agree
    assert set(agree.values()) == {0.0, 1.0}


def test_ensemble_takes_an_unreadable_label_for_disagreement(puzzles: list[dict[str, Any]]) -> None:
    domain = Chess()
    rows = [(i, domain.read(raw), Weak(label="e2e4", completion=" e2e4")) for i, raw in enumerate(puzzles[:4])]
    assert set(measure(get_signal("ensemble_agreement"), domain, scripted(" ?"), rows, GREEDY, seed=0).values()) == {
        0.0
    }


def test_self_consistency_is_the_share_of_samples(puzzles: list[dict[str, Any]]) -> None:
    domain = Chess()
    example = domain.read(puzzles[0])
    gold = str(domain.gold(puzzles[0]))
    other = next(move.uci() for move in chess.Board(example["fen"]).legal_moves if move.uci() != gold)
    teacher = scripted(f" {gold}", f" {other}", " ?")
    rows = [(i, example, Weak(label=gold, completion=f" {gold}")) for i in range(60)]
    values = measure(get_signal("self_consistency", num_samples=5), domain, teacher, rows, GREEDY, seed=4)
    requests = [label_request(domain, row_id, example) for row_id, _, _ in rows]
    hits = dict.fromkeys(range(60), 0)
    for turn in range(5):
        for batch in teacher.label(requests, GREEDY, seed=derive(4, f"self_consistency/{turn}")):
            for row in batch.to_pylist():
                hits[row["row_id"]] += row["completion"] == f" {gold}"
    assert values == {row_id: hit / 5 for row_id, hit in hits.items()}
    assert 0.25 < np.mean(list(values.values())) < 0.42 and len(set(values.values())) > 3


def test_self_consistency_samples_at_its_temperature_with_a_seed_a_sample(teachers: list[Teacher]) -> None:
    drawn: list[list[str]] = []

    class Kept(SelfConsistency):
        def value(self, domain: Any, example: Any, weak: Any, answers: Any) -> float | None:
            drawn.append([answer.completion for answer in answers])
            return super().value(domain, example, weak, answers)

    signal = Kept(num_samples=3, temperature=5.0)
    assert signal.decoding(DecodingConfig(top_k=9)) == DecodingConfig(top_k=9, temperature=5.0)
    rows = [(i, QUESTIONS[0], Weak(label="A", completion=" The answer is (A).")) for i in range(4)]
    values = measure(signal, Mcqa(generative=True), teachers[0], rows, GREEDY, seed=0)
    assert len(drawn) == 4 and all(len(set(texts)) == 3 for texts in drawn)
    assert set(values.values()) == {0.0}


@pytest.mark.parametrize("normalise", [False, True])
def test_self_consistency_of_scored_options_is_the_chosen_ones_probability(
    normalise: bool, models: list[ModelRef], teachers: list[Teacher]
) -> None:
    domain = Mcqa(option_style="texts")
    rows = weak_rows(domain, teachers[0], QUESTIONS)
    decoding = GREEDY.model_copy(update={"normalise_options": normalise})
    values = measure(get_signal("self_consistency"), domain, teachers[0], rows, decoding, seed=0)
    for row_id, example, weak in rows:
        options = domain.options(example) or ()
        sums = [logprobs(models[0], domain.prompt(example), option).sum() for option in options]
        assert values[row_id] == pytest.approx(softmax(np.array(sums) / 0.7)[options.index(weak.completion)], abs=1e-5)


def test_a_verifier_gives_the_log_odds_of_its_verdict(models: list[ModelRef], teachers: list[Teacher]) -> None:
    domain = Mcqa()
    rows = weak_rows(domain, teachers[0], QUESTIONS)
    values = measure(get_signal("reward"), domain, teachers[1], rows, GREEDY, seed=0)
    for row_id, example, weak in rows:
        prompt = domain.prompt(example) + weak.completion + VERDICT_QUESTION
        sums = [logprobs(models[1], prompt, verdict).sum() for verdict in VERDICTS]
        probability = 1 / (1 + np.exp(-np.float64(values[row_id])))
        assert probability == pytest.approx(softmax(sums)[0], abs=1e-5)


def test_verbalized_confidence_is_asked_of_prompt_and_answer() -> None:
    domain, signal = Mcqa(), get_signal("verbalized_confidence")
    weak = Weak(label="A", completion=" A")
    (request,) = signal.requests(domain, 7, QUESTIONS[0], weak)
    assert request.row_id == 7 and request.options is None
    assert request.prompt == domain.prompt(QUESTIONS[0]) + " A" + QUESTION
    rows = [(i, QUESTIONS[i % 4], weak) for i in range(40)]
    values = measure(signal, domain, scripted(" 85%", " Very low.", " banana"), rows, GREEDY, seed=0)
    assert set(values.values()) == {0.85, 0.5 - 0.4, None}
    assert signal.decoding(DecodingConfig(temperature=1.0, max_tokens=4096)) == DecodingConfig(max_tokens=16)


class Touchy(Mcqa):
    """Refuses some rows in the ways in which users' code does."""

    def prompt(self, example: Any, **settings: Any) -> str:
        if example["question"].startswith("Where"):
            raise RowError("bad_row: asked for")
        return super().prompt(example, **settings)

    def parse(self, completion: str, example: Any) -> str | None:
        if example["question"].startswith("Who"):
            raise SystemExit("asked for")
        return super().parse(completion, example)


def test_rows_that_cannot_be_asked_answered_or_read_have_none() -> None:
    weak = Weak(label="A", completion=" A")
    rows = [(i, example, weak) for i, example in enumerate(QUESTIONS)]
    rows += [(8, QUESTIONS[0], Weak(label=None, completion=" ?")), (9, QUESTIONS[0], weak)]
    teacher = scripted(" A", error_rows=(9,))
    values = measure(get_signal("ensemble_agreement"), Touchy(), teacher, rows, GREEDY, seed=0)
    assert {row_id for row_id, value in values.items() if value is None} == {
        3,
        8,
        9,
    }  # what cannot be parsed agrees with none
    assert set(values) == {0, 1, 2, 3, 8, 9} and values[2] == 0
    assert measure(get_signal("ensemble_agreement"), Touchy(), teacher, [], GREEDY, seed=0) == {}


def test_a_number_that_is_not_finite_is_none() -> None:
    signal = get_signal("verbalized_confidence")
    signal.value = lambda *arguments: float("nan")  # type: ignore[method-assign]
    rows = [(0, QUESTIONS[0], Weak(label="A", completion=" A"))]
    assert measure(signal, Mcqa(), scripted(" 85%"), rows, GREEDY, seed=0) == {0: None}


def test_a_judge_is_shown_what_an_unparsed_row_wrote_last() -> None:
    judge, domain = get_signal("judge"), Math()
    example = {"problem": "What is 2 + 3?", "difficulty": None, "gold": "5"}
    written = "A first line.\n" * 100 + "So the sum is five.\n"
    (request,) = judge.requests(domain, 7, example, Weak(label=None, completion=written))
    assert request.prompt.startswith(domain.prompt(example)) and "Reference answer: 5\n" in request.prompt
    assert "End of the student's solution:" in request.prompt and "So the sum is five.\n" in request.prompt
    assert 10 < request.prompt.count("A first line.") < 50 and "None" not in request.prompt
    assert judge.requests(domain, 7, example, Weak(label=None, completion=" \n")) == []  # nothing to judge
    (request,) = judge.requests(domain, 7, example, Weak(label="6", completion=written))
    assert "Student's answer: 6" in request.prompt and "five" not in request.prompt


@pytest.mark.parametrize("reply, value", [
    ("## Equivalence Judgement\nTRUE\n\n## Justification\nIt would be false to say that they differ.", 1.0),
    ("## Equivalence Judgement\n**FALSE**\n\n## Justification\nThe reference is true.", 0.0),
    ("Is it true? I begin with Equivalence Judgement: TRUE. No.\nEquivalence Judgement: FALSE", 0.0),
    ("Equivalence Judgment: true", 1.0),
    ("TRUE", 1.0), ("They agree, so it is false.", 0.0), ("true or false?", None), ("untrue", None), ("", None),
])  # fmt: skip
def test_a_judges_verdict_is_that_of_its_field(reply: str, value: float | None) -> None:
    answer = Answer(completion=reply, mean_logprob=None, option_logprobs=None)
    assert get_signal("judge").value(Math(), {}, Weak(label="1", completion="1"), [answer]) == value


def test_only_a_judge_is_asked_of_unparsed_rows() -> None:
    example = {"problem": "What is 2 + 3?", "difficulty": None, "gold": "5"}
    rows: list[Row] = [(n, example, Weak(label=label, completion="five")) for n, label in enumerate(("5", None))]
    found = {
        name: measure(get_signal(name), Math(), scripted(" 80% TRUE"), rows, GREEDY, seed=1)
        for name in ("judge", "verbalized_confidence")
    }
    assert found == {"judge": {0: 1.0, 1: 1.0}, "verbalized_confidence": {0: 0.8, 1: None}}
