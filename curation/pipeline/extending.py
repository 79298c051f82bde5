"""The points of a run at which features (``curation.features``) add stages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curation.config import RunConfig
from curation.errors import ConfigError
from curation.features import features, iter_found, parts
from curation.json_types import JsonView
from curation.pipeline.generation_spec import GenerationSpec
from curation.rundir.graph import Inputs, Out, Table
from curation.storage.paths import Place

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


def require(config: RunConfig) -> None:
    """Refuse a run if this machine lacks something that its features need.

    Raises:
        ConfigError: the run is refused; the message names the key and the remedy.
    """
    for _, check, section in parts(config, "require"):
        check(section)


def publish(config: RunConfig, report: JsonView, directory: Place) -> Iterator[str]:
    """Let features publish a finished run's report; yield a sentence on each failure."""
    for _, publish_report, section in parts(config, "publish"):
        yield from publish_report(section, report, directory)


def describe_columns(generation: GenerationSpec, split: str, labels: Mapping[str, Out]) -> Outs:
    """Return the tables of columns that features add to the labels of a split."""
    return _describe_part("columns", generation.config, generation.tables, {"labels": labels}, generation, split)


def describe_candidates(generation: GenerationSpec, record: JsonView) -> Outs:
    """Return outputs that features add before a generation's selection: ``left_out``, the rows they leave out."""
    return _describe_part("candidates", generation.config, generation.tables, record, generation)


def describe_divided(generation: GenerationSpec, record: JsonView) -> dict[str, Inputs]:
    """Return what features read to divide the rows of a generation's arms, by feature."""
    found: Mapping[str, Any] = _describe_part("divided", generation.config, generation.tables, record, generation)
    return {name: inputs for name, inputs in found.items() if inputs is not None}


def describe_after_selection(generation: GenerationSpec, record: JsonView, *before: Outs) -> Outs:
    """Return the outputs that features add after a generation's selection, merged with those added ``before``."""
    added = (*before, _describe_part("selected", generation.config, generation.tables, record, generation))
    names = dict.fromkeys(name for outs in added for name in outs)
    return {name: {key: out for outs in added for key, out in outs.get(name, {}).items()} for name in names}


def describe_analysis(config: RunConfig, tables: Mapping[str, Table], generations: Sequence[JsonView]) -> list[Outs]:
    """Return the outputs of the analysis of a finished run, one item per generation."""
    return [_describe_part("analysis", config, tables, record) for record in generations]


def _describe_part(
    part: str,
    config: RunConfig,
    tables: Mapping[str, Table],
    record: JsonView,
    generation: GenerationSpec | None = None,
    split: str | None = None,
) -> Outs:
    return {
        name: describe(
            FeatureInputs(
                section=section, config=config, tables=tables, record=record, generation=generation, split=split
            )
        )
        for name, describe, section in parts(config, part)
    }


def check_analysis(config: RunConfig) -> Iterator[str]:
    """Yield sentences on what the analysis of a run leaves out although its configuration does not say so.

    Raises:
        ConfigError: the run lacks something that an analysis reads, or there is nothing to measure.
    """
    if not [*parts(config, "analysis")]:
        named = ", ".join(name for name, feature in features().items() if feature.analysis is not None)
        raise ConfigError(f"there is nothing to measure in this run: set one of {named}")
    yield from iter_found(config, "check")
