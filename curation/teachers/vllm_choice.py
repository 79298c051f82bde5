"""The choice of a backend for ``teacher.backend: auto``: vLLM if a probe finds that it can run the model.

The probe is a separate process, since importing vLLM proves little (its CUDA build imports without a GPU) and has
lasting side effects. Run it where the teacher will run: a driver without a GPU says nothing about its workers. Here
are also the private parts of vLLM that the teacher reads, with a check of which an installed version lacks.
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
from curation.json_types import Json
from curation.models.loading import is_installed
from curation.refs import ModelRef

TESTED = ("0.32.0",)  # versions of vLLM that the teacher has been tested with

CONFIG = "curation"
"""Key of vLLM's ``additional_config``: names of states, positions of the ring, number of first log-probabilities."""

RUNNER = ("sampler", "execute_model_state", "use_aux_hidden_state_outputs", "input_batch.req_ids")
"""Attributes that a worker's model runner needs."""
STEP = ("hidden_states", "aux_hidden_states")
"""Fields that the model runner's state between forward pass and draw needs."""

PROBE_SECONDS = 600  # time limit of a probe in seconds; on a GPU the probe starts a small engine


class BackendChoice(NamedTuple):
    """A backend of ``BACKENDS``, with the reason for choosing it."""

    backend: str
    reason: str


def choose_backend(config: AskConfig, model: ModelRef | None) -> BackendChoice:
    """Return the backend for ``config`` here; raise ``ConfigError`` if the probe refuses an argument or the model."""
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
    """Return the finding of a fresh process: ``runs`` with a description, or ``lacks`` or ``refused`` with a reason.

    Without a model the finding is whether vLLM runs at all. ``layers`` is whether states of other layers than the last
    are requested. With ``starts`` (by default on GPUs) an engine with one layer of the model and random weights has to
    draw a token, since no lesser test shows whether drivers and kernels work.
    """
    asked: Json = {"gpus": gpus, "layers": layers, "starts": gpus if starts is None else starts}
    asked |= {"engine": engine, "model": None if model is None else model.to_json()}
    return _run_probe(json.dumps(asked, sort_keys=True))


@cache
def _run_probe(question: str) -> dict[str, str]:
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


def can_give_layers(model: type) -> bool:
    """Return whether a model of vLLM can give the states of other layers than the last."""
    from vllm.model_executor.models.interfaces import supports_eagle3

    return bool(supports_eagle3(model))


def find_missing_attributes(runner: object) -> list[str]:
    """Return the private attributes that the teacher reads and this model runner lacks."""
    missing = []
    for path in RUNNER:
        found = runner
        for name in path.split("."):
            if not hasattr(found, name):
                missing.append(path)
                break
            found = getattr(found, name)
    return missing + find_missing_fields()


def find_missing_fields() -> list[str]:
    """Return the fields that the model runner's state between forward pass and draw lacks."""
    from vllm.v1.worker import gpu_model_runner

    fields = getattr(getattr(gpu_model_runner, "ExecuteModelState", None), "_fields", ())
    return [f"ExecuteModelState.{name}" for name in STEP if name not in fields]
