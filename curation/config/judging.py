"""Checks that cost: the rows that the section ``judge`` grades, and those that ``selection.verify`` has checked."""

from collections.abc import Iterator
from typing import Any

from curation.arms import ARMS
from curation.registry import METHODS


def beyond_judge(run: Any) -> str | None:
    """The first thing that a run's configuration asks for and its judge cannot do; ``None`` if there is none."""
    domains = {split: run.domain_of(split) for split in run.splits.named()}
    checked = [split for split, domain in domains.items() if domain.judge is not None]
    if run.judge is None:
        if not checked:
            return None
        return (
            "domain.check: judge asks the model of the section judge, and there is none; add judge: "
            "{model: {path: ...}}, or take another check"
        )
    if unknown := set(run.judge.splits) - set(domains):
        return f"judge.splits: {', '.join(sorted(unknown))} not among the splits that are given"
    if checked and "domain" in METHODS[run.student.method].reads:
        return (
            f"student.method: {run.student.method} grades answers as it trains, where no judge is asked; take sft, or "
            "a check by a rule or a command"
        )
    graded = {"pool": run.splits.audit, "calibration": run.selection.budget.needs_calibration}
    for split in run.judge.splits:
        if not graded.get(split, True) and split not in checked:
            fix = "set splits.audit: true" if split == "pool" else "set selection.budget.risk"
            return f"judge.splits: {split} is not graded in this run; {fix}, or leave it out"
    return None


def too_few_verified(run: Any) -> Iterator[str]:
    """A warning where fewer rows are checked than are selected, so that unchecked ones are selected in any case."""
    selection = run.selection
    if selection.verify is not None and selection.budget.n is not None and selection.verify < selection.budget.n:
        yield (
            f"selection.verify: {selection.verify:,} rows are checked and {selection.budget.n:,} selected "
            f"(selection.budget.n), so that at least {selection.budget.n - selection.verify:,} selected rows are not "
            "checked; raise verify above budget.n, or lower n"
        )


def beyond_verify(run: Any) -> str | None:
    """The first thing that keeps ``selection.verify`` from being done as it says; ``None`` if there is none."""
    selection = run.selection
    if selection.verify is None:
        return None
    budget = selection.budget
    domain = run.domain_of("pool")
    if domain.command is None and domain.judge is None:
        return (
            "selection.verify: runs a program on rows of the pool, or asks a judge about them, and domain.check names "
            "neither; set domain: {name: text, check: {command: [python, check.py]}} or check: judge, or leave verify "
            "out"
        )
    if run.splits.audit:
        return (
            "selection.verify: with splits.audit the check grades the whole pool, so that nothing is saved; leave one "
            "of the two out"
        )
    if budget.rule not in ("n", "share"):
        return (
            f"selection.verify: budget.{budget.rule} says how many rows are selected before any is checked; set "
            "budget.n or budget.share"
        )
    if budget.reference not in selection.arms:
        return (
            f"selection.verify: drops rows from the arm {budget.reference} (selection.budget.reference), which is not "
            "among selection.arms; add it"
        )
    if not ARMS[budget.reference].takes_top:
        return (
            f"selection.verify: checks the rows that {budget.reference} (selection.budget.reference) puts first, which "
            "does not take its best rows; name an arm that does, e.g. trust"
        )
    return None
