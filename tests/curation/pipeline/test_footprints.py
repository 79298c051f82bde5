"""The memory of a run's actors and workers: what is refused, what is a warning, and what a plan prints."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.paper_memory import RUNS, loaded, shape_of, table
from curation.cli import main
from curation.errors import ConfigError
from curation.pipeline.footprints import iter_memory_lines, iter_processes

BY_NAME = {path.stem: path for path in RUNS}
ROOT = Path(__file__).parents[3]


def lines_of(name: str, gpu: str | None) -> list[str]:
    return list(iter_memory_lines(loaded(BY_NAME[name]), gpu, shape_of))


def test_what_cannot_fit_is_refused_with_the_sum_its_parts_and_the_mend() -> None:
    with pytest.raises(ConfigError) as refused:
        lines_of("chess-qwen3-14b", "L4")
    text = str(refused.value)
    assert "memory of a worker in the training of student 0 (Qwen/Qwen3-14B-Base): " in text
    assert "of 23.0 GiB (1 of one L4): weights 27" in text and "optimizer" in text
    assert "GiB in any case, which cannot fit: set sharding: fsdp" in text
    assert "set sharding: fsdp with more workers, or take a larger card" in text
    assert "an actor with the student 0 (Qwen/Qwen3-14B-Base)" in text  # each of them is named at once


def test_what_only_the_longest_rows_do_not_leave_room_for_is_a_warning() -> None:
    warned = [line for line in lines_of("math-8b-8b", "H100") if line.startswith("warning: ")]
    assert len(warned) == 1 and "training of student 0" in warned[0]
    assert "the longest rows do not fit: lower micro_batch_size" in warned[0]
    assert not any(line.startswith("warning: ") for line in lines_of("math-8b-8b", "H200"))


def test_without_a_card_the_need_alone_is_said() -> None:
    found = lines_of("chess-qwen3-8b", None)
    assert found and not any(" of one " in line.partition("GiB")[2].partition(":")[0] for line in found)
    assert any(
        line.startswith("memory of an actor with the teacher (Qwen/Qwen3-0.6B-Base): 2.0 GiB: ") for line in found
    )


def test_the_engine_of_rollouts_has_its_own_share() -> None:
    config = loaded(BY_NAME["math-8b-8b"])
    engines = [each for each in iter_processes(config, 80 * 2**30, shape_of) if each.who.startswith("the engine")]
    (engine,) = engines
    assert 0.5 < engine.share < 0.7  # less what is kept free, and shards of the training
    assert 15 < engine.footprint.total / 2**30 < 24  # 31 GiB in float32, which did not start in its share of 24


def test_an_unknown_card_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--gpu: 'A1' is not a card whose memory is known; give one of T4, A10G, L4"):
        lines_of("chess-qwen3-8b", "A1")


def test_the_page_has_the_table_that_the_benchmark_prints() -> None:
    page = (ROOT / "docs" / "log" / "paper-memory.md").read_text()
    for line in table(RUNS, ["L4", "A100-80G", "H100", "H200"]):
        assert line in page


def test_plan_and_validate_print_the_memory_of_a_local_model(tmp_path: Path) -> None:
    config = str(ROOT / "examples" / "own_data" / "own.yaml")
    where = ["--set", f"run_dir={tmp_path / 'run'}"]
    planned = CliRunner().invoke(main, ["plan", config, "--no-probe", *where])
    assert planned.exit_code == 0, planned.output
    assert "memory of an actor with the teacher (" in planned.output and "GiB of memory" in planned.output
    as_json: Any = json.loads(CliRunner().invoke(main, ["plan", config, "--no-probe", "--json", *where]).stdout)
    assert any("actor with the teacher" in line for line in as_json["memory"])
    checked = CliRunner().invoke(main, ["validate", config, *where])
    assert checked.exit_code == 0 and "memory of an actor with the teacher (" in checked.output
