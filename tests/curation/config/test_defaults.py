"""What follows from the domain where the file is silent, what the file keeps, and what cannot work."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from curation import run
from curation.cli import main
from curation.config import DecodingConfig, RunConfig, TrustConfig
from curation.config.load import load_config, parse_config
from curation.config.resolved import describe_resolved, iter_warnings
from curation.errors import ConfigError

ROOT = Path(__file__).parents[3]
PAPER_TEST = {"temperature": 0.6, "top_p": 0.8, "top_k": 20, "min_p": 0.0, "presence_penalty": 1.5}
LLM = {"teacher": {"model": {"path": "org/llm"}}}


def parsed(domain: Any, **changes: Any) -> RunConfig:
    raw = {
        "name": "defaults",
        "domain": domain,
        "sources": {"rows": {"path": "rows.jsonl"}},
        "splits": {
            "source": {"from": "rows", "rows": 10},
            "test": {"from": "rows", "rows": 10},
            "pool": {"from": "rows"},
        },
        "teacher": {"backend": "scripted"},
        "selection": {"budget": {"n": 5}, "arms": ["naive", "trust"]},
    }
    return parse_config({**raw, **changes})


def test_math_has_the_papers_decoding_and_network() -> None:
    config = parsed("math")
    assert config.teacher.decoding == DecodingConfig(temperature=0, max_tokens=4096, stop=())
    assert config.evaluation.decoding == DecodingConfig(max_tokens=4096, stop=(), **PAPER_TEST)
    assert config.evaluation.num_runs == 5
    assert config.trust == TrustConfig(preset="quantitative_reasoning") and config.trust.depth == 8


@pytest.mark.parametrize("domain", ["chess", {"name": "chess"}, ...])
def test_chess_writes_one_line_greedily(domain: Any) -> None:
    config = parsed("chess" if domain is ... else domain)
    assert config.teacher.decoding == config.evaluation.decoding == DecodingConfig(max_tokens=8, stop=("\n",))
    assert config.evaluation.num_runs == 1 and config.trust == TrustConfig(preset="strategy_games")


def test_multiple_choice_scores_or_reasons() -> None:
    scored, written = parsed("mcqa"), parsed({"name": "mcqa", "generative": True})
    for config in (scored, written):
        assert config.trust == TrustConfig(preset="world_knowledge") and config.trust.learning_rate == 5e-5
        assert config.evaluation.num_runs == 1 and config.evaluation.decoding == config.teacher.decoding
    assert scored.teacher.decoding == DecodingConfig()
    assert written.teacher.decoding.stop == () and written.teacher.decoding.max_tokens > 64


def test_what_the_file_says_is_kept() -> None:
    config = parsed(
        "math",
        teacher={"backend": "scripted", "decoding": {"max_tokens": 100, "stop": ["END"]}},
        evaluation={"decoding": {"top_p": 0.5}, "num_runs": 2, "margin": 0.1},
        trust={"depth": 2},
    )
    assert config.teacher.decoding == DecodingConfig(max_tokens=100, stop=("END",))
    assert config.evaluation.decoding == DecodingConfig(max_tokens=4096, stop=(), **{**PAPER_TEST, "top_p": 0.5})
    assert config.evaluation.num_runs == 2 and config.evaluation.margin == 0.1
    assert config.trust == TrustConfig(preset="quantitative_reasoning", depth=2) and config.trust.width == 1024
    assert parsed("math", trust={"preset": "world_knowledge"}).trust == TrustConfig(preset="world_knowledge")
    assert parsed("mcqa", trust=TrustConfig(depth=1)).trust == TrustConfig(depth=1)  # made in Python: whole as it is
    assert parse_config(config.model_dump(mode="json", by_alias=True)) == config


def test_a_greedy_test_of_math_takes_nothing_of_the_sampled_one() -> None:
    config = parsed("math", evaluation={"decoding": {"temperature": 0}})
    assert config.evaluation.decoding == DecodingConfig(max_tokens=4096, stop=()) and config.evaluation.num_runs == 1


def test_overrides_of_the_command_line_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(parsed("chess").model_dump(mode="json", by_alias=True, include={"name", "sources"})))
    raw = yaml.safe_load(path.read_text()) | {
        "splits": {"source": {"from": "rows", "rows": 1}, "pool": {"from": "rows"}},
        "teacher": {"backend": "scripted"},
        "selection": {"budget": {"n": 1}, "arms": ["naive"]},
    }
    path.write_text(yaml.safe_dump(raw))
    config = load_config(path, ("domain=math", "teacher.decoding.max_tokens=77"))
    assert (config.teacher.decoding.max_tokens, config.teacher.decoding.stop) == (77, ())


def test_a_missing_teacher_is_told_as_such() -> None:
    with pytest.raises(ConfigError, match="teacher: Field required"):
        raw = parsed("math").model_dump(mode="json", by_alias=True, include={"name", "sources", "splits", "selection"})
        parse_config(raw | {"domain": "math"})


OWN = """
from curation.domains import Domain

class Plain(Domain):
    pass

class Essays(Domain):
    defaults = {
        "teacher": {"decoding": {"max_tokens": 300, "stop": []}},
        "evaluation": {"num_runs": 3, "decoding": {"temperature": 0.5}},
        "trust": {"preset": "world_knowledge", "depth": 3},
    }

class Odd(Domain):
    defaults = {"teachers": {}}
"""


def test_a_users_own_domain_may_name_its_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "essays_of_mine.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("essays_of_mine", None)
    plain = parsed("essays_of_mine:Plain")
    assert plain.teacher.decoding == plain.evaluation.decoding == DecodingConfig() and plain.trust == TrustConfig()
    assert parsed("no_such_module:Domain").teacher.decoding == DecodingConfig()  # refused where it is made
    own = parsed("essays_of_mine:Essays", teacher={"backend": "scripted", "decoding": {"max_tokens": 50}})
    assert own.teacher.decoding == DecodingConfig(max_tokens=50, stop=())
    assert own.evaluation.num_runs == 3 and own.trust == TrustConfig(preset="world_knowledge", depth=3)
    assert parsed("essays_of_mine:Essays", trust={"preset": "strategy_games"}).trust == TrustConfig()
    with pytest.raises(
        ConfigError, match=r"domain: the defaults of 'essays_of_mine:Odd' must be a mapping of the sect"
    ):
        parsed("essays_of_mine:Odd")
    assert next(describe_resolved(plain)) == 'teacher.decoding: temperature 0, max_tokens 8, stop ["\\n"]'


def test_lines_say_what_a_file_comes_to() -> None:
    assert list(describe_resolved(parsed("math"))) == [
        "teacher.decoding: temperature 0, max_tokens 4096, stop []",
        "evaluation: 5 runs, temperature 0.6, max_tokens 4096, top_p 0.8, top_k 20, presence_penalty 1.5, stop []",
        "trust: stacked; reads output_last",
        "chat_template: teacher off, student off, evaluation off",
    ]
    config = parsed(
        "math",
        teacher={"backend": "scripted", "decoding": {"stop": ["\n"]}},
        evaluation={"decoding": {"temperature": 0}, "chat_template": True},
        trust={"kind": "neural", "preset": "strategy_games", "depth": 2},
    )
    assert list(describe_resolved(config)) == [
        r'teacher.decoding: temperature 0, max_tokens 4096, stop ["\n"]',
        "evaluation: 1 run, temperature 0, max_tokens 4096, stop []",
        "trust: neural, preset strategy_games; reads output_last",
        "chat_template: teacher off, student off, evaluation on",
    ]


@pytest.mark.parametrize("domain", ["math", {"name": "mcqa", "generative": True}])
def test_a_line_end_that_stops_reasoning_is_warned_of(domain: Any) -> None:
    student = [{"student": {"path": "org/student"}}]
    assert list(iter_warnings(parsed(domain, **LLM, generations=student))) == []
    stop = {"decoding": {"stop": ["\n"], "max_tokens": 500}}
    found = list(
        iter_warnings(parsed(domain, teacher={**LLM["teacher"], **stop}, evaluation=stop, generations=student))
    )
    assert [line.partition(":")[0] for line in found] == ["teacher.decoding.stop", "evaluation.decoding.stop"]
    assert all("first line" in line and line.endswith("set stop: []") for line in found)


def test_few_tokens_for_reasoning_are_warned_of_but_not_where_a_model_is_taught_to_be_brief() -> None:
    few = {"decoding": {"max_tokens": 8}}
    (line,) = iter_warnings(parsed("math", teacher={**LLM["teacher"], **few}))
    assert line.startswith("teacher.decoding.max_tokens: 8 cuts answers of domain math off in the middle")
    splits = {name: {"from": "rows", "rows": 5} for name in ("adapt", "source", "test", "pool")}
    assert not list(iter_warnings(parsed("math", splits=splits, teacher={**LLM["teacher"], **few, "adapt": {}})))
    init = {"model": {"init": {"hidden_size": 16, "num_layers": 1}}, "decoding": {"max_tokens": 40, "stop": ["\n"]}}
    assert not list(iter_warnings(parsed("math", teacher=init)))
    for domain in ("chess", "mcqa"):
        assert not list(iter_warnings(parsed(domain, teacher={**LLM["teacher"], "decoding": {"max_tokens": 4}})))


def test_a_model_from_scratch_without_room_for_the_answer_is_warned_of() -> None:
    init = {"init": {"hidden_size": 16, "num_layers": 1}}
    found = list(iter_warnings(parsed("math", teacher={"model": init}, generations=[{"student": init}])))
    assert [line.partition(".")[0] for line in found] == ["teacher", "evaluation"]
    assert all(
        "4096 leaves no room for a prompt in a model from scratch of max_positions 256" in line for line in found
    )


def test_a_cap_on_letters_is_warned_of() -> None:
    capped = {"budget": {"n": 5}, "arms": ["trust"], "max_per_label": 2}
    (line,) = iter_warnings(parsed("mcqa", selection=capped, **LLM))
    assert line.startswith("selection.max_per_label: 2 rows for each option of domain mcqa")
    assert not list(iter_warnings(parsed("chess", selection=capped, **LLM)))


def test_the_rows_of_another_domain_count() -> None:
    sources = {"rows": {"path": "rows.jsonl"}, "sums": {"path": "sums.jsonl", "domain": "math"}}
    splits = {"source": {"from": "rows", "rows": 5}, "pool": {"from": "rows"}}
    probes = {"far": {"from": "sums", "rows": 3, "regime": "OOD-domain"}}
    assert not list(iter_warnings(parsed("chess", sources=sources, splits=splits, **LLM)))
    found = list(iter_warnings(parsed("chess", sources=sources, splits={**splits, "probes": probes}, **LLM)))
    assert len(found) == 2 and all("domain math" in line for line in found)


@pytest.mark.long
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_are_warned_of_nothing_and_decode_as_they_did(path: Path) -> None:
    result = CliRunner().invoke(main, ["validate", str(path)])
    assert result.exit_code == 0 and "warning" not in result.output
    config = load_config(path)
    given = yaml.safe_load(path.read_text())
    for section, found in (("teacher", config.teacher.decoding), ("evaluation", config.evaluation.decoding)):
        told = given.get(section, {}).get("decoding", {})
        assert found == DecodingConfig(**({"max_tokens": 8, "stop": ["\n"]} | told))
    preset = given["trust"].get("preset", parsed(config.domain.name).trust.preset)
    assert config.evaluation.num_runs == 1 and config.trust.preset == preset


def test_validate_prints_warnings_and_run_says_them_once(
    local_ray: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"problem": f"What is {n + 1} - {n}?", "answer": "1"} for n in range(260)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    raw = parsed("math").model_dump(mode="json", by_alias=True, include={"name", "sources", "selection"})
    raw |= {
        "run_dir": str(tmp_path / "run"),
        "domain": "math",
        "splits": {"source": {"from": "rows", "rows": 240}, "pool": {"from": "rows"}},
        "teacher": {
            "backend": "scripted",
            "scripted": {"completions": ["so\n\\boxed{1}", "\\boxed{2}", "\\boxed{1}"]},
            "decoding": {"stop": ["\n"]},
        },
        "trust": {"kind": "ntf", "width": 8, "depth": 1, "max_steps": 10},
        "selection": {"budget": {"n": 2}, "arms": ["naive"]},
    }
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(raw))
    result = CliRunner().invoke(main, ["validate", str(path)])
    assert result.exit_code == 0
    assert result.stdout.count('warning: teacher.decoding.stop: "\\n" ends every answer of domain math') == 1
    run(load_config(path))
    assert capsys.readouterr().err.count('warning: teacher.decoding.stop: "\\n" ends every answer of domain math') == 1
