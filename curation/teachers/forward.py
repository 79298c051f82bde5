"""Passes of a causal LM over a batch, on a key-value cache: logits and hidden states.

The state of a token is the input of the language-model head: last layer, after the final norm (paper, section "Neural
Trust Functions"). A hook on the head takes it, and the head computes only the requested positions, so that states cost
no second pass. For other layers the model keeps the states of all layers during a pass (``output_hidden_states``).
"""

from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch.nn.functional import linear
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionCacheLayerMixin

from curation.config.states import LAST
from curation.errors import ModelError

TILES = {"cpu": 2**21, "cuda": 2**27}
"""Number of logits per tile of :meth:`Forward.logprobs`: in float32, 8 MiB to fit a CPU's cache, and 0.5 GiB."""


@dataclass(kw_only=True)
class Prefix:
    """The tokens that the rows of a batch have been fed so far."""

    cache: DynamicCache
    mask_BT: torch.Tensor | None
    """Attention mask, 0 at padding; None without padding, since plain causal attention is faster."""
    length_B: torch.Tensor
    """Number of tokens of each row without padding on the left, which is the position of the next token."""
    layers: tuple[int, ...]
    """Layers whose states each pass returns, concatenated (``curation.config.states.find_layers``)."""

    @property
    def width(self) -> int:
        """Number of tokens of a row, with padding."""
        return int(self.cache.get_seq_length())

    def select(self, places_K: torch.Tensor) -> "Prefix":
        """Return a prefix of the rows at these indices, which may repeat; this prefix is not changed."""
        prefix = self.fork()
        layers: list[Any] = prefix.cache.layers
        for layer in layers:
            recurrent = isinstance(layer, LinearAttentionCacheLayerMixin)
            (layer.reorder_cache if recurrent else layer.batch_select_indices)(places_K)
        prefix.mask_BT = None if self.mask_BT is None else self.mask_BT[places_K]
        prefix.length_B = self.length_B[places_K]
        return prefix

    def fork(self) -> "Prefix":
        """Return a copy of this prefix that can be extended without changing it."""
        cache = copy(self.cache)
        in_place = LinearAttentionCacheLayerMixin  # a recurrent state is overwritten; keys and values are replaced
        cache.layers = [deepcopy(layer) if isinstance(layer, in_place) else copy(layer) for layer in self.cache.layers]
        return Prefix(cache=cache, mask_BT=self.mask_BT, length_B=self.length_B, layers=self.layers)

    def has_room(self, num_tokens: int) -> bool:
        """Return whether ``num_tokens`` further tokens would each see their whole row, with no layer's window full."""
        windows = [layer.sliding_window for layer in self.cache.layers if isinstance(layer, DynamicSlidingWindowLayer)]
        return self.width + num_tokens < min(windows, default=self.width + num_tokens + 1)


class ForwardPass(NamedTuple):
    """Outputs of a pass for its newest T tokens."""

    logits_BTV: torch.Tensor  # logits, float32; only of the last token if the pass ran without ``logits``
    hidden_BTD: torch.Tensor


class Forward:
    """A wrapper of a causal LM that feeds it prompts and the tokens that follow them."""

    def __init__(self, model: PreTrainedModel, *, pad: int) -> None:
        """Wrap ``model``; ``pad`` is the padding token. Raise ``ModelError`` if there is no language-model head."""
        head: torch.nn.Linear | None = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if head is None:
            raise ModelError(f"model {model.name_or_path!r} has no language-model head to read hidden states from")
        text_config = model.config.get_text_config()
        self.pad = pad
        self.device = model.device
        self.vocabulary_size, self.state_size = map(int, head.weight.shape)
        self.max_positions: int | None = getattr(text_config, "max_position_embeddings", None)
        self.num_layers = int(text_config.num_hidden_layers)
        self._model, self._head = model, head

    def start(self, prompts: Sequence[list[int]], layers: tuple[int, ...] = (LAST,)) -> tuple[Prefix, ForwardPass]:
        """Feed the prompts, padded on the left, and return the outputs at their last tokens."""
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
        return prefix, self._run_pass(prefix, ids_BT, position_BT.clamp(min=0), keep=1)

    def extend(self, prefix: Prefix, ids_BT: torch.Tensor, *, logits: bool = True) -> ForwardPass:
        """Feed further tokens, add them to ``prefix`` in place, and return the outputs at all of them.

        Pad rows of different length on the right, where no token sees the padding. Without ``logits`` the head computes
        only the last token, since it is most of the work for a small model with a large vocabulary.
        """
        width = ids_BT.shape[1]
        position_BT = prefix.length_B[:, None] + torch.arange(width, device=self.device)
        if self.max_positions:
            position_BT = position_BT.clamp(max=self.max_positions - 1)  # only padding goes beyond
        if prefix.mask_BT is not None:
            prefix.mask_BT = torch.cat([prefix.mask_BT, torch.ones_like(ids_BT)], dim=1)
        prefix.length_B = prefix.length_B + width
        return self._run_pass(prefix, ids_BT, position_BT, keep=width, logits=logits)

    def branch(
        self,
        prefix: Prefix,
        ids_BT: torch.Tensor,
        depth_BT: torch.Tensor,
        sees_BTN: torch.Tensor,
        *,
        logits: bool = True,
    ) -> ForwardPass:
        """Feed further tokens of several continuations of each row, and add them to ``prefix`` in place.

        ``depth_BT`` is a token's index within its continuation; ``sees_BTN`` is whether a token sees each of the N
        tokens fed after the prompt, these included, besides the prompt. Requires :attr:`takes_branches` and
        ``prefix.has_room``. ``logits`` is as in :meth:`extend`.
        """
        width, (num_rows, num_new, num_fed) = prefix.width + ids_BT.shape[1], sees_BTN.shape
        prompt_BT = prefix.mask_BT
        if prompt_BT is None:
            prompt_BT = torch.ones((num_rows, width - num_fed), dtype=torch.bool, device=self.device)
        sees_BTK = torch.cat([prompt_BT.bool()[:, None].expand(-1, num_new, -1), sees_BTN], dim=2)
        dtype = self._model.dtype
        mask_B1TK = torch.zeros((num_rows, 1, num_new, width), dtype=dtype, device=self.device)
        mask_B1TK.masked_fill_(~sees_BTK[:, None], torch.finfo(dtype).min)
        position_BT = prefix.length_B[:, None] + depth_BT
        return self._run_pass(prefix, ids_BT, position_BT, keep=num_new, mask=mask_B1TK, logits=logits)

    def logprobs(self, read_KD: torch.Tensor, k_C: torch.Tensor, token_C: torch.Tensor) -> torch.Tensor:
        """Return log-probabilities, float32 [C], of ``token_C``, each given the head's input at index ``k_C``.

        Requires :attr:`head_is_linear`. Logits are summed up by tiles of the vocabulary, and never held as [K, V].
        """
        weight_VD, bias_V = self._head.weight, self._head.bias
        width, sums = max(1, TILES[self.device.type] // len(read_KD)), []
        for begin in range(0, len(weight_VD), width):
            tile = slice(begin, begin + width)
            logits_Kt = linear(read_KD, weight_VD[tile], None if bias_V is None else bias_V[tile])
            sums.append(logits_Kt.float().logsumexp(dim=-1))
        logit_C = (read_KD[k_C].float() * weight_VD[token_C].float()).sum(dim=-1)
        if bias_V is not None:
            logit_C = logit_C + bias_V[token_C].float()
        rounded_C = logit_C.to(weight_VD.dtype).float()  # as the head's own are
        return rounded_C - torch.stack(sums).logsumexp(dim=0)[k_C]

    @cached_property
    def head_is_linear(self) -> bool:
        """Whether logits are exactly the head's linear product, tested by replacing the head's input with a test state.

        The state's largest logit is 100, to reveal a cap as well as a scale. Adapted and quantised heads fail the test.
        """
        if type(self._head) is not torch.nn.Linear:
            return False
        weight_VD, eps = self._head.weight, torch.finfo(self._head.weight.dtype).eps
        with torch.inference_mode():
            state_11D = torch.randn((1, 1, weight_VD.shape[1]), generator=torch.Generator().manual_seed(0))
            state_11D = state_11D.to(weight_VD)
            state_11D = state_11D * (100 / linear(state_11D, weight_VD).abs().max())
            hook = self._head.register_forward_pre_hook(lambda *_: (state_11D,))
            try:
                found_11V = self.start([[0]])[1].logits_BTV
            finally:
                hook.remove()
            expected_11V = linear(state_11D, weight_VD, self._head.bias).float()
        same_shape = found_11V.shape == expected_11V.shape
        return same_shape and torch.allclose(found_11V, expected_11V, rtol=4 * eps, atol=400 * eps)

    @cached_property
    def takes_branches(self) -> bool:
        """Whether the model follows the mask of :meth:`branch`, tested on two short continuations of a row.

        The second continuation must not see the first, so the error is compared with the change that seeing it would
        make. Models that have a recurrent state or compute positions themselves fail the test.
        """
        known = (DynamicLayer, DynamicSlidingWindowLayer)
        config = self._model.config.get_text_config()
        layers = DynamicCache(config=self._model.config).layers
        if (
            not all(type(layer) in known for layer in layers)
            or not {"full_attention", "sliding_attention"} >= set(getattr(config, "layer_types", None) or ())
            or config._attn_implementation not in ("sdpa", "eager")
            or "position_ids" not in signature(self._model.forward).parameters
        ):
            return False
        first, second, third = (min(place, self.vocabulary_size - 1) for place in (3, 4, 5))
        with torch.inference_mode():
            prompts = [[first, second, third], [second]]
            branched, plain, misled = (self.start(prompts)[0] for _ in range(3))
            if not branched.has_room(3):
                return False
            ids_BT = self.tensor([[first, third, second]] * 2)  # the first and its successor; the other one alone
            sees_TN = self.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 1]]).bool()
            found_BTD = self.branch(branched, ids_BT, self.tensor([[0, 1, 0]]), sees_TN.expand(2, 3, 3)).hidden_BTD
            alone_B1D = self.extend(plain, ids_BT[:, 2:], logits=False).hidden_BTD
            after_BTD = self.extend(misled, ids_BT, logits=False).hidden_BTD
        change = (after_BTD[:, 2] - alone_B1D[:, 0]).abs().max()
        errors = (found_BTD[:, :2] - after_BTD[:, :2]).abs().max(), (found_BTD[:, 2] - alone_B1D[:, 0]).abs().max()
        return bool(max(errors) < change / 10)

    def tensor(self, values: Sequence[int] | Sequence[list[int]]) -> torch.Tensor:
        """Return integers as a tensor on the model's device."""
        return torch.tensor(values, device=self.device)

    def _run_pass(
        self,
        prefix: Prefix,
        ids_BT: torch.Tensor,
        position_BT: torch.Tensor,
        *,
        keep: int,
        mask: torch.Tensor | None = None,
        logits: bool = True,
    ) -> ForwardPass:
        read: list[torch.Tensor] = []

        def keep_state(head: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor] | None:
            read.append(inputs[0])
            return None if logits else (inputs[0][:, -1:],)

        hook = self._head.register_forward_pre_hook(keep_state)
        try:
            output = self._model(
                input_ids=ids_BT,
                attention_mask=prefix.mask_BT if mask is None else mask,
                position_ids=position_BT,
                past_key_values=prefix.cache,
                use_cache=True,
                logits_to_keep=keep,
                output_hidden_states=prefix.layers != (LAST,),
            )
        finally:
            hook.remove()
        assert read, "the language-model head was not called"
        last_BTD = read[-1]
        given = output.hidden_states or ()
        if prefix.layers != (LAST,) and len(given) != self.num_layers + 1:
            raise ModelError(
                f"model {self._model.name_or_path!r} gives {len(given)} hidden states for {self.num_layers} layers, so "
                f"that layer {max(prefix.layers)}'s is not known; name states of the last layer"
            )
        kept = [last_BTD if layer == LAST else given[layer] for layer in prefix.layers]
        hidden_BTD = kept[0] if len(kept) == 1 else torch.cat([layer_BTD[:, -keep:] for layer_BTD in kept], dim=-1)
        return ForwardPass(output.logits[:, -keep:].float(), hidden_BTD[:, -keep:])
