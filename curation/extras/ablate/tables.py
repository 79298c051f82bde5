"""The tables of an ablation: numbers of each variant of a run, on the same rows, over several seeds.

A line has the mean over seeds. Its difference to the reference variant is paired, row by row within each seed, and has
two intervals: ``rows`` covers other rows of these splits, ``seeds`` other splits, teachers and fits (a t interval of
the seeds' differences, wide with few seeds).
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import numpy as np

from curation import metrics
from curation.arms import ARMS, REFERENCE_ARM
from curation.arrays import Int64s
from curation.domains.grading import read_grades
from curation.json_types import Json, JsonView
from curation.report.measures import make_finite
from curation.report.record import BASE, GROUND_TRUTH, TEACHER
from curation.report.rows import FunctionScores, GradedRows, fill_scores, locate_rows, rank_for_arm
from curation.report.tested import compute_accuracy, compute_test_differences, read_tests
from curation.storage.paths import Place, write_atomically
from curation.tables import io
from curation.trust import get_trust, load_fitted, saved


def collect(
    name: str,
    config: JsonView,
    shares: Mapping[str, float],
    seeds: Mapping[int, JsonView],
    *,
    command: str | None,
    versions: Mapping[str, str],
) -> Json:
    """Return the numbers of an ablation as JSON; ``lines`` are about trust, ``students`` about the arms' students.

    Args:
        name: name of the ablation.
        config: content of the ablation's file.
        shares: share of all rows, the best-ranked, whose purity is measured, by variant.
        seeds: outputs of each seed's stages (``running.describe_seed``).
        command: the command that ran the ablation.
        versions: versions of the software.
    """
    result: Json = make_finite(
        {
            "name": name,
            "title": config["title"],
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": command,
            "config": dict(config),
            "versions": dict(versions),
            "seeds": list(seeds),
            "reference": config["reference"],
            "lines": [line for where in config["sets"] for line in _iter_lines(config, shares, seeds, where)],
            "students": _collect_students(config, seeds) if config["students"] else [],
        }
    )
    return result


def _iter_lines(
    config: JsonView, shares: Mapping[str, float], seeds: Mapping[int, JsonView], where: str
) -> Iterator[Json]:
    """Yield the lines of all variants on one set of rows, each compared with the reference variant's rows."""
    reference = config["reference"]
    reference_rows = {} if reference is None else _score_rows(seeds, reference, where)
    for variant in config["variants"]:
        share, is_reference = shares[variant], variant == reference
        by_seed = reference_rows if is_reference else _score_rows(seeds, variant, where)
        measured = [_measure_rows(rows, share) for rows in by_seed.values()]
        others = {} if is_reference else reference_rows
        compared = [_compare_rows(by_seed[seed], rows, share) for seed, rows in others.items()]
        fitted = [made["fits"][variant] for made in seeds.values() if variant in made["fits"]]
        fits = [saved.read_description(trust)["fit"] for trust in fitted]
        kept = [fit["variance_kept"] for fit in fits if fit.get("variance_kept") is not None]
        yield {
            "variant": variant,
            "set": where,
            "share": share,
            "num_rows": sum(found["num_rows"] for found in measured),
            **{
                name: _average_seeds([found[name] for found in measured])
                for name in ("auc", "ece", "brier", "purity", "constant_brier")
            },
            "differences": {
                name: _average_differences([found[name] for found in compared if found is not None])
                for name in (("auc", "purity") if compared and None not in compared else ())
            },
            "num_fit": [fit["num_fit"] for fit in fits],
            "variance_kept": float(np.mean(kept)) if kept else None,
        }


def _score_rows(seeds: Mapping[int, JsonView], variant: str, where: str) -> dict[int, GradedRows]:
    """Return a variant's graded rows with their scores, by seed; the scores are named for the reference arm."""
    found = {}
    for seed, made in seeds.items():
        source = made["rows"][variant][where]
        graded, trust = read_grades(source["grades"]), source["trust"]
        fitted = None if trust is None else load_fitted(trust)
        function = fitted or get_trust(source["function"], source["seed"])
        columns, parts = dict.fromkeys(["row_id", "label", *function.features]), []
        for batch in io.open_table(source["labels"]).to_batches(columns=list(columns), filter="error IS NULL"):
            raw_B = function.raw_score(batch)
            trust_B = function.score(batch) if fitted is None else fitted.to_trust(raw_B)
            parsed_B = batch.column("label").is_valid().to_numpy(zero_copy_only=False)
            parts.append((batch.column("row_id").to_numpy(), raw_B, trust_B, parsed_B))
        ids_N, raw_N, trust_N, parsed_N = map(np.concatenate, zip(*parts, strict=True))
        place_N = locate_rows(ids_N, graded.row_ids_N)
        trust_M = np.nan_to_num(trust_N[place_N].astype(np.float64), nan=0.0)
        found[seed] = GradedRows(
            row_ids_N=graded.row_ids_N,
            correct_N=graded.correct_N,
            parsed_N=parsed_N[place_N],
            scores={REFERENCE_ARM: FunctionScores(raw_N=fill_scores(raw_N[place_N]), trust_N=trust_M)},
            seed=seed,
        )
    return found


def _compare_rows(rows: GradedRows, others: GradedRows, share: float) -> dict[str, metrics.Estimate] | None:
    """Return the paired differences of one seed, or None if rows or their labels are not the same."""
    if not all(np.array_equal(vars(rows)[name], vars(others)[name]) for name in ("row_ids_N", "correct_N", "parsed_N")):
        return None
    raw_P, other_P = (of.readable.scores[REFERENCE_ARM].raw_N for of in (rows, others))
    best_n, other_n = _find_best(rows, share), _find_best(others, share)
    return {
        "auc": metrics.compute_auc_difference(raw_P, other_P, rows.readable.correct_N),
        "purity": metrics.compute_purity_difference(best_n, other_n, rows.correct_N),
    }


def _measure_rows(rows: GradedRows, share: float) -> dict[str, float]:
    """Return one seed's AUC, ECE and Brier (and the best constant's) of parsed rows, and purity among all rows."""
    parsed = rows.readable
    correct_P, score = parsed.correct_N, parsed.scores[REFERENCE_ARM]
    accuracy = float(correct_P.mean()) if len(parsed) else float("nan")
    return {
        "num_rows": len(rows),
        "auc": metrics.compute_auc_value(score.raw_N, correct_P),
        "ece": metrics.ece(score.trust_N, correct_P).value,
        "brier": float(np.mean((score.trust_N - correct_P) ** 2)) if len(parsed) else float("nan"),
        "constant_brier": accuracy * (1 - accuracy),
        "purity": float(rows.correct_N[_find_best(rows, share)].mean()),
    }


def _find_best(rows: GradedRows, share: float) -> Int64s:
    """Return the places of the best-ranked share of the rows, as the select stage ranks."""
    order_N = rank_for_arm(rows, REFERENCE_ARM, np.zeros(0, dtype=np.int64), rows.seed)
    return order_N[: max(1, round(share * len(order_N)))]


def _average_seeds(values: Sequence[float]) -> Json:
    """Return the mean over seeds, and each seed's value."""
    return {"value": float(np.mean(values)), "seeds": list(values)}


def _average_differences(found: Sequence[metrics.Estimate]) -> Json:
    """Return the mean of the seeds' differences with its two intervals."""
    rows = metrics.average_over_strata(found, [str(place) for place in range(len(found))])
    values = [difference.value for difference in found]
    seeds = metrics.average_over_runs(values, ["seeds"] * len(found)) if np.isfinite(values).all() else None
    return {"rows": rows.to_json(), "seeds": None if seeds is None else seeds.to_json()}


def _collect_students(config: JsonView, seeds: Mapping[int, JsonView]) -> list[Json]:
    """Return the students' accuracy on the test split, and its paired difference to ground truth's, by variant."""
    found = []
    for variant in config["variants"]:
        tests = [read_tests(made["tests"][variant]) for made in seeds.values()]
        for model in tests[0]:
            against = None
            if model in ARMS and model != GROUND_TRUTH and all(GROUND_TRUTH in of for of in tests):
                pairs = [compute_test_differences(of, model, GROUND_TRUTH) for of in tests]
                compared = [metrics.compare_rows(pair).difference for pair in pairs if pair is not None]
                against = _average_differences(compared)
            tested = [accuracy["value"] for of in tests if (accuracy := compute_accuracy(of, model)) is not None]
            accuracy = _average_seeds(tested)
            found.append({"variant": variant, "model": model, "accuracy": accuracy, "against_ground_truth": against})
    return found


def format_markdown(content: JsonView) -> str:
    """Return a table of trust functions, and one of students if there are any, as Markdown."""
    config, students = content["config"], content["students"]
    columns: dict[str, Callable[[Json], str]] = {
        "set": lambda line: line["set"] if len(config["sets"]) > 1 else "",
        "variant": lambda line: line["variant"] if len(config["variants"]) > 1 else "",
        "fit rows": lambda line: f"{np.mean(line['num_fit']):,.0f}" if line["num_fit"] else "",
        "variance kept": lambda line: "" if line["variance_kept"] is None else f"{line['variance_kept']:.3f}",
        "AUC": lambda line: _format_mean(line["auc"]),
        "AUC, difference (rows; seeds)": lambda line: _format_difference(line["differences"].get("auc")),
        "ECE": lambda line: _format_mean(line["ece"]),
        "Brier": lambda line: _format_mean(line["brier"]),
        "constant's": lambda line: _format_mean(line["constant_brier"]),
        "purity": lambda line: _format_mean(line["purity"]),
        "purity, difference (rows; seeds)": lambda line: _format_difference(line["differences"].get("purity")),
    }
    cells = {name: [write(line) for line in content["lines"]] for name, write in columns.items()}
    filled = {name: texts for name, texts in cells.items() if any(texts)}
    tables = [[[*filled], *map(list, zip(*filled.values(), strict=True))]]
    if students:
        models = list(dict.fromkeys(line["model"] for line in students))
        order = [*(name for name in (BASE, TEACHER) if name in models), *(name for name in models if name in ARMS)]
        by_variant: dict[str, dict[str, str]] = {}
        for line in students:
            against = _format_difference(line["against_ground_truth"])
            text = _format_mean(line["accuracy"]) + (f", {against}" if against else "")
            by_variant.setdefault(line["variant"], {})[line["model"]] = text
        rows = [[name, *(texts.get(model, "") for model in order)] for name, texts in by_variant.items()]
        tables.append([["variant", *order], *rows])
    ruled = [[head, ["---"] * len(head), *rows] for head, *rows in tables]
    return "\n\n".join("\n".join(f"| {' | '.join(row)} |" for row in rows) for rows in ruled) + "\n"


def write(content: JsonView, directory: Place) -> Place:
    """Write ``<name>.md`` and ``.json`` to a directory, each atomically; return the path of the first."""
    text = directory / f"{content['name']}.md"
    write_atomically(text, format_markdown(content))
    write_atomically(directory / f"{content['name']}.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
    return text


def _format_mean(over: Json) -> str:
    return "" if over["value"] is None else f"{over['value']:.3f}"


def _format_difference(found: Json | None) -> str:
    """Return a difference with its intervals over rows and over seeds."""
    if found is None or found["rows"]["value"] is None:
        return ""
    intervals = [f"{part['low']:+.3f} to {part['high']:+.3f}" for part in found.values() if part is not None]
    return f"{found['rows']['value']:+.3f} ({'; '.join(intervals)})"
