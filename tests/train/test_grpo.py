"""GRPO: a step against one written by hand, what is drawn, what is rewarded, and what stops a training."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_shape import TINY
from transformers import MambaConfig, MambaForCausalLM

from curation.config import DomainConfig
from curation.config.models import GrpoConfig, RolloutsConfig
from curation.domains import Domain, get_domain
from curation.errors import ConfigError, SourceError, TrainingError
from curation.models import create, load_model, load_tokenizer
from curation.refs import ModelRef
from train import grpo
from train.grpo import Questions, _make_arguments, reinforce
from train.models import TrainingRecord, make_trainable, read_saved
from train.rollouts import Rollout, RolloutTask, TransformersRollouts, Wanted, grade, make_seeds
from train.trainer import count_accumulation_steps

pytestmark = pytest.mark.long

SHAPE = TINY | {"max_position_embeddings": 128}
DIGITS = tuple("0123456789")
SMALL = GrpoConfig(
    preset="scratch",
    global_batch_size=4,
    group_size=4,
    micro_batch_size=16,
    epochs=2,
    learning_rate=1e-2,
    warmup_steps=0,
    rollouts=RolloutsConfig(max_tokens=3),
)


class Echo:
    """The label is the answer's first digit; right is the same digit."""

    check = Domain.check

    def parse(self, completion: str, example: Mapping[str, Any]) -> str | None:
        return completion[:1] or None

    def is_correct(self, label: str | None, gold: str) -> bool:
        if gold == "9":
            raise ValueError("nines cannot be compared")
        return label == gold


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> ModelRef:
    directory = tmp_path_factory.mktemp("grpo") / "base"
    return create(directory, family="qwen3", shape=SHAPE, words=DIGITS, pattern="[0-9]", seed=0)


def trained(
    base: ModelRef, output: Path, config: GrpoConfig, labels: str = "01230123", domain: Any = None, **how: Any
) -> TrainingRecord:
    prompts = [str(number) * (1 + number % 3) for number in range(len(labels))]
    examples = [{"row_id": 100 + number} for number in range(len(labels))]
    questions = Questions(prompts, list(labels), examples)
    return reinforce(base, questions, domain or Echo(), config, seed=1, output=output, **how)


def weights(ref: ModelRef) -> dict[str, torch.Tensor]:
    return dict(load_model(ref).state_dict())


class Seen:
    """What a training drew, and its weights and gradients before each step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.played: list[list[tuple[RolloutTask, Rollout]]] = []
        self.advantages: list[torch.Tensor] = []
        self.steps: list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]] = []
        play, watch = grpo.Game.play, grpo.Trainer._get_grad_norm
        score = grpo.Trainer._generate_and_score_completions

        def playing(game: Any, *args: Any) -> Any:
            found = play(game, *args)
            self.played.append(list(zip(game.played, game.drawn, strict=True)))
            return found

        def scoring(trainer: Any, inputs: Any) -> Any:
            found = score(trainer, inputs)
            self.advantages.append(found["advantages"].clone())
            return found

        def watching(trainer: Any, model: Any, **norm: Any) -> Any:
            named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
            self.steps.append(
                (
                    {name: weight.detach().clone() for name, weight in named.items()},
                    {name: weight.grad.clone() for name, weight in named.items() if weight.grad is not None},
                )
            )
            return watch(trainer, model, **norm)

        monkeypatch.setattr(grpo.Game, "play", playing)
        monkeypatch.setattr(grpo.Trainer, "_generate_and_score_completions", scoring)
        monkeypatch.setattr(grpo.Trainer, "_get_grad_norm", watching)


def logprobs(model: Any, task: RolloutTask, rollout: Rollout, temperature: float) -> torch.Tensor:
    """Of each token of an answer, by a plain forward pass of it alone."""
    ids = torch.tensor([[*task.prompt, *rollout.tokens]])
    logits = model(ids).logits[0, len(task.prompt) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(rollout.tokens)[:, None])[:, 0]


def draw_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let draws' log-probabilities be another backend's, up to one away from the model's."""
    draw = TransformersRollouts._draw

    def off(*args: Any) -> list[Rollout]:
        return [
            rollout._replace(logprobs=[value + math.sin(7 * value) for value in rollout.logprobs])
            for rollout in draw(*args)
        ]

    monkeypatch.setattr(TransformersRollouts, "_draw", off)


@pytest.mark.parametrize(
    ("lora", "micro", "off"),
    [(None, 16, False), (None, 4, False), ({"rank": 4, "alpha": 8}, 16, False), (None, 8, True)],
    ids=["full weights", "full weights, accumulated", "LoRA", "weighted by importance"],
)
def test_a_step_equals_one_written_by_hand(
    base: ModelRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: Any, micro: int, off: bool
) -> None:
    """Loss, gradients, advantages and KL of the second step, where policy and reference differ."""
    seen = Seen(monkeypatch)
    if off:
        draw_off(monkeypatch)
    config = GrpoConfig.model_validate(
        SMALL.model_dump()
        | {"lora": lora, "kl": 0.1, "max_grad_norm": 1e9, "micro_batch_size": micro, "epochs": 1}
        | {"rollouts": {"max_tokens": 4, "temperature": 0.7}}
    )
    record = trained(base, tmp_path / "out", config)
    played, (before, gradients) = seen.played[1], seen.steps[1]
    assert len(seen.steps) == 2 and len(played) == 16

    policy, reference = make_trainable(load_model(base), config.lora), load_model(base)
    policy.load_state_dict(before, strict=False)
    rewards = np.array([float(rollout.text[:1] == task.label) for task, rollout in played]).reshape(4, 4)
    assert 0 < rewards.mean() < 1, "a step that teaches something"
    advantage_GS = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + 1e-4)
    np.testing.assert_allclose(seen.advantages[1].numpy(), advantage_GS.ravel(), atol=1e-6)
    total, divergence, weights_seen = torch.zeros(()), 0.0, []
    num_tokens = sum(len(rollout.tokens) for _, rollout in played)
    for (task, rollout), advantage in zip(played, advantage_GS.ravel(), strict=True):
        own_T = logprobs(policy, task, rollout, 0.7)
        with torch.no_grad():
            difference_T = logprobs(reference, task, rollout, 0.7) - own_T.detach()
            weight_T = (own_T - torch.tensor(rollout.logprobs)).exp().clamp(max=2)
            weights_seen += weight_T.tolist()
        ratio_T = (own_T - own_T.detach()).exp()
        kl_T = (difference_T + own_T.detach() - own_T).exp() - (difference_T + own_T.detach() - own_T) - 1
        total = total + (-ratio_T * weight_T * advantage + 0.1 * kl_T).sum() / num_tokens
        divergence += kl_T.sum().item() / num_tokens
    total.backward()
    assert record.losses[1] == pytest.approx(total.item(), abs=1e-6)
    kl, gap = record.curves["kl"][1], record.curves["gap"][1]
    assert kl is not None and divergence > 1e-4
    if micro == 16:  # else the curve is the mean over micro-batches, whatever their number of tokens
        assert kl == pytest.approx(divergence, abs=1e-6)
    assert gap is not None
    if off:
        assert gap > 0.1 and 2.0 in weights_seen and min(weights_seen) < 0.5
    else:
        assert gap < 1e-5
        np.testing.assert_allclose(weights_seen, 1, atol=1e-5)
    by_hand = {name: weight.grad for name, weight in policy.named_parameters() if weight.grad is not None}
    assert by_hand.keys() == gradients.keys() and by_hand
    for name, gradient in by_hand.items():
        np.testing.assert_allclose(gradients[name].numpy(), gradient.numpy(), atol=1e-6, err_msg=name)


def test_it_learns_which_answer_is_rewarded(base: ModelRef, tmp_path: Path) -> None:
    config = SMALL.model_copy(update={"epochs": 25, "global_batch_size": 8, "micro_batch_size": 32})
    record = trained(base, tmp_path / "out", config, labels="33333333")
    rewards = record.curves["reward"]
    assert len(rewards) == 25 and rewards[0] < 0.3 and rewards[-1] > 0.9
    assert record.num_rows == 8
    assert json.loads((tmp_path / "out" / "training.json").read_text())["curves"] == record.curves
    assert {"equal_groups", "parsed", "truncated", "grad_norm", "gap", "length", "entropy"} <= record.curves.keys()
    assert not list(tmp_path.glob("out.*"))


@pytest.mark.parametrize("lora", [None, {"rank": 4, "alpha": 8}], ids=["full", "lora"])
def test_a_killed_training_goes_on_bit_by_bit(
    base: ModelRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: Any
) -> None:
    config = GrpoConfig.model_validate(SMALL.model_dump() | {"lora": lora, "kl": 0.05, "epochs": 10})

    class Dying(Echo):
        calls = 0

        def parse(self, completion: str, example: Mapping[str, Any]) -> str | None:
            self.calls += 1
            if self.calls > 200:
                raise KeyboardInterrupt  # the only kind that a domain cannot have caught
            return super().parse(completion, example)

    straight = trained(base, tmp_path / "straight", config)
    with pytest.raises(KeyboardInterrupt):
        trained(base, tmp_path / "killed", config, domain=Dying())
    assert list((tmp_path / "killed.partial" / "checkpoints").glob("checkpoint-*"))
    resumed = trained(base, tmp_path / "killed", config)
    assert resumed.losses == straight.losses and resumed.curves == straight.curves
    found, wanted = (weights(read_saved(base, config.lora, tmp_path / name).model) for name in ("killed", "straight"))
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_point_of_a_long_curve_is_the_mean_over_the_steps_between(
    base: ModelRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = trained(base, tmp_path / "every", SMALL.model_copy(update={"epochs": 5}))
    monkeypatch.setattr(grpo, "LOGGING_SHARE", 0.2)
    found = trained(base, tmp_path / "means", SMALL.model_copy(update={"epochs": 5}))
    assert every.curves["step"] == list(range(1, 11)) and found.curves["step"] == [2, 4, 6, 8, 10]
    for name in ("reward", "entropy"):
        np.testing.assert_allclose(found.curves[name], np.reshape(every.curves[name], (5, 2)).mean(axis=1), atol=1e-6)
    np.testing.assert_allclose(found.losses, np.reshape(every.losses, (5, 2)).mean(axis=1), atol=1e-6)
    monkeypatch.setattr(grpo, "LOGGING_SHARE", 0.3)
    rest = trained(base, tmp_path / "rest", SMALL.model_copy(update={"epochs": 5}))
    assert rest.curves["step"] == [3, 6, 9], "the tenth step is in no point"
    np.testing.assert_allclose(rest.losses, np.reshape(every.losses[:9], (3, 3)).mean(axis=1), atol=1e-6)


def test_draws_follow_from_seed_place_and_number_alone(base: ModelRef) -> None:
    places = [0, 0, 1, 1, 2, 2]
    whole = make_seeds(5, places, 2, 0)
    assert whole == [*make_seeds(5, places[:2], 2, 0), *make_seeds(5, places[2:], 2, 2)] and len(set(whole)) == 6
    assert whole[3:] == make_seeds(5, places[3:], 2, 3) and not set(whole) & set(make_seeds(6, places, 2, 0))
    tokenizer, model = load_tokenizer(base), load_model(base)
    drawing = TransformersRollouts(tokenizer, RolloutsConfig(max_tokens=6), [tokenizer.eos_token_id])
    prompts = [[3], [4, 5, 6], [7, 8]] * 2
    wanted = [Wanted(prompt, seed) for prompt, seed in zip(prompts, whole, strict=True)]
    together = drawing._draw(model, wanted)
    for item, rollout in zip(wanted, together, strict=True):
        (alone,) = drawing._draw(model, [item])
        assert alone.tokens == rollout.tokens and alone.logprobs == pytest.approx(rollout.logprobs, abs=1e-5)
        assert rollout.truncated == (rollout.tokens[-1] != tokenizer.eos_token_id)


def test_tokens_are_drawn_as_often_as_they_are_likely(base: ModelRef) -> None:
    tokenizer, model = load_tokenizer(base), load_model(base)
    drawing = TransformersRollouts(tokenizer, RolloutsConfig(max_tokens=1, temperature=0.5), [tokenizer.eos_token_id])
    rollouts = drawing._draw(model, [Wanted([3, 4], seed) for seed in make_seeds(0, range(20_000), 1, 0)])
    counts_V = np.bincount([rollout.tokens[0] for rollout in rollouts], minlength=len(tokenizer)) / len(rollouts)
    with torch.no_grad():
        probs_V = (model(torch.tensor([[3, 4]])).logits[0, -1] / 0.5).softmax(-1).numpy()
    error_V = np.sqrt(probs_V * (1 - probs_V) / len(rollouts))
    assert (np.abs(counts_V - probs_V) < 4.5 * error_V).all()


def test_a_model_without_a_cache_of_keys_and_values_is_refused(base: ModelRef) -> None:
    tokenizer = load_tokenizer(base)
    drawing = TransformersRollouts(tokenizer, RolloutsConfig(max_tokens=2), [tokenizer.eos_token_id])
    model = MambaForCausalLM(MambaConfig(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1))
    with pytest.raises(ConfigError, match=r"student\.rollouts\.backend: transformers draws .* MambaForCausalLM"):
        drawing._draw(model, [Wanted([3, 4], 1)])


@pytest.mark.parametrize(
    ("domain", "example", "label", "texts"),
    [
        (DomainConfig(name="math"), {"problem": "1+1"}, "2", {"\\boxed{2}": 1, "\\boxed{\\frac{4}{2}}": 1, "2": 0}),
        (
            DomainConfig(name="mcqa"),
            {"question": "?", "choices": ["red", "blue"], "keys": ["A", "B"]},
            "B",
            {" B": 1, " A": 0, "none": 0},
        ),
        (
            DomainConfig(name="chess"),
            {"fen": "6k1/5ppp/8/8/8/8/8/R6K w - - 0 1", "rating": 1},
            "a1a8",
            {" a1a8": 1, " a1a7": 0, " hello": 0},
        ),
    ],
    ids=["math", "mcqa", "chess"],
)
def test_rewards_are_the_domains_own_grades(
    domain: DomainConfig, example: Mapping[str, Any], label: str, texts: Mapping[str, int]
) -> None:
    tasks = [RolloutTask(row_id=0, prompt=[1], example=example, label=label)] * len(texts)
    graded = grade(get_domain(domain), tasks, list(texts))
    assert [item.right for item in graded] == [bool(value) for value in texts.values()], graded
    unlabelled = [RolloutTask(row_id=0, prompt=[1], example=example, label=None)] * len(texts)
    assert not any(item.right for item in grade(get_domain(domain), unlabelled, list(texts)))


def test_what_cannot_be_graded_is_worth_nothing_and_counted(base: ModelRef, tmp_path: Path) -> None:
    record = trained(base, tmp_path / "out", SMALL, labels="01999999")
    assert np.mean(record.curves["reward_errors"]) == pytest.approx(0.75, abs=0.1)


def test_a_loss_that_is_not_finite_stops_and_keeps_the_checkpoint(
    base: ModelRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = grpo.GRPOTrainer.compute_loss

    def broken(trainer: Any, *args: Any) -> Any:
        return compute(trainer, *args) * (math.nan if trainer.state.global_step == 5 else 1)

    config = SMALL.model_copy(update={"epochs": 10, "global_batch_size": 2, "micro_batch_size": 8})
    with monkeypatch.context() as patch:
        patch.setattr(grpo.GRPOTrainer, "compute_loss", broken)
        with pytest.raises(TrainingError, match=r"step 6: the loss or a gradient is not finite \(norm nan\); lower"):
            trained(base, tmp_path / "out", config)
    checkpoints = list((tmp_path / "out.partial" / "checkpoints").glob("checkpoint-*"))
    assert len(checkpoints) == 1
    assert all(torch.isfinite(weight).all() for weight in weights(ModelRef(base=str(checkpoints[0]))).values())
    assert trained(base, tmp_path / "out", config).losses


def test_bad_input_is_refused(base: ModelRef, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no rows to train on"):
        trained(base, tmp_path / "out", SMALL, labels="")
    with pytest.raises(SourceError, match="all 1 prompts exceed max_length 1"):
        reinforce(
            base, Questions(["012"], ["0"], [{"row_id": 0}]), Echo(), SMALL.model_copy(update={"max_length": 1}),
            seed=0, output=tmp_path / "out",
        )  # fmt: skip
    with pytest.raises(ConfigError, match="4 prompts x group_size 4 = 16 answers are not a multiple"):
        count_accumulation_steps(SMALL.model_copy(update={"micro_batch_size": 3}), 1)
    with pytest.raises(ValueError, match=r"group_size\n.*greater than or equal to 2"):
        GrpoConfig(group_size=1)
    assert count_accumulation_steps(GrpoConfig(), 4) == 32


def test_the_reference_is_not_spread_by_trl_but_left_to_fsdp(base: ModelRef, tmp_path: Path) -> None:
    told = _make_arguments(GrpoConfig(preset="scratch"), base, num_steps=1, seed=0, work=tmp_path)
    assert told.model_init_kwargs is not None and told.model_init_kwargs["device_map"] is None
