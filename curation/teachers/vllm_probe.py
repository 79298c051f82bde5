"""The probe that :mod:`curation.teachers.vllm_choice` starts to find whether vLLM runs a model on this machine."""

import json
import os
import sys
from typing import Any

import torch
import vllm
from vllm.model_executor.models.registry import ModelRegistry
from vllm.platforms import current_platform
from vllm.v1.worker.gpu_worker import Worker

from curation.errors import ConfigError, ModelError
from curation.models import fetch_model, load_configuration
from curation.models.loading import get_first_line, make_engine_arguments, set_environment
from curation.refs import ModelRef
from curation.teachers.vllm_choice import TESTED, can_give_layers, find_missing_fields
from curation.teachers.vllm_engine import check_arguments


def answer() -> None:
    """Print the probe's finding as the last line, and end the process."""
    question = json.loads(sys.argv[1])
    model = None if question["model"] is None else ModelRef.from_json(question["model"])
    found = _examine(question["engine"], model, gpus=question["gpus"], layers=question["layers"])
    if question["starts"] and model is not None and "runs" in found:
        found = _try_small_engine(model, found["runs"])
    sys.stdout.flush()
    print(json.dumps(found), flush=True)
    os._exit(0)  # the engine's end would log after the finding


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
    if lacks := [f"Worker.{name}" for name in methods if not hasattr(Worker, name)] + find_missing_fields():
        return {"lacks": f"vLLM {vllm.__version__} lacks {', '.join(lacks)}; tested with {', '.join(TESTED)}"}
    if model is None:
        return {"runs": f"vLLM {vllm.__version__} runs on {device}"}
    try:
        names = load_configuration(model).architectures or ["(unnamed)"]
    except ModelError as error:
        return {"refused": str(error)}
    known = [name for name in names if name in ModelRegistry.get_supported_archs()]
    if not known:
        return {"lacks": f"it has no model of its own called {' or '.join(names)}"}
    if layers and not can_give_layers(ModelRegistry.models[known[0]].load_model_cls()):
        return {"lacks": f"its {known[0]} gives no states of other layers than the last"}
    return {"runs": f"vLLM {vllm.__version__} runs {known[0]} on {device}"}


def _try_small_engine(model: ModelRef, runs: str) -> dict[str, str]:
    """Return the finding after starting a small engine, with one layer of the model and random weights."""
    from vllm import LLM, SamplingParams

    set_environment()
    arguments = make_engine_arguments(fetch_model(model)) | {"load_format": "dummy", "hf_overrides": _cut_to_one_layer}
    if torch.cuda.is_available():  # of what is free: others may share the GPU
        free, total = torch.cuda.mem_get_info()
        arguments["gpu_memory_utilization"] = 0.8 * free / total
    sizes = {"max_model_len": 32, "max_num_seqs": 1, "max_num_batched_tokens": 32, "kv_cache_memory_bytes": 64 << 20}
    try:
        llm = LLM(skip_tokenizer_init=True, enforce_eager=True, disable_log_stats=True, **sizes, **arguments)
        params = SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False)
        (output,) = llm.generate([{"prompt_token_ids": [1, 2, 3]}], params, use_tqdm=False)
    except Exception as error:  # whatever a driver or a kernel raises
        return {"lacks": f"a small engine did not start: {type(error).__name__}: {get_first_line(error)}"}
    if len(output.outputs[0].token_ids) != 1:
        return {"lacks": "a small engine gave no token"}
    return {"runs": f"{runs}, where a small engine started"}


def _cut_to_one_layer(config: Any) -> Any:
    """Cut a configuration down to one layer."""
    text = config.get_text_config()
    text.num_hidden_layers = 1
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:1]
    return config
