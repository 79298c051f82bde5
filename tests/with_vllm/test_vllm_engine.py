"""The engine of the vLLM teacher: its arguments, its start, its end; and the choice of the backend."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from curation.config import DecodingConfig, DomainConfig
from curation.domains import get_domain
from curation.errors import ConfigError, ModelError
from curation.models import create, resolve
from curation.models.loading import ENVIRONMENT
from curation.teachers import vllm_engine
from curation.teachers.vllm_names import find_missing_attributes
from tests.with_vllm.conftest import SHAPE, start, teacher_config
from tests.with_vllm.engines import close_all
from tests.with_vllm.test_vllm_teacher import LETTERS, TEXTS, both, with_options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_num_seq": 4}, r"teacher\.vllm\.engine\.max_num_seq: .*did you mean 'max_num_seqs'"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size: 2 cannot be used: the states are on the last stage"),
        ({"distributed_executor_backend": "ray"}, "are processes of the actor"),
        ({"dtype": "float32"}, "dtype: 'float32' is set by the teacher itself"),
    ],
)
def test_engine_arguments_are_checked_by_name(model, arguments, message):
    with pytest.raises(ConfigError, match=message):
        start(model, **arguments)


def test_vllm_knows_the_variables_that_are_set():
    import vllm.envs

    assert vllm.envs.environment_variables.keys() >= ENVIRONMENT.keys()


DIES = """
from curation.errors import StartError
from curation.refs import ModelRef
from tests.with_vllm.conftest import start
try:
    start(ModelRef(base={base!r}), num_gpu_blocks_override=2, block_size=32, max_model_len=96)
except StartError as error:
    print("REFUSED", error)
"""


def test_an_engine_that_dies_at_its_start_says_why_and_shows_its_log(model):
    """In a process of its own: what vLLM writes goes to the terminal's descriptors, which pytest takes for itself."""
    program = [sys.executable, "-c", DIES.format(base=model.base)]
    told = {**os.environ, "VLLM_LOGGING_LEVEL": "INFO"}  # whatever the tests before have set
    done = subprocess.run(program, capture_output=True, text=True, env=told)
    assert done.returncode == 0, done.stderr
    first, *log = done.stdout[done.stdout.index("REFUSED") :].strip().splitlines()
    assert re.search("did not start: ValueError: To serve at least one request .* it logged last:$", first), first
    assert 3 < len(log) <= 12 and "INFO" in "".join(log)


FITS = """
from curation.config import DecodingConfig
from curation.refs import ModelRef
from curation.teachers import Request
from tests.with_vllm.conftest import start
teacher = start(ModelRef(base={base!r}), num_gpu_blocks_override=3, block_size=32, **{given})
prompts = ["White: a1 Rook", "White: a1 Rook; " * 60]
requests = [Request(row_id=row, prompt=prompt) for row, prompt in enumerate(prompts)]
rows = [row for batch in teacher.label(requests, DecodingConfig(max_tokens=4), seed=0) for row in batch.to_pylist()]
rows.sort(key=lambda row: row["row_id"])
print("TAKES", teacher.engine.max_positions, teacher.slots, *(row["error"] for row in rows))
"""


@pytest.mark.parametrize("given", [{}, {"max_model_len": -1}])
def test_an_engine_takes_what_its_memory_holds_where_the_models_longest_does_not_fit(model, given):
    """Three blocks of 32 tokens, one of them kept back, where the model takes 96; longer rows are told so."""
    program = [sys.executable, "-c", FITS.format(base=model.base, given=given)]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("TAKES")]
    told = r"TAKES 63 24 None prompt_length: \d+ tokens and 4 of answer; the model takes 63"
    assert re.fullmatch(told, line), line


def scratch(tmp_path_factory, family, **shape):
    vocabulary = get_domain(DomainConfig(name="chess")).vocabulary()
    path = tmp_path_factory.mktemp("models") / family
    return create(path, family=family, shape=shape, words=vocabulary.words, pattern=vocabulary.pattern, seed=0)


def test_a_model_that_vllm_cannot_run_is_refused(tmp_path_factory):
    ref = scratch(tmp_path_factory, "openai-gpt", n_embd=32, n_layer=1, n_head=2, n_positions=96)
    with pytest.raises(ModelError, match="vLLM's engine did not start") as refused:
        start(ref)
    assert refused.type is ModelError, "another process would refuse it, too"


def test_an_adapter_of_another_base_is_refused(tmp_path_factory, adapter):
    other = scratch(tmp_path_factory, "qwen3", **SHAPE | {"hidden_size": 32})
    ref = resolve(other.base, adapter=adapter.adapter)
    with pytest.raises(ModelError, match="does not fit model"):
        start(ref)


def test_a_runner_without_the_private_attributes_is_told_by_name():
    runner = SimpleNamespace(input_batch=SimpleNamespace(req_ids=[]), sampler=None)
    assert find_missing_attributes(runner) == ["execute_model_state", "use_aux_hidden_state_outputs"]


@pytest.mark.parametrize(
    ("slots", "given", "largest"),
    [(1024, {}, [None, 1024]), (256, {}, [None]), (1024, {"compilation_config": {"mode": 0}}, [None])],
)
def test_graphs_are_recorded_for_a_full_engine(model, monkeypatch, slots, given, largest):
    """VLLM's own default ends at 512 rows."""
    from vllm.engine.arg_utils import EngineArgs

    def create(arguments, _):
        asked.append(arguments.compilation_config.max_cudagraph_capture_size)
        graphs = SimpleNamespace(max_cudagraph_capture_size=512)
        return SimpleNamespace(
            compilation_config=graphs,
            scheduler_config=SimpleNamespace(max_num_seqs=slots),
            model_config=SimpleNamespace(),
        )

    asked = []
    monkeypatch.setattr(EngineArgs, "create_engine_config", create)
    vllm_engine._make_settings(teacher_config(model, vllm={"engine": given}), model, None, 4)
    assert asked == largest


HANGS = """
import time
from pathlib import Path
from curation.refs import ModelRef
from tests.with_vllm.conftest import start
teacher = start(ModelRef(base={base!r}))
from curation.config import DecodingConfig
from curation.teachers import Request
engine = teacher.engine._engine
step, num_steps = engine.step, []
def hang():
    num_steps.append(1)
    if len(num_steps) > 2:
        time.sleep(600)
    return step()
engine.step = hang
requests = [Request(row_id=k, prompt="White: a1 Rook; c1 Bishop") for k in range(9)]
list(teacher.label(requests, DecodingConfig(max_tokens=20), seed=0))
print("not reached")
"""


def test_a_step_that_hangs_ends_the_process_and_says_so(model):
    script = HANGS.format(base=model.base).replace("start(ModelRef", "start(hang_seconds=3, ref=ModelRef")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "took longer than teacher.vllm.hang_seconds: 3" in done.stderr
    assert "in hang" in done.stderr, "where it hung is shown"
    assert "not reached" not in done.stdout


@pytest.mark.slow  # test_vllm_layers has two ranks, too
def test_two_tensor_parallel_ranks(model, reference, requests, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    close_all()
    teacher = start(model, tensor_parallel_size=2, max_num_batched_tokens=64)
    both(teacher, reference, requests, DecodingConfig(max_tokens=7))
    both(teacher, reference, with_options(requests[:40], *LETTERS, *TEXTS), DecodingConfig())
    assert teacher.engine._call_workers("tap_rows") == [0, 0]
