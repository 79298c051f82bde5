"""Teachers: prompts in, completions with log-probabilities and hidden states out, keyed by row id.

A backend is one file with one class and one line in ``BACKENDS``.
"""

import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, cast

import pyarrow as pa

from curation.config import AskConfig, DecodingConfig
from curation.models import here
from curation.refs import ModelRef

BACKENDS = {
    "transformers": "curation.teachers.transformers:TransformersTeacher",
    "vllm": "curation.teachers.vllm:VllmTeacher",
    "scripted": "curation.teachers.scripted:ScriptedTeacher",
}
_CONCURRENT = {"vllm": 2}
_KEEPS_PROCESS = frozenset({"vllm"})


@dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt to complete."""

    row_id: int
    prompt: str
    options: tuple[str, ...] | None = None
    """The completions to choose from by their likelihood (one alone: to score it); None: the answer is generated."""


class Teacher(Protocol):
    """A stream, keyed by row id: no barrier, no order."""

    state_size: int
    """Width of a hidden state."""
    facts: Mapping[str, float]
    """What starting it gave, for the report: sizes by name."""

    @staticmethod
    def engine_key(config: AskConfig) -> Mapping[str, Any]:
        """What of a configuration the teacher is started with, as JSON; all else :meth:`asked` changes."""
        ...

    def asked(self, config: AskConfig) -> Self:
        """The same teacher, not started again, asked as a configuration of the same ``engine_key`` says."""
        ...

    def label(
        self, requests: Iterable[Request], decoding: DecodingConfig, *, seed: int, states: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """Batches of ``tables.completions``: each request exactly once, as a completion or an error row.

        A sampled completion depends on ``seed`` and the row id alone, whatever the batch. Without ``states`` the
        hidden states that the configuration names are left out.
        """
        ...


def load_teacher(config: AskConfig, model: ModelRef | None) -> Teacher:
    """The teacher of a configuration with the weights of ``model`` (None: a backend that needs no weights)."""
    return cast(Teacher, _backend(config)(config, None if model is None else here(model)))


def engine_key(config: AskConfig) -> dict[str, Any]:
    """What of a configuration a teacher is started with: one of the same key and model need not be started again."""
    return {"backend": config.backend, **_backend(config).engine_key(config)}


def _backend(config: AskConfig) -> Any:
    module, _, name = BACKENDS[config.backend].partition(":")
    return getattr(importlib.import_module(module), name)


def concurrent_calls(backend: str) -> int:
    """How many calls of ``label`` at once keep a teacher busy: more than one where they share its batches."""
    return _CONCURRENT.get(backend, 1)


def can_be_replaced(backend: str) -> bool:
    """Whether a process can give up its teacher for another one; vLLM's engine keeps its process to the end."""
    return backend not in _KEEPS_PROCESS
