"""Registries: entries by name and by path, what is refused, and that every line names code that is there."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from curation.arms import ARMS, RULES, TRUST, Draw, Fitted, Signal
from curation.config import BudgetConfig, StudentConfig
from curation.errors import ConfigError
from curation.registry import (
    BACKENDS,
    BUDGETS,
    DOMAINS,
    METHODS,
    Budget,
    Method,
    check_options,
    find_installed,
    load_code,
)
from curation.signals import SIGNALS

SOUP = Method("somewhere:SoupConfig", "somewhere:train_soup")


def test_an_entry_is_found_by_name_and_by_path() -> None:
    assert METHODS["sft"].trained_by == "train.sft:train_sft" and list(METHODS) == ["sft", "grpo", "dpo"]
    assert METHODS[f"{__name__}:SOUP"] is SOUP and f"{__name__}:SOUP" in METHODS
    assert "somewhere:ELSE" not in METHODS and "stf" not in METHODS


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("stf", "no student method is called 'stf'; did you mean 'sft'?"),
        ("soup", "no student method is called 'soup'; known: sft, grpo, dpo, or module:NAME"),
        ("somewhere:ELSE", "no student method is at 'somewhere:ELSE' (No module named 'somewhere')"),
        (f"{__name__}:ELSE", "has no attribute 'ELSE'"),
        ("curation.arms:TOP", "(it is a Rule, not a Method); name a constant of a module that Python finds"),
    ],
)
def test_what_is_no_entry_is_refused(name: str, told: str) -> None:
    with pytest.raises(ValueError) as caught:
        METHODS.find(name)
    assert told in str(caught.value)


def test_a_trust_function_elsewhere_is_an_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'from curation.arms import Column, Draw\nLONG = Column("length", "num_output_tokens")\n'
    (tmp_path / "own_arms_of_a_test.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    arm = ARMS["own_arms_of_a_test:LONG"]
    assert (arm.words, arm.trust, arm.ranked, arm.signal) == ("length", "own_arms_of_a_test:LONG", True, None)
    assert TRUST[arm.trust].column == "num_output_tokens"


@pytest.fixture
def own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with entry points, as an installer leaves it."""
    text = """
from curation.arms import Arm, Column, Rule
BRIEF = Column("brief answers", "num_output_tokens")
RULE = Rule("somewhere:Rule")
ARM = Arm(words="ours", trust="trust", rule=RULE)
"""
    (tmp_path / "own_parts_of_a_test.py").write_text(text)
    info = tmp_path / "own_parts_of_a_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-parts-of-a-test\nVersion: 1.0\n")
    groups = {"trust": "brief = BRIEF", "rules": "ruled = RULE", "arms": "ours = ARM"}
    points = (f"[curation.{group}]\n{line.replace('= ', '= own_parts_of_a_test:')}\n" for group, line in groups.items())
    (info / "entry_points.txt").write_text("".join(points))
    monkeypatch.syspath_prepend(tmp_path)
    find_installed.cache_clear()
    yield
    find_installed.cache_clear()


@pytest.mark.usefixtures("own_package")
def test_an_installed_package_names_its_parts() -> None:
    brief, ours = ARMS["brief"], ARMS["ours"]
    assert (brief.words, TRUST[brief.trust].column) == ("brief answers", "num_output_tokens")
    assert TRUST["brief"] is TRUST[brief.trust] and (ours.words, ours.rule) == ("ours", RULES["ruled"])
    both = ARMS["brief@ruled"]
    assert (both.words, both.rule.made_by, both.trust) == ("brief answers, ruled", "somewhere:Rule", brief.trust)
    assert "brief" not in list(ARMS)
    with pytest.raises(ValueError, match="no arm is called 'breif'; did you mean 'brief'"):
        ARMS.find("breif")
    with pytest.raises(ValueError, match="no selection rule is called 'rulde'; did you mean 'ruled'"):
        ARMS.find("brief@rulde")


def test_every_line_names_code_that_is_there() -> None:
    paths = [backend.made_by for backend in BACKENDS.values() if "vllm" not in backend.made_by]
    paths += [budget.counted_by for budget in BUDGETS.values()]
    paths += [path for method in METHODS.values() for path in (method.config, method.trained_by)]
    paths += [arm.rule.made_by for arm in ARMS.values()] + list(DOMAINS.values()) + list(SIGNALS.values())
    for trust in TRUST.values():
        paths += [trust.made_by] if isinstance(trust, Signal | Fitted) else []
        paths += [trust.fit] if isinstance(trust, Fitted) and trust.fit is not None else []
    assert all(callable(load_code(path)) for path in paths)
    assert all(issubclass(load_code(method.config), StudentConfig) for method in METHODS.values())
    assert [name for name, trust in TRUST.items() if isinstance(trust, Draw)] == ["naive"]


def test_settings_that_a_class_does_not_take_are_refused() -> None:
    check_options("selection.budget.n", load_code(BUDGETS["n"].counted_by), {"n": 3})
    with pytest.raises(ConfigError, match=r"selection\.budget\.n: Fixed takes n, and not \{'m': 3\}"):
        check_options("selection.budget.n", load_code(BUDGETS["n"].counted_by), {"m": 3})


HALF = Budget("somewhere:Half", ("right", "measured"))


def test_a_budget_elsewhere_says_what_it_reads() -> None:
    budget = BudgetConfig.model_validate({f"{__name__}:HALF": {"scale": 2}})
    assert (budget.rule, budget.options) == (f"{__name__}:HALF", {"scale": 2})
    assert budget.needs_gold and not budget.reads_scores and not budget.needs_calibration
    assert budget.purity_split == "source"
    assert BudgetConfig.model_validate(budget.model_dump()) == budget
    assert BudgetConfig.model_validate({f"{__name__}:HALF": None}).options == {}
    with pytest.raises(ValueError, match="takes exactly one of n, share"):
        BudgetConfig.model_validate({f"{__name__}:HALF": {}, "n": 3})


def test_registries_are_light() -> None:
    heavy = "import sys, curation.registry, curation.arms, curation.config\n"
    heavy += "print([name for name in ('ray', 'torch', 'transformers', 'lance', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_section_of_a_feature_is_imported_before_the_configuration() -> None:
    alone = "import curation.extras.analyze.config\nfrom curation.config import RunConfig\nprint(RunConfig.__name__)"
    done = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "RunConfig"
