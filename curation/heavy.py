"""Heavy libraries, each imported when something of it is first used.

Modules that describe a run, or that a command loads, take them from here, so that ``curate --help`` and a finished run
answer without them. A module that only workers load imports them at its top.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ray as ray
    import ray.cloudpickle
    import ray.data
    import ray.exceptions
    import ray.util.scheduling_strategies
    import torch as torch
    import transformers as transformers
    import transformers.utils.hub
    import transformers.utils.logging
else:

    class _Library:
        """A module that is imported when one of its names is asked for."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(import_module(self._name), attribute)

        def __reduce__(self) -> tuple[type, tuple[str]]:
            return _Library, (self._name,)

    ray, torch, transformers = (_Library(name) for name in ("ray", "torch", "transformers"))
