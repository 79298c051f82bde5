"""Data curation on Ray: a weak teacher labels, a trust function filters, a strong student learns (arXiv 2606.01000)."""

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from os import PathLike
from typing import TYPE_CHECKING, Any

from curation.namesakes import claim

if TYPE_CHECKING:
    from curation.commands.results import Results
    from curation.config import RunConfig
    from curation.filter import Filter

__all__ = ["Filter", "open", "run", "session"]


def run(config: "RunConfig | Mapping[str, Any] | str | PathLike[str]") -> dict[str, Any]:
    """Run the missing stages of a run and return its report (the content of ``report.json``).

    ``config``: a loaded configuration, the path of a YAML file, or a mapping with the keys of such a file. Paths in a
    mapping are relative to the working directory.

    Raises:
        UserError: the configuration, the sources or a model is wrong; or the program has a module ``train`` or ``tune``
            of its own.
        RunFailedError: a stage could not finish; the same call resumes the run.
    """
    claim()
    from curation.config.load import as_config
    from curation.pipeline.running import run_chain

    return run_chain(as_config(config))


def open(run: "str | PathLike[str]", *, generation: int | None = None) -> "Results":
    """Return the results of a run as an object, from its directory or its URL in an object store.

    It has ``report``, ``metrics`` and ``verdict``; ``selected(arm)``, ``labels(split)``, ``grades(split)`` and
    ``rows(split)``, each ``.to_arrow()``.
    ``generation``: A generation of the run's chain; by default the last one.

    Raises:
        UserError: ``run`` is no run directory, or has no rows yet or no such generation.
    """
    claim()
    from curation.commands.results import Results

    return Results.of(run, generation)


def session() -> AbstractContextManager[None]:
    """Return a context in which runs share one Ray and the actors and training processes that they start."""
    claim()
    from curation.pipeline.work import session

    return session()


def __getattr__(name: str) -> Any:
    """Return ``curation.Filter``, imported on first use because its modules are heavy."""
    if name != "Filter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from curation.filter import Filter

    return Filter


def __dir__() -> list[str]:
    """Return the public and private names of the package and its submodules imported so far."""
    found = {name for name in globals() if name.startswith("_") or f"{__name__}.{name}" in sys.modules}
    return sorted({*__all__, *found})
