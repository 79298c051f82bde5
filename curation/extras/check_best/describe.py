"""The stage of the check in a generation, and the numbers for its report."""

from dataclasses import replace

from curation.arms import ARMS, TRUST
from curation.config import AskConfig
from curation.extras.check_best.stage import CheckBest, CheckBestByJudge
from curation.features import is_divided
from curation.json_types import Json, JsonView
from curation.pipeline.extending import FeatureInputs
from curation.pipeline.grading import GONE, find_known_checker
from curation.report.measures import compute_count_share
from curation.rundir.graph import Out, Stage


def describe_check(inputs: FeatureInputs) -> dict[str, Out]:
    """Return the outputs of the check's stage: the rows to leave out, and the counts."""
    generation, selection, domain = inputs.generation, inputs.config.selection, inputs.config.domain_of("pool")
    assert generation is not None, "rows are selected in a generation"
    long, arm = inputs.record["too_long"].get("pool"), selection.budget.reference
    arguments: Json = {
        "name": generation.name("check-best"),
        "at": generation.at("pool"),
        "pool": inputs.tables["pool"],
        "labels": inputs.record["labels"]["pool"],
        "too_long": None if long is None else long.stage.out("too_long").or_none,
        "repeats": generation.repeats.out("repeats").or_none if selection.repeats == "one" else None,
        "labelled": inputs.tables["source"] if selection.unseen == "last" else None,
        "domain": domain,
        "arm": arm,
        "ranking": replace(TRUST[ARMS[arm].trust], words=""),
        "rows": inputs.section.rows,
        "seed": inputs.config.seed,
        "num_rows": min(inputs.section.rows, generation.sizes["pool"]),
    }
    if domain.judge is None:
        stage: Stage = CheckBest(**arguments, checker=find_known_checker(domain) or GONE)
    else:
        judge, model = inputs.config.judge, generation.helpers.judge
        assert judge is not None and model is not None, "a judge that is asked is among the models"
        asked = model.changed(**AskConfig.BARE)
        stage = CheckBestByJudge(**arguments, teacher=asked, decoding=judge.decoding, **generation.settings)
    return {"left_out": stage.out("left_out"), "counts": stage.value("counts")}


def describe_selected(inputs: FeatureInputs) -> dict[str, Out]:
    """Return the budget and the number of rows selected by the reference arm, for the check's numbers."""
    budget, arm = inputs.record["budget"], inputs.config.selection.budget.reference
    return {"budget": budget, "num_selected": budget.stage.value("arms", arm, "num_rows")}


def count_passed(outputs: JsonView) -> Json:
    """Return the counts, and how many selected rows are among those that passed.

    Rows that pass rank above rows that were not checked. The number of selected rows that passed is ``None`` (unknown)
    if the selection is divided, too.
    """
    counts, num_selected = outputs["counts"], outputs["num_selected"]
    return {
        **counts,
        "share": compute_count_share(counts["passed"], counts["asked"]),
        "selected": num_selected,
        "selected_checked": None if is_divided(outputs["budget"]) else min(num_selected, counts["passed"]),
    }
