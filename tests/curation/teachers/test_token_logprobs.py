"""Log-probabilities, margins and entropies of answers, against one plain forward of prompt and answer, float32."""

import numpy as np
import pytest
import torch
from scipy import special, stats

from curation.config import AskConfig, DecodingConfig, ModelConfig, TeacherConfig
from curation.models import load_model, load_tokenizer
from curation.tables.schemas import NUMBERS, TOKEN_LOGPROBS
from curation.teachers import Request, load_teacher
from curation.teachers.completions import AnsweredRow, OfTokens, completion_batch
from curation.teachers.logit_numbers import compute_float_numbers
from curation.teachers.scripted import OTHER_WORDS
from tests.curation.teachers.test_options import MEAN, SUM, char_model, mcqa_requests, reference, rows_of

K = 5
LOGPROBS = ("min_logprob", "first_logprob", "last_logprob")
OF_OPTIONS = ("option_share", "option_lead", "num_options")
OF_GENERATED = ("min_margin", "first_margin", "last_margin", "min_negentropy", "first_negentropy", "last_negentropy")
SURENESS = ("margin", "negentropy", *OF_OPTIONS, *OF_GENERATED)


@pytest.fixture(scope="module", params=["qwen3", "gpt2"])
def model_ref(request, tmp_path_factory):
    """A random model with a token per character, whose end token is drawn now and then."""
    path = tmp_path_factory.mktemp("models") / "m"
    model = load_model(char_model(path, request.param))
    with torch.no_grad():
        model.get_output_embeddings().weight[model.config.eos_token_id] *= 2
    model.save_pretrained(path)
    from curation.models import resolve

    return resolve(str(path))


def make(ref, **settings):
    settings = {"state_dtype": "float32", "batch_tokens": 400, "token_logprobs": K} | settings
    return load_teacher(TeacherConfig(model=ModelConfig(path=ref.base), **settings), ref)


def check(row, expected):
    """The first K, then zeros; float16 holds them to 2e-3 (below 8 in size, to 4e-3 above)."""
    assert len(row["token_logprobs"]) == K
    ends = [min(expected), expected[0], expected[-1]] if len(expected) else [None] * 3
    assert [row[name] for name in LOGPROBS] == [None if end is None else pytest.approx(end, abs=1e-4) for end in ends]
    padded = (list(expected) + [0.0] * K)[:K]
    np.testing.assert_allclose(row["token_logprobs"], padded, rtol=5e-4, atol=1e-4)
    if 0 < len(expected) <= K:
        assert np.mean(row["token_logprobs"][: len(expected)]) == pytest.approx(row["mean_logprob"], abs=2e-3)


def check_generated(row, logprob_TV):
    """Margin and entropy by the distributions that the answer's tokens came from, [T, V]."""
    assert [row[name] for name in OF_OPTIONS] == [None] * 3 and row["option_logprobs"] is None
    if not len(logprob_TV):
        assert [row[name] for name in SURENESS] == [None] * len(SURENESS)
        return
    best_TV = np.sort(np.asarray(logprob_TV, dtype=np.float64), axis=1)
    for name, values in {
        "margin": best_TV[:, -1] - best_TV[:, -2],
        "negentropy": -stats.entropy(np.exp(best_TV), axis=1),
    }.items():
        found = [row[name], row[f"min_{name}"], row[f"first_{name}"], row[f"last_{name}"]]
        np.testing.assert_allclose(found, [values.mean(), values.min(), values[0], values[-1]], atol=1e-4)


def check_options(row, scores):
    """Margin, entropy and share by the scores that chose among the options."""
    assert [row[name] for name in OF_GENERATED] == [None] * 6
    ascending, shares = np.sort(scores), special.softmax(scores)
    if len(scores) == 1:
        assert row["margin"] is None
    else:
        assert row["margin"] == pytest.approx(ascending[-1] - ascending[-2], abs=1e-4)
    expected = [-stats.entropy(shares), shares.max(), max(scores) - np.mean(scores), len(scores)]
    np.testing.assert_allclose([row["negentropy"], *(row[name] for name in OF_OPTIONS)], expected, atol=1e-4)


@pytest.mark.parametrize("stop", [(), ("e",), ("r t", "n o", " a")])
def test_of_answers_equal_plain_transformers(model_ref, stop):
    """Answers that end by the end token, by a stop string and by length, shorter and longer than K."""
    prompts = [request.prompt + more for request in mcqa_requests("texts") for more in ("", " or", " a", " the")]
    requests = [Request(row_id=place, prompt=prompt) for place, prompt in enumerate(prompts)]
    rows = rows_of(make(model_ref).label(requests, DecodingConfig(max_tokens=8, stop=stop), seed=0))
    model, tokenizer = load_model(model_ref), load_tokenizer(model_ref)
    lengths = set()
    for request in requests:
        prompt, answer = tokenizer(request.prompt)["input_ids"], []
        with torch.inference_mode():
            for _ in range(rows[request.row_id]["num_output_tokens"]):
                answer.append(int(model(torch.tensor([prompt + answer])).logits[0, -1].argmax()))
            logprob_TV = model(torch.tensor([prompt + answer]), use_cache=False).logits[0].log_softmax(-1)
        expected = [float(logprob_TV[len(prompt) + place - 1, token]) for place, token in enumerate(answer)]
        check(rows[request.row_id], expected)
        check_generated(rows[request.row_id], logprob_TV[len(prompt) - 1 : len(prompt) - 1 + len(answer)])
        lengths.add(len(answer))
    assert 0 < min(lengths - {0}) < K < max(lengths) or stop


@pytest.mark.parametrize(("style", "decoding"), [("letters", SUM), ("texts", SUM), ("texts", MEAN)])
def test_of_the_chosen_option_equal_plain_transformers(model_ref, style, decoding):
    requests = mcqa_requests(style)
    rows = rows_of(make(model_ref, states=("prompt_last",)).label(requests, decoding, seed=0))
    model, tokenizer = load_model(model_ref), load_tokenizer(model_ref)
    for request in requests:
        row = rows[request.row_id]
        check(row, reference(model, tokenizer, request.prompt, row["completion"])[0])
        by_option = [reference(model, tokenizer, request.prompt, option)[0] for option in request.options]
        check_options(row, [np.mean(of) if decoding.normalise_options else np.sum(of) for of in by_option])
        if not decoding.normalise_options:
            check_options(row, row["option_logprobs"])


def test_of_one_option_there_is_no_margin(model_ref):
    """Of two that are equal it is 0; one is certain among itself."""
    requests = [Request(row_id=k, prompt="Why?", options=(" no",) * k) for k in (1, 2)]
    rows = rows_of(make(model_ref).label(requests, SUM, seed=0))
    assert (rows[1]["margin"], rows[1]["negentropy"], rows[1]["option_share"], rows[1]["option_lead"]) == (
        None,
        0,
        1,
        0,
    )
    for row in rows.values():
        check_options(row, row["option_logprobs"])
    assert rows[2]["margin"] == 0 and rows[2]["option_share"] == 0.5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_of_stepwise_answers_are_over_the_whole_vocabulary(model_ref, temperature):
    """Presence penalty and temperature, too, leave the distribution the model's own."""
    decoding = DecodingConfig(constrained="stepwise", presence_penalty=1.5, temperature=temperature)
    requests = [
        Request(row_id=request.row_id, prompt=request.prompt, options=request.options, stepwise=True)
        for request in mcqa_requests("texts")
    ]
    rows = rows_of(make(model_ref).label(requests, decoding, seed=0))
    model, tokenizer = load_model(model_ref), load_tokenizer(model_ref)
    for request in requests:
        row = rows[request.row_id]
        prompt = tokenizer(request.prompt)["input_ids"]
        ids = tokenizer(request.prompt + row["completion"])["input_ids"]
        with torch.inference_mode():
            logprob_TV = model(torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        check(row, [float(logprob_TV[place, token]) for place, token in enumerate(ids[len(prompt) :])])
        check_generated(row, logprob_TV)


def test_a_token_without_any_probability_has_no_part_in_the_entropy():
    logits_BV = torch.tensor([[1.0, -torch.inf, 0.0, 3.0], [2.0, 2.0, -torch.inf, -torch.inf]])
    found_B2 = compute_float_numbers(logits_BV, torch.tensor([3, 0]))[:, 2:]
    expected = [[2.0, -stats.entropy(special.softmax([1.0, 0.0, 3.0]))], [0.0, -np.log(2)]]
    np.testing.assert_allclose(found_B2, expected, atol=1e-6)


def test_logits_that_overflowed_have_no_entropy_instead_of_that_of_a_sure_word():
    logits_BV = torch.tensor([[1.0, torch.nan, 0.0], [1.0, torch.inf, 0.0]])
    assert torch.isnan(compute_float_numbers(logits_BV, torch.tensor([0, 0]))[:, 3]).all()


def test_error_rows_have_none_and_without_a_number_of_tokens_there_are_no_lists(model_ref):
    requests = [*mcqa_requests("letters"), Request(row_id=-1, prompt="", options=("a", "b"))]
    free = {1000 + place: letter for place, letter in enumerate("abcdefghijkl")}
    requests += [Request(row_id=row_id, prompt=f"{letter}?") for row_id, letter in free.items()]
    rows = rows_of(make(model_ref).label(requests, DecodingConfig(max_tokens=3), seed=0))
    assert rows[-1]["error"] is not None
    names = [*NUMBERS, TOKEN_LOGPROBS]
    assert [rows[-1][name] for name in names] == [None] * len(names)
    # An answer that begins with the end token has no tokens, and no numbers of them.
    answered = [row_id for row_id in free if rows[row_id]["num_output_tokens"]]
    assert answered and all(rows[row_id]["min_logprob"] < 0 for row_id in answered)
    bare = make(model_ref).asked(make(model_ref)._config.model_copy(update=AskConfig.BARE))
    for teacher, how in ((make(model_ref), {"states": False}), (make(model_ref, token_logprobs=0), {}), (bare, {})):
        batches = list(teacher.label(requests, DecodingConfig(max_tokens=3), seed=0, **how))
        assert all(TOKEN_LOGPROBS not in batch.schema.names for batch in batches)
        for row_id, row in rows_of(batches).items():
            assert [row[name] for name in NUMBERS] == [rows[row_id][name] for name in NUMBERS]


def test_the_scripted_teacher_gives_its_mean_for_each_word():
    teacher = load_teacher(TeacherConfig(backend="scripted", token_logprobs=3), None)
    rows = rows_of(teacher.label([Request(row_id=1, prompt="Which?", options=(" a b",) * 2)], SUM, seed=0))
    mean = rows[1]["mean_logprob"]
    np.testing.assert_allclose(rows[1]["token_logprobs"], [mean, mean, 0], rtol=1e-3)
    assert [rows[1][name] for name in LOGPROBS] == [mean] * 3


@pytest.mark.parametrize("decoding", [SUM, MEAN])
def test_the_scripted_teachers_numbers_agree_with_each_other(decoding):
    """Options of one and several words, chosen by the scores; answers by a vocabulary where the others share alike."""
    options = [(" a b", " c", " d e f"), (" a",), (" c d", " c d")]
    requests = [Request(row_id=k, prompt="Which?", options=options[k % 3]) for k in range(30)]
    requests += [Request(row_id=k, prompt="Why?") for k in range(30, 60)]
    requests += [Request(row_id=k, prompt="Why?", options=options[0], stepwise=True) for k in range(60, 70)]
    scripted = {"completions": (" x", " x y", ""), "error_rows": (3, 33)}
    teacher = load_teacher(TeacherConfig(backend="scripted", scripted=scripted), None)
    rows = rows_of(teacher.label(requests, decoding, seed=0))
    for request in requests:
        row = rows[request.row_id]
        if row["error"] is not None:
            assert [row[name] for name in SURENESS] == [None] * len(SURENESS)
        elif request.is_drawn:
            logprob_V = np.full(OTHER_WORDS + 1, np.log(-np.expm1(row["mean_logprob"]) / OTHER_WORDS))
            logprob_V[0] = row["mean_logprob"]
            check_generated(row, [logprob_V] * row["num_output_tokens"])
        else:
            words = [len(option.split()) for option in request.options]
            scores = np.divide(row["option_logprobs"], words if decoding.normalise_options else 1)
            check_options(row, scores)
            assert row["completion"] == request.options[int(np.argmax(scores))] or len({*request.options}) == 1
    assert {rows[3]["error"], rows[33]["error"]} == {"scripted: asked for"}
    assert any(row["num_output_tokens"] == 0 for row in rows.values())


def test_tokens_in_the_middle_may_be_left_out_but_for_the_least():
    def batch(*of_first):
        first = AnsweredRow(1, "a", 1, 5, False, mean_logprob=-1.0, token_logprobs=of_first)
        rows = [first, AnsweredRow(2, "", 1, 0, False), AnsweredRow(3, error="bad: x")]
        return completion_batch(rows, states={}, state_dtype="float16", num_token_logprobs=2)

    found = batch(-1.0, -2.0, -4.0, -0.5)
    assert found.equals(batch(-1.0, -2.0, -3.0, -4.0, -0.5))
    assert [found.column(name).to_pylist() for name in LOGPROBS] == [
        [-4.0, None, None],
        [-1.0, None, None],
        [-0.5, None, None],
    ]
    assert batch().column("min_logprob").null_count == 3


def test_what_is_not_given_is_null_and_options_go_before_an_answers_numbers():
    """So a backend of a user's own needs no margins; those of rows with options are not read."""
    drawn = AnsweredRow(1, "a", 1, 2, False, mean_logprob=-1.0)
    chosen = AnsweredRow(2, "b", 1, 1, False, mean_logprob=-2.0, option_logprobs=[-2.0, -3.0])

    def batch(**sureness):
        rows = [drawn._replace(**sureness), chosen._replace(**sureness)]
        return completion_batch(rows, states={}, state_dtype="float16").to_pylist()

    bare = batch()
    assert [bare[0][name] for name in (*LOGPROBS, *SURENESS)] == [None] * (3 + len(SURENESS))
    check_options(bare[1], [-2.0, -3.0])
    full = batch(margins=OfTokens.of([1.0, 3.0]))
    assert [full[0][name] for name in ("margin", "min_margin", "first_margin", "last_margin")] == [2.0, 1.0, 1.0, 3.0]
    assert full[1] == bare[1] and full[0]["negentropy"] is None
