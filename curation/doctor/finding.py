"""What a check finds. A check is a small function that returns a verdict; one that crashes gives a finding too."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, ParamSpec

from curation.errors import CurationError

P = ParamSpec("P")
State = Literal["ok", "warn", "fail"]


class Verdict(NamedTuple):
    """How it stands, what was found, and what to mend where it is not ``ok``."""

    state: State
    told: str
    mend: str


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The verdict of a check."""

    check: str
    state: State
    told: str
    mend: str

    @property
    def line(self) -> str:
        """The finding in one line."""
        mend = f"; {self.mend}" if self.mend else ""
        return f"{self.state:<5} {self.check:<16} {' '.join(f'{self.told}{mend}'.split())}"


def ok(told: str) -> Verdict:
    """Nothing to mend."""
    return Verdict("ok", told, "")


def warn(told: str, mend: str) -> Verdict:
    """A run can start, but may be slow or end early."""
    return Verdict("warn", told, mend)


def fail(told: str, mend: str) -> Verdict:
    """A run cannot start, or would be wrong."""
    return Verdict("fail", told, mend)


def found(check: str, look: Callable[P, Verdict], *args: P.args, **kwargs: P.kwargs) -> Finding:
    """The finding of a check, whatever comes out of it: it looks at what may be broken."""
    try:
        verdict = look(*args, **kwargs)
    except CurationError as error:  # says itself what to mend
        verdict = fail(str(error), "")
    except Exception as error:
        verdict = fail(f"the check itself failed: {type(error).__name__}: {error}", "mend what the message names")
    return Finding(check=check, state=verdict.state, told=verdict.told, mend=verdict.mend)
