"""The points of a run at which features (``curation.features``) add stages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curation.config import RunConfig
from curation.errors import ConfigError
from curation.features import features, iter_found, parts
from curation.json_types import Json, JsonView
from curation.pipeline.roles import GenerationSpec
from curation.rundir.graph import Out, Table

Outs = Mapping[str, Mapping[str, Out]]
"""Outputs of stages by feature, then by name."""


@dataclass(frozen=True, kw_only=True)
class FeatureInputs:
    """The inputs from which a feature describes its stages of a generation."""

    section: Any
    """The feature's section of the configuration."""
    config: RunConfig
    tables: Mapping[str, Table]
    """Tables of the splits, by name; ``audit`` has the pool's gold labels."""
    record: JsonView
    """The fields of a ``report.GenerationRecord`` described so far, as outputs: ``labels`` and ``grades`` by split and,
    after the selection, all fields."""
    generation: GenerationSpec | None = None
    """Names, positions, seeds and sizes of the generation's stages, or None for a finished run."""
    split: str | None = None
    """The split to whose labels the feature adds columns, if any."""


def describe_part(part: str, generation: GenerationSpec, record: JsonView, split: str | None = None) -> dict[str, Any]:
    """Return what features add at one point of a generation's description, by feature.

    ``columns``: tables of columns that they add to the labels of ``split``, by name. ``candidates``: outputs that they
    add before the selection; ``left_out`` has the rows they leave out. ``divided``: what they read to divide the rows
    of the arms, or None. ``selected``: outputs that they add after the selection.
    """
    common: Json = {"config": generation.config, "tables": generation.tables, "record": record, "split": split}
    return {
        name: describe(FeatureInputs(section=section, generation=generation, **common))
        for name, describe, section in parts(generation.config, part)
    }


def describe_analysis(config: RunConfig, tables: Mapping[str, Table], generations: Sequence[JsonView]) -> list[Outs]:
    """Return the outputs of the analysis of a finished run, one item per generation."""
    return [
        {
            name: describe(FeatureInputs(section=section, config=config, tables=tables, record=record))
            for name, describe, section in parts(config, "analysis")
        }
        for record in generations
    ]


def check_analysis(config: RunConfig) -> Iterator[str]:
    """Yield sentences on what the analysis of a run leaves out although its configuration does not say so.

    Raises:
        ConfigError: the run lacks something that an analysis reads, or there is nothing to measure.
    """
    if not [*parts(config, "analysis")]:
        named = ", ".join(name for name, feature in features().items() if feature.analysis is not None)
        raise ConfigError(f"there is nothing to measure in this run: set one of {named}")
    yield from iter_found(config, "check")
