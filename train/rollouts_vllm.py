"""Rollouts by a vLLM engine in the training's own process, which shares its GPU and sleeps while the weights train.

Before each draw the engine gets the current weights. An adapter is added to copies of them, one layer at a time: TRL
merges and unmerges it in place, by which trained weights in bfloat16 would drift.
"""

import gc
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from accelerate.utils import patch_environment  # type: ignore[import-untyped]
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerBase

from curation.config.models import GrpoConfig
from curation.errors import ConfigError, ModelError
from curation.escaping import get_logger
from curation.models.loading import is_installed, make_engine_arguments, set_environment
from curation.refs import ModelRef
from train.launch import count_workers
from train.rollouts import Rollout, Rollouts, Wanted

log = get_logger(__name__)

CPU_CACHE_BYTES = 1 << 30
MAX_RUNNING = 256  # maximum number of answers that an engine runs at once, vLLM's default of ``max_num_seqs``

_asleep: list[Any] = []  # sleeping engines of ended trainings


def is_vllm_backend(config: GrpoConfig, architecture: str) -> bool:
    """Return whether rollouts use vLLM: ``rollouts.backend: auto`` does with a GPU, if vLLM supports the training.

    ``architecture`` is the class of the trained model. Raise ``ConfigError`` if vLLM is requested and cannot draw.
    """
    backend = config.rollouts.backend
    if backend == "transformers" or (backend == "auto" and not config.gpus_per_worker):
        return False
    lacks = _find_vllm_problem(architecture, on_gpu=config.gpus_per_worker > 0)
    if lacks and backend == "vllm":
        raise ConfigError(f"rollouts.backend: vllm, but {lacks}; set rollouts.backend: transformers")
    if lacks:
        log.warning("rollouts are drawn by transformers, as %s", lacks)
    return not lacks


def _find_vllm_problem(architecture: str, *, on_gpu: bool) -> str | None:
    """Return the reason why vLLM cannot draw, or None if it can."""
    if not is_installed():
        return "vLLM is not installed"
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.platforms import current_platform

    if current_platform.is_cpu() == on_gpu:
        device = current_platform.device_type or "no device found here"
        return f"vLLM is built for {device}, and the training is on a {'GPU' if on_gpu else 'CPU'}"
    known = ModelRegistry.models.get(architecture)
    if known is None or getattr(known, "module_name", "").endswith(".transformers"):
        # vLLM runs it by transformers' class, which it changes for the whole process, the trained model with it.
        return f"it has no {architecture} of its own"
    return None


class VllmRollouts(Rollouts):
    """Draws by a vLLM engine, each answer with its own seed."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        config: GrpoConfig,
        ends: Sequence[int],
        *,
        model: ModelRef,
        dtype: str,
        longest_prompt: int,
    ) -> None:
        """Start an engine of ``model``, the base, or raise ``ModelError``; all workers start theirs together.

        ``dtype`` is the type of the engine's weights and cache, ``longest_prompt`` is in tokens.
        """
        super().__init__(tokenizer, config.rollouts, ends)
        set_environment(VLLM_LOGGING_LEVEL="WARNING")
        # It warns at each push of heads that are the embeddings, as if they lacked weights.
        logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
        self._sleeps = config.gpus_per_worker > 0  # a CPU has no sleep mode
        self._owns_group = not torch.distributed.is_initialized()
        ranks = config.rollouts.tensor_parallel
        answers = config.global_batch_size * config.group_size // config.num_workers * ranks
        self._group = _make_group(ranks)
        # Variables by which vLLM finds its place in a group of workers. Ray Train sets them, but a group left by an
        # earlier engine has none. They hold only while the engine starts: a later process would join the group.
        places: dict[str, int] = {}
        if not self._owns_group:
            rank = torch.distributed.get_rank()
            places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": torch.distributed.get_world_size()}
        engine: dict[str, Any] = {
            "dtype": dtype,
            "skip_tokenizer_init": True,
            "logprobs_mode": "processed_logprobs",  # at the temperature
            "disable_log_stats": True,
            "max_model_len": longest_prompt + config.rollouts.max_tokens,
            "max_num_seqs": min(answers, MAX_RUNNING),
            "tensor_parallel_size": ranks,
            "distributed_executor_backend": "uni" if self._owns_group else "external_launcher",
        }
        if self._sleeps:
            engine |= {"enable_sleep_mode": True, "gpu_memory_utilization": config.rollouts.gpu_memory}
        else:
            engine |= {"kv_cache_memory_bytes": CPU_CACHE_BYTES, "enforce_eager": True}
        set_num_threads = torch.set_num_threads
        try:
            with patch_environment(**{name: place for name, place in places.items() if name not in os.environ}):
                from vllm import LLM

                self._llm: Any = LLM(**make_engine_arguments(model) | engine)
        except (RuntimeError, ValueError, OSError, AssertionError, ImportError, AttributeError, KeyError) as error:
            raise ModelError(
                f"model {model.base!r}: vLLM's engine for rollouts did not start: {type(error).__name__}: {error}"
            ) from error
        finally:
            torch.set_num_threads = set_num_threads  # on a CPU vLLM replaces it by one that does nothing
        self._sleep()

    def draw(self, wanted: Sequence[Wanted], trainer: Any) -> list[Rollout]:
        """Return the answers; see :meth:`train.rollouts.Rollouts.draw`."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._push(trainer.accelerator.unwrap_model(trainer.model))
        parts: list[Any] = [list(wanted)]
        start = 0
        if self._group is not None:  # each worker of an engine sends the requests of all
            parts *= torch.distributed.get_world_size(self._group)
            torch.distributed.all_gather_object(parts, list(wanted), group=self._group)
            start = sum(map(len, parts[: torch.distributed.get_rank(self._group)]))
        together = [item for part in parts for item in part]
        shared = {
            "max_tokens": self._config.max_tokens,
            "temperature": self._config.temperature,
            "stop_token_ids": self._ends,
            "ignore_eos": True,  # the tokens that end an answer are ours
            "detokenize": False,
            "logprobs": 0,  # of the drawn token
            "flat_logprobs": True,
            "output_kind": RequestOutputKind.FINAL_ONLY,
        }
        params = [SamplingParams(seed=item.seed, **shared) for item in together]
        prompts = [{"prompt_token_ids": item.prompt} for item in together]
        found = self._llm.generate(prompts, params, use_tqdm=False)
        self._sleep()
        rollouts = []
        for answer in (output.outputs[0] for output in found[start : start + len(wanted)]):
            logprobs = [answer.logprobs.logprobs[first] for first in answer.logprobs.start_indices]
            rollout = self._cut(list(answer.token_ids), logprobs)
            rollouts.append(rollout._replace(truncated=rollout.truncated and answer.finish_reason == "length"))
        return rollouts

    def close(self) -> None:
        """End the engine and free its memory; in a group of workers it sleeps on and ends with its process."""
        if self._owns_group:
            self._llm.llm_engine.engine_core.shutdown()
        else:  # its end, even by garbage collection, would end the workers' process group
            _asleep.append(self._llm)
        self._llm = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _push(self, model: object) -> None:
        """Give the engine the weights of ``model``."""
        if self._sleeps:
            torch.cuda.empty_cache()
            self._llm.wake_up(tags=["weights"])
        with torch.no_grad():
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter_whole_weights(model)})
            self._llm.collective_rpc(_renew_head)
        if self._sleeps:
            self._llm.wake_up(tags=["kv_cache"])
        self._llm.reset_prefix_cache()

    def _sleep(self) -> None:
        """Free the engine's weights and cache until the next draw."""
        if self._sleeps:
            self._llm.sleep(level=2)


def _make_group(size: int) -> Any:
    """Return the group of the adjacent workers that share an engine, or ``None`` if this worker has its own.

    All workers must call this together. Raise ``ConfigError`` if ``size`` does not divide their number.
    """
    if size == 1:
        return None
    workers = count_workers()
    if workers % size:
        raise ConfigError(f"rollouts.tensor_parallel: {size} does not divide the {workers} workers of this training")
    groups = [list(range(start, start + size)) for start in range(0, workers, size)]
    return torch.distributed.new_subgroups_by_enumeration(groups)[0]  # type: ignore[no-untyped-call]


def _renew_head(worker: Any) -> None:
    """Pack output embeddings anew: on a CPU, a push does not update the packed copy of one tied to the input's."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for layer in worker.get_model().modules():
        if isinstance(layer, ParallelLMHead):
            layer.quant_method.process_weights_after_loading(layer)


def iter_whole_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each weight under its name in the base, with what an adapter adds to it; shards are gathered.

    Every worker must iterate over all weights. The trained weights are read and never written. Raise ``ModelError`` if
    a trained weight has no place in the base.
    """
    modules = dict(model.named_modules())
    is_adapted = hasattr(model, "peft_config")
    for name, weight in model.named_parameters():
        owner, _, kind = name.rpartition(".")
        if is_adapted and ".lora_" in name:
            continue
        if weight.requires_grad and is_adapted:
            raise ModelError(f"{name} is trained beside the adapter; rollouts by vLLM know adapters of LoRA alone")
        value = _gather_weight(weight)
        if is_adapted and kind == "weight" and owner.endswith(".base_layer"):
            layer: Any = modules[owner.removesuffix(".base_layer")]
            summed = value.to(torch.float32)  # rounded once, after all adapters
            for adapter in layer.active_adapters:
                down, up = (_gather_weight(each[adapter].weight).float() for each in (layer.lora_A, layer.lora_B))
                added = up @ down * layer.scaling[adapter]
                summed = summed + (added.T if layer.fan_in_fan_out else added)
            value = summed.to(value.dtype)
        yield name.removeprefix("base_model.model.").replace(".base_layer.", ".") if is_adapted else name, value


def _gather_weight(weight: torch.Tensor) -> torch.Tensor:
    weight = weight.detach()
    return weight.full_tensor() if isinstance(weight, DTensor) else weight
