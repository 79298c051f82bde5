"""Options scored and chosen by a causal LM (paper, App. "Evaluation Details", world knowledge).

An option's score is the sum of its tokens' natural-log probabilities given the prompt, without an end token; the
likeliest option is chosen, the first of equal ones. The prompt is fed once: its last token's logits give the
probability of each option's first token, and the options are fed after copies of its keys and values. Where all options
are one token, their order is then known, and only those are fed whose states are asked for: mostly the chosen one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import torch

from curation.config import AskConfig
from curation.config.states import layers_of, parse, positions_of
from curation.teachers.completions import Array, by_name, completion_batch, ranked
from curation.teachers.forward import Forward, Prefix, batches
from curation.teachers.prompts import TokenisedRequest

MAX_LOGITS = 2**27
"""Logits of one pass over options (0.5 GiB in float32); what is longer is fed piece by piece."""


@dataclass(kw_only=True)
class _Option:
    """One option under way."""

    place: int  # of its row in the batch
    tokens: list[int]
    logprob: float  # of the tokens so far
    logprobs: list[float]  # of the first tokens, as many as are kept
    states: dict[str, torch.Tensor] = field(default_factory=dict)  # position: hidden_D, layers side by side

    @property
    def mean_logprob(self) -> float:
        return self.logprob / len(self.tokens)


@torch.inference_mode()
def score_options(
    forward: Forward, rows: Sequence[TokenisedRequest], config: AskConfig, *, normalise: bool
) -> pa.RecordBatch:
    """A batch of ``schemas.completions`` of requests with options.

    Args:
        forward: the model.
        rows: the requests; their prompts fit one batch.
        config: the states to keep, and ``batch_tokens``, which bounds the copies of prompts with an option each, too.
        normalise: choose by the mean of an option's log-probabilities, not by their sum.
    """
    prefix, (logits_B1V, hidden_B1D) = forward.start([row.prompt for row in rows], layers_of(config.states))
    logprob_BV = logits_B1V[:, 0].log_softmax(dim=-1)
    options = [_begin(place, row.options or [], logprob_BV[place]) for place, row in enumerate(rows)]

    def order_of(group: list[_Option]) -> list[int]:
        return ranked([option.mean_logprob if normalise else option.logprob for option in group])

    places = dict.fromkeys((state.position, state.rank) for state in map(parse, config.states))
    of_output = [position for position in positions_of(config.states) if position != "prompt_last"]
    ranks = sorted({rank for position, rank in places if position in of_output})
    to_feed: list[_Option] = []
    for group in options:
        if any(len(option.tokens) > 1 for option in group):
            to_feed += group
        else:
            order = order_of(group)
            to_feed += [group[order[rank - 1]] for rank in ranks if rank <= len(group)]
    for part in batches(to_feed, lambda option: prefix.width + len(option.tokens), config.batch_tokens):
        _feed(forward, prefix, part, of_output, config.token_logprobs)

    orders = [order_of(group) for group in options]
    choices = [order[0] for order in orders]
    chosen = [group[choice] for group, choice in zip(options, choices, strict=True)]
    states: dict[tuple[str, int], Array] = {}
    for position, rank in places:
        hidden_BD = hidden_B1D[:, 0].float()
        if position in of_output:
            none_D = torch.zeros_like(hidden_BD[0])  # of a row with fewer options
            by_rank = zip(options, orders, strict=True)
            found = [
                group[order[rank - 1]].states[position] if rank <= len(order) else none_D for group, order in by_rank
            ]
            hidden_BD = torch.stack(found)
        states[position, rank] = hidden_BD.cpu().numpy()
    return completion_batch(
        row_ids=[row.request.row_id for row in rows],
        completions=[(row.request.options or ())[choice] for row, choice in zip(rows, choices, strict=True)],
        mean_logprobs=[option.mean_logprob for option in chosen],
        token_logprobs=[option.logprobs for option in chosen],
        num_token_logprobs=config.token_logprobs,
        option_logprobs=[[option.logprob for option in group] for group in options],
        num_prompt_tokens=[len(row.prompt) for row in rows],
        num_output_tokens=[len(option.tokens) for option in chosen],
        truncated=[False] * len(rows),
        states=by_name(states, config.states),
        state_dtype=config.state_dtype,
    )


def _begin(place: int, options: list[list[int]], logprob_V: torch.Tensor) -> list[_Option]:
    """The options of a row with the log-probabilities of their first tokens."""
    first = torch.tensor([tokens[0] for tokens in options], device=logprob_V.device)
    return [
        _Option(place=place, tokens=tokens, logprob=logprob, logprobs=[logprob])
        for tokens, logprob in zip(options, logprob_V[first].tolist(), strict=True)
    ]


def _feed(
    forward: Forward, prefix: Prefix, options: Sequence[_Option], positions: Sequence[str], num_logprobs: int
) -> None:
    """Feed options after their prompts; adds the log-probabilities of all tokens but the first, and their states.

    If ``num_logprobs`` are asked for, all log-probabilities are kept one by one, too.
    """
    width = max(len(option.tokens) for option in options)
    ids_BT = forward.tensor([option.tokens + [forward.pad] * (width - len(option.tokens)) for option in options])
    length_B1 = forward.tensor([[len(option.tokens)] for option in options])
    prefix = prefix.select(forward.tensor([option.place for option in options]))
    piece = max(1, MAX_LOGITS // (len(options) * forward.vocabulary_size))
    logprobs, hiddens = [], []
    pieces = (torch.split(tokens_BT, piece, dim=1) for tokens_BT in (ids_BT, ids_BT.roll(-1, dims=1)))
    for piece_BT, next_BT in zip(*pieces, strict=True):
        logits_BTV, hidden_BTD = forward.extend(prefix, piece_BT)
        logprobs.append(logits_BTV.gather(2, next_BT[..., None])[..., 0] - logits_BTV.logsumexp(dim=-1))
        hiddens.append(hidden_BTD.float())
    hidden_BTD, column_T = torch.cat(hiddens, dim=1), torch.arange(width, device=ids_BT.device)
    logprob_BT = torch.cat(logprobs, dim=1).where(column_T < length_B1 - 1, 0.0)
    logprob_B = logprob_BT.sum(dim=1, dtype=torch.float64)
    further = logprob_BT[:, : width if num_logprobs else 0].tolist()
    own_BTD = hidden_BTD.where((column_T < length_B1)[..., None], 0.0)
    states = {
        "output_first": hidden_BTD[:, 0].clone(),  # a view would keep all the states
        "output_last": hidden_BTD.take_along_dim(length_B1[..., None] - 1, dim=1)[:, 0],
        "output_mean": own_BTD.sum(dim=1) / length_B1,
    }
    for place, (option, logprob) in enumerate(zip(options, logprob_B.tolist(), strict=True)):
        option.logprob += logprob
        option.logprobs += further[place][: len(option.tokens) - 1]
        option.states = {position: states[position][place] for position in positions}
