"""Reward models, which give one number for a prompt and an answer (paper, App. "Baseline Details").

They have a sequence-classification head as in Skywork-Reward-V2, or a head of the model's own code as in ArmoRM (the
output's ``score``) and Qwen2.5-Math-RM (the output's first field). A verifier that judges in words is a signal instead
(``curation.signals.methods``).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from curation.arrays import Float32s
from curation.errors import ModelError
from curation.heavy import torch, transformers
from curation.models import encode_texts, fetch_model, load_tokenizer
from curation.models.loading import load_weights
from curation.models.own_code import check_head
from curation.refs import ModelRef
from curation.teachers.prompts import iter_padded_batches


class RewardModel:
    """A model with a reward head; one forward batch has at most ``batch_tokens`` tokens, padding included.

    Raises:
        ModelError: the model does not load, has no trained reward head, or brings code that is not allowed.
    """

    def __init__(self, ref: ModelRef, *, device: str = "cpu", dtype: str = "float32", batch_tokens: int = 8192) -> None:
        self._device, self._batch_tokens = device, batch_tokens
        ref = fetch_model(ref)
        self._model = _load(ref, dtype).to(device).eval()
        self._tokenizer = load_tokenizer(ref)
        shape = self._model.config.get_text_config()
        self._pad = shape.pad_token_id
        self._max_positions = getattr(shape, "max_position_embeddings", None)

    def score(self, pairs: Sequence[tuple[str, str]]) -> Float32s:
        """Return the rewards of (prompt, completion) pairs, float32 [N]; NaN for a pair with no tokens or too many."""
        reward_N = np.full(len(pairs), np.nan, dtype=np.float32)
        texts = [self._format_text(prompt, completion) for prompt, completion in pairs]
        special = self._tokenizer.chat_template is None  # a template writes special tokens itself
        tokens = encode_texts(self._tokenizer, texts, special=special) if texts else []
        fits = [place for place, ids in enumerate(tokens) if 0 < len(ids) <= (self._max_positions or len(ids))]
        # A head that knows no padding token reads the last position, so its rows go one by one.
        batch_tokens = 0 if self._pad is None else self._batch_tokens
        for batch in iter_padded_batches(fits, lambda place: len(tokens[place]), batch_tokens):
            longest = len(tokens[batch[0]])
            padding = [longest - len(tokens[place]) for place in batch]
            ids_BT = [tokens[place] + [self._pad] * pads for place, pads in zip(batch, padding, strict=True)]
            mask_BT = [[1] * (longest - pads) + [0] * pads for pads in padding]
            with torch.inference_mode():
                output = self._model(
                    input_ids=torch.tensor(ids_BT, device=self._device),
                    attention_mask=torch.tensor(mask_BT, device=self._device),
                )
            reward_B = getattr(output, "score", output[0]).float().cpu().numpy()
            if reward_B.size != len(batch):
                raise ModelError(
                    f"reward model: gives {reward_B.shape} for {len(batch)} rows; it needs one number a row"
                )
            reward_N[batch] = reward_B.reshape(-1)
        return reward_N

    def _format_text(self, prompt: str, completion: str) -> str:
        """Return one user and one assistant turn if the tokenizer has a chat template, else prompt plus completion."""
        if self._tokenizer.chat_template is None:
            return prompt + completion
        turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion.strip()}]
        return str(self._tokenizer.apply_chat_template(turns, tokenize=False))


def _load(ref: ModelRef, dtype: str) -> Any:
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if ref.adapter is not None:
        raise ModelError(f"reward model {ref.base!r}: takes no adapter, found {ref.adapter!r}; merge it into the model")
    own_code = check_head(ref)
    loader: Any = transformers.AutoModelForSequenceClassification
    if "AutoModel" in own_code and loader.__name__ not in own_code:
        loader = transformers.AutoModel
    try:
        model, found = load_weights(loader, ref, dtype=getattr(torch, dtype), output_loading_info=True)
    except ModelError:
        raise
    except (OSError, ValueError, RuntimeError, ImportError, AttributeError) as error:
        raise ModelError(f"reward model {ref.base!r} does not load: {error}") from error
    if missing := sorted(found["missing_keys"]):  # transformers fills them with random numbers
        raise ModelError(
            f"reward model {ref.base!r} lacks the weights {', '.join(missing)}; give a trained reward model"
        )
    model.config.use_cache = False  # nothing is generated
    return model
