"""Teachers: prompts in, completions with log-probabilities and hidden states out, keyed by row id.

A backend is one file with one class and one line in ``BACKENDS``.
"""

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, cast

import pyarrow as pa

from curation.config import DecodingConfig, TeacherConfig
from curation.refs import ModelRef

BACKENDS = {
    "transformers": "curation.teachers.transformers:TransformersTeacher",
    "vllm": "curation.teachers.vllm:VllmTeacher",
    "auto": "curation.teachers.vllm_choice:auto_teacher",
    "scripted": "curation.teachers.scripted:ScriptedTeacher",
}


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

    def label(self, requests: Iterable[Request], decoding: DecodingConfig, *, seed: int) -> Iterator[pa.RecordBatch]:
        """Batches of ``tables.completions``: each request exactly once, as a completion or an error row.

        A sampled completion depends on ``seed`` and the row id alone, whatever the batch.
        """
        ...


def load_teacher(config: TeacherConfig, model: ModelRef | None) -> Teacher:
    """The teacher of a configuration with the weights of ``model`` (None: a backend that needs no weights)."""
    module, _, name = BACKENDS[config.backend].partition(":")
    return cast(Teacher, getattr(importlib.import_module(module), name)(config, model))
