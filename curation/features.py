"""Features: optional parts of a run, each with its own section, stages, numbers and part of the report.

A feature is one folder or module with a :class:`Feature`, and one line of ``OURS``; an installed package adds one by an
entry point of the group ``curation.features``. The core finds features here and imports none of them by name. A
feature's key in the configuration is its name.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from curation.errors import ConfigError
from curation.registry import Registry, find_installed, load_code, make_instance_check

GROUP = "curation.features"
"""The entry points in which installed packages name features, as ``name = "module:NAME"``."""
OURS = {
    "max_per_label": "curation.extras.caps:CAPS",
    "quota": "curation.extras.quotas:QUOTAS",
    "check_best": "curation.extras.check_best:CHECK_BEST",
    "analyze": "curation.extras.analyze:ANALYZE",
    "tracking": "curation.extras.tracking:TRACKING",
    "cascade": "curation.extras.first_cut:FIRST_CUT",
}
"""Features of this package by name, each as ``module:NAME``."""


@dataclass(frozen=True)
class Feature:
    """The parts of a feature; code is named as ``module:name``, and is imported when a run needs it.

    Functions for stages take ``curation.pipeline.extending.FeatureInputs``, and return outputs of stages by name.
    """

    section: str
    """The class of the feature's section of the configuration, a ``curation.config.base.Section``."""
    of: Literal["run", "filter"] = "run"
    """Whose configuration has the section."""
    within: str | None = None
    """The section whose keys ``section`` extends by the feature's own, as a subclass of its class; ``selection`` alone
    can be extended. None for a section of the feature's own."""
    title: str = ""
    """The heading of its part of the report."""
    is_on: bool = False
    """Whether a run whose configuration omits the feature's key has the feature, with the section's defaults."""
    needs: tuple[str, ...] = ()
    """Names of the capabilities that a run must have (``curation.config.limits.CAPABILITIES``)."""
    problems: str | None = None
    """A function of the run's configuration and section that yields conflicts and their fixes; they refuse the run."""
    warnings: str | None = None
    """A function of the same arguments that yields warnings of settings that are probably unintended."""
    settings: str | None = None
    """A function of the same arguments, called when the labels and columns of the pool are known, that yields lines for
    `curate validate` on the effect of settings and raises ``ConfigError`` if they do not fit the pool."""
    require: str | None = None
    """A function of the section that raises ``ConfigError`` before a run if this machine lacks something."""
    columns: str | None = None
    """Stages after labelling, for each split: tables (schema ``schemas.SIGNAL``) by name of the column that each adds
    to the scored labels. A line with ``curation.arms.Column`` makes an arm that ranks by such a column."""
    candidates: str | None = None
    """Stages before selection; their output ``left_out`` is a table (schema ``schemas.LEFT_OUT``) of pool rows that
    are not selected by arms with the same ranking as the budget's reference arm."""
    divided: str | None = None
    """The ``curation.rundir.graph.Inputs`` of the feature's ``division``, described for each generation, or None."""
    division: str | None = None
    """A ``curation.stages.chooser.RowDivision``, which says how many rows of each group an arm may take."""
    selected: str | None = None
    """Stages after selection."""
    analysis: str | None = None
    """Stages over a finished run, which ``curate analyze`` runs."""
    check: str | None = None
    """A function of the same that yields a sentence on each omitted part of the analysis, or refuses the run."""
    numbers: str | None = None
    """A function from outputs by name (for ``columns``, those of the pool) to the JSON under ``features`` in
    metrics.json and the report; by default, the outputs that are JSON."""
    page: str | None = None
    """A Jinja template for the report, as ``package:file``; it gets the numbers (``found``) and ``figures``."""
    figures: str | None = None
    """A function from the numbers and a prefix of ids to SVG by name."""
    spread: str | None = None
    """A function of ``curation.report.evidence.Evidence`` to advice on a selection of too few labels, or None."""
    lines: str | None = None
    """A function from the numbers (of a filter: the content of ``filter.json``) to lines for the terminal."""
    publish: str | None = None
    """A function of the section, the report's content and the run directory, called when the report is written. It
    yields a sentence on each failure, which does not fail the run."""
    flag: str | None = None
    """Help of an option of ``curate filter`` that turns the feature on, with the section's defaults."""
    gate: str | None = None
    """A function of ``curation.filter.described.FilterInputs`` that returns a gate before a filter's labels."""
    package: str | None = None
    """The class of a part that a trust package may have, a ``curation.filter.parts.PackagePart``."""
    export: str | None = None
    """A function of ``curation.commands.export.run.Fit`` and a folder for its work that returns the part of a package
    with its ``PartFiles``, or the reason why there is none."""


_FOUND = Registry("feature", {}, make_instance_check(Feature))


@cache
def features() -> Mapping[str, Feature]:
    """Return all features by name, ``OURS`` before those of installed packages, or raise ``ConfigError``."""
    found = {}
    for name, path in {**find_installed(GROUP), **OURS}.items():
        try:
            found[name] = _FOUND.find(path)
        except ValueError as error:
            raise ConfigError(f"entry point {name} of {GROUP}: {error}; mend or uninstall its package") from error
    return found


def list_flags() -> dict[str, str]:
    """Return the help of the options of ``curate filter`` for features of ``OURS``, by name; ``-h`` needs no other."""
    return {name: text for name, path in OURS.items() if (text := load_code(path).flag) is not None}


def sections(taken: Set[str], of: Literal["run", "filter"]) -> dict[str, tuple[Any, Any]]:
    """Return type and default of each feature's key in a configuration; ``ConfigError`` if its name is ``taken``."""
    if both := sorted(taken & features().keys()):
        raise ConfigError(f"entry point {both[0]} of {GROUP}: every {of} has a key of that name; rename the feature")
    own = {name: part for name, part in features().items() if part.of == of and part.within is None}
    found = {name: (load_code(part.section), part) for name, part in own.items()}
    return {name: (section | None, section() if feature.is_on else None) for name, (section, feature) in found.items()}


def list_extensions(within: str) -> list[type[Any]]:
    """Return the classes by which features add their keys to a section of the configuration."""
    return [load_code(feature.section) for feature in features().values() if feature.within == within]


def list_divisions() -> list[str]:
    """Return the names of the features by which an arm's rows are divided."""
    return [name for name, feature in features().items() if feature.division is not None]


def is_divided(budget: Mapping[str, object]) -> bool:
    """Return whether the arms of a recorded budget may leave out rows of the top n, because of a division."""
    return any(budget.get(name) is not None for name in list_divisions())


def active(config: object) -> Iterator[tuple[str, Feature, Any]]:
    """Yield the name, the feature and the section of each feature that a run's or a filter's configuration has."""
    for name, feature in features().items():
        home = config if feature.within is None else getattr(config, feature.within, None)
        if (section := getattr(home, name, None)) is not None:
            yield name, feature, section if feature.within is None else home


def parts(config: object, part: str) -> Iterator[tuple[str, Callable[..., Any], Any]]:
    """Yield the name, the function for ``part`` and the section of each feature of a run that has such a function."""
    for name, feature, section in active(config):
        if (path := getattr(feature, part)) is not None:
            yield name, load_code(path), section


def iter_found(config: object, part: str) -> Iterator[Any]:
    """Yield all that the functions of a run's features for ``part`` yield, given the configuration and the section."""
    for _, find, section in parts(config, part):
        yield from find(config, section)
