"""The points of a run at which features (``curation.features``) add stages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curation.config import RunConfig
from curation.errors import ConfigError
from curation.features import active, features
from curation.json_types import JsonView
from curation.pipeline.generation_spec import GenerationSpec
from curation.registry import code
from curation.rundir.graph import Out, Table
from curation.storage.paths import Place


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
    for _, feature, section in active(config, "require"):
        code(str(feature.require))(section)


def publish(config: RunConfig, report: JsonView, directory: Place) -> Iterator[str]:
    """Let features publish a finished run's report; yield a sentence on each thing that failed."""
    for _, feature, section in active(config, "publish"):
        yield from code(str(feature.publish))(section, report, directory)


def columns(generation: GenerationSpec, split: str, labels: Mapping[str, Out]) -> dict[str, dict[str, Out]]:
    """Return the tables of columns that features add to the labels of a split, by feature."""
    return _outputs("columns", generation, {"labels": labels}, split)


def after_selection(generation: GenerationSpec, record: JsonView) -> dict[str, dict[str, Out]]:
    """Return what features add after the selection of a generation, by feature."""
    return _outputs("selected", generation, record)


def _outputs(
    part: str, generation: GenerationSpec, record: JsonView, split: str | None = None
) -> dict[str, dict[str, Out]]:
    found = {}
    for name, feature, section in active(generation.config, part):
        inputs = FeatureInputs(
            section=section,
            config=generation.config,
            tables=generation.tables,
            record=record,
            generation=generation,
            split=split,
        )
        found[name] = dict(code(getattr(feature, part))(inputs))
    return found


def describe_analysis(
    config: RunConfig, tables: Mapping[str, Table], generations: Sequence[JsonView]
) -> list[dict[str, dict[str, Out]]]:
    """Return the outputs of the analysis of a finished run: an item a generation, by feature and name."""
    return [
        {
            name: dict(
                code(str(feature.analysis))(FeatureInputs(section=section, config=config, tables=tables, record=record))
            )
            for name, feature, section in active(config, "analysis")
        }
        for record in generations
    ]


def check_analysis(config: RunConfig) -> Iterator[str]:
    """Yield in words what the analysis of a run leaves out although its configuration does not say so.

    Raises:
        ConfigError: the run lacks what an analysis reads, or nothing is left to be measured.
    """
    found = [*active(config, "analysis")]
    if not found:
        named = ", ".join(name for name, feature in features().items() if feature.analysis is not None)
        raise ConfigError(f"there is nothing to measure in this run: set one of {named}")
    for _, feature, section in found:
        yield from () if feature.check is None else code(feature.check)(config, section)
