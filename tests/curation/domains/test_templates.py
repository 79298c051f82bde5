"""Templates over columns: what they read, what they refuse, and that no row makes them run away."""

import time

import pytest

from curation.domains.templates import MOST_CHARACTERS, Template
from curation.errors import ConfigError, RowError


def rendered(source: str, **row: object) -> str:
    return Template(source, key="domain.prompt").render(row)


def test_columns_are_the_free_names_and_those_of_row() -> None:
    source = "{% for x in many %}{{ x.name }}{{ loop.index }}{% endfor %}{{ one }}{{ row['the text'] }}"
    template = Template(source, key="domain.prompt")
    assert template.columns == ("many", "one", "the text")
    row = {"one": 1, "many": [{"name": "b"}, {"name": "c"}], "the text": "d", "other": "never seen"}
    assert template.render(row) == "b1c21d"


@pytest.mark.parametrize(
    ("source", "row", "text"),
    [
        ("{{ a }} + {{ b }} = ?", {"a": 3, "b": 4}, "3 + 4 = ?"),
        ("{{ a[1:] }}{{ a[-1] }}{{ 'y' if b else 'n' }}", {"a": "xyz", "b": 0}, "yzzn"),
        ("{% if c %}{{ c }}: {% endif %}{{ a }}", {"a": "x", "c": None}, "x"),
        ("{{ words | join(', ') | upper }}", {"words": ["a", "b"]}, "A, B"),
        ("{{ a | default('x', true) }}{{ a | default('y') | trim }}", {"a": " "}, " "),
        ("{{ a | replace('x', 'yy') | truncate(3) }}", {"a": "xx"}, "yyy..."),
        ("{{ a | tojson }} {{ n[0] }} {{ n | length }}", {"a": {"k": 1}, "n": [1, 2]}, '{"k": 1} 1 2'),
    ],
)
def test_the_language(source: str, row: dict[str, object], text: str) -> None:
    assert rendered(source, **row) == text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ a", "line 1"),
        ("no column", "reads no column"),
        ("", "not a template"),
        ("{{ a }}{% macro m() %}{% endmacro %}", "Macro cannot be used"),
        ("{{ a }}{% include 'x' %}", "Include cannot be used"),
        ("{{ 2 ** a }}", "Pow cannot be used"),
        ("{{ a + a }}", "Add cannot be used"),
        ("{{ a * 1000000000 }}", "Mul cannot be used"),
        ("{{ a % 1 }}", "Mod cannot be used"),
        ("{{ a ~ a }}", "Concat cannot be used"),
        ("{% set b = a %}{{ b }}", "Assign cannot be used"),
        ("{{ a | tojson(indent=4000000000) }}", "Keyword cannot be used"),
        ("{{ a.ljust(1000000000) }}", "Call cannot be used"),
        ("{{ a.format(1) }}", "Call cannot be used"),
        ("{% for i in range(1000000000) %}{{ a }}{% endfor %}", "Call cannot be used"),
        ("{{ a | center(100000) }}", "No filter named 'center'"),
        ("{{ a | _turns }}", "Filter cannot be used"),
        ("{{ lipsum(a) }}", "Call cannot be used"),
        ("{{ a }}{{ row }}", "takes the name of a column"),
        ("{% for x in a recursive %}{{ loop(x) }}{% endfor %}", "cannot be used"),
    ],
)
def test_what_is_refused_when_a_template_is_made(source: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"domain.prompt.*{words}"):
        Template(source, key="domain.prompt")


HUGE = "x" * 600_000


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "row", "kind"),
    [
        ("{{ a }}", {"a": None}, "null_field"),
        ("{{ a | upper }}", {"a": None}, "null_field"),
        ("{{ a | tojson }}", {"a": None}, "null_field"),
        ("{{ a | replace('o', 'x') }}", {"a": None}, "null_field"),
        ("{{ a | truncate(3) }}", {"a": None}, "null_field"),
        ("{{ a | default('x', true) }}", {"a": None}, ""),
        ("{{ a.missing }}", {"a": {}}, "bad_template"),
        ("{{ a.__class__ }}", {"a": 1}, "bad_template"),
        ("{{ a.ljust }}", {"a": "x"}, "bad_template"),
        ("{{ a | join(1, 2) }}", {"a": []}, "bad_template"),
        ("{% for i in a %}{% for j in a %}{% endfor %}{% endfor %}", {"a": [0] * 999}, "too_long"),
        ("{% for i in a %}{% if a | lower == 'y' %}{% endif %}{% endfor %}", {"a": HUGE}, "too_long"),
        ("{% for i in a %}{% if b | trim == 'y' %}{% endif %}{% endfor %}", {"a": [0] * 99, "b": HUGE}, "too_long"),
        ("{% for i in a %}{% if b | tojson == 'y' %}{% endif %}{% endfor %}", {"a": [0] * 99, "b": [HUGE]}, "too_long"),
        ("{{ a | replace('x', a) }}", {"a": HUGE}, "too_long"),
        ("{{ a | replace('x', 'yy') }}", {"a": HUGE}, "too_long"),
        ("{{ a | join(a) }}", {"a": HUGE}, "too_long"),
        ("{{ a }}{{ a }}", {"a": HUGE}, "too_long"),
    ],
)  # fmt: skip
def test_a_row_that_fails_or_runs_away_is_an_error_row_at_once(source: str, row: dict[str, object], kind: str) -> None:
    template, start = Template(source, key="domain.prompt"), time.monotonic()
    if kind:
        with pytest.raises(RowError) as caught:
            template.render(row)
        assert caught.value.kind == kind and len(str(caught.value)) < 1_200
    else:
        template.render(row)
    assert time.monotonic() - start < 5


def test_a_row_after_one_that_ran_away_has_its_own_budget() -> None:
    template = Template("{% for i in a %}{{ i }}{% endfor %}", key="domain.prompt")
    with pytest.raises(RowError):
        template.render({"a": [*range(100_000)]})
    assert template.render({"a": [*range(5_000)]}).startswith("0123") and MOST_CHARACTERS > 20_000


def test_json_stands_in_a_prompt_as_it_is() -> None:
    assert Template("{{ a | tojson }}", key="domain.prompt").render({"a": ["1 < 2 & it's", None, "é"]}) == (
        '["1 < 2 & it\'s", null, "é"]'
    )
