"""The cost of HTTP: ``python -m benchmarks.endpoint`` in ``.venv-vllm``, the endpoint teacher beside a local engine.

Our side is the endpoint teacher (``teacher.backend: endpoint``, ``kind: vllm``) with a server that this command starts,
that of ``vllm serve``, with a small random model. The peer is the vLLM teacher with the same model and engine arguments
in this process, without hidden states, since ``vllm serve`` returns none. Both label the same rows, positions of the
shipped puzzles, with greedy answers. Rates are in rows per second, in pairs; one side idles while the other works.
Checked first: each side returns every row once, and both return the same answers except for ties, with the same numbers
of tokens, and log-probabilities that differ by less than 1e-3.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq

from benchmarks.pairs import measure, spread
from curation.config import AskConfig, DecodingConfig, DomainConfig, ModelConfig, TeacherConfig
from curation.config.external import EndpointConfig
from curation.config.teacher import VllmConfig
from curation.domains import get_domain
from curation.models import create, load_model, resolve
from curation.refs import ModelRef
from curation.teachers import Request, Teacher, load_teacher

PUZZLES = Path(__file__).parents[1] / "examples" / "data" / "puzzles.parquet"
NUMBERS = ("mean_logprob", "min_logprob", "first_logprob", "last_logprob", "margin", "first_margin")
"""Numbers that can be computed from the 20 likeliest tokens at each position; the entropy needs all tokens."""
LARGEST, TIES = 1e-3, 50
"""Maximum difference of a number, and N if at most one in N answers may differ because of ties."""
START_SECONDS = 600
NAME = "tiny"
T = TypeVar("T")
ENGINE = {"max_num_seqs": 24, "kv_cache_memory_bytes": 32 << 20}


@contextmanager
def serving(model: str, log: Path, *options: str) -> Iterator[str]:
    """Serve a model under the name ``NAME`` on this machine; yield the URL.

    Raises:
        RuntimeError: it does not start; the message has the end of its log.
    """
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    # The server of ``vllm serve``; the command itself wants metadata that the CPU build has under another name.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port), *options]
    with log.open("w") as file:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
    try:
        begun = time.monotonic()
        while not _answers(f"http://127.0.0.1:{port}/health"):
            if process.poll() is not None or time.monotonic() - begun > START_SECONDS:
                raise RuntimeError(f"the server does not start: {log.read_text()[-4000:]}")
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also its engine, where it had no time to end that
        process.wait()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


def make_model(path: Path) -> ModelRef:
    """Return a random Qwen3 with the chess vocabulary, whose answers vary in text and length."""
    import torch

    shape = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 96,
        "max_position_embeddings": 96,
        "initializer_range": 0.1,
    }
    vocabulary = get_domain(DomainConfig(name="chess")).vocabulary()
    ref = create(path, family="qwen3", shape=shape, words=vocabulary.words, pattern=vocabulary.pattern, seed=1)
    weights: Any = load_model(ref)
    with torch.no_grad():
        weights.get_output_embeddings().weight[weights.config.eos_token_id] *= 1.5
    weights.save_pretrained(path)
    return resolve(str(path))


def make_requests(num_rows: int) -> list[Request]:
    """Make requests of the prompts of the first puzzles."""
    domain = get_domain(DomainConfig(name="chess"))
    rows = pq.read_table(PUZZLES).slice(0, num_rows).to_pylist()
    return [Request(row_id=place, prompt=domain.prompt(domain.read(raw))) for place, raw in enumerate(rows)]


def labelled(teacher: Teacher, requests: Sequence[Request], decoding: DecodingConfig) -> dict[int, dict[str, Any]]:
    """Return the rows of a teacher by id.

    Raises:
        ValueError: a row is missing, came twice or is an error row.
    """
    found: dict[int, dict[str, Any]] = {}
    for batch in teacher.label(requests, decoding, seed=0, states=False):
        for row in batch.to_pylist():
            if row["row_id"] in found or row["error"] is not None:
                raise ValueError(f"row {row['row_id']} came twice or failed: {row['error']}")
            found[row["row_id"]] = row
    if len(found) != len(requests):
        raise ValueError(f"{len(requests):,} rows were asked for, {len(found):,} came")
    return found


def compared(ours: dict[int, dict[str, Any]], peers: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Return the number of other answers, and the largest difference of each number over the equal ones.

    Raises:
        ValueError: both sides state other answers than ties explain, other counts of tokens or other numbers.
    """
    same = [
        (ours[row_id], peers[row_id]) for row_id in peers if ours[row_id]["completion"] == peers[row_id]["completion"]
    ]
    for one, other in same:
        for name in ("num_prompt_tokens", "num_output_tokens"):
            if one[name] != other[name]:
                raise ValueError(f"row {one['row_id']}: {name} is {one[name]} over HTTP, {other[name]} here")
    worst = {
        name: max(abs(one[name] - other[name]) for one, other in same if one[name] is not None) for name in NUMBERS
    }
    num_others = len(peers) - len(same)
    if num_others > len(peers) // TIES or max(worst.values()) >= LARGEST:
        raise ValueError(f"the two sides differ: {num_others:,} other answers of {len(peers):,}, numbers by {worst}")
    return {"rows": len(peers), "other_answers": num_others, "largest_difference": worst}


def run(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Compare both sides, then measure them; the outcome as JSON."""
    model, requests = make_model(directory / "model"), make_requests(options.rows)
    decoding = DecodingConfig(max_tokens=options.max_tokens)
    flags = ["--dtype", "float32", "--enforce-eager"]
    flags += [word for key, value in ENGINE.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    with serving(model.base, directory / "log", *flags) as url:
        endpoint = EndpointConfig(url=url, model=NAME, kind="vllm", concurrency=options.concurrency)
        config = TeacherConfig(
            model=ModelConfig(path=model.base),
            backend="vllm",
            dtype="float32",
            vllm=VllmConfig(engine={"enforce_eager": True, **ENGINE}),
        )
        here: Any = load_teacher(config.ask.model_copy(update={"states": ()}), model)

        def rows(teacher: Teacher) -> dict[int, dict[str, Any]]:
            return labelled(teacher, requests, decoding)

        def rate(teacher: Teacher) -> float:
            begun = time.perf_counter()
            rows(teacher)
            return len(requests) / (time.perf_counter() - begun)

        def served(work: Callable[[Teacher], T]) -> T:
            """Return the work's outcome with a new teacher, which has no earlier answers to reuse."""
            teacher: Any = load_teacher(AskConfig(backend="endpoint", states=(), endpoint=endpoint), None)
            with closing(teacher):
                return work(teacher)

        found = compared(served(rows), rows(here))
        print(f"  {json.dumps(found)}", flush=True)
        rates = measure(lambda _: served(rate), lambda _: rate(here), options.pairs)
    return {
        **found,
        "pairs": options.pairs,
        "concurrency": options.concurrency,
        "served_rows_per_second": statistics.median(rates.ours),
        "here_rows_per_second": statistics.median(rates.peers),
        "ratio": spread(rates.ratios),
    }


def main() -> None:
    """Run it and print what it found, last of all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--concurrency", type=int, default=24, help="questions under way at once")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(run(Path(directory), options)))


if __name__ == "__main__":
    main()
