"""Collection of a run's report: numbers of its generations, stage times, costs and answers."""

from datetime import UTC, datetime

from curation.json_types import Json
from curation.report.chained import collect_chains
from curation.report.costs import collect_spent, compare_forecast, get_actual_money
from curation.report.headline import describe_results
from curation.report.measures import make_finite
from curation.report.numbers import collect_feature_numbers
from curation.report.passes import collect_pass, count_starts
from curation.report.record import GenerationRecord, RunRecord
from curation.report.verdict import find_gravest, with_verdict

DETAILS = (
    "evidence",
    "rows",
    "arms",
    "students",
    "dropped",
    "trained_unlike",
    "asked_unlike",
    "diversity",
    "classes",
    "gap",
    "budget",
    "teacher",
    "base",
    "shift",
    "foreign",
    "guarantee",
    "regimes",
    "regime_means",
    "trust",
    "reliability",
    "histogram",
    "pool_grid",
    "purity_curves",
    "difficulty",
    "purity_by_difficulty",
    "accuracy_by_difficulty",
    "risk_curves",
    "judging",
    "projection",
    "decodings",
    "features",
)


def collect(run: RunRecord) -> Json:
    """Return the report of a run whose generations have all been measured.

    The report repeats the last generation's details at the top level.
    """

    def joined(record: GenerationRecord) -> Json:
        found = with_verdict(run.numbers[record.name], run.reviews, run.directory)
        del found["funnel"]
        return {**found, "features": {**found["features"], **collect_feature_numbers(record.analysis)}}

    generations = [joined(record) for record in run.generations]
    last = generations[-1] if generations else {**dict.fromkeys(DETAILS), "arms": []}
    seconds = sum(stage.seconds for stage in run.stages)
    costs = compare_forecast(run.forecast, run.spent)
    report = {
        "name": run.name,
        "directory": run.directory,
        "verdict": find_gravest([generation["verdict"] for generation in generations]),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "headline": describe_results(last) if generations else [],
        "command": run.command,
        "seed": run.seed,
        "versions": dict(run.versions),
        "own_code": dict(run.own_code),
        "config": run.config,
        "domain": run.domain.name,
        "funnel": {
            "splits": [
                {"split": name, **counts, "dropped": run.overlap["dropped"].get(name, 0)}
                for name, counts in run.prepare_counts.items()
            ],
            "overlap": dict(run.overlap),
            "generations": [run.numbers[record.name]["funnel"] for record in run.generations],
        },
        **{key: last[key] for key in DETAILS},
        "generations": generations,
        "chain": collect_chains(run, generations, joined),
        "stages": [
            {
                "name": stage.name,
                "seconds": stage.seconds,
                "share": stage.seconds / seconds if seconds else 0.0,
                "rows": stage.rows,
                "rows_per_second": stage.rows_per_second,
                "started": stage.started,
                "step": stage.step,
                "after": list(stage.after),
            }
            for stage in run.stages
        ],
        "passes": [collect_pass(item) for item in run.passes],
        "starts": count_starts(run.passes),
        "costs": costs,
        "answers": list(run.answers),
        "spent": collect_spent(run, *_get_selection(last), get_actual_money(costs)),
        "reproduce": [run.command, *([f"curate report {run.config_path}"] if run.config_path else [])],
    }
    result: Json = make_finite(report)
    return result


def _get_selection(generation: Json) -> tuple[int | None, float | None]:
    """Return the number of rows that the judged arm selected, and their purity if it is known."""
    found = generation["evidence"]
    arm = next((arm for arm in generation["arms"] if found is not None and arm["name"] == found["arm"]), None)
    if arm is None:
        return None, None
    return arm["num_selected"], None if arm["purity"] is None else arm["purity"]["value"]
