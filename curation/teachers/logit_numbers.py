"""The log-probability, margin and negative entropy of a step's tokens, from its logits."""

import torch

TILE = 2**20  # number of logits that are worked on at once on CPUs (4 MiB in float32, to fit a cache)


def compute_float_numbers(logits_BV: torch.Tensor, token_B: torch.Tensor, *, sure: bool = True) -> torch.Tensor:
    """Return :func:`compute_token_numbers` as one tensor, float32 [B, 4], without a kernel of our own."""
    found, rows = [], max(1, (64 * TILE if logits_BV.is_cuda else TILE) // logits_BV.shape[1])
    for part_BV, part_B in zip(torch.split(logits_BV, rows), torch.split(token_B, rows), strict=True):
        logit_BV = part_BV.float()
        number_B4 = logit_BV.new_zeros((len(logit_BV), 4))
        number_B4[:, 0] = whole_B = logit_BV.logsumexp(dim=-1)
        number_B4[:, 1] = logit_BV.gather(1, part_B[:, None])[:, 0] - whole_B
        if sure:
            best_B2 = logit_BV.topk(2, dim=-1).values
            # 0 times -inf would be NaN; logits that overflowed are NaN, and remain so
            logprob_BV = (logit_BV - whole_B[:, None]).clamp_(min=torch.finfo(torch.float32).min)
            number_B4[:, 2] = best_B2[:, 0] - best_B2[:, 1]
            number_B4[:, 3] = logprob_BV.exp().mul_(logprob_BV).sum(dim=-1)
        found.append(number_B4)
    return torch.cat(found)


def compute_token_numbers(
    logits_BV: torch.Tensor, token_B: torch.Tensor, *, sure: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ``logsumexp`` of each row and the numbers of its token, float32 [B] and [B, 3], in nats.

    The numbers are the token's log-probability, the gap between the two largest log-probabilities, and the negative
    entropy; without ``sure`` the last two may be 0. A logit of -inf adds nothing to the entropy. The host does not wait
    for the device.
    """
    if logits_BV.is_cuda:
        from curation.teachers.logit_kernel import compute_numbers_by_kernel  # Triton is there with CUDA alone

        number_B4 = compute_numbers_by_kernel(logits_BV, token_B)
    else:
        number_B4 = compute_float_numbers(logits_BV, token_B, sure=sure)
    return number_B4[:, 0], number_B4[:, 1:]
