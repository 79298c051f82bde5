"""The private parts of vLLM that the teacher reads, and a check of which an installed version lacks."""

TESTED = ("0.32.0",)  # versions of vLLM that the teacher has been tested with

CONFIG = "curation"
"""Key of vLLM's ``additional_config``: names of states, positions of the ring, number of first log-probabilities."""

RUNNER = ("sampler", "execute_model_state", "use_aux_hidden_state_outputs", "input_batch.req_ids")
"""Attributes that a worker's model runner needs."""
STEP = ("hidden_states", "aux_hidden_states")
"""Fields that the model runner's state between forward pass and draw needs."""


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
