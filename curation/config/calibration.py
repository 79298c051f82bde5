"""Limits of content-free calibration (``domain.calibrate``): what it does not go with."""

from typing import Any

BACKENDS = ("auto", "transformers", "vllm", "scripted")
"""Backends that score options less their baselines."""


def beyond_calibration(run: Any) -> str | None:
    """The first thing in a run's configuration that calibrated options do not go with; ``None`` if all do."""
    if not any(run.domain_of(split).is_calibrated for split in run.splits.named()):
        return None
    key = "domain.calibrate: content_free"
    if run.teacher.backend not in BACKENDS:
        return (
            f"{key}: is known to the backends {', '.join(BACKENDS)}, and teacher.backend is {run.teacher.backend}; "
            "leave it out"
        )
    decodings = {"teacher.decoding": run.teacher.decoding, "evaluation.decoding": run.evaluation.decoding}
    decodings |= {f"evaluation.also.{name}": decoding for name, decoding in run.evaluation.also.items()}
    for where, decoding in decodings.items():
        if decoding.normalise_options:
            return f"{key}: takes an option's length out itself; set {where}.normalise_options: false"
        if decoding.constrained == "stepwise":
            return f"{key}: is of options that are scored, and {where}.constrained is stepwise; leave one of them out"
    return None
