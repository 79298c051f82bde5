"""Number types of a model on a CPU: costs of labelling in float32 and in bfloat16.

    python -m benchmarks.cpu_dtypes MODEL [--isa avx2]

MODEL is a folder, e.g. of gemma-3-270m. The transformers teacher scores four options of two words for 24 generated
questions with each type in turn, in a separate process with one thread. CPU seconds are compared, since the machine may
do other work. Both sides choose the same options except for rounding, which is printed. ``--isa`` limits the
instruction set, to simulate an older processor.
"""

import json
import os
import subprocess
import sys
import time

import click

ISA = {
    "native": {},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "ATEN_CPU_CAPABILITY": "avx512"},
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
}
NUM_ROWS = 24
OPTIONS = (" the first one", " the second one", " no answer", " every answer")


def main_of_process() -> None:
    """Label in this process; print the CPU seconds and the scores as JSON."""
    from curation.config import AskConfig, DecodingConfig
    from curation.models import resolve
    from curation.teachers import Request, load_teacher

    path, dtype = sys.argv[1:]
    teacher = load_teacher(AskConfig(backend="transformers", dtype=dtype), resolve(path))
    requests = [
        Request(
            row_id=row,
            prompt=f"Question {row}: which of {row + 3} answers is right?{' Think.' * row}\nAnswer:",
            options=OPTIONS,
        )
        for row in range(NUM_ROWS)
    ]
    decoding = DecodingConfig()
    list(teacher.label(requests[:4], decoding, seed=0))
    begun = time.process_time()
    batches = list(teacher.label(requests, decoding, seed=0))
    seconds = time.process_time() - begun
    scores = {row["row_id"]: row["option_logprobs"] for batch in batches for row in batch.to_pylist()}
    print(json.dumps({"seconds": seconds, "scores": [scores[row] for row in range(NUM_ROWS)]}))


def measure(model: str, dtype: str, isa: str) -> tuple[float, list[list[float]]]:
    """Return the CPU seconds of labelling in a process of its own, and the scores [NUM_ROWS][4]."""
    program = "from benchmarks.cpu_dtypes import main_of_process; main_of_process()"
    environment = {**os.environ, **ISA[isa], "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, model, dtype]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return found["seconds"], found["scores"]


@click.command()
@click.argument("model")
@click.option("--isa", type=click.Choice(list(ISA)), default="native", show_default=True)
@click.option("--pairs", default=3, show_default=True)
def main(model: str, isa: str, pairs: int) -> None:
    """Compare the two types."""
    ratios = []
    for _ in range(pairs):
        (whole, exact), (half, rounded) = (measure(model, dtype, isa) for dtype in ("float32", "bfloat16"))
        ratios.append(half / whole)
        gap = max(
            abs(a - b) for one, other in zip(exact, rounded, strict=True) for a, b in zip(one, other, strict=True)
        )
        same = sum(one.index(max(one)) == other.index(max(other)) for one, other in zip(exact, rounded, strict=True))
        print(
            f"{isa}: float32 {NUM_ROWS / whole:.1f}, bfloat16 {NUM_ROWS / half:.1f} rows a CPU second; "
            f"{same} of {NUM_ROWS} options the same, scores within {gap:.2f}",
            flush=True,
        )
    ratios.sort()
    print(f"CPU time of bfloat16 over float32: {ratios[len(ratios) // 2]:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
