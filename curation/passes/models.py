"""The model of a process, which is loaded once for all passes that use it, and replaced when a pass needs another."""

import gc
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from curation.config import AskConfig
from curation.errors import StartError
from curation.refs import ModelRef, fingerprint
from curation.teachers import Teacher, get_engine_key, load_teacher
from curation.teachers.reward import RewardModel

Loaded = TypeVar("Loaded")


class Models:
    """A holder of at most one model at a time, so that a process never needs memory for two."""

    def __init__(self, on_drop: Callable[[], None] = lambda: None) -> None:
        """Take ``on_drop``, called before a model is replaced; it must release every reference to the model."""
        self.num_starts = 0
        """Number of models loaded so far."""
        self.facts: Mapping[str, float] = MappingProxyType({})
        """``facts`` of the model loaded last, for the report."""
        self._on_drop = on_drop
        self._key: str | None = None
        self._held: Any = None

    @property
    def pause(self) -> str:
        """Reason why the model waits, or empty if it does not."""
        return str(getattr(self._held, "pause", ""))

    def teacher(self, config: AskConfig, engine: AskConfig, model: ModelRef | None) -> Teacher:
        """Return the teacher configured by ``config``, after starting it by ``engine`` if it does not run yet.

        Raises:
            StartError: the teacher did not start in this process, and may start in another one.
        """
        key = fingerprint([get_engine_key(engine), None if model is None else model.to_json()])
        held: Teacher = self._get(key, lambda: load_teacher(engine, model))
        return held.asked(config)

    def reward(self, ref: ModelRef, **settings: Any) -> RewardModel:
        """Return a reward model with a reward head, loaded if necessary."""
        return self._get(fingerprint(["reward", ref.to_json(), settings]), lambda: RewardModel(ref, **settings))

    def _get(self, key: str, load: Callable[[], Loaded]) -> Loaded:
        if self._key != key:
            self._drop()
            try:
                self._held = load()
            except RuntimeError as error:
                torch = sys.modules.get("torch")
                # A GPU has no memory left, or fails: both may be of this process or this node alone.
                if torch is None or not isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError):
                    raise
                words = next(iter(str(error).strip().splitlines()), "")
                raise StartError(f"the device gave {type(error).__name__}: {words}") from error
            self._key = key
            self.num_starts += 1
            self.facts = dict(getattr(self._held, "facts", {}))
        held: Loaded = self._held
        return held

    def _drop(self) -> None:
        self._on_drop()
        held, self._held, self._key = self._held, None, None
        if hasattr(held, "close"):
            held.close()
        del held
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()
