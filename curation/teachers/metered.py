"""Counts the tokens of all that a teacher is asked, also of what no table keeps."""

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from curation.config import AskConfig, DecodingConfig
from curation.teachers import Gate, Request, Teacher


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Tokens read and written by a teacher."""

    prompt: int = 0
    output: int = 0


class Metered:
    """The same teacher; its calls may run side by side."""

    def __init__(self, teacher: Teacher) -> None:
        self.teacher = teacher
        self.state_size = teacher.state_size
        self.facts = teacher.facts
        self._tokens = Tokens()
        self._lock = threading.Lock()

    @staticmethod
    def engine_key(config: AskConfig) -> Mapping[str, Any]:
        """Nothing: it is started already."""
        return {}

    def asked(self, config: AskConfig) -> Self:
        """The same teacher, asked as ``config`` says, with a count of its own."""
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
        """The teacher's answers (see ``Teacher.label``)."""
        how: dict[str, Any] = {} if gate is None else {"gate": gate}
        for batch in self.teacher.label(requests, decoding, seed=seed, states=states, **how):
            prompt, output = (pc.sum(batch.column(f"num_{kind}_tokens")).as_py() or 0 for kind in ("prompt", "output"))
            with self._lock:
                self._tokens = Tokens(prompt=self._tokens.prompt + prompt, output=self._tokens.output + output)
            yield batch

    def take(self) -> Tokens:
        """The tokens since the last call."""
        with self._lock:
            taken, self._tokens = self._tokens, Tokens()
        return taken
