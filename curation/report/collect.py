"""Collection of a run's report: numbers of its generations and chains, stage times, costs and answers."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from statistics import median

from curation.arms import ARMS, REFERENCE_ARM
from curation.json_types import Json
from curation.report.costs import collect_spent
from curation.report.headline import describe_name, describe_results
from curation.report.measures import make_finite
from curation.report.numbers import collect_feature_numbers
from curation.report.record import (
    BASE,
    GROUND_TRUTH,
    PREDECESSOR,
    TEACHER,
    ChainRecord,
    GenerationRecord,
    PassRecord,
    RunRecord,
)
from curation.report.tested import Tests, compare_models, compute_accuracy, read_tests
from curation.report.verdict import find_gravest, with_verdict

PASS_FACTS = ("name", "model", "backend", "dtype", "rows", "seconds", "deaths", "clipped_values")


def collect(run: RunRecord) -> Json:
    """Return the report of a run whose generations have all been measured.

    The report repeats the last generation's numbers at the top level.
    """

    def collect_generation(record: GenerationRecord) -> Json:
        found = with_verdict(run.numbers[record.name], run.reviews, run.directory)
        del found["funnel"]
        return {**found, "features": {**found["features"], **collect_feature_numbers(record.analysis)}}

    generations = [collect_generation(record) for record in run.generations]
    last = generations[-1] if generations else {"arms": [], "evidence": None, "rows": None}
    seconds = sum(stage.seconds for stage in run.stages)
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
        "chain": collect_chains(run, generations, collect_generation),
        "stages": [{**asdict(stage), "share": stage.seconds / seconds if seconds else 0.0} for stage in run.stages],
        "passes": [collect_pass(item) for item in run.passes],
        "answers": list(run.answers),
        "spent": collect_spent(run),
        "reproduce": [run.command, *([f"curate report {run.config_path}"] if run.config_path else [])],
    }
    result: Json = make_finite(report)
    return result


def collect_pass(item: PassRecord) -> Json:
    """Return the speeds of a pass, start-up included, and the medians of the facts its model gave at each start."""
    per_second = item.rows / item.total_rows / item.seconds if item.total_rows and item.seconds else None
    names = dict.fromkeys(name for facts in item.teachers for name in facts)
    tokens = {"prompt_tokens_per_second": item.prompt_tokens, "output_tokens_per_second": item.output_tokens}
    return {
        **{name: getattr(item, name) for name in PASS_FACTS},
        **{name: None if per_second is None or num is None else num * per_second for name, num in tokens.items()},
        "starts": len(item.teachers),
        "teacher": {name: median(facts[name] for facts in item.teachers if name in facts) for name in names},
    }


def collect_chains(
    run: RunRecord, main: Sequence[Json], collect_generation: Callable[[GenerationRecord], Json]
) -> Json | None:
    """Return the report on a run's chains, or None if it has none; ``main`` are the main chain's generations.

    It has the accuracy by generation of each line of students, ``None`` for a generation without a student; paired
    differences; teachers; and decisions. ``collect_generation`` returns a generation's part of the report.
    """
    chain = run.chain
    if chain is None or not main:
        return None
    leading, *others = chain.arms
    of_lines = [(leading, leading, part) for part in main]
    of_lines += [(arm, arm, collect_generation(record)) for arm in others for record in chain.branches.get(arm, ())]
    of_lines += [(PREDECESSOR, leading, collect_generation(record)) for record in chain.branches.get(PREDECESSOR, ())]
    branches = {name: f"{name} {leading}" if name == PREDECESSOR else f"chain {name}" for name in chain.branches_ended}
    tests, lines = _collect_tests(run, chain), []
    names = [f"{kind} {arm}" for kind in ("chain", "first_teacher") for arm in chain.arms]
    for name in [*names, f"{PREDECESSOR} {leading}", f"gold {GROUND_TRUTH}", BASE]:
        kind, _, arm = name.partition(" ")
        points = [compute_accuracy(found, name) for found in tests]
        if kind == "first_teacher" and any(points):  # the first student of a chain is that of its first teacher
            points[0] = compute_accuracy(tests[0], f"chain {arm}")
        if any(points):
            lines.append({"kind": kind, "arm": arm or kind, "words": _describe_line(name), "accuracy": points})
    pairs = [(f"chain {arm}", f"first_teacher {arm}") for arm in chain.arms]
    pairs.append((f"chain {leading}", f"{PREDECESSOR} {leading}"))
    pairs += [(f"chain {leading}", f"chain {arm}") for arm in others]
    pairs += [(f"chain {arm}", f"gold {GROUND_TRUTH}") for arm in chain.arms if not ARMS[arm].gold]
    pairs.append((f"chain {leading}", TEACHER))
    return {
        "arms": list(chain.arms),
        "planned": len(run.config["generations"]),
        "bases": [None if part["student_base"] is None else part["student_base"]["name"] for part in main],
        "first_teacher": main[0]["teacher"]["test"],
        "lines": lines,
        "differences": [
            {"generation": index, "first": _describe_line(first), "second": _describe_line(second), **pair}
            for index, graded in enumerate(tests)
            for first, second in pairs
            if (pair := compare_models(graded, first, second, run.seed)) is not None
        ],
        "teachers": [_collect_teacher(part, line, arm) for line, arm, part in of_lines],
        "decisions": [dict(decision) for decision in chain.decisions],
        "ended": chain.ended,
        "lines_ended": [
            {"words": _describe_line(branches[name]), "why": why}
            for name, why in chain.branches_ended.items()
            if why != chain.ended
        ],
    }


def _describe_line(name: str) -> str:
    """Return the words for a line of the curve, named by its kind and arm, or for a model."""
    kind, _, arm = name.partition(" ")
    words = describe_name(arm or kind)
    return {
        "chain": f"chain, {words}",
        "first_teacher": f"shallow from the first teacher, {words}",
        PREDECESSOR: f"shallow from the base before, {words}",
        TEACHER: "its teacher",
    }.get(kind, words)


def _collect_tests(run: RunRecord, chain: ChainRecord) -> list[Tests]:
    """Return graded test rows by generation: of students by ``kind arm``, of ``base`` and of the main ``teacher``."""
    leading, *others = chain.arms
    found: list[Tests] = []
    for index, record in enumerate(run.generations):
        lines = [(name, record.tests, name) for name in (BASE, TEACHER)]
        lines += [(f"gold {GROUND_TRUTH}", record.tests, GROUND_TRUTH), (f"chain {leading}", record.tests, leading)]
        for arm in others:
            further = dict(enumerate(chain.branches.get(arm, ()), start=1))
            if (own := further.get(index) if index else record) is not None:
                lines.append((f"chain {arm}", own.tests, arm))
        for arm, student in chain.shallow.get(str(index), {}).items():
            lines.append((f"first_teacher {arm}", {arm: student["tests"]}, arm))
        for own in chain.branches.get(PREDECESSOR, ()):
            if own.index == index:
                lines.append((f"{PREDECESSOR} {leading}", own.tests, leading))
        found.append(read_tests({line: tests[name] for line, tests, name in lines if name in tests}))
    return found


def _collect_teacher(part: Json, line: str, arm: str) -> Json:
    """Return the quality of a generation's teacher and of the trust in it."""
    own = next((found for found in part["arms"] if found["name"] == arm), None)
    function = ARMS[arm].trust if ARMS[arm].ranked and not ARMS[arm].gold else REFERENCE_ARM

    def auc(rows: str) -> Json | None:
        found = part["trust"].get(rows, {}).get("parsed", {}).get("functions", {}).get(function)
        return None if found is None else found["auc"]

    shift = part["shift"].get("calibration") or part["shift"].get("source")
    is_known = shift is not None and shift["auc"]["value"] is not None
    return {
        "line": line,
        "words": _describe_line(f"{PREDECESSOR if line == PREDECESSOR else 'chain'} {arm}"),
        "generation": part["index"],
        "name": part["teacher_model"]["name"],
        "test": part["teacher"]["test"],
        "pool": part["teacher"]["pool"],
        "num_pool": part["num_pool"],
        "num_selected": 0 if own is None else own["num_selected"],
        "purity": None if own is None else own["purity"],
        "auc_validation": auc("validation"),
        "auc_pool": auc("pool"),
        "shift": {**shift["auc"], "strength": shift["strength"]} if is_known else None,
    }
