"""Private parts of vLLM that the tap reads, and which of them an installed version lacks."""

TESTED = ("0.32.0",)
"""Versions of vLLM whose private attributes the tap is known to read rightly."""

_RUNNER = (
    "execute_model_state",
    "sample_tokens",
    "_sample",
    "requests",
    "use_aux_hidden_state_outputs",
    "get_model",
    "model.compute_logits",
    "query_start_loc.np",
    "discard_request_mask.np",
    "input_batch.req_ids",
    "input_batch.num_computed_tokens_cpu",
    "input_batch.num_prompt_tokens",
    "input_batch.token_ids_cpu",
    "input_batch.generators",
)
_STEP = ("scheduler_output", "hidden_states", "sample_hidden_states", "aux_hidden_states")


def gives_layers(model: type) -> bool:
    """Whether a model of vLLM can give the states of other layers than the last."""
    from vllm.model_executor.models.interfaces import supports_eagle3

    return bool(supports_eagle3(model))


def missing_attributes(runner: object) -> list[str]:
    """The private attributes that the tap reads and this model runner lacks."""
    missing = []
    for path in _RUNNER:
        found = runner
        for name in path.split("."):
            if not hasattr(found, name):
                missing.append(path)
                break
            found = getattr(found, name)
    return missing + missing_fields()


def missing_fields() -> list[str]:
    """The fields that the state between forward pass and draw lacks."""
    from vllm.v1.worker import gpu_model_runner

    fields = getattr(getattr(gpu_model_runner, "ExecuteModelState", None), "_fields", ())
    return [f"ExecuteModelState.{name}" for name in _STEP if name not in fields]
