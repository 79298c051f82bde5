"""Calibration by content-free prompts (Zhao, Wallace, Feng, Klein, Singh, "Calibrate Before Use", 2021).

A model likes some options better than others whatever the text is: those that are frequent, or that stand last. How
much is seen where the text has no content. The options' scores on such prompts, averaged as probabilities, are
subtracted from those of each row before the likeliest option is chosen: the paper's diagonal matrix, in logarithms.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation.config import DecodingConfig
from curation.errors import ConfigError
from curation.teachers import Request, Teacher
from curation.teachers.wrapped import Wrapped

_Asked = tuple[tuple[str, ...], tuple[str, ...], bool]
"""Content-free prompts and options, and whether these stand in pairs."""


def baselines(scores: Sequence[Sequence[float]], *, in_pairs: bool = False) -> tuple[float, ...]:
    """The logarithm of each option's mean probability among the options, over some prompts.

    Args:
        scores: the options' log-probabilities after each prompt.
        in_pairs: an option's probability is that among the two of its pair.
    """
    score_PC: npt.NDArray[np.float64] = np.asarray(scores, dtype=np.float64)
    score_PQC = score_PC.reshape(len(score_PC), -1, 2) if in_pairs else score_PC[:, None]
    score_PQC = score_PQC - score_PQC.max(axis=2, keepdims=True)
    share_PQC = np.exp(score_PQC) / np.exp(score_PQC).sum(axis=2, keepdims=True)
    with np.errstate(divide="ignore"):  # an option that is impossible whatever the text is
        found: list[float] = np.log(share_PQC.mean(axis=0)).reshape(-1).tolist()
    return tuple(found)


class ContentFree(Wrapped):
    """The same teacher, which asks the content-free prompts of its requests once, before the first of them."""

    def __init__(self, teacher: Teacher) -> None:
        super().__init__(teacher)
        self._known: dict[_Asked, tuple[float, ...]] = {}

    def baselines_of(self, request: Request) -> tuple[float, ...] | None:
        """Scores that were subtracted from those of an answered request's options; ``None`` where none were."""
        return self._known.get(_asked_of(request))

    def label(self, requests: Iterable[Request], decoding: DecodingConfig, **how: Any) -> Iterator[pa.RecordBatch]:
        """The teacher's answers (see ``Teacher.label``).

        Raises:
            ConfigError: the teacher cannot answer a content-free prompt.
        """
        rows = list(requests)
        for asked in dict.fromkeys(_asked_of(row) for row in rows if row.content_free):
            if asked not in self._known:
                self._known[asked] = self._asked(*asked, decoding, how["seed"])
        rows = [replace(row, baselines=self._known[_asked_of(row)]) if row.content_free else row for row in rows]
        yield from super().label(rows, decoding, **how)

    def _asked(
        self, prompts: tuple[str, ...], options: tuple[str, ...], in_pairs: bool, decoding: DecodingConfig, seed: int
    ) -> tuple[float, ...]:
        plain = [Request(row_id=-1 - place, prompt=prompt, options=options) for place, prompt in enumerate(prompts)]
        answers = pa.Table.from_batches(list(self.teacher.label(plain, decoding, seed=seed, states=False)))
        if problems := answers["error"].drop_null().to_pylist():
            raise ConfigError(f"domain.calibrate: a prompt without a text cannot be answered: {problems[0]}")
        return baselines(answers["option_logprobs"].to_pylist(), in_pairs=in_pairs)


def _asked_of(row: Request) -> _Asked:
    return row.content_free, row.options or (), row.in_pairs
