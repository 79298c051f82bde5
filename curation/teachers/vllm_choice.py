"""Which backend ``teacher.backend: auto`` stands for, and why: vLLM where a probe finds that it can run the model.

The probe is a process of its own, since importing vLLM proves little (its CUDA build imports without a GPU) and leaves
much behind. Run it where the teacher is to run: a driver without a GPU says nothing about its workers.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from curation.config import AskConfig
from curation.config.states import find_other_layers
from curation.errors import ConfigError
from curation.models.loading import is_installed
from curation.refs import ModelRef

PROBE_SECONDS = 600
"""Time limit of a probe, which on a GPU includes the start of a small engine."""


class BackendChoice(NamedTuple):
    """A backend of ``BACKENDS``, and the reason for it in words."""

    backend: str
    reason: str


def choose_backend(config: AskConfig, model: ModelRef | None) -> BackendChoice:
    """Return the backend that ``config`` stands for on this machine.

    Raises:
        ConfigError: an engine argument of ``teacher.vllm`` that vLLM does not know.
    """
    if config.backend != "auto":
        return BackendChoice(config.backend, "teacher.backend names it")
    if not is_installed():
        return BackendChoice("transformers", "vLLM is not installed")
    assert model is not None, "only the scripted backend has no model"
    gpus, layers = bool(config.actors.num_gpus), bool(find_other_layers(config.states))
    found = probe(config.vllm.engine, model, gpus=gpus, layers=layers)
    if "refused" in found:
        raise ConfigError(found["refused"])
    if "lacks" in found:
        return BackendChoice("transformers", f"vLLM cannot run here: {found['lacks']}")
    return BackendChoice("vllm", found["runs"])


def probe(
    engine: Mapping[str, object],
    model: ModelRef | None,
    *,
    gpus: bool,
    layers: bool = False,
    starts: bool | None = None,
) -> dict[str, str]:
    """Return the findings of a fresh process: ``runs`` and how, ``lacks`` and what, or ``refused`` and why.

    Without a model it says whether vLLM runs at all; ``layers``: states of other layers than the last are wanted. With
    ``starts`` (unset: on a GPU) an engine with one layer of the model, of random weights, has to give a token: whether
    drivers and kernels work shows in nothing less.
    """
    return _probe(json.dumps(engine, sort_keys=True), model, gpus, layers, gpus if starts is None else starts)


@cache
def _probe(engine: str, model: ModelRef | None, gpus: bool, layers: bool, starts: bool) -> dict[str, str]:
    described = None if model is None else model.to_json()
    asked = {"engine": json.loads(engine), "model": described, "gpus": gpus, "layers": layers, "starts": starts}
    question = json.dumps(asked)
    command = [sys.executable, "-c", "from curation.teachers.vllm_probe import answer; answer()", question]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"lacks": f"its probe did not answer within {PROBE_SECONDS} seconds"}
    last = done.stdout.strip().splitlines()[-1:]
    if done.returncode or not last:
        error = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return {"lacks": f"its probe failed: {error[0]}"}
    found: dict[str, str] = json.loads(last[0])
    return found
