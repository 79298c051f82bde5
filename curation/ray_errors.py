"""What an error of Ray was about: the user's mistake that a task met, or that the stage failed."""

import re

from curation.errors import ClusterError, CurationError, RunFailedError, SourceError

MISTAKES = {f"{kind.__module__}.{kind.__name__}": kind for kind in (SourceError, ClusterError)}
"""The user's, that tasks meet."""


def cause(error: BaseException, stage: str) -> CurationError:
    """The error to raise in the driver for one that Ray Data raised.

    Ray Data wraps an error of a task twice and the chain of causes is lost on the way to the driver; its text is not.
    """
    raised = re.findall(r"^([\w.]+(?:Error|Exception)): (.+)$", str(error), flags=re.MULTILINE)
    own = [line for line in raised if not line[0].startswith("ray.")]
    name, message = (own or raised or [("", str(error).strip().splitlines()[0])])[-1]
    if name in MISTAKES:
        return MISTAKES[name](message)
    return RunFailedError(f"{stage} failed: {name} {message}; the same command goes on from what is committed")
