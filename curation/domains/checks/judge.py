"""The check by a judge: a model chooses between two words, one for right and one for wrong.

The model is that of the section ``judge``, which the stage :class:`curation.stages.signal.JudgeByChoice` asks. If no
stage can ask it (votes of several answers, the teacher's own rollouts of gold arms), normalised texts are compared.
"""

import difflib
from collections.abc import Mapping

from curation.domains.checks.rules import Normalised
from curation.domains.templates import Template
from curation.errors import ConfigError

KEY = "check.judge"
FIELDS = ("prompt", "reference", "answer")
"""Names that the template may read."""
PROMPT = """Task:
{{ prompt }}
{% if reference is defined %}
Reference answer:
{{ reference }}
{% endif %}
Answer to judge:
{{ answer }}

Is the answer to judge right{% if reference is defined %} by the reference answer{% endif %}? Reply with yes or no.
Reply:"""


class JudgeCheck(Normalised):
    """A check that asks a judge about each completion; called directly, it compares normalised texts.

    Args:
        prompt: a Jinja template over ``prompt`` (what the teacher was asked), ``reference`` and ``answer``.
        right: the word that says right.
        wrong: the word that says wrong.

    Raises:
        ConfigError: the template is wrong, reads another name or not ``answer``, or a word is none, or both are equal.
    """

    def __init__(self, *, prompt: str = PROMPT, right: str = "yes", wrong: str = "no") -> None:
        self._template = Template(prompt, key=f"{KEY}.prompt")
        for name in self._template.columns:
            if name not in FIELDS:
                near = difflib.get_close_matches(name, FIELDS, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"{KEY}.prompt: reads {name!r}, and it has {', '.join(FIELDS)} alone{hint}")
        if "answer" not in self._template.columns:
            raise ConfigError(
                f"{KEY}.prompt: does not read the answer, so that all answers to a row would have one verdict; put "
                "{{ answer }} in it"
            )
        for name, word in (("right", right), ("wrong", wrong)):
            if not isinstance(word, str) or not word or word != word.strip():
                raise ConfigError(
                    f"{KEY}.{name}: {word!r} is not a word; give a text without white space around it, in quotation "
                    'marks, e.g. "yes"'
                )
        if right.lower() == wrong.lower():
            raise ConfigError(f"{KEY}.wrong: {wrong!r} is also the word for right; give another one")
        self._words = right, wrong

    def question(self, prompt: str, reference: str | None, answer: str) -> str:
        """Return the judge's prompt about an answer; without ``reference``, the template lacks that name.

        Raises:
            RowError: as :meth:`curation.domains.templates.Template.render`.
        """
        fields: Mapping[str, object] = {"prompt": prompt, "answer": answer}
        return self._template.render(fields if reference is None else {**fields, "reference": reference})

    def options(self, question: str) -> tuple[str, str]:
        """Return the words for right and wrong as they continue a prompt: after a space, unless it ends in one."""
        space = "" if question[-1:].isspace() else " "
        right, wrong = self._words
        return f"{space}{right}", f"{space}{wrong}"
