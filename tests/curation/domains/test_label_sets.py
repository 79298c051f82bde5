"""Rows with several labels: how a set is read, written and asked, and what is refused."""

import pytest

from curation.config import DomainConfig
from curation.config.load import as_config
from curation.domains import get_domain
from curation.domains.classification import parse_labels
from curation.errors import ConfigError, RowError

CLASSES = {"card": "a lost card", "fee": "fees", "app": "the app"}


def made(classes=CLASSES, multi=True, **options):
    return get_domain(DomainConfig(name="classification", classes=classes, multi=multi, **options))


def test_a_set_is_read_from_a_list_or_a_text_in_the_order_of_the_classes():
    domain = made()
    cells = [["app", "card"], "app,card", " app ,  card", ("card", "app"), "fee", ["fee"], [], "none", ["none"], None]
    cells += ['["app", "card"]', "['app', 'card']", "[]"]
    golds = ["card, app"] * 4 + ["fee"] * 2 + ["none"] * 3 + [None] + ["card, app"] * 2 + ["none"]
    assert [domain.gold({"label": cell}) for cell in cells] == golds
    other = made({1: "one", 2: "two"})
    assert [other.gold({"label": cell}) for cell in ("2,1", [2.0, 1], 2, "none")] == ["1, 2", "1, 2", "2", "none"]
    assert [other.parse(other.answer(label, {}), {}) for label in ("1, 2", "none")] == ["1, 2", "none"]


def test_each_class_is_a_question_and_the_answer_has_a_line_for_each():
    domain = made(guidelines="Several may apply.")
    example = {"text": "x"}
    lines = ("\na lost card: yes", "\na lost card: no", "\nfees: yes", "\nfees: no", "\nthe app: yes", "\nthe app: no")
    assert domain.options(example) == lines and domain.in_pairs
    completion = domain.answer("card, app", example)
    assert completion == "\na lost card: yes\nfees: no\nthe app: yes"
    shots = [{"text": "y", "gold": "card, app"}]
    asked = domain.prompt(example, shots=shots)
    assert asked == f"Several may apply.\n\nText: y\nLabels:{completion}\n\nText: x\nLabels:"
    assert made(cue="").prompt(example) == "Text: x\n"
    for label in ("none", "card", "fee", "card, fee, app"):
        assert domain.parse(domain.answer(label, example), example) == label
    assert domain.parse(" the app:  no\nfees: yes\na lost card: no ", example) == "fee"  # in any order
    for text in ("", "card", "\na lost card: yes", f"{completion}\nfees: yes", completion.replace("no", "maybe")):
        assert domain.parse(text, example) is None
    assert domain.parse("\na lost card: yes\na lost card: no\nfees: no", example) is None
    assert domain.is_correct("card, app", "card, app") and not domain.is_correct("card", "card, app")
    assert domain.closed_labels() is None and domain.num_answers(example) == 8 and domain.candidates(example) is None
    assert not made(multi=False).in_pairs and made(calibrate="content_free").content_free(example) == domain.blanks


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        (["card", "tax"], "'tax' of .* is not one of the 3 classes card, fee, app .* the separator is ','"),
        ("card;app", "'card;app' of 'card;app' is not one of the 3 classes"),
        (["card", "card"], "'card' stands twice"),
        ("card, app, card", "'card' stands twice"),
        ("card,,app", "has an empty label; take it out, or write none for no label"),
        (["card", None], "has an empty label"),
        ("card, none", "'none' of 'card, none' is not one of"),
        (["card", " card "], "'card' stands twice"),
        (["Card"], r"'Card' of .* is not one of .*; did you mean 'card'\?"),
        ("apps", r"'apps' of 'apps' is not one of .*; did you mean 'app'\?"),
        ("", "'' has an empty label"),
        ("[card, fee]", r"'\[card' of .* is not one of"),
        (["card", 7], "'7' of .* is not one of the 3 classes"),
    ],
)
def test_a_cell_that_is_no_set_is_an_error_row(cell, problem):
    with pytest.raises(RowError, match=f"bad_label: .*{problem}"):
        made().gold({"label": cell})


@pytest.mark.parametrize("cell", [[["card"]], {"card": True}])
def test_a_list_in_a_list_and_an_object_are_no_labels(cell):
    with pytest.raises(RowError, match="not_a_text: "):
        made().gold({"label": cell})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"classes": ["a, b", "c"]}, r"domain.classes: 'a, b' holds ',', which separates .*; rename it"),
        ({"classes": ["none", "c"]}, "'none' means no label; rename the class"),
        ({"multi": "yes"}, "multi: 'yes': Input should be a valid "),
        ({"multi": {"separator": ";"}}, "multi: {'separator': ';'}: Input should be a valid boolean"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, problem):
    with pytest.raises(ConfigError, match=problem):
        made(**options)


def test_settings_that_do_not_go_with_several_labels_are_refused():
    run = {
        "name": "sets",
        "domain": {"name": "classification", "classes": ["a", "b"], "multi": True},
        "sources": {"rows": {"path": "rows.csv"}},
        "splits": {"source": {"from": "rows", "rows": 4}, "pool": {"from": "rows", "rows": 4}},
        "teacher": {"backend": "scripted"},
        "selection": {"budget": {"n": 2}},
    }

    def told(**changes):
        with pytest.raises(ConfigError) as caught:
            as_config(run | changes)
        return str(caught.value)

    assert as_config(run).teacher.decoding.stop == ("\n\n",)
    decoding = {"backend": "scripted", "decoding": {"normalise_options": True}}
    assert "set normalise_options: false in teacher.decoding" in told(teacher=decoding)
    constrained = {"decoding": {"constrained": "stepwise"}}
    assert "leave constrained out of teacher.decoding and evaluation" in told(evaluation=constrained)
    states = {"backend": "scripted", "states": ["output_last", "option2_output_last"]}
    assert "leave those of further options out of teacher.states" in told(teacher=states)
    given = {"backend": "given", "completion": "answer", "confidence": ["sure"]}
    assert "domain.multi needs scores of options, which the backends transformers," in told(teacher=given)


def test_the_classes_of_a_column_of_sets():
    assert parse_labels(["b", "a"], {"multi": True}) == parse_labels("a, b", {"multi": True}) == {"a", "b"}
    assert parse_labels("none", {"multi": True}) == set() and parse_labels("none", {}) == {"none"}
