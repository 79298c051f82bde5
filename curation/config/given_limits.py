"""Limits of labels made elsewhere: what a run with them cannot ask for, since no model answers or even reads."""

from curation.arms import ARMS, FREE, fitted_of
from curation.config.given import GivenConfig
from curation.config.selection import SelectionConfig
from curation.config.trust import TrustConfig

NUMBERS_ALONE = ("stacked", "fitted_confidence")
"""Fitted trust functions that read the numbers of the labels table by themselves, where there are no states."""


def beyond_given(
    given: GivenConfig, selection: SelectionConfig, trust: TrustConfig, *, generations: int, judges: bool, read: bool
) -> str | None:
    """The first thing that a run asks for and labels made elsewhere do not have; ``None`` if they suffice.

    ``read``: a model reads them, so that they have states and log-probabilities.
    """
    used = selection.used
    numbers = ", ".join(given.numbers.values())
    for name in used:
        arm = ARMS[name]
        if arm.trust in FREE and not read:
            return f"the {name} arm ranks by log-probabilities, and backend given has none; take {numbers}"
        if arm.signal is not None and arm.signal.asks == "teacher":
            return f"the {name} arm asks the teacher further questions, and backend given asks no model; leave it out"
        if arm.gold and given.grade is not None:
            return (
                f"the {name} arm trains on gold labels, and teacher.grade says only whether the given ones are right; "
                "leave the arm out, or teacher.grade, where the rows have gold labels"
            )
    kinds = {*fitted_of(used), trust.kind}
    further = sorted(kinds.difference(NUMBERS_ALONE)) or (["search"] if trust.search else [])
    if further and not trust.inputs:
        lacks = "trust.states names none" if read else "backend given has none"
        return (
            f"trust: {further[0]} reads states, and {lacks}; set trust.columns: [{numbers or 'mean_logprob'}], or "
            "leave trust.kind out"
        )
    if trust.pca is not None and not read:
        return "trust.pca: joins states, and backend given has none; leave it out"
    if selection.gold_rollouts.source in ("auto", "samples"):
        return (
            f"selection.gold_rollouts.source: {selection.gold_rollouts.source} may sample the teacher, and "
            "backend given asks no model; set answers or solutions"
        )
    if generations > 1:
        return (
            "generations: a student that teaches the next generation is asked as teacher says, and backend given asks "
            "no model; give one generation"
        )
    if judges and given.grade is not None:
        return "judge: judges labels beside gold ones, and teacher.grade has judged them; leave one of the two out"
    return None
