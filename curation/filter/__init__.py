"""Trust packages and their use: the package itself, scoring of rows, and filtering of a pool of files.

* ``package/``: the folder that ``curate export-trust`` writes.
* ``rows.py``: use of a package in a user's own process, on a stream of rows or in a pipeline of Ray Data. Rows come
  from the user's own code and go back to it. ``deploy/serve.py`` answers requests by it.
* The other files: ``curate filter``, which labels each row of a pool of files once and survives kills. Its stages
  (``stages/``) are planned and run by the engine of runs (``curation.pipeline``).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from curation.filter.rows import Filter

__all__ = ["Filter"]


def __getattr__(name: str) -> Any:
    """Return a name of ``__all__``, whose module is slow to import and therefore imported on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from curation.filter import rows

    return getattr(rows, name)
