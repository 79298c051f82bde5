"""Collection of a run's report: numbers of its generations, stage times, costs and answers."""

from dataclasses import asdict
from datetime import UTC, datetime
from statistics import median

from curation.json_types import Json
from curation.report.chained import collect_chains
from curation.report.costs import collect_spent
from curation.report.headline import describe_results
from curation.report.measures import make_finite
from curation.report.numbers import collect_feature_numbers
from curation.report.record import GenerationRecord, PassRecord, RunRecord
from curation.report.verdict import find_gravest, with_verdict

PASS_FACTS = ("name", "model", "backend", "dtype", "rows", "seconds", "deaths", "clipped_values", "recalled")


def collect(run: RunRecord) -> Json:
    """Return the report of a run whose generations have all been measured.

    The report repeats the last generation's numbers at the top level.
    """

    def joined(record: GenerationRecord) -> Json:
        found = with_verdict(run.numbers[record.name], run.reviews, run.directory)
        del found["funnel"]
        return {**found, "features": {**found["features"], **collect_feature_numbers(record.analysis)}}

    generations = [joined(record) for record in run.generations]
    last = generations[-1] if generations else {"arms": [], "evidence": None, "rows": None}
    seconds = sum(stage.seconds for stage in run.stages)
    evidence = last["evidence"]
    shown = next((arm for arm in last["arms"] if evidence is not None and arm["name"] == evidence["arm"]), None)
    report = {
        **last,
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
        "generations": generations,
        "chain": collect_chains(run, generations, joined),
        "stages": [{**asdict(stage), "share": stage.seconds / seconds if seconds else 0.0} for stage in run.stages],
        "passes": [collect_pass(item) for item in run.passes],
        "answers": list(run.answers),
        "spent": collect_spent(run, shown),
        "reproduce": [run.command, *([f"curate report {run.config_path}"] if run.config_path else [])],
    }
    result: Json = make_finite(report)
    return result


def collect_pass(item: PassRecord) -> Json:
    """Return the speeds of a pass, start-up included, and the medians of the facts its model gave at each start."""
    asked = item.recalled is None and item.total_rows and item.seconds
    per_second = item.rows / item.total_rows / item.seconds if asked else None
    names = dict.fromkeys(name for facts in item.teachers for name in facts)
    tokens = {"prompt_tokens_per_second": item.prompt_tokens, "output_tokens_per_second": item.output_tokens}
    return {
        **{name: getattr(item, name) for name in PASS_FACTS},
        **{name: None if per_second is None or num is None else num * per_second for name, num in tokens.items()},
        "starts": len(item.teachers),
        "teacher": {name: median(facts[name] for facts in item.teachers if name in facts) for name in names},
    }
