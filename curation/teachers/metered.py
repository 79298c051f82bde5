"""Counts the tokens of all that a teacher is asked, also of what no table keeps."""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curation.config import DecodingConfig
from curation.teachers import Request, Teacher
from curation.teachers.wrapped import Wrapped


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Tokens read and written by a teacher."""

    prompt: int = 0
    output: int = 0


class Metered(Wrapped):
    """The same teacher; its calls may run side by side."""

    def __init__(self, teacher: Teacher) -> None:
        super().__init__(teacher)
        self._tokens = Tokens()
        self._lock = threading.Lock()

    def label(self, requests: Iterable[Request], decoding: DecodingConfig, **how: Any) -> Iterator[pa.RecordBatch]:
        """The teacher's answers (see ``Teacher.label``)."""
        for batch in super().label(requests, decoding, **how):
            prompt, output = (pc.sum(batch.column(f"num_{kind}_tokens")).as_py() or 0 for kind in ("prompt", "output"))
            with self._lock:
                self._tokens = Tokens(prompt=self._tokens.prompt + prompt, output=self._tokens.output + output)
            yield batch

    def take(self) -> Tokens:
        """The tokens since the last call."""
        with self._lock:
            taken, self._tokens = self._tokens, Tokens()
        return taken
