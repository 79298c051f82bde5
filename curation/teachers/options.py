"""Options scored and chosen by a causal LM (paper, App. "Evaluation Details", world knowledge).

An option's score is the sum of its tokens' natural-log probabilities given the prompt, without an end token. The answer
is the likeliest option, the first one of equals, or the option that came with the row. The prompt is fed once: its last
token's logits give the probability of each option's first token. The other probabilities come from the inner nodes of
the options' trie (``trie``), which are fed after the prompt once each, as branches of one pass (``Forward.branch``). A
model that cannot take branches is fed each path of inner nodes after a copy of the prompt's keys and values. If logits
are exactly the head's linear product, a pass keeps the head's input, and ``Forward.logprobs`` computes the
log-probabilities; otherwise it keeps the logits. Last, the options whose states are requested are fed, usually just the
chosen one.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import torch

from curation.config import AskConfig
from curation.config.states import LAST, find_layers, parse
from curation.teachers.completions import Array, make_answered_batch, make_drawn_row
from curation.teachers.forward import Forward, ForwardPass, Prefix
from curation.teachers.logit_numbers import compute_float_numbers
from curation.teachers.prompts import TokenisedRequest, iter_padded_batches, make_scored_row
from curation.teachers.trie import Trie

MAX_LOGITS = 2**27
"""Maximum number of logits (0.5 GiB in float32), or of mask entries, per pass; longer inputs are fed in pieces."""

Fed = list[tuple[int, int, int, int]]  # nodes that a pass was fed: its row and position there, the trie, the node


@torch.inference_mode()
def score_options(
    forward: Forward, rows: Sequence[TokenisedRequest], config: AskConfig, *, normalise: bool
) -> pa.RecordBatch:
    """Return a batch of ``schemas.make_completions_schema`` of requests with options.

    Their prompts and tries fit one batch; ``config.batch_tokens`` also limits copies of prompts with an option each.
    With ``normalise`` an option is chosen by the mean of its log-probabilities instead of their sum.
    """
    prefix, (logits_B1V, hidden_B1D) = forward.start([row.prompt for row in rows], find_layers(config.states))
    tries = [row.trie for row in rows]
    logprobs = [[0.0] * len(trie.tokens) for trie in tries]  # of each node's token after its parent
    roots = [(place, 0, place, 0) for place in range(len(rows))]
    _take(forward, ForwardPass(logits_B1V, hidden_B1D), tries, logprobs, roots, linear=False)
    if width := max(len(trie.inner) for trie in tries):
        feed = _iter_branches if prefix.has_room(width) and forward.takes_branches else _iter_paths
        for passed, fed in feed(forward, prefix, tries, config.batch_tokens):
            _take(forward, passed, tries, logprobs, fed, linear=forward.head_is_linear)
    scored = zip(rows, tries, logprobs, strict=True)
    made = [make_scored_row(row, trie.along(values), normalise=normalise) for row, trie, values in scored]
    answers, ranked = [answer for answer, _ in made], [tokens for _, tokens in made]
    return make_answered_batch(answers, _compute_states(forward, prefix, ranked, config, hidden_B1D[:, 0]), config)


def _take(
    forward: Forward, passed: ForwardPass, tries: Sequence[Trie], logprobs: list[list[float]], fed: Fed, *, linear: bool
) -> None:
    """Set the log-probabilities of the children of K nodes that a pass was fed."""
    b_K, t_K = forward.tensor([[b, t] for b, t, _, _ in fed]).T
    asked = [
        (k, token, place, child)
        for k, (_, _, place, node) in enumerate(fed)
        for token, child in tries[place].children[node].items()
    ]
    k_C, token_C = forward.tensor([[k, token] for k, token, _, _ in asked]).T
    if linear:
        logprob_C = forward.logprobs(passed.hidden_BTD[b_K, t_K], k_C, token_C)
    else:
        logits_KV = passed.logits_BTV[b_K, t_K]
        logprob_C = logits_KV[k_C, token_C] - logits_KV.logsumexp(dim=-1)[k_C]
    for (_, _, place, child), logprob in zip(asked, logprob_C.tolist(), strict=True):
        logprobs[place][child] = logprob


def _iter_branches(
    forward: Forward, prefix: Prefix, tries: Sequence[Trie], batch_tokens: int
) -> Iterator[tuple[ForwardPass, Fed]]:
    """Feed all inner nodes as branches of one pass, or of few; yield each pass with its nodes."""
    places = [place for place, trie in enumerate(tries) if trie.inner]
    grown = prefix.select(forward.tensor(places)) if len(places) < len(tries) else prefix.fork()
    grown.layers = (LAST,)  # what the head reads
    width = max(len(tries[place].inner) for place in places)
    ids_BT = np.full((len(places), width), forward.pad)
    depth_BT = np.zeros((len(places), width), dtype=np.int64)
    sees_BTT = np.repeat(np.eye(width, dtype=bool)[None], len(places), axis=0)  # padding sees itself and the prompt
    for b, place in enumerate(places):
        trie = tries[place]
        ids_BT[b, : len(trie.inner)] = [trie.tokens[node] for node in trie.inner]
        depth_BT[b, : len(trie.inner)] = [trie.depths[node] - 1 for node in trie.inner]
        column = {node: t for t, node in enumerate(trie.inner)}
        for node, t in column.items():
            if (parent := trie.parents[node]) in column:
                sees_BTT[b, t] |= sees_BTT[b, column[parent]]
    ids, depth, sees = (torch.from_numpy(array).to(forward.device) for array in (ids_BT, depth_BT, sees_BTT))
    linear = forward.head_is_linear
    piece = max(1, MAX_LOGITS // (len(places) * (prefix.width + width if linear else forward.vocabulary_size)))
    for begin in range(0, width, piece):
        part = slice(begin, begin + piece)
        seen = sees[:, part, : begin + piece]
        passed = forward.branch(grown, ids[:, part], depth[:, part], seen, logits=not linear)
        fed = [(b, t, place, node) for b, place in enumerate(places) for t, node in enumerate(tries[place].inner[part])]
        yield passed, fed


def _iter_paths(
    forward: Forward, prefix: Prefix, tries: Sequence[Trie], batch_tokens: int
) -> Iterator[tuple[ForwardPass, Fed]]:
    """Feed paths that together hold all inner nodes after copies of the prompts; yield each pass with its nodes."""
    to_feed = [  # the row's place, and the nodes of a path that no further inner node goes on
        (place, trie.path(node))
        for place, trie in enumerate(tries)
        for node in trie.inner
        if not any(trie.children[child] for child in trie.children[node].values())
    ]
    for some in iter_padded_batches(to_feed, lambda path: prefix.width + len(path[1]), batch_tokens):
        width = max(len(path) for _, path in some)
        ids_BT = [[tries[place].tokens[node] for node in path] for place, path in some]
        ids = forward.tensor([row + [forward.pad] * (width - len(row)) for row in ids_BT])
        copies = prefix.select(forward.tensor([place for place, _ in some]))
        copies.layers = (LAST,)  # what the head reads
        linear = forward.head_is_linear
        piece = width if linear else max(1, MAX_LOGITS // (len(some) * forward.vocabulary_size))
        for begin in range(0, width, piece):
            passed = forward.extend(copies, ids[:, begin : begin + piece], logits=not linear)
            fed = {  # a node that several paths share is read once, since each costs a product with the head
                (place, path[t]): (b, t - begin, place, path[t])
                for b, (place, path) in enumerate(some)
                for t in range(begin, min(begin + piece, len(path)))
            }
            yield passed, list(fed.values())


def _compute_states(
    forward: Forward, prefix: Prefix, answers: Sequence[Sequence[list[int]]], config: AskConfig, prompt_BD: torch.Tensor
) -> dict[tuple[str, int], Array]:
    """Return the requested states, by position and rank of the option, with concatenated layers.

    ``answers`` has the tokens of each row's options by likelihood; a rank without an option has zeros as its state.
    """
    asked = dict.fromkeys((state.position, state.rank) for state in map(parse, config.states))
    found = {place: torch.zeros_like(prompt_BD, dtype=torch.float32) for place in asked if place[0] != "prompt_last"}
    to_feed = [  # the row's place, and rank and tokens of the option
        (place, rank, options[rank - 1])
        for place, options in enumerate(answers)
        for rank in sorted({rank for _, rank in found})
        if rank <= len(options)
    ]
    for part in iter_padded_batches(to_feed, lambda option: prefix.width + len(option[2]), config.batch_tokens):
        part.sort()
        places, ranks, tokens = (list(values) for values in zip(*part, strict=True))
        width = max(map(len, tokens))
        ids_BT = forward.tensor([own + [forward.pad] * (width - len(own)) for own in tokens])
        all_rows = places == list(range(len(prefix.length_B)))
        copies = prefix.fork() if all_rows else prefix.select(forward.tensor(places))
        hidden_BTD = forward.extend(copies, ids_BT, logits=False).hidden_BTD
        fed = compute_position_states(hidden_BTD, forward.tensor([[len(own)] for own in tokens]))
        for (position, rank), kept_BD in found.items():
            from_K = [index for index, of_row in enumerate(ranks) if of_row == rank]
            if from_K:
                kept_BD[forward.tensor([places[index] for index in from_K])] = fed[position][forward.tensor(from_K)]
    prompt_BD = prompt_BD.float()
    return {place: found.get(place, prompt_BD).cpu().numpy() for place in asked}


def compute_position_states(hidden_BTD: torch.Tensor, length_B1: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the states of answers by position, float32 [B, D], given those at their tokens, padded on the right."""
    is_own_BT = torch.arange(hidden_BTD.shape[1], device=length_B1.device) < length_B1
    own_BTD = hidden_BTD.where(is_own_BT[..., None], 0.0)
    return {
        "output_first": hidden_BTD[:, 0].float(),
        "output_last": hidden_BTD.take_along_dim(length_B1[..., None] - 1, dim=1)[:, 0].float(),
        "output_mean": own_BTD.sum(dim=1, dtype=torch.float32) / length_B1,
    }


def get_states(
    config: AskConfig, prompt_BD: torch.Tensor, of_answers: Mapping[str, torch.Tensor]
) -> dict[tuple[str, int], Array]:
    """Return the requested states of drawn or read answers, by position and rank, with concatenated layers.

    ``of_answers`` has the states of the answers by position. Ranks beyond the first, which no answer has, get zeros.
    """
    found, none_BD = {"prompt_last": prompt_BD.float(), **of_answers}, np.zeros(prompt_BD.shape, dtype=np.float32)
    return {
        (state.position, state.rank): none_BD if state.rank > 1 else found[state.position].cpu().numpy()
        for state in map(parse, config.states)
    }


@torch.inference_mode()
def read_answers(forward: Forward, rows: Sequence[TokenisedRequest], config: AskConfig) -> pa.RecordBatch:
    """Return a batch of ``make_completions_schema`` for requests with an ``answer``; prompts and answers fit one batch.

    The answers came with the rows, and are fed once after their prompts, without an end token. Like the model's own
    they get log-probabilities, margins and entropies, by the distribution before each token, and hidden states.
    """
    answers = [row.answer or [] for row in rows]
    lengths, width = [len(answer) for answer in answers], max(map(len, answers))
    prefix, prompts = forward.start([row.prompt for row in rows], find_layers(config.states))
    ids_BT = forward.tensor([answer + [forward.pad] * (width - len(answer)) for answer in answers])
    numbers_BT3 = torch.zeros((len(rows), width, 3), device=ids_BT.device)
    before_B1V, hidden = prompts.logits_BTV, []
    piece = max(1, MAX_LOGITS // (len(ids_BT) * forward.vocabulary_size))
    for begin in range(0, width, piece):
        end = min(begin + piece, width)
        fed = forward.extend(prefix, ids_BT[:, begin:end])
        logits_BTV = torch.cat([before_B1V, fed.logits_BTV[:, :-1]], dim=1)
        found_N3 = compute_float_numbers(logits_BTV.flatten(0, 1), ids_BT[:, begin:end].reshape(-1))[:, 1:]
        numbers_BT3[:, begin:end] = found_N3.reshape(len(rows), -1, 3)
        before_B1V = fed.logits_BTV[:, -1:]
        hidden.append(fed.hidden_BTD)
    of_answers = compute_position_states(torch.cat(hidden, dim=1), forward.tensor([[n] for n in lengths]))
    states = get_states(config, prompts.hidden_BTD[:, 0], of_answers)
    answered = [
        make_drawn_row(row.request.row_id, row.request.given, len(row.prompt), of_row[:length])
        for row, of_row, length in zip(rows, numbers_BT3.tolist(), lengths, strict=True)
    ]
    return make_answered_batch(answered, states, config)
