"""Pairs of answers to one prompt: which of the two is better.

Not one of the paper's tasks. A labelled row has the better answer in one column and the worse one in another; an
unlabelled row has its two answers in columns that say nothing of them. The teacher is shown both and scores the words
"A" and "B"; or, without a question, the better answer is the one that is likelier after the prompt. The label is
``first`` or ``second``, a column of the example. Answers whose columns say which is better are ordered by a hash of
their texts, so that the order does not tell; others keep the order of their columns.
"""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal, Self

import pyarrow as pa

from curation.config.base import check_arguments
from curation.config.external import Column
from curation.config.inputs import DomainTraits, make_greedy_defaults
from curation.domains import Domain, Example, Identity, Preference, format_cell, plain_identity
from curation.domains.templates import Template
from curation.errors import ConfigError, RowError
from curation.escaping import quote_text
from curation.json_types import Json
from curation.label_columns import ORDER_AGREEMENT

FIRST, SECOND = "first", "second"
"""The labels, which are columns of the example."""
CUE = "The better answer is"
_LETTERS = {FIRST: "A", SECOND: "B"}
_OTHER = {FIRST: SECOND, SECOND: FIRST}


class AnswerPair(Domain):
    """The domain of pairs of answers.

    Args:
        prompt: the column with the prompt, or a Jinja template over columns, with ``{{ }}`` in it, in a sandbox
            (:mod:`curation.domains.templates`).
        chosen: the column with the better answer of labelled rows.
        rejected: the column with the worse answer of labelled rows.
        first: the column with an answer, in rows without these two.
        second: the column with the other answer, in rows without these two.
        preferred: of such rows, where they are labelled, the column that says which is better: ``first``, ``second``,
            or the name of its column.
        by: ``judge``: a model is shown both answers and asked which is better; ``likelihood``: the better answer is the
            one that is likelier after the prompt, by the sum of its tokens' log-probabilities
            (``decoding.normalise_options: false``) or their mean.
        both_orders: ask a judge about both orders of the answers, which takes twice the time; the second answer is the
            number ``order_agreement`` (:mod:`curation.stages.label_chunks`), and the first one the label.
        guidelines: the first paragraph of the question: what makes an answer better.
    """

    name = "pair"
    columns = pa.schema([("question", pa.string()), (FIRST, pa.string()), (SECOND, pa.string())])
    defaults = make_greedy_defaults(8, "world_knowledge", stop=("\n",))
    answering = "scored"

    @classmethod
    def traits(cls, options: Mapping[str, object]) -> DomainTraits:
        """Return the traits of the domain, whose labels have no ``order_agreement`` if one order is asked."""
        is_once = options.get("both_orders") is False or options.get("by") == "likelihood"
        numbers = () if is_once else (ORDER_AGREEMENT,)
        once = {"both_orders": False} if cls is AnswerPair else {}  # a subclass need not take the option
        return super().traits(options)._replace(numbers=numbers, once=once)

    @check_arguments
    def __init__(
        self,
        *,
        prompt: Column = "prompt",
        chosen: Column = "chosen",
        rejected: Column = "rejected",
        first: Column = FIRST,
        second: Column = SECOND,
        preferred: Column = "preferred",
        by: Literal["judge", "likelihood"] = "judge",
        both_orders: bool = True,
        guidelines: str = "",
    ) -> None:
        self._template = Template(prompt, key="domain.prompt") if "{{" in prompt else None
        self._prompt, self._open, self._preferred = prompt, (first, second), preferred
        self._ordered: tuple[str, ...] = (chosen, rejected)
        texts = (prompt,) if self._template is None else self._template.columns
        for keys, names in (
            ("chosen and rejected", (chosen, rejected)),
            ("first, second and preferred", (first, second, preferred)),
        ):
            if len({*names, *texts}) < len(names) + len(texts):
                raise ConfigError(
                    f"domain.{keys}: {', '.join(names)}, beside the columns {', '.join(texts)} of domain.prompt: name "
                    "columns of their own, since an answer is no part of a prompt and the teacher sees no preference"
                )
        self._by = by
        self.head = guidelines.strip() if by == "judge" else ""
        self.both_orders = both_orders and by == "judge"
        self.forms = ((*texts, chosen, rejected), (*texts, first, second))

    def read(self, raw: Mapping[str, object]) -> Json:
        """Return the prompt and both answers, ordered by a hash for a row with ``chosen``, else by the columns."""
        question, one, other = self._read_texts(raw)
        if self._is_ordered(raw) and _is_chosen_second(question, one, other):
            one, other = other, one
        return {"question": question, FIRST: one, SECOND: other}

    def gold(self, raw: Mapping[str, object]) -> str | None:
        """Return the place of the chosen or preferred answer; ``None`` for an unlabelled row."""
        if self._is_ordered(raw):
            return SECOND if _is_chosen_second(*self._read_texts(raw)) else FIRST
        if (value := raw.get(self._preferred)) is None:
            return None
        label = {FIRST: FIRST, SECOND: SECOND, **dict(zip(self._open, _LETTERS, strict=True))}.get(format_cell(value))
        if label is None:
            raise RowError(f"bad_label: {quote_text(format_cell(value))} is neither {FIRST} nor {SECOND}")
        return label

    def _is_ordered(self, raw: Mapping[str, object]) -> bool:
        """Return whether ``chosen`` and ``rejected`` are used: not if they are empty and the other two are not."""
        if not self._ordered or not all(name in raw for name in self._ordered):
            return False
        return _has_any(raw, self._ordered) or not _has_any(raw, self._open)

    def _read_texts(self, raw: Mapping[str, object]) -> tuple[str, str, str]:
        """Return the prompt, and the row's answers in the order of their columns."""
        if self._template is None:
            question = _read_text(self._prompt, raw[self._prompt])
        elif not (question := self._template.render(raw).strip()):
            raise RowError("null_field: the prompt is empty")
        names = self._ordered if self._is_ordered(raw) else self._open
        one, other = (_read_text(name, raw[name]) for name in names)
        if one.split() == other.split():
            raise RowError(f"same_answers: {' and '.join(names)} hold the same answer, of which none is better")
        return question, one, other

    def question(self, example: Example) -> str:
        """Return the row's prompt, both answers and the cue; if compared by likelihood, the row's prompt alone."""
        if self._by == "likelihood":
            return str(example["question"])
        answers = [f"Answer {letter}: {example[place]}" for place, letter in _LETTERS.items()]
        return "\n\n".join([f"Question: {example['question']}", *answers, CUE])

    def identity(self, example: Example) -> Identity:
        """Return the prompt and the two answers, whatever their order and the way they are compared."""
        return plain_identity(example["question"], (example[FIRST], example[SECOND]))

    def options(self, example: Example) -> tuple[str, ...]:
        """Return a space and "A" or "B" or, by likelihood, the two answers."""
        return tuple(self.answer(label, example) for label in _LETTERS)

    def answer(self, label: str, example: Example) -> str:
        """Return a space and the label's letter or, by likelihood, its answer, with a space if one is missing."""
        if self._by == "judge":
            return f" {_LETTERS[label]}"
        return format_continuation(str(example["question"]), str(example[label]))

    def parse(self, completion: str, example: Example) -> str | None:
        """Return the label of the answer that the completion states, up to white space; ``None`` if neither."""
        stated = completion.split()
        return next((label for label in _LETTERS if self.answer(label, example).split() == stated), None)

    def other_order(self, label: str, example: Example) -> tuple[str, Json]:
        """Return a label and its example with the two answers in the other order."""
        return _OTHER[label], {**example, FIRST: example[SECOND], SECOND: example[FIRST]}

    def unordered(self) -> Self:
        """Return the domain for given labels that name a place: for rows with ``first`` and ``second`` alone.

        Such a label names a column, while ``chosen`` and ``rejected`` are shown in an order of their own. By
        likelihood, a label is an answer's text, so order does not matter and rows of both forms are read.
        """
        if self._by == "likelihood":
            return self
        other = copy.copy(self)
        other._ordered, other.forms = (), self.forms[1:]
        return other

    def preference(self, label: str, example: Example) -> Preference:
        """Return the pair for training, with the answer at ``label`` as the better one."""
        return Preference(str(example["question"]), str(example[label]), str(example[_OTHER[label]]))


def format_continuation(prompt: str, answer: str) -> str:
    """Return an answer as it continues its prompt: after a space, unless the prompt ends in white space."""
    return answer if prompt[-1:].isspace() else f" {answer}"


def _is_chosen_second(question: str, chosen: str, rejected: str) -> bool:
    """Return whether the chosen answer is shown second: by hashes of both, which do not say which of them is chosen."""
    one, other = (hashlib.sha256(f"{question}\n{answer}".encode()).digest() for answer in (chosen, rejected))
    return one > other


def _has_any(raw: Mapping[str, object], names: Sequence[str]) -> bool:
    return any((value := raw.get(name)) is not None and format_cell(value, name) for name in names)


def _read_text(name: str, value: object) -> str:
    if value is None or not (text := format_cell(value, name)):
        raise RowError(f"null_field: {name} is empty")
    return text
