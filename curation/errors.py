"""One tree of exceptions, all picklable: users' mistakes, bad rows, failed runs.

A message names the rule that was broken, the value that was found and the mend. Every class takes one message and
nothing else, so that an instance survives ``pickle`` and Ray unchanged.
"""


class CurationError(Exception):
    """Anything this project raises on purpose."""


class UserError(CurationError, ValueError):
    """A mistake in what the user gave; the command line prints it in one line and exits with code 2."""


class ConfigError(UserError):
    """A configuration file or an override breaks a rule (``FILE: KEY: what is wrong, and the mend``)."""


class SourceError(UserError):
    """Input files are missing, empty, unreadable, lack a column, repeat an id or changed since the run began."""


class ModelError(UserError):
    """A model path or hub id that does not load as what it is used for."""


class RunDirError(UserError):
    """A run directory that belongs to another configuration or is in use by another driver."""


class ClusterError(UserError):
    """No Ray answers at the address that was given, or the cluster has no room for a run, or other package versions."""


class DegenerateSourceError(UserError):
    """The labelled rows cannot teach a trust function: the weak labels are all right or all wrong."""


class BudgetError(UserError):
    """A budget that the pool or the audit set cannot meet."""


class TableError(UserError):
    """A table that is asked for is not there, or is asked for what it does not have."""


class CombineError(UserError):
    """Runs that cannot stand in one report: they differ in what has to be alike, or one is unfinished or no run."""


class RowError(CurationError):
    """One row cannot be rendered, labelled or parsed; it becomes an error row and never stops a run.

    The message starts with a kind, ``kind: detail``; rows are counted by kind.
    """

    @property
    def kind(self) -> str:
        """The part of the message before the first colon, e.g. ``bad_fen``."""
        return str(self).split(":", 1)[0]


class RunFailedError(CurationError):
    """A stage could not finish; the message names the stage, the run directory and how to go on (exit code 1)."""


class CommitError(CurationError):
    """The store refused or lost a commit, or rows in and rows out differ."""


REFUSALS = (OSError, RuntimeError, ValueError)
"""What Lance raises where the store does not do as it was told; it has no class of its own for that."""
