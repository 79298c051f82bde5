"""Task interfaces: how a raw row becomes a prompt, and a completion becomes a label that is right or wrong.

A domain is one file with one class and one line in ``curation.registry.DOMAINS``; users' own come as ``module:Class``,
or by name through an entry point of the group ``curation.domains``.
"""

import ast
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast

import pyarrow as pa

from curation.config import DomainConfig
from curation.config.inputs import Answering, Defaults, DomainTraits
from curation.domains.identity import Identity as Identity
from curation.domains.identity import plain_identity as plain_identity
from curation.errors import ConfigError, RowError
from curation.escaping import format_error, quote_text
from curation.registry import DOMAINS, load_code

if TYPE_CHECKING:
    from curation.domains.label_sets import LabelSets


Example = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The vocabulary of a domain's word-level tokenizer."""

    words: tuple[str, ...]
    """The tokens in id order."""
    pattern: str
    """A regular expression whose matches are the tokens of a text; other text is dropped."""


class Preference(NamedTuple):
    """A prompt with two answers, one of them preferred, as preference training reads it."""

    prompt: str
    chosen: str
    rejected: str


class Domain:
    """One task interface (paper, "Experimental Setup"), constructed with its options from the configuration.

    A domain derives from this class. All members have defaults, which suit short texts with a label that the teacher
    writes; most domains say at least :meth:`question`, and :meth:`options` or :meth:`parse`. A class may also have a
    method ``position`` if its labels are chess moves in UCI notation (:func:`get_position_function`), and a method
    ``preference`` if they choose one of two answers (:func:`get_preference_function`). Methods raise ``RowError`` for
    a row that they cannot handle, and constructors ``ConfigError`` for options that they do not accept.
    """

    name: ClassVar[str]
    """The domain's name in messages and reports; by default the class's name in lower case."""
    columns: pa.Schema = pa.schema([("text", pa.string())])
    """The domain's own columns in source, pool and test tables; by default ``text``."""
    defaults: ClassVar[Defaults] = MappingProxyType({})
    """Defaults for the run's decoding, tests and trust function, by section and key."""
    answering: ClassVar[Answering] = "by_row"
    """The way rows are answered, as far as it is known before one is read (``curation.config.inputs.Answering``)."""
    head: str = ""
    """The prompt's first paragraph, before demonstrations; may be empty."""
    in_pairs: bool = False
    """Whether the options are pairs of yes and no, one per question, and the answer joins the likelier of each pair."""
    label_sets: "LabelSets | None" = None
    """The sets of classes if a row's label is a set; else ``None``."""
    blanks: ClassVar[tuple[Example, ...]] = ()
    """Examples without content for :meth:`prompt` and :meth:`options`, by which the choice can be calibrated."""
    settles: ClassVar[tuple[str, ...]] = ()
    """Options that :meth:`settle` decides if the configuration leaves them out."""

    def __init_subclass__(cls) -> None:
        """Name the class."""
        super().__init_subclass__()
        if not hasattr(cls, "name"):
            cls.name = cls.__name__.lower()

    @classmethod
    def traits(cls, options: Mapping[str, object]) -> DomainTraits:
        """Return the traits of the domain with these options, which are not checked yet; by default the class's own."""
        return DomainTraits(cls.defaults, cls.answering)

    @cached_property
    def forms(self) -> tuple[tuple[str, ...], ...]:
        """The columns of each row format that the domain reads, by default ``columns``; a file has all of one."""
        return (tuple(self.columns.names),)

    def read(self, raw: Mapping[str, object]) -> dict[str, Any]:
        """Return the example of a raw row, a value per field of ``columns``, without a hint at the gold label.

        Values missing in the file (``curation.sources.missing``) are None. By default, the columns with texts stripped;
        ``RowError`` ``null_field`` where a value is missing.
        """
        example = {}
        for column in self.columns.names:
            value = raw[column]
            value = value.strip() if isinstance(value, str) else value
            if value is None or value == "":
                raise RowError(f"null_field: {column} is empty")
            example[column] = value
        return example

    def gold(self, raw: Mapping[str, object]) -> str | None:
        """Return the gold label of a raw row; ``None`` if the row has none. By default the column ``label``."""
        label = raw.get("label")
        return None if label is None else format_cell(label, "label")

    def settle(self, rows: Iterable[Mapping[str, object]], where: str) -> Mapping[str, object]:
        """Return the options of ``settles`` that fit all labelled rows of a source, called ``where``; by default none.

        A run keeps them, so that all its tasks read rows in the same way. ``ConfigError`` if the rows leave a doubt.
        """
        return {}

    def solution(self, raw: Mapping[str, object]) -> str | None:
        """Return a worked solution that states the gold label, on which gold arms train; by default ``None``."""
        return None

    def question(self, example: Example) -> str:
        """Return the prompt's part that asks about a row, up to the completion; by default a line for each column."""
        return "\n".join(str(example[column]) for column in self.columns.names)

    def prompt(self, example: Example, *, shots: Sequence[Example] = ()) -> str:
        """Return ``head``, the demonstrations ``shots`` (examples with ``gold``) and the question, as paragraphs."""
        blocks = [self.question(shot) + self.answer(shot["gold"], shot) for shot in shots]
        return "\n\n".join([*filter(None, [self.head]), *blocks, self.question(example)])

    def identity(self, example: Example) -> Identity:
        """Return the question's identity, equal for rows that ask the same, however written; by default of prompts."""
        return plain_identity(self.prompt(example))

    def options(self, example: Example) -> tuple[str, ...] | None:
        """Return the completions of which the likeliest is chosen; ``None``, by default, if the teacher writes."""
        return None

    def candidates(self, example: Example) -> tuple[str, ...] | None:
        """Return all completions that answer a row, for constrained decoding, by default the options; or ``None``."""
        return self.options(example)

    def content_free(self, example: Example) -> tuple[Example, ...]:
        """Return the ``blanks`` whose prompts calibrate the choice among a row's options; none by default."""
        return ()

    def closed_labels(self) -> tuple[str, ...] | None:
        """Return all labels if they are few and the same for all rows, to divide places among them; or ``None``."""
        return None

    def num_answers(self, example: Example) -> int | None:
        """Return how many answers a uniform guess chooses from, by default the candidates; ``None`` if unknown."""
        listed = self.candidates(example)
        return None if listed is None else len(listed)

    def answer(self, label: str, example: Example) -> str:
        """Return the completion that states ``label``, for gold labels and demonstrations; by default after a space."""
        return f" {label}"

    def parse(self, completion: str, example: Example) -> str | None:
        """Return the label that a completion states, by default its stripped text, if an option; None if unparsed."""
        label, options = completion.strip(), self.options(example)
        known = options is None or label in {option.strip() for option in options}
        return label if label and known else None

    def is_correct(self, label: str | None, gold: str) -> bool:
        """Return whether a label is right; an unparsed one is wrong. By default equality."""
        return label == gold

    @property
    def is_equality(self) -> bool:
        """Whether only labels equal to gold are right, so that they can be compared with other rows' gold labels."""
        return type(self).is_correct is Domain.is_correct

    def gold_problem(self, gold: str, example: Example) -> str:
        """Return the row error of a gold label that :meth:`parse` reads as wrong from its :meth:`answer`; or ""."""
        label = self.parse(self.answer(gold, example), example)
        if label is not None and self.is_correct(label, gold):
            return ""
        read = "cannot be read" if label is None else f"is read as {quote_text(label)}, which counts as wrong"
        return f"bad_gold: the gold label {quote_text(gold)}, given as an answer, {read}"

    def check(
        self, labels: Sequence[str | None], golds: Sequence[str], examples: Sequence[Example]
    ) -> list[bool | RowError]:
        """Return for each label whether it is right, by default by :meth:`is_correct`, or why that is undecidable.

        Override it to read the rows' other columns or to grade many rows together. ``UserError`` ends the stage.
        """
        found = (attempt(self.is_correct, label, gold) for label, gold in zip(labels, golds, strict=True))
        return [RowError(problem) if problem else bool(right) for right, problem in found]

    def difficulty(self, example: Example) -> float | None:
        """Return the difficulty on the domain's own scale, larger is harder; ``None`` (default) if unknown."""
        return None

    def vocabulary(self) -> Vocabulary:
        """Return the tokens of a model made from scratch; by default printable ASCII characters and the line end."""
        return Vocabulary(words=(*map(chr, range(0x20, 0x7F)), "\n"), pattern=r"[\s\S]")


def load_domain(config: DomainConfig) -> Domain:
    """Return :func:`get_domain`, cached per process, because a domain may count a command's failures."""
    return _load_domain(config.model_dump_json())


@lru_cache(maxsize=4)
def _load_domain(config: str) -> Domain:
    return get_domain(DomainConfig.model_validate_json(config))


def get_domain(config: DomainConfig) -> Domain:
    """Return the domain of a configuration, made with its options; raise ``ConfigError`` if that cannot be done."""
    name = config.name
    try:
        made = load_code(DOMAINS.find(name))
    except ValueError as error:
        raise ConfigError(f"domain: {error}") from error
    if not (isinstance(made, type) and issubclass(made, Domain)):  # checked before any of its code is called
        raise ConfigError(
            f"domain: {name!r} is not a domain: it does not derive from curation.domains.Domain (docs/extending.md)"
        )
    try:
        domain: Domain = made(**config.options)
    except (TypeError, ValueError) as error:
        given = ", ".join(f"{key}: {value!r}" for key, value in config.options.items()) or "no options"
        raise ConfigError(f"domain: {name!r} cannot be made with {given}: {error}") from error
    for place, blank in enumerate(domain.blanks):
        for what, function in (("prompt", domain.prompt), ("options", domain.options)):
            found, problem = attempt(function, blank)
            if not found:
                raise ConfigError(
                    f"domain: {domain.name}: {what} cannot be made of blanks[{place}], {blank!r}: "
                    f"{problem or f'it gives {found!r}'}; a blank is an example without content: give it every column "
                    f"that {what} reads, or leave blanks empty"
                )
    if config.given_labels is None:
        return domain
    from curation.domains.given import GivenLabels  # it reads this module

    return cast(Domain, GivenLabels(domain, config.given_labels))


def get_position_function(domain: Domain) -> Callable[[Example], str] | None:
    """Return the function that gives a row's position (FEN) if labels are chess moves, else ``None``."""
    return getattr(domain, "position", None)


def get_preference_function(domain: Domain) -> Callable[[str, Example], Preference] | None:
    """Return the function that gives the pair of answers that a label orders, or ``None`` if rows are not pairs."""
    return getattr(domain, "preference", None)


def format_cell(value: Any, name: str = "a value") -> str:
    """Return a cell as text, a whole float without a point; raise ``RowError`` of a list, an object or other bytes."""
    if isinstance(value, bytes):
        raise RowError(f"not_a_text: {name} is bytes that are not UTF-8, not a text; convert them")
    if isinstance(value, list | tuple | Mapping):
        mend = "name a column of texts, or write its parts by a template"
        raise RowError(f"not_a_text: {name} is {type(value).__name__}, not a text; {mend}")
    is_integer = isinstance(value, float) and value.is_integer()
    return str(int(value) if is_integer else value).strip()


def to_one_line(value: Any) -> str:
    """Return a cell as text with runs of white space as one space, as classes and labels are read."""
    return " ".join(format_cell(value).split())


_TURNS = (("role", "content"), ("from", "value"))
"""Keys of a turn's speaker and content (second pair: ShareGPT)."""


def read_cell_text(value: Any, name: str = "a value") -> str:
    """Return a cell as text, chat messages a line per turn (``user: hi``); ``RowError`` of other lists or objects.

    Messages have role and content, as in chat data sets and TRL's ``messages``.
    """
    # In CSV, messages are JSON or Python literals.
    is_text = isinstance(value, str) and value.lstrip().startswith("[{")
    turns = (parse_list(value) or []) if is_text else value if isinstance(value, list | tuple) else []
    lines = [line for line in map(_format_turn, turns) if line is not None]
    return "\n".join(lines) if lines and len(lines) == len(turns) else format_cell(value, name)


def parse_list(text: str) -> list[Any] | None:
    """Return the items of a text that is a list in JSON or Python's writing, as ``['a', 'b']``; else ``None``."""
    text = text.strip()
    for read in (json.loads, ast.literal_eval) if text.startswith("[") and text.endswith("]") else ():
        with suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            found = read(text)
            return found if isinstance(found, list) else None
    return None


def _format_turn(turn: object) -> str | None:
    """Return a turn as text, or None for anything else or for parts that are not text (an image, a tool call)."""
    if not isinstance(turn, Mapping):
        return None
    for who, what in _TURNS:
        role, said = turn.get(who), turn.get(what)
        if isinstance(said, list | tuple) and all(isinstance(part, Mapping) and "text" in part for part in said):
            said = "".join(str(part["text"]) for part in said)
        if isinstance(role, str) and isinstance(said, str):
            return f"{role}: {said.strip()}"
    return None


def attempt(function: Callable[..., T], *arguments: object) -> tuple[T | None, str]:
    """Call ``function``; return its result and "", or None and any error in a line: users' code may raise anything."""
    try:
        return function(*arguments), ""
    except (Exception, SystemExit) as error:
        is_expected = isinstance(error, RowError) and error.has_kind
        return None, format_error(error if is_expected else RowError(f"domain_failed: {type(error).__name__}: {error}"))
