"""Limits of scored options: what ``domain.multi`` and ``domain.calibrate`` do not go with."""

from typing import Any

from curation.config.states import parse
from curation.json_types import Json

BACKENDS = ("auto", "transformers", "vllm", "scripted")
"""Backends that score options less their baselines, and options in pairs."""


def beyond_options(run: Any) -> str | None:
    """The first thing in a run's configuration that its scored options do not go with; ``None`` if all do."""
    return _beyond_multi(run) or _beyond_calibration(run)


def _beyond_multi(run: Any) -> str | None:
    """The first thing that rows with several labels do not go with."""
    domains = [run.domain_of(split) for split in run.splits.named()]
    if not any(domain.has_label_sets for domain in domains):
        return None
    key = "domain.multi"
    if (problem := _unknown_to(run, key, mend="take one of these")) is not None:
        return problem
    for where, decoding in _decodings(run).items():
        if decoding.normalise_options:
            return f"{key}: compares yes with no, which are of one length; set {where}.normalise_options: false"
        if decoding.constrained:
            return f"{key}: asks for each label by itself; leave {where}.constrained out"
    if (state := next((name for name in run.teacher.states if parse(name).rank > 1), None)) is not None:
        return f"{key}: has no next option; leave {state!r} out of teacher.states and trust.states"
    return None


def _unknown_to(run: Any, key: str, *, mend: str) -> str | None:
    """The refusal of a backend that cannot score the options ``key`` asks for; ``None`` where it can."""
    if (backend := run.teacher.backend) in BACKENDS:
        return None
    return f"{key}: is known to the backends {', '.join(BACKENDS)}, and teacher.backend is {backend}; {mend}"


def _decodings(run: Any) -> Json:
    """All decodings by their keys."""
    further = {f"evaluation.also.{name}": decoding for name, decoding in run.evaluation.also.items()}
    return {"teacher.decoding": run.teacher.decoding, "evaluation.decoding": run.evaluation.decoding, **further}


def _beyond_calibration(run: Any) -> str | None:
    """The first thing in a run's configuration that calibrated options do not go with; ``None`` if all do."""
    if not any(run.domain_of(split).is_calibrated for split in run.splits.named()):
        return None
    key = "domain.calibrate: content_free"
    if (problem := _unknown_to(run, key, mend="leave it out")) is not None:
        return problem
    for where, decoding in _decodings(run).items():
        if decoding.normalise_options:
            return f"{key}: takes an option's length out itself; set {where}.normalise_options: false"
        if decoding.constrained == "stepwise":
            return f"{key}: is of options that are scored, and {where}.constrained is stepwise; leave one of them out"
    return None
