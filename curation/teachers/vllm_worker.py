"""vLLM's worker with the tap, which each process of an engine runs.

vLLM creates the worker by its name (``worker_cls``) and passes it the tap's settings (``additional_config``), so that
the layers to read are known when the model is loaded, before vLLM compiles it and records CUDA graphs.
"""

from collections.abc import Sequence
from typing import Any

from vllm.platforms import current_platform

from curation.config.states import find_other_layers
from curation.teachers.vllm_names import CONFIG, find_missing_attributes
from curation.teachers.vllm_tap import Collected, Tap

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker


class TapWorker(PlatformWorker):  # type: ignore[misc]
    """A worker whose steps the tap follows; the engine's ``collective_rpc`` calls the methods named ``tap_...``."""

    tap: Tap | None = None

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """Load the model, and install the tap unless this vLLM or the model lacks what it reads."""
        super().load_model(load_dummy_weights=load_dummy_weights)
        names, ring, num_logprobs = self.vllm_config.additional_config[CONFIG]
        runner, model = self.model_runner, self.get_model()
        others = find_other_layers(names)
        self._lacks, self._lacks_layers = find_missing_attributes(runner), None
        if others:
            from vllm.model_executor.models.interfaces import supports_eagle3

            self._lacks_layers = None if supports_eagle3(type(model)) else type(model).__name__
        if self._lacks or self._lacks_layers:
            return
        if others:
            model.set_aux_hidden_state_layers(others)
            runner.use_aux_hidden_state_outputs = True
        self.tap = Tap(runner.sampler, model.compute_logits, names, ring, num_logprobs)

    def execute_model(self, scheduler_output: Any) -> Any:
        """Run the forward pass of a step."""
        if self.tap is not None:
            self.tap.follow(scheduler_output)
        return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Draw the tokens of the step."""
        state = self.model_runner.execute_model_state
        if self.tap is None or state is None:
            return super().sample_tokens(grammar_output)
        with self.tap.drawing(self.model_runner.input_batch.req_ids, state.hidden_states, state.aux_hidden_states):
            return super().sample_tokens(grammar_output)

    def tap_lacks(self) -> tuple[str | None, list[str]]:
        """Return the model's class name if it cannot give the requested layers, else None, and what vLLM lacks."""
        return self._lacks_layers, self._lacks

    def tap_collect(self, requests: Sequence[tuple[str, int]]) -> Collected | None:
        """Return ``Tap.collect`` on the first worker; on the others, which hold the same rows, free them."""
        assert self.tap is not None
        if self.rank == 0:
            return self.tap.collect(requests)
        self.tap.free([request_id for request_id, _ in requests])
        return None

    def tap_free(self, request_ids: Sequence[str]) -> None:
        """Forget requests that were aborted."""
        assert self.tap is not None
        self.tap.free(request_ids)

    def tap_rows(self) -> int:
        """Return the number of requests that the tap holds."""
        assert self.tap is not None
        return len(self.tap.rows)
