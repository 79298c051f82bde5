"""The report on a run's chains: accuracy by generation and arm, paired differences, teachers, costs, decisions."""

from collections.abc import Callable, Sequence

from curation import metrics
from curation.arms import ARMS, REFERENCE_ARM
from curation.domains.grading import Graded
from curation.json_types import Json
from curation.report.headline import describe_name
from curation.report.record import (
    BASE,
    GROUND_TRUTH,
    MAIN,
    PREDECESSOR,
    SHALLOW,
    TEACHER,
    ChainRecord,
    GenerationRecord,
    RunRecord,
)
from curation.report.tested import compute_accuracy, compute_test_differences, convert_comparison, read_tests

Collected = Callable[[GenerationRecord], Json]
"""A function that returns a generation's part of the report."""
Tests = dict[str, list[Graded]]


def collect_chains(run: RunRecord, main: Sequence[Json], collected: Collected) -> Json | None:
    """Return the report on a run's chains, or None if it has none; ``main`` are the main chain's generations."""
    chain = run.chain
    if chain is None or not main:
        return None
    leading, *others = chain.arms
    lines = {leading: list(main)} | {
        arm: [main[0], *map(collected, chain.branches.get(arm, ()))] for arm in others if run.generations
    }
    beside = [collected(record) for record in chain.branches.get(PREDECESSOR, ())]
    tests = _collect_tests(run, chain)
    return {
        "arms": list(chain.arms),
        "planned": len(run.config["generations"]),
        "bases": [None if part["student_base"] is None else part["student_base"]["name"] for part in main],
        "first_teacher": main[0]["teacher"]["test"],
        "lines": _collect_lines(tests, chain),
        "differences": _compute_differences(tests, chain, run.seed),
        "teachers": [
            _collect_teacher(part, arm, arm)
            for arm, parts in lines.items()
            for part in (parts if arm == leading else parts[1:])
        ]
        + [_collect_teacher(part, PREDECESSOR, leading) for part in beside],
        "decisions": [dict(decision) for decision in chain.decisions],
        "ended": chain.ended,
        "lines_ended": [
            {
                "words": _describe_line(f"{PREDECESSOR} {leading}" if name == PREDECESSOR else f"chain {name}"),
                "why": why,
            }
            for name, why in chain.branches_ended.items()
            if why != chain.ended
        ],
        "costs": _collect_costs(run, chain),
    }


def name_of_line(kind: str, arm: str) -> str:
    """Return the name of a line of the curve, in words."""
    words = describe_name(arm)
    return {
        "chain": f"chain, {words}",
        "first_teacher": f"shallow from the first teacher, {words}",
        PREDECESSOR: f"shallow from the base before, {words}",
    }.get(kind, words)


def _collect_tests(run: RunRecord, chain: ChainRecord) -> list[Tests]:
    """Return graded test rows by generation: of students by ``kind arm``, of ``base`` and of the main ``teacher``."""
    leading, *others = chain.arms
    found: list[Tests] = []
    for index, record in enumerate(run.generations):
        main = read_tests(record.tests)
        tests: Tests = {name: main[name] for name in (BASE, TEACHER) if name in main}
        if GROUND_TRUTH in main:
            tests[f"gold {GROUND_TRUTH}"] = main[GROUND_TRUTH]
        for arm in chain.arms if index == 0 else (leading,):
            if arm in main:
                tests[f"chain {arm}"] = main[arm]
        for arm in others if index else ():
            branch = chain.branches.get(arm, ())
            if index <= len(branch) and arm in branch[index - 1].tests:
                tests |= {f"chain {arm}": read_tests({arm: branch[index - 1].tests[arm]})[arm]}
        for arm, student in chain.shallow.get(str(index), {}).items():
            tests[f"first_teacher {arm}"] = read_tests({arm: student["tests"]})[arm]
        found.append(tests)
    for record in chain.branches.get(PREDECESSOR, ()):
        if leading in record.tests and record.index < len(found):
            found[record.index][f"{PREDECESSOR} {leading}"] = read_tests({leading: record.tests[leading]})[leading]
    return found


def _collect_lines(tests: Sequence[Tests], chain: ChainRecord) -> list[Json]:
    """Return the accuracy of each line's student by generation, ``None`` for a generation without a student."""
    names = [f"chain {arm}" for arm in chain.arms]
    names += [f"first_teacher {arm}" for arm in chain.arms]
    names += [f"{PREDECESSOR} {chain.arms[0]}", f"gold {GROUND_TRUTH}", BASE]
    lines = []
    for name in names:
        kind, _, arm = name.partition(" ")
        points = [compute_accuracy(found, name) for found in tests]
        if kind == "first_teacher" and any(points):  # the first student of a chain is that of its first teacher
            points[0] = compute_accuracy(tests[0], f"chain {arm}")
        if any(points):
            lines.append(
                {"kind": kind, "arm": arm or kind, "words": name_of_line(kind, arm or kind), "accuracy": points}
            )
    return lines


def _compute_differences(tests: Sequence[Tests], chain: ChainRecord, seed: int) -> list[Json]:
    """Return, by generation, paired differences of the chains' students to other lines' students and to teachers."""
    leading, *others = chain.arms
    found = []
    for index, graded in enumerate(tests):
        pairs = [(f"chain {arm}", f"first_teacher {arm}") for arm in chain.arms]
        pairs.append((f"chain {leading}", f"{PREDECESSOR} {leading}"))
        pairs += [(f"chain {leading}", f"chain {arm}") for arm in others]
        pairs += [(f"chain {arm}", f"gold {GROUND_TRUTH}") for arm in chain.arms if not ARMS[arm].gold]
        pairs.append((f"chain {leading}", TEACHER))
        for first, second in pairs:
            rows = compute_test_differences(graded, first, second)
            pair = None if rows is None else convert_comparison(metrics.compare_rows(rows, seed=seed))
            if pair is not None:
                found.append(
                    {"generation": index, "first": _describe_line(first), "second": _describe_line(second), **pair}
                )
    return found


def _describe_line(name: str) -> str:
    kind, _, arm = name.partition(" ")
    return "its teacher" if name == TEACHER else name_of_line(kind, arm or kind)


def _collect_teacher(part: Json, line: str, arm: str) -> Json:
    """Return the quality of a generation's teacher and of the trust in it."""
    own = next((found for found in part["arms"] if found["name"] == arm), None)
    function = ARMS[arm].trust if ARMS[arm].ranked and not ARMS[arm].gold else REFERENCE_ARM

    def auc(rows: str) -> Json | None:
        found = part["trust"].get(rows, {}).get("parsed", {}).get("functions", {}).get(function)
        return None if found is None else found["auc"]

    shift = part["shift"].get("calibration") or part["shift"].get("source")
    return {
        "line": line,
        "words": name_of_line(PREDECESSOR if line == PREDECESSOR else "chain", arm),
        "generation": part["index"],
        "name": part["teacher_model"]["name"],
        "test": part["teacher"]["test"],
        "pool": part["teacher"]["pool"],
        "num_pool": part["num_pool"],
        "num_selected": 0 if own is None else own["num_selected"],
        "purity": None if own is None else own["purity"],
        "auc_validation": auc("validation"),
        "auc_pool": auc("pool"),
        "shift": None
        if shift is None or shift["auc"]["value"] is None
        else {**shift["auc"], "strength": shift["strength"]},
    }


def _collect_costs(run: RunRecord, chain: ChainRecord) -> list[Json]:
    """Return the cost of each generation of each line, without the stages before the first generation."""
    groups: dict[tuple[int, str], list[str]] = {}
    for name, (generation, line) in chain.stages.items():
        groups.setdefault((generation, line), []).append(name)
    seconds = {stage.name: stage.seconds for stage in run.stages}
    costs = []
    for (generation, line), names in sorted(groups.items(), key=lambda item: item[0][0]):
        made = [name for name in names if name in seconds]
        if not made:
            continue
        used = [run.used[name] for name in made if name in run.used]
        costs.append(
            {
                "generation": generation,
                "line": line,
                "words": _describe_cost_line(line, chain),
                "num_stages": len(made),
                "seconds": sum(seconds[name] for name in made),
                "actor_seconds": sum(item.actor_seconds for item in used),
                "prompt_tokens": sum(item.prompt_tokens for item in used),
                "output_tokens": sum(item.output_tokens for item in used),
            }
        )
    return costs


def _describe_cost_line(line: str, chain: ChainRecord) -> str:
    """Return, in words, whose stages a line of the costs counts."""
    if line == MAIN:
        return f"{name_of_line('chain', chain.arms[0])}, and what all lines share"
    if line == SHALLOW:
        return "shallow from the first teacher"
    return "shallow from the base before" if line == PREDECESSOR else name_of_line("chain", line)
