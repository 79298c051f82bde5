"""The stage that compares the pool with the labelled splits."""

from collections.abc import Mapping

from curation.json_types import Json
from curation.pipeline.generation_spec import GenerationSpec
from curation.rundir.graph import Out
from curation.stages.shift import MeasureShift, MeasureTextShift


def comparing(generation: GenerationSpec, labels: Mapping[str, Out]) -> MeasureShift:
    """Describe the comparison by ``labels`` of the splits; where these have no hidden states, of their texts, too."""
    config = generation.config
    splits = [split for split in ("source", "calibration") if split in labels]
    arguments: Json = {
        "name": generation.name("shift"),
        "at": generation.at("pool"),
        "pool": labels["pool"],
        "compared": {split: labels[split] for split in splits},
        "states": list(config.compared),
        "seed": config.seed,
        "num_rows": generation.sizes["pool"],
    }
    if config.has_states:
        return MeasureShift(**arguments)
    examples = {split: generation.tables[split] for split in (*splits, "pool")}
    return MeasureTextShift(**arguments, examples=examples, domain=config.domain_of("pool").ungraded)
