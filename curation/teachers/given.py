"""The backend for labels made elsewhere, which returns the completions that came with the rows and asks no model."""

from collections.abc import Iterable, Iterator
from itertools import islice

import pyarrow as pa

from curation.config import AskConfig, DecodingConfig
from curation.refs import ModelRef
from curation.teachers import BaseTeacher, Request
from curation.teachers.completions import AnsweredRow, completion_batch

_BATCH_ROWS = 1024


class GivenTeacher(BaseTeacher):
    """A teacher that returns the rows' own completions, without log-probabilities, numbers of tokens and states."""

    def __init__(self, config: AskConfig, model: ModelRef | None = None) -> None:
        self._ask(config)

    def label(
        self,
        requests: Iterable[Request],
        decoding: DecodingConfig,
        *,
        seed: int,
        states: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of up to 1,024 given completions (see ``Teacher.label``); a row without one is an error row."""
        stream = iter(requests)
        missing = "no_completion: no label came with the row"
        while batch := list(islice(stream, _BATCH_ROWS)):
            rows = [AnsweredRow(row.row_id, row.given, error=missing if row.given is None else None) for row in batch]
            yield completion_batch(rows, states={}, state_dtype=self._config.state_dtype)
