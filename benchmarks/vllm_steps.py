"""CPU seconds per step of a full engine: ``python -m benchmarks.vllm_steps`` in ``.venv-vllm``, or with CUDA.

All rows run at once, with a vocabulary of realistic size on a model of one narrow layer, so that a step is mainly the
work of the host and of reading logits. Our side is the vLLM teacher, which also gives log-probabilities, margins,
entropies and the states of four positions as record batches; ``--bare`` omits the states. The peer is ``LLM.generate``
as vLLM starts it by default, with its core in a separate process and the runner that it chooses, returning tokens and
text. Each side has a process; CPU seconds are those of the process and its descendants. Rates are rows times steps per
CPU second. Decoding is greedy, and both sides must give the same texts. ``--gpu`` runs on a GPU, where CPU seconds are
the host's.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pairs import measure

NUM_STOPS = 64
STATES = ("prompt_last", "output_first", "output_last", "output_mean")


class Side:
    """A side in a separate process, which answers all rows at each request."""

    def __init__(self, name: str, model: str, options: argparse.Namespace) -> None:
        command = [sys.executable, "-m", "benchmarks.vllm_steps", *sys.argv[1:], "--side", name, "--model", model]
        # The threads of OpenMP are counted when a process begins.
        told = os.environ | {"OMP_NUM_THREADS": str(options.cores), "VLLM_NO_USAGE_STATS": "1"}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=told)
        self.texts: list[str] = []
        self.wall: list[float] = []

    def rate(self, pair: int) -> float:
        """Return rows times steps per CPU second of one turn."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("TURN "):
                found = json.loads(line.removeprefix("TURN "))
                break
        else:
            raise RuntimeError(f"the process ended with {self._process.wait()}; what it said stands above")
        self.texts = found["texts"]
        self.wall.append(found["wall"] / found["steps"])
        return float(len(self.texts) * found["steps"] / found["cpu"])

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def make_model(folder: Path, options: argparse.Namespace) -> str:
    """Make a model of one layer with words ``w0 `` and so on, and rows of dots."""
    from curation import models

    words = [f"w{number} " for number in range(options.vocabulary - NUM_STOPS - 4)]
    words += ["." * (1 + k) for k in range(NUM_STOPS)]
    shape = {"hidden_size": options.hidden, "num_hidden_layers": 1, "num_attention_heads": options.hidden // 64}
    shape |= {"num_key_value_heads": 1, "head_dim": 64, "intermediate_size": 2 * options.hidden}
    shape |= {"max_position_embeddings": 512}
    return models.create(folder, family="qwen3", shape=shape, words=words, pattern=r"w\d+ |\.+", seed=0).base


def serve(options: argparse.Namespace) -> None:
    """Answer all rows for each line of the input."""
    import psutil

    rng = np.random.default_rng(0)
    lengths = rng.integers(8, 24, size=options.rows)
    prompts = ["".join(f"w{word} " for word in rng.integers(4_000, size=length)) for length in lengths]
    engine: dict[str, Any] = {"max_num_seqs": options.rows, "enforce_eager": not options.gpu}
    engine |= {"gpu_memory_utilization": 0.4} if options.gpu else {"kv_cache_memory_bytes": 1 << 30}
    answer = (_ours if options.side == "ours" else _peer)(options, prompts, engine)
    answer()  # warm

    def cpu_seconds() -> float:
        process = psutil.Process()
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        return float(sum(of.user + of.system for of in times))

    for _ in sys.stdin:
        cpu, begun = cpu_seconds(), time.perf_counter()
        texts, steps = answer()
        found = {"wall": time.perf_counter() - begun, "cpu": cpu_seconds() - cpu, "steps": steps, "texts": texts}
        print(f"TURN {json.dumps(found)}", flush=True)


def _ours(options: argparse.Namespace, prompts: list[str], engine: dict[str, Any]) -> Callable[[], tuple[Any, int]]:
    from curation.config import AskConfig, DecodingConfig
    from curation.refs import ModelRef
    from curation.teachers import Request
    from curation.teachers.vllm import VllmTeacher

    states = () if options.bare else STATES
    actors = {"num_gpus": float(options.gpu)}
    config = AskConfig(backend="vllm", states=states, dtype=options.dtype, vllm={"engine": engine}, actors=actors)
    teacher = VllmTeacher(config, ModelRef(base=options.model))
    requests = [Request(row_id=row, prompt=prompt) for row, prompt in enumerate(prompts)]
    decoding = DecodingConfig(max_tokens=options.max_tokens, temperature=0.0)

    def answer() -> tuple[Any, int]:
        texts: dict[int, str] = {}
        for batch in teacher.label(requests, decoding, seed=0):
            texts |= zip(batch["row_id"].to_pylist(), batch["completion"].to_pylist(), strict=True)
        # One step more than the cap: the last token is fed for its state.
        return [texts[row] for row in range(options.rows)], options.max_tokens + 1

    return answer


def _peer(options: argparse.Namespace, prompts: list[str], engine: dict[str, Any]) -> Callable[[], tuple[Any, int]]:
    from vllm import LLM, SamplingParams

    from curation.models import load_tokenizer
    from curation.refs import ModelRef

    llm = LLM(model=options.model, dtype=options.dtype, disable_log_stats=True, **engine)
    ids = load_tokenizer(ModelRef(base=options.model))(prompts)["input_ids"]
    asked = [{"prompt_token_ids": tokens} for tokens in ids]
    params = SamplingParams(temperature=0.0, max_tokens=options.max_tokens)

    def answer() -> tuple[Any, int]:
        outputs = llm.generate(asked, params, use_tqdm=False)
        return [output.outputs[0].text for output in outputs], options.max_tokens

    return answer


def main() -> None:
    """Run both sides in turn and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--rows", type=int, default=1_024)
    parser.add_argument("--max-tokens", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--cores", type=int, default=1, help="threads of either side's model")
    parser.add_argument("--bare", action="store_true", help="without states")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--side", choices=("ours", "peer"), help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        serve(options)
        return
    with tempfile.TemporaryDirectory() as directory:
        model = make_model(Path(directory, "model"), options)
        ours, peer = (Side(name, model, options) for name in ("ours", "peer"))
        try:
            result = measure(ours.rate, peer.rate, options.pairs)
        finally:
            ours.close()
            peer.close()
    same = sum(mine == its for mine, its in zip(ours.texts, peer.texts, strict=True))
    print(f"  {same} of {options.rows} answers the same")
    assert same == options.rows, "the sides did not do the same work"
    for name, side in (("ours", ours), ("peer", peer)):
        print(f"  {name}: {1_000 * float(np.median(side.wall)):,.0f} ms of the clock a step")
    print(result.line("vLLM teacher against default LLM.generate", "row steps a CPU second", 0.9))


if __name__ == "__main__":
    main()
