"""Classification: labels are classes of a column, their words are scored; and options and problems in named columns."""

import json

import pytest

from curation.config import DomainConfig
from curation.domains import get_domain
from curation.errors import ConfigError, RowError


def made(**options):
    return get_domain(DomainConfig(name="classification", **options))


def test_a_class_is_scored_by_its_words_and_read_back():
    domain = made(classes={0: "not  spam", "1": "spam"}, text=["title", "body"], label="y", cue="Kind:")
    assert domain.forms == (("title", "body"),)
    assert domain.read({"title": " A ", "body": None}) == {"text": "A"}
    example = domain.read({"title": "A", "body": "b"})
    assert domain.prompt(example, shots=[{"text": "x", "gold": "1"}]) == "Text: x\nKind: spam\n\nText: A\nb\nKind:"
    assert domain.options(example) == (" not spam", " spam")
    assert [domain.gold({"y": value}) for value in (0, 1.0, "1", None)] == ["0", "1", "1", None]
    assert all(domain.parse(domain.answer(label, example), example) == label for label in ("0", "1"))
    assert domain.parse("ham", example) is None and domain.num_answers(example) == 2
    assert domain.closed_labels() == ("0", "1") and get_domain(DomainConfig(name="chess")).closed_labels() is None
    with pytest.raises(RowError, match="bad_label: '7' is not one of the 2 classes 0, 1"):
        domain.gold({"y": 7})
    with pytest.raises(RowError, match="null_field: title, body is empty"):
        domain.read({"title": None, "body": None})


def test_several_classes_of_a_row_name_the_key_that_reads_them():
    with pytest.raises(RowError, match=r"bad_label: label has 2 classes \('a', 'b'\); set domain.multi: true"):
        made(classes=["a", "b"], text="text").gold({"label": ["a", "b"]})


def test_messages_are_read_as_turns():
    said = [{"type": "text", "text": "Is it "}, {"type": "text", "text": "on?"}]
    messages = [{"role": "user", "content": said}, {"role": "assistant", "content": "Yes.\n"}]
    shared = [{"from": "human", "value": "Is it on?"}, {"from": "gpt", "value": "Yes."}]
    for text in ("text", "{{ text }}"):
        domain = made(classes=["a", "b"], text=text)
        assert domain.read({"text": messages})["text"] == "user: Is it on?\nassistant: Yes."
        assert domain.read({"text": shared})["text"] == "human: Is it on?\ngpt: Yes."
    for text in (json.dumps(messages), str(messages)):  # as CSV holds them
        assert made(classes=["a", "b"]).read({"text": text})["text"] == "user: Is it on?\nassistant: Yes."
    last = made(classes=["a", "b"], text="{{ text[-1].content | upper }}")
    assert last.read({"text": messages})["text"] == "YES."
    seen = [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]
    for value in ([*messages, "x"], seen, []):
        with pytest.raises(RowError, match="not_a_text"):
            made(classes=["a", "b"], text="text").read({"text": value})
    for written in ("text | trim", "text | upper", "[text] | join", "text | replace('a', 'b')", "text | truncate"):
        with pytest.raises(RowError, match="not_a_text"):
            made(classes=["a", "b"], text=f"{{{{ {written} }}}}").read({"text": [["a"]]})


@pytest.mark.parametrize("value", [["a"], {"role": "user", "content": "hi"}, [{"role": "user"}], b"caf\xe9", ("a",)])
@pytest.mark.parametrize("text", ["text", ["title", "text"], "{{ text }}", "Read: {{ row['text'] | trim }}"])
def test_a_value_that_is_no_text_is_refused_by_its_type(value, text):
    domain = made(classes=["a", "b"], text=text)
    what = "bytes" if isinstance(value, bytes) else type(value).__name__
    with pytest.raises(RowError, match=f"not_a_text: .* is {what}"):
        domain.read({"title": "t", "text": value})
    with pytest.raises(RowError, match=f"not_a_text: .* is {what}"):
        domain.gold({"label": value})


def test_a_template_makes_the_text_and_guidelines_come_first():
    template = "{{ title | upper }}: {{ body }}"
    domain = made(classes=["spam", "ham"], text=template, label="y", guidelines=" Spam sells something. ")
    assert domain.forms == (("body", "title"),) and domain.gold({"y": "ham"}) == "ham"
    example = domain.read({"title": "win", "body": "now\n", "y": "spam"})
    assert example == {"text": "WIN: now"}
    shots = [{"text": "x", "gold": "ham"}]
    told = "Spam sells something.\n\nText: x\nLabel: ham\n\nText: WIN: now\nLabel:"
    assert domain.prompt(example, shots=shots) == told
    with pytest.raises(RowError, match="null_field"):
        domain.read({"title": None, "body": "now"})
    with pytest.raises(ConfigError, match="reads 'y', the column with the label"):
        made(classes=["spam", "ham"], text="{{ title }} {{ y }}", label="y")
    with pytest.raises(ConfigError, match="guidelines: None: Input should be a valid string"):
        made(classes=["spam", "ham"], guidelines=None)
    with pytest.raises(ConfigError, match=r"domain\.text: line 1"):
        made(classes=["spam", "ham"], text="{{ title")


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        ("ab", "classes: 'ab': texts are not taken as lists; give a list"),
        (["a"], "give a list of two"),
        (["a", " "], "give a list"),
        ({"a": "x", "b": "x"}, "the words 'x' and 'x' are the same"),
        (["Spam", "ham", "spam"], "classes: 'Spam' and 'spam' are the same but for case and white space"),
        (["not spam", "not  spam "], "'not spam' and 'not  spam ' are the same"),
        ({"a": "Not spam", "b": "not  Spam"}, "the words 'Not spam' and 'not  Spam' are the same"),
        ([1, "1"], "1 and '1' are the same"),
    ],
)
def test_classes_that_cannot_be_told_apart_are_refused(classes, words):
    with pytest.raises(ConfigError, match=words):
        made(classes=classes)


def test_its_answers_are_listed_and_it_has_defaults_of_its_own():
    assert DomainConfig(name="classification").traits.lists_answers
    assert made(classes=["a", "b"]).defaults["trust"] == {"preset": "world_knowledge"}


@pytest.mark.parametrize(
    ("answer", "label"),
    [("option2", "B"), ("b", "B"), ("Mars", "B"), ("2", "B"), (2, "B"), (2.0, "B"), ("1", "A"), (None, None)],
)
def test_options_in_columns_of_their_own(answer, label):
    domain = get_domain(DomainConfig(name="mcqa", choices=["option1", "option2"], question="q", answer="key"))
    row = {"q": "Which is red?", "option1": "Venus", "option2": "Mars", "key": answer}
    assert domain.forms == (("q", "option1", "option2"),)
    assert domain.read(row) == {"question": "Which is red?", "choices": ["Venus", "Mars"]}
    assert domain.gold(row) == label
    with pytest.raises(RowError, match="bad_answer: 'Pluto' names none of the options Venus, Mars as a letter"):
        domain.gold(row | {"key": "Pluto"})
    with pytest.raises(ConfigError, match="2 to 8 columns"):
        get_domain(DomainConfig(name="mcqa", choices=["one"]))


def test_a_problem_and_its_answer_in_named_columns():
    domain = get_domain(DomainConfig(name="math", problem="frage", answer="wert"))
    assert domain.forms == (("frage",),)
    assert domain.read({"frage": "2 + 2?"})["problem"] == "2 + 2?" and domain.gold({"frage": "?", "wert": "4"}) == "4"


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ("caf\xe9", "cafe\u0301", r"U\+00E9 LATIN SMALL LETTER E WITH ACUTE, U\+0301 COMBINING ACUTE ACCENT"),
        ("bar", "b\u200bar", r"U\+200B ZERO WIDTH SPACE"),
        ("bar", "b\u034far", r"U\+034F COMBINING GRAPHEME JOINER"),
        ("\u2764", "\u2764\ufe0f", r"U\+FE0F VARIATION SELECTOR-16"),
        ("bar", "bar\u3164", r"U\+3164 HANGUL FILLER"),
        ("pay", "p\u0430y", r"U\+0061 LATIN SMALL LETTER A, U\+0430 CYRILLIC SMALL LETTER A"),
        ("alpha", "\u03b1lpha", r"U\+03B1 GREEK SMALL LETTER ALPHA"),
        ("a-b", "a\u2010b", r"U\+002D HYPHEN-MINUS, U\+2010 HYPHEN"),
        ("fine", "\ufb01ne", r"U\+FB01 LATIN SMALL LIGATURE FI"),
        ("it's", "it\u2019s", r"U\+0027 APOSTROPHE, U\+2019 RIGHT SINGLE QUOTATION MARK"),
    ],
)
def test_classes_that_look_alike_are_refused_and_a_label_is_read_in_either_writing(one, other, apart):
    for classes in ([one, other], {"x": one, "y": other}):
        with pytest.raises(ConfigError, match=f"are the same but for .*{apart}"):
            made(classes=classes)
    for known, label in ((one, other), (other, one)):
        domain = made(classes=[known, "else"])
        assert domain.gold({"label": label}) == known == domain.parse(f" {label}", {})
        sets = made(classes=[known, "else"], multi=True)
        assert sets.gold({"label": [label]}) == known == sets.parse(f"\n{label}: yes\nelse: no", {})
    with pytest.raises(RowError, match="bad_label: 'Else'"):
        domain.gold({"label": "Else"})
    assert made(classes=["\u0441\u043e\u043a", "\u0432\u043e\u0434\u0430"]).closed_labels()


@pytest.mark.parametrize("word", [True, None, 0.5])
def test_what_yaml_makes_of_a_word_is_no_class(word):
    for classes in ([word, "x"], {"x": word, "y": "z"}):
        with pytest.raises(ConfigError, match=f"classes: {word}: Input should be a valid "):
            made(classes=classes)
    for options in ({"label": word or 1}, {"text": ["t", 1]}, {"cue": 5}):
        with pytest.raises(ConfigError, match=r"(label|text|cue): .*: Input should be a valid string"):
            made(classes=["x", "y"], **options)
