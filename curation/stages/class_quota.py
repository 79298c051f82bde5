"""Quotas by class (``selection.quota``): which runs have them, and the class shares that they follow."""

import difflib
from collections.abc import Mapping, Sequence

from curation.arms import ARMS
from curation.config import SelectionConfig
from curation.config.selection import CUTS
from curation.domains import Domain
from curation.domains.class_counts import Grouping, RarestClass, count_confusion, count_given
from curation.errors import ConfigError
from curation.refs import TableRef
from curation.rundir.graph import In, Inputs
from curation.selection.class_shares import ClassShares, estimate_shares

_KEY, _RISK = "selection.quota", "selection.budget.risk.per: label"


class Classes(Inputs):
    """The closed set of labels, and labelled rows that show how the teacher confuses them.

    If labels are sets of classes, rows are divided by their rarest class (:mod:`curation.domains.class_counts`).
    """

    names: Sequence[str]
    wanted: Mapping[str, float] | None
    """Shares from the configuration, which need not sum to 1, or None to estimate them."""
    examples: In[TableRef]
    """The source split, with gold labels."""
    labels: In[TableRef]
    """The teacher's labels of the source split."""
    grades: In[TableRef]

    def groups(self, domain: Domain) -> Grouping:
        """Return the classes among which rows are divided or, for labels that are sets, the strata."""
        sets = domain.label_sets
        return self.names if sets is None else RarestClass.of(sets, self.examples)

    def shares(self, pool: TableRef, domain: Domain) -> ClassShares:
        """Return the configured shares of the classes, or estimates from the pool's labels."""
        if self.wanted is None:
            groups = self.groups(domain)
            counts = count_confusion(self.examples, self.labels, self.grades, groups)
            return estimate_shares(self.names, count_given(pool, groups), counts)
        total = sum(self.wanted.values())
        return ClassShares(
            classes=tuple(self.names),
            shares=tuple(self.wanted.get(name, 0.0) / total for name in self.names),
            basis="given",
            num_labelled=0,
        )


def describe_quota(selection: SelectionConfig, domain: Domain) -> str | None:
    """Return a description of a run's class quotas for ``curate validate``, or None with fewer than two classes."""
    classes = _get_classes(domain)
    if classes is None or len(classes) < 2:
        return None
    if selection.budget.is_by_label:
        return f"{_RISK}: each of {len(classes)} classes has a certified cut of its own"
    if selection.budget.rule in CUTS:
        return f"{_KEY}: none, since budget.{selection.budget.rule} takes all rows above a cut, whatever their class"
    if selection.quota == "none":
        return f"{_KEY}: none: the best rows are selected, whatever their class"
    by = "their estimated shares in the pool" if selection.quota == "auto" else "the shares of the file"
    own = [name for name in selection.arms if ARMS[name].ranked and not ARMS[name].takes_top]
    but = f", but for the rules of {', '.join(own)}" if own else ""
    to = f"{len(classes)} classes"
    if domain.label_sets is not None:
        to = f"the {len(domain.label_sets.classes)} classes and to rows of none, each row by its rarest class,"
    return f"{_KEY}: the places of arms that rank go to {to} by {by}{but} (none: the best rows)"


def _get_classes(domain: Domain) -> tuple[str, ...] | None:
    """Return the classes among which rows can be divided: the labels or, for sets, their classes and the empty set."""
    sets = domain.label_sets
    return domain.closed_labels() if sets is None else (*sets.classes, sets.empty)


def find_divided_classes(selection: SelectionConfig, domain: Domain) -> tuple[str, ...] | None:
    """Return the classes that have quotas or cuts of their own, or None if classes have neither.

    Raises:
        ConfigError: the quotas do not fit the domain, or what counts as a label.
    """
    classes, quota = _get_classes(domain), selection.quota
    if domain.label_sets is not None:
        _check_sets(selection)
    if isinstance(quota, dict):
        if classes is None:
            raise ConfigError(f"{_KEY}: domain {domain.name} has no closed set of labels; leave it out")
        if unknown := [name for name in quota if name not in classes]:
            near = difflib.get_close_matches(unknown[0], classes, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(classes[:8])}"
            raise ConfigError(f"{_KEY}: {unknown[0]!r} is none of the {len(classes)} classes; {hint}")
    if selection.budget.is_by_label:
        if classes is None:
            raise ConfigError(f"{_RISK}: domain {domain.name} has no closed set of labels; leave per out")
        return classes
    if classes is None or len(classes) < 2 or quota == "none" or selection.budget.rule in CUTS:
        return None
    if selection.max_per_label_by != "label":
        raise ConfigError(
            f"{_KEY}: places go to classes, and selection.max_per_label_by counts by {selection.max_per_label_by!r}; "
            f"both at once are not possible: set {_KEY}: none, or leave max_per_label_by out"
        )
    return classes


def _check_sets(selection: SelectionConfig) -> None:
    """Refuse settings that are impossible if labels are sets of classes."""
    several = "with domain.multi a row may have several classes"
    if isinstance(selection.quota, dict):
        raise ConfigError(
            f"{_KEY}: {selection.quota}: {several}, so shares of classes do not divide the rows; set {_KEY}: auto, "
            "which follows the pool's shares, or none"
        )
    if selection.budget.is_by_label:
        raise ConfigError(
            f"{_RISK}: {several}, and is right where the whole set is, so that no class has rows of its own to "
            "certify; leave per out: the guarantee is then of all selected rows"
        )
    if selection.max_per_label is not None and selection.quota != "none" and selection.budget.rule not in CUTS:
        raise ConfigError(
            f"selection.max_per_label: {selection.max_per_label}: counts rows of one set of labels, and places go to "
            f"classes, since {several}; both at once are not possible: set {_KEY}: none, or leave max_per_label out"
        )
