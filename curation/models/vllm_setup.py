"""vLLM before it is imported: whether it is there, and the variables that it is started with."""

import importlib.util
import os

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's core in this process
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the tap reads the first one
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",  # room for one token that is drawn and never fed
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # compiled at the start, by nvcc; rows with seeds of their own bypass it
}


def is_installed() -> bool:
    """Whether vLLM can be imported, which proves nothing about the machine."""
    spec = importlib.util.find_spec("vllm")
    return spec is not None and spec.origin is not None  # without an origin: a folder of that name beside the program


def set_environment(**defaults: str) -> None:
    """Set the variables of :data:`ENVIRONMENT`, and ``defaults`` where the user has set none; no usage is reported."""
    os.environ.update(ENVIRONMENT)
    for name, value in {"VLLM_NO_USAGE_STATS": "1", **defaults}.items():
        os.environ.setdefault(name, value)
