"""A certified cut for each class of a closed set of labels (``risk: {per: label}``): the guarantee holds in each class.

The class of a row is its weak label. Given the class, calibration rows and pool rows are as exchangeable as they are
overall, so each class is a problem of its own with the calibration rows of its label. Each of the C tested classes is
tested at delta / C (Bonferroni): with probability 1 - delta no cut at all is wrong. Which classes are tested follows
from the pool's labels alone, never from a calibration row.

A class without a certified cut selects nothing, and the text of the guarantee names it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from curation.arrays import Int64s
from curation.errors import UserError
from curation.hashing import derive
from curation.json_types import Json
from curation.selection.class_shares import ClassScores, ClassShares
from curation.selection.risk import RiskCut, calibrate

MOST_NAMED = 8
"""Maximum number of classes without a cut that the text of the guarantee names."""
_UNTESTED = RiskCut(
    threshold=None, num_calibration=0, num_kept=0, noise=None, bound=None, guarantee="none: no calibration row"
)
"""Result for a class whose label no calibration row has."""


@dataclass(frozen=True, kw_only=True)
class ClassCuts:
    """The cuts of all classes that have pool rows."""

    classes: tuple[str, ...]
    """Names of all classes."""
    cuts: tuple[RiskCut | None, ...]
    """The cut of each class; ``None`` for a class without a pool row that may be selected."""
    alpha: float
    delta: float

    @property
    def tested(self) -> dict[str, RiskCut]:
        """The cut of each class that has one, certified or not, by name of the class."""
        return {name: cut for name, cut in zip(self.classes, self.cuts, strict=True) if cut is not None}

    @property
    def thresholds(self) -> dict[str, float]:
        """Lowest score that passes, by name of the class, for classes with a certified cut."""
        return {name: cut.threshold for name, cut in self.tested.items() if cut.threshold is not None}

    @property
    def threshold_C(self) -> npt.NDArray[np.float64]:
        """Lowest score that passes in each class, [C]; infinite in a class without a certified cut."""
        return np.array([self.thresholds.get(name, np.inf) for name in self.classes])

    def shares(self, num_C: Int64s) -> ClassShares:
        """Return the shares of the classes among the pool rows that pass, by their numbers."""
        share_C = num_C / num_C.sum()
        return ClassShares(classes=self.classes, shares=tuple(share_C.tolist()), basis="certified", num_labelled=0)

    def to_json(self, num_C: Int64s | None = None) -> Json:
        """Return the fields of a :class:`RiskCut` for all classes together, and for each class under ``classes``.

        ``num_C``: number of pool rows that pass in each class.
        """
        tested, num = self.tested, [None] * len(self.classes) if num_C is None else num_C.tolist()
        made = [tested[name] for name in self.thresholds]
        kept, wrong = sum(cut.num_kept for cut in made), sum(round((cut.noise or 0) * cut.num_kept) for cut in made)
        classes = [
            {"label": name, "num_pool": num_pool, **asdict(tested[name])}
            for name, num_pool in zip(self.classes, num, strict=True)
            if name in tested
        ]
        for of_class in classes:
            del of_class["guarantee"]
        return {
            "threshold": None,
            "num_calibration": sum(cut.num_calibration for cut in tested.values()),
            "num_kept": kept,
            "noise": wrong / kept if kept else None,
            "bound": max((cut.bound for cut in made if cut.bound is not None), default=None),
            "guarantee": self.guarantee,
            "needed": None,
            "needed_basis": None,
            "classes": classes,
        }

    @property
    def guarantee(self) -> str:
        """The guarantee in words: classes, probability and assumption, and the first classes without it.

        Each of these is named with the number of its calibration rows and, if known, the number that it needs.
        """
        tested, passed = self.tested, self.thresholds
        without, words = [name for name in tested if name not in passed], []
        for name in without[:MOST_NAMED]:
            needed = "" if tested[name].needed is None else f" of about {tested[name].needed:,}"
            words.append(f"{name} ({tested[name].num_calibration:,}{needed} calibration rows)")
        named = ", ".join(words) + (", ..." if len(without) > MOST_NAMED else "")
        if not passed:
            return f"none: no cut is certified in any of {len(tested)} classes, nothing is selected: {named}"
        _, _, assumption = tested[next(iter(passed))].guarantee.partition("; assumes that ")
        none = f"; none for {len(without)} classes, of which nothing is selected: {named}" if without else ""
        return (
            f"expected noise of what is selected at most {self.alpha:g} in each of {len(passed)} classes (by "
            f"the weak label), in all at once with probability at least {1 - self.delta:g} ({len(tested)} classes are "
            f"tested at {self.delta:g}/{len(tested)} each, Bonferroni){none}; assumes that {assumption}"
        )


def calibrate_classes(
    rows: ClassScores, correct_M: npt.ArrayLike, pool: ClassScores, classes: Sequence[str], **settings: Any
) -> ClassCuts:
    """Return the cut of each class whose noise is at most alpha, in all classes at once with confidence 1 - delta.

    Args:
        rows: the calibration rows.
        correct_M: whether their weak labels are right, bool.
        pool: the pool's rows, or a sample of them that does not depend on the calibration rows.
        classes: names of the classes.
        settings: those of :func:`curation.selection.risk.calibrate`, with ``alpha`` and ``delta``.

    Raises:
        ConfigError, UserError: as for :func:`curation.selection.risk.calibrate`, or no pool row may be selected.
    """
    correct = np.asarray(correct_M)
    floor = settings.get("floor")
    may_N = pool.score_N > -np.inf if floor is None else pool.score_N >= floor  # false for NaN, too
    size_C = np.bincount(pool.class_N[may_N], minlength=len(classes) + 1)[: len(classes)]
    tested: list[int] = np.flatnonzero(size_C).tolist()
    if not tested:
        above = "" if floor is None else f" of at least {floor:g}, the floor of the calibration rows"
        raise UserError(f"risk control: no row of the pool has a label and a score{above}; check the score stage")
    if not len(correct):
        raise UserError("calibration rows: there are none; give the risk-controlled rule a calibration split")
    delta, seed = settings["delta"], settings.get("seed", 0)
    cuts: list[RiskCut | None] = [None] * len(classes)
    for place in tested:
        is_own_M = rows.class_N == place
        if not is_own_M.any():
            cuts[place] = _UNTESTED
            continue
        own = {**settings, "delta": delta / len(tested), "seed": derive(seed, classes[place])}
        cuts[place] = calibrate(rows.score_N[is_own_M], correct[is_own_M], pool.score_N[pool.class_N == place], **own)
    return ClassCuts(classes=tuple(classes), cuts=tuple(cuts), alpha=settings["alpha"], delta=delta)
