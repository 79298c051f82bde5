"""Ensemble: whether a second, independent teacher gives the same label (paper, App. "Baseline Details")."""

from collections.abc import Sequence

from curation.domains import Domain, Example
from curation.signals import Answer, SignalMethod, Weak, agrees, label_request
from curation.teachers import Request


class EnsembleAgreement(SignalMethod):
    """1 where the labels of both teachers are the same by the domain's own rule, else 0; asked of the second one."""

    name = "ensemble_agreement"

    def requests(self, domain: Domain, row_id: int, example: Example, weak: Weak) -> list[Request]:
        """The question that the weak teacher was asked."""
        return [label_request(domain, row_id, example)]

    def value(self, domain: Domain, example: Example, weak: Weak, answers: Sequence[Answer]) -> float | None:
        """1 or 0; a label that cannot be read agrees with none."""
        return float(agrees(domain, answers[0].completion, example, weak))
