"""A filter by a package without hidden states and hashed words says that it compares nothing, or is refused."""

from types import SimpleNamespace
from typing import Any

import pytest

from curation.config.filter import FilterConfig
from curation.errors import ConfigError
from curation.filter import opened


def config(on_shift: str) -> FilterConfig:
    return FilterConfig.model_validate(
        {
            "package": "packages/mine",
            "pool": {"path": "rows"},
            "output": {"path": "kept"},
            "keep": {"n": 5},
            "on_shift": on_shift,
        }
    )


@pytest.mark.parametrize(("states", "num_texts"), [((), 0), (("output_last",), 0), ((), 20)])
@pytest.mark.parametrize("on_shift", ["warn", "fail", "ignore"])
def test_a_package_without_states_and_words_is_told_of(
    states: tuple[str, ...], num_texts: int, on_shift: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = SimpleNamespace(states=states, num_texts=num_texts)
    package, said = SimpleNamespace(description=SimpleNamespace(sample=sample)), list[str]()
    fakes: dict[str, Any] = {
        "require_reachable": lambda home: None,
        "load": lambda path, allow_code: package,
        "check_package": lambda package, runs, anyway: (None, None),
        "check_content": lambda package: None,
        "check_home": lambda home: None,
        "say": said.append,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(opened, name, fake)
    has_nothing = not states and not num_texts
    if has_nothing and on_shift == "fail":
        with pytest.raises(
            ConfigError, match=r"on_shift: fail: packages/mine: has neither hidden states .* on_shift: warn or ignore"
        ):
            opened.check(config(on_shift))
        return
    assert opened.check(config(on_shift)) == (package, None)
    told = has_nothing and on_shift == "warn"
    assert len(said) == told and all("the pool is not compared with them" in text for text in said)
