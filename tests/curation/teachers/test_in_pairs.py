"""Options in pairs against a plain computation: a forward for each question, and every set of answers as an option."""

import itertools
import string

import numpy as np
import pytest
import torch
from test_options import ALL_STATES, SHAPES, make, rows_of

from curation.config import DecodingConfig, DomainConfig
from curation.config.teacher import AskConfig, ScriptedConfig
from curation.domains import get_domain
from curation.models import create, load_model, load_tokenizer
from curation.signals import Answer, Weak, label_request
from curation.signals.methods import SelfConsistency
from curation.tables import schemas
from curation.teachers import Request
from curation.teachers.completions import compute_option_sureness, compute_pair_sureness
from curation.teachers.scripted import ScriptedTeacher
from curation.teachers.wrapped import WrappedTeacher

CLASSES = {"gas": "about a gas", "iron": "iron", "no": "no", "7": "about 7 legs"}
TEXTS = ("What do plants breathe in?", "Which is a metal?", "Why?", "Water boils at", "How many legs?", "A")
PATTERN = r" (?:yes|no)(?![a-z])|[\s\S]"
DOMAIN = get_domain(DomainConfig(name="classification", classes=CLASSES, multi=True))


def asked() -> list[Request]:
    return [label_request(DOMAIN, place, {"text": text}) for place, text in enumerate(TEXTS)]


@pytest.fixture(scope="module", params=["qwen3", "gpt2"])
def model(request, tmp_path_factory):
    """A random model with a token a character, and one for " yes" and " no" each, as vocabularies of words have."""
    words = (*string.ascii_letters, *string.digits, *" ?,.:\n'", " yes", " no")
    path = tmp_path_factory.mktemp("models") / "m"
    return create(path, family=request.param, shape=SHAPES[request.param], words=words, pattern=PATTERN, seed=3)


def plain(model, prompt: str, answer: str) -> tuple[list[float], np.ndarray]:
    """Log-probabilities of an answer's tokens after a prompt, and the last layer's states at them; float64."""
    tokenizer, network = load_tokenizer(model), load_model(model, dtype="float32", device="cpu")
    first, whole = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, prompt + answer))
    with torch.inference_mode():
        out = network(torch.tensor([whole]), output_hidden_states=True)
    logprobs = out.logits[0].float().log_softmax(-1)
    places = range(len(first), len(whole))
    return [float(logprobs[at - 1, whole[at]]) for at in places], out.hidden_states[-1][0].numpy()[list(places)]


@pytest.mark.long
@pytest.mark.parametrize("batch_tokens", [400, 8192])
def test_each_label_is_asked_by_itself_as_a_plain_computation_does(model, batch_tokens):
    teacher = make(model, batch_tokens=batch_tokens, token_logprobs=3)
    found, stated = rows_of(teacher.label(asked(), DecodingConfig(), seed=0)), set()
    for request in asked():
        row = found[request.row_id]
        lines, shares, all_scores = [], [], []
        for words in CLASSES.values():  # P(yes) against P(no) after the prompt and the label's own words alone
            scores = [sum(plain(model, request.prompt, f"\n{words}: {word}")[0]) for word in ("yes", "no")]
            is_yes = scores[0] > scores[1]
            lines.append(f"\n{words}: {'yes' if is_yes else 'no'}")
            shares.append(max(scores) - np.logaddexp(*scores))
            all_scores += scores
        assert row["completion"] == "".join(lines) and row["error"] is None
        stated.add(DOMAIN.parse(row["completion"], {}))
        assert row["option_logprobs"] == pytest.approx(all_scores, abs=1e-3)
        numbers = [np.mean(shares), min(shares), shares[0], shares[-1]]
        names = ("mean_logprob", "min_logprob", "first_logprob", "last_logprob")
        assert [row[name] for name in names] == pytest.approx(numbers, abs=1e-4)
        assert row["token_logprobs"] == pytest.approx(shares[:3], abs=1e-2)  # float16
        assert row["option_share"] == pytest.approx(np.exp(sum(shares)), abs=1e-4)
        assert row["num_options"] == row["completion"].count("yes")
        tokens, hidden_TD = plain(model, request.prompt, row["completion"])
        assert row["num_output_tokens"] == len(tokens)
        assert row["state_output_last"] == pytest.approx(hidden_TD[-1], abs=1e-3)
        assert row["state_output_mean"] == pytest.approx(hidden_TD.mean(axis=0), abs=1e-3)
    assert len(stated) > 1 and None not in stated
    bare = rows_of(teacher.label(asked(), DecodingConfig(), seed=0, states=False))
    assert {place: row["completion"] for place, row in bare.items()} == {
        place: row["completion"] for place, row in found.items()
    }


@pytest.mark.long
def test_calibration_takes_out_what_is_said_of_each_label_without_a_text(model):
    domain = get_domain(DomainConfig(name="classification", classes=CLASSES, multi=True, calibrate="content_free"))
    requests = [label_request(domain, place, {"text": text}) for place, text in enumerate(TEXTS)]
    teacher = make(model)
    without = rows_of(teacher.label(asked(), DecodingConfig(), seed=0))
    found = rows_of(WrappedTeacher(teacher).label(requests, DecodingConfig(), seed=0))

    def gaps(text: str) -> np.ndarray:
        prompt = domain.prompt({"text": text})
        both = [[sum(plain(model, prompt, f"\n{words}: {word}")[0]) for word in ("yes", "no")]
                for words in CLASSES.values()]  # fmt: skip
        return np.subtract(*np.transpose(both))

    share_L = np.mean([1 / (1 + np.exp(-gaps(text))) for text in ("N/A", "[MASK]", "")], axis=0)
    for request, text in zip(requests, TEXTS, strict=True):
        row, gap_L = found[request.row_id], gaps(text)
        above_L = gap_L - np.log(share_L / (1 - share_L))
        stated = [name for name, above in zip(CLASSES, above_L, strict=True) if above > 0]
        assert domain.parse(row["completion"], {}) == (", ".join(stated) or "none")
        assert row["margin"] == pytest.approx(np.abs(above_L).min(), abs=1e-4)
        assert row["num_options"] == len(stated)
        as_the_model_says = -np.log1p(np.exp(-np.where(above_L > 0, gap_L, -gap_L)))
        assert row["mean_logprob"] == pytest.approx(as_the_model_says.mean(), abs=1e-4)
        assert row["option_logprobs"] == pytest.approx(without[request.row_id]["option_logprobs"], abs=1e-4)
        _, hidden_TD = plain(model, request.prompt, row["completion"])
        assert row["state_output_last"] == pytest.approx(hidden_TD[-1], abs=1e-3)
        assert row["margin"] != pytest.approx(without[request.row_id]["margin"], abs=1e-3)


@pytest.mark.parametrize("num_labels", [1, 2, 5])
def test_the_numbers_are_those_of_a_choice_among_all_sets(num_labels):
    rng = np.random.default_rng(num_labels)
    for _ in range(20):
        score_L2 = rng.normal(scale=3, size=(num_labels, 2))
        sets = [sum(row[way] for row, way in zip(score_L2, ways, strict=True))
                for ways in itertools.product((0, 1), repeat=num_labels)]  # fmt: skip
        expected, found = compute_option_sureness(sets), compute_pair_sureness(score_L2.reshape(-1))
        for name in ("margin", "negentropy", "option_share", "option_lead"):
            assert found[name] == pytest.approx(expected[name]), name
        assert found["num_options"] == sum(score_L2[:, 0] > score_L2[:, 1])
    sure = compute_pair_sureness(
        [0.0, -np.inf, -np.inf, -np.inf]
    )  # an impossible no, and a question without a possible answer
    assert sure["margin"] == 0 and sure["option_share"] == 0.5 and sure["negentropy"] == pytest.approx(-np.log(2))


def test_the_answer_has_to_fit_the_model(model):
    longest = sum(len(f"\n{words}:") + 1 for words in CLASSES.values())
    rows = [Request(row_id=place, prompt="a" * length, options=DOMAIN.options({}), in_pairs=True)
            for place, length in enumerate((128 - longest, 129 - longest))]  # fmt: skip
    found = rows_of(make(model).label(rows, DecodingConfig(), seed=0))
    assert found[0]["error"] is None
    assert found[1]["error"] == f"prompt_length: {129 - longest} tokens and {longest} of answer; the model takes 128"


def test_the_scripted_teacher_answers_each_question():
    teacher = ScriptedTeacher(AskConfig(backend="scripted", states=ALL_STATES, scripted=ScriptedConfig()))
    rows = [label_request(DOMAIN, row_id, {"text": "x"}) for row_id in range(200)]
    found = rows_of(teacher.label(rows, DecodingConfig(), seed=0))
    sets = {DOMAIN.parse(row["completion"], {}) for row in found.values()}
    assert len(sets) == 16 and "none" in sets
    assert all(1 <= row["margin"] <= 2 for row in found.values())
    assert set(schemas.NUMBERS) <= set(found[0])


def test_self_consistency_is_the_share_of_the_set():
    scores = (0.0, -1.0, -3.0, -1.0, -2.0, -2.5, -1.0, 0.0)
    weak = Weak(label="gas, no", completion=DOMAIN.answer("gas, no", {}))
    answer = Answer(completion=weak.completion, mean_logprob=-1.0, option_logprobs=scores)
    shares = [1 / (1 + np.exp(-gap / 0.7)) for gap in (1, 2, 0.5, 1)]
    found = SelfConsistency().value(DOMAIN, {"text": "x"}, weak, [answer])
    assert found == pytest.approx(np.prod(shares))
