"""Results of checks. A check is a small function that returns a verdict; a check that crashes gives a finding too."""

from collections.abc import Callable
from typing import Literal, NamedTuple, ParamSpec

from curation.errors import CurationError

P = ParamSpec("P")
State = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    """The verdict of a check, and how to fix it if the state is not ``ok``."""

    state: State
    finding: str
    fix: str
    check: str = ""
    """The name of the check."""

    @property
    def line(self) -> str:
        """The finding in one line."""
        fix = f"; {self.fix}" if self.fix else ""
        return f"{self.state:<5} {self.check:<16} {' '.join(f'{self.finding}{fix}'.split())}"


def ok(finding: str) -> Finding:
    """Return a finding of a check that passed."""
    return Finding("ok", finding, "")


def warn(finding: str, fix: str) -> Finding:
    """Return a finding with which a run can start, but may be slow or end early."""
    return Finding("warn", finding, fix)


def fail(finding: str, fix: str) -> Finding:
    """Return a finding with which a run cannot start, or would be wrong."""
    return Finding("fail", finding, fix)


def run_check(check: str, look: Callable[P, Finding], *args: P.args, **kwargs: P.kwargs) -> Finding:
    """Return the finding of a check, even if the check raises: it examines things that may be broken."""
    try:
        verdict = look(*args, **kwargs)
    except CurationError as error:  # its message says how to fix the problem
        verdict = fail(str(error), "")
    except Exception as error:  # what is examined may be broken in any way
        verdict = fail(f"the check itself failed: {type(error).__name__}: {error}", "fix the problem in the message")
    return verdict._replace(check=check)
