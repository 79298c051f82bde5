"""The steps of ``benchmarks.gpu_hour`` that no other benchmark is: ``python -m benchmarks.gpu.steps NAME WORK FOUND``.

Each writes what it found to FOUND as a JSON object. WORK has the checkpoints that the step ``checkpoints`` made:
``small`` (1.7B on a GPU) and ``large`` (8B).
"""

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.vllm_teacher import STATES, make_examples, parity
from curation.config import AskConfig, DecodingConfig, DomainConfig, RayConfig, TeacherConfig
from curation.models.loading import set_environment

VOCABULARY = 151_936
QWEN3 = {"family": "qwen3", "head_dim": 128, "num_key_value_heads": 8}
SMALL = {"hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 6144}
LARGE = {"hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "intermediate_size": 12_288}
TINY = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 96}
GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 8, 64, 256, 512, 1024]}
"""CUDA graphs without torch.compile: a start of a minute in place of several."""


class Shape:
    """Sizes of the steps, on a GPU or tiny."""

    def __init__(self, tiny: bool) -> None:
        self.tiny = tiny
        self.words = 600 if tiny else VOCABULARY - 3
        self.rows = 16 if tiny else 1_024
        """Rows at once."""
        self.tokens = 8 if tiny else 256
        self.long = 24 if tiny else 1_500
        """Tokens of a long answer."""
        self.device = "cpu" if tiny else "cuda"
        self.dtype = "float32" if tiny else "bfloat16"
        self.num_gpus = 0 if tiny else 1

    def engine(self, *, graphs: bool = False, max_model_len: int | None = None) -> dict[str, Any]:
        """Return the arguments of vLLM's engine."""
        how: dict[str, Any] = {
            "max_num_seqs": self.rows,
            "max_model_len": max_model_len or (128 if self.tiny else 4096),
        }
        if self.tiny:
            return {**how, "enforce_eager": True, "kv_cache_memory_bytes": 64 << 20}
        how["gpu_memory_utilization"] = 0.6
        return how | ({"compilation_config": GRAPHS} if graphs else {"enforce_eager": True})


def versions(shape: Shape, work: Path) -> dict[str, Any]:
    """Return the versions of what is used, and whether its compiled parts load."""
    import importlib

    found: dict[str, Any] = {"python": platform.python_version()}
    for name in ("torch", "transformers", "vllm", "ray", "lance", "pyarrow", "trl", "peft", "accelerate", "triton"):
        try:
            found[name] = str(getattr(importlib.import_module(name), "__version__", "?"))
        except Exception as error:  # a library whose compiled part does not load may raise anything
            found[name] = f"{type(error).__name__}: {error}"
    for name in ("vllm._C", "vllm.vllm_flash_attn", "vllm.cumem_allocator"):
        try:
            importlib.import_module(name)
            found[name] = "loads"
        except Exception as error:  # as above
            found[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if not shape.tiny:
        import torch

        card = torch.cuda.get_device_properties(0)
        found |= {"card": card.name, "gib": round(card.total_memory / 2**30, 1), "cuda": torch.version.cuda}
    return found


def checkpoints(shape: Shape, work: Path) -> dict[str, Any]:
    """Make the models, with random weights, on the device."""
    import torch
    import transformers

    from curation.models import create

    found = {}
    for name, sizes in {"small": TINY if shape.tiny else SMALL, "large": TINY if shape.tiny else LARGE}.items():
        begun = time.monotonic()
        small = {**TINY, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 8192}
        ends = tuple("." * (1 + number) for number in range(64))
        words = (*(f"w{number} " for number in range(shape.words - len(ends))), *ends)
        create(work / name, family="qwen3", shape=small, words=words, pattern=r"w\d+ |\.+", seed=0)
        config = transformers.AutoConfig.from_pretrained(work / name)
        config.update({**sizes, "layer_types": ["full_attention"] * sizes["num_hidden_layers"]})
        if not shape.tiny:
            config.update({"head_dim": QWEN3["head_dim"], "num_key_value_heads": QWEN3["num_key_value_heads"]})
        torch.manual_seed(0)
        with torch.device(shape.device):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, shape.dtype))
        model.save_pretrained(work / name)
        found[name] = {"weights": model.num_parameters(), "seconds": round(time.monotonic() - begun, 1)}
        del model
    return found


def teacher_of(shape: Shape, folder: Path, backend: str, states: tuple[str, ...], engine: Mapping[str, Any]) -> Any:
    """Return a started teacher."""
    from curation.models import resolve
    from curation.teachers import load_teacher

    config = AskConfig.model_validate(
        {
            "backend": backend,
            "states": states,
            "dtype": shape.dtype,
            "vllm": {"engine": dict(engine)},
            "actors": {"num_gpus": shape.num_gpus},
        }
    )
    return load_teacher(config, resolve(str(folder)))


def prompts_of(num: int, num_words: int = 24) -> list[str]:
    """Return random prompts of words that every vocabulary here has."""
    rng = np.random.default_rng(0)
    return ["".join(f"w{word} " for word in rng.integers(500, size=num_words)) for _ in range(num)]


def compared(shape: Shape, work: Path, *, graphs: bool) -> dict[str, Any]:
    """Start the engine and hold five kinds of answers against transformers."""
    from curation.teachers import Request

    begun = time.monotonic()
    ours = teacher_of(shape, work / "small", "vllm", STATES, shape.engine(graphs=graphs))
    found: dict[str, Any] = {"start_seconds": round(time.monotonic() - begun, 1), **ours.facts}
    prompts = dict(
        enumerate([*prompts_of(8), *prompts_of(2, 60 if shape.tiny else 3_000)])
    )  # the long: in several parts
    kinds = {
        "greedy": (DecodingConfig(max_tokens=8), {}),
        "sampled": (DecodingConfig(max_tokens=8, temperature=1.0), {}),
        "again": (DecodingConfig(max_tokens=8), {}),  # from the prefix cache
        "one_token": (DecodingConfig(), {"options": ("w1 ", "w2 ", "w3 ")}),
        "several_tokens": (DecodingConfig(), {"options": ("w1 w2 ", "w1 w3 w4 ", "w5 ")}),
    }
    answers = {}
    for kind, (decoding, how) in kinds.items():
        requests = [Request(row_id=row, prompt=prompt, **how) for row, prompt in prompts.items()]
        batches = list(ours.label(requests, decoding, seed=0))
        answers[kind] = {row["row_id"]: row for batch in batches for row in batch.to_pylist()}
    ours.close()
    plain = teacher_of(shape, work / "small", "transformers", STATES, {})
    for kind in ("greedy", "sampled", "again"):
        rows = [row for row in answers[kind].values() if row["num_output_tokens"]]
        found[kind] = parity(plain, rows, prompts)
    for kind in ("one_token", "several_tokens"):
        decoding, how = kinds[kind]
        requests = [Request(row_id=row, prompt=prompt, **how) for row, prompt in prompts.items()]
        theirs = {row["row_id"]: row for batch in plain.label(requests, decoding, seed=0) for row in batch.to_pylist()}
        gaps = [
            abs(a - b)
            for row, other in theirs.items()
            for a, b in zip(other["option_logprobs"], answers[kind][row]["option_logprobs"], strict=True)
        ]
        found[kind] = f"{len(theirs)} rows, option scores differ by at most {max(gaps):.2g}"
    return found


def eager(shape: Shape, work: Path) -> dict[str, Any]:
    """Check parity without graphs."""
    return compared(shape, work, graphs=False)


def graphs(shape: Shape, work: Path) -> dict[str, Any]:
    """Check parity with graphs, and count the synchronisations of vLLM after its start."""
    os.environ["VLLM_GPU_SYNC_CHECK"] = "warn"
    found = compared(shape, work, graphs=True)
    return found | {"note": "VLLM_GPU_SYNC_CHECK=warn: its warnings stand in the engine's log"}


@contextmanager
def cpu_seconds() -> Iterator[list[float]]:
    """Measure the CPU seconds of this process and its children, those that go on too."""
    import psutil

    def spent() -> float:
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        return sum(sum(process.cpu_times()[:4]) for process in family)

    begun, found = spent(), [0.0]
    yield found
    found[0] = spent() - begun


def rates(shape: Shape, seconds: float, cpu: float, num_tokens: int) -> dict[str, float]:
    """Return steps and tokens a second, and CPU milliseconds a step."""
    return {
        "steps_per_second": round(shape.tokens / seconds, 2),
        "tokens_per_second": round(num_tokens / seconds),
        "cpu_ms_per_step": round(1000 * cpu / shape.tokens, 2),
    }


def generated(shape: Shape, work: Path, *, own_process: bool) -> dict[str, Any]:
    """Measure ``LLM.generate`` with all rows at once; by default with the engine in a process of its own."""
    if not own_process:
        set_environment()
    from vllm import LLM, SamplingParams

    llm = LLM(model=str(work / "small"), dtype=shape.dtype, disable_log_stats=True, **shape.engine(graphs=True))
    params = [
        SamplingParams(temperature=1.0, max_tokens=shape.tokens, ignore_eos=True, seed=row) for row in range(shape.rows)
    ]
    prompts = prompts_of(shape.rows)
    found = {}
    for turn in ("first", "warm"):
        begun = time.monotonic()
        with cpu_seconds() as cpu:
            outputs = llm.generate(prompts, params, use_tqdm=False)
        num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        found[turn] = rates(shape, time.monotonic() - begun, cpu[0], num_tokens)
    return found


def labelled(shape: Shape, work: Path, states: tuple[str, ...]) -> dict[str, Any]:
    """Measure the teacher with all rows at once."""
    from curation.teachers import Request

    ours = teacher_of(shape, work / "small", "vllm", states, shape.engine(graphs=True))
    requests = [Request(row_id=row, prompt=prompt) for row, prompt in enumerate(prompts_of(shape.rows))]
    decoding = DecodingConfig(max_tokens=shape.tokens, temperature=1.0)
    found: dict[str, Any] = {}
    for turn in ("first", "warm"):
        begun = time.monotonic()
        with cpu_seconds() as cpu:
            batches = list(ours.label(requests, decoding, seed=0))
        num_tokens = sum(sum(batch.column("num_output_tokens").to_pylist()) for batch in batches)
        found[turn] = rates(shape, time.monotonic() - begun, cpu[0], num_tokens)
    if not shape.tiny:
        found["profile"] = profiled(lambda: list(ours.label(requests, decoding, seed=1)), shape.tokens)
    return found | {"facts": dict(ours.facts)}


def profiled(work: Callable[[], object], num_steps: int) -> dict[str, Any]:
    """Return milliseconds of the GPU a step, and the kernels that take most, by torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
    kernels = sorted(seen.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    total = sum(kernel.self_device_time_total for kernel in kernels) / 1000
    top = {kernel.key[:80]: round(kernel.self_device_time_total / 1000 / num_steps, 3) for kernel in kernels[:12]}
    return {"gpu_ms_per_step": round(total / num_steps, 3), "top_ms_per_step": top}


def long_answers(shape: Shape, work: Path) -> dict[str, Any]:
    """Compare the label stage with answers that last longer than a chunk to the same with all rows in one chunk."""
    from dataclasses import replace

    from curation.cluster.session import local_or_cluster
    from curation.models import resolve
    from curation.passes.run import make_dataset
    from curation.stages.label import RowShare, count_labels, label
    from curation.stages.label_chunks import LabelJob

    folder, num_rows = work / f"long-{time.time_ns()}", 2 * shape.rows
    folder.mkdir()
    teacher = TeacherConfig.model_validate(
        {
            "backend": "vllm",
            "model": {"path": str(work / "small")},
            "states": ("output_last",),
            "dtype": shape.dtype,
            "chunk_seconds": 0.5 if shape.tiny else 5,
            "vllm": {"engine": shape.engine(graphs=True)},
            "actors": {"num_gpus": shape.num_gpus},
        }
    )
    job = LabelJob(
        examples=make_examples(folder, num_rows, 8),
        labels_uri=str(folder / f"warm-{time.time_ns()}.lance"),
        domain=DomainConfig(name="benchmarks.vllm_teacher:Words"),
        teacher=teacher,
        model=resolve(str(work / "small")),
        decoding=DecodingConfig(max_tokens=shape.long, temperature=1.0),
        seed=0,
    )
    found: dict[str, Any] = {"rows": num_rows, "tokens_an_answer": shape.long}
    with local_or_cluster(RayConfig(num_cpus=2)):
        dataset = make_dataset(teacher)
        try:
            whole = {"chunk_seconds": float("inf"), "chunk_rows": num_rows}
            for turn, ask in {"start": whole, "all_at_once": whole, "chunks": {}}.items():
                timed = replace(
                    job,
                    labels_uri=str(folder / f"{turn}-{time.time_ns()}.lance"),
                    teacher=teacher.model_copy(update=ask),
                )
                begun = time.monotonic()
                how: dict[str, Any] = {"share": RowShare(), "commit_seconds": 1.0, "dataset": dataset}
                result = label(timed, state_size=_width(work / "small"), **how)
                found[turn] = round(count_labels(result.table).output_tokens / (time.monotonic() - begun))
        finally:
            dataset.close()
    return found | {"ratio": round(found["chunks"] / found["all_at_once"], 3)}


def _width(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text())["hidden_size"])


def eight_b(shape: Shape, work: Path) -> dict[str, Any]:
    """Measure tokens per second and memory of the 8B teacher."""
    ours = teacher_of(shape, work / "large", "vllm", ("output_last",), shape.engine(graphs=True) | _share(shape, 0.85))
    from curation.teachers import Request

    requests = [Request(row_id=row, prompt=prompt) for row, prompt in enumerate(prompts_of(shape.rows))]
    begun = time.monotonic()
    batches = list(ours.label(requests, DecodingConfig(max_tokens=shape.tokens), seed=0))
    num_tokens = sum(sum(batch.column("num_output_tokens").to_pylist()) for batch in batches)
    return {"tokens_per_second": round(num_tokens / (time.monotonic() - begun)), **ours.facts, **memory(shape)}


def _share(shape: Shape, share: float) -> dict[str, Any]:
    return {} if shape.tiny else {"gpu_memory_utilization": share}


def memory(shape: Shape) -> dict[str, float]:
    """Return the peak of this process's GPU memory, in GiB; of its own, in RAM, on a CPU."""
    if shape.tiny:
        import resource

        return {"peak_ram_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)}
    import torch

    free, total = torch.cuda.mem_get_info()
    peak = torch.cuda.max_memory_allocated()
    return {"peak_torch_gib": round(peak / 2**30, 2), "in_use_gib": round((total - free) / 2**30, 2)}


def killed_run(shape: Shape, work: Path) -> dict[str, Any]:
    """Kill an actor of ``curate run`` by vLLM while it labels, then the driver; measure what a resume leaves."""
    import lance
    import psutil

    root, folder = Path(__file__).parents[2], work / f"run-{time.time_ns()}"
    rows = 60 if shape.tiny else 4_000
    gpus = f", actors: {{num_gpus: {shape.num_gpus}}}"
    engine = json.dumps(
        {"max_num_seqs": 24, "kv_cache_memory_bytes": 32 << 20, "enforce_eager": True} if shape.tiny else {}
    )
    (work / "run.yaml").write_text(
        f"""name: gpu-hour
run_dir: {folder}
domain: chess
sources: {{puzzles: {{path: {root / "examples/data/puzzles.parquet"}}}}}
splits: {{source: {{from: puzzles, rows: {rows}}}, pool: {{from: puzzles, rows: {rows}}}, audit: true}}
teacher: {{model: {{path: {root / "examples/bases/teacher"}}}, backend: vllm, vllm: {{engine: {engine}}}{gpus}}}
selection: {{budget: {{n: {rows // 10}}}}}
generations: []
"""
    )
    command = [sys.executable, "-c", "from curation.cli import main; main()", "run", str(work / "run.yaml")]
    killed: list[str] = []

    def kill(driver: psutil.Process) -> None:
        """Kill an actor once labels are committed, then the driver once there are more."""
        labels, before = folder / "gen-0", 0
        for what in ("actor", "driver"):
            while driver.is_running():
                tables = [*labels.glob("label-*/labels.lance"), *labels.glob("label-*.lance")]
                num = sum(lance.dataset(str(table)).count_rows() for table in tables)
                if num > before:
                    before = num
                    break
                time.sleep(0.05)
            actors = [
                child
                for child in psutil.process_iter(["cmdline"])
                if "ModelActor" in " ".join(child.info["cmdline"] or [])
            ]
            for process in actors[:1] if what == "actor" else [driver]:
                process.send_signal(signal.SIGKILL)
                killed.append(what)

    first = subprocess.Popen(command)
    watcher = threading.Thread(target=kill, args=(psutil.Process(first.pid),), daemon=True)
    watcher.start()
    codes = [first.wait(), subprocess.run(command, check=False).returncode]
    tables = sorted({path.parent for path in folder.rglob("_versions") if "label" in str(path)})
    counts = {}
    for table in tables:
        ids = lance.dataset(str(table)).to_table(columns=["row_id"])["row_id"].to_pylist()
        counts[table.parent.name + "/" + table.name] = [len(ids), len(set(ids))]
    if codes[1] or not counts or any(num != distinct for num, distinct in counts.values()):
        raise RuntimeError(f"exit codes {codes}, rows and distinct rows {counts}")
    return {"killed": killed, "exit_codes": codes, "rows_and_distinct": counts}


def lora_8b(shape: Shape, work: Path) -> dict[str, Any]:
    """Measure LoRA of the 8B shape, a step of which must fit: seconds per step and peak memory."""
    import lance
    import pyarrow as pa

    from curation.config import SftConfig
    from curation.models import resolve
    from curation.refs import TableRef
    from train.sft import fine_tune

    num, length = (16, 8) if shape.tiny else (64, 200)
    table = pa.table({"row_id": range(num), "prompt": prompts_of(num, length), "completion": ["w1 w2 w3 "] * num})
    uri = str(work / f"sft-{time.time_ns()}.lance")
    rows = TableRef(uri=uri, version=lance.write_dataset(table, uri).version)
    config = SftConfig(gpus_per_worker=shape.num_gpus, global_batch_size=num // 2, micro_batch_size=4, epochs=1)
    begun = time.monotonic()
    record = fine_tune(resolve(str(work / "large")), rows, config, seed=0, output=work / f"lora-{time.time_ns()}")
    return {"seconds": round(time.monotonic() - begun, 1), "losses": record.losses, **memory(shape)}


def default_start(shape: Shape, work: Path) -> dict[str, Any]:
    """Measure the time of vLLM's default start, with compilation; its caches are kept for the next one."""
    if shape.tiny:
        return {"skipped": "the CPU build compiles with another compiler; the other steps start eagerly"}
    begun = time.monotonic()
    ours = teacher_of(shape, work / "small", "vllm", ("output_last",), {"gpu_memory_utilization": 0.6})
    return {"start_seconds": round(time.monotonic() - begun, 1), **ours.facts}


FUNCTIONS: Mapping[str, Callable[[Shape, Path], dict[str, Any]]] = {
    "versions": versions,
    "checkpoints": checkpoints,
    "eager": eager,
    "graphs": graphs,
    "at_once_generate": lambda shape, work: generated(shape, work, own_process=True),
    "at_once_in_process": lambda shape, work: generated(shape, work, own_process=False),
    "at_once_states_0": lambda shape, work: labelled(shape, work, ()),
    "at_once_states_1": lambda shape, work: labelled(shape, work, ("output_last",)),
    "at_once_states_4": lambda shape, work: labelled(shape, work, STATES),
    "long_answers": long_answers,
    "eight_b": eight_b,
    "killed_run": killed_run,
    "lora_8b": lora_8b,
    "default_start": default_start,
}


def main() -> None:
    """Run a step."""
    name, work, found = sys.argv[1:4]
    value = FUNCTIONS[name](Shape("--tiny" in sys.argv), Path(work))
    Path(found).write_text(json.dumps(value))
    print(json.dumps(value), flush=True)
    sys.stdout.flush()
    os._exit(0)  # an engine's threads need not be waited for


if __name__ == "__main__":
    main()
