"""Options in pairs: yes and no of several questions about one prompt, each answered by the likelier of the two.

The answer joins the yes or no of all questions. With the questions taken as independent, each set of answers counts as
an option whose score is the sum of its parts. The chosen set is then the likeliest, the second likeliest differs in the
least sure question, and the sureness of the choice (``completions.compute_pair_sureness``) follows from the pairs.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from curation.teachers import Request
from curation.teachers.completions import AnsweredRow, compute_pair_gaps, subtract_baselines


class PairedChoice(NamedTuple):
    """The answers to the questions of a request."""

    places: list[int]
    """Index of each chosen option."""
    logprobs: list[float]
    """Natural-log probability of each chosen option among the two of its pair, without baselines."""


def choose_in_pairs(scores: Sequence[float], baselines: Sequence[float] | None = None) -> PairedChoice:
    """Return the option of each pair with the larger score, minus baselines if given; the second, no, if equal."""
    is_no_L = compute_pair_gaps(subtract_baselines(scores, baselines)) <= 0
    gap_L = compute_pair_gaps(scores)
    places_L = 2 * np.arange(len(gap_L)) + is_no_L
    return PairedChoice(places_L.tolist(), (-np.logaddexp(0.0, np.where(is_no_L, gap_L, -gap_L))).tolist())


def join_chosen_tokens(request: Request, options: Sequence[Sequence[int]], scores: Sequence[float]) -> list[int]:
    """Return the concatenated tokens of the chosen options, given the tokens of each option."""
    return [token for place in choose_in_pairs(scores, request.baselines).places for token in options[place]]


def make_answered_row(
    request: Request, scores: Sequence[float], *, num_prompt_tokens: int, lengths: Sequence[int]
) -> AnsweredRow:
    """Return a row with its answer.

    Its token log-probabilities have one number per question: that of the chosen yes or no.

    Args:
        request: request of the row.
        scores: log-probabilities of its options.
        num_prompt_tokens: number of tokens of its prompt.
        lengths: number of tokens of each option.
    """
    choice, options = choose_in_pairs(scores, request.baselines), request.options or ()
    return AnsweredRow(
        row_id=request.row_id,
        completion="".join(options[place] for place in choice.places),
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=sum(lengths[place] for place in choice.places),
        truncated=False,
        mean_logprob=float(np.mean(choice.logprobs)),
        token_logprobs=choice.logprobs,
        option_logprobs=scores,
        option_scores=subtract_baselines(scores, request.baselines),
        in_pairs=True,
    )
