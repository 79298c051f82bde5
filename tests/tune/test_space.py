"""Spaces of trust functions: what is drawn, what is refused, and that a point says all that differs."""

import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import optuna
import pytest
from scipy.stats import kstest

from curation.arms import find_fitted
from curation.config import TrustConfig
from curation.errors import ConfigError
from tune.space import PRESETS, Point, Space, expand_preset

STORED = ("prompt_last", "output_last")
BASE = TrustConfig(width=32, max_steps=100, class_weight=0.25)
NETWORKS = ("neural", "deep_ensemble", "attention")


def space(raw: dict[str, Any], base: TrustConfig = BASE) -> Space:
    return Space.of(raw, base, stored=STORED)


def drawn(found: Space, num: int) -> list[Point]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=7))
    return [found.draw(study.ask()) for _ in range(num)]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_gives_points_that_are_valid_and_reach_its_kinds(preset: str) -> None:
    points = drawn(space({"preset": preset}), 200)
    assert {point.kind for point in points} == set(PRESETS[preset].get("kind", ["neural"]))
    assert all(point.trust == TrustConfig.model_validate(point.trust.model_dump()) for point in points)
    assert len({str(point) for point in points}) > 100
    assert drawn(space({"preset": preset}), 200) == points, "a seed gives its point"


def test_what_a_kind_does_not_read_is_not_drawn_for_it() -> None:
    found = space(
        {
            "kind": ["linear_probe", "boosted_trees", "neural"],
            "depth": [1, 2, 3],
            "class_weight": [0.0, 1.0],
            "states": [["output_last"], ["prompt_last", "output_last"]],
            "options.boosted_trees.max_leaves": [4, 8],
        }
    )
    grid = [*{str(point): point for point in drawn(found, 2000)}.values()]
    assert Counter(point.kind for point in grid) == {"linear_probe": 4, "boosted_trees": 8, "neural": 12}
    for point in grid:
        of_network = point.trust.depth, point.trust.width
        assert of_network == (4, 512) if point.kind != "neural" else of_network[1] == 32
        assert point.trust.options.keys() == ({"boosted_trees"} if point.kind == "boosted_trees" else set())
        assert point.trust.max_steps == (100 if point.kind == "neural" else TrustConfig().max_steps)


def test_the_section_of_a_point_gives_the_point_again() -> None:
    raw = {**BASE.model_dump(), "search": True, "options": {"boosted_trees": {"l2": 1.0}}}
    base = TrustConfig.model_validate(raw)
    found = space({"preset": "kinds", "columns": [[], ["mean_logprob"]]}, base)
    for point in drawn(found, 100):
        section = TrustConfig.model_validate(json.loads(json.dumps(point.section(base))))
        assert Point.default(section) == replace(point, drawn={})
        assert not section.search and section.validation_fraction == base.validation_fraction
        if point.kind == "boosted_trees":
            assert section.options["boosted_trees"]["l2"] == 1.0


@pytest.mark.parametrize(
    ("dimension", "cdf"),
    [
        ({"uniform": [0.1, 0.5]}, lambda x: (x - 0.1) / 0.4),
        ({"log": [1e-4, 1e-1]}, lambda x: np.log(x / 1e-4) / math.log(1e3)),
    ],
)
def test_numbers_follow_their_distribution(dimension: dict[str, Any], cdf: Any) -> None:
    key = "dropout" if "uniform" in dimension else "learning_rate"
    values = [getattr(point.trust, key) for point in drawn(space({key: dimension}), 2000)]
    assert kstest(values, cdf).pvalue > 1e-3


@pytest.mark.parametrize("name", ["int", "log_int"])
def test_whole_numbers_reach_both_ends(name: str) -> None:
    depths = Counter(point.trust.depth for point in drawn(space({"depth": {name: [1, 4]}}), 3000))
    assert set(depths) == {1, 2, 3, 4} and all(isinstance(depth, int) for depth in depths)
    share = {"int": [1, 1, 1, 1], "log_int": [math.log((k + 0.5) / (k - 0.5)) for k in range(1, 5)]}[name]
    expected = 3000 * np.array(share) / sum(share)
    assert np.abs([depths[k + 1] - expected[k] for k in range(4)]).max() < 5 * math.sqrt(expected.max())


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, r"tune\.space: no dimension"),
        ({"depth": []}, r"tune\.space\.depth: a list without values"),
        ({"kind": []}, r"tune\.space\.kind: a list without values"),
        ({"depth": 3}, r"tune\.space\.depth: 3 is not a dimension; give a list of values, or one of \{uniform"),
        ({"depth": {"int": [1, 2], "log": [1, 2]}}, "is not a dimension"),
        ({"dropout": {"uniform": [0.5, 0.1]}}, r"dropout: uniform: \[0\.5, 0\.1\] has no points"),
        ({"learning_rate": {"log": [0.0, 1e-3]}}, r"learning_rate: log: \[0\.0, 0\.001\]: the logarithm needs"),
        ({"learning_rate": {"log": [-1.0, 1.0]}}, "the logarithm needs a lower end above 0"),
        ({"depth": {"int": [1.5, 3]}}, r"depth: int: \[1\.5, 3\]; give two whole numbers"),
        ({"dropout": {"uniform": [0.1, math.inf]}}, "give two finite numbers"),
        ({"dropout": {"uniform": [0.1]}}, "give two finite numbers"),
        ({"dropout": {"uniform": [0.1, 1.5]}}, r"tune\.space\.dropout: 1\.5 is refused: Input should be less than 1"),
        ({"dept": [1, 2]}, r"tune\.space\.dept: no such key; did you mean depth\?"),
        ({"validation_fraction": [0.1, 0.2]}, r"not searched over; set trust\.validation_fraction for all trials"),
        ({"source_share": [0.1, 0.2]}, r"not searched over; set trust\.source_share for all trials"),
        ({"calibration": ["platt", "beta"]}, r"tune\.space\.calibration: 'beta' is refused"),
        (
            {"states": [["layer3_output_last"]]},
            r"layer3_output_last is not stored \(stored: prompt_last, output",
        ),
        (
            {"columns": [[], ["token_logprobs"]]},
            r"token_logprobs is not stored \(stored: .*\); set teacher\.token_logprobs, and the source split",
        ),
        ({"columns": [["mean_logprobs"]]}, r"tune\.space\.columns: \['mean_logprobs'\] is refused"),
        ({"kind": ["naive"]}, r"tune\.space\.kind: 'naive' is not a trust function that is fitted"),
        (
            {"kind": ["forest"]},
            "'forest' is not a trust function that is fitted; known: stacked, fitted_confidence, linear_probe, b",
        ),
        ({"kind": ["linear_probe"], "depth": [1, 2]}, r"depth: none of the kinds linear_probe reads it"),
        ({"options.boosted_trees.l2": [0.0, 1.0]}, r"give options\.KIND\.NAME with a kind that is searched \(neural\)"),
        (
            {"kind": ["boosted_trees"], "options.boosted_trees.leaves": [3]},
            r"tune\.space\.options\.boosted_trees\.leaves: .*unexpected keyword argument 'leaves'",
        ),
        (
            {"kind": ["deep_ensemble"], "options.deep_ensemble.size": [3]},
            r"options\.deep_ensemble\.size: .*unexpected keyword argument 'size'",
        ),
        (
            {"kind": ["deep_ensemble"], "options.deep_ensemble.members": [3, "many"]},
            r"options\.deep_ensemble\.members: members is 'many', not an integer",
        ),
        ({"preset": "mine"}, r"tune\.space\.preset: 'mine' is not one of paper, kinds"),
    ],
)
def test_what_is_no_space_is_refused_by_its_key(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        space(raw)


def test_a_preset_tries_columns_that_all_labels_have() -> None:
    columns = ("mean_logprob", "min_logprob", "first_logprob", "last_logprob")
    found = space({"preset": "kinds"})
    assert {*columns} < {*found.inputs} and "token_logprobs" not in found.inputs
    assert {point.trust.columns for point in drawn(found, 60)} == {(), ("mean_logprob",), columns}
    assert space({"columns": [["margin", "negentropy"], ["option_share"]]}).inputs[-1] == "option_share"


def test_a_spelled_out_space_is_the_space_and_names_no_preset() -> None:
    for raw in ({"preset": "paper", "depth": [3]}, {"preset": "kinds", "kind": ["linear_probe", "boosted_trees"]}):
        told = expand_preset(raw)
        assert "preset" not in told and space(told) == space(raw)
    assert expand_preset({"preset": "paper", "depth": [3]})["depth"] == [3]


def test_principal_components_are_drawn_for_the_kinds_that_take_them() -> None:
    found = space({"kind": ["attention", "linear_probe"], "pca": [None, 8], "states": [["output_last"], [*STORED]]})
    asked = {(point.kind, point.trust.pca, point.trust.states) for point in drawn(found, 200)}
    states = (("output_last",), STORED)
    assert asked == {
        *(("attention", None, names) for names in states),
        *(("linear_probe", size, names) for size in (None, 8) for names in states),
    }
    with pytest.raises(ConfigError, match=r"tune\.space\.pca: none of the kinds attention reads it"):
        space({"kind": ["attention"], "pca": [8]})
    with pytest.raises(ConfigError, match=r"tune\.space\.kind: trust\.pca: 3, but attention reads state by state"):
        space({"kind": ["attention", "neural"], "depth": [1]}, BASE.model_copy(update={"pca": 3}))


def test_keys_of_ones_own_replace_those_of_the_preset() -> None:
    found = space({"preset": "kinds", "kind": ["linear_probe"], "class_weight": [0.5], "columns": [[]]})
    assert {point.trust.class_weight for point in drawn(found, 20)} == {0.5}
    assert "neural" in find_fitted(["neural"]) and found.kinds == ("linear_probe",)
