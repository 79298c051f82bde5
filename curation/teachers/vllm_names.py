"""The private parts of vLLM that the teacher reads, and a check of which an installed version lacks."""

TESTED = ("0.32.0",)  # versions of vLLM that the teacher has been tested with

CONFIG = "curation"
"""Key of vLLM's ``additional_config``: names of states, positions of the ring, number of first log-probabilities."""

RUNNER = ("sampler", "execute_model_state", "use_aux_hidden_state_outputs", "input_batch.req_ids")
"""Attributes that a worker's model runner needs."""
STEP = ("hidden_states", "aux_hidden_states")
"""Fields that the model runner's state between forward pass and draw needs."""


def find_missing_attributes(runner: object) -> list[str]:
    """Return what the teacher reads and this version lacks: attributes of the model runner, fields of its state."""
    from vllm.v1.worker import gpu_model_runner

    missing = []
    for path in RUNNER:
        found = runner
        for name in path.split("."):
            if not hasattr(found, name):
                missing.append(path)
                break
            found = getattr(found, name)
    fields = getattr(getattr(gpu_model_runner, "ExecuteModelState", None), "_fields", ())
    return missing + [f"ExecuteModelState.{name}" for name in STEP if name not in fields]
