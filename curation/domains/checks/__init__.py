"""Checks, which grade completions of the domain ``text`` against their rows' reference answers."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from curation.domains.checks.command import REMOVED, CommandCheck, Removed
from curation.domains.checks.judge import JudgeCheck
from curation.domains.checks.rules import Equal, Json, Normalised, Number, Pattern
from curation.errors import ConfigError, RowError

__all__ = ["Check", "Verdict", "check_of"]

Verdict = bool | RowError
"""Whether a completion is right, or the error if that is undecidable."""


class Check(Protocol):
    """A grader of completions."""

    needs_rows: ClassVar[bool]
    """Whether the check needs the rows' columns."""

    def __call__(
        self, completions: Sequence[str], references: Sequence[str], rows: Sequence[Mapping[str, object]]
    ) -> list[Verdict]:
        """Return a verdict for each completion; ``rows`` is empty if the check needs none."""
        ...


_RULES: Mapping[str, Any] = {
    "equal": Equal,
    "normalised": Normalised,
    "number": Number,
    "regex": Pattern,
    "json": Json,
    "judge": JudgeCheck,
}
_KNOWN = (*_RULES, "command")


def check_of(value: object) -> Check:
    """Return the check that the option ``check`` gives: a name, or a mapping of one name to its options.

    Raises:
        ConfigError: there is no such check, or it does not take the options.
    """
    if value == REMOVED:
        return Removed()
    if isinstance(value, str) and value in _RULES:
        value = {value: {}}
    if isinstance(value, Mapping) and "command" in value:
        return _make_check(CommandCheck, "command", value)
    if not isinstance(value, Mapping) or len(value) != 1 or (name := next(iter(value))) not in _RULES:
        raise ConfigError(
            f"check: {value!r} is none of {', '.join(_KNOWN)}; give one, or one with its options, as "
            "{number: {relative: 0.01}} or {command: [python, check.py]}"
        )
    options = value[name]
    if not isinstance(options, Mapping):
        raise ConfigError(f"check.{name}: {options!r} is not a mapping of options; docs/data-forms.md lists them")
    return _make_check(_RULES[name], name, options)


def _make_check(made_by: Any, name: str, options: Mapping[str, Any]) -> Check:
    try:
        check: Check = made_by(**options)
    except TypeError as error:
        raise ConfigError(f"check.{name}: does not take {dict(options)!r} ({error}); see docs/data-forms.md") from error
    return check
