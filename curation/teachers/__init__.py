"""Teachers: prompts in, completions with log-probabilities and hidden states out, keyed by row id.

A backend is one file with one class and one line in ``curation.registry.BACKENDS``.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

import pyarrow as pa

from curation.config import AskConfig, DecodingConfig
from curation.models import here, state_size
from curation.refs import ModelRef
from curation.registry import BACKENDS, code


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
    """What starting it took and gave, for the report: seconds and sizes by name."""

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
    made_by = code(BACKENDS[config.backend].made_by)
    return cast(Teacher, made_by(config, None if model is None else here(model)))


def width(config: AskConfig, model: ModelRef | None) -> int:
    """Numbers of a hidden state, without a teacher: the model's, or what a backend without weights says."""
    if model is not None:
        return state_size(model, config.states)
    return int(code(BACKENDS[config.backend].made_by).width(config))


def concurrent_calls(backend: str) -> int:
    """How many calls of ``label`` at once keep a teacher busy: more than one where they share its batches."""
    return BACKENDS[backend].calls
