"""Passes of a causal LM over a batch, on a key-value cache: logits, and what the language-model head reads.

That is the state of a token: last layer, after the final norm (paper, section "Neural Trust Functions"). A hook on the
head takes its input, and the head computes only the positions that are asked for, so that states cost no second pass.
Other layers are asked of the model itself (``output_hidden_states``), which then holds all of them during a pass.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from transformers import DynamicCache, PreTrainedModel

from curation.config.states import LAST
from curation.errors import ModelError

T = TypeVar("T")


@dataclass(kw_only=True)
class Prefix:
    """What the rows of a batch have been fed so far."""

    cache: DynamicCache
    mask_BT: torch.Tensor | None
    """0 at padding; None without padding: attention is then plainly causal, and faster."""
    length_B: torch.Tensor
    """Tokens of each row, padding on the left not counted: the position of the next one."""
    layers: tuple[int, ...]
    """Whose states each pass gives, side by side (``curation.config.states.layers_of``)."""

    @property
    def width(self) -> int:
        """Tokens of a row, padded."""
        return int(self.cache.get_seq_length())

    def select(self, places_K: torch.Tensor) -> "Prefix":
        """A prefix of the rows at these places, which may repeat; this one stays as it is."""
        cache = copy(self.cache)
        cache.layers = [copy(layer) for layer in self.cache.layers]
        cache.batch_select_indices(places_K)
        mask_KT = None if self.mask_BT is None else self.mask_BT[places_K]
        return Prefix(cache=cache, mask_BT=mask_KT, length_B=self.length_B[places_K], layers=self.layers)


class Pass(NamedTuple):
    """What a pass gives for its newest T tokens."""

    logits_BTV: torch.Tensor
    """float32."""
    hidden_BTD: torch.Tensor


class Forward:
    """Feeds prompts, and what follows them, to a model."""

    def __init__(self, model: PreTrainedModel, *, pad: int) -> None:
        """Hook the head of ``model``; ``pad`` is the token that fills rows up.

        Raises:
            ModelError: a model without a language-model head.
        """
        head: torch.nn.Linear | None = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if head is None:
            raise ModelError(f"model {model.name_or_path!r} has no language-model head to read hidden states from")
        text_config = model.config.get_text_config()
        self.pad = pad
        self.device = model.device
        self.vocabulary_size, self.state_size = map(int, head.weight.shape)
        self.max_positions: int | None = getattr(text_config, "max_position_embeddings", None)
        self.num_layers = int(text_config.num_hidden_layers)
        self._model = model
        self._hidden_BTD: torch.Tensor | None = None
        head.register_forward_pre_hook(self._keep_hidden)

    def _keep_hidden(self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._hidden_BTD = inputs[0]

    def start(self, prompts: Sequence[list[int]], layers: tuple[int, ...] = (LAST,)) -> tuple[Prefix, Pass]:
        """Feed the prompts, padded on the left; the pass is that of their last tokens."""
        width = max(map(len, prompts))
        padding = [width - len(prompt) for prompt in prompts]
        ids_BT = self.tensor([[self.pad] * pads + prompt for pads, prompt in zip(padding, prompts, strict=True)])
        mask_BT = self.tensor([[0] * pads + [1] * (width - pads) for pads in padding]) if any(padding) else None
        prefix = Prefix(
            cache=DynamicCache(config=self._model.config),
            mask_BT=mask_BT,
            length_B=self.tensor([len(prompt) for prompt in prompts]),
            layers=layers,
        )
        position_BT = torch.arange(width, device=self.device)[None] - self.tensor(padding)[:, None]
        return prefix, self._pass(prefix, ids_BT, position_BT.clamp(min=0), keep=1)

    def extend(self, prefix: Prefix, ids_BT: torch.Tensor) -> Pass:
        """Feed further tokens, which ``prefix`` then holds; the pass is that of all of them.

        Rows of unlike length are to be padded on the right: no token before the padding sees it.
        """
        width = ids_BT.shape[1]
        position_BT = prefix.length_B[:, None] + torch.arange(width, device=self.device)
        if self.max_positions:
            position_BT = position_BT.clamp(max=self.max_positions - 1)  # only padding goes beyond
        if prefix.mask_BT is not None:
            prefix.mask_BT = torch.cat([prefix.mask_BT, torch.ones_like(ids_BT)], dim=1)
        prefix.length_B = prefix.length_B + width
        return self._pass(prefix, ids_BT, position_BT, keep=width)

    def tensor(self, values: Sequence[int] | Sequence[list[int]]) -> torch.Tensor:
        """Integers on the model's device."""
        return torch.tensor(values, device=self.device)

    def _pass(self, prefix: Prefix, ids_BT: torch.Tensor, position_BT: torch.Tensor, *, keep: int) -> Pass:
        output = self._model(
            input_ids=ids_BT,
            attention_mask=prefix.mask_BT,
            position_ids=position_BT,
            past_key_values=prefix.cache,
            use_cache=True,
            logits_to_keep=keep,
            output_hidden_states=prefix.layers != (LAST,),
        )
        last_BTD, self._hidden_BTD = self._hidden_BTD, None
        assert last_BTD is not None, "the language-model head was not called"
        kept = [last_BTD if layer == LAST else self._layer(output, layer) for layer in prefix.layers]
        hidden_BTD = kept[0] if len(kept) == 1 else torch.cat([layer_BTD[:, -keep:] for layer_BTD in kept], dim=-1)
        return Pass(output.logits[:, -keep:].float(), hidden_BTD[:, -keep:])

    def _layer(self, output: Any, layer: int) -> torch.Tensor:
        given: tuple[torch.Tensor, ...] = output.hidden_states or ()
        if len(given) != self.num_layers + 1:
            raise ModelError(
                f"model {self._model.name_or_path!r} gives {len(given)} hidden states for {self.num_layers} layers, so "
                f"that layer {layer}'s is not known; name states of the last layer"
            )
        return given[layer]


def batches(items: Sequence[T], num_tokens: Callable[[T], int], batch_tokens: int) -> Iterator[list[T]]:
    """The items, longest first, in batches that fit ``batch_tokens`` when padded; at least one each."""
    ordered = sorted(items, key=num_tokens, reverse=True)
    start = 0
    while start < len(ordered):
        size = max(1, batch_tokens // num_tokens(ordered[start]))
        yield ordered[start : start + size]
        start += size
