"""The students of a generation, as JSON: those that teach, and further ones trained on the same selections.

The paper (App. "Strategy Games", evaluation) reports for each model the best accuracy of greedy decoding and two
sampled ones. That is a choice on the test set, so it is too high on average. The report gives it beside the main
decoding's accuracy and never compares arms by it. The best is chosen among decodings that ask in the same way
(``constrained``) as the main one.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from curation import metrics
from curation.arrays import Int64s
from curation.config import DecodingConfig
from curation.config.evaluation import MAIN, EvaluationConfig
from curation.config.given import GIVEN
from curation.json_types import Json, JsonView
from curation.refs import ModelRef
from curation.report.record import BASE, GenerationRecord, RunInputs
from curation.report.tested import (
    collect_test_results,
    compare_models,
    compute_accuracy,
    decompose_gap,
    explain_no_recovery,
    explain_unlike,
    explain_withheld,
    read_tests,
    withhold,
)

TRAINED = {"rows_trained": "num_rows", "rows_dropped": "num_dropped", "epochs": "num_epochs"}
"""Fields of an arm in the report by those of its training's record."""


def collect_students(
    run: RunInputs, record: GenerationRecord, chosen: Mapping[str, Json], selected: Mapping[str, Int64s]
) -> Json:
    """Return a base's students from the facts of each arm's selection: training, results, and withheld comparisons."""
    tests, margin = read_tests(record.tests), float(run.config["evaluation"]["margin"])
    nothing = explain_no_recovery(tests, run.seed)
    arms = withhold(
        [
            {
                **facts,
                **{name: record.training[arm][of] if arm in record.training else None for name, of in TRAINED.items()},
                **collect_test_results(arm, tests, margin=margin, seed=run.seed, nothing=nothing),
            }
            for arm, facts in chosen.items()
        ],
        explain_unlike(run.config),
    )
    return {
        "student_base": None if record.student_base is None else describe_model(record.student_base),
        "arms": arms,
        "trained_unlike": explain_withheld(arms),
        "gap": decompose_gap(arms, selected, tests, seed=run.seed),
        "training": collect_trainings(record.training),
        "base": compute_accuracy(tests, BASE),
        "decodings": collect_decodings(record, run.config["evaluation"]),
    }


def collect_further_students(
    run: RunInputs, record: GenerationRecord, chosen: Mapping[str, Json], selected: Mapping[str, Int64s]
) -> list[Json]:
    """Return the further students, each with ``name`` and the keys of :func:`collect_students`.

    ``against_first`` is the student's accuracy minus that of the student that teaches, by arm, paired by test row.
    """
    first = read_tests(record.tests)
    found = []
    for name in record.students:
        own = replace(record, students={}, **record.students[name])
        tests = read_tests(own.tests)
        both = {arm: {"own": tests[arm], "first": first[arm]} for arm in chosen if arm in tests and arm in first}
        against = {arm: compare_models(pair, "own", "first", run.seed) for arm, pair in both.items()}
        found.append({"name": name, **collect_students(run, own, chosen, selected), "against_first": against})
    return found


WORDS = {GIVEN: "labels made elsewhere"}
"""Names of backends without a model, in words."""


def describe_model(ref: ModelRef | None, teacher: JsonView | None = None) -> Json:
    """Return a model as JSON, with a short ``name``: the last two parts of its path or hub id, or server or backend.

    ``teacher`` is that section of the configuration, for teachers without weights or whose model only reads labels.
    """
    if ref is None:
        backend = (teacher or {}).get("backend", "scripted")
        return {"name": ((teacher or {}).get("endpoint") or {}).get("model") or WORDS.get(backend, backend)}
    name = "/".join(Path(ref.adapter or ref.base).parts[-2:])
    reads = (teacher or {}).get("reader") is not None
    return {"name": f"{WORDS[GIVEN]}, read by {name}" if reads else name, **ref.to_json()}


NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


def collect_decodings(record: GenerationRecord, evaluation: Mapping[str, object]) -> Json | None:
    """Return each model's accuracy by each decoding, and its ``best``; ``None`` with one decoding or without tests.

    ``best.low`` and ``best.high`` are the bounds of an interval that holds for all decodings at once (Bonferroni), so
    for the chosen one too. Of equally accurate decodings the first is the best. ``best`` is None if no other decoding
    asks in the same way as the main one.
    """
    if not record.further_tests or not record.tests:
        return None
    config = EvaluationConfig.model_validate(evaluation)
    tests = {MAIN: read_tests(record.tests)}
    tests |= {name: read_tests(of_models) for name, of_models in record.further_tests.items()}
    alike = [name for name, drawn in config.decodings.items() if drawn.constrained == config.decoding.constrained]
    confidence, models = 1 - (1 - metrics.CONFIDENCE) / max(len(alike), 1), []
    for model in tests[MAIN]:
        found = {name: compute_accuracy(tests[name], model, confidence=confidence) for name in alike}
        known = [{"decoding": name, **estimate} for name, estimate in found.items() if estimate is not None]
        best = max(known, key=lambda estimate: estimate["value"], default=None) if len(alike) > 1 else None
        accuracy = {name: compute_accuracy(of_models, model) for name, of_models in tests.items()}
        models.append({"name": model, "accuracy": accuracy, "best": best})
    return {
        "decodings": [
            {"name": name, "words": describe_decoding(drawn), "num_runs": config.runs(drawn)}
            for name, drawn in config.decodings.items()
        ],
        "best_is": f"best of {NUMBERS.get(len(alike), len(alike))}, chosen on the test set" if len(alike) > 1 else None,
        "num_alike": len(alike),
        "models": models,
    }


def describe_decoding(decoding: DecodingConfig) -> str:
    """Return a decoding in words, e.g. ``greedy`` or ``temperature 0.7, top-p 0.8, top-k 20``."""
    if decoding.constrained == "scored":
        return "the likeliest of the listed answers"
    parts = [f"temperature {decoding.temperature:g}" if decoding.temperature else "greedy"]
    parts += ["among the listed answers"] if decoding.constrained else []
    words = {"top_p": "top-p", "top_k": "top-k", "min_p": "min-p"} if decoding.temperature else {}
    for key, word in {**words, "presence_penalty": "presence penalty"}.items():
        if (value := getattr(decoding, key)) != getattr(DecodingConfig(), key):
            parts.append(f"{word} {value:g}")
    return ", ".join(parts)


def collect_trainings(training: Mapping[str, JsonView]) -> dict[str, JsonView]:
    """Return each arm's training: its curves with the loss, its seconds, and why it stopped early, if it did.

    All curves of an arm have a value, or ``None``, at each ``step``: an optimizer step, or the number of the logging
    interval if the method records no steps. Losses are averaged between steps.
    """
    found: dict[str, JsonView] = {}
    for arm, record in training.items():
        losses, curves = record["losses"], dict(record.get("curves", {}))
        steps = curves.pop("step", None) or [float(number) for number in range(1, 1 + len(losses))]
        if len(losses) != len(steps):
            ends = [round(len(losses) * step / steps[-1]) for step in steps]
            parts = [losses[start:end] for start, end in pairwise([0, *ends])]
            losses = [sum(part) / len(part) if part else None for part in parts]
        curves = {"step": steps, "loss": losses, **curves}
        found[arm] = {"curves": curves, "seconds": record["seconds"], "stopped": record.get("stopped")}
    return found
