"""Teachers without weights: a scripted one, and one for labels made elsewhere.

The scripted one has any speed, and faults on demand, for tests, dry runs and engine timings.
"""

import heapq
import math
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curation.config import AskConfig, DecodingConfig, ScriptedConfig
from curation.config.states import parse
from curation.hashing import hash64, hash_unit
from curation.json_types import Json
from curation.refs import ModelRef
from curation.teachers import Gate, Request, Teacher
from curation.teachers.completions import (
    AnsweredRow,
    Array,
    OfTokens,
    completion_batch,
    error_batch,
    find_options_problem,
    make_paired_row,
    prompt_batch,
    rank_options,
    subtract_baselines,
)

_BATCH_ROWS = 256
_SLOW_BATCH_ROWS = 8
GIVEN_BATCH_ROWS = 1024

OTHER_WORDS = 1_000  # number of other words in the vocabulary at each step of an answer


class ScriptedTeacher(Teacher):
    """A teacher that chooses completions, options and states by a hash of the row id, with ``ScriptedConfig``'s faults.

    Words count as tokens. Each has the row's own log-probability, and ``OTHER_WORDS`` others share the rest evenly.
    Among options the chosen one has that log-probability, and each other one a score that is 1 less.
    """

    def __init__(self, config: AskConfig, model: ModelRef | None = None) -> None:
        self._script: ScriptedConfig = config.scripted
        time.sleep(self._script.start_seconds)
        self._ask(config)
        self._poison, self._failing = frozenset(self._script.poison_rows), frozenset(self._script.error_rows)
        self.state_size = self.width(config)
        self.slots = self._script.slots  # number of rows that are answered concurrently
        self._free, self._lock = [0.0] * (self.slots or 0), threading.Lock()
        """Heap of the times at which the slots become free."""
        self._direction_D = np.random.default_rng(0).normal(size=self.state_size).astype(np.float32)

    @staticmethod
    def engine_key(config: AskConfig) -> Json:
        """Return the script."""
        return config.scripted.model_dump(mode="json")

    @staticmethod
    def width(config: AskConfig) -> int:
        """Return the width of a hidden state."""
        return config.scripted.state_size

    def label(
        self,
        requests: Iterable[Request],
        decoding: DecodingConfig,
        *,
        seed: int,
        states: bool = True,
        gate: Gate | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of up to 256 scripted completions (see ``Teacher.label``)."""
        config = self._config if states else self._config.model_copy(update=AskConfig.BARE)
        stream = iter(requests) if self.slots is None else self._iter_ended(list(requests))
        is_slow = self._script.seconds_per_row or self._script.seconds_per_answer
        num_rows = _SLOW_BATCH_ROWS if is_slow else _BATCH_ROWS
        while batch := list(islice(stream, num_rows)):
            bad, stopped, healthy = dict[int, str](), dict[int, int](), list[Request]()
            for request in batch:
                self._crash(request.row_id)
                of = request.options
                problem = None if of is None else find_options_problem(of, [len(option.split()) for option in of])
                if problem is None:
                    healthy.append(request)
                else:
                    bad[request.row_id] = problem
            if gate is not None:
                ids = [request.row_id for request in healthy]
                lengths = [len(request.prompt.split()) for request in healthy]
                of_prompts = self._make_states(healthy, gate.states, seed)
                passes_N = gate(prompt_batch(ids, lengths, of_prompts, self._config.state_dtype))
                asked = list(zip(healthy, lengths, passes_N, strict=True))
                stopped = {request.row_id: length for request, length, passes in asked if not passes}
                healthy = [request for request, _, passes in asked if passes]
            completed = self._complete(healthy, config, seed, normalise=decoding.normalise_options)
            seconds = self._script.seconds_per_row * len(batch)
            if self._script.seconds_per_token:
                counts = (pc.sum(completed.column(f"num_{kind}_tokens")).as_py() or 0 for kind in ("prompt", "output"))
                seconds += self._script.seconds_per_token * sum(counts)
            if seconds:
                time.sleep(seconds)
            if self._script.log is not None:
                # One write of an append-only descriptor: lines of several actors never mix.
                descriptor = os.open(self._script.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                os.write(descriptor, "".join(f"{request.row_id}\n" for request in batch).encode())
                os.close(descriptor)
            if bad or stopped:
                yield error_batch(bad, config, self.state_size, stopped=stopped)
            yield completed

    def _iter_ended(self, requests: list[Request]) -> Iterator[Request]:
        """Yield each request when its answer ends; all calls share the slots."""
        ends = []
        with self._lock:
            for _ in requests:
                end = max(time.monotonic(), heapq.heappop(self._free)) + self._script.seconds_per_answer
                heapq.heappush(self._free, end)
                ends.append(end)
        for request, end in zip(requests, ends, strict=True):
            time.sleep(max(0.0, end - time.monotonic()))
            yield request

    def _make_states(self, batch: list[Request], names: tuple[str, ...], seed: int) -> dict[str, Array]:
        """Return the named states of N rows, float32 [N, D]."""
        unit_N = hash_unit(np.array([request.row_id for request in batch], dtype=np.int64), seed).astype(np.float32)
        states: dict[str, Array] = {}
        for name in names:
            has_N = np.array([parse(name).rank <= len(request.options or ("",)) for request in batch], dtype=bool)
            place = np.float32(self._config.states.index(name))
            states[name] = (unit_N[:, None] + place) * self._direction_D * has_N[:, None]
        return states

    def _complete(self, batch: list[Request], config: AskConfig, seed: int, *, normalise: bool) -> pa.RecordBatch:
        ids_N = np.array([request.row_id for request in batch], dtype=np.int64)
        unit_N = hash_unit(ids_N, seed).astype(np.float32)
        drawn = zip(batch, hash64(ids_N, seed).tolist(), np.log(unit_N + 1e-6).tolist(), strict=True)
        rows = [self._make_answered_row(*of_row, normalise=normalise) for of_row in drawn]
        return completion_batch(
            [row._replace(error="scripted: asked for") if row.row_id in self._failing else row for row in rows],
            states=self._make_states(batch, config.states, seed),
            state_dtype=config.state_dtype,
            num_token_logprobs=config.token_logprobs,
        )

    def _make_answered_row(self, request: Request, number: int, mean: float, *, normalise: bool) -> AnsweredRow:
        """Return the row with the text that ``number`` chooses; each of its words has the log-probability ``mean``.

        With baselines, the chosen option is the likeliest after they are subtracted from scores of 1 for the option of
        ``number`` and 0 for the others.
        """
        if request.in_pairs:  # the bits of ``number`` are the answers, each likelier by 1 to 2 than its opposite
            options, gap = request.options or (), 1 + math.exp(mean)
            yes = [(number >> question % 64) & 1 for question in range(len(options) // 2)]
            pair_scores = [mean - gap * (place % 2 == yes[place // 2]) for place in range(len(options))]
            lengths, num_prompt = [len(option.split()) for option in options], len(request.prompt.split())
            return make_paired_row(request, pair_scores, num_prompt_tokens=num_prompt, lengths=lengths)
        texts = self._script.completions if request.options is None else request.options
        choice = number % len(texts)
        if request.baselines is not None and not request.is_drawn:
            likelier = [float(place == choice) for place in range(len(request.baselines))]
            choice = rank_options(subtract_baselines(likelier, request.baselines))[0]
        num_words = len(texts[choice].split())
        sums = scores = None
        if request.options is not None and not request.is_drawn:
            sums = scores = [mean * num_words - (place != choice) for place in range(len(texts))]
            if normalise:
                scores = [mean - (place != choice) for place in range(len(texts))]
                sums = [one * len(option.split()) for one, option in zip(scores, texts, strict=True)]
        rest = max(-math.expm1(mean), 1e-6)  # of the probability, for OTHER_WORDS
        other = math.log(rest / OTHER_WORDS)
        margin, negentropy = max(mean - other, 0.0), (1 - rest) * mean + rest * other
        return AnsweredRow(
            row_id=request.row_id,
            completion=texts[choice],
            num_prompt_tokens=len(request.prompt.split()),
            num_output_tokens=num_words,
            truncated=False,
            mean_logprob=mean,
            token_logprobs=[mean] * num_words,
            margins=OfTokens.of([margin] * num_words),
            negentropies=OfTokens.of([negentropy] * num_words),
            option_logprobs=sums,
            option_scores=scores,
        )

    def _crash(self, row_id: int) -> None:
        if row_id in self._poison:
            os.kill(os.getpid(), signal.SIGKILL)
        if row_id in self._script.hang_rows:
            threading.Event().wait()
        if row_id not in self._script.crash_rows or self._script.log is None:
            return
        try:
            Path(f"{self._script.log}.crashed-{row_id}").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class GivenTeacher(Teacher):
    """A teacher that returns the rows' own completions, without log-probabilities, numbers of tokens and states."""

    def __init__(self, config: AskConfig, model: ModelRef | None = None) -> None:
        self._ask(config)

    def label(  # type: ignore[override]
        self, requests: Iterable[Request], decoding: DecodingConfig, *, seed: int, states: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of up to 1,024 given completions (see ``Teacher.label``); a row without one is an error row."""
        stream = iter(requests)
        missing = "no_completion: no label came with the row"
        while batch := list(islice(stream, GIVEN_BATCH_ROWS)):
            rows = [AnsweredRow(row.row_id, row.given, error=missing if row.given is None else None) for row in batch]
            yield completion_batch(rows, states={}, state_dtype=self._config.state_dtype)
