"""Teachers: models that complete prompts and return log-probabilities and hidden states, keyed by row id.

A backend is one file with one class and one line in ``curation.registry.BACKENDS``.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from types import MappingProxyType
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation.config import AskConfig, DecodingConfig
from curation.hashing import hash64
from curation.json_types import Json, JsonView
from curation.models import fetch_model, get_state_size
from curation.models.dtypes import resolve_dtype
from curation.refs import ModelRef
from curation.registry import BACKENDS, load_code


@dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt to complete."""

    row_id: int
    prompt: str
    options: tuple[str, ...] | None = None
    """Completions to choose from by their likelihood (a single one is scored), or None to generate the answer."""
    stepwise: bool = False
    """Whether the answer is drawn token by token along the options' trie, instead of scoring each option."""
    in_pairs: bool = False
    """Whether options are yes and no of one question each; the answer joins the likelier of each pair."""
    given: str | None = None
    """Completion that came with the row, which a model that only reads it (``AskConfig.reads_given``) scores."""
    baseline_prompts: tuple[str, ...] = ()
    """Prompts whose options' scores are the ``baselines``: the same question about texts without content, say."""
    baselines: tuple[float, ...] | None = None
    """Scores that are subtracted from those of the options before one is chosen; :class:`WrappedTeacher` finds them."""

    @property
    def is_drawn(self) -> bool:
        """Whether the answer is drawn token by token, freely or stepwise, so that a temperature has an effect."""
        return self.options is None or self.stepwise

    @property
    def question(self) -> list[object]:
        """All that is asked about the row, as JSON."""
        further = [list(self.baseline_prompts)] if self.baseline_prompts else []
        return [self.row_id, self.prompt, self.options, *further]

    def make_seed(self, seed: int) -> int:
        """Return the row's own seed for a sampled answer, which is the same in every batch."""
        return int(hash64(np.array([self.row_id], dtype=np.int64), seed)[0] >> np.uint64(1))

    def reading(self, answer: str) -> "Request":
        """Return the request to read an answer, which takes no choice."""
        return replace(self, given=answer, baseline_prompts=())


class Gate(Protocol):
    """A decision, by a prompt's hidden state, whether to ask for its answer; several threads may call it at once."""

    states: tuple[str, ...]
    """States that the gate reads, out of those that the teacher keeps; all are of the last prompt token."""

    def __call__(self, prompts: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return for each row of a ``completions.prompt_batch`` whether to ask for its answer, bool [N]."""
        ...


class Teacher:
    """A model that labels a stream of requests, keyed by row id, without barriers and in any order.

    A backend is a class with these members, made with ``(config, model)``; it need not inherit them. The defaults are
    for a backend without hidden states whose settings can all change without a restart.
    """

    state_size: int = 0  # width of a hidden state
    facts: Mapping[str, float] = MappingProxyType({})  # facts of the teacher's start, for the report: numbers by name
    slots: int | None = None
    """Number of rows that are answered concurrently, or None if they are not. A pass gives chunks that fill the slots,
    however long an answer takes."""
    pause: str = ""  # reason why the teacher waits, which the progress shows unless it is empty

    @staticmethod
    def engine_key(config: AskConfig) -> JsonView:
        """Return the settings whose change requires a restart, as JSON; :meth:`asked` changes all others."""
        return {}

    @staticmethod
    def width(config: AskConfig) -> int:
        """Return the width of a hidden state, for a backend without weights."""
        return 0

    def asked(self, config: AskConfig) -> Self:
        """Return a teacher that shares this one's engine and follows another configuration of equal ``engine_key``."""
        other = copy.copy(self)
        other._ask(config)
        return other

    def _ask(self, config: AskConfig) -> None:
        self._config = config

    def label(
        self,
        requests: Iterable[Request],
        decoding: DecodingConfig,
        *,
        seed: int,
        states: bool = True,
        gate: Gate | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Return batches of ``schemas.make_completions_schema``: each request once, as a completion or an error row.

        A row that ``gate`` stops has neither completion nor error, only its number of prompt tokens. All other rows are
        answered as without a gate. A teacher whose ``label`` has no ``gate`` argument is never given one.

        A sampled completion depends on ``seed`` and the row id alone, whatever the batch. Without ``states`` the
        hidden states that the configuration names are left out.
        """
        raise NotImplementedError


def load_teacher(config: AskConfig, model: ModelRef | None) -> Teacher:
    """Return the teacher of a configuration with the weights of ``model``, None for a backend that needs no weights."""
    made: Teacher = _load_class(config)(resolve_dtype(config, model), None if model is None else fetch_model(model))
    return made


def can_gate(backend: str) -> bool:
    """Return whether teachers of a backend take a gate: custom ones need not."""
    return "gate" in signature(load_code(BACKENDS[backend].made_by).label).parameters


def get_engine_key(config: AskConfig) -> Json:
    """Return the settings that a loaded teacher depends on; it is reused where settings and model are equal."""
    return {"backend": config.backend, **_load_class(config).engine_key(config)}


def _load_class(config: AskConfig) -> Any:
    return load_code(BACKENDS[config.backend].made_by)


def get_state_width(config: AskConfig, model: ModelRef | None) -> int:
    """Return the width of a hidden state, from the model or a backend without weights, without loading a teacher."""
    if model is not None and BACKENDS[config.backend].weights:
        return get_state_size(model, config.states)
    return int(_load_class(config).width(config))
