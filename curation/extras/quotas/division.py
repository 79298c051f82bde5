"""Quotas by class: which runs have them, the class shares that they follow, and their part of a selection."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from curation.arms import ARMS, Arm
from curation.arrays import Int64s, Uint64s
from curation.config import RunConfig
from curation.config.selection import CUTS
from curation.domains import Domain, get_domain
from curation.domains.class_counts import Grouping, RarestClass, count_confusion, count_given, find_class_places
from curation.domains.label_sets import LabelSets
from curation.errors import ConfigError
from curation.extras.quotas.config import QuotaKeys
from curation.pipeline.extending import FeatureInputs
from curation.refs import TableRef
from curation.report.evidence import Evidence
from curation.rundir.graph import In, Inputs
from curation.selection.class_shares import ClassShares, estimate_shares
from curation.selection.quotas import allocate
from curation.selection.top_n import check_budget
from curation.stages.chooser import RowDivision
from curation.stages.pool_scores import ComputedBudget, Groups, PoolScores

_KEY, _RISK = "selection.quota", "selection.budget.risk.per: label"
MOST_CLASSES = 5
"""Maximum number of classes whose shares the log names."""


class Classes(Inputs):
    """The closed set of labels, and labelled rows that show how the teacher confuses them.

    If labels are sets of classes, rows are divided by their rarest class (:mod:`curation.domains.class_counts`).
    """

    names: Sequence[str]
    examples: In[TableRef]
    """The source split, with gold labels."""
    labels: In[TableRef]
    """The teacher's labels of the source split."""
    grades: In[TableRef]

    def groups(self, sets: LabelSets | None) -> Grouping:
        """Return the classes among which rows are divided or, for labels that are sets, the strata."""
        return self.names if sets is None else RarestClass.of(sets, self.examples)

    def shares(self, pool: TableRef, sets: LabelSets | None = None) -> ClassShares:
        """Return estimates of the classes' shares from the pool's labels."""
        groups = self.groups(sets)
        counts = count_confusion(self.examples, self.labels, self.grades, groups)
        return estimate_shares(self.names, count_given(pool, groups), counts)


def describe_classes(inputs: FeatureInputs) -> Classes | None:
    """Return the classes that have quotas or cuts of their own, with labelled rows that show their shares, or None."""
    names = find_divided_classes(inputs.section, get_domain(inputs.config.domain_of("pool")))
    if names is None:
        return None
    return Classes(
        names=names,
        examples=inputs.tables["source"],
        labels=inputs.record["labels"]["source"],
        grades=inputs.record["grades"]["source"],
    )


def describe_settings(config: RunConfig, section: QuotaKeys) -> Iterator[str]:
    """Yield a description of a run's class quotas, if the pool has two classes or more, or refuse them."""
    domain = get_domain(config.domain_of("pool"))
    find_divided_classes(section, domain)
    classes = _get_classes(domain)
    if classes is None or len(classes) < 2:
        return
    if section.budget.is_by_label:
        yield f"{_RISK}: each of {len(classes)} classes has a certified cut of its own"
    elif section.budget.rule in CUTS:
        yield f"{_KEY}: none, since budget.{section.budget.rule} takes all rows above a cut, whatever their class"
    elif section.quota == "none":
        yield f"{_KEY}: none: the best rows are selected, whatever their class"
    else:
        own = [name for name in section.arms if ARMS[name].ranked and not ARMS[name].takes_top]
        but = f", but for the rules of {', '.join(own)}" if own else ""
        to = f"{len(classes)} classes"
        if domain.label_sets is not None:
            to = f"the {len(domain.label_sets.classes)} classes and to rows of none, each row by its rarest class,"
        by = "their estimated shares in the pool"
        yield f"{_KEY}: the places of arms that rank go to {to} by {by}{but} (none: the best rows)"


def _get_classes(domain: Domain) -> tuple[str, ...] | None:
    """Return the classes among which rows can be divided: the labels or, for sets, their classes and the empty set."""
    sets = domain.label_sets
    return domain.closed_labels() if sets is None else (*sets.classes, sets.empty)


def find_divided_classes(selection: QuotaKeys, domain: Domain) -> tuple[str, ...] | None:
    """Return the classes that have quotas or cuts of their own, or None; refuse quotas that do not fit the domain."""
    classes = _get_classes(domain)
    if domain.label_sets is not None:
        several = "with domain.multi a row may have several classes"
        if selection.budget.is_by_label:
            raise ConfigError(
                f"{_RISK}: {several}, and is right where the whole set is, so that no class has rows of its own to "
                "certify; leave per out: the guarantee is then of all selected rows"
            )
        for key in selection.counted_by if selection.quota != "none" and selection.budget.rule not in CUTS else ():
            raise ConfigError(
                f"selection.{key}: {getattr(selection, key)}: counts rows of one set of labels, and places go to "
                f"classes, since {several}; both at once are not possible: set {_KEY}: none, or leave {key} out"
            )
    if selection.budget.is_by_label:
        if classes is None:
            raise ConfigError(f"{_RISK}: domain {domain.name} has no closed set of labels; leave per out")
        return classes
    if classes is None or len(classes) < 2 or selection.quota == "none" or selection.budget.rule in CUTS:
        return None
    for key, by in selection.counted_by.items():
        if by != "label":
            raise ConfigError(
                f"{_KEY}: places go to classes, and selection.{key} counts by {by!r}; both at once are not possible: "
                f"set {_KEY}: none, or leave {key} out"
            )
    return classes


class QuotaDivision(RowDivision[ClassShares]):
    """Quotas: an arm that ranks and takes its top rows takes the top rows of each class.

    If a class has too few rows, the other classes get its places. Uniform draws, and arms with a rule of their own,
    have no quotas.
    """

    def set(self, budget: ComputedBudget) -> ClassShares | None:
        """Return the classes' shares among an arm's rows, or None if places are not divided."""
        if budget.is_cut or self._classes is None:
            return budget.shares
        return self._classes.shares(self.job.labels, get_domain(self.job.domain).label_sets)

    def group(self, arm: Arm, scores: PoolScores, n: int, value: ClassShares, before: Groups | None) -> Groups | None:
        """Return the classes with their places: n in total, or fewer if a cap on each class leaves fewer."""
        if not arm.takes_top:
            return before
        grouping = self._grouping
        size_C, num_rows = scores.sizes(grouping)
        check_budget(n, int(size_C.sum()), num_rows)
        room_C = size_C if before is None else np.minimum(size_C, before.most)
        quota_C = allocate(value.shares, room_C, min(n, int(room_C.sum())))

        def read(_: Int64s, weak_M: pa.Array) -> Uint64s:
            return find_class_places(weak_M, grouping).astype(np.uint64)

        return Groups(lambda: read, np.append(quota_C, 0))

    def describe(self, budget: ComputedBudget, value: ClassShares | None) -> Iterator[str]:
        """Yield a line on the class shares, their basis and the largest ones, or on the classes' guarantee."""
        if value is None:
            if self._classes is not None and budget.n:
                yield f"selection.quota: none: budget.{budget.rule} takes all rows above a cut, whatever their class"
            return
        if value.basis == "certified":
            yield f"selection.budget.risk.per: label: {(budget.risk or {})['guarantee']}"
            return
        by_confusion = f"the teacher's labels and its confusion on {value.num_labelled:,} labelled rows"
        basis = {
            "confusion": f"estimated from {by_confusion}",
            "counts": f"the teacher's own counts, since {value.why}",
        }[value.basis]
        pairs = sorted(zip(value.classes, value.shares, strict=True), key=lambda pair: -pair[1])
        most = ", ".join(f"{name} {100 * share:.0f} %" for name, share in pairs[:MOST_CLASSES])
        more = f", and {len(pairs) - MOST_CLASSES} more" if len(pairs) > MOST_CLASSES else ""
        is_of_sets = get_domain(self.job.domain).label_sets is not None
        to = "classes, each row by the rarest of its set," if is_of_sets else "classes"
        yield f"selection.quota: places go to {len(pairs)} {to} by shares {basis}: {most}{more}"

    @property
    def _classes(self) -> Classes | None:
        found = self.job.divided.get("quota")
        assert found is None or isinstance(found, Classes), "they are described as such"
        return found

    @cached_property
    def _grouping(self) -> Grouping:
        """The classes among which rows are divided or, for sets of classes, their strata."""
        assert self._classes is not None, "places are divided"
        return self._classes.groups(get_domain(self.job.domain).label_sets)


def suggest_places(evidence: Evidence) -> str | None:
    """Return the advice that gives a selection more classes, or None if labels are no closed set."""
    found = evidence.classes
    if found is None:
        return None
    if found["is_divided"]:
        why = "Places by class are set, and the teacher gave too few rows the other labels"
        if found["is_of_sets"]:
            why = "Places are divided by the rarest class of each set, and this is left"
        return f"{why}: select fewer rows (selection.budget), label a larger pool, or take a stronger teacher."
    if found["is_cut"]:
        n = evidence.num_selected
        return f"Divide a number of rows among the classes: selection: {{budget: {{n: {n}}}, quota: auto}}."
    return "Divide the places among the classes: selection: {quota: auto}."
