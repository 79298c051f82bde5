"""The paper's trust function as an arm beside the default one: the same fit with settings of its own.

``trust.options`` holds the settings in which it differs from the section ``trust``.
"""

from typing import TYPE_CHECKING, Any

from curation.arms import Fitted
from curation.config import TrustConfig

if TYPE_CHECKING:
    from curation.trust.neural import NeuralTrust
    from train.trust_loop import LabelledRows

NEURAL_PAPER = Fitted(
    "neural trust, as in the paper",
    "curation.trust.neural:NeuralTrust",
    reads=None,
    fit="examples.evidence.arms:fit_paper",
)
"""One network that reads the last state alone, fitted on all rows (paper, section "Neural Trust Functions")."""


def fit_paper(
    rows: "LabelledRows", config: TrustConfig, *, seed: int, origin: Any, note: Any, **settings: Any
) -> "NeuralTrust":
    """Fit the network of ``curation.arms`` "neural" with other settings than those of the section ``trust``."""
    from train.trust import fit_neural

    given = TrustConfig.model_validate({**config.model_dump(), "options": {}, **settings})
    return fit_neural(rows, given, seed=seed, origin=origin, note=note)
