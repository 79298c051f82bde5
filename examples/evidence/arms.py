"""The paper's trust function as an arm beside the default one: the same fit with settings of its own.

``trust.options`` holds the settings in which it differs from the section ``trust``.
"""

from typing import Any

from curation.arms import Fitted
from curation.config import TrustConfig
from curation.refs import TableRef, TrustRef
from curation.storage.paths import Place

NEURAL_PAPER = Fitted(
    "neural trust, as in the paper",
    "curation.trust.neural:NeuralTrust",
    reads=None,
    fit="examples.evidence.arms:fit_paper",
)
"""One network that reads the last state alone, fitted on all rows (paper, section "Neural Trust Functions")."""


def fit_paper(
    labels: TableRef, grades: TableRef, config: TrustConfig, *, seed: int, output: Place, **settings: Any
) -> TrustRef:
    """Fit the network of ``curation.arms`` "neural" with other settings than those of the section ``trust``."""
    from train.trust import fit_trust

    given = {**config.model_dump(), "options": {}, **settings}
    return fit_trust(labels, grades, TrustConfig.model_validate(given), seed=seed, output=output)
