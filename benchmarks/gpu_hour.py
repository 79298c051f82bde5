"""An hour on a GPU: which parts of this engine work there, their speed, and their memory.

    python -m benchmarks.gpu_hour --out FILE.jsonl [--part STEP ...] [--tiny] [--seconds 1500]

Each step is a process with a time limit; its result is a line of JSON in FILE, synced to disk before the next step
begins: ``{"step", "ok", "seconds", "device", "found" | "error"}``. Other steps run even if a step fails, hangs or is
killed. A second call runs the steps without a successful line for this device; ``--part`` runs only the named steps.
Steps, in this order (``STEPS``): versions, and which libraries load; random checkpoints of 1.7B and 8B shape with
151,936 words; eager start, and parity of answers, log-probabilities and states with transformers for five kinds of
answers; the same with CUDA graphs, and vLLM's count of synchronisations; 1,024 rows at once by ``LLM.generate`` in its
default form, in this process, and by the teacher with 0, 1 and 4 states; long answers through the whole label stage;
8B; a whole run with a killed actor and a killed driver; trainings beside TRL; the default start of vLLM, with
compilation, for its time.

``--tiny`` runs every step on a CPU with tiny shapes (in ``.venv-vllm``), and gives the reason for each step that is
meaningless there.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.gpu.steps import FUNCTIONS

LAST_LINES = 12
"""Number of last lines of a step's output that an error includes."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step: a function of ``benchmarks.gpu.steps``, or a command of its own."""

    limit: int
    """Time limit on a GPU, in seconds."""
    command: tuple[str, ...] | None = None
    """Arguments of ``python``; the last lines that the command prints are its result."""
    tiny: tuple[str, ...] = ()
    """Additional arguments on a CPU."""
    large: tuple[str, ...] = ()
    """Additional arguments on a GPU."""


def _benchmark(name: str, *, large: str, tiny: str, limit: int) -> Step:
    command = ("-m", f"benchmarks.{name}")
    return Step(limit=limit, command=command, large=tuple(large.split()), tiny=tuple(tiny.split()))


STEPS: Mapping[str, Step] = {
    "versions": Step(limit=90),
    "checkpoints": Step(limit=240),
    "eager": Step(limit=180),
    "graphs": Step(limit=180),
    "at_once_generate": Step(limit=300),
    "at_once_in_process": Step(limit=120),
    "at_once_states_0": Step(limit=120),
    "at_once_states_1": Step(limit=120),
    "at_once_states_4": Step(limit=120),
    "label_stage": _benchmark(
        "vllm_teacher",
        large="--num-gpus 1 --dtype bfloat16 --hidden 1024 --layers 28 --rows 4096 --running 1024 --max-tokens 256 "
        "--pairs 3 --eager",
        tiny="--pairs 1 --rows 24 --running 8 --max-tokens 16 --hidden 64 --layers 1 --cores 1",
        limit=300,
    ),
    "long_answers": Step(limit=240),
    "eight_b": Step(limit=240),
    "killed_run": Step(limit=300),
    "sft": _benchmark("sft", large="--gpu --rows 1024 --turns 1", tiny="--rows 32 --turns 1", limit=240),
    "grpo": _benchmark(
        "grpo",
        large="--gpu --pairs 1 --steps 4",
        tiny="--pairs 1 --steps 3 --prompts 8 --group 4 --micro 8",
        limit=300,
    ),
    "lora_8b": Step(limit=200),
    "default_start": Step(limit=330),
}


def device_name(tiny: bool) -> str:
    """Return the card's name, as nvidia-smi gives it; ``cpu`` with ``tiny``.

    Raises:
        click.UsageError: there is no GPU.
    """
    if tiny:
        return "cpu"
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError) as error:
        raise click.UsageError(f"no GPU answers nvidia-smi ({error}); --tiny runs on a CPU") from error


def run_step(name: str, work: Path, *, tiny: bool, limit: float) -> dict[str, object]:
    """Run a step in a process group of its own, which ends with it; return its line, without the device."""
    step = STEPS[name]
    found, log = work / f"{name}.json", work / f"{name}.log"
    found.unlink(missing_ok=True)
    if step.command is None:
        arguments = ["-m", "benchmarks.gpu.steps", name, str(work), str(found), *(["--tiny"] if tiny else [])]
    else:
        arguments = [*step.command, *(step.tiny if tiny else step.large)]
    begun = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | str = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = f"ran past its limit of {limit:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    line: dict[str, object] = {"step": name, "ok": code == 0, "seconds": round(time.monotonic() - begun, 1)}
    lines = log.read_text(errors="replace").strip().splitlines()
    if code == 0:
        line["found"] = json.loads(found.read_text()) if found.is_file() else lines[-LAST_LINES:]
    else:
        line["error"] = [f"exit code {code}" if isinstance(code, int) else code, *lines[-LAST_LINES:]]
    return line


def keep(line: Mapping[str, object], out: Path) -> None:
    """Append a line to a file, onto the disk, and print it."""
    text = json.dumps(line)
    with out.open("a") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())
    print(text, flush=True)


def done_steps(out: Path, device: str) -> set[str]:
    """Return the steps that have a good line of this device."""
    if not out.is_file():
        return set()
    lines = [json.loads(line) for line in out.read_text().splitlines() if line.strip()]
    return {line["step"] for line in lines if line["ok"] and line["device"] == device}


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The file that lines are added to.")
@click.option("--part", "parts", multiple=True, type=click.Choice(list(STEPS)), help="This step alone; repeatable.")
@click.option("--tiny", is_flag=True, help="On a CPU, with tiny shapes.")
@click.option("--seconds", default=1500.0, show_default=True, help="No step begins after so many.")
@click.option("--work", type=click.Path(path_type=Path), help="Where checkpoints are kept for another call.")
def main(out: Path, parts: Sequence[str], tiny: bool, seconds: float, work: Path | None) -> None:
    """Run the steps that are not done yet."""
    assert {*FUNCTIONS} <= {*STEPS}, "each function is a step"
    begun, device = time.monotonic(), device_name(tiny)
    work = work or Path(tempfile.gettempdir()) / f"gpu-hour-{'tiny' if tiny else 'large'}"
    work.mkdir(parents=True, exist_ok=True)
    names = list(parts) or [name for name in STEPS if name not in done_steps(out, device)]
    if "checkpoints" not in names and not (work / "small" / "config.json").is_file():
        names = ["checkpoints", *names]
    failed = []
    for name in names:
        left = seconds - (time.monotonic() - begun)
        if left <= 0:
            print(f"the time is spent; left: {', '.join(names[names.index(name) :])}", flush=True)
            break
        line = run_step(name, work, tiny=tiny, limit=min(STEPS[name].limit, left) if not tiny else STEPS[name].limit)
        keep({**line, "device": device}, out)
        failed += [] if line["ok"] else [name]
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
