"""Adapters of peft on the model that they were made for, and on no other.

peft loads an adapter of a deeper model in silence, and says of a narrower one only which sizes differ.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curation.errors import ModelError
from curation.models.loading import base_of, load_adapter
from curation.refs import ModelRef

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


def adapted(model: "PreTrainedModel", adapter: str, ref: ModelRef) -> Any:
    """The model with an adapter on top, from a directory on this node.

    Raises:
        ModelError: the adapter was made for another base: it names modules, or has shapes, that this one lacks.
    """
    made_for = base_of(adapter)
    problem = _other_shape(made_for, model.config)
    if problem is None:
        try:
            loaded, found = load_adapter(model, adapter)
        except ModelError:
            raise
        except (ValueError, RuntimeError) as error:
            problem = "; ".join(line.strip() for line in str(error).splitlines()[:2])
        else:
            if not (odd := [*found.unexpected_keys, *found.missing_keys]):
                return loaded
            problem = f"{len(odd)} of its weights have no place in this model or lack there, the first {odd[0]}"
    raise ModelError(
        f"adapter {ref.adapter!r} does not fit model {ref.base!r}: {problem}; it was made for {made_for!r}: give that "
        "model as the adapter's base, or another adapter"
    )


def _other_shape(made_for: str, config: "PreTrainedConfig") -> str | None:
    """How the model that an adapter was made for, where it is a directory here, differs from that of ``config``."""
    path = Path(made_for) / "config.json"
    given = json.loads(path.read_text()) if path.is_file() else {}
    for name in ("model_type", "num_hidden_layers", "hidden_size", "vocab_size"):
        if name in given and given[name] != (own := getattr(config, name, None)):
            return f"{name} is {own!r} here, and {given[name]!r} where it was made"
    return None
