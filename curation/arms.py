"""The arms, as data: which trust function ranks the rows, how they are cut, and whose label is used.

An arm is one line here; its trust function is one file in ``curation/trust`` (and, where it needs a pass beyond the
labelling one, its signal one file in ``curation/signals``). Source: paper, App. "Baseline Details".
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Rule = Literal["top", "stratified", "distribution_aware", "matched"]
"""How the budget is spent: on the highest scores, or by difficulty bin. The bins' quotas follow their sizes
(``stratified``), the teacher's accuracy in them (``distribution_aware``), the reference arm's choice (``matched``)."""

REFERENCE_ARM = "neural"
"""The method's own arm."""
FITTED = ("neural", "linear_probe")
"""Trust functions that are fitted on the source split before they score."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to choose training rows."""

    words: str
    trust: str
    """A name that ``curation.trust.get_trust`` knows."""
    signal: str | None = None
    """A name of ``curation.signals.SIGNALS``: the column that another pass adds to the pool's labels for this arm."""
    rule: Rule = "top"
    ranked: bool = True
    """Ranks by trust; a uniform draw does not."""
    parsed: bool = True
    """Takes no row whose label could not be read; of the uniform draws only the control does."""
    gold: bool = False
    """Trains on gold labels of the pool."""

    @property
    def oracle(self) -> bool:
        """Gold labels of the pool go into it, as labels or as quotas."""
        return self.gold or self.rule == "distribution_aware"


ARMS = {
    "naive": Arm(words="naive", trust="naive", ranked=False, parsed=False),
    "naive_parsed": Arm(words="naive among parsed", trust="naive", ranked=False),
    "naive_stratified": Arm(words="naive, stratified", trust="naive", rule="stratified", ranked=False, parsed=False),
    "naive_distribution_aware": Arm(
        words="naive, distribution-aware", trust="naive", rule="distribution_aware", ranked=False, parsed=False
    ),
    "internal_confidence": Arm(words="internal confidence", trust="internal_confidence"),
    "icl_confidence": Arm(words="ICL + internal confidence", trust="icl_confidence", signal="icl_mean_logprob"),
    "verbalized_confidence": Arm(
        words="verbalized confidence", trust="verbalized_confidence", signal="verbalized_confidence"
    ),
    "ensemble": Arm(words="ensemble", trust="ensemble", signal="ensemble_agreement"),
    "self_consistency": Arm(words="self-consistency", trust="self_consistency", signal="self_consistency"),
    "reward": Arm(words="reward model", trust="reward", signal="reward"),
    "linear_probe": Arm(words="linear probe", trust="linear_probe"),
    "neural": Arm(words="neural trust", trust="neural"),
    "naive_matched": Arm(words="naive, difficulty-matched", trust="naive", rule="matched", ranked=False, parsed=False),
    "neural_gold": Arm(words="neural trust, gold labels", trust="neural", gold=True),
    "ground_truth": Arm(words="ground truth", trust="naive", ranked=False, parsed=False, gold=True),
}


def arm_of(trust: str) -> str:
    """The arm that ranks weak labels by a trust function and takes the top."""
    return next(name for name, arm in ARMS.items() if arm.trust == trust and arm.ranked and not arm.gold)


def signals_of(names: Iterable[str]) -> tuple[str, ...]:
    """The signals that the named arms ask for, each once."""
    return tuple(dict.fromkeys(signal for name in names if (signal := ARMS[name].signal) is not None))


def fitted_of(names: Iterable[str]) -> tuple[str, ...]:
    """The trust functions that have to be fitted for the named arms, each once."""
    return tuple(dict.fromkeys(trust for name in names if (trust := ARMS[name].trust) in FITTED))
