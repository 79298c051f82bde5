"""Labels that no model of this run makes: answers of a server over HTTP, or columns of the source; and their reader."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator

from curation.config.base import PositiveInt, Price, Section
from curation.config.models import ModelConfig
from curation.label_columns import make_given_column

ENDPOINT, GIVEN = "endpoint", "given"
"""The backends of models that a server runs, and of labels that are columns of the source."""
EXTERNAL = (GIVEN, ENDPOINT)
"""Backends whose answers come without hidden states, so that ``teacher.reader`` may read them."""
COLUMN_KEYS = ("completion", "grade", "confidence")
"""The keys of ``teacher`` that name columns with ``backend: given``."""
PAID = "paid"
"""The folder of a run directory that keeps paid answers of a server."""
MILLION = 1_000_000
NUMBERS = ("mean_logprob", "margin", "negentropy")
"""Numbers of a label that trust reads if a server gives log-probabilities."""
COUNTS = ("num_prompt_tokens", "num_output_tokens")
"""Numbers of a label that trust reads if a server gives none."""
LENGTHS = ("max_tokens", "max_completion_tokens")
"""Keys of a request's body that limit the length of an answer."""
NUMBERS_OF_ANSWERS = ("n", "best_of")
"""Keys of a request's body that set the number of answers."""


class ServedConfig(Section):
    """The model behind an endpoint, and the parts of a request that its answers depend on."""

    model: Annotated[str, Field(min_length=1)]
    """The model's name on the server."""
    kind: Literal["openai", "vllm", "sglang"] = "openai"
    """The kind of server. All have the paths of OpenAI's API; ``vllm`` and ``sglang`` also take ``top_k``, ``min_p``
    and choices, each in its own way."""
    top_logprobs: Annotated[int, Field(ge=0)] = 20
    """Number of log-probabilities requested for each token of an answer, for margin and entropy; the remaining
    probability counts as one token. 0: the server gives none. OpenAI gives up to 20, vLLM up to its ``--max-logprobs``.
    """
    body: dict[str, Any] = Field(default={})
    """Further keys of a request's body, which override the engine's; a key with null is left out."""

    @field_validator("body")
    @classmethod
    def _has_numbers(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in (*LENGTHS, *NUMBERS_OF_ANSWERS):  # on which the price depends
            if (number := value.get(name)) is not None and (type(number) is not int or number < 1):
                raise ValueError(f"{name}: {number!r} is not a whole number above 0; give one, or null to leave it out")
        return value


class TokenPrice(Section):
    """The price of a million tokens, in ``prices.currency`` (US dollars where that is not set)."""

    input: Price
    """Price of a million prompt tokens."""
    output: Price
    """Price of a million answer tokens."""

    def of(self, num_prompt: float, num_output: float) -> float:
        """Return the price of a number of prompt and answer tokens."""
        return (num_prompt * self.input + num_output * self.output) / MILLION


class EndpointConfig(ServedConfig):
    """An endpoint: a server, a model on it, and its limits of speed and spending.

    A change of URL, key, speed, price or limit asks nothing again.
    """

    url: str
    """The address of the API, e.g. ``https://api.openai.com/v1`` or ``http://localhost:8000/v1``."""
    key_env: str | None = None
    """Name of the environment variable that holds the API key, on all nodes; the key itself is never written. Unset: no
    key is sent. The only other variables read are those of proxies (``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY``,
    ``NO_PROXY``)."""
    concurrency: PositiveInt = 16
    """Maximum number of concurrent requests of each actor."""
    requests_per_minute: Annotated[float, Field(gt=0)] | None = None
    """Maximum number of requests per minute of all ``actors.max`` actors together."""
    price: TokenPrice | None = None
    """Price of tokens. Unset: money is neither counted nor limited."""
    limit: Price | None = None
    """Maximum amount that the run may spend here, over all its stages and restarts. It stops before more is spent; with
    a higher limit the same command goes on."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 120
    """Maximum seconds that a whole answer may take; after that it counts as lost."""
    retries: Annotated[int, Field(ge=0)] = 7
    """How often a question is repeated after a lost or invalid answer or a server error: after 0.5 s, 1 s, 2 s, and so
    on up to a minute, and not before the server's ``Retry-After`` is over."""
    paid: str | None = None
    """The folder that keeps paid answers, so that none is bought again; a run sets it to ``paid`` in its directory."""

    again: Annotated[int, Field(ge=0)] = 0
    """How often ``--redo`` has named the stage that asks, as the run counts it; answers bought with another count are
    not reused."""

    @property
    def keyed(self) -> Self:
        """The part of these settings that the answers depend on."""
        served: Any = ServedConfig.part_of(self)
        return served  # type: ignore[no-any-return]

    @field_validator("url")
    @classmethod
    def _is_address(cls, value: str) -> str:
        parts = urlsplit(value)
        is_call = parts.path.rstrip("/").endswith("/completions")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or is_call:
            raise ValueError(
                f"{value!r} is not the address of an API; write it with http:// or https://, without a query or a "
                "call such as /chat/completions, e.g. http://localhost:8000/v1"
            )
        _ = parts.port  # which must be a number below 65,536
        return value.rstrip("/")

    @field_validator("key_env")
    @classmethod
    def _is_name(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Z][A-Z0-9_]{0,63}", value):
            raise ValueError(
                "does not hold the name of an environment variable (capitals, digits, underscores); write the key into "
                "a variable, and the variable's name here, e.g. OPENAI_API_KEY"
            )  # the value is not shown: it may be a key
        return value

    def _iter_problems(self) -> Iterator[str]:
        if self.limit is not None and self.price is None:
            yield (f"limit: {self.limit:g} cannot be kept without prices; add price: {{input: .., output: ..}}")
        if self.limit is not None and "max_tokens" in self.body and not any(map(self.body.get, LENGTHS)):
            yield (
                f"limit: {self.limit:g} cannot be kept if body leaves max_tokens out, since the length of answers is "
                "then unlimited; set body.max_completion_tokens, e.g. 64"
            )


def find_unsupported(endpoint: ServedConfig, decoding: Any, key: str) -> str | None:
    """Return the first setting of a decoding that a kind of server does not take; ``None`` if it takes all."""
    if endpoint.kind == "openai":
        for name in ("top_k", "min_p"):
            if value := getattr(decoding, name):
                return f"{key}.{name}: {value:g} is not known to a server of kind openai; set {name}: 0"
    if decoding.constrained == "scored":
        return (
            f"{key}.constrained: scored needs the log-probability of every option, which a server does not give; take "
            "stepwise"
        )
    return None


Column = Annotated[str, Field(min_length=1)]


def as_tuple(value: object) -> Any:
    """Return a text as a tuple of it, and any other value as it is."""
    return (value,) if isinstance(value, str) else value


Columns = Annotated[tuple[Column, ...], BeforeValidator(as_tuple)]
"""A list of columns; a single column may be given without a list."""


class ReaderConfig(Section):
    """A model that reads prompt and answer once, for log-probabilities and states of answers from elsewhere.

    The other keys of ``teacher`` set how it runs and what is stored, as for a model that answers.
    """

    model: ModelConfig
    """The model that reads; it need not be the one that answered."""
    backend: Literal["transformers", "vllm"] = "transformers"
    """A backend, as in ``teacher.backend``."""
    chat_template: bool = False
    """Whether the prompt is one user turn of the reader's chat template."""


class GivenConfig(Section):
    """The columns of a source's rows that hold labels made elsewhere; filled from ``teacher``, never by hand."""

    completion: Column
    """``teacher.completion``."""
    grade: Column | None = None
    """``teacher.grade``."""
    confidence: Columns = ()
    """``teacher.confidence``."""

    @property
    def numbers(self) -> dict[str, str]:
        """The column of the labels table for each column of ``confidence``."""
        return {name: make_given_column(name) for name in self.confidence}

    def _iter_problems(self) -> Iterator[str]:
        named = [name for name in (self.completion, self.grade, *self.confidence) if name is not None]
        made = [make_given_column(name) for name in self.confidence]
        if len({*named}) < len(named) or len({*made}) < len(made):
            yield (
                f"completion, grade and confidence name a column twice, or two whose names differ only in signs: "
                f"{', '.join(named)}; name each once, or rename one in the source"
            )
