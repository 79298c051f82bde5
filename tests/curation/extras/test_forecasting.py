"""Forecasts computed from what a probe measured; one small probe by real actors."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from curation.config import AskConfig, DecodingConfig, DomainConfig, PricesConfig, ScriptedConfig, SourceConfig
from curation.config.load import parse_config
from curation.errors import ConfigError
from curation.extras.plan.forecasting import Workforce, forecast_questions
from curation.metrics import Estimate, compute_proportion
from curation.metrics.totals import make_exact
from curation.passes.job import ChunkSpent
from curation.pipeline.opened import open_run
from curation.pipeline.probing import AskGroup, LeftOut, SplitRows, StageAsk, collect_askings, probe_all
from curation.sources import Assignment, Permutation, discover, read_rows_at
from curation.stages.probe import MeasuredCost, measure_pace

LENGTHS = (5, 40)
"""Words of the problems of the first and of the last file."""
NUM_ROWS = 400
NOTHING = Assignment(counts={}, permutation=Permutation(size=1, seed=0))


def measured(**changes) -> MeasuredCost:
    fields = {
        "rows": 100,
        "prompt_tokens": Estimate(value=50, low=45, high=55, n=100),
        "output_tokens": make_exact(10, 100),
        "errors": compute_proportion(1, 100),
        "unparsed": compute_proportion(5, 100),
        "actor_seconds": 0.1,
        "bytes": Estimate(value=30, low=28, high=33, n=100),
        "state_bytes": 64,
    }
    return MeasuredCost(**{**fields, **changes})


def asking(directory: Path, **changes) -> StageAsk:
    fields = {
        "stage": "label-pool",
        "rows": 10_000,
        "drawn_from": SplitRows(files=(), assignment=NOTHING, splits=()),
        "model": None,
        "ask": AskConfig(backend="scripted", chunk_rows=100, states=("output_last", "prompt_last")),
        "engine": AskConfig(backend="scripted"),
        "decoding": DecodingConfig(),
        "domain": DomainConfig(name="math"),
    }
    return StageAsk(**{**fields, **changes})


def planned(*questions: AskGroup, actors: int = 1, prices: PricesConfig | None = None):
    return forecast_questions(questions, (), Workforce(actors=actors, each={"CPU": 2.0}), prices)


def test_amounts_by_hand(tmp_path: Path):
    prices = PricesConfig(cpu_hour=3.6, per_million_prompt_tokens=2.0, per_million_output_tokens=10.0)
    found = planned(AskGroup((asking(tmp_path),), measured()), actors=4, prices=prices)
    total = found.total
    assert total["prompt_tokens"] == Estimate(value=500_000, low=450_000, high=550_000, n=100)
    assert total["output_tokens"].value == 100_000
    row = 30 + 2 * 64
    assert total["bytes"] == Estimate(value=10_000 * row, low=10_000 * (row - 2), high=10_000 * (row + 3), n=100)
    money = total["money_tokens"]
    assert (money.value, money.low, money.high) == pytest.approx((2.0, 1.9, 2.1))
    # 1,000 s of actors; how far a rate that was measured for a minute is off, nothing says
    assert total["cpu_hours"].value * 3600 == pytest.approx(2000)
    assert total["hours"].value * 3600 == pytest.approx(250)
    assert total["money_machines"].value == pytest.approx(2.0) and total["money"].value == pytest.approx(4.0)
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))["total"]
    assert [told[name]["low"] for name in ("hours", "money_machines", "money")] == [None, None, None]


def test_what_is_stored_of_the_states(tmp_path: Path):
    group = AskGroup((asking(tmp_path, states_share=0.25),), measured())
    assert planned(group).stages[0].bytes.value / 10_000 == pytest.approx(30 + 0.25 * 2 * 64)


def test_the_first_chunks_do_not_count():
    chunks = [ChunkSpent("a", seconds, 10, 0, 0) for seconds in (9.0, 2.0, 4.0)]
    assert measure_pace(chunks, 1) == 0.3 and measure_pace(chunks[:1], 1) == 0.9


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Problems in two files, the short ones first."""
    directory = tmp_path_factory.mktemp("problems")
    for number, words in enumerate(LENGTHS):
        rows = [{"problem": f"Case {row} " + "word " * words, "answer": "1"} for row in range(NUM_ROWS // 2)]
        (directory / f"{number}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return discover(SourceConfig(path=str(directory)))


def scripted(files, **changes) -> StageAsk:
    script = ScriptedConfig(completions=(" \\boxed{1}", " none"), seconds_per_row=0.004, start_seconds=1.5)
    ask = AskConfig(backend="scripted", chunk_rows=4096, scripted=script)
    counts = {"source": NUM_ROWS // 4, "pool": NUM_ROWS - NUM_ROWS // 4}
    dealt = Assignment(counts=counts, permutation=Permutation(size=NUM_ROWS, seed=3))
    made = asking(Path(), ask=ask, engine=ask, rows=counts["pool"])
    return replace(made, drawn_from=SplitRows(files=files, assignment=dealt, splits=("pool",)), **changes)


def test_a_probe_by_an_actor_sees_the_whole_pool_and_not_its_start(local_ray, files, tmp_path: Path):
    pool = scripted(files)
    source = replace(
        pool, stage="label-source", rows=NUM_ROWS // 4, drawn_from=replace(pool.drawn_from, splits=("source",))
    )
    (question,) = probe_all([pool, source], tmp_path, num_rows=160, commit_seconds=1.0, hold_cpus=False)
    found = question.measured
    assert [item.stage for item in question.askings] == ["label-pool", "label-source"] and found.rows == 160
    short, long = (len(_prompt(words).split()) for words in LENGTHS)
    assert found.prompt_tokens.low < (short + long) / 2 < found.prompt_tokens.high  # the first rows would say ``short``
    assert short + 0.3 * (long - short) < found.prompt_tokens.value < short + 0.7 * (long - short)
    assert found.output_tokens.value == 1 and found.errors.value == 0
    assert 0.3 < found.unparsed.value < 0.7
    assert 0.004 <= found.actor_seconds < 0.012  # the start of 1.5 s would be 0.01 a row beside it
    assert found.bytes.low < found.bytes.value < found.bytes.high and found.state_bytes == 16
    everything = NUM_ROWS + 1
    with pytest.raises(ConfigError, match=r"--probe: 401 rows are asked for, and pool, source has 400; ask for fewer"):
        probe_all([pool, source], tmp_path, num_rows=everything, commit_seconds=1.0, hold_cpus=False)


def _prompt(words: int) -> str:
    from curation.domains import get_domain

    return get_domain(DomainConfig(name="math")).prompt({"problem": "Case 0 " + "word " * words, "difficulty": None})


def test_left_out_stages_are_named(tmp_path: Path):
    made = forecast_questions(
        [AskGroup((asking(tmp_path),), measured())],
        [LeftOut("gen-0/rollouts", "unknown")],
        Workforce(actors=1, each={"CPU": 1.0}),
        None,
    )
    assert made.to_json()["left_out"] == [{"stage": "gen-0/rollouts", "why": "unknown"}]
    assert np.isfinite(made.total["hours"].value) and made.currency is None


def test_a_probe_of_a_server_asks_the_rows_with_the_ids_and_seeds_of_the_stages(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"key": {k + 70}, "question": "{k}?"}}\n' for k in range(40)))

    def probed(temperature: float) -> list[StageAsk]:
        rows, decoding = {"from": "rows", "rows": 10}, {"temperature": temperature}
        server = {"url": "http://localhost:8000/v1", "model": "m"}
        config = parse_config(
            {
                "name": "asked",
                "run_dir": str(tmp_path / f"run-{temperature}"),
                "sources": {"rows": {"path": str(tmp_path / "rows.jsonl"), "id_column": "key"}},
                "domain": "math",
                "splits": {"source": rows, "pool": rows},
                "teacher": {"backend": "endpoint", "endpoint": server, "decoding": decoding},
                "selection": {"budget": {"n": 5}, "arms": ["naive"]},
            }
        )
        opened = open_run(config)
        seeds = {stage.name: stage.inputs.get("seed") for stage in opened.chain.stages}
        found, _ = collect_askings(opened.chain.stages, config, opened.manifest.source_files, {})
        assert [asking.seed for asking in found] == [seeds[asking.stage] if temperature else None for asking in found]
        return found

    greedy, sampled = probed(0.0), probed(0.7)
    assert len({asking.question for asking in greedy}) == 1 and len({asking.question for asking in sampled}) == 2
    rows = sampled[0].drawn_from
    assert rows.ids(read_rows_at(rows.files, np.array([3, 5]))) == [73, 75]


def test_stages_that_are_asked_the_same_share_a_sample_and_others_are_named(puzzle_file: Path, tmp_path: Path):
    config = parse_config(
        {
            "name": "asked",
            "run_dir": str(tmp_path / "run"),
            "sources": {"puzzles": {"path": str(puzzle_file)}},
            "splits": {
                "source": {"from": "puzzles", "rows": 500},
                "test": {"from": "puzzles", "rows": 200},
                "pool": {"from": "puzzles", "rows": 1000},
            },
            "teacher": {"backend": "scripted"},
            "selection": {"budget": {"n": 10}, "arms": ["trust", "self_consistency"]},
            "generations": [{"student": {"init": {"hidden_size": 16, "num_layers": 2}}}] * 2,
            "chain": {"shares": 2},
        }
    )
    opened = open_run(config)
    left = {"gen-0/label-source": 400}
    found, left_out = collect_askings(opened.chain.stages, config, opened.manifest.source_files, {}, left)
    rows = {asking.stage: asking.rows for asking in found}
    assert rows == {"gen-0/label-source": 400, "gen-0/label-pool": 500, "gen-0/test-teacher": 200}
    by_stage = {asking.stage: asking for asking in found}
    assert by_stage["gen-0/label-pool"].signals.keys() == {"self_consistency"}
    same = [by_stage[f"gen-0/{stage}"].question for stage in ("label-source", "test-teacher", "label-pool")]
    assert same[0] == same[1] != same[2]  # the states that are kept make no other question, a signal does
    assert {item.stage for item in left_out} >= {"gen-1/label-pool", "gen-0/test-trust", "gen-0/test-base"}
    assert not any("signal-self_consistency" in item.stage for item in left_out)  # measured as rows are labelled
