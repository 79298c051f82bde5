"""Teachers: prompts in, completions with log-probabilities and hidden states out, keyed by row id.

A backend is one file with one class and one line in ``curation.registry.BACKENDS``.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, Protocol, Self, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation.config import AskConfig, DecodingConfig
from curation.json_types import Json, JsonView
from curation.models import fetch_model, get_state_size
from curation.models.dtypes import settle_ask
from curation.refs import ModelRef
from curation.registry import BACKENDS, load_code


@dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt to complete."""

    row_id: int
    prompt: str
    options: tuple[str, ...] | None = None
    """The completions to choose from by their likelihood (one alone: to score it); None: the answer is generated."""
    stepwise: bool = False
    """With options: the answer is drawn token by token along their trie, as the decoding says, and none is scored."""
    in_pairs: bool = False
    """With options, an even number: two by two they are yes and no of a question, and the answer is the likelier one of
    each pair, one after the other (``curation.teachers.in_pairs``)."""
    given: str | None = None
    """The completion that came with the row, where labels are made elsewhere: a model that only reads it
    (``AskConfig.reads_given``) scores it, and one that answers ignores it."""
    content_free: tuple[str, ...] = ()
    """The same question about texts without content, where the choice among options is calibrated by them."""
    baselines: tuple[float, ...] | None = None
    """The options' scores on these (``content_free.baselines``), which are subtracted before one is chosen."""

    @property
    def is_drawn(self) -> bool:
        """Whether the answer is drawn token by token, freely or stepwise, so that a temperature tells on it."""
        return self.options is None or self.stepwise


class Gate(Protocol):
    """Decides after a prompt, by its hidden state, whether its answer is asked for (a cascade's first cut).

    Several threads may call it.
    """

    states: tuple[str, ...]
    """The states that it reads, among those that the teacher keeps; all are of the last prompt token."""

    def __call__(self, prompts: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return whether the answer of each row is asked for, bool [N]; batches of ``completions.prompt_batch``."""
        ...


class Teacher(Protocol):
    """A stream, keyed by row id: no barrier, no order."""

    state_size: int
    """Width of a hidden state."""
    facts: Mapping[str, float]
    """Facts of the teacher's start, for the report: sizes by name.

    A teacher that answers rows side by side, each in a time of its own, also has ``slots: int``: how many of them. A
    pass then gives it chunks that fill these, whatever the time of an answer. One that has to wait for something else
    may have ``pause: str``, which says so in the progress, and is empty otherwise.
    """

    @staticmethod
    def engine_key(config: AskConfig) -> JsonView:
        """Return the configuration that forces a restart, as JSON; :meth:`asked` changes all else."""
        ...

    def asked(self, config: AskConfig) -> Self:
        """Return the same teacher, not started again, asked as a configuration of the same ``engine_key`` says."""
        ...

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

        A row that ``gate`` stops has neither completion nor error: of it there are the prompt's tokens alone. The
        others are answered as without it. A teacher that knows no gate is never given one.

        A sampled completion depends on ``seed`` and the row id alone, whatever the batch. Without ``states`` the
        hidden states that the configuration names are left out.
        """
        ...


class BaseTeacher:
    """The start of a teacher that is asked anew by a copy of itself; as it is, it starts nothing and has no states."""

    state_size = 0

    @property
    def facts(self) -> Mapping[str, float]:
        """Nothing is known of the start."""
        return {}

    @staticmethod
    def engine_key(config: AskConfig) -> JsonView:
        """Return an empty key: nothing is started."""
        return {}

    @staticmethod
    def width(config: AskConfig) -> int:
        """Return numbers of a hidden state: none."""
        return 0

    def asked(self, config: AskConfig) -> Self:
        """Return the same teacher, not started again, asked as ``config`` says."""
        other = copy.copy(self)
        other._ask(config)
        return other

    def _ask(self, config: AskConfig) -> None:
        self._config = config


def load_teacher(config: AskConfig, model: ModelRef | None) -> Teacher:
    """Return the teacher of a configuration with the weights of ``model`` (None: a backend that needs no weights)."""
    return cast(Teacher, _load_class(config)(settle_ask(config, model), None if model is None else fetch_model(model)))


def has_gate_argument(teacher: Teacher) -> bool:
    """Return whether a teacher's ``label`` takes a gate; a backend of one's own need not."""
    return "gate" in signature(teacher.label).parameters


def can_gate(backend: str) -> bool:
    """Return whether teachers of a backend take a gate; ``auto`` stands for those that do."""
    return backend == "auto" or "gate" in signature(load_code(BACKENDS[backend].made_by).label).parameters


def get_engine_key(config: AskConfig) -> Json:
    """Return the settings that a loaded teacher depends on; equal settings and models reuse the teacher."""
    return {"backend": config.backend, **_load_class(config).engine_key(config)}


def _load_class(config: AskConfig) -> Any:
    return load_code(BACKENDS[config.backend].made_by)


def get_state_width(config: AskConfig, model: ModelRef | None) -> int:
    """Return numbers of a hidden state, without a teacher: the model's, or what a backend without weights says."""
    if model is not None and (config.backend == "auto" or BACKENDS[config.backend].weights):
        return get_state_size(model, config.states)
    return int(_load_class(config).width(config))
