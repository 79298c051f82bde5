"""The model of a process: loaded once for all passes that ask it, and replaced when a pass asks another one."""

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
    """Holds at most one model at a time, so that a process never needs memory for two."""

    def __init__(self, on_drop: Callable[[], None] = lambda: None) -> None:
        """Take ``on_drop``, called before a model is replaced; it must release every reference to the model."""
        self.num_starts = 0
        """The number of models loaded so far."""
        self.facts: Mapping[str, float] = MappingProxyType({})
        """The last model's ``facts``, for the report."""
        self._on_drop = on_drop
        self._key: str | None = None
        self._held: Any = None

    @property
    def pause(self) -> str:
        """The reason why the model waits, in words; empty where it does not."""
        return str(getattr(self._held, "pause", ""))

    def teacher(self, config: AskConfig, engine: AskConfig, model: ModelRef | None) -> Teacher:
        """Return the teacher, asked as ``config`` says; if it does not run yet, it is started as ``engine`` says.

        Raises:
            StartError: it did not start in this process, and may in another one.
        """
        key = fingerprint([get_engine_key(engine), None if model is None else model.to_json()])
        held: Teacher = self._get(key, lambda: load_teacher(engine, model))
        return held.asked(config)

    def reward(self, ref: ModelRef, **settings: Any) -> RewardModel:
        """Return a reward model with a head of its own."""
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
