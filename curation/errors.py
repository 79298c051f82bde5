"""Exceptions of this project, all picklable: user errors, bad rows, failed runs.

A message names the broken rule, the value found and the fix. Every class takes exactly one message, so that an instance
survives ``pickle`` and Ray unchanged.
"""

import re


class CurationError(Exception):
    """The base of all exceptions that this project raises on purpose."""

    exit_code = 1
    """The exit code of the command line after such an error."""


class UserError(CurationError, ValueError):
    """A mistake in the user's input; the command line prints it in one line."""

    exit_code = 2


class ConfigError(UserError):
    """A configuration file or an override breaks a rule (``FILE: KEY: what is wrong, and the fix``)."""


class SourceError(UserError):
    """Input files are missing, empty, unreadable, lack a column, repeat an id or changed since the run began."""


class ModelError(UserError):
    """A model path or hub id does not load for its purpose."""


class StartError(ModelError):
    """A model did not start in this process; it may start in another one, on another node or once memory is free."""


class RunDirError(UserError):
    """A run directory belongs to another configuration or is in use by another driver."""


class ClusterError(UserError):
    """No Ray answers at the given address, or the cluster is too small for the run or has other package versions."""


class DegenerateSourceError(UserError):
    """No trust function can be fitted: the weak labels of the labelled rows are all right or all wrong."""


class BudgetError(UserError):
    """The pool or the audit set cannot meet a budget."""


class TableError(UserError):
    """A requested table does not exist, or lacks something that was requested."""


class CombineError(UserError):
    """Runs cannot be combined in one report: they are not comparable, or one is unfinished or not a run."""


class ExportError(UserError):
    """An export cannot be made: its part is missing or unfinished, or its folder is taken or cannot be written."""


class PackageError(UserError):
    """A trust package is missing, incomplete, changed or of another format, or does not fit its input."""


class ReviewError(UserError):
    """A review cannot be drawn or found, or a verdict cannot be taken."""


LONGEST_KIND = 60
"""Maximum length of an error row's kind, in characters."""


def get_error_kind(problem: str) -> str:
    """Return the kind of a row's problem (:class:`RowError`): its text before the first colon."""
    return problem.partition(":")[0]


class RowError(CurationError):
    """A row that cannot be rendered, labelled or parsed: an error row, counted by the kind in ``kind: detail``."""

    @property
    def kind(self) -> str:
        """The kind of the message, e.g. ``bad_fen``."""
        return get_error_kind(str(self))

    @property
    def has_kind(self) -> bool:
        """Whether the message starts with a kind: a short identifier to count rows by, not text of the row."""
        return self.kind != str(self) and len(self.kind) <= LONGEST_KIND and self.kind.isidentifier()


class RunFailedError(CurationError):
    """A stage could not finish; the message names the stage, the run directory and how to resume (exit code 1)."""


class ShiftError(CurationError):
    """A pool differs clearly from the rows that trust was fitted on, so nothing may be written (exit code 3)."""

    exit_code = 3


class TrainingError(RunFailedError):
    """A training failed in all its workers in a way that would recur, so it is not tried again."""


class CommitError(CurationError):
    """The store refused or lost a commit, or the numbers of rows read and written differ."""


def describe_file_error(error: OSError) -> str | None:
    """Return a message for the user about an error of one file, or ``None`` if the error names no file."""
    path = error.filename2 or error.filename
    return None if path is None else f"{path}: {error.strerror}; mend it, or move it away"


REFUSALS = (OSError, RuntimeError, ValueError)
"""The exceptions that Lance raises when the store fails or refuses; Lance has no class of its own for that."""

_LANCE = re.compile(r"LanceError|(?:^|[/ ])rust/lance|/rustc/|\.rs:\d+")
_SOURCE = re.compile(r",? *\S+\.rs:\d+(:\d+)?")
_MISSING = re.compile(r"not found: (?!not found)(\S+?),?(?:\s|$)", re.IGNORECASE)
_DAMAGED = re.compile(
    r"decode|protobuf|magic|corrupt|outside of file|invalid range|out of (?:bounds|range)|unexpected end|utf-?8|"
    r"truncated|size is too small",
    re.IGNORECASE,
)
_PANIC = "PanicException"


def is_panic(error: BaseException) -> bool:
    """Return whether an error is a panic of Rust code (no ``Exception``), as Lance raises on some damaged files."""
    return type(error).__name__ == _PANIC


def describe_lance_error(error: BaseException) -> str | None:
    """Return a message for the user about an error of Lance or its store, without source paths; ``None`` for others."""
    text = " ".join(str(error).split())
    if is_panic(error) or _PANIC in text:
        return "a file of a table is damaged, and cannot be read"
    if not _LANCE.search(text):
        return None
    if (missing := _MISSING.search(text)) is not None:
        return f"a file of a table is missing ({missing[1]})"
    if _DAMAGED.search(_SOURCE.sub("", text)):
        return "a file of a table is damaged, and cannot be read"
    return _SOURCE.sub("", text)
