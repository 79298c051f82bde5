"""Constrained decoding against a restatement in plain transformers: one forward a prompt and answer, no cache."""

import numpy as np
import pytest
import torch
from scipy import stats

from curation.config import DecodingConfig, DomainConfig, ModelConfig, TeacherConfig
from curation.domains import get_domain
from curation.domains.given import as_asked
from curation.models import create, load_model, load_tokenizer, resolve
from curation.signals import label_request
from curation.teachers import Request, load_teacher
from curation.teachers.forward import Forward
from curation.teachers.prompts import tokenise
from tests.conftest import ROOT

STATES = ("prompt_last", "output_first", "output_last", "output_mean")
SCORED, STEPWISE = DecodingConfig(constrained="scored"), DecodingConfig(constrained="stepwise")
CHESS = get_domain(DomainConfig(name="chess"))
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
# Windows shorter than a prompt, in every layer and in every other one; learned positions; a recurrent state.
FAMILIES = {
    "qwen3": SHAPE,
    "mistral": SHAPE | {"sliding_window": 12},
    "gemma3_text": SHAPE | {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128, "initializer_range": 0.2},
    "lfm2": SHAPE | {"layer_types": ["conv", "full_attention"], "block_ff_dim": 64},
}


def teacher_of(ref, states=STATES, **settings):
    config = TeacherConfig(
        backend="transformers",
        model=ModelConfig(path=ref.base),
        states=states,
        state_dtype="float32",
        token_logprobs=3,
        **settings,
    )
    return load_teacher(config, ref)


def asked(examples, decoding):
    domain = as_asked(CHESS, decoding)
    return [label_request(domain, 3 * place + 1, example) for place, example in enumerate(examples)]


def rows_of(batches):
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert len({row["row_id"] for row in rows}) == len(rows)
    return {row["row_id"]: row for row in rows}


class Plain:
    """The model alone: log-probabilities of tokens and states, from whole texts."""

    def __init__(self, ref):
        self.model, self.tokenizer = load_model(ref), load_tokenizer(ref)

    def tokens(self, prompt, options):
        given = self.tokenizer(prompt)["input_ids"]
        return given, [self.tokenizer(prompt + option)["input_ids"][len(given) :] for option in options]

    @torch.inference_mode()
    def scores(self, prompt, options):
        """The log-probability of each token of each option."""
        given, answers = self.tokens(prompt, options)
        width = max(map(len, answers))
        ids = torch.tensor([given + answer + [0] * (width - len(answer)) for answer in answers])
        logprobs = self.model(ids, use_cache=False).logits[:, len(given) - 1 :].float().log_softmax(-1)
        return [
            [float(of[t, token]) for t, token in enumerate(answer)]
            for of, answer in zip(logprobs, answers, strict=True)
        ]

    @torch.inference_mode()
    def states(self, prompt, option):
        given, (answer,) = self.tokens(prompt, [option])
        hidden_TD = self.model(torch.tensor([given + answer]), use_cache=False, output_hidden_states=True)
        hidden_TD = hidden_TD.hidden_states[-1][0]
        start = len(given)
        return dict(
            zip(STATES, (hidden_TD[start - 1], hidden_TD[start], hidden_TD[-1], hidden_TD[start:].mean(0)), strict=True)
        )


def check(row, request, logprobs, plain, *, best):
    """A row against the log-probabilities of all its options; ``best`` is the place of the answer."""
    assert row["error"] is None and row["completion"] == request.options[best] and not row["truncated"]
    assert row["mean_logprob"] == pytest.approx(np.mean(logprobs[best]), abs=1e-5)
    kept = (logprobs[best] + [0.0, 0.0])[:3]
    np.testing.assert_allclose(row["token_logprobs"], kept, atol=4e-3, rtol=1e-3)  # stored as float16
    assert row["num_output_tokens"] == len(logprobs[best])
    for name, expected_D in plain.states(request.prompt, request.options[best]).items():
        np.testing.assert_allclose(row[f"state_{name}"], expected_D, atol=1e-4)


def check_scored(ref, examples):
    requests, plain = asked(examples, SCORED), Plain(ref)
    rows = rows_of(teacher_of(ref).label(requests, SCORED, seed=0))
    for request in requests:
        row, logprobs = rows[request.row_id], plain.scores(request.prompt, request.options)
        sums = [sum(of_option) for of_option in logprobs]
        np.testing.assert_allclose(row["option_logprobs"], sums, rtol=0, atol=1e-4)
        best = int(np.argmax(row["option_logprobs"]))
        assert sums[best] >= max(sums) - 2e-5
        check(row, request, logprobs, plain, best=best)
    return rows


def stepwise(plain, request):
    """The place of the option that greedy decoding among the options comes to."""
    _, answers = plain.tokens(request.prompt, request.options)
    logprobs = plain.scores(request.prompt, request.options)
    begun = []
    while (alive := [i for i, answer in enumerate(answers) if answer[: len(begun)] == begun]) and not (
        len(alive) == 1 and answers[alive[0]] == begun
    ):
        best = max(alive, key=lambda i: logprobs[i][len(begun)])
        begun = answers[best][: len(begun) + 1]
    return alive[0], logprobs


@pytest.fixture(scope="module")
def examples(puzzles):
    return [CHESS.read(raw) for raw in puzzles]


@pytest.fixture(scope="module")
def base():
    """The quickstart's teacher before its adaptation."""
    return resolve(str(ROOT / "examples" / "bases" / "teacher"))


@pytest.fixture(scope="module", params=FAMILIES)
def any_model(request, tmp_path_factory):
    vocabulary = CHESS.vocabulary()
    return create(
        tmp_path_factory.mktemp("models") / "m",
        family=request.param,
        shape=FAMILIES[request.param],
        words=vocabulary.words,
        pattern=vocabulary.pattern,
        seed=3,
    )


def test_scored_equals_exhaustive_scoring_in_every_family(any_model, examples):
    check_scored(any_model, examples[:8])


def test_paths_give_what_branches_give(base, examples, monkeypatch):
    requests = asked(examples[:12], SCORED)
    branched = rows_of(teacher_of(base).label(requests, SCORED, seed=0))
    monkeypatch.setattr(Forward, "takes_branches", False)
    for row_id, row in rows_of(teacher_of(base, batch_tokens=600).label(requests, SCORED, seed=0)).items():
        assert row["completion"] == branched[row_id]["completion"]
        np.testing.assert_allclose(row["option_logprobs"], branched[row_id]["option_logprobs"], atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("num_rows", [30, pytest.param(500, marks=pytest.mark.slow)])
def test_scored_and_stepwise_answers_of_the_quickstarts_teacher(base, examples, num_rows):
    rows = check_scored(base, examples[:num_rows])
    requests, plain = asked(examples[:num_rows], STEPWISE), Plain(base)
    greedy = rows_of(teacher_of(base).label(requests, STEPWISE, seed=0))
    for request in requests:
        best, logprobs = stepwise(plain, request)
        check(greedy[request.row_id], request, logprobs, plain, best=best)
        assert greedy[request.row_id]["option_logprobs"] is None
    assert any(greedy[row_id]["completion"] != row["completion"] for row_id, row in rows.items())


@pytest.mark.long
def test_states_equal_those_of_the_same_answer_decoded_freely(base, examples):
    """Of rows whose free answer is the likeliest move: the same log-probabilities and states."""
    teacher, free = teacher_of(base), DecodingConfig(max_tokens=4)
    held = rows_of(teacher.label(asked(examples[:400], SCORED), SCORED, seed=0))
    drawn = rows_of(teacher.label(asked(examples[:400], free), free, seed=0))
    same = [row_id for row_id, row in drawn.items() if row["completion"].strip() == held[row_id]["completion"].strip()]
    assert len(same) >= 20
    for row_id in same:
        for name in STATES:
            np.testing.assert_allclose(held[row_id][f"state_{name}"], drawn[row_id][f"state_{name}"], atol=1e-4)
        assert held[row_id]["mean_logprob"] == pytest.approx(drawn[row_id]["mean_logprob"], abs=1e-5)


@pytest.mark.long
def test_stepwise_samples_follow_the_distribution_over_the_trie(base, examples):
    """Each token has its probability among those that lead to an option; chi-square over the options."""
    (request,), plain = asked(examples[:1], STEPWISE), Plain(base)
    decoding = STEPWISE.model_copy(update={"temperature": 2.0})
    _, answers = plain.tokens(request.prompt, request.options)
    logprobs = plain.scores(request.prompt, request.options)
    expected = np.ones(len(answers))
    for i, answer in enumerate(answers):
        for t in range(len(answer)):
            among = {other[t]: of[t] for other, of in zip(answers, logprobs, strict=True) if other[:t] == answer[:t]}
            weights = {token: np.exp(logprob / 2.0) for token, logprob in among.items()}
            expected[i] *= weights[answer[t]] / sum(weights.values())
    assert expected.sum() == pytest.approx(1)
    copies = [Request(row_id=k, prompt=request.prompt, options=request.options, stepwise=True) for k in range(800)]
    drawn = rows_of(teacher_of(base, states=("output_last",)).label(copies, decoding, seed=5))
    found = np.zeros(len(answers))
    for row in drawn.values():
        found[request.options.index(row["completion"])] += 1
    common = expected * len(copies) >= 5
    observed, wanted = (np.append(of[common], of[~common].sum()) for of in (found, expected * len(copies)))
    kept = wanted > 0
    assert stats.chisquare(observed[kept], wanted[kept]).pvalue > 1e-3


def test_an_option_that_begins_another_ends_by_an_end_token(base):
    """Scored by its sum alone, without an end token; stepwise the end token stands against what goes on."""
    tokenizer, plain = load_tokenizer(base), Plain(base)
    prompt = CHESS.prompt({"fen": "8/4P1k1/8/8/8/8/6K1/8 w - - 0 1"})
    options = (" e7e8", " e7e8q", " e7e8n", " g2f2")
    scored = rows_of(teacher_of(base).label([Request(row_id=1, prompt=prompt, options=options)], SCORED, seed=0))[1]
    np.testing.assert_allclose(scored["option_logprobs"], [sum(of) for of in plain.scores(prompt, options)], atol=1e-4)
    some = [Request(row_id=k, prompt=prompt, options=options[:3], stepwise=True) for k in range(300)]
    drawn = rows_of(teacher_of(base).label(some, STEPWISE.model_copy(update={"temperature": 1.0}), seed=0))
    given, (short, queen, knight, _) = plain.tokens(prompt, options)
    with torch.inference_mode():
        after_V = plain.model(torch.tensor([given + short]), use_cache=False).logits[0, -1].softmax(-1)
    weights = after_V[[tokenizer.eos_token_id, queen[-1], knight[-1]]]
    share = float(weights[0] / weights.sum())
    low, high = stats.binom.interval(0.9999, len(some), share)
    assert low <= sum(row["completion"] == " e7e8" for row in drawn.values()) <= high
    for row in {row["completion"]: row for row in drawn.values()}.values():
        expected = plain.states(prompt, row["completion"])["output_last"]
        np.testing.assert_allclose(row["state_output_last"], expected, atol=1e-4)


def test_a_gate_stops_rows_before_their_stepwise_answer(base, examples):
    class Odd:
        states = ("prompt_last",)

        def __call__(self, prompts):
            return np.array(prompts.column("row_id")) % 2 == 1

    requests = asked(examples[:10], STEPWISE)
    whole = rows_of(teacher_of(base).label(requests, STEPWISE, seed=0))
    gated = rows_of(teacher_of(base).label(requests, STEPWISE, seed=0, gate=Odd()))
    for row_id, row in gated.items():
        assert row["error"] is None and row["completion"] == (whole[row_id]["completion"] if row_id % 2 else None)


def test_length_and_stop_strings_do_not_limit_listed_answers(base, examples):
    decoding = DecodingConfig(constrained="stepwise", max_tokens=1, stop=("e", "d"))
    rows = rows_of(teacher_of(base).label(asked(examples[:20], decoding), decoding, seed=0))
    plain = rows_of(teacher_of(base).label(asked(examples[:20], STEPWISE), STEPWISE, seed=0))
    assert {i: row["completion"] for i, row in rows.items()} == {i: row["completion"] for i, row in plain.items()}
    assert not any(row["truncated"] for row in rows.values())


def test_a_position_without_moves_is_an_error_row(base):
    mated = {"fen": "rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3"}
    for decoding in (SCORED, STEPWISE):
        (row,) = rows_of(teacher_of(base).label(asked([mated], decoding), decoding, seed=0)).values()
        assert row["error"].startswith("bad_options: none given")


def test_remembered_tokens_of_options_are_those_of_the_whole_text(base, examples):
    tokenizer, known = load_tokenizer(base), {}
    requests = asked(examples[:60], SCORED)
    for some in (requests[:30], requests[30:], requests):
        for row in tokenise(tokenizer, some, chat_template=False, known=known):
            wholes = [tokenizer(row.request.prompt + option)["input_ids"] for option in row.request.options]
            assert [row.prompt + tokens for tokens in row.options] == wholes


def test_only_models_that_follow_the_mask_take_branches(any_model):
    family = load_model(any_model).config.model_type
    assert teacher_of(any_model)._forward.takes_branches == (family not in ("lfm2",))
