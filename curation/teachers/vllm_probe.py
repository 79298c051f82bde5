"""The probe's process of :mod:`curation.teachers.vllm_choice`: whether vLLM runs a model on this machine."""

import json
import sys

import torch
import vllm
from vllm.model_executor.models.registry import ModelRegistry
from vllm.platforms import current_platform
from vllm.v1.worker.gpu_worker import Worker

from curation.errors import ConfigError, ModelError
from curation.models import configuration_of
from curation.refs import ModelRef
from curation.teachers.vllm_engine import check_arguments
from curation.teachers.vllm_versions import TESTED, gives_layers, missing_fields


def answer() -> None:
    """The work of the probe's process: print its finding as the last line."""
    question = json.loads(sys.argv[1])
    model = None if question["model"] is None else ModelRef.from_json(question["model"])
    print(json.dumps(_examine(question["engine"], model, gpus=question["gpus"], layers=question["layers"])))


def _examine(engine: dict[str, object], model: ModelRef | None, *, gpus: bool, layers: bool) -> dict[str, str]:
    try:
        check_arguments(engine)
    except ConfigError as error:
        return {"refused": str(error)}
    device = current_platform.device_type
    if not device:
        return {"lacks": f"vLLM {vllm.__version__} finds no device that it was built for"}
    if current_platform.is_cpu() and gpus:
        return {"lacks": f"vLLM {vllm.__version__} is built for the CPU, and teacher.actors.num_gpus asks for a GPU"}
    if not current_platform.is_cpu() and not gpus:
        return {"lacks": f"vLLM {vllm.__version__} is built for {device}, and teacher.actors.num_gpus is 0"}
    try:
        torch.ones(2, device=device).sum().item()
    except (RuntimeError, AssertionError) as error:
        return {"lacks": f"no {device} device computes: {str(error).splitlines()[0]}"}
    methods = ("load_model", "execute_model", "sample_tokens")
    if lacks := [f"Worker.{name}" for name in methods if not hasattr(Worker, name)] + missing_fields():
        return {"lacks": f"vLLM {vllm.__version__} lacks {', '.join(lacks)}; tested with {', '.join(TESTED)}"}
    if model is None:
        return {"runs": f"vLLM {vllm.__version__} runs on {device}"}
    try:
        names = configuration_of(model).architectures or ["(unnamed)"]
    except ModelError as error:
        return {"refused": str(error)}
    known = [name for name in names if name in ModelRegistry.get_supported_archs()]
    if not known:
        return {"lacks": f"it has no model of its own called {' or '.join(names)}"}
    if layers and not gives_layers(ModelRegistry.models[known[0]].load_model_cls()):
        return {"lacks": f"its {known[0]} gives no states of other layers than the last"}
    return {"runs": f"vLLM {vllm.__version__} runs {known[0]} on {device}"}
