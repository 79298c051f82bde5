"""Reward models against transformers, one row at a time; a model's own code runs only where it is allowed."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from curation.errors import ModelError
from curation.models import create, resolve
from curation.models.own_code import compute_code_digest
from curation.refs import ModelRef
from curation.signals import Weak, compute_rewards
from curation.teachers.reward import RewardModel

SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
TEMPLATE = "{% for m in messages %}{{ '<' + m['role'][0] + '>' + m['content'] + '<eos>' }}{% endfor %}"
PAIRS = [("2 + 2 =", " 4"), ("Name a piece.", " the queen of spades"), ("a", "b"), ("which?", ""), ("x" * 30, " y" * 9)]

GATED = '''
from dataclasses import dataclass
import torch
from transformers import LlamaModel, LlamaPreTrainedModel
from transformers.utils import ModelOutput

@dataclass
class Output(ModelOutput):
    rewards: torch.Tensor = None
    score: torch.Tensor = None

class Gated(LlamaPreTrainedModel):
    """Several rewards at the last token, mixed by a gate: the shape of ArmoRM."""
    def __init__(self, config):
        super().__init__(config)
        self.model = LlamaModel(config)
        self.rewards = torch.nn.Linear(config.hidden_size, 5, bias=False)
        self.gate = torch.nn.Linear(config.hidden_size, 5)
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None):
        hidden = self.model(input_ids, attention_mask=attention_mask)[0]
        last = hidden[torch.arange(len(hidden)), (input_ids == self.config.pad_token_id).int().argmax(-1) - 1]
        rewards = self.rewards(last)
        return Output(rewards=rewards, score=(self.gate(hidden[:, 0]).softmax(-1) * rewards).sum(-1))
'''
HEAD = '''
import torch
from transformers import LlamaConfig, LlamaModel, LlamaPreTrainedModel

class OwnConfig(LlamaConfig):
    model_type = "own_rm"

class Head(LlamaPreTrainedModel):
    """A family of its own and a two-layer head, the output's first field: the shape of Qwen2.5-Math-RM."""
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = LlamaModel(config)
        size = config.hidden_size
        self.score = torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.ReLU(), torch.nn.Linear(size, 1))
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None):
        logits = self.score(self.model(input_ids, attention_mask=attention_mask)[0])
        return (logits[torch.arange(len(logits)), (input_ids == self.config.pad_token_id).int().argmax(-1) - 1],)
'''


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models' own code is copied under the test's directory."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))


def base(path: Path, *, template: bool) -> Path:
    """A causal model and a tokenizer of one token a character."""
    words = tuple(map(chr, range(0x20, 0x7F)))
    create(path, family="llama", shape=SHAPE, words=words, pattern=r"[\s\S]", seed=3)
    tokenizer = AutoTokenizer.from_pretrained(path)
    if template:
        tokenizer.chat_template = TEMPLATE
        tokenizer.save_pretrained(path)
    return path


def classifier(path: Path, *, template: bool = False, **settings: object) -> ModelRef:
    config = LlamaConfig.from_pretrained(base(path, template=template), **{"num_labels": 1, **settings})
    torch.manual_seed(5)
    LlamaForSequenceClassification(config).save_pretrained(path)
    return resolve(str(path))


def own_code(path: Path, auto_class: str, code: str, name: str) -> ModelRef:
    base(path, template=True)
    (path / "modeling_own.py").write_text(code)
    made = get_class_from_dynamic_module(f"modeling_own.{name}", str(path))
    torch.manual_seed(7)
    made(made.config_class.from_pretrained(path)).save_pretrained(path)
    auto_map = {auto_class: f"modeling_own.{name}"}
    if made.config_class.__module__.startswith("transformers_modules"):
        auto_map["AutoConfig"] = f"modeling_own.{made.config_class.__name__}"
    stored = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**stored, "auto_map": auto_map}))
    return resolve(str(path), code=compute_code_digest(path))


def ids_of(ref: ModelRef, prompt: str, completion: str) -> torch.Tensor:
    tokenizer = AutoTokenizer.from_pretrained(ref.base)
    if tokenizer.chat_template is None:
        return torch.tensor([tokenizer(prompt + completion)["input_ids"]])
    text = f"<u>{prompt}<eos><a>{completion.strip()}<eos>"
    return torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])


@pytest.mark.parametrize("template", [False, True])
@pytest.mark.parametrize("batch_tokens", [1, 60, 8192])
def test_a_classifier_scores_as_transformers_does(tmp_path: Path, template: bool, batch_tokens: int) -> None:
    ref = classifier(tmp_path / "rm", template=template)
    plain = LlamaForSequenceClassification.from_pretrained(ref.base).eval()
    expected = []
    with torch.inference_mode():
        for prompt, completion in PAIRS:
            hidden = plain.model(ids_of(ref, prompt, completion)).last_hidden_state[0, -1]
            expected.append(float(plain.score(hidden)))
    reward_N = RewardModel(ref, batch_tokens=batch_tokens).score(PAIRS)
    assert reward_N.dtype == np.float32 and np.std(expected) > 1e-3
    np.testing.assert_allclose(reward_N, expected, rtol=0, atol=1e-5)


def test_a_classifier_without_padding_token_scores_row_by_row(tmp_path: Path) -> None:
    ref = classifier(tmp_path / "rm")
    alone = RewardModel(ref).score(PAIRS)
    path = tmp_path / "rm" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pad_token_id": None}))
    np.testing.assert_allclose(RewardModel(resolve(ref.base)).score(PAIRS), alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("auto_class", "code", "name"),
    [("AutoModelForSequenceClassification", GATED, "Gated"), ("AutoModel", HEAD, "Head")],
)
def test_own_code_runs_where_it_is_trusted_and_nowhere_else(
    tmp_path: Path, auto_class: str, code: str, name: str
) -> None:
    ref = own_code(tmp_path / "own", auto_class, code, name)
    with pytest.raises(
        ModelError, match=rf"^reward model .* brings its own code \(modeling_own\.{name}.*does not run here"
    ):
        RewardModel(replace(ref, code=None))
    made = get_class_from_dynamic_module(f"modeling_own.{name}", ref.base).from_pretrained(ref.base).eval()
    with torch.inference_mode():
        outputs = [made(ids_of(ref, *pair)) for pair in PAIRS]
    expected = [float(output.score if name == "Gated" else output[0]) for output in outputs]
    assert np.std(expected) > 1e-3
    np.testing.assert_allclose(RewardModel(ref, batch_tokens=90).score(PAIRS), expected, rtol=0, atol=1e-5)


def test_what_is_no_reward_model_is_refused(tmp_path: Path) -> None:
    causal = resolve(str(base(tmp_path / "causal", template=False)))
    with pytest.raises(ModelError, match=r"lacks the weights score\.weight; give a trained reward model"):
        RewardModel(causal)
    with pytest.raises(ModelError, match=r"gives \(5, 2\) for 5 rows; it needs one number a row"):
        RewardModel(classifier(tmp_path / "two", num_labels=2)).score(PAIRS)
    with pytest.raises(ModelError, match="takes no adapter"):
        RewardModel(ModelRef(base=causal.base, adapter="somewhere"))
    broken = own_code(tmp_path / "broken", "AutoModel", HEAD, "Head")
    (tmp_path / "broken" / "modeling_own.py").write_text("from transformers.models.llama.modeling_llama import NOTHING")
    with pytest.raises(ModelError, match="its code changed"):
        RewardModel(broken)
    with pytest.raises(ModelError, match="does not load: cannot import name 'NOTHING'"):
        RewardModel(replace(broken, code=compute_code_digest(tmp_path / "broken")))


class Prompted:
    """As much of a domain as rewards need."""

    def prompt(self, example: dict[str, str]) -> str:
        return example["question"]


def test_rows_that_cannot_be_scored_have_none(tmp_path: Path) -> None:
    model = RewardModel(classifier(tmp_path / "rm"))
    weak = Weak(label="4", completion=" 4")
    rows = [
        (1, {"question": "2 + 2 ="}, weak),
        (2, {"question": "x" * 70}, weak),
        (3, {"question": "2 + 2 ="}, Weak(label=None, completion=" 4")),
        (4, {}, weak),
        (5, {"question": ""}, Weak(label="", completion="")),
    ]
    values = compute_rewards(model, Prompted(), rows)
    assert values == {1: pytest.approx(float(model.score([("2 + 2 =", " 4")])[0]), abs=1e-6)} | dict.fromkeys(
        (2, 3, 4, 5)
    )
    assert compute_rewards(model, Prompted(), []) == {}
