"""A teacher around a teacher: what both have in common, so that each kind says what it adds."""

from collections.abc import Iterable, Iterator
from typing import Self

import pyarrow as pa

from curation.config import AskConfig, DecodingConfig
from curation.json_types import Json, JsonView
from curation.teachers import Gate, Request, Teacher


class Wrapped:
    """The same teacher; a subclass adds to :meth:`label`."""

    def __init__(self, teacher: Teacher) -> None:
        self.teacher = teacher
        self.state_size, self.facts = teacher.state_size, teacher.facts

    @staticmethod
    def engine_key(config: AskConfig) -> JsonView:
        """Nothing: it is started already."""
        return {}

    def asked(self, config: AskConfig) -> Self:
        """The same teacher, asked as ``config`` says, with a state of its own."""
        return type(self)(self.teacher.asked(config))

    def label(
        self,
        requests: Iterable[Request],
        decoding: DecodingConfig,
        *,
        seed: int,
        states: bool = True,
        gate: Gate | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The teacher's answers (see ``Teacher.label``); a teacher that takes no gate is given none."""
        how: Json = {} if gate is None else {"gate": gate}
        return self.teacher.label(requests, decoding, seed=seed, states=states, **how)
