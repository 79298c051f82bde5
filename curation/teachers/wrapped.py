"""The wrapper of a teacher that passes ask, which counts tokens and finds the baselines of options.

A model prefers some options whatever the text is, such as frequent ones or the last one. Texts without content show
how much (Zhao, Wallace, Feng, Klein, Singh, "Calibrate Before Use", 2021). The options' scores on such prompts,
averaged as probabilities, are subtracted from those of each row before the likeliest option is chosen: the paper's
diagonal matrix, in logarithms.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from curation.config import AskConfig, DecodingConfig
from curation.errors import ConfigError
from curation.json_types import Json
from curation.teachers import Gate, Request, Teacher


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Tokens read and written by a teacher."""

    prompt: int = 0
    output: int = 0


_Asked = tuple[tuple[str, ...], tuple[str, ...], bool]  # baseline prompts, options, and whether the options form pairs


def compute_baselines(scores: Sequence[Sequence[float]], *, in_pairs: bool = False) -> tuple[float, ...]:
    """Return the logarithm of each option's probability among the options, averaged over prompts.

    ``scores`` are the options' log-probabilities after each prompt; ``in_pairs`` takes them among the two of a pair.
    """
    score_PC: npt.NDArray[np.float64] = np.asarray(scores, dtype=np.float64)
    score_PQC = score_PC.reshape(len(score_PC), -1, 2) if in_pairs else score_PC[:, None]
    score_PQC = score_PQC - score_PQC.max(axis=2, keepdims=True)
    share_PQC = np.exp(score_PQC) / np.exp(score_PQC).sum(axis=2, keepdims=True)
    with np.errstate(divide="ignore"):  # an option that is impossible whatever the text is
        found: list[float] = np.log(share_PQC.mean(axis=0)).reshape(-1).tolist()
    return tuple(found)


class WrappedTeacher(Teacher):
    """A teacher as passes ask it: it counts tokens, and finds the baselines of options before it asks about a row."""

    def __init__(self, teacher: Teacher) -> None:
        self.teacher = teacher
        self.state_size, self.facts = teacher.state_size, teacher.facts
        self._tokens = Tokens()
        self._lock = threading.Lock()
        self._known: dict[_Asked, tuple[float, ...]] = {}

    def asked(self, config: AskConfig) -> Self:
        """Return a new wrapper, with its own state, of the teacher that follows ``config``."""
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
        """Yield the teacher's answers (see ``Teacher.label``), passing ``gate`` on only if it is set.

        Each set of baseline prompts is asked once, before its first request.

        Raises:
            ConfigError: the teacher cannot answer a baseline prompt.
        """
        rows = list(requests)
        for place, row in enumerate(rows):
            if row.baseline_prompts:
                if (asked := _make_asked(row)) not in self._known:
                    self._known[asked] = self._find_baselines(*asked, decoding, seed)
                rows[place] = replace(row, baselines=self._known[asked])
        how: Json = {} if gate is None else {"gate": gate}
        yield from self._count(self.teacher.label(rows, decoding, seed=seed, states=states, **how))

    def baselines_of(self, request: Request) -> tuple[float, ...] | None:
        """Return the baselines of an answered request's options, or ``None`` if it has none."""
        return self._known.get(_make_asked(request))

    def take(self) -> Tokens:
        """Return the tokens counted since the last call, those of baseline prompts included."""
        with self._lock:
            taken, self._tokens = self._tokens, Tokens()
        return taken

    def _find_baselines(
        self, prompts: tuple[str, ...], options: tuple[str, ...], in_pairs: bool, decoding: DecodingConfig, seed: int
    ) -> tuple[float, ...]:
        plain = [Request(row_id=-1 - place, prompt=prompt, options=options) for place, prompt in enumerate(prompts)]
        answers = pa.Table.from_batches(self._count(self.teacher.label(plain, decoding, seed=seed, states=False)))
        if problems := answers["error"].drop_null().to_pylist():
            raise ConfigError(f"domain: a prompt by which options are calibrated cannot be answered: {problems[0]}")
        return compute_baselines(answers["option_logprobs"].to_pylist(), in_pairs=in_pairs)

    def _count(self, answers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in answers:
            prompt, output = (pc.sum(batch.column(f"num_{kind}_tokens")).as_py() or 0 for kind in ("prompt", "output"))
            with self._lock:
                self._tokens = Tokens(prompt=self._tokens.prompt + prompt, output=self._tokens.output + output)
            yield batch


def _make_asked(row: Request) -> _Asked:
    return row.baseline_prompts, row.options or (), row.in_pairs
