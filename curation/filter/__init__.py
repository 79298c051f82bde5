"""Trust packages and their use: the package itself, scoring of rows, and filtering of a pool of files.

* ``package/``: the folder that ``curate export-trust`` writes.
* ``rows.py``, ``replica.py``: use of a package in a user's own process, on a stream of rows, in a pipeline of Ray Data,
  or behind Ray Serve. Rows come from the user's own code and go back to it.
* The other files: ``curate filter``, which labels each row of a pool of files once and survives kills. Its stages
  (``stages/``) are planned and run by the engine of runs (``curation.pipeline``).
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from curation.filter.replica import Replica
    from curation.filter.rows import Filter, ShiftWatch

__all__ = ["Filter", "Replica", "ShiftWatch"]
_HOMES = {"Filter": "rows", "Replica": "replica", "ShiftWatch": "rows"}


def __getattr__(name: str) -> Any:
    """Return a name of ``__all__``, whose module is slow to import and therefore imported on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return the names of the package, including those that are imported on first use."""
    return sorted({*globals(), *__all__})
