"""vLLM's engine inside this process: started from checked arguments, stepped, and watched for hangs.

The engine shares the process with the teacher, so that a step costs no message and states need no second copy
(tensor-parallel workers beyond the first are other processes). Several threads may use one engine: a thread that waits
for answers asks for a step, and threads that wait at once share it. One thread does all of the engine's work: OpenMP
gives each computing thread its own team, and two teams would wait busily for each other's cores.
"""

import contextlib
import dataclasses
import difflib
import faulthandler
import fcntl
import itertools
import os
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from curation.config import AskConfig
from curation.errors import ConfigError, CurationError, ModelError, StartError
from curation.heavy import transformers
from curation.models import merged
from curation.models.loading import from_pretrained, get_first_line, make_engine_arguments, set_environment
from curation.refs import ModelRef
from curation.teachers.vllm_names import CONFIG, TESTED
from curation.teachers.vllm_tap import Collected

OWN = ("model", "tokenizer", "revision", "tokenizer_revision", "dtype", "worker_cls", "disable_log_stats")
REFUSED = {
    "pipeline_parallel_size": "the states are on the last stage only; use tensor_parallel_size",
    "data_parallel_size": "set teacher.actors.max instead: an actor has one engine",
    "speculative_config": "a step would draw several tokens, whose states the tap does not tell apart",
    "kv_sharing_fast_prefill": "the later layers would skip tokens of the prompt, whose states and scores are read",
    "enable_lora": "an adapter (teacher.model.adapter) is merged into the weights",
    "async_engine": "the engine is stepped by the teacher",
    "distributed_executor_backend": "the ranks of a tensor-parallel group are processes of the actor, with its GPUs",
}
FORMATS = ("safetensors", "fastsafetensors", "runai_streamer", "instanttensor", "dummy")
"""Values of ``load_format`` that never open a pickle."""
LOG_LINES = 12

Inbox = deque[tuple[str, Any, Any]]  # queue of the outputs of one caller's requests, as (name, tag, output)


class EngineLostError(CurationError):
    """An error for an engine that failed in a step and cannot go on; ask for the open requests in a new process."""


def check_arguments(given: Mapping[str, object]) -> None:
    """Raise ``ConfigError`` if an engine argument is unknown (the message suggests a similar one) or cannot be used."""
    if (trusted := given.get("trust_remote_code", False)) is not False:
        raise ConfigError(
            f"teacher.vllm.engine.trust_remote_code: {trusted!r} cannot be used: code that a model brings is not run; "
            "leave it out (docs/operations.md, Models of others)"
        )
    if (form := given.get("load_format", "safetensors")) not in FORMATS:
        raise ConfigError(
            f"teacher.vllm.engine.load_format: {form!r} may open pickles, which can run code; leave it out, or give "
            f"{', '.join(FORMATS)}"
        )
    for name, value in given.items():
        where = f"teacher.vllm.engine.{name}"
        if name in OWN:
            raise ConfigError(f"{where}: {value!r} is set by the teacher itself; use the keys of teacher")
        if name in REFUSED and (value is True or value not in (None, False, 1)):  # one rank is fine, and True == 1
            raise ConfigError(f"{where}: {value!r} cannot be used: {REFUSED[name]}")
    from vllm.engine.arg_utils import EngineArgs

    known = [field.name for field in dataclasses.fields(EngineArgs)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"teacher.vllm.engine.{name}: vLLM's engine has no such argument{hint}")


def _check_tap(model: ModelRef, lacks_layers: str | None, lacks: Sequence[str]) -> None:
    """Raise ``ModelError`` if vLLM's model cannot give the requested layers, or this vLLM lacks what the tap reads."""
    if lacks_layers:
        raise ModelError(
            f"model {model.base!r}: teacher.states names other layers than the last, which vLLM's {lacks_layers} "
            "does not give; set teacher.backend: transformers"
        )
    if lacks:
        import vllm

        raise ModelError(
            f"vLLM {vllm.__version__} lacks what the teacher reads ({', '.join(lacks)}); "
            f"tested with {', '.join(TESTED)}"
        )


class Engine:
    """An engine of vLLM with the tap installed."""

    def __init__(self, config: AskConfig, model: ModelRef, *, max_positions: int | None, ring: int) -> None:
        """Start the engine; ``max_positions`` is the model's maximum number of tokens, prompt and answer together.

        Raises:
            ConfigError: an engine argument is wrong.
            StartError: the engine does not start in this process (with the last lines that it logged).
            ModelError: vLLM cannot run the model so on any node, or this version of vLLM lacks what the tap reads.
        """
        set_environment()
        check_arguments(config.vllm.engine)
        began = time.monotonic()
        self._log = tempfile.TemporaryFile(prefix="vllm-", suffix=".log")  # noqa: SIM115 (open while workers write to it)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vllm-engine")
        self._inboxes: dict[str, tuple[Inbox, Any]] = {}
        self._names = map(str, itertools.count())
        self._ids: dict[str, str] = {}  # of the requests that the tap holds, by the names that submit returned
        self._step_began: float | None = None
        self._step_lock = threading.Lock()
        self._next_step: Future[None] | None = None  # the current or last step
        is_refused = False
        try:
            turn = start_turn(list_shared_gpus(config.actors.num_gpus))
            loaded = contextlib.nullcontext(model) if model.adapter is None else merged(model, dtype=config.dtype)
            with _log_to(self._log.fileno()), loaded as weights, turn:
                is_refused = True  # an error before the device is used would occur on every node
                settings = self._run_in_thread(_make_settings, config, weights, max_positions, ring)
                is_refused = False
                self._engine = self._run_in_thread(_start_engine, settings)
                lacks_layers, lacks = self._call_workers("tap_lacks")[0]
        except (RuntimeError, ValueError, OSError, AssertionError, ImportError, AttributeError, KeyError) as error:
            if isinstance(error, CurationError):
                raise
            raise (ModelError if is_refused and not isinstance(error, RuntimeError) else StartError)(
                f"model {model.base!r}: vLLM's engine did not start: {type(error).__name__}: {get_first_line(error)}; "
                f"it logged last:\n{self.tail()}"
            ) from error
        _check_tap(model, lacks_layers, lacks)
        scheduler = self._engine.vllm_config.scheduler_config
        cache = self._engine.vllm_config.cache_config
        self.max_positions = int(self._engine.vllm_config.model_config.max_model_len) - 1
        """Maximum number of tokens of prompt and answer together, limited by the model and by memory."""
        self.slots = int(scheduler.max_num_seqs)  # maximum number of requests that run at once
        self.limit = 2 * self.slots  # unfinished requests in the engine: those that run, and as many to follow them
        self.facts: dict[str, float] = {  # for the report
            "start_seconds": time.monotonic() - began,
            "kv_cache_tokens": int(cache.num_gpu_blocks or 0) * int(cache.block_size),
            "max_running": self.slots,
        }
        if torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info()
            self.facts["device_bytes"] = total - free  # of all processes
        threading.Thread(target=self._watch, args=(config.vllm.hang_seconds,), daemon=True).start()

    @property
    def num_unfinished(self) -> int:
        """Number of unfinished requests."""
        return len(self._inboxes)

    def submit(self, tokens: list[int], params: object, inbox: Inbox, tag: object) -> str:
        """Submit a prompt and return its name; when it ends, a step appends ``(name, tag, output)`` to ``inbox``.

        The output is vLLM's, or the error by which vLLM refused the prompt.
        """
        name = next(self._names)
        self._inboxes[name] = (inbox, tag)

        def add() -> None:
            try:
                self._ids[name] = self._engine.add_request(name, {"type": "token", "prompt_token_ids": tokens}, params)
            except Exception as error:  # handed to whoever waits for the answer
                del self._inboxes[name]
                inbox.append((name, tag, error))

        self._thread.submit(add)
        return name

    def step(self) -> None:
        """Run a step of the engine, which serves all requests; concurrent callers share one step.

        Raises:
            EngineLostError: the step failed (in an actor of Ray the process ends instead, so that Ray restarts it).
        """
        with self._step_lock:
            if self._next_step is None or self._next_step.done():
                self._next_step = self._thread.submit(self._step)
            under_way = self._next_step
        under_way.result()

    def _step(self) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        if not self._inboxes:
            return
        self._step_began = time.monotonic()
        try:
            outputs = self._engine.step()
        except (EngineDeadError, RuntimeError, ValueError, AssertionError, OSError) as error:
            words = f"{type(error).__name__}: {get_first_line(error)}"
            reason = f"a step of vLLM's engine failed: {words}; it logged last:\n{self.tail()}"
            ray = sys.modules.get("ray")
            if ray and ray.is_initialized() and ray.get_runtime_context().get_actor_id():
                _end_process(reason)
            raise EngineLostError(reason) from error
        finally:
            self._step_began = None
        for output in outputs:
            if output.finished:
                inbox, tag = self._inboxes.pop(output.request_id)
                inbox.append((output.request_id, tag, output))

    def collect(self, requests: Sequence[tuple[str, int]]) -> Collected:
        """Return the data of finished requests, given name and number of answer tokens, and remove it from the tap."""
        collected: Collected
        collected = self._call_workers("tap_collect", [(self._ids.pop(name), number) for name, number in requests])[0]
        return collected

    def drop(self, names: Sequence[str]) -> None:
        """Abort requests, finished or not, and free the tap's data of them."""

        def drop() -> None:
            self._engine.abort_request([name for name in names if self._inboxes.pop(name, None) is not None])
            held = [self._ids.pop(name) for name in names if name in self._ids]
            self._engine.collective_rpc("tap_free", args=(held,))

        self._run_in_thread(drop)

    def num_held(self) -> int:
        """Return the number of requests that the tap holds."""
        held: int = self._call_workers("tap_rows")[0]
        return held

    def tail(self) -> str:
        """Return the last lines that the engine logged."""
        size = os.fstat(self._log.fileno()).st_size
        lines = os.pread(self._log.fileno(), 1 << 16, max(0, size - (1 << 16))).decode(errors="replace").splitlines()
        return "\n".join([line for line in lines if line.strip()][-LOG_LINES:])

    def close(self) -> None:
        """Stop the engine and its workers, and with them other engines of this process, which share vLLM's groups."""
        self._run_in_thread(self._engine.engine_core.shutdown)
        self._thread.shutdown()
        self._log.close()

    def _call_workers(self, method: str, *args: object) -> list[Any]:
        results: list[Any] = self._run_in_thread(lambda: self._engine.collective_rpc(method, args=args))
        return results

    def _run_in_thread(self, work: Callable[..., Any], *args: object) -> Any:
        """Run ``work`` in the engine's thread and return its result."""
        return self._thread.submit(work, *args).result()

    def _watch(self, seconds: float) -> None:
        """End the process when a step takes longer than ``seconds``: no exception stops compiled code that hangs."""
        while True:
            time.sleep(min(1.0, seconds / 4))
            began = self._step_began
            if began is not None and time.monotonic() - began > seconds:
                faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
                _end_process(
                    f"a step of vLLM's engine took longer than teacher.vllm.hang_seconds: {seconds:g}; the process ends"
                    f" and its rows are labelled anew; it logged last:\n{self.tail()}"
                )


@contextlib.contextmanager
def start_turn(gpus: Sequence[str], folder: Path | None = None) -> Iterator[None]:
    """Hold the locks of these GPUs within the context, so that no other process of this node starts an engine there.

    An engine sizes its share by the GPU's free memory at its start; another one that starts at the same time could fail
    for lack of memory. The operating system releases the locks of a process that dies.
    """
    folder = folder or Path(tempfile.gettempdir()) / f"curation-gpus-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with contextlib.ExitStack() as held:
        for gpu in sorted(gpus):  # in one order, so that no two wait for each other
            file = held.enter_context((folder / f"{gpu}.lock").open("w"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def list_shared_gpus(num_gpus: float) -> list[str]:
    """Return the ids of the GPUs that this process shares with others, or an empty list if its GPUs are whole."""
    if not 0 < num_gpus < 1:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")  # Ray sets it to what an actor was given
    return [gpu.strip() for gpu in visible.split(",") if gpu.strip()]


def stop_ids_of(eos: int | list[int] | None, model: ModelRef, text_config: Any) -> frozenset[int]:
    """Return the tokens that end an answer: those of the tokenizer and of the model's generation settings."""
    try:
        settings = from_pretrained(transformers.GenerationConfig, model)
    except OSError:
        settings = transformers.GenerationConfig.from_model_config(text_config)
    given = eos, settings.eos_token_id
    return frozenset(one for ids in given for one in ([ids] if isinstance(ids, int) else ids or []))


def _make_settings(config: AskConfig, weights: ModelRef, max_positions: int | None, ring: int) -> Any:
    """Return vLLM's configuration for the engine's arguments."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.usage.usage_lib import UsageContext

    given = make_engine_arguments(weights) | config.vllm.engine
    if current_platform.is_cpu():
        given.setdefault("kv_cache_memory_bytes", 1 << 30)
    elif 0 < config.actors.num_gpus < 1:
        given.setdefault("gpu_memory_utilization", round(0.9 * config.actors.num_gpus, 3))
    asked = given.get("max_model_len", -1)
    lengths = [length for length in (asked, max_positions) if length is not None and length != -1]
    given["max_model_len"] = min(lengths) + 1 if lengths else -1
    kept = {CONFIG: [list(config.states), ring, config.token_logprobs]}
    given["additional_config"] = given.get("additional_config", {}) | kept
    given |= {"dtype": config.dtype, "worker_cls": "curation.teachers.vllm_worker.TapWorker", "disable_log_stats": True}
    # The context decides on defaults: as for ``LLM.generate``, for throughput.
    settings = EngineArgs(**given).create_engine_config(UsageContext.LLM_CLASS)
    largest, slots = settings.compilation_config.max_cudagraph_capture_size, settings.scheduler_config.max_num_seqs
    if largest and largest < slots and "compilation_config" not in given:  # a full batch is the usual one here
        given["compilation_config"] = {"max_cudagraph_capture_size": slots}
        settings = EngineArgs(**given).create_engine_config(UsageContext.LLM_CLASS)
    if asked == -1:  # shortened to what the cache has memory for, as if -1 itself had been given
        settings.model_config.original_max_model_len = -1
    return settings


def _start_engine(settings: object) -> Any:
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    return LLMEngine.from_vllm_config(settings, usage_context=UsageContext.LLM_CLASS, disable_log_stats=True)


@contextlib.contextmanager
def _log_to(file: int) -> Iterator[None]:
    """Redirect the terminal output of this process, and of children started meanwhile, to an open file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
    try:
        for descriptor in kept:
            os.dup2(file, descriptor)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, old in kept.items():
            os.dup2(old, descriptor)
            os.close(old)


def _end_process(reason: str) -> None:
    os.write(2, f"{reason}\n".encode())
    os._exit(1)
