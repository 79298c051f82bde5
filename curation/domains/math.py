r"""Mathematics with a final answer (paper, App. "Evaluation Details", quantitative reasoning).

The label is the last ``\boxed{}`` expression of the teacher's solution. Two labels are equal if
:mod:`curation.domains.equivalence` finds them equivalent. The paper leaves open, and we chose: the prompt, and that a
solution whose last box is incomplete is unparsed. Rows have the published formats of MATH, MATH-500, GSM8K, Omni-MATH
and AIME, or the columns ``problem`` and ``answer``.
"""

import re
from collections.abc import Mapping, Sequence
from numbers import Number
from types import MappingProxyType
from typing import Annotated, ClassVar

import pyarrow as pa
from pydantic import Field

from curation.config.base import check_arguments
from curation.config.inputs import Defaults
from curation.domains import Domain, Example, Identity, attempt, format_cell
from curation.domains.equivalence.latex import strip_markdown
from curation.domains.equivalence.process import compare
from curation.domains.identity import normalise_unicode
from curation.errors import RowError
from curation.escaping import quote_text
from curation.json_types import Json

INSTRUCTION = r"Solve the problem. Reason step by step, and put the final answer within \boxed{}."
CUE = "Solution:"
_LONG = {"max_tokens": 4096, "stop": ()}
_SAMPLED = {"temperature": 0.6, "top_p": 0.8, "top_k": 20, "min_p": 0.0, "presence_penalty": 1.5}

_PROBLEMS = ("problem", "Problem", "question", "Question")
_ANSWERS = ("answer", "Answer")
_SOLUTIONS = ("solution", "Solution")
_LEVELS = ("level", "difficulty", "Problem Number")
_TOKEN = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*|\\.|[{}]", re.DOTALL)
_BARE = re.compile(r"[^\s${}\\]{1,100}")
_SAME_LATEX = re.compile(
    r"\\(?:([dt])frac(?![a-zA-Z])|(?:left|right|quad|qquad|displaystyle)(?![a-zA-Z])|[,;:! ()\[\]])|[$~]"
)
"""Commands that delimit, space or size a formula, without a meaning of their own."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_STATED = re.compile(
    r"(?i)(?:\b(?:answer|ans\.?|antwort|réponse|respuesta|resposta|risposta|ответ)|答案|答え|정답)[*_]*"
    r"\s*(?:(?:is|ist|est|es|é|è)\b|[是为はは은:\uff1a=])[\s:\uff1a=]*(?:[*_]+ )?(.+?)\s*(?:[.。]\s*\Z|[.。]\s|\n|\Z)"
)
_FORMULAS = re.compile(r"\$[^$]*\$|\\\(.*?\\\)|\\\[.*?\\\]|\\[a-zA-Z]+\s*(?:\{[^{}]*\})?", re.DOTALL)
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]{2}|[^\W\d_\u3040-\u30ff\u3400-\u9fff]{2,}")
"""A word; in Chinese and Japanese, which have no spaces, two characters."""
PROSE_WORDS = 6
"""Minimum number of words outside formulas that makes an answer prose (our choice)."""


class Math(Domain):
    """The math domain: a problem in words and LaTeX, solved freely, with the final answer in a box.

    Args:
        timeout: seconds for the comparison of two answers; after that they count as unequal.
        instruction: the text before the problem; empty for models that were trained without one.
        problem: the column with the problem, if it has none of the published names.
        answer: the column with the answer, likewise.
    """

    name = "math"
    forms = tuple((problem,) for problem in _PROBLEMS)
    columns = pa.schema([("problem", pa.string()), ("difficulty", pa.float64())])
    defaults: ClassVar[Defaults] = MappingProxyType(
        {
            "teacher": {"decoding": {**_LONG, "temperature": 0.0}},
            "evaluation": {"decoding": {**_LONG, **_SAMPLED}, "num_runs": 5},
            "trust": {"preset": "quantitative_reasoning"},
        }
    )
    answering = "reasoned"

    @check_arguments
    def __init__(
        self,
        *,
        timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5.0,
        instruction: str = INSTRUCTION,
        problem: str | None = None,
        answer: str | None = None,
    ) -> None:
        self.head, self._timeout = instruction, timeout
        self._problems = _PROBLEMS if problem is None else (problem,)
        self._answers = _ANSWERS if answer is None else (answer,)
        if problem is not None:
            self.forms = ((problem,),)

    def read(self, raw: Mapping[str, object]) -> Json:
        """Return the problem, and the row's own level, difficulty or number in its contest, if any."""
        problem = _read_text(raw, self._problems)
        if not problem:
            raise RowError("null_field: the problem is empty")
        level = _NUMBER.search(_read_text(raw, _LEVELS))  # "Level 3", 3, 3.5; MATH has "Level ?" too
        return {"problem": problem, "difficulty": float(level[0]) if level else None}

    def gold(self, raw: Mapping[str, object]) -> str | None:
        """Return the row's answer, else the last box of its solution; ``None`` without either.

        If the answer is a worked solution, take what follows ``####``, the last box, or what "the answer is".
        ``RowError``: ``no_box``; ``bad_value`` of a value of another type, or prose that states no answer.
        """
        answer = _read_text(raw, self._answers).rpartition("####")[2].strip()
        if answer:
            return _find_answer(answer)
        solution = _read_text(raw, _SOLUTIONS)
        if not solution:
            return None
        if (box := find_last_box(solution)) is None:
            raise RowError(f"no_box: the solution ends in {solution[-60:]!r} and boxes no answer")
        return box

    def solution(self, raw: Mapping[str, object]) -> str | None:
        """Return the solution, or GSM8K's reasoning without calculator notes, with a sentence that boxes the answer."""
        answer = _read_text(raw, self._answers)
        reasoning, marked, final = answer.rpartition("####")
        if not marked and len(_find_words(final)) >= PROSE_WORDS:
            reasoning = answer  # the answer is a worked solution
        text = _read_text(raw, _SOLUTIONS) or re.sub(r"<<[^<>]*>>", "", reasoning).strip()
        if not text or (gold := self.gold(raw)) is None:
            return None
        return f" {text}" if find_last_box(text) else f" {text}{self.answer(gold, {})}"

    def question(self, example: Example) -> str:
        """Return the problem and the cue."""
        return f"Problem: {example['problem']}\n{CUE}"

    def identity(self, example: Example) -> Identity:
        r"""Return the problem without white space, letter case, LaTeX's spacing and sizing, and the final punctuation.

        Every operator, sign and digit stays: ``2+3`` is not ``2-3``, and ``2 3`` is not ``23``.
        """
        problem = normalise_unicode(example["problem"].replace(r"\$", "$").replace(r"\\", "¶"))
        problem = _SAME_LATEX.sub(lambda found: r"\frac" if found[1] else " ", problem)
        words = " ".join(re.sub(r"[.?:;,\s]+$", "", problem).casefold().split())
        return Identity(re.sub(r" ?([^\w\s]) ?", r"\1", words))

    def answer(self, label: str, example: Example) -> str:
        """Return a closing sentence with the label in a box, without any reasoning."""
        return rf" The final answer is \boxed{{{label}}}."

    def parse(self, completion: str, example: Example) -> str | None:
        """Return the expression in the last box, or ``None`` if there is none or the last is empty or incomplete."""
        return find_last_box(completion)

    def restated(self, text: str) -> str | None:
        """Return a text without a box as a completion that boxes the answer that it states or is, or ``None``."""
        reasoning, marked, final = text.rpartition("####")
        answer, _ = attempt(_find_answer, final.strip())
        if not answer or any(len(token) > 2 for token in _TOKEN.findall(text)):
            return None
        reasoning = reasoning.strip() if marked else text
        is_bare = not reasoning or _tidy(strip_markdown(reasoning)) == answer
        return self.answer(answer, {}) if is_bare else f" {reasoning}{self.answer(answer, {})}"

    def is_correct(self, label: str | None, gold: str) -> bool:
        """Return whether the labels are equivalent; ``RowError`` ``exploded`` if undecided within the limits."""
        right = label is not None and compare(label, gold, self._timeout)
        if right is None:
            raise RowError(f"exploded: {str(label)[:60]!r} and {gold[:60]!r} cannot be compared within the bounds")
        return right

    def difficulty(self, example: Example) -> float | None:
        """Return the row's own level: 1 to 5 in MATH, 1 to 9.5 in Omni-MATH, 1 to 15 in AIME; ``None`` if unknown."""
        level: float | None = example.get("difficulty")
        return level


def find_last_box(text: str) -> str | None:
    r"""Return the content of the last ``\boxed`` or ``\fbox`` of ``text`` (of nested ones the outer), in linear time.

    ``None`` if there is no box, or the last one is empty or does not close; ``\boxed 5`` takes the next word.
    """
    opened: list[bool] = []  # per open brace, whether it opens a box
    starts: list[int] = []  # of the open boxes
    last, box_at = (0, 0), -1
    for token in _TOKEN.finditer(text):
        at = token.start()
        if len(token[0]) > 2:
            box_at = token.end()
            if bare := _BARE.match(text, box_at):
                last = bare.span()
            elif text[box_at : box_at + 1] != "{":
                last = (box_at, box_at)
        elif token[0] == "{":
            opened.append(at == box_at)
            if at == box_at:
                starts.append(at + 1)
        elif token[0] == "}" and opened and opened.pop():
            last = (starts.pop(), at)
    if starts and starts[-1] >= last[1]:
        return None
    return text[slice(*last)].strip() or None


def _find_answer(answer: str) -> str:
    """Return the answer that a text is or states at last; ``RowError`` of other prose. Adjacent boxes form a list."""
    answer = strip_markdown(answer)
    boxes = sum(len(token) > 2 for token in _TOKEN.findall(answer))
    if (boxes == 1 or (boxes and _find_words(answer))) and (box := find_last_box(answer)):
        return strip_markdown(box)
    stated = [] if boxes else [found for found in _STATED.findall(answer) if found.count("{") == found.count("}")]
    if stated and len(_find_words(stated[-1])) < PROSE_WORDS:
        return _tidy(strip_markdown(stated[-1]))
    if len(_find_words(answer)) >= PROSE_WORDS:
        raise RowError(
            f"bad_value: the answer {quote_text(answer)} is prose that states no final answer, in a box or words"
        )
    return _tidy(answer)


def _find_words(text: str) -> list[str]:
    """Return the words outside formulas, without those that join the items of a list."""
    return [word for word in _WORD.findall(_FORMULAS.sub(" ", text)) if word.lower() not in ("and", "or")]


def _tidy(answer: str) -> str:
    """Return an answer without a trailing backslash and with its open braces closed."""
    answer = re.sub(r"(?<!\\)\\$", "", answer)
    plain = re.sub(r"\\.", "", answer, flags=re.DOTALL)
    return answer + "}" * (plain.count("{") - plain.count("}"))


def _read_text(raw: Mapping[str, object], names: Sequence[str]) -> str:
    """Return the first column that is not null as stripped text, or ""; ``RowError`` if it is no text or number."""
    name, value = next(((name, raw[name]) for name in names if raw.get(name) is not None), ("", ""))
    if isinstance(value, bool) or not isinstance(value, str | Number):
        raise RowError(f"bad_value: {name} is {type(value).__name__}, neither a text nor a number")
    return format_cell(value)
