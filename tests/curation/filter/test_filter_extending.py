"""The point of a filter before its labels: at most one feature's gate, and none where no feature asks for one."""

from types import SimpleNamespace
from typing import Any

import pytest

from curation import features
from curation.errors import ConfigError
from curation.features import Feature, list_flags, sections
from curation.filter.described import FilterGate, FilterInputs, settle_gate

OTHERS: dict[str, Any] = {"package": None, "rounds": {"0000": 4}, "cut_rounds": None, "labelled": {}}


def settle(inputs: FilterInputs) -> FilterGate:
    return FilterGate(words=(f"{inputs.section} of {sum(inputs.rounds.values())} rows",))


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Feature(section="", of="filter", gate=f"{__name__}:settle")
    monkeypatch.setattr(features, "features", lambda: {"sieve": made, "mesh": made})


def test_the_gate_is_that_of_the_one_feature_that_the_filter_has(two: None):
    assert settle_gate(config=SimpleNamespace(sieve="a sieve"), **OTHERS).words == ("a sieve of 4 rows",)
    off = settle_gate(config=SimpleNamespace(), **OTHERS)
    assert off.rule is None and off.words == off.states == off.inputs == () and off.collect([], True) == {}
    with pytest.raises(ConfigError, match="sieve and mesh: each drops rows before they are labelled; give one"):
        settle_gate(config=SimpleNamespace(sieve="a sieve", mesh="a mesh"), **OTHERS)


def test_sections_and_options_are_those_of_filters():
    assert list(sections(set(), "filter")) == ["cascade"] == list(list_flags())
    assert "cascade" not in sections(set(), "run")
    with pytest.raises(ConfigError, match=r"cascade of curation\.features: every filter has a key of that name"):
        sections({"cascade"}, "filter")
