"""The points of a run at which features (``curation.features``) add stages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curation.config import RunConfig
from curation.errors import ConfigError
from curation.features import features, iter_found, parts
from curation.json_types import JsonView
from curation.pipeline.generation_spec import GenerationSpec
from curation.rundir.graph import Out, Table
from curation.storage.paths import Place

Outs = Mapping[str, Mapping[str, Out]]
"""Outputs of stages by name, by feature."""


@dataclass(frozen=True, kw_only=True)
class FeatureInputs:
    """Inputs from which a feature's stages of a generation are described."""

    section: Any
    """The feature's section of the configuration."""
    config: RunConfig
    tables: Mapping[str, Table]
    """Tables of the splits, by name; ``audit`` has the pool's gold labels."""
    record: JsonView
    """The fields of a ``report.GenerationRecord`` that are described already, as outputs: ``labels`` and ``grades`` by
    split, after the selection all of them."""
    generation: GenerationSpec | None = None
    """Names, positions, seeds and sizes of the generation's stages; None over a finished run."""
    split: str | None = None
    """The split whose labels get columns."""


def require(config: RunConfig) -> None:
    """Refuse a run where this machine lacks what its features need.

    Raises:
        ConfigError: names the key, and the mend.
    """
    for _, check, section in parts(config, "require"):
        check(section)


def publish(config: RunConfig, report: JsonView, directory: Place) -> Iterator[str]:
    """Let features publish a finished run's report; yield a sentence on each thing that failed."""
    for _, publish_report, section in parts(config, "publish"):
        yield from publish_report(section, report, directory)


def describe_columns(generation: GenerationSpec, split: str, labels: Mapping[str, Out]) -> Outs:
    """Return the tables of columns that features add to the labels of a split."""
    return _describe_part("columns", generation.config, generation.tables, {"labels": labels}, generation, split)


def describe_candidates(generation: GenerationSpec, record: JsonView) -> Outs:
    """Return what features add before the selection of a generation: the rows that they leave out, ``left_out``."""
    return _describe_part("candidates", generation.config, generation.tables, record, generation)


def describe_after_selection(generation: GenerationSpec, record: JsonView, *before: Outs) -> Outs:
    """Return what features add after the selection of a generation, with what they added to its pool ``before``."""
    added = (*before, _describe_part("selected", generation.config, generation.tables, record, generation))
    names = dict.fromkeys(name for outs in added for name in outs)
    return {name: {key: out for outs in added for key, out in outs.get(name, {}).items()} for name in names}


def describe_analysis(config: RunConfig, tables: Mapping[str, Table], generations: Sequence[JsonView]) -> list[Outs]:
    """Return the outputs of the analysis of a finished run, an item a generation."""
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
    """Yield in words what the analysis of a run leaves out although its configuration does not say so.

    Raises:
        ConfigError: the run lacks what an analysis reads, or nothing is left to be measured.
    """
    if not [*parts(config, "analysis")]:
        named = ", ".join(name for name, feature in features().items() if feature.analysis is not None)
        raise ConfigError(f"there is nothing to measure in this run: set one of {named}")
    yield from iter_found(config, "check")
