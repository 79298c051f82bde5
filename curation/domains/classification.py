"""Texts of a few fixed classes, whose names are scored as completions of the prompt.

Not one of the paper's tasks. The label is a class as the label column has it; the teacher scores the words of all
classes, so it writes nothing. With ``multi`` a row may have several classes or none: each class is a yes/no question of
the row, and the label is the set of those answered by yes (:mod:`curation.domains.label_sets`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from curation.config.base import check_arguments
from curation.config.inputs import DomainTraits, make_greedy_defaults
from curation.domains import Domain, Example, read_cell_text, to_one_line
from curation.domains.identity import describe_code_points, fold_lookalikes
from curation.domains.label_sets import MOST_NAMED, LabelSets, make_class_error, split_names
from curation.domains.templates import Template
from curation.errors import ConfigError, RowError
from curation.escaping import quote_text

CUE, CUE_MULTI = "Label:", "Labels:"


class Classification(Domain):
    """The domain of texts with fixed classes.

    Args:
        classes: the classes, at least two, as the label column has them; or a mapping of each to the words that the
            teacher scores. A configuration may leave them out: they are the labels of the labelled split then
            (``curation.pipeline.opened``).
        text: the column with the text, or several, each of which becomes a line; or a Jinja template over columns, with
            ``{{ }}`` in it, in a sandbox (:mod:`curation.domains.templates`).
        label: the column with the class; with ``multi`` a list of classes, or a text with commas between them.
        cue: the last line of the prompt, which the words of a class complete, or with ``multi`` the lines of all
            classes (``sports: yes``); unset, ``Label:``, and with ``multi`` ``Labels:``.
        guidelines: the prompt's first paragraph: what the classes mean, and which to give where two would do.
        calibrate: ``content_free`` subtracts the scores that the classes have on texts without content from those of
            each row, before the likeliest class is chosen (:mod:`curation.teachers.wrapped`); ``none`` does not.
            With ``multi`` those of yes and no of each class.
        multi: a row may have several classes, or none: each is asked as a yes/no question of its own, and an answer is
            right where the whole set is. The text ``none`` is a row without classes.
    """

    name = "classification"
    defaults = make_greedy_defaults(8, "world_knowledge", stop=("\n",))
    answering = "scored"
    blanks = ({"text": "N/A"}, {"text": "[MASK]"}, {"text": ""})
    """The texts of Zhao et al., "Calibrate Before Use", 2021."""

    @check_arguments
    def __init__(
        self,
        *,
        classes: Sequence[str | int] | Mapping[str | int, str | int] | None = None,
        text: str | Sequence[str] = "text",
        label: str = "label",
        cue: str | None = None,
        guidelines: str = "",
        calibrate: Literal["none", "content_free"] = "none",
        multi: bool = False,
    ) -> None:
        columns = (text,) if isinstance(text, str) else tuple(text)
        if classes is None:
            raise ConfigError(
                "classes: are left out, which only a run may do, with a labelled split; give a list of them"
            )
        listed = classes if isinstance(classes, Mapping) else {name: name for name in classes}
        self._words = {to_one_line(name): to_one_line(words) for name, words in listed.items()}
        self._label_of = {words: name for name, words in self._words.items()}
        if len(classes) < 2 or not all(self._label_of):
            raise ConfigError(f"classes: {classes!r}: give a list of two or more classes, each of some words")
        for what, texts in (("", classes), ("the words ", listed.values())):
            if (pair := _find_alike(texts)) is not None:
                one, other = map(to_one_line, pair)
                apart = "case and white space" if one.lower() == other.lower() else describe_code_points(one, other)
                raise ConfigError(
                    f"classes: {what}{pair[0]!r} and {pair[1]!r} are the same but for {apart}; write them in one way "
                    "in the files, or rename one"
                )
        self._by_folded = {fold_lookalikes(name): name for name in self._words}
        self._words_by_folded = {fold_lookalikes(words): name for words, name in self._label_of.items()}
        self._template = Template(text, key="domain.text") if isinstance(text, str) and "{{" in text else None
        if self._template is not None and label in self._template.columns:
            raise ConfigError(
                f"domain.text: reads {label!r}, the column with the label, which the teacher would see; take it out"
            )
        self._calibrate = calibrate
        self.label_sets = LabelSets(self._words) if multi else None
        self.in_pairs = self.label_sets is not None
        self._texts = columns if self._template is None else self._template.columns
        self._label, self._cue = label, (CUE_MULTI if self.in_pairs else CUE) if cue is None else cue
        self.head = guidelines.strip()
        self.forms = (self._texts,)

    @classmethod
    def traits(cls, options: Mapping[str, Any]) -> DomainTraits:
        """Return the traits of the domain; with ``multi`` a written answer has a line for each class."""
        needs: dict[str, tuple[str, ...]] = {}
        found = super().traits(options)
        if options.get("calibrate") == "content_free":
            needs["domain.calibrate: content_free"] = ("option_scores", "option_sums", "no_steps")
        if options.get("multi"):
            needs["domain.multi"] = ("option_scores", "option_sums", "own_options", "one_option")
            found = found._replace(defaults=make_greedy_defaults(512, "world_knowledge", stop=("\n\n",)))
        return found._replace(needs=needs)

    def read(self, raw: Mapping[str, object]) -> dict[str, Any]:
        """Return the text; several columns give one line each, without empty ones."""
        if self._template is not None:
            lines = [self._template.render(raw).strip()]
        else:
            lines = [read_cell_text(raw[name], name) for name in self._texts if raw[name] is not None]
        if not any(lines):
            raise RowError(f"null_field: {', '.join(self._texts)} is empty")
        return {"text": "\n".join(filter(None, lines))}

    def gold(self, raw: Mapping[str, object]) -> str | None:
        """Return the class of a row, or the set of its classes as a text; ``None`` if the column is empty."""
        value = raw.get(self._label)
        if value is None:
            return None
        if self.label_sets is not None:
            return self.label_sets.label_of(value)
        if isinstance(value, list | tuple) and len(value) > 1 and all(isinstance(name, str) for name in value):
            shown = ", ".join(map(quote_text, value[:MOST_NAMED]))
            raise RowError(f"bad_label: {self._label} has {len(value)} classes ({shown}); set domain.multi: true")
        label = to_one_line(value)
        if label in self._words:
            return label
        if (known := self._by_folded.get(fold_lookalikes(label))) is not None:
            return known
        raise make_class_error(quote_text(label), label, self._words)

    def question(self, example: Example) -> str:
        """Return the text and the cue."""
        return f"Text: {example['text']}\n{self._cue}"

    def options(self, example: Example) -> tuple[str, ...]:
        """Return a space and the words of every class; with ``multi``, yes and no for each."""
        if self.label_sets is not None:
            return self.label_sets.options()
        return tuple(f" {words}" for words in self._words.values())

    def content_free(self, example: Example) -> tuple[Example, ...]:
        """Return the blanks if the choice is calibrated, else none."""
        return self.blanks if self._calibrate == "content_free" else ()

    def candidates(self, example: Example) -> tuple[str, ...] | None:
        """Return the options; ``None`` if rows have several classes, whose sets are too many."""
        return None if self.in_pairs else self.options(example)

    def num_answers(self, example: Example) -> int:
        """Return the number of classes or, with ``multi``, of their sets."""
        return 2 ** len(self._words) if self.in_pairs else len(self._words)

    def closed_labels(self) -> tuple[str, ...] | None:
        """Return the classes; ``None`` if rows have several."""
        return None if self.in_pairs else tuple(self._words)

    def answer(self, label: str, example: Example) -> str:
        """Return a space and the words of the class; with ``multi``, a line for each class."""
        if self.label_sets is not None:
            return self.label_sets.answer(label)
        return f" {self._words[label]}"

    def parse(self, completion: str, example: Example) -> str | None:
        """Return the class whose words the completion is, up to white space, or the set of its lines; or ``None``."""
        if self.label_sets is not None:
            return self.label_sets.parse(completion)
        words = " ".join(completion.split())
        return self._label_of.get(words) or self._words_by_folded.get(fold_lookalikes(words))


def parse_labels(value: object, options: Mapping[str, Any]) -> set[str]:
    """Return the classes in a cell of the label column, by the domain's options; ``RowError`` if one is empty."""
    return set(split_names(value)) if options.get("multi") else {to_one_line(value)}


def with_words(labels: Sequence[str]) -> list[str] | dict[str, str]:
    """Return labels as ``classes``, mapped to words with spaces for underscores, unless two would be the same."""
    words = {label: to_one_line(label.replace("_", " ")) for label in labels}
    if list(words.values()) == list(labels) or not all(words.values()) or _find_alike(words.values()) is not None:
        return list(labels)
    return words


def _find_alike(texts: Iterable[object]) -> tuple[Any, Any] | None:
    """Return the first two texts that are equal but for case, white space and characters that look alike."""
    first: dict[str, Any] = {}
    for text in texts:
        key = fold_lookalikes(to_one_line(text)).casefold()
        if key in first:
            return first[key], text
        first[key] = text
    return None
