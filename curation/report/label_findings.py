"""Findings of the verdict on labels, such as one label for all rows, collapsed classes, unreadable labels, copies."""

from curation.escaping import quote_text
from curation.features import features
from curation.registry import load_code
from curation.report.class_table import COLLAPSE
from curation.report.evidence import Evidence
from curation.report.headline import format_percent
from curation.report.levels import CARE, FEW_OF_A_CLASS, STOP, Finding

UNREAD = 0.2
"""Maximum share of the pool's labels that cannot be read, without a finding."""
UNSEEN = 0.05
"""Maximum share of the pool's labels that no labelled row has, without a finding."""
REPEATED = 0.2
"""Maximum share of labelled or selected rows that repeat a question, without a finding."""


def find_one_label(evidence: Evidence) -> Finding | None:
    """Return a finding if the teacher gave the same label to all rows, which makes the labels useless."""
    found = evidence.labels
    if found is None or found.num_given != 1 or found.num_labelled < FEW_OF_A_CLASS:
        return None
    return STOP, f"the teacher gave one label to all {found.num_labelled:,} rows whose label could be read"


def find_one_class(evidence: Evidence) -> Finding | None:
    """Return a finding if all selected rows have one label although the teacher gave several."""
    found = evidence.labels
    if found is None or found.num_given < 2 or found.num_selected != 1 or evidence.num_selected < FEW_OF_A_CLASS:
        return None
    return CARE, (
        f"this selection is of one class: all {evidence.num_selected:,} rows have one label, of "
        f"{found.num_given:,} that the teacher gave"
    )


def find_collapse(evidence: Evidence) -> Finding | None:
    """Return a finding if class shares differ much from the pool's, unless :func:`find_one_class` reports it."""
    found = evidence.classes
    few = evidence.num_selected < FEW_OF_A_CLASS
    if found is None or few or found.excess <= COLLAPSE or find_one_class(evidence) is not None:
        return None
    beside = "of the places of selection.quota" if found.basis == "given" else "of the pool, as estimated"
    named = [
        f"{name} has {format_percent(share)} of its rows and {format_percent(of_pool)} {beside}"
        for name, share, of_pool in (*found.over, *found.under)
    ]
    other = "other sets of classes, at the least" if found.is_of_sets else "other classes"
    return CARE, (
        f"this selection has collapsed: {format_percent(found.excess)} of its rows would have to be of {other} "
        f"({'; '.join(named)})"
    )


def describe_spread(evidence: Evidence) -> str:
    """Return the advice of a feature that gives a selection more classes, with a line of configuration if one helps."""
    advisers = (feature.spread for feature in features().values() if feature.spread is not None)
    return next((advice for path in advisers if (advice := load_code(path)(evidence)) is not None), "")


def find_short_options(evidence: Evidence) -> Finding | None:
    """Return a finding if chosen options are shorter than right ones and scores per character are right more often."""
    found = evidence.option_lengths
    if found is None or found.shorter.low <= 0 or found.gain.low <= 0:
        return None
    scores = ", ".join(f"{score:.1f} at {length} characters" for length, score in found.scores)
    return CARE, (
        f"normalise_options: false prefers short labels here (on {found.shorter.n:,} labelled rows the chosen one is "
        f"shorter than the right one by {found.shorter.value:.1f} characters; mean score {scores}; by the score per "
        f"character {100 * found.gain.value:.0f} points more of the choices are right)"
    )


def find_unreadable(evidence: Evidence) -> Finding | None:
    """Return a finding if many labels cannot be read; they count as wrong, and arms that rank select none of them."""
    found = evidence.unread
    if found is None or found.num_unread <= UNREAD * found.num_rows:
        return None
    shown = ", ".join(quote_text(text) for text in found.writings)
    share = format_percent(found.num_unread / found.num_rows)
    return CARE, f"{share} of the pool's labels cannot be read ({shown}); arms that rank leave these rows out"


def find_never_seen(evidence: Evidence) -> Finding | None:
    """Return a finding if many labels occur in no labelled row, so that it is unknown how well trust ranks them."""
    found = evidence.unseen
    if found is None or found.num_rows <= max(UNSEEN, found.expected) * found.num_read:
        return None
    return CARE, (
        f"{format_percent(found.num_rows / found.num_read)} of the pool's labels are such that no labelled row has "
        f"them ({found.words}), and trust was never measured on such labels"
    )


def find_copied(evidence: Evidence) -> Finding | None:
    """Return a finding if many selected rows repeat a question; such copies teach one question but count as rows."""
    found = evidence.selected_repeats
    if found is None or found.share <= REPEATED:
        return None
    return CARE, (
        f"{format_percent(found.share)} of the selected rows repeat a question: {found.num_rows:,} rows ask only "
        f"{found.num_questions:,} different ones, and foreseen purity counts each row (selection.repeats: all)"
    )


def find_nearly_copied(evidence: Evidence) -> Finding | None:
    """Return a finding if many selected rows are near-copies, which are right or wrong together."""
    found = evidence.near
    if found is None or not found.is_more_than_expected:
        return None
    share = 1 - found.num_questions / found.num_rows
    if share <= REPEATED:
        return None
    return CARE, (
        f"{format_percent(share)} of the selected rows are near-copies: {found.num_rows:,} rows ask only "
        f"{found.num_questions:,} different questions (of {found.num_compared:,} labelled rows "
        f"{format_percent(found.expected)} are near-copies), and foreseen purity counts each question once"
    )


def find_repeats(evidence: Evidence) -> Finding | None:
    """Return a finding if many labelled rows repeat a question, which adds no information."""
    found = evidence.repeats
    if found is None or found.share <= REPEATED:
        return None
    return CARE, (
        f"{format_percent(found.share)} of the labelled rows repeat a question: {found.num_rows:,} rows ask only "
        f"{found.num_questions:,} different ones"
    )
