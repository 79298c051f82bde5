"""Answers that came with the rows, read by a causal LM: fed once after their prompts, teacher-forced.

They get what an answer of the model's own gets: log-probabilities, margins and entropies of their tokens, by the
distribution before each, and hidden states. No end token is read.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import torch

from curation.config import AskConfig
from curation.config.states import layers_of, parse
from curation.teachers.completions import AnsweredRow, OfTokens, by_name, completion_batch
from curation.teachers.forward import Forward, ForwardPass, Prefix
from curation.teachers.options import MAX_LOGITS, states_of
from curation.teachers.prompts import TokenisedRequest
from curation.teachers.sureness import margin_and_negentropy


@torch.inference_mode()
def read_answers(forward: Forward, rows: Sequence[TokenisedRequest], config: AskConfig) -> pa.RecordBatch:
    """A batch of ``schemas.completions`` of requests with an ``answer``; their prompts and answers fit one batch."""
    answers = [row.answer or [] for row in rows]
    lengths, width = [len(answer) for answer in answers], max(map(len, answers))
    prefix, prompts = forward.start([row.prompt for row in rows], layers_of(config.states))
    ids_BT = forward.tensor([answer + [forward.pad] * (width - len(answer)) for answer in answers])
    numbers_BT3 = torch.zeros((len(rows), width, 3), device=ids_BT.device)
    before_B1V, hidden = prompts.logits_BTV, []
    for begin, fed in _fed(forward, prefix, ids_BT):
        end = begin + fed.hidden_BTD.shape[1]
        logits_BTV = torch.cat([before_B1V, fed.logits_BTV[:, :-1]], dim=1)
        numbers_BT3[:, begin:end] = _numbers(logits_BTV, ids_BT[:, begin:end])
        before_B1V = fed.logits_BTV[:, -1:]
        hidden.append(fed.hidden_BTD)
    by_token = [of_row[:length] for of_row, length in zip(numbers_BT3.tolist(), lengths, strict=True)]
    logprobs, margins, negentropies = ([[token[at] for token in of_row] for of_row in by_token] for at in range(3))
    prompt_BD = prompts.hidden_BTD[:, 0].float()
    found = {"prompt_last": prompt_BD, **states_of(torch.cat(hidden, dim=1), forward.tensor([[n] for n in lengths]))}
    none_BD = np.zeros(prompt_BD.shape, dtype=np.float32)  # there are no other options
    states = {
        (state.position, state.rank): none_BD if state.rank > 1 else found[state.position].cpu().numpy()
        for state in map(parse, config.states)
    }
    answered = [
        AnsweredRow(
            row_id=row.request.row_id,
            completion=row.request.given,
            num_prompt_tokens=len(row.prompt),
            num_output_tokens=len(logprob),
            truncated=False,
            mean_logprob=sum(logprob) / len(logprob),
            token_logprobs=logprob,
            margins=OfTokens.of(margin),
            negentropies=OfTokens.of(negentropy),
        )
        for row, logprob, margin, negentropy in zip(rows, logprobs, margins, negentropies, strict=True)
    ]
    return completion_batch(
        answered,
        states=by_name(states, config.states),
        state_dtype=config.state_dtype,
        num_token_logprobs=config.token_logprobs,
    )


def _fed(forward: Forward, prefix: Prefix, ids_BT: torch.Tensor) -> Iterator[tuple[int, ForwardPass]]:
    """The passes over the answers, piece by piece, each with its first token's place."""
    piece = max(1, MAX_LOGITS // (len(ids_BT) * forward.vocabulary_size))
    for begin in range(0, ids_BT.shape[1], piece):
        yield begin, forward.extend(prefix, ids_BT[:, begin : begin + piece])


def _numbers(logits_BTV: torch.Tensor, ids_BT: torch.Tensor) -> torch.Tensor:
    """Log-probability of each token, and margin and negative entropy of the distribution before it, [B, T, 3]."""
    logits_NV = logits_BTV.flatten(0, 1)
    whole_N = logits_NV.logsumexp(dim=-1)
    logprob_N = logits_NV.gather(1, ids_BT.reshape(-1, 1))[:, 0] - whole_N
    numbers_N3 = torch.cat([logprob_N[:, None], margin_and_negentropy(logits_NV, whole_N)], dim=1)
    return numbers_N3.reshape(*ids_BT.shape, 3)
