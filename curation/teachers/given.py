"""Labels made elsewhere: a backend that hands on the completions which came with the rows, and asks no model."""

from collections.abc import Iterable, Iterator
from itertools import islice

import pyarrow as pa

from curation.config import AskConfig, DecodingConfig
from curation.refs import ModelRef
from curation.teachers import BaseTeacher, Request
from curation.teachers.completions import AnsweredRow, completion_batch

_BATCH_ROWS = 1024


class GivenTeacher(BaseTeacher):
    """Completions of the requests' own rows, without log-probabilities, tokens and states."""

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
        """Batches of up to 1,024 given completions (see ``Teacher.label``); a row without one is an error row."""
        stream = iter(requests)
        while batch := list(islice(stream, _BATCH_ROWS)):
            yield completion_batch(
                [_answered(request) for request in batch], states={}, state_dtype=self._config.state_dtype
            )


def _answered(request: Request) -> AnsweredRow:
    """The row with the completion that came with it."""
    missing = "no_completion: no label came with the row" if request.given is None else None
    return AnsweredRow(request.row_id, request.given, error=missing)
