"""Translates an error of Ray into its cause: the user's mistake that a task found, or a failed stage."""

import re

from curation.errors import ClusterError, CurationError, RunFailedError, SourceError

MISTAKES = {f"{kind.__module__}.{kind.__name__}": kind for kind in (SourceError, ClusterError)}
"""User errors that tasks may raise."""


def cause(error: BaseException, stage: str) -> CurationError:
    """The error to raise in the driver for an error that Ray raised.

    Its text holds the text of every error that it wraps; the last one is the cause.
    """
    raised = re.findall(r"^([\w.]+(?:Error|Exception)): (.+)$", str(error), flags=re.MULTILINE)
    own = [line for line in raised if not line[0].startswith("ray.")]
    name, message = (own or raised or [("", str(error).strip().splitlines()[0])])[-1]
    if name in MISTAKES:
        return MISTAKES[name](message)
    return RunFailedError(f"{stage} failed: {name} {message}; the same command resumes from what is committed")
