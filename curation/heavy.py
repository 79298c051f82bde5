"""Heavy modules, each imported on first use.

Modules that describe a run, or that the command line loads, reach them through here, so that ``curate --help`` and a
finished run answer without them. A module that only workers load imports them at its top.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from curation.activity import doing


class Lazy:
    """A module that is imported when one of its names is first used."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if self._module in sys.modules:
            return getattr(import_module(self._module), name)  # waits where another thread imports it
        with doing(f"importing {self._module}"):
            return getattr(import_module(self._module), name)

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return Lazy, (self._module,)


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
    ray, torch, transformers = Lazy("ray"), Lazy("torch"), Lazy("transformers")
