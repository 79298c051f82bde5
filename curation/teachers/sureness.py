"""How sure a model is of its next token, by its whole distribution: margin and negative entropy, in nats.

One pass finds the two largest logits and one the entropy, in the step that has the logits.
"""

import torch


def margin_and_negentropy(logits_BV: torch.Tensor, whole_B: torch.Tensor) -> torch.Tensor:
    """Gap between the two largest log-probabilities, and minus the entropy, of each row, float32 [B, 2].

    ``whole_B`` are the rows' ``logsumexp``, and the logits float32. A logit of -inf has no part in the entropy.
    """
    best_B2 = logits_BV.topk(2, dim=-1).values
    parts_BV = (logits_BV - whole_B[:, None]).exp_().mul_(logits_BV)  # a probability of 0 times -inf is not a number
    return torch.stack([best_B2[:, 0] - best_B2[:, 1], parts_BV.nansum(dim=-1) - whole_B], dim=1)
