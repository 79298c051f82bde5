"""Forecasts computed from what a probe measured; one small probe by real actors."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from curation.config import AskConfig, DecodingConfig, DomainConfig, PricesConfig, ScriptedConfig, SourceConfig
from curation.config.load import parse_config
from curation.errors import ConfigError
from curation.metrics import Estimate, compute_proportion
from curation.metrics.totals import make_exact
from curation.passes.job import ChunkSpent
from curation.pipeline.forecasting import DENSITY, DRIFT, Workforce, forecast_questions
from curation.pipeline.opened import open_run
from curation.pipeline.probing import AskGroup, LeftOut, SplitRows, StageAsk, collect_askings, probe_all
from curation.sources import Assignment, Permutation, discover, read_rows_at
from curation.stages.probe import (
    LEAST_ROWS,
    MeasuredCost,
    choose_chunk_rows,
    choose_num_actors,
    count_affordable_rows,
    is_narrow,
    select_steady_chunks,
)

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
        "truncated": compute_proportion(0, 100),
        "actor_seconds": Estimate(value=0.1, low=0.09, high=0.11, n=15),
        "bytes": make_exact(30.0, 100),
        "fragment_bytes": 0.0,
        "state_bytes": 64,
        "start_seconds": 20.0,
        "other_seconds": 4.0,
        "num_actors": 1,
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
    workforce = Workforce(actors=actors, each={"CPU": 1.0}, per_node=2)
    return forecast_questions(questions, (), workforce, prices, 256)


def test_one_actor_by_hand(tmp_path: Path):
    found = planned(AskGroup((asking(tmp_path),), measured()), prices=PricesConfig(cpu_hour=3.6))
    total = found.total
    assert total["prompt_tokens"] == Estimate(value=500_000, low=450_000, high=550_000, n=100)
    assert total["output_tokens"].value == 100_000
    # 1,000 s of work and one start of 20 s, however many rows there are
    assert total["cpu_hours"].value * 3600 == pytest.approx(1020)
    work = math.hypot(0.1 * 1000, DRIFT * 1000)
    assert (1020 - total["cpu_hours"].low * 3600) == pytest.approx(math.hypot(work, 10))
    assert (total["cpu_hours"].high * 3600 - 1020) == pytest.approx(math.hypot(work, 20))
    assert total["hours"].value * 3600 == pytest.approx(1024)
    assert total["bytes"].value == pytest.approx(10_000 * (30 + 2 * 64))
    assert total["bytes"].high == pytest.approx(10_000 * (30 + 2 * 64) * (1 + DENSITY))
    assert total["money"].value == pytest.approx(1.02)
    json.dumps(found.to_json(), allow_nan=False)


def test_more_actors_are_faster_and_cost_their_starts_and_the_wait_for_the_last_chunk(tmp_path: Path):
    question = AskGroup((asking(tmp_path),), measured())
    alone, many = planned(question), planned(question, actors=4)
    # three actors wait for half of a chunk of 10 s on average
    assert many.total["cpu_hours"].value * 3600 == pytest.approx(1000 + 4 * 20 + 3 * 10 / 2)
    assert alone.total["hours"].value * 3600 == pytest.approx(1000 + 20 + 4)
    assert many.total["hours"].value * 3600 == pytest.approx((1000 + 15) / 4 + 20 + 4)
    few = AskGroup((asking(tmp_path, rows=150),), measured())  # two chunks: no more than two actors
    assert planned(few, actors=50).total["cpu_hours"].value * 3600 == pytest.approx(15 + 2 * 20 + 10 / 2)
    warm = planned(AskGroup((asking(tmp_path),), measured(start_seconds=None)))
    assert warm.total["cpu_hours"].value * 3600 == pytest.approx(1000)


def test_what_is_stored_in_place_of_states(tmp_path: Path):
    group = AskGroup((asking(tmp_path, stored_scores=3),), measured())
    assert planned(group).stages[0].bytes.value / 10_000 == pytest.approx(30 + 3 * 8)


def test_each_fragment_that_stays_costs_its_own_bytes(tmp_path: Path):
    few, many = (
        planned(AskGroup((asking(tmp_path, rows=rows),), measured(fragment_bytes=1000.0))).stages[0].bytes.value
        for rows in (1500, 1600)  # 15 fragments stay, 16 become one
    )
    row = 30 + 2 * 64
    assert (few, many) == (pytest.approx(1500 * row + 15_000), pytest.approx(1600 * row + 1000))


def test_steady_chunks_are_neither_first_nor_last():
    def chunks(actor: str, num: int) -> list[ChunkSpent]:
        return [ChunkSpent(actor, float(number), 10, 0, 0) for number in range(num)]

    assert [chunk.seconds for chunk in select_steady_chunks([*chunks("a", 3), *chunks("b", 2)], 1)] == [1, 2, 1]
    assert [chunk.seconds for chunk in select_steady_chunks(chunks("a", 8), 2)] == [2, 3, 4, 5]
    assert [chunk.seconds for chunk in select_steady_chunks(chunks("a", 4), 2)] == [2, 3]  # nothing is left between
    assert len(select_steady_chunks(chunks("a", 1), 1)) == 1
    assert (choose_chunk_rows(1024, 4096), choose_chunk_rows(1024, 10), choose_chunk_rows(3, 4096)) == (64, 10, 1)
    assert (choose_num_actors(1024, 8, 2), choose_num_actors(1024, 8, 64), choose_num_actors(1024, 8, 0)) == (2, 4, 1)


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


def test_a_probe_by_an_actor_sees_the_whole_pool_and_its_start_apart(local_ray, files, tmp_path: Path):
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
    assert found.start_seconds is not None and 1.4 < found.start_seconds < 8
    assert 0.004 <= found.actor_seconds.value < 0.03  # the start would be 0.01 a row beside it
    assert found.bytes.value > 3 and found.fragment_bytes > 500 and found.state_bytes == 16 and found.num_actors == 1
    everything = NUM_ROWS + 1
    with pytest.raises(ConfigError, match=r"--probe: 401 rows are asked for, and pool, source has 400; ask for fewer"):
        probe_all([pool, source], tmp_path, num_rows=everything, commit_seconds=1.0, hold_cpus=False)


def test_a_probe_of_a_slow_teacher_ends_in_time_and_its_sample_is_still_random(
    local_ray, files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("curation.pipeline.probing.SECONDS", 2.0)
    slow = ScriptedConfig(completions=(" \\boxed{1}",), seconds_per_row=0.02, start_seconds=0.5)
    ask = AskConfig(backend="scripted", chunk_rows=4096, scripted=slow)
    (question,) = probe_all(
        [scripted(files, ask=ask, engine=ask)], tmp_path, num_rows=None, commit_seconds=1.0, hold_cpus=False
    )
    found = question.measured
    assert 40 <= found.rows <= 16 + 100, "not the 300 that it might be drawn from, nor only the first 16"
    short, long = (len(_prompt(words).split()) for words in LENGTHS)
    assert found.prompt_tokens.low < (short + long) / 2 < found.prompt_tokens.high
    assert found.actor_seconds.value >= 0.02 and found.actor_seconds.low < 0.03, "a busy machine makes rows slower"
    assert found.start_seconds is not None and found.start_seconds > 0.4


def test_a_probe_fills_a_teacher_that_answers_rows_side_by_side(
    local_ray, files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Eight rows at a time take as long as forty: 0.05 seconds a row, where the run will need 0.01."""
    monkeypatch.setattr("curation.pipeline.probing.SECONDS", 2.0)
    engine = ScriptedConfig(completions=(" \\boxed{1}",), slots=40, seconds_per_answer=0.4)
    ask = AskConfig(backend="scripted", chunk_rows=4096, scripted=engine)
    (question,) = probe_all(
        [scripted(files, ask=ask, engine=ask)], tmp_path, num_rows=None, commit_seconds=1.0, hold_cpus=False
    )
    assert question.measured.rows >= 3 * 40
    assert 0.01 <= question.measured.actor_seconds.value < 0.02


@pytest.mark.parametrize("even", [True, False])
def test_a_probe_of_a_fast_teacher_ends_when_its_intervals_are_narrow(local_ray, tmp_path: Path, even: bool):
    """Rows of like length say enough after some hundred; of rows of which few are long all are asked."""
    num = 1_000
    rows = [{"text": f"Case {row}" + " word" * (0 if even or row % 50 else 500)} for row in range(num)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    dealt = Assignment(counts={"pool": num}, permutation=Permutation(size=num, seed=3))
    slow = ScriptedConfig(seconds_per_row=0.02 if even else 0.004)  # beside which a machine's jitter is little
    ask = AskConfig(backend="scripted", chunk_rows=4096, scripted=slow)
    drawn = SplitRows(files=discover(SourceConfig(path=str(tmp_path))), assignment=dealt, splits=("pool",))
    classes = DomainConfig(name="classification", classes=["a", "b"])
    pool = replace(asking(Path(), ask=ask, engine=ask, rows=num, domain=classes), drawn_from=drawn)
    (question,) = probe_all([pool], tmp_path / "probe", num_rows=None, commit_seconds=1.0, hold_cpus=False)
    found = question.measured
    if not even:
        assert found.rows == num
        return
    assert LEAST_ROWS <= found.rows < num and found.errors.n == found.unparsed.n == found.rows
    assert all(map(is_narrow, (found.actor_seconds, found.prompt_tokens, found.output_tokens)))


@pytest.mark.parametrize(("seconds", "num_rows"), [(10.0, 80), (1.0, 8)])
def test_the_rows_of_a_limited_probe_are_those_of_all_actors_at_their_steady_rate(seconds: float, num_rows: int):
    slow_first = [ChunkSpent(actor, time, 8, 0, 0) for actor in "ab" for time in (9.0, 2.0)]
    assert count_affordable_rows(slow_first, 1, seconds) == num_rows


def _prompt(words: int) -> str:
    from curation.domains import get_domain

    return get_domain(DomainConfig(name="math")).prompt({"problem": "Case 0 " + "word " * words, "difficulty": None})


def test_left_out_stages_are_named(tmp_path: Path):
    made = forecast_questions(
        [AskGroup((asking(tmp_path),), measured())],
        [LeftOut("gen-0/rollouts", "unknown")],
        Workforce(actors=1, each={"CPU": 1.0}, per_node=1),
        None,
        256,
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
