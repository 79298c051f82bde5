"""The stages that compare the pool with the labelled splits."""

from collections.abc import Mapping

from curation.arms import ARMS
from curation.json_types import Json
from curation.pipeline.generation_spec import GenerationSpec
from curation.rundir.graph import Out
from curation.stages.select import Select
from curation.stages.shift import MeasureSelectedShift, MeasureShift, MeasureTextShift


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


def comparing_selected(generation: GenerationSpec, scored: Mapping[str, Out], selected: Select) -> dict[str, Out]:
    """Describe the comparison of rows that pass the arms' cuts; nothing without hidden states, or arms that rank."""
    config = generation.config
    ranking = [arm for arm in config.selection.arms if ARMS[arm].ranked and not ARMS[arm].gold]
    if not config.has_states or not ranking:
        return {}
    stage = MeasureSelectedShift(
        name=generation.name("selected-shift"),
        at=generation.at("pool"),
        source=scored["source"],
        pool=scored["pool"],
        thresholds={arm: selected.out("arms", arm, "threshold").or_none for arm in ranking},
        states=list(config.compared),
        seed=config.seed,
        num_rows=generation.sizes["pool"],
    )
    return {"foreign": stage.out("foreign")}
