"""Keys that nothing reads are refused; the paper's trust function by one key."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from curation.arms import TRUST, Fitted
from curation.config import RunConfig, TrustConfig
from curation.config.load import as_config, load_config
from curation.config.resolved import describe_resolved
from curation.config.trust import find_read_keys
from curation.errors import ConfigError
from curation.extras.ablate.config import load as load_ablation

EXAMPLES = Path(__file__).parents[3] / "examples"
FILES = [path for path in sorted(EXAMPLES.rglob("*.yaml")) if path.parent.name != "base"]
RAW: dict[str, Any] = {
    "name": "r",
    "domain": "mcqa",
    "sources": {"rows": {"path": "rows.parquet"}},
    "splits": {"source": {"from": "rows", "rows": 50}, "pool": {"from": "rows"}},
    "teacher": {"backend": "scripted"},
    "selection": {"budget": {"n": 5}, "arms": ["naive", "trust"]},
}
KINDS = [name for name, trust in TRUST.items() if isinstance(trust, Fitted)]
VALUES: dict[str, Any] = {
    "preset": "world_knowledge",
    "depth": 3,
    "width": 64,
    "expansion": 1.0,
    "dropout": 0.1,
    "stochastic_depth": 0.0,
    "learning_rate": 1e-3,
    "weight_decay": 0.0,
    "class_weight": 0.3,
    "batch_size": 64,
    "max_steps": 9,
    "patience": None,
    "standardise": False,
    "calibration": "none",
    "pca": 4,
    "fit_on": "all",
    "source_share": 0.5,
    "validation_fraction": 0.3,
}


def made(**sections: Any) -> RunConfig:
    return as_config({**RAW, **sections})


def refusal(**sections: Any) -> str:
    with pytest.raises(ConfigError) as error:
        made(**sections)
    return str(error.value)


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(EXAMPLES)) for path in FILES])
def test_no_example_has_a_key_that_nothing_reads(path: Path):
    ablates = path.parent.name == "ablations" and path.name != "puzzles.yaml"
    assert (load_ablation(path).variants if ablates else load_config(path).selection.arms) != ()


def test_a_key_is_refused_where_the_kind_does_not_read_it_and_kept_where_it_does():
    for kind in KINDS:
        for key, value in VALUES.items():
            trust = {"kind": kind, key: value}
            if key in find_read_keys(TRUST[kind]):  # type: ignore[arg-type]
                assert getattr(made(trust=trust).trust, key) == value
            elif not (key == "pca" and kind == "attention"):  # refused by its own rule
                told = refusal(trust=trust)
                assert told.startswith(f"config: trust.{key}: not read in this run, but by trust.kind "), told
                assert "neural" in told.partition("but by ")[2] or key == "pca"
    assert not {"depth", "preset", "calibration", "num_workers"} & find_read_keys(TRUST["stacked"])  # type: ignore[arg-type]


def test_all_keys_are_named_with_the_kinds_that_read_them():
    told = refusal(trust={"preset": "world_knowledge", "depth": 2, "width": 64, "learning_rate": 1e-3})
    assert told == (
        "config: trust.preset: not read in this run, but by trust.kind linear_probe, boosted_trees, deep_ensemble, "
        "attention, neural, ntf; trust.depth, trust.width, trust.learning_rate: not read in this run, but by "
        "trust.kind deep_ensemble, attention, neural, ntf; leave the key out, or add what reads it"
    )
    # Another arm that reads a key is enough; so is a search.
    arms = {"budget": {"n": 5}, "arms": ["trust", "linear_probe"]}
    assert made(trust={"class_weight": 0.1}, selection=arms).trust.class_weight == 0.1
    assert "trust.depth: " in refusal(trust={"depth": 2}, selection=arms)
    assert made(trust={"depth": 2}, tune={"trials": 3}).trust.depth == 2


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        (
            {"teacher": {"backend": "scripted", "vllm": {"hang_seconds": 9}}},
            "teacher.vllm: not read in this run, but by backend vllm",
        ),
        (
            {"teacher": {"backend": "scripted", "options": {"words": 3}}},
            "teacher.options: not read in this run, but by backends of your own",
        ),
        (
            {"teacher": {"model": {"path": "org/x"}, "scripted": {"state_size": 3}}},
            "teacher.scripted: not read in this run, but by backend scripted",
        ),
        (
            {"signals": {"second_teacher": {"path": "org/x"}}},
            "signals.second_teacher: not read in this run, but by the arm",
        ),
        ({"signals": {"reward": {"model": {"path": "org/x"}}}}, "signals.reward: not read in this run, but by the arm"),
        ({"signals": {"self_consistency": {"num_samples": 3}}}, "signals.self_consistency: not read in this run, but"),
        ({"signals": {"options": {"steadfast": {"a": 1}}}}, "signals.options.steadfast: not read in this run"),
        ({"trust": {"options": {"centroids": {}}}}, "trust.options.centroids: not read in this run"),
        ({"signals": {"options": {"my.mod:f": {"a": 1}}}}, "signals.options.my.mod:f: not read in this run"),
        ({"trust": {"options": {"my.mod:F": {"a": 1}}}}, "trust.options.my.mod:F: not read in this run"),
        (
            {"signals": {"models": {"big": {"path": "org/x"}}}},
            "signals.models.big: not read in this run, but by an arm that asks it",
        ),
        (
            {"selection": {"budget": {"n": 5, "cap": 9}}},
            "selection.budget.cap: not read in this run, but by budget oracle",
        ),
        (
            {"selection": {"budget": {"n": 5}, "difficulty_bins": 4}},
            "selection.difficulty_bins: not read in this run, but by stratified arms",
        ),
        (
            {"selection": {"budget": {"n": 5}, "gold_rollouts": {"num_samples": 2}}},
            "selection.gold_rollouts: not read in this run, but by arms that train on gold labels",
        ),
        ({"selection": {"budget": {"n": 5}, "arms": ["stacked", "trust"]}}, "selection.arms: stacked needs another"),
        (
            {"trust": {"kind": "neural"}, "selection": {"budget": {"n": 5}, "arms": ["trust", "neural"]}},
            "selection.arms: neural needs another trust.kind, by which the arm trust ranks: it would be fitted and",
        ),
        (
            {"selection": {"budget": {"n": 5}, "arms": ["trust", "ntf"]}, "trust": {"states": ["prompt_last"]}}
            | {"teacher": {"backend": "scripted", "states": ["prompt_last"]}},
            "selection.arms: ntf needs the state output_last, not among teacher.states; add it there",
        ),
    ],
)
def test_keys_that_no_backend_arm_or_budget_reads(sections: Mapping[str, Any], told: str):
    assert told in refusal(**sections)


def test_sections_that_are_null_or_of_parts_left_out_are_no_mistake():
    left_out = {"student": {"preset": "scratch"}, "chain": {"stop": None}, "evaluation": {"margin": 0.1}}
    made(signals={"reward": None, "second_teacher": None}, trust={}, **left_out)


def test_an_override_may_leave_keys_of_the_file_without_a_reader_but_sets_none_itself(tmp_path: Path):
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({**RAW, "trust": {"kind": "neural", "depth": 2}}))
    assert load_config(path, ["trust.kind=stacked"]).trust.kind == "stacked"
    with pytest.raises(ConfigError, match=r"^--set: trust.width: not read in this run, but by trust.kind deep"):
        load_config(path, ["trust.kind=stacked", "trust.width=8"])
    # A run's own record has every key, and is read back.
    config = load_config(path, ["trust={kind: linear_probe}"])
    record = tmp_path / "config.yaml"
    record.write_text(yaml.safe_dump(config.model_dump(mode="json", by_alias=True)))
    assert load_config(record) == config


def test_a_variant_of_an_ablation_sets_what_it_reads_and_all_of_them_what_one_does(tmp_path: Path):
    base = tmp_path / "base.yaml"
    base.write_text(yaml.safe_dump({**RAW, "trust": {"kind": "neural", "depth": 2}}))
    ablation = {"title": "T", "base": "base.yaml", "seeds": [1], "set": {"trust.width": 8}}
    path = tmp_path / "a.yaml"

    def loaded(**variants: Any) -> None:
        path.write_text(yaml.safe_dump({**ablation, "variants": variants}))
        load_ablation(path)

    loaded(network={}, probe={"trust.kind": "linear_probe"})
    with pytest.raises(ConfigError, match=r"set: trust\.width: not read in this run"):
        loaded(probe={"trust.kind": "linear_probe"})
    with pytest.raises(ConfigError, match=r"variants: trust\.depth: not read in this run"):
        loaded(network={}, probe={"trust.kind": "linear_probe", "trust.depth": 3})


# Depth, width, dropout, learning rate, weight decay, class weight: the rows of Table 15, and ours for other domains.
OLMO2, QWEN3 = "allenai/OLMo-2-0425-1B", "Qwen/Qwen3-0.6B-Base"
ROW = ("depth", "width", "dropout", "learning_rate", "weight_decay", "class_weight")
ROWS = [
    ("mcqa", OLMO2, (4, 512, 0.2, 5e-5, 1e-4, 1.0)),
    ("mcqa", QWEN3, (4, 512, 0.2, 5e-5, 1e-4, 0.5)),
    ("mcqa", "/models/Qwen3-0.6B/", (4, 512, 0.2, 5e-5, 1e-4, 0.5)),
    ("mcqa", "Qwen/Qwen2.5-0.5B", (4, 512, 0.2, 5e-5, 1e-4, 1.0)),
    ("mcqa", "google/gemma-3-270m", (4, 512, 0.2, 5e-5, 1e-4, 1.0)),
    ("math", QWEN3, (8, 1024, 0.2, 1e-5, 1e-3, 1.0)),
    ("math", "google/gemma-3-1b-it", (8, 1024, 0.2, 1e-5, 1e-3, 1.0)),
    ("chess", OLMO2, (4, 512, 0.2, 1e-5, 1e-4, 0.5)),
    ("chess", QWEN3, (4, 512, 0.2, 1e-5, 1e-4, 0.5)),
    ("next_token", QWEN3, (4, 512, 0.2, 1e-5, 1e-4, 0.5)),
]


def spelled_out(row: tuple[Any, ...]) -> TrustConfig:
    """The paper's trust function by the keys of the network."""
    row_keys = dict(zip(ROW, row, strict=True))
    return TrustConfig(kind="neural", fit_on="all", standardise=False, calibration="none", **row_keys)


@pytest.mark.parametrize(("domain", "teacher", "row"), ROWS)
def test_ntf_is_the_papers_settings_with_the_row_of_domain_and_teacher(domain: str, teacher: str, row: tuple[Any, ...]):
    named = {"kind", "preset"}
    task = {"name": domain, "of": "chess"} if domain == "next_token" else domain
    sections = {"domain": task, "teacher": {"model": {"path": teacher}, "states": ["prompt_last", "output_last"]}}
    alone = made(trust={"kind": "ntf"}, **sections)
    assert alone.trust.model_dump(exclude=named) == spelled_out(row).model_dump(exclude=named)
    # As an arm beside another kind it is the same, whatever the section says for that kind.
    selection = {"budget": {"n": 5}, "arms": ["trust", "ntf"]}
    trust = {"kind": "deep_ensemble", "states": ["prompt_last"], "columns": ["margin"], "depth": 1, "class_weight": 0.1}
    beside = made(trust=trust, selection=selection, **sections)
    assert beside.fit_of("ntf") == alone.trust and beside.fit_of("deep_ensemble") == beside.trust


@given(st.sampled_from(sorted(set(VALUES) - {"preset", "pca"})))
def test_what_a_file_sets_goes_before_the_papers_and_validate_says_so(key: str):
    config = made(trust={"kind": "ntf", key: VALUES[key]}, teacher={"model": {"path": QWEN3}})
    assert getattr(config.trust, key) == VALUES[key]
    (line,) = [line for line in describe_resolved(config) if line.startswith("trust: ")]
    assert line == "trust: ntf, preset world_knowledge_qwen3; reads output_last"


def test_the_quickstart_has_the_papers_trust_function_by_one_line():
    text = (EXAMPLES / "quickstart.yaml").read_text()
    lines = [line for line in text.splitlines() if line.startswith("trust: ")]
    assert len(lines) == 1 and "`trust: {kind: ntf, cpus_per_worker: 2}`" in text
    changed = yaml.safe_load(text.replace(lines[0], "trust: {kind: ntf, cpus_per_worker: 2}"))
    config = as_config(changed)
    assert config.trust == spelled_out(ROWS[7][2]).model_copy(update={"kind": "ntf", "cpus_per_worker": 2})
    told = list(describe_resolved(load_config(EXAMPLES / "quickstart.yaml", ["trust.kind=ntf"])))
    assert any(line.startswith("trust: ntf, preset strategy_games; reads ") for line in told)


def test_ntf_is_not_searched_over():
    from tune.space import Space

    with pytest.raises(ConfigError, match=r"tune\.space\.kind: ntf has the paper's settings and none to try"):
        Space.of({"kind": ["ntf", "neural"], "depth": [1, 2]}, TrustConfig(), stored=["output_last"])
