"""The tables of docs/evidence.md and docs/log/evidence.md, made from ``results.json`` alone."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Results = Mapping[str, Any]

WORDS = {"mates": "Mate in one, SFT", "equations": "Arithmetic, SFT", "grpo": "Arithmetic, GRPO"}
OTHERS = {
    "ground_truth": "ground truth",
    "teacher": "teacher",
    "naive_parsed": "naive",
    "internal_confidence": "I-conf",
}
YES = {True: "yes", False: "**no**"}
_TABLE = re.compile(r"(<!-- table: ([a-z-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def percent(value: float) -> str:
    """Return a share in per cent."""
    return f"{100 * value:.1f}"


def estimate(found: Results | None) -> str:
    """Return an estimate in per cent with its interval."""
    if found is None:
        return ""
    return f"{percent(found['value'])} ({percent(found['low'])} to {percent(found['high'])})"


def difference(found: Results | None) -> str:
    """Return a difference in points with its interval over rows and, in brackets, its interval over seeds."""
    if found is None:
        return ""
    rows = f"{100 * found['difference']:+.1f} ({100 * found['low']:+.1f} to {100 * found['high']:+.1f})"
    seeds = found["seeds"]
    return rows if seeds is None else f"{rows} [{100 * seeds['low']:+.1f} to {100 * seeds['high']:+.1f}]"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, the first column aligned left, the others right."""
    line = "| --- |" + " ---: |" * (len(heads) - 1)
    return "\n".join([f"| {' | '.join(heads)} |", line, *(f"| {' | '.join(row)} |" for row in rows)])


def arms(task: Results) -> str:
    """Return a table with one line per model of a task."""
    rows = []
    for words, key in (("base of the students", "base"), ("weak teacher", "teacher")):
        if task[key] is not None:
            rows.append([words, "", estimate(task[key]["accuracy"]), "", "", "", ""])
    for arm in task["arms"].values():
        against = arm["against"]
        rows.append(
            [
                arm["words"],
                "" if arm["purity"] is None else percent(arm["purity"]["value"]),
                estimate(arm.get("accuracy")),
                *(difference(against.get(other)) for other in OTHERS),
            ]
        )
    return table(["model", "purity", "test accuracy", *(f"minus {words}" for words in OTHERS.values())], rows)


def claim(results: Results) -> str:
    """Return the table of the page's claim: the trust arm, without and with a cap, against the others."""
    rows = []
    for name, task in results["tasks"].items():
        for arm in ("trust", "trust, capped"):
            if (found := task["arms"].get(arm)) is not None:
                against = [difference(found["against"].get(other)) for other in OTHERS]
                rows.append([f"{WORDS.get(name, name)}, {len(task['seeds'])} seeds", found["words"], *against])
    return table(["task", "arm", *(f"minus {words}" for words in OTHERS.values())], rows)


def decomposition(results: Results) -> str:
    """Return how much of the distance to ground truth is due to wrong labels, and how much to the choice of rows."""
    rows = []
    for name, task in results["tasks"].items():
        found = {arm: task["arms"].get(arm) for arm in ("trust", "trust_gold")}
        if not all(found.values()):
            continue
        total, choice = (found[arm]["against"]["ground_truth"]["difference"] for arm in ("trust", "trust_gold"))
        rows.append([WORDS.get(name, name), *(f"{100 * value:+.1f}" for value in (total, total - choice, choice))])
    return table(["task", "trust minus ground truth", "wrong labels", "choice of rows"], rows)


def recipes(results: Results) -> str:
    """Return the accuracy of each student recipe on the rows of each arm, on development splits."""
    heads, rows = [], []
    for name, found in results["recipes"].items():
        for recipe in found:
            heads = [f"{arm} %" for arm in recipe["arms"]]
            right = [percent(arm["accuracy"]["value"]) for arm in recipe["arms"].values()]
            rows.append([WORDS.get(name, name), recipe["words"], percent(recipe["teacher"]["value"]), *right])
    return table(["task", "recipe", "teacher %", *heads], rows)


def regimes(results: Results) -> str:
    """Return the quality of the trust function in and out of its distribution."""
    rows = [
        [
            f"{WORDS.get(name, name)}: {where}",
            found["regime"],
            percent(found["share_right"]["value"]),
            *("" if found[key] is None else f"{found[key]['value']:.3f}" for key in ("auc", "ece", "brier")),
            f"{found['constant_brier']['value']:.3f}",
        ]
        for name, task in results["tasks"].items()
        for where, found in task["regimes"].items()
    ]
    return table(["rows", "regime", "right %", "AUC", "ECE", "Brier", "Brier of a constant"], rows)


def chain(results: Results) -> str:
    """Return the accuracy of every line of a chain by generation."""
    rows = []
    for found in results["chain"]:
        teacher = estimate(found["first_teacher"])
        rows.append(["first teacher", teacher, *[""] * (len(found["bases"]) - 1)])
        rows += [[line["words"], *map(estimate, line["accuracy"])] for line in found["lines"]]
    num = max((len(row) - 1 for row in rows), default=0)
    return table(["line", *(f"generation {index + 1}" for index in range(num))], rows)


def chain_differences(results: Results) -> str:
    """Return paired differences between the lines of a chain."""
    rows = [
        [
            str(pair["generation"] + 1),
            f"{pair['first']} minus {pair['second']}",
            f"{100 * pair['difference']:+.1f} ({100 * pair['low']:+.1f} to {100 * pair['high']:+.1f})",
        ]
        for found in results["chain"]
        for pair in found["differences"]
    ]
    return table(["generation", "difference", "points"], rows)


def gates(results: Results) -> str:
    """Return the table of the gates of every task."""
    rows = [
        [task, gate["words"], percent(gate["value"]), gate["wanted"].replace("%", " %"), YES[gate["passed"]]]
        for task, found in results["gates"].items()
        for gate in found
    ]
    return table(["task", "gate", "%", "wanted", "passed"], rows)


def times(results: Results) -> str:
    """Return the minutes that every cell took."""
    rows = [[name, f"{seconds / 60:.1f}"] for name, seconds in results["seconds"].items()]
    return table(["cell", "minutes"], [*rows, ["in all", f"{sum(results['seconds'].values()) / 60:.0f}"]])


def tables(results: Results) -> dict[str, str]:
    """Return all tables by name."""
    found = {f"arms-{name}": arms(task) for name, task in results["tasks"].items()}
    for made in (claim, gates, decomposition, regimes, times, *([recipes] if results["recipes"] else [])):
        found[made.__name__] = made(results)
    for made in (chain, chain_differences) if results["chain"] else ():
        found[made.__name__.replace("_", "-")] = made(results)
    return found


def write_docs(page: Path, results: Results) -> None:
    """Replace the tables of the page; a table without results keeps its text."""
    made = tables(results)

    def filled(found: re.Match[str]) -> str:
        text = made.get(found[2])
        return found[0] if text is None else f"{found[1]}{text}\n{found[4]}"

    page.write_text(_TABLE.sub(filled, page.read_text()))
