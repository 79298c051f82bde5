"""Calibration by content-free prompts against a plain computation: a forward for each prompt and option."""

import numpy as np
import pytest
import torch
from test_options import char_model, make, rows_of

from curation.config import DecodingConfig, DomainConfig
from curation.config.load import as_config
from curation.domains import get_domain
from curation.errors import ConfigError
from curation.models import load_model, load_tokenizer
from curation.signals import label_request
from curation.teachers import Request
from curation.teachers.wrapped import WrappedTeacher, compute_baselines

CLASSES = ["a gas", "iron and tin", "no", "7"]
TEXTS = ("What do plants breathe in?", "Which is a metal?", "Why?", "Water boils at", "How many legs?", "", "N/A")


def asked(calibrate="content_free", classes=CLASSES):
    domain = get_domain(DomainConfig(name="classification", classes=classes, calibrate=calibrate))
    return [label_request(domain, place, {"text": text}) for place, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return char_model(tmp_path_factory.mktemp("models") / "m", "qwen3")


def plain(model, prompt, options):
    """The sum of each option's log-probabilities after a prompt."""
    tokenizer, network, found = load_tokenizer(model), load_model(model, dtype="float32", device="cpu"), []
    for option in options:
        first, whole = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, prompt + option))
        with torch.inference_mode():
            logprobs = network(torch.tensor([whole])).logits[0].float().log_softmax(-1)
        found.append(sum(float(logprobs[at - 1, whole[at]]) for at in range(len(first), len(whole))))
    return np.array(found)


@pytest.mark.parametrize("classes", [CLASSES, ["a", "b", "c"]])
def test_the_chosen_class_is_that_of_a_plain_computation(model, classes):
    requests = asked(classes=classes)
    options, teacher = requests[0].options, make(model)
    blank = [plain(model, f"Text: {text}\nLabel:", options) for text in ("N/A", "[MASK]", "")]
    shares = np.mean([np.exp(score) / np.exp(score).sum() for score in blank], axis=0)
    found = rows_of(WrappedTeacher(teacher).label(requests, DecodingConfig(), seed=0))
    without = rows_of(teacher.label(asked("none", classes), DecodingConfig(), seed=0))
    for request in requests:
        row, scores = found[request.row_id], plain(model, request.prompt, options)
        assert row["option_logprobs"] == pytest.approx(scores, abs=1e-4)  # as without calibration
        above = scores - np.log(shares)
        order = np.argsort(-above)
        assert row["completion"] == options[order[0]]
        assert row["margin"] == pytest.approx(above[order[0]] - above[order[1]], abs=1e-4)
        last = rows_of(teacher.label([Request(row_id=1, prompt=request.prompt, options=(row["completion"],))],
                                     DecodingConfig(), seed=0))[1]  # fmt: skip
        assert row["state_output_last"] == pytest.approx(last["state_output_last"], abs=1e-4)
    assert {row["completion"] for row in found.values()} != {row["completion"] for row in without.values()}


def test_the_prompts_are_asked_once(model):
    calls = []

    class Counted:
        state_size, facts = 0, {}

        def label(self, requests, decoding, *, seed, states=True):
            rows = list(requests)
            calls.append([row.row_id for row in rows])
            yield from make(model).label(rows, decoding, seed=seed, states=states)

    teacher = WrappedTeacher(Counted())
    for _ in range(2):
        list(teacher.label(asked(), DecodingConfig(), seed=0))
    assert calls == [[-1, -2, -3], [*range(7)], [*range(7)]]
    calls.clear()
    list(teacher.label(asked("none"), DecodingConfig(), seed=0))
    assert calls == [[*range(7)]]


def test_an_impossible_option_stays_impossible():
    with np.errstate(all="raise", divide="ignore", under="ignore"):
        found = compute_baselines([[-1.0, -np.inf], [-2.0, -np.inf]])
    assert found == (0.0, -np.inf)


def run(**changes):
    return as_config(
        {
            "name": "calibrated",
            "domain": {"name": "classification", "classes": ["a", "b"], "calibrate": "content_free"},
            "sources": {"one": {"path": "one.csv"}},
            "splits": {"source": {"from": "one", "rows": 10}, "pool": {"from": "one"}},
            "teacher": {"model": {"path": "m"}},
            "selection": {"budget": {"n": 5}},
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"teacher": {"backend": "given", "completion": "x", "confidence": "y"}},
            "needs scores of options",
        ),
        (
            {"teacher": {"model": {"path": "m"}, "decoding": {"normalise_options": True}}},
            r"needs sums of .*set normalise_options: false in teacher\.decoding",
        ),
        (
            {"evaluation": {"decoding": {"constrained": "stepwise"}}},
            "needs options that are scored: leave constrained: stepwise out",
        ),
    ],
)
def test_what_it_does_not_go_with_is_refused(changes, words):
    assert run().domain.options["calibrate"] == "content_free"
    with pytest.raises(ConfigError, match=rf"domain\.calibrate: content_free {words}"):
        run(**changes)
    with pytest.raises(ConfigError, match="calibrate: 'yes': Input should be 'none' or 'content_free'"):
        asked("yes")
