"""A deep ensemble: the average of neural trust functions of one architecture with different seeds (ours).

The paper fits one network. The mean of the members' probabilities ranks rows better and is better calibrated than one
member's (Lakshminarayanan et al. 2017). The raw score is the logit of that mean; the ensemble is calibrated as a whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from curation.json_types import JsonView
from curation.trust import Scores
from curation.trust.folded import FoldedNets
from curation.trust.neural import NeuralTrust, NeuralTrustNet
from curation.trust.states import StateTrust, select_under


class DeepEnsemble(StateTrust):
    """Fitted networks. The raw score is the logit of their mean probability; trust is its calibrated sigmoid."""

    kind = "deep_ensemble"

    def __init__(self, nets: Sequence[NeuralTrustNet], inputs: Sequence[str], fit: Mapping[str, object]) -> None:
        super().__init__(inputs, fit)
        self.nets = [net.eval() for net in nets]
        self.size = nets[0].architecture.input_size
        self.own = {"architecture": asdict(nets[0].architecture), "num_members": len(nets)}
        self.weights = {f"{m}.{name}": of for m, net in enumerate(nets) for name, of in net.state_dict().items()}

    @torch.inference_mode()
    def logits(self, hidden_ND: Tensor) -> Scores:
        """Return the logit of the mean probability of each row, float32 [N]."""
        return _compute_logit_of_mean(torch.stack([net(hidden_ND) for net in self.nets]))

    @torch.inference_mode()
    def raw_of(self, columns: Sequence[Tensor]) -> Scores:
        """Return the logit of the mean probability of each row, float32 [N], by the folded networks."""
        if self._folded is None:
            self._folded = FoldedNets(self.nets, self.pca)
        return _compute_logit_of_mean(self._folded(columns))

    @classmethod
    def made(cls, weights: Mapping[str, Tensor], description: JsonView) -> Self:
        """Return the trust function on the CPU."""
        if description["num_members"] > len(weights):
            raise ValueError(f"it names {description['num_members']:,} networks and holds {len(weights):,} tensors")
        members = [select_under(weights, f"{m}.") for m in range(description["num_members"])]
        nets = [NeuralTrust.made(own, description).net for own in members]
        return cls(nets, description["inputs"], description["fit"])


def _compute_logit_of_mean(logit_MN: Tensor) -> Scores:
    """Return the logit of each row's mean probability over M networks, float32 [N]."""
    wide_MN = logit_MN.double()
    # The logit of mean(p) is log(sum p) - log(sum (1 - p)), here without a p that rounds to 0 or 1.
    return (logsigmoid(wide_MN).logsumexp(0) - logsigmoid(-wide_MN).logsumexp(0)).float().numpy()
