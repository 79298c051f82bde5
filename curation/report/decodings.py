"""Test accuracy by several decodings, and the best of them, which is chosen on the test set.

The paper (App. "Strategy Games", evaluation) reports for each model the best accuracy of greedy decoding and two
sampled ones. That is a choice on the test set, so it is too high on average. The report gives it beside the main
decoding's accuracy and never compares arms by it. The best is chosen among decodings that ask in the same way
(``constrained``) as the main one.
"""

from collections.abc import Mapping

from curation import metrics
from curation.config import DecodingConfig
from curation.config.evaluation import MAIN, EvaluationConfig
from curation.json_types import Json
from curation.report.record import GenerationRecord
from curation.report.tested import Tests, compute_accuracy, read_tests

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
    models = [
        {
            "name": model,
            "accuracy": {name: compute_accuracy(of_models, model) for name, of_models in tests.items()},
            "best": _find_best({name: tests[name] for name in alike}, model) if len(alike) > 1 else None,
        }
        for model in tests[MAIN]
    ]
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


def _find_best(tests: Mapping[str, Tests], model: str) -> Json | None:
    """Return the highest accuracy of a model, with the name of its ``decoding``."""
    confidence = 1 - (1 - metrics.CONFIDENCE) / len(tests)
    found = {name: compute_accuracy(of_models, model, confidence=confidence) for name, of_models in tests.items()}
    known = {name: estimate for name, estimate in found.items() if estimate is not None}
    if not known:
        return None
    name = max(known, key=lambda name: known[name]["value"])
    return {"decoding": name, **known[name]}
