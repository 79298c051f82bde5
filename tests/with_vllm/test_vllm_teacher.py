"""The vLLM teacher against the transformers teacher, row by row, in float32."""

import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from curation.config import DecodingConfig
from curation.tables.schemas import NUMBERS, TOKEN_LOGPROBS
from curation.teachers import Request, load_teacher, vllm_tap
from curation.teachers import vllm as vllm_teacher
from curation.teachers.transformers import compute_distribution
from tests.with_vllm.conftest import STATES, start, teacher_config

TIE = 1e-4


def rows_of(batches):
    rows = {}
    for batch in batches:
        for row in batch.to_pylist():
            assert row["row_id"] not in rows, "a row came twice"
            rows[row["row_id"]] = row
    return rows


def gap(reference, row, prompt, answer):
    """Between the two best tokens at the first token in which two answers may differ: the least along this answer."""
    tokens = reference._tokenizer(prompt)["input_ids"]
    ids = tokens + reference._tokenizer(answer)["input_ids"]
    with torch.inference_mode():
        logits_TV = reference._model(torch.tensor([ids])).logits[0, len(tokens) - 1 :]
    best_T2 = logits_TV.topk(2, dim=-1).values
    return float((best_T2[:, 0] - best_T2[:, 1]).min())


def check(rows, expected, requests, reference, *, max_ties=2):
    """Equal rows but for ties; what differs most of log-probabilities and states."""
    assert set(rows) == set(expected) == {request.row_id for request in requests}
    ties = 0
    worst = {}
    for request in requests:
        row, other = rows[request.row_id], expected[request.row_id]
        if row["completion"] != other["completion"]:
            assert gap(reference, row, request.prompt, other["completion"]) < TIE, (row, other)
            ties += 1
            continue
        for name, value in other.items():
            if name.startswith("state_") or name in ("option_logprobs", TOKEN_LOGPROBS, *NUMBERS):
                assert (row[name] is None) == (value is None), (name, row)
                if value is not None:
                    atol = 8e-3 if name == TOKEN_LOGPROBS else 1e-4  # float16, to a unit in the last place of 8 to 16
                    np.testing.assert_allclose(row[name], value, rtol=0, atol=atol, err_msg=f"{name} {row['row_id']}")
                    difference = np.abs(np.subtract(row[name], value, dtype=np.float64)).max()
                    worst[name] = max(worst.get(name, 0.0), float(difference))
            else:
                assert row[name] == value, (name, row, other)
    assert ties <= max_ties
    print(f"{len(requests)} rows, {ties} ties, worst: {worst}")
    return worst


def spy(monkeypatch, owner, name):
    """A list that grows with each call of a method."""
    method, calls = getattr(owner, name), []

    def called(*args, **kwargs):
        calls.append((*args, *kwargs.values()))
        return method(*args, **kwargs)

    monkeypatch.setattr(owner, name, called)
    return calls


def both(teacher, reference, requests, decoding, seed=0, **settings):
    rows = rows_of(teacher.label(requests, decoding, seed=seed))
    expected = rows_of(reference.label(requests, decoding, seed=seed))
    check(rows, expected, requests, reference, **settings)
    return rows


@pytest.mark.parametrize("max_tokens", [1, 7, 40])
def test_answers_by_stop_token_and_by_length_equal_transformers(teacher, reference, requests, max_tokens):
    rows = both(teacher, reference, requests, DecodingConfig(max_tokens=max_tokens))
    assert {row["truncated"] for row in rows.values()} == {True, False}
    assert len({row["num_prompt_tokens"] for row in rows.values()}) > 10
    if max_tokens == 7:
        assert {row["num_output_tokens"] for row in rows.values()} >= {0, 1, 2, 6, 7}, "empty ones, and of every kind"
    assert teacher.engine.num_held() == teacher.engine.num_unfinished == 0


def test_prompts_in_the_prefix_cache_and_twice_in_flight(teacher, reference, requests):
    few = requests[:40]
    again = [Request(row_id=10_000 + r.row_id, prompt=r.prompt) for r in few]
    rows = both(teacher, reference, few + again, DecodingConfig(max_tokens=5))
    for request in few:
        assert rows[request.row_id]["completion"] == rows[10_000 + request.row_id]["completion"]


@pytest.mark.parametrize("stop", [("Bishop",), ("ishop", "ook"), ("1 ", "6"), ("e1\nf",)])
def test_stop_strings_cut_text_tokens_and_states(teacher, reference, requests, stop, monkeypatch):
    """Also where the string begins inside the last token: that token counts, and its state is fed by itself."""
    alone = spy(monkeypatch, vllm_teacher._Stream, "_complete")
    rows = both(teacher, reference, requests[:100], DecodingConfig(max_tokens=12, stop=stop))
    assert not any(end in row["completion"] for row in rows.values() for end in stop)
    assert (len(alone) > 3) == (stop != ("e1\nf",)), "this one never occurs: rows end by token and length"


@pytest.mark.parametrize("width", [7, 40])
def test_stop_strings_of_several_tokens(teacher, reference, requests, width, monkeypatch):
    """Tokens of the string do not count; one so long that the tap forgot the answer's end has the answer fed again."""
    few = requests[:60]
    free = rows_of(reference.label(few, DecodingConfig(max_tokens=30, stop=()), seed=0))
    long = [text for row in free.values() if len(text := row["completion"]) > width + 12]
    scored = spy(monkeypatch, vllm_teacher._Stream, "_score")
    stop = tuple(text[9 : 9 + width] for text in long[:12])
    rows = both(teacher, reference, few, DecodingConfig(max_tokens=30, stop=stop))
    assert sum(row["completion"] != free[i]["completion"] for i, row in rows.items()) >= 8
    assert bool(scored) == (width == 40)


def test_presence_penalty_leaves_the_log_probabilities_the_models_own(teacher, reference, requests):
    both(teacher, reference, requests[:60], DecodingConfig(max_tokens=10, presence_penalty=1.5))


def test_samples_depend_on_seed_and_row_alone(teacher, requests):
    """n = 4 samples, each also with other rows beside it, in another order and in another batch."""
    few = requests[:30]
    decoding = DecodingConfig(max_tokens=8, temperature=1.2, top_p=0.95, top_k=40, min_p=0.01)

    def texts(some, seed):
        return {i: row["completion"] for i, row in rows_of(teacher.label(some, decoding, seed=seed)).items()}

    samples = [texts(few, seed) for seed in range(4)]
    for seed, sample in enumerate(samples):
        assert texts(few[::-1] + requests[30:60], seed).items() >= sample.items()
        alone = few[7]
        assert texts([alone], seed) == {alone.row_id: sample[alone.row_id]}
    assert sum(len({sample[r.row_id] for sample in samples}) > 1 for r in few) > 25


def test_sampled_answers_have_the_log_probabilities_and_states_of_a_plain_forward(teacher, reference, requests):
    few = requests[:40]
    decoding = DecodingConfig(max_tokens=9, temperature=1.0, top_k=20, presence_penalty=0.7)
    rows = rows_of(teacher.label(few, decoding, seed=5))
    tokenizer, plain = reference._tokenizer, reference._model
    for request in few:
        row = rows[request.row_id]
        prompt, answer = tokenizer(request.prompt)["input_ids"], tokenizer(row["completion"])["input_ids"]
        if len(answer) != row["num_output_tokens"]:
            continue  # an unknown or special token, which the text leaves out
        with torch.inference_mode():
            full = plain(torch.tensor([prompt + answer]), output_hidden_states=True)
        logprob_TV, hidden_TD = full.logits[0].log_softmax(-1), full.hidden_states[-1][0].numpy()
        chosen = [float(logprob_TV[len(prompt) - 1 + k, token]) for k, token in enumerate(answer)]
        if answer:
            assert row["mean_logprob"] == pytest.approx(np.mean(chosen), abs=1e-4)
        np.testing.assert_allclose(row["state_output_last"], hidden_TD[-1], atol=1e-4)
        mean_D = hidden_TD[len(prompt) :].mean(axis=0) if answer else hidden_TD[-1]
        np.testing.assert_allclose(row["state_output_mean"], mean_D, atol=1e-4)


def test_samples_follow_the_distribution(teacher, reference, requests):
    """First tokens of 1,500 samples of one prompt against the transformers teacher's probabilities."""
    decoding = DecodingConfig(max_tokens=1, stop=(), temperature=0.8, top_k=6, min_p=0.05)
    num_rows = 1_500
    prompt = requests[0].prompt
    same = [Request(row_id=k, prompt=prompt) for k in range(num_rows)]
    rows = rows_of(teacher.label(same, decoding, seed=11))
    tokens = torch.tensor([reference._tokenizer(prompt)["input_ids"]])
    with torch.inference_mode():
        probs_V = compute_distribution(reference._model(tokens).logits[0, -1:].float(), decoding)[0].double()
    texts = [row["completion"] for row in rows.values()]
    statistic, kinds = 0.0, 0
    for token in probs_V.nonzero()[:, 0].tolist():
        text = reference._tokenizer.decode([token], skip_special_tokens=True)
        share = float(probs_V[token])
        statistic += (texts.count(text) - num_rows * share) ** 2 / (num_rows * share)
        kinds += 1
    assert set(texts) <= {
        reference._tokenizer.decode([t], skip_special_tokens=True) for t in probs_V.nonzero()[:, 0].tolist()
    }
    assert kinds >= 3
    assert statistic < 30, "chi-square of at most 5 degrees of freedom: 30 is beyond one in 60,000"


def with_options(requests, *options):
    """Requests that choose among different options in turn."""
    return [
        Request(row_id=r.row_id + 1, prompt=r.prompt, options=options[place % len(options)])
        for place, r in enumerate(requests)
    ]


LETTERS = [("a1", "b2", "c3", "d4"), ("e5", "f6"), ("g7", "g7", "h8")]
TEXTS = [(" e2e4", " d2d4 e7e5 a1", "h8"), ("a1b2c3", "a1b2c4", "a1"), ("e2e4", "e2e4", "e2e3")]


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("kind", ["letters", "texts", "mixed with answers", "many letters"])
def test_mcqa_options_equal_transformers(teacher, reference, requests, kind, normalise, monkeypatch):
    if kind == "letters":
        asked = with_options(requests[:60], *LETTERS)
    elif kind == "texts":
        asked = with_options(requests[:60], *TEXTS)
    elif kind == "many letters":
        squares = tuple(f"{column}{row}" for column in "abcdefgh" for row in range(1, 9))
        asked = with_options(requests[:3], squares * 3)
    else:
        asked = with_options(requests[:20], *LETTERS, *TEXTS) + requests[20:50]
    decoding = DecodingConfig(max_tokens=4, normalise_options=normalise)
    scored = spy(monkeypatch, vllm_teacher._Stream, "_score")
    numbers = spy(monkeypatch, vllm_tap, "compute_token_numbers")
    for _ in range(2):  # then from the prefix cache, which may hold a whole option
        rows = both(teacher, reference, asked, decoding)
    if kind == "texts":
        assert any(part.tries for _, _, part in scored), "the prefix cache held the beginning of an option"
    seen = any(sure for _, _, sure in numbers)
    assert seen == (kind == "mixed with answers"), "options alone need no margin and no entropy"
    assert len({row["completion"] for row in rows.values()}) > 1
    assert teacher.engine.num_held() == 0


def test_error_rows_and_the_longest_that_fits(teacher, reference, requests):
    tokenizer = reference._tokenizer
    long = requests[0].prompt * 4
    prompt_tokens = len(tokenizer(requests[0].prompt)["input_ids"])
    rest = 96 - prompt_tokens
    asked = [
        Request(row_id=1, prompt=long),
        Request(row_id=2, prompt=""),
        Request(row_id=3, prompt=requests[0].prompt, options=()),
        Request(row_id=4, prompt=requests[0].prompt, options=("a1", "")),
        Request(row_id=5, prompt=long, options=("a1",)),
        requests[0],
    ]
    decoding = DecodingConfig(max_tokens=rest)
    rows = both(teacher, reference, asked, decoding)
    kinds = {i: row["error"].split(":")[0] for i, row in rows.items() if row["error"]}
    assert kinds == {1: "prompt_length", 2: "prompt_length", 3: "bad_options", 4: "bad_options", 5: "prompt_length"}
    longer = [Request(row_id=8, prompt=requests[0].prompt)]
    (row,) = rows_of(teacher.label(longer, DecodingConfig(max_tokens=rest + 1), seed=0)).values()
    assert row["error"].startswith("prompt_length")


def test_a_model_without_its_end_token_fills_its_context(teacher, reference, requests):
    """No stop token is met within the cap: the last position that the model has is used."""
    few = [requests[k] for k in range(60)]
    longest = max(len(reference._tokenizer(r.prompt)["input_ids"]) for r in few)
    rows = both(teacher, reference, few, DecodingConfig(max_tokens=96 - longest, presence_penalty=-2.0))
    assert any(row["truncated"] for row in rows.values())


def test_float16_states_are_those_of_transformers_to_rounding(teacher, reference, requests):
    half = copy.copy(teacher)
    half._config = teacher._config.model_copy(update={"state_dtype": "float16"})
    decoding = DecodingConfig(max_tokens=6)
    batches = list(half.label(requests[:50], decoding, seed=0))
    assert str(batches[0].schema.field("state_output_last").type).startswith("fixed_size_list<item: halffloat")
    expected = rows_of(reference.label(requests[:50], decoding, seed=0))
    for row in rows_of(batches).values():
        for name in STATES:
            np.testing.assert_allclose(
                row[f"state_{name}"], expected[row["row_id"]][f"state_{name}"], rtol=2e-3, atol=2e-3
            )


@pytest.mark.parametrize("states", [(), ("prompt_last",), ("output_mean", "output_last")])
def test_only_the_states_that_are_asked_for(model, reference, requests, states):
    """None at all, as when a student is tested; and a stop string within the last token."""
    asked = with_options(requests[:20], *LETTERS, *TEXTS) + requests[20:80]
    decoding = DecodingConfig(max_tokens=6, stop=("ishop",))
    other = copy.copy(reference)
    other._config = reference._config.model_copy(update={"states": states})
    both(start(model, states=states), other, asked, decoding)


def test_a_reader_that_leaves_early_frees_everything(teacher, requests):
    stream = teacher.label(requests, DecodingConfig(max_tokens=20), seed=0)
    next(stream)
    assert teacher.engine.num_held() > 0
    stream.close()
    assert teacher.engine.num_held() == teacher.engine.num_unfinished == 0


def test_requests_are_read_as_the_engine_takes_them(teacher, requests):
    read = []

    def arriving():
        for request in requests:
            read.append(request)
            yield request

    stream = teacher.label(arriving(), DecodingConfig(max_tokens=10), seed=0)
    first = next(stream)
    assert len(read) < len(requests) and first.num_rows < len(requests)
    rest = sum(batch.num_rows for batch in stream)
    assert first.num_rows + rest == len(requests)


def test_threads_share_an_engine(teacher, reference, requests):
    decoding = DecodingConfig(max_tokens=10)
    parts = [requests[k::3] for k in range(3)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda part: rows_of(teacher.label(part, decoding, seed=0)), parts))
    expected = rows_of(reference.label(requests, decoding, seed=0))
    check({i: row for rows in found for i, row in rows.items()}, expected, requests, reference)


def test_preempted_rows_and_an_adapter(model, adapter, requests, monkeypatch):
    """A key-value cache of 9 blocks for 24 rows: rows are thrown out and fed again; the model is a merged adapter."""
    teacher = start(adapter, block_size=32, num_gpu_blocks_override=9, max_num_batched_tokens=64)
    times = spy(monkeypatch, teacher.engine._engine.engine_core.engine_core.scheduler, "_preempt_request")
    reference = load_teacher(teacher_config(adapter), adapter)
    decoding = DecodingConfig(max_tokens=40, stop=("ishop",))
    rows = both(teacher, reference, requests, decoding)
    print(f"{len(times)} preemptions")
    assert len(times) > 20
    both(teacher, reference, with_options(requests[:60], *TEXTS), decoding)
    base = rows_of(load_teacher(teacher_config(model), model).label(requests, decoding, seed=0))
    assert sum(row["completion"] != rows[i]["completion"] for i, row in base.items()) > 100
    assert teacher.engine.num_held() == 0


def test_a_short_answer_does_not_wait_for_the_steps_of_seven_longer_calls(teacher, requests):
    """Threads that wait at once share a step: else a call hears of its answer once each of the others had its own."""
    engine = teacher.engine
    step, num_steps = engine._engine.step, []

    def counted():
        num_steps.append(1)
        return step()

    engine._engine.step = counted
    try:
        with ThreadPoolExecutor(8) as pool:
            long, short = DecodingConfig(max_tokens=40, temperature=1.0), DecodingConfig(max_tokens=1)
            waiting = [
                pool.submit(list, teacher.label([request], long, seed=k)) for k, request in enumerate(requests[:7])
            ]
            list(teacher.label(requests[7:8], short, seed=0))  # the first steps are a prompt's
            before = len(num_steps)
            list(teacher.label(requests[7:8], short, seed=0))
            taken = len(num_steps) - before
            assert not all(call.done() for call in waiting)
            assert all(call.result() for call in waiting)
    finally:
        engine._engine.step = step
    assert taken <= 8, "a step or two for the prompt, one more for its state, each waited for with one under way"


def test_numbers_of_states_beyond_float16_are_clipped(model, tmp_path):
    from curation.models import load_model, load_tokenizer, resolve

    weights = load_model(model)
    with torch.no_grad():
        weights.model.norm.weight *= 1e5
    weights.save_pretrained(tmp_path)
    load_tokenizer(model).save_pretrained(tmp_path)
    ref, decoding = resolve(str(tmp_path)), DecodingConfig(max_tokens=3)
    requests = [Request(row_id=row_id, prompt=f"e2e4 e7e5 {row_id}") for row_id in range(6)]
    exact, rows = (
        rows_of(
            start(ref).asked(teacher_config(ref, backend="vllm", state_dtype=dtype)).label(requests, decoding, seed=0)
        )
        for dtype in ("float32", "float16")
    )
    for row_id, row in rows.items():
        assert row["error"] is None
        for name in STATES:
            wide_D = np.array(exact[row_id][f"state_{name}"])
            np.testing.assert_allclose(row[f"state_{name}"], wide_D.clip(-65504, 65504), rtol=2e-3, atol=64)
    assert max(np.abs(row["state_output_mean"]).max() for row in exact.values()) > 70_000
