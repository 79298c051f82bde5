"""A domain as a constrained decoding asks it: its listed answers are the options of every row."""

from typing import TYPE_CHECKING, Any

from curation.config import DecodingConfig
from curation.domains import Domain, Example


class Constrained:
    """The same domain, with ``candidates`` as options."""

    def __init__(self, domain: Domain, *, stepwise: bool) -> None:
        self._domain = domain
        self.stepwise = stepwise
        """Whether answers are drawn token by token instead of scored."""

    def options(self, example: Example) -> tuple[str, ...] | None:
        """The possible answers of a row; ``None`` if the domain does not list them."""
        return self._domain.candidates(example)

    if not TYPE_CHECKING:  # the other members of the protocol

        def __getattr__(self, name: str) -> Any:
            if name == "_domain":  # asked for before it is set: of a copy
                raise AttributeError(name)
            return getattr(self._domain, name)


def as_asked(domain: Domain, decoding: DecodingConfig) -> Domain:
    """The domain as ``decoding`` asks it: with ``constrained``, by its listed answers."""
    if not decoding.constrained:
        return domain
    constrained: Any = Constrained(domain, stepwise=decoding.constrained == "stepwise")
    asked: Domain = constrained
    return asked
