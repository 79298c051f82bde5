"""The next token of another domain's texts (paper, App. "Other Ablations", on pretraining the trust function).

A text is a row's prompt with its gold answer. It is cut before one of the answer's tokens, and the teacher's label is
the token with which it continues the text. A trust function fitted on such rows learns when the teacher predicts texts
correctly, whatever the task. The paper does not give its texts, positions or tokens. We chose: positions in the answer,
which a teacher of our training predicts, one per row, by a hash of the prompt; and tokens of the other domain's
vocabulary, so that rows do not depend on the teacher.
"""

import re
from collections.abc import Mapping

import pyarrow as pa

from curation.config import DomainConfig
from curation.config.base import check_arguments
from curation.domains import Domain, Example, Identity, Vocabulary, get_domain
from curation.errors import ConfigError
from curation.hashing import derive
from curation.json_types import Json

BEGUN = "begun"


class NextToken(Domain):
    """The domain of the next token.

    Args:
        of: the domain whose texts are continued, by name or as ``{name: ..., option: ...}``.
    """

    name = "next_token"
    answering = "written"

    @check_arguments
    def __init__(self, *, of: str | Mapping[str, object]) -> None:
        config = DomainConfig.model_validate(of)
        if config.name == self.name:
            raise ConfigError("of: next_token continues the texts of another domain; name that one")
        self._of = get_domain(config)
        self._token = re.compile(self._of.vocabulary().pattern)
        self.forms = self._of.forms
        self.columns = pa.schema([*self._of.columns, (BEGUN, pa.string())])

    def read(self, raw: Mapping[str, object]) -> Json:
        """Return the other domain's example with the given part of its answer, which is empty without an answer."""
        example = self._of.read(raw)
        return {**example, BEGUN: self._cut(raw, example)[0]}

    def gold(self, raw: Mapping[str, object]) -> str | None:
        """Return the token of the answer at the cut, or ``None`` without an answer or tokens in it."""
        return self._cut(raw, self._of.read(raw))[1]

    def _cut(self, raw: Mapping[str, object], example: Example) -> tuple[str, str | None]:
        """Return the text before the cut, and the token after it."""
        label = self._of.gold(raw)
        answer = "" if label is None else self._of.answer(label, example)
        tokens = [found for found in self._token.finditer(answer) if found.group().strip()]
        if not tokens:
            return "", None
        token = tokens[derive(0, self._of.prompt(example)) % len(tokens)]
        return answer[: token.start()].rstrip(), token.group()

    def question(self, example: Example) -> str:
        """Return the other domain's prompt and the given part of its answer."""
        return self._of.prompt(example) + str(example[BEGUN])

    def identity(self, example: Example) -> Identity:
        """Return the other domain's identity, so that no split has the text of a puzzle in another split."""
        return self._of.identity(example)

    def answer(self, label: str, example: Example) -> str:
        """Return the token."""
        return label

    def parse(self, completion: str, example: Example) -> str | None:
        """Return the first token of the completion; ``None`` if it has none."""
        found = next((token for token in self._token.finditer(completion) if token.group().strip()), None)
        return None if found is None else found.group()

    def difficulty(self, example: Example) -> float | None:
        """Return the other domain's difficulty."""
        return self._of.difficulty(example)

    def vocabulary(self) -> Vocabulary:
        """Return the other domain's vocabulary."""
        return self._of.vocabulary()
