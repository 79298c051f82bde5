"""Features: optional parts of a run that own all that they have: a section, stages, numbers, a part of the report.

A feature is one folder or module with a :class:`Feature`, and one line of ``OURS``; an installed package adds one by an
entry point of the group ``curation.features``. The core finds all of them here, and imports none by its own name. A
feature's key in the configuration is its name.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache
from typing import Any

from curation.errors import ConfigError
from curation.registry import Registry, find_installed, load_code, make_instance_check

GROUP = "curation.features"
"""The entry points in which installed packages name features, as ``name = "module:NAME"``."""
OURS = {
    "check_best": "curation.extras.check_best:CHECK_BEST",
    "analyze": "curation.extras.analyze:ANALYZE",
    "tracking": "curation.extras.tracking:TRACKING",
}
"""Features of this package by name, each as ``module:NAME``."""


@dataclass(frozen=True)
class Feature:
    """The parts of a feature; code is named as ``module:name``, and is imported when a run needs it.

    Functions for stages take ``curation.pipeline.extending.FeatureInputs``, and return outputs of stages by name.
    """

    section: str
    """The class of its section of the configuration, a ``curation.config.base.Section``."""
    title: str = ""
    """The heading of its part of the report."""
    is_on: bool = False
    """Whether it is on in a run whose configuration leaves its key out, with the section's defaults."""
    needs: tuple[str, ...] = ()
    """Names of what a run must have, of ``curation.config.limits.CAPABILITIES``."""
    problems: str | None = None
    """A function of the run's configuration and the section: it yields what does not go with the feature, and the
    mend; such a run is refused."""
    warnings: str | None = None
    """Such a function that yields what can hardly be meant."""
    require: str | None = None
    """A function of the section, called before a run begins: it raises ``ConfigError`` if this machine lacks something
    that the feature needs."""
    dtypes: str | None = None
    """A function of the configuration and the section that yields ``curation.pipeline.outlook.TypedModels``: settings
    ``auto`` of a type of numbers, of which `curate validate` says what they come to."""
    columns: str | None = None
    """Stages after labelling, for each split: tables (schema ``schemas.SIGNAL``) by the column of the scored labels
    that they become. An arm ranks by such a column with one line, ``curation.arms.Column``."""
    candidates: str | None = None
    """Stages before selection; their output ``left_out`` is a table (schema ``schemas.LEFT_OUT``) of rows of the pool
    that arms do not select which rank as the budget's reference arm does."""
    selected: str | None = None
    """Stages after selection."""
    analysis: str | None = None
    """Stages over a finished run, which ``curate analyze`` does."""
    check: str | None = None
    """A function of the run's configuration and the section: it yields, in words, what of the analysis is left out, or
    refuses the run."""
    numbers: str | None = None
    """A function from outputs by name (of ``columns`` those of the pool) to the JSON that metrics.json and the report
    have under ``features``; unset, outputs that are JSON."""
    page: str | None = None
    """A Jinja template for the report's page, as ``package:file``, with its numbers (``found``) and ``figures``."""
    figures: str | None = None
    """A function from the numbers and a prefix of ids to SVG by name."""
    lines: str | None = None
    """A function from the numbers to lines for the terminal."""
    publish: str | None = None
    """A function of the section, the report's content and the run directory, called when the report is written: it
    yields a sentence on each thing that failed, which does not fail the run."""


_FOUND = Registry("feature", {}, make_instance_check(Feature))


@cache
def features() -> Mapping[str, Feature]:
    """Return all features by name; an installed package takes no name of ours.

    Raises:
        ConfigError: an installed package names one that is not there.
    """
    found = {}
    for name, path in {**find_installed(GROUP), **OURS}.items():
        try:
            found[name] = _FOUND.find(path)
        except ValueError as error:
            raise ConfigError(f"entry point {name} of {GROUP}: {error}; mend or uninstall its package") from error
    return found


def sections(taken: Set[str]) -> dict[str, tuple[Any, Any]]:
    """Return the type and the default of each feature's key in the configuration, which has the keys ``taken``.

    Raises:
        ConfigError: a feature of an installed package has one of these for its name.
    """
    if both := sorted(taken & features().keys()):
        raise ConfigError(f"entry point {both[0]} of {GROUP}: every run has a key of that name; rename the feature")
    found = {name: (load_code(feature.section), feature) for name, feature in features().items()}
    return {name: (section | None, section() if feature.is_on else None) for name, (section, feature) in found.items()}


def active(config: object) -> Iterator[tuple[str, Feature, Any]]:
    """Yield the features that a run's configuration has, by name, with their sections."""
    for name, feature in features().items():
        if (section := getattr(config, name, None)) is not None:
            yield name, feature, section


def parts(config: object, part: str) -> Iterator[tuple[str, Callable[..., Any], Any]]:
    """Yield the functions that a run's features have for a part, by feature, each with its section."""
    for name, feature, section in active(config):
        if (path := getattr(feature, part)) is not None:
            yield name, load_code(path), section


def iter_found(config: object, part: str) -> Iterator[Any]:
    """Yield what a part's functions of a run's configuration and a section find, for all of its features."""
    for _, find, section in parts(config, part):
        yield from find(config, section)
