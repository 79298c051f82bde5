import copy
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from curation.arms import ARMS
from curation.config import DomainConfig, ModelConfig, RunConfig, SftConfig, TeacherConfig, TrustConfig
from curation.config.load import load_config, parse_config
from curation.config.models import GenerationConfig
from curation.errors import ConfigError

ROOT = Path(__file__).parents[3]
RAW: dict[str, Any] = {
    "name": "tiny",
    "sources": {"puzzles": {"path": "data/puzzles.parquet"}, "other": {"path": "s3://bucket/rows"}},
    "splits": {
        "adapt": {"from": "puzzles", "rows": 10},
        "source": {"from": "puzzles", "fraction": 0.4},
        "test": {"from": "puzzles", "rows": 10},
        "pool": {"from": "puzzles"},
        "audit": True,
    },
    "teacher": {
        "model": {"init": {"hidden_size": 16, "num_layers": 1}},
        "adapt": {"preset": "scratch", "lora": {"rank": 4}},
        "states": ["prompt_last", "output_last"],
    },
    "trust": {"states": ["output_last"]},
    "selection": {"budget": {"n": 5}, "arms": ["naive", "trust", "ground_truth"]},
    "generations": [{"student": {"path": "org/base"}}, {"student": {"path": "bases/student"}}],
}


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """``RAW`` with values at dotted keys set, or deleted where the new value is ``...``."""
    raw = copy.deepcopy(RAW)
    for key, value in changes.items():
        *parents, last = key.split(".")
        node = raw
        for parent in parents:
            node = node[int(parent)] if isinstance(node, list) else node.setdefault(parent, {})
        if value is ...:
            del node[last]
        else:
            node[last] = value
    return raw


def refusal(changes: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(changed(changes), "dir/f.yaml")
    return str(caught.value)


def test_the_example_of_this_file_is_valid_and_frozen():
    config = parse_config(RAW)
    assert config.splits.pool.source == "puzzles" and config.seed == 0
    with pytest.raises(ValidationError):
        config.seed = 1  # type: ignore[misc]
    assert parse_config(config.model_dump(mode="json", by_alias=True)) == config  # what a run writes, it reads


def test_gold_arms_are_defaults_only_with_an_audit_set():
    weak = ("naive", "naive_parsed", "internal_confidence", "trust")
    assert parse_config(changed({"selection.arms": ...})).selection.arms == (*weak, "trust_gold", "ground_truth")
    assert parse_config(changed({"selection.arms": ..., "splits.audit": ...})).selection.arms == weak
    assert parse_config(RAW).selection.arms == ("naive", "trust", "ground_truth")


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("sed", "seed"),
        ("generation", "generations"),
        ("teacher.stats", "states"),
        ("sources.puzzles.pth", "path"),
        ("splits.calibraton", "calibration"),
        ("splits.pool.row", "rows"),
        ("splits.pool.form", "from"),
        ("teacher.model.init.hidden_sise", "hidden_size"),
        ("teacher.adapt.lora.ranks", "rank"),
        ("teacher.actors.num_gpu", "num_gpus"),
        ("evaluation.decoding.temprature", "temperature"),
        ("selection.budget.cpa", "cap"),
        ("generations.1.student.pat", "path"),
        ("generations.0.studnt", "student"),
        ("student.epoch", "epochs"),
        ("trust.standardize", "standardise"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(key: str, near: str):
    assert refusal({key: 1}).startswith(f"dir/f.yaml: {key}: unknown key; did you mean {near!r}?")


def test_an_unknown_key_near_to_nothing_lists_the_known_ones():
    assert "ray.zzz: unknown key; known here: address, max_stages, num_cpus" in refusal({"ray.zzz": 1})
    message = refusal({"zzz": 1})
    assert "zzz: unknown key; known here: " in message and "selection, signals, sources, splits, student" in message


def test_a_source_named_like_a_key_gets_the_same_hint():
    assert "sources.path.pth: unknown key; did you mean 'path'?" in refusal({"sources.path": {"path": "a", "pth": 1}})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("selection.budget.n", "many"),
        ("selection.budget.n", 2.5),
        ("seed", -1),
        ("seed", [1]),
        ("name", 5),
        ("name", "../x"),
        ("name", ""),
        ("sources", []),
        ("sources", {}),
        ("sources.puzzles", "a.parquet"),
        ("sources.puzzles.format", "xml"),
        ("splits.source.fraction", 1.0),
        ("splits.source.fraction", 0),
        ("splits.pool.rows", 0),
        ("teacher.states", "output_last"),
        ("teacher.states", ["middle"]),
        ("teacher.states", ["layer0_output_last"]),
        ("teacher.states", ["output_last", "layer01_output_last"]),
        ("teacher.states", ["layerx_output_last"]),
        ("teacher.states", ["layer3"]),
        ("trust.states", ["layer3_middle"]),
        ("teacher.state_dtype", "int8"),
        ("teacher.store_states", "maybe"),
        ("teacher.store_states", {"pca": 4}),
        ("teacher.max_error_rate", 1.5),
        ("teacher.model.init.hidden_size", -16),
        ("trust", None),
        ("trust", 5),
        ("trust.preset", "chess"),
        ("trust.dropout", 1.0),
        ("trust.source_share", 0.0),
        ("trust.source_share", 1.5),
        ("trust.pca", 0),
        ("trust.calibration", "beta"),
        ("student.preset", "fast"),
        ("student.adam_betas", 0.9),
        ("student.lora", "none"),
        ("generations", {"student": "x"}),
        ("evaluation.decoding.top_p", 0),
        ("commit_seconds", "2 s"),
        ("fragment_mb", 0),
    ],
)
def test_a_wrong_value_is_named_with_its_file_and_key(key: str, value: Any):
    message = refusal({key: value})
    assert message.startswith(f"dir/f.yaml: {key}") and "\n" not in message
    shown = value[-1] if isinstance(value, list) and value else value
    assert repr(shown) in message


@pytest.mark.parametrize("key", ["teacher.states", "trust.states"])
def test_a_wrong_name_of_a_state_is_told_the_form(key: str):
    assert refusal({key: ["layerx_output_last"]}) == (
        f"dir/f.yaml: {key}.0: 'layerx_output_last' names no hidden state; write prompt_last, output_first, "
        "output_last, output_mean for the last layer's, layer<L>_<position> for those of layer L from 1 on, "
        "e.g. layer21_output_last, option<R>_output_last for the R-th likeliest option's, R from 2 on"
    )


def test_states_of_other_layers():
    named = ["layer2_output_last", "output_last", "layer11_output_mean"]
    init = {"hidden_size": 16, "num_layers": 12}
    config = parse_config(changed({"teacher.states": named, "teacher.model.init": init, "trust.states": named[1:]}))
    assert (config.teacher.states, config.trust.states) == (tuple(named), tuple(named[1:]))
    for layer in (12, 30):
        told = refusal({"teacher.states": [f"layer{layer}_output_last"], "teacher.model.init": init})
        assert f"teacher: states: 'layer{layer}_output_last' asks for layer {layer} of a model that has 12; " in told
        assert "; take 1 to 11, or 'output_last', the last layer's after the final norm" in told


@pytest.mark.parametrize("key", ["trust.preset", "student.preset"])
def test_a_preset_of_the_wrong_type_is_named_too(key: str):
    assert f"{key}: ['a']" in refusal({key: ["a"]})


def test_a_budget_of_minus_five_is_refused_with_file_key_and_value(tmp_path: Path):
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(changed({"selection.budget.n": -5})))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == f"{path}: selection.budget.n: -5: Input should be greater than 0"


def test_all_problems_are_told_at_once():
    message = refusal({"selection.budget.n": -5, "sed": 1, "splits.pool.from": ...})
    assert all(part in message for part in ("budget.n: -5", "sed: unknown key", "splits.pool.from: Field required"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"splits.source.rows": 5}, "splits.source: takes rows or fraction, not both; leave one out"),
        ({"teacher.model.path": "org/base"}, "teacher.model: takes exactly one of path and init"),
        ({"generations.0.student": {}}, "generations.0.student: takes exactly one of path and init"),
        ({"selection.budget.oracle": True}, "selection.budget: takes exactly one of n, share, oracle, fit_purity,"),
        ({"selection.budget.threshold": 0}, "threshold, risk; found n and threshold"),
        ({"selection.budget": {}}, "selection.budget: takes exactly one of n, share, oracle"),
        ({"teacher.actors": {"min": 3, "max": 2}}, "teacher.actors: max 2 is below min 3"),
        ({"teacher.actors": {"max": 4, "initial": 5}}, "teacher.actors: initial 5 is not between min 1 and max 4"),
        ({"teacher.states": []}, "teacher: states must name at least one position"),
        ({"teacher.states": ["output_last", "output_last"]}, "teacher.states: names 'output_last' twice; name each"),
        ({"selection.arms": []}, "selection.arms: []: Tuple should have at least 1 item"),
        ({"selection.arms": ["naive", "naive"]}, "selection.arms: names 'naive' twice; name each once"),
        ({"selection.arms": ["naive", "nural"]}, "selection: no arm is called 'nural'; did you mean 'neural'?"),
        ({"selection.arms": ["zzz"]}, "no arm is called 'zzz'; known: naive, naive_parsed, "),
        ({"selection.budget.reference": "neurl"}, "no arm is called 'neurl'; did you mean 'neural'?"),
        ({"selection.budget.reference": "naive"}, "budget.reference: 'naive' ranks no weak labels"),
        ({"selection.budget.reference": "trust_gold"}, "budget.reference: 'trust_gold' ranks no weak labels"),
        ({"evaluation.num_runs": 3}, "evaluation: num_runs: 3 greedy runs are all the same; set decoding.temperature"),
        (
            {"signals.reward": {"model": {"path": "org/armo"}, "kind": "custom"}},
            "signals.reward: kind custom runs the model's own code: read it, then set model.allow_remote_code: true",
        ),
        ({"teacher.model": ...}, "backend transformers needs teacher.model: set it"),
        (
            {"teacher.vllm.engine.tensor_parallel_size": 4, "teacher.actors.num_gpus": 2},
            "teacher: vllm.engine.tensor_parallel_size 4 and actors.num_gpus 2 differ",
        ),
    ],
)
def test_keys_that_exclude_or_need_each_other(changes: dict[str, Any], told: str):
    assert told in refusal(changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"splits.pool.from": "puzles"}, "splits.pool.from: 'puzles' needs a source of that name, and"),
        (
            {"trust.states": ["output_last", "output_mean"]},
            "trust.states needs the state output_mean, not among teacher.states; add it there",
        ),
        (
            {"trust.columns": ["mean_logprob", "confidence"]},
            "trust.columns.1: 'confidence': Input should be 'mean_logprob', ",
        ),
        (
            {"trust.columns": ["token_logprobs"]},
            "trust.columns needs log-probabilities of tokens, which are not stored: set teacher.token_logprobs above 0",
        ),
        ({"trust.states": ["layer1_output_last"]}, "trust.states needs the state layer1_output_last, not"),
        (
            {"teacher.states": ["output_last", "option2_output_last"]},
            "teacher.states: a state of an answer option needs options to choose from, and answers of splits.source "
            "are generated, or leave it out",
        ),
        ({"splits.adapt": ...}, "teacher.adapt needs rows to learn the task from: add splits.adapt"),
        (
            {"splits.test": ..., "generations": [{"student": {"path": "org/base"}}] * 2},
            "a chain of generations needs a test split: add splits.test",
        ),
        ({"splits.audit": False}, "the ground_truth arm needs the pool's gold labels: set splits.audit: true"),
        ({"splits.audit": False, "selection.arms": ["naive", "trust_gold"]}, "the trust_gold arm needs the pool's"),
        ({"splits.audit": False, "selection.arms": ["naive_distribution_aware"]}, "the naive_distribution_aware arm"),
        (
            {"splits.audit": False, "selection": {"budget": {"oracle": True}, "arms": ["naive", "trust"]}},
            "the oracle budget needs the pool's gold labels: set splits.audit: true",
        ),
        (
            {"splits.audit": False, "selection": {"budget": {"fit_purity": True}, "arms": ["naive"]}},
            "the fit_purity budget needs the pool's gold labels",
        ),
        (
            {"selection.arms": ["trust", "icl_confidence"]},
            "the icl_confidence arm needs demonstrations of the pool's domain: add splits.shots",
        ),
        (
            {"selection.arms": ["trust", "ensemble"]},
            "the ensemble arm needs another model than the teacher: set signals.second_teacher",
        ),
        (
            {"selection.arms": ["trust", "reward"]},
            "the reward arm needs another model than the teacher: set signals.second_teacher, signals.reward.model or",
        ),
        ({"selection.budget.reference": "reward"}, "the reward arm needs another model than the"),
        ({"teacher.backend": "transformer"}, "no backend is called 'transformer'; did you mean 'transformers'?"),
        ({"teacher.backend": "json:dumps"}, "no backend is at 'json:dumps' (it is a function, not a Backend)"),
        ({"student.method": "stf"}, "student: no student method is called 'stf'; did you mean 'sft'?"),
        ({"student": {"epochz": 2}}, "student.epochz: unknown key; did you mean 'epochs'?"),
        ({"student": {"lora": {"ranks": 2}}}, "student.lora.ranks: unknown key; did you mean 'rank'?"),
        ({"selection.arms": ["trust", "curation.arms:TOP"]}, "no arm is at 'curation.arms:TOP' (it is a Rule, not a"),
        ({"selection.arms": ["trust", "nowhere:ARM"]}, "no arm is at 'nowhere:ARM' (No module named 'nowhere')"),
        ({"selection.budget": {"nowhere:N": {}}}, "no budget is at 'nowhere:N' (No module named 'nowhere')"),
        ({"selection.budget": {"shre": 0.5}}, "selection.budget.shre: unknown key; did you mean 'share'?"),
        ({"trust.pca": 8, "trust.kind": "attention"}, "the function attention needs inputs state by state, which"),
        ({"trust.pca": 8, "selection.arms": ["trust", "attention"]}, "inputs state by state, which trust.pca mixes"),
        ({"signals.models": {"judge": {"path": "org/b"}}}, "models: judge has a key of its own; take another name"),
        (
            {"domain": "math", "teacher.decoding": {"constrained": "scored"}},
            "teacher.decoding.constrained: scored needs a domain that lists the possible answers of a row: chess, mcqa",
        ),
        (
            {"domain": {"name": "mcqa", "generative": True}, "evaluation.decoding": {"constrained": "stepwise"}},
            "(docs/extending.md), and that of splits.test does not, or leave it out",
        ),
        (
            {"evaluation.preset": "strategy_games", "evaluation.decoding": {"constrained": "scored"}},
            "constrained: scored takes the likeliest answer and draws none, but temperature is 0.7; set temperature: 0",
        ),
        (
            {"teacher.decoding": {"constrained": "stepwise"}, "teacher.states": ["output_last", "option2_output_last"]},
            "teacher.states: a state of an answer option needs options to choose from, and answers of splits.source",
        ),
        (
            {"judge": {"model": {"path": "org/judge"}, "decoding": {"constrained": "scored"}}},
            "a judge answers in words of its own; leave it out",
        ),
        ({"teacher.adapt": {"method": "soup"}}, "teacher.adapt: a teacher's format is taught by sft; leave method out"),
        (
            {"judge": {"model": {"path": "org/judge"}, "splits": ["pool", "sauce"]}},
            "judge.splits needs sauce, which is not among the splits",
        ),
        (
            {"splits.probes": {"far": {"from": "puzles", "regime": "OOD-dist"}}},
            "splits.probe-far.from: 'puzles' needs a source",
        ),
        ({"chain.arms": ["internal_confidence"]}, "chain.arms needs internal_confidence, which is not among"),
        ({"chain": {"arms": ["naive", "naive"]}}, "chain.arms: names 'naive' twice; name each once"),
        ({"chain": {"shares": 1}}, "generations: 2 needs 2 shares of the pool: set chain.shares: 2 or more"),
        ({"splits.overlap": "report"}, "a chain of generations needs splits without common questions"),
    ],
)
def test_rules_across_sections(changes: dict[str, Any], told: str):
    message = refusal(changes)
    assert told in message and message.startswith("dir/f.yaml: ")


def test_only_parts_that_can_be_left_out_are_told_so():
    oracle = {"splits.audit": False, "selection": {"budget": {"oracle": True}, "arms": ["naive", "trust"]}}
    attention = {"trust.pca": 8, "trust.kind": "attention"}
    for changes in (oracle, attention, {"splits.pool.from": "puzles"}, {"teacher.model": ...}):
        told = refusal(changes)
        assert " needs " in told and "or leave it out" not in told
    told = refusal({"splits.audit": False, "selection.arms": ["naive", "trust_gold"]})
    assert "the trust_gold arm needs the pool's gold labels: set splits.audit: true, or leave it out" in told


def test_risk_needs_a_calibration_split_and_a_share_of_noise():
    told = "selection.budget.risk needs labelled rows of the pool's own distribution: add splits.calibration"
    assert told in refusal({"selection.budget": {"risk": {"alpha": 0.1}}})
    calibrated = {"splits.calibration": {"from": "puzzles", "rows": 5}}
    for alpha in (0, 1, 1.5, -0.1):
        assert f"selection.budget.risk.alpha: {alpha}: " in refusal({"selection.budget": {"risk": {"alpha": alpha}}})
    assert "selection.budget.risk.alpha: Field required" in refusal({"selection.budget": {"risk": {"delta": 0.1}}})
    assert "selection.budget.risk.rule: 'bonferroni': " in refusal({"selection.budget.risk": {"rule": "bonferroni"}})
    budget = parse_config(changed({**calibrated, "selection.budget": {"risk": {"alpha": 0.2}}})).selection.budget
    assert budget.rule == "risk" and budget.risk is not None and not budget.needs_gold
    expected = {"alpha": 0.2, "delta": 0.1, "rule": "fixed_sequence", "kind": "threshold", "per": "all"}
    assert budget.risk.model_dump() == expected


@pytest.mark.parametrize("rule", [{"n": 3}, {"share": 0.5}, {"oracle": True}, {"fit_purity": True}, {"threshold": 0.0}])
def test_each_budget_rule_stands_alone(rule: dict[str, Any]):
    budget = parse_config(changed({"selection.budget": rule})).selection.budget
    assert budget.rule == next(iter(rule)) and budget.reference == "trust"
    assert budget.needs_gold == (budget.rule in ("oracle", "fit_purity"))


def test_a_domain_takes_a_name_or_a_name_and_options():
    config = parse_config(changed({"domain": "mcqa"}))
    assert (config.domain.name, config.domain.options) == ("mcqa", {})
    own = {"name": "mcqa", "option_style": "texts"}
    config = parse_config(changed({"domain": own, "sources.other": {"path": "x", "domain": "math"}}))
    assert config.domain.options == {"option_style": "texts"}
    probes = {"far": {"from": "other", "regime": "OOD-domain"}}
    config = parse_config(
        changed({"domain": own, "sources.other": {"path": "x", "domain": "math"}, "splits.probes": probes})
    )
    assert config.domain_of("probe-far") == DomainConfig(name="math") and config.domain_of("pool") == config.domain
    assert parse_config(config.model_dump(mode="json", by_alias=True)) == config
    assert "domain.name: Field required" in refusal({"domain": {"option_style": "texts"}})
    assert "domain: 5: " in refusal({"domain": 5})


def test_rules_across_sections_that_do_not_apply():
    signals = {"second_teacher": {"path": "org/b"}, "reward": {"model": {"path": "org/r"}}}
    arms = [arm for arm in ARMS if arm not in ("order_agreement", "stacked")]  # of pairs of answers alone; trust itself
    every = {"selection.arms": arms, "signals": signals, "splits.shots": {"from": "puzzles", "rows": 5}}
    assert set(parse_config(changed(every)).selection.arms) == set(arms)
    parse_config(changed({"evaluation": {"num_runs": 5, "decoding": {"temperature": 0.6}}}))
    parse_config(changed({"splits.adapt": ..., "teacher.adapt": ...}))
    parse_config(changed({"splits.test": ..., "generations": []}))
    parse_config(changed({"splits.audit": False, "selection.arms": ["naive", "trust"]}))
    parse_config(changed({"chain.arms": ["internal_confidence"], "generations": RAW["generations"][:1]}))
    parse_config(changed({"teacher": {"backend": "scripted"}}))


# The paper's tables, as its appendix prints them.
NTF_TABLE = {
    "world_knowledge": (4, 512, 0.2, 5e-5, 1e-4, 1.0),
    "quantitative_reasoning": (8, 1024, 0.2, 1e-5, 1e-3, 1.0),
    "strategy_games": (4, 512, 0.2, 1e-5, 1e-4, 0.5),
}
NTF_KEYS = ("depth", "width", "dropout", "learning_rate", "weight_decay", "class_weight")
SFT_TABLE = {
    "max_length": 1024,
    "global_batch_size": 128,
    "micro_batch_size": 4,
    "learning_rate": 1e-4,
    "adam_betas": (0.9, 0.95),
    "weight_decay": 0.01,
    "schedule": "cosine",
    "warmup_ratio": 0.1,
    "max_grad_norm": 1.0,
    "gradient_checkpointing": True,
}


@pytest.mark.parametrize("preset", NTF_TABLE)
def test_the_trust_functions_presets_are_the_papers_table(preset: str):
    trust = TrustConfig(preset=preset)
    assert tuple(getattr(trust, key) for key in NTF_KEYS) == NTF_TABLE[preset]


def test_the_defaults_are_those_of_chess():
    assert TrustConfig() == TrustConfig(preset="strategy_games")
    assert TrustConfig().states == ("output_last",)
    assert SftConfig() == SftConfig(preset="paper")


def test_the_sft_preset_is_the_papers_table():
    sft = SftConfig(preset="paper")
    assert {key: getattr(sft, key) for key in SFT_TABLE} == SFT_TABLE
    assert sft.lora is not None and (sft.lora.rank, sft.lora.alpha, sft.lora.dropout) == (16, 32, 0.0)
    assert [sft.num_epochs(rows) for rows in (1, 1_999, 2_000, 50_000)] == [3, 3, 1, 1]
    assert SftConfig(epochs=2).num_epochs(50_000) == 2


def test_what_is_trained_has_no_adapter_of_its_own():
    adapted = {"path": "org/base", "adapter": "org/adapter"}
    for refused in (
        lambda: GenerationConfig(student=adapted),
        lambda: GenerationConfig(student={"path": "org/base"}, students={"small": {"model": adapted}}),
        lambda: TeacherConfig(model=adapted, adapt={}),
    ):
        with pytest.raises(ValidationError, match="merge it into its model"):
            refused()
    assert TeacherConfig(model=adapted).adapt is None


def test_named_keys_win_over_presets():
    trust = parse_config(changed({"trust": {"preset": "quantitative_reasoning", "width": 64, "patience": None}})).trust
    assert (trust.depth, trust.width, trust.patience, trust.weight_decay) == (8, 64, None, 1e-3)
    teacher = parse_config(RAW).teacher
    assert teacher.adapt is not None and teacher.adapt.learning_rate == 1e-3 and teacher.adapt.epochs == 3
    assert teacher.adapt.lora is not None and teacher.adapt.lora.rank == 4  # scratch has none
    assert SftConfig(preset="scratch").lora is None and not SftConfig(preset="scratch").gradient_checkpointing
    # a preset's own value, said out loud, is still the user's
    assert SftConfig(preset="scratch", learning_rate=1e-4).learning_rate == 1e-4


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "conf" / "f.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(RAW))
    return path


def test_overrides_reach_every_depth(path: Path):
    config = load_config(
        path,
        [
            "seed=3",
            "selection.budget.n=7",
            "generations.1.student.path=org/other",
            "selection.arms.1=internal_confidence",
            "evaluation.decoding.stop=[x, 'y=z']",  # a section that the file has not; a value with an equals sign
            "ray.address=auto",
            "teacher.adapt.lora=null",
            "sources.third={path: /abs/x.csv}",
            "chain.arms=[naive]",
            "seed=4",
        ],
    )
    assert config.seed == 4 and config.selection.budget.n == 7  # the last one wins
    assert [generation.student.path for generation in config.generations] == ["org/base", "org/other"]
    assert config.selection.arms == ("naive", "internal_confidence", "ground_truth")
    assert config.evaluation.decoding.stop == ("x", "y=z") and config.ray.address == "auto"
    assert config.teacher.adapt is not None and config.teacher.adapt.lora is None
    assert config.sources["third"].path == "/abs/x.csv"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("seed", "'seed': is not of the form a.b=value"),
        ("=3", "'=3': is not of the form a.b=value"),
        ("seed=[", "is not YAML"),
        ("name.x=3", "name is a value, not a section"),
        ("teacher.states.0.x=3", "0 is a value, not a section"),
        ("sed=3", "sed: unknown key; did you mean 'seed'?"),
        ("selection.budget.n=-5", "selection.budget.n: -5: "),
        ("teacher.x.y=1", "teacher.x: unknown key"),
        ("name=", "name: None: "),
    ],
)
def test_bad_overrides_are_refused(path: Path, override: str, told: str):
    with pytest.raises(ConfigError) as caught:
        load_config(path, [override])
    assert told in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "override",
    ["generations.7.student.path=b", "generations.7={}", "generations.x={}", "generations.x.student.path=b"],
)
def test_overrides_of_items_that_a_list_has_not_are_refused(path: Path, override: str):
    with pytest.raises(ConfigError, match="generations"):
        load_config(path, [override])


def test_relative_paths_are_relative_to_the_file(path: Path, monkeypatch: pytest.MonkeyPatch):
    (path.parent / "bases" / "student").mkdir(parents=True)
    monkeypatch.chdir(path.parent.parent)
    for given in (path, Path("conf/f.yaml")):
        config = load_config(given)
        assert config.sources["puzzles"].path == str(path.parent / "data" / "puzzles.parquet")
        assert config.sources["other"].path == "s3://bucket/rows"
        students = [generation.student.path for generation in config.generations]
        assert students == ["org/base", str(path.parent / "bases" / "student")]  # what is no directory is a hub id
    (path.parent / "adapter").mkdir()
    config = load_config(path, ["teacher.model={path: bases/student, adapter: adapter}", "teacher.adapt=null"])
    expected = ModelConfig(path=str(path.parent / "bases" / "student"), adapter=str(path.parent / "adapter"))
    assert config.teacher.model == expected
    base = str(path.parent / "bases" / "student")
    others = ["selection.arms=[trust, ensemble, reward]", "splits.audit=true"]
    others += ["signals={second_teacher: {path: bases/student}, reward: {model: {path: bases/student}}}"]
    config = load_config(
        path, [*others, "judge.model={path: bases/student}", "domain={name: mcqa, option_style: texts}"]
    )
    assert config.signals.second_teacher is not None and config.signals.second_teacher.path == base
    assert config.signals.reward is not None and config.signals.reward.model.path == base
    assert config.judge is not None and config.judge.model.path == base
    assert config.domain.options == {"option_style": "texts"}


def test_the_run_directory_is_absolute(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    assert load_config(path).directory == tmp_path / "runs" / "tiny"
    assert load_config(path, ["run_dir=out/x"]).directory == tmp_path / "out" / "x"
    assert load_config(path, ["run_dir=/out"]).directory == Path("/out")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is not a mapping"),
        (b"- a\n", "is not a mapping"),
        (b"a: [\n", "is not YAML"),
        (b"a: \xff\n", "is not UTF-8 text"),
        (b"{}", "name: Field required"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, content: bytes, told: str):
    path = tmp_path / "f.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}: ") and told in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            load_config(path)


def test_the_template_is_valid_and_names_every_section():
    path = Path(str(files("curation") / "template.yaml"))
    config = load_config(path)
    assert config.teacher.adapt == SftConfig() and config.trust == TrustConfig()
    sections = {name for name, field in RunConfig.model_fields.items() if field.is_required()}
    assert sections <= set(yaml.safe_load(path.read_text()))
    for line in ("# run_dir: runs/my-run", "# report_rows: 5"):  # commented keys are valid, too
        assert line in path.read_text()
        load_config(path, [line.removeprefix("# ").replace(": ", "=")])


PAPER = ROOT / "examples" / "paper"  # tests/test_paper_examples.py: their data and models are not here
EVIDENCE = ROOT / "examples" / "evidence"  # tests/test_evidence.py: its command makes them
RUNS = [
    path
    for path in sorted(ROOT.glob("examples/**/*.yaml"))
    if "\nvariants:" not in path.read_text() and not {PAPER, EVIDENCE} & {*path.parents}
]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)  # ablations: tests/test_ablation_run.py
def test_the_examples_are_valid(path: Path):
    config = load_config(path)
    for source in config.sources.values():
        assert "://" in source.path or any(Path(source.path).parent.glob(Path(source.path).name)), source.path


def test_fit_purity_names_the_split_whose_purity_it_takes():
    probes = {"math_test": {"from": "puzzles", "rows": 3, "regime": "ID"}}
    for given, split in ((True, "source"), ("source", "source"), ("math_test", "probe-math_test")):
        config = parse_config(changed({"selection.budget": {"fit_purity": given}, "splits.probes": probes}))
        budget = config.selection.budget
        assert (budget.rule, budget.needs_gold, budget.purity_split) == ("fit_purity", True, split)
    assert parse_config(RAW).selection.budget.purity_split is None
    told = refusal({"selection.budget": {"fit_purity": "mathtest"}, "splits.probes": probes})
    assert "selection.budget.fit_purity: 'mathtest' needs probe-mathtest, which is not among the splits" in told


@pytest.mark.parametrize(
    "overrides",
    [
        ["trust={kind: ntf, patience: null}"],
        ["student.lora=null", "trust.preset=world_knowledge"],
        ["student.preset=scratch", "student.epochs=null"],
        ["domain=math", "teacher.decoding.stop=[]", "evaluation.num_runs=3"],
    ],
)
def test_a_written_configuration_is_read_back_as_it_was(overrides: list[str], tmp_path: Path) -> None:
    """The run directory's copy is what `--combine` and the report's own command read."""
    config = load_config(ROOT / "examples" / "chess.yaml", [*overrides, f"run_dir={tmp_path / 'run'}"])
    written = tmp_path / "config.yaml"
    written.write_text(yaml.safe_dump(config.model_dump(mode="json", by_alias=True), sort_keys=False))
    assert load_config(written) == config


def test_a_section_is_read_from_its_key_whatever_its_preset_gives():
    """A value that is the default although the preset gives another one is not in the key."""
    for recipe in (
        SftConfig(preset="scratch", learning_rate=SftConfig.model_fields["learning_rate"].default),
        SftConfig(preset="scratch", epochs=3),
        SftConfig(),
    ):
        key = json.loads(json.dumps(recipe.to_key()))
        assert SftConfig.from_key(key) == recipe.keyed and key["method"] == "sft"
    assert TrustConfig.from_key(TrustConfig(preset="world_knowledge").to_key()) == TrustConfig(preset="world_knowledge")
    assert TrustConfig().to_key() == {} != TrustConfig(width=9).to_key() == {"width": 9}
