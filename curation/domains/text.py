"""Free text by configuration: a prompt from a template, a reference answer in a column, and a check.

Not one of the paper's tasks. The label is the whole completion without white space around it. ``check`` says when it is
right (:mod:`curation.domains.checks`); a command is run by the grade stage, by rollouts and by rewards alone, and a
judge is asked by a stage of its own.
"""

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa

from curation.config.base import check_arguments
from curation.config.defaults import make_greedy_defaults
from curation.config.given import Column
from curation.domains import Domain, Example, format_cell
from curation.domains.checks import Equal, Pattern, Verdict, check_of
from curation.domains.checks.command import CommandCheck, Removed
from curation.domains.identity import normalise_prose
from curation.domains.templates import Template
from curation.errors import ConfigError, RowError
from curation.json_types import Json


class Text(Domain):
    """The domain of free text with a reference answer.

    Args:
        prompt: a Jinja template over the columns, in a sandbox (:mod:`curation.domains.templates`).
        reference: the column with the reference answer.
        check: how a completion is graded: ``equal``, ``normalised``, ``number``, ``regex``, ``json``, ``judge`` or
            ``command``, or a mapping of one of them to its options.
    """

    name = "text"
    columns = pa.schema([("question", pa.string()), ("fields", pa.string())])
    """``question``: the rendered prompt. ``fields``: the columns that the template reads, as a JSON object."""
    defaults = make_greedy_defaults(256, "quantitative_reasoning")
    answering = "written"

    @check_arguments
    def __init__(self, *, prompt: str, reference: Column, check: object = "equal") -> None:
        self._template, self._reference, self._check = Template(prompt, key="domain.prompt"), reference, check_of(check)
        if reference in self._template.columns:
            raise ConfigError(
                f"domain.prompt: reads {reference!r}, the column with the reference answer, so that the teacher would "
                "see it; take it out"
            )
        self.forms = (self._template.columns,)

    @property
    def checker(self) -> str | None:
        """A digest of the checking command and its files, or ``None``; ``ConfigError`` if one is missing."""
        return self._check.digest if isinstance(self._check, CommandCheck) else None

    @property
    def is_equality(self) -> bool:
        """Whether the rule is ``equal``."""
        return isinstance(self._check, Equal)

    def read(self, raw: Mapping[str, object]) -> Json:
        """Return the rendered prompt and the columns that it reads."""
        question = self._template.render(raw)
        if not question.strip():
            raise RowError("null_field: the prompt is empty")
        fields = {name: raw[name] for name in self._template.columns}
        return {"question": question, "fields": json.dumps(fields, default=str, ensure_ascii=False)}

    def gold(self, raw: Mapping[str, object]) -> str | None:
        """Return the reference answer, with lists, mappings and booleans as JSON; ``None`` if the row has none."""
        value = raw.get(self._reference)
        if value is None:
            return None
        is_json = isinstance(value, Mapping | list | bool)
        return json.dumps(value, default=str, ensure_ascii=False) if is_json else format_cell(value)

    def question(self, example: Example) -> str:
        """Return the rendered prompt."""
        return str(example["question"])

    def answer(self, label: str, example: Example) -> str:
        """Return the label, after a space unless the prompt ends in white space."""
        return label if str(example.get("question", ""))[-1:].isspace() else f" {label}"

    def is_correct(self, label: str | None, gold: str) -> bool:
        """Return whether the rule says right; for a command, which grades rows (:meth:`check`), whether texts agree."""
        if label is None:
            return False
        if isinstance(self._check, CommandCheck | Removed):
            return normalise_prose(label) == normalise_prose(gold)
        (verdict,) = self._check([label], [gold], [])
        if isinstance(verdict, RowError):
            raise verdict
        return verdict

    def gold_problem(self, gold: str, example: Example) -> str:
        """Return the domain's own reason, or "" if references are patterns or a program grades."""
        is_answer = not isinstance(self._check, Pattern | CommandCheck | Removed)
        return super().gold_problem(gold, example) if is_answer else ""

    def check(self, labels: Sequence[str | None], golds: Sequence[str], examples: Sequence[Example]) -> list[Verdict]:
        """Return a verdict for each row, by the rule or the command; an unparsed label is wrong."""
        asked = [place for place, label in enumerate(labels) if label is not None]
        rows = [json.loads(examples[place]["fields"]) for place in asked] if self._check.needs_rows else []
        verdicts = self._check([str(labels[place]) for place in asked], [golds[place] for place in asked], rows)
        by_place = dict(zip(asked, verdicts, strict=True))
        return [by_place.get(place, False) for place in range(len(labels))]
