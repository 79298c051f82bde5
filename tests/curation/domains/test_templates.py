"""Templates over columns: what they read, what they refuse, and that no row makes them run away."""

import time

import pytest

from curation.domains.templates import MOST_CHARACTERS, Template
from curation.errors import ConfigError, RowError


def rendered(source: str, **row: object) -> str:
    return Template(source, key="domain.prompt").render(row)


def test_columns_are_the_free_names_and_those_of_row() -> None:
    source = "{% set a = one %}{% for x in many %}{{ x.name }}{{ loop.index }}{% endfor %}{{ a ~ row['the text'] }}"
    template = Template(source, key="domain.prompt")
    assert template.columns == ("many", "one", "the text")
    row = {"one": 1, "many": [{"name": "b"}, {"name": "c"}], "the text": "d", "other": "never seen"}
    assert template.render(row) == "b1c21d"


@pytest.mark.parametrize(
    ("source", "row", "text"),
    [
        ("{{ a }} + {{ b }} = ?", {"a": 3, "b": 4}, "3 + 4 = ?"),
        ("{{ a + b }}", {"a": 3, "b": 4}, "7"),
        ("{% if c %}{{ c }}: {% endif %}{{ a }}", {"a": "x", "c": None}, "x"),
        ("{{ words | join(', ') | upper }}", {"words": ["a", "b"]}, "A, B"),
        ("{{ a.strip().split('|')[1] | trim }}", {"a": " x | y "}, "y"),
        ("{% for i in range(3) %}{{ i }}{% endfor %}{{ a }}", {"a": ""}, "012"),
        ("{{ a | replace('x', 'yy') | truncate(3) }}", {"a": "xx"}, "yyy..."),
        ("{{ a | tojson }} {{ n | sum }} {{ 2.345 | round(1) }}", {"a": {"k": 1}, "n": [1, 2]}, '{"k": 1} 3 2.3'),
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
        ("{{ 2 ** a }}", r"\*\* cannot be used"),
        ("{{ a | center(100000) }}", "No filter named 'center'"),
        ("{{ a | _turns }}", "the filter _turns"),
        ("{{ lipsum(a) }}", "the call of lipsum"),
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
        ("{{ a ~ 'x' }}", {"a": None}, "null_field"),
        ("{{ a | upper }}", {"a": None}, "null_field"),
        ("{{ a | tojson(indent=4000000000) }}", {"a": [1]}, "bad_template"),
        ("{% for i in range(2000) %}{% if range(10000) | max %}{% endif %}{% endfor %}{{ a }}", {"a": 1}, "too_long"),
        ("{{ a | replace('o', 'x') }}", {"a": None}, "null_field"),
        ("{{ a | truncate(3) }}", {"a": None}, "null_field"),
        ("{{ a | default('x', true) }}", {"a": None}, ""),
        ("{{ a.missing }}", {"a": {}}, "bad_template"),
        ("{{ a / 0 }}", {"a": 1}, "bad_template"),
        ("{{ a.__class__ }}", {"a": 1}, "bad_template"),
        ("{{ a.format(1) }}", {"a": "{:>1000000000}"}, "bad_template"),
        ("{{ a.ljust(1000000000) }}", {"a": "x"}, "bad_template"),
        ("{{ a * 1000000000 }}", {"a": "x"}, "bad_template"),
        ("{{ a % 1 }}", {"a": "%1000000000d"}, "bad_template"),
        ("{{ 1.5 | round(a) }}", {"a": 10**9}, ""),
        ("{% for i in range(1000000000) %}{{ a }}{% endfor %}", {"a": 1}, "too_long"),
        ("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}{{ a }}", {"a": 1}, "too_long"),
        ("{% for i in range(5000) %}{% if a | lower == 'y' %}{% endif %}{% endfor %}", {"a": HUGE}, "too_long"),
        ("{% for i in range(5000) %}{% if a.split('x') == 1 %}{% endif %}{% endfor %}", {"a": HUGE}, "too_long"),
        ("{% set b = a ~ a %}{% set c = b ~ b %}{{ c }}", {"a": HUGE}, "too_long"),
        ("{% set b = a + a %}{{ b + b }}", {"a": HUGE}, "too_long"),
        ("{{ a | replace('x', 'y' ~ a) }}", {"a": HUGE}, "too_long"),
        ("{{ a | list | join(a) }}", {"a": HUGE}, "too_long"),
        ("{{ a }}{{ a }}", {"a": HUGE}, "too_long"),
        ("{% set b = a * a * a * a * a %}{{ b * b }}", {"a": 10**9}, "bad_template"),
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
    template = Template("{% for i in range(a) %}{{ i }}{% endfor %}", key="domain.prompt")
    with pytest.raises(RowError):
        template.render({"a": 100_000})
    assert template.render({"a": 5_000}).startswith("0123") and MOST_CHARACTERS > 20_000


def test_json_stands_in_a_prompt_as_it_is() -> None:
    assert Template("{{ a | tojson }}", key="domain.prompt").render({"a": ["1 < 2 & it's", None, "é"]}) == (
        '["1 < 2 & it\'s", null, "é"]'
    )
