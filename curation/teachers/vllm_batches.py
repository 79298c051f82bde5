"""Record batches of the vLLM teacher: rows that ended, as the columns that every teacher gives."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from curation.config.states import parse, positions_of
from curation.teachers import in_pairs
from curation.teachers.completions import AnsweredRow, Array, by_name, completion_batch, dropped_batch, error_batch
from curation.teachers.vllm_rows import EngineRow


@dataclass(frozen=True, kw_only=True)
class RowBatches:
    """Makes record batches of the rows of one call."""

    states: Sequence[str]
    """Names of the columns of hidden states."""
    state_dtype: str
    state_size: int
    """Numbers of a layer's state."""
    num_token_logprobs: int
    normalise_options: bool

    def of(self, rows: Sequence[EngineRow]) -> Iterator[pa.RecordBatch]:
        """A batch each of the rows that failed, those that the gate dropped, and those with an answer."""
        bad = {row.given.request.row_id: row.error for row in rows if row.error is not None}
        if bad:
            yield self.errors(bad)
        if dropped := [row.given for row in rows if row.dropped]:
            ids, num_tokens = [given.request.row_id for given in dropped], [len(given.prompt) for given in dropped]
            yield dropped_batch(ids, num_tokens, *self._shape)
        if answered := [row for row in rows if row.error is None and not row.dropped]:
            yield self._answers(answered)

    def errors(self, bad: Mapping[int, str]) -> pa.RecordBatch:
        """A batch of rows without an answer, by the reason why."""
        return error_batch(list(bad), list(bad.values()), *self._shape)

    @property
    def _shape(self) -> tuple[Sequence[str], str, int, int]:
        """Shape of the others' columns, which a batch without answers needs."""
        return self.states, self.state_dtype, self.state_size, self.num_token_logprobs

    def _answers(self, rows: Sequence[EngineRow]) -> pa.RecordBatch:
        answers = [self._answered(row) for row in rows]
        chosen = [row.by_rank[1] for row in rows]
        positions = positions_of(self.states)
        states: dict[tuple[str, int], Array] = {}
        for position, rank in dict.fromkeys((state.position, state.rank) for state in map(parse, self.states)):
            place = positions.index(position)
            none_D = np.zeros_like(chosen[0].states[place])  # of a row with fewer options
            parts = [row.by_rank.get(rank) for row in rows]
            states[position, rank] = np.stack([none_D if part is None else part.states[place] for part in parts])
        return completion_batch(
            answers,
            states=by_name(states, self.states),
            state_dtype=self.state_dtype,
            num_token_logprobs=self.num_token_logprobs,
        )

    def _answered(self, row: EngineRow) -> AnsweredRow:
        """A row that has ended, with its answer, which is its part of rank 1."""
        options, scoring = row.given.request.options, row.scoring
        if scoring is not None and row.given.request.in_pairs:
            lengths = [len(tokens) for tokens in row.given.options or []]
            scores, num_tokens = scoring.scores(normalise=False), len(row.given.prompt)
            return in_pairs.answered(row.given.request, scores, num_prompt_tokens=num_tokens, lengths=lengths)
        if scoring is None:
            row.by_rank[1] = row.parts[0]
        if options is not None and not row.given.request.is_drawn:
            row.text = options[row.choice]
        part, normalise = row.by_rank[1], self.normalise_options
        return AnsweredRow(
            row_id=row.given.request.row_id,
            completion=row.text,
            num_prompt_tokens=len(row.given.prompt),
            num_output_tokens=len(part.tokens),
            truncated=row.truncated,
            mean_logprob=part.logprob / len(part.tokens) if part.tokens else None,
            token_logprobs=part.logprobs,
            margins=part.margins,
            negentropies=part.negentropies,
            option_logprobs=row.letters if scoring is None else scoring.scores(normalise=False),
            option_scores=row.letters if scoring is None else scoring.chosen_by(row.given, normalise=normalise),
            given_option=row.given.choice,
        )
