"""Fine-tuning in each family of models: what the loss covers, which layers LoRA adapts, what is saved."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from benchmarks.taught import write_pairs
from curation.config import SftConfig
from curation.models import load_model, load_tokenizer, resolve
from curation.refs import ModelRef
from tests.families import Family, pairs
from train.models import read_saved
from train.sft import IGNORED, collate, compute_completion_loss, fine_tune
from train.tokens import Pair, TrainingRow, tokenize

pytestmark = pytest.mark.long

FULL = SftConfig(preset="scratch", global_batch_size=8, micro_batch_size=8, learning_rate=5e-3, epochs=4)
LORA = SftConfig(
    lora={"rank": 4, "alpha": 8}, global_batch_size=8, micro_batch_size=4, learning_rate=1e-2, epochs=2, max_length=160
)


def modes(family: Family) -> list[bool]:
    """With and without the chat template, as far as the family has one."""
    return [False] if family.template is None else [False, True]


def plain(path: str) -> torch.nn.Module:
    """The model of a directory as transformers alone loads it."""
    return AutoModelForCausalLM.from_pretrained(path).eval()


def batch_of(rows: Sequence[TrainingRow], pad: int) -> dict[str, Any]:
    """A batch of training, without what is for the trainer alone."""
    batch = collate([{**row, "row_id": number} for number, row in enumerate(rows)], pad)
    return batch


@torch.inference_mode()
def logits(model: torch.nn.Module, ref: ModelRef) -> torch.Tensor:
    """Of a few rows of training, padded on the right."""
    tokenizer = load_tokenizer(ref)
    batch = batch_of(tokenize(tokenizer, pairs(4), 160), tokenizer.pad_token_id)
    out = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return out[batch["attention_mask"].bool()]


def test_the_loss_covers_completion_and_end_token_alone(family: Family, family_model: ModelRef) -> None:
    tokenizer = load_tokenizer(family_model)
    given = [pairs(1)[0], Pair("Problem: 12 * 3 + 4 = ?\nSolution:", " The final answer is \\boxed{40}, é。")]
    for chat in modes(family):
        rows = tokenize(tokenizer, given, max_length=160, chat_template=chat)
        batch = batch_of(rows, tokenizer.pad_token_id)
        unread = batch["input_ids"].shape[1] - batch["labels"].shape[1]
        for index, pair in enumerate(given):
            turn = [{"role": "user", "content": pair.prompt}]
            prompt = (
                tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
                if chat
                else tokenizer(pair.prompt)["input_ids"]
            )
            completion = tokenizer(pair.completion, add_special_tokens=False)["input_ids"]
            end = tokenizer.convert_tokens_to_ids(family.eos)
            ids = batch["input_ids"][index].tolist()
            labels = [IGNORED] * unread + batch["labels"][index].tolist()
            mask = batch["attention_mask"][index].tolist()
            length = len(prompt) + len(completion) + 1
            print(f"\n{family.name}, chat template {'on' if chat else 'off'}: token, and - (no loss) or + (loss)")
            words = tokenizer.convert_ids_to_tokens(ids)
            print(*(f"{word}{'-' if label == IGNORED else '+'}" for word, label in zip(words, labels, strict=True)))
            assert ids[:length] == [*prompt, *completion, end]
            assert labels == [IGNORED] * len(prompt) + [*completion, end] + [IGNORED] * (len(ids) - length)
            assert mask == [1] * length + [0] * (len(ids) - length)
            trained = [token for token in labels if token != IGNORED]
            assert tokenizer.decode(trained) == pair.completion + family.eos
            assert set(ids[length:]) <= {tokenizer.pad_token_id}
            if family.bos is not None:
                assert ids[:length].count(tokenizer.bos_token_id) == 1 and ids[0] == tokenizer.bos_token_id
        assert len({len(row["input_ids"]) for row in rows}) == 2, "one of them is padded"
    assert (tokenizer.pad_token_id == tokenizer.eos_token_id) == (family.pad is None)


def test_the_loss_of_a_padded_batch_equals_that_of_its_rows(family: Family, family_model: ModelRef) -> None:
    """Also where padding and end are one token."""
    tokenizer, model = load_tokenizer(family_model), load_model(family_model)
    given = [*pairs(2), Pair("Problem: 12 * 3 + 4 = ?\nSolution:", " 40")]
    rows = tokenize(tokenizer, given, max_length=160)
    parts, counts = [], []
    with torch.inference_mode():
        for some in ([row] for row in rows):
            batch = batch_of(some, tokenizer.pad_token_id)
            labels_BK = batch.pop("labels")
            counts.append(int((labels_BK != IGNORED).sum()))
            parts.append(compute_completion_loss(model(**batch).logits, labels_BK).item() * counts[-1])
        batch = batch_of(rows, tokenizer.pad_token_id)
        labels_BK = batch.pop("labels")
        together = compute_completion_loss(model(**batch).logits, labels_BK).item()
    assert together == pytest.approx(sum(parts) / sum(counts), abs=1e-5)


def test_lora_adapts_every_linear_layer_and_loads_in_plain_peft(
    family: Family, family_model: ModelRef, tmp_path: Path
) -> None:
    config = LORA.model_copy(update={"chat_template": family.template is not None})
    fine_tune(family_model, write_pairs(pairs(16), tmp_path / "16.lance"), config, seed=0, output=tmp_path / "adapter")
    ref = read_saved(family_model, config.lora, tmp_path / "adapter").model
    assert ref == resolve(family_model.base, adapter=str(tmp_path / "adapter"))
    loaded = PeftModel.from_pretrained(plain(family_model.base), str(tmp_path / "adapter")).eval()
    names = {name.removeprefix("base_model.model.") for name, part in loaded.named_modules() if hasattr(part, "lora_A")}
    print(f"\n{family.name}: LoRA on", *sorted(names), sep="\n  ")
    assert names == family.linear
    weights = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert {name.split(".lora_")[0].removeprefix("base_model.model.") for name in weights} == names
    base_TV, peft_TV, ours_TV = (
        logits(model, family_model) for model in (plain(family_model.base), loaded, load_model(ref))
    )
    torch.testing.assert_close(ours_TV, peft_TV, atol=1e-4, rtol=1e-4)
    assert (peft_TV - base_TV).abs().max() > 0.1


def test_full_weights_are_saved_whole_and_tied_ones_once(
    family: Family, family_model: ModelRef, tmp_path: Path
) -> None:
    class Last:
        """Keeps the last checkpoint's weights."""

        def keep(self, directory: Path) -> None:
            (weights,) = directory.glob("checkpoints/*/model.safetensors")
            shutil.copy(weights, tmp_path / "last.safetensors")

        def restore(self, directory: Path) -> None:
            """There is nothing yet."""

    rows = write_pairs(pairs(48), tmp_path / "48.lance")
    record = fine_tune(family_model, rows, FULL, seed=0, output=tmp_path / "full", kept=Last())
    ref = read_saved(family_model, FULL.lora, tmp_path / "full").model
    kept, last = load_file(tmp_path / "full" / "model.safetensors"), load_file(tmp_path / "last.safetensors")
    assert ("lm_head.weight" in kept) == (not family.tied) and set(kept) == set(last)
    assert all(torch.equal(kept[name], last[name]) for name in kept)
    model, again = load_model(ref), plain(ref.base)
    torch.testing.assert_close(logits(model, ref), logits(again, ref), atol=1e-5, rtol=0)
    for one in (model, again):
        assert (one.get_output_embeddings().weight is one.get_input_embeddings().weight) == family.tied
    first_loss, last_loss = record.losses[0], record.losses[-1]
    tokenizer = load_tokenizer(ref)
    batch = batch_of(tokenize(tokenizer, pairs(48), 160), tokenizer.pad_token_id)
    with torch.inference_mode():
        loss = compute_completion_loss(
            model(**{k: v for k, v in batch.items() if k != "labels"}).logits, batch["labels"]
        ).item()
    print(f"\n{family.name}: loss {first_loss:.2f} to {last_loss:.2f}; of the saved model {loss:.2f}")
    assert max(loss, last_loss) < first_loss / 2

    base = load_tokenizer(family_model)
    assert [tokenizer(pair.prompt)["input_ids"] for pair in pairs(4)] == [
        base(pair.prompt)["input_ids"] for pair in pairs(4)
    ]
    assert (tokenizer.chat_template, tokenizer.eos_token) == (base.chat_template, base.eos_token)
    assert model.generation_config.eos_token_id == load_model(family_model).generation_config.eos_token_id
