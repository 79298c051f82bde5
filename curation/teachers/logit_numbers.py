"""One pass over a step's logits for their ``logsumexp``, a token's log-probability, margin and negative entropy.

The pass keeps running values over the vocabulary ("Online normalizer calculation for softmax", Milakov and Gimelshein
2018), to read the logits once and without a float32 copy of all of them.
"""

import torch


def compute_float_numbers(logits_BV: torch.Tensor, token_B: torch.Tensor) -> torch.Tensor:
    """Return the numbers of each row's token as :func:`compute_token_numbers` does, [B, 3], from float32 logits."""
    whole_B = logits_BV.logsumexp(dim=-1)
    best_B2 = logits_BV.topk(2, dim=-1).values
    parts_BV = (logits_BV - whole_B[:, None]).exp_().mul_(logits_BV)  # a probability of 0 times -inf is not a number
    logprob_B = logits_BV.gather(1, token_B[:, None])[:, 0] - whole_B
    return torch.stack([logprob_B, best_B2[:, 0] - best_B2[:, 1], parts_BV.nansum(dim=-1) - whole_B], dim=1)


TILE = 2**20  # number of logits per tile on CPUs (4 MiB in float32)


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
        return number_B4[:, 0], number_B4[:, 1:]
    rows = max(1, TILE // logits_BV.shape[1])
    pieces = torch.split(logits_BV, rows)
    if sure:
        whole_B, sure_B2 = map(torch.cat, zip(*map(_compute_by_tiles, pieces), strict=True))
    else:
        whole_B = torch.cat([part_BV.float().logsumexp(dim=1) for part_BV in pieces])
        sure_B2 = whole_B.new_zeros((len(whole_B), 2))
    logprob_B = logits_BV.gather(1, token_B[:, None])[:, 0].float() - whole_B
    return whole_B, torch.cat([logprob_B[:, None], sure_B2], dim=1)


def _compute_by_tiles(logits_BV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows' ``logsumexp`` [B], and their margins and negative entropies [B, 2]."""
    lowest = torch.finfo(torch.float32).min  # as the maximum of nothing: differences to -inf would not be numbers
    top_B = logits_BV.new_full((len(logits_BV),), lowest, dtype=torch.float32)
    mass_B, moment_B = torch.zeros_like(top_B), torch.zeros_like(top_B)
    best_B2 = top_B.new_full((len(top_B), 2), -torch.inf)
    for tile_BT in torch.split(logits_BV, max(2, TILE // len(logits_BV)), dim=1):
        tile_BT = tile_BT.float()
        new_B = torch.maximum(top_B, tile_BT.amax(dim=1))
        scale_B = (top_B - new_B).exp()
        below_BT = tile_BT - new_B[:, None]
        part_BT = below_BT.exp()
        best_B2 = torch.cat([best_B2, tile_BT.topk(min(2, tile_BT.shape[1]), dim=1).values], dim=1).topk(2).values
        moment_B = scale_B * (moment_B + mass_B * (top_B - new_B))
        moment_B += below_BT.mul_(part_BT).nansum(dim=1)  # a probability of 0 times -inf is not a number
        mass_B, top_B = scale_B * mass_B + part_BT.sum(dim=1), new_B
    whole_B = top_B + mass_B.log()
    return whole_B, torch.stack([best_B2[:, 0] - best_B2[:, 1], moment_B / mass_B - mass_B.log()], dim=1)
