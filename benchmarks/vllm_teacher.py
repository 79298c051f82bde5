"""Overhead of the vLLM teacher over vLLM itself: ``python -m benchmarks.vllm_teacher`` in ``.venv-vllm``, or with CUDA.

Our side is the label stage: a pool's actor renders prompts from a table of examples, two chunks at a time, the engine
answers with log-probabilities and the states of four positions, labels are parsed, fragments are written, and the
driver commits them to a Lance table. Its clock runs from the first prompt to the last commit. Both sides are warm: each
has answered the same prompts once before, ours in a pass of the same pool, whose start is printed separately. The peer
is ``LLM.generate`` with the same engine arguments on the same prompts, tokenised beforehand, which returns tokens and
text; nothing is stored. Both sides have the same cores (``--cores``). Answers are sampled with a seed per row and end
by a stop string after a geometric number of tokens, so their lengths vary up to the cap. Rates are output tokens per
second, without stop tokens. Checked: both sides sample the same answers, and the transformers teacher, given some of
these answers, gets the stored log-probabilities and states. It labels the same rows once, too; and in one process the
parts of our side are timed. On a GPU::

    python -m benchmarks.vllm_teacher --num-gpus 1 --dtype bfloat16 --hidden 1024 --layers 28 --rows 4096
        --running 256 --max-tokens 512
"""

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from benchmarks.pairs import measure
from benchmarks.plain import Plain
from curation import models
from curation.cluster.session import local_or_cluster
from curation.config import DecodingConfig, DomainConfig, ModelConfig, RayConfig, TeacherConfig
from curation.domains import Example, Vocabulary
from curation.models.loading import set_environment
from curation.passes.run import make_dataset
from curation.refs import ModelRef, TableRef
from curation.stages.label import RowShare, count_labels, label
from curation.stages.label_chunks import LabelJob, label_rows
from curation.tables import commits, io, schemas
from curation.teachers import Request, Teacher, load_teacher

STATES = ("prompt_last", "output_first", "output_last", "output_mean")
NUM_WORDS, NUM_STOPS = 4_032, 64


class Words(Plain):
    """A plain domain with a vocabulary, which may record the time of the first prompt."""

    name = "words"

    def __init__(self, *, clock: str | None = None) -> None:
        self._clock = clock

    def prompt(self, example: Example, *, shots: Sequence[Example] = ()) -> str:
        """Return the text; the time of the first one is written to the file ``clock``."""
        if self._clock is not None:
            with contextlib.suppress(FileExistsError), open(self._clock, "x") as file:
                file.write(repr(time.time()))
            self._clock = None
        return str(example["text"])

    def vocabulary(self) -> Vocabulary:
        """Return 4,032 words, and 64 that are a row of dots each: an answer ends at the first dot."""
        words = [f"w{number} " for number in range(NUM_WORDS)]
        return Vocabulary(words=(*words, *("." * (1 + k) for k in range(NUM_STOPS))), pattern=r"w\d+ |\.+")


def make_examples(directory: Path, num_rows: int, num_words: int) -> TableRef:
    """Return rows of random words, half as many to half more than ``num_words``."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(num_words // 2, num_words + num_words // 2, size=num_rows)
    texts = ["".join(f"w{word} " for word in rng.integers(NUM_WORDS, size=length)) for length in lengths]
    table = pa.table(
        {"row_id": np.arange(num_rows), "text": texts, "error": pa.nulls(num_rows, pa.string())},
        schema=schemas.make_examples_schema(Words.columns, gold=False),
    )
    uri = str(directory / "words.lance")
    return TableRef(uri=uri, version=lance.write_dataset(table, uri).version)


def run(directory: Path, options: argparse.Namespace) -> str:
    """Measure all; return the line that sums it up."""
    vocabulary = Words().vocabulary()
    shape = {
        "hidden_size": options.hidden,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.hidden // 64,
        "num_key_value_heads": max(1, options.hidden // 128),
        "head_dim": 64,
        "intermediate_size": 3 * options.hidden,
        "max_position_embeddings": 2 * options.prompt_words + options.max_tokens + 8,
    }
    ref = models.create(
        directory / "model", family="qwen3", shape=shape, words=vocabulary.words, pattern=vocabulary.pattern, seed=0
    )
    examples = make_examples(directory, options.rows, options.prompt_words)
    decoding = DecodingConfig(max_tokens=options.max_tokens, temperature=1.0, stop=(".",))
    engine: dict[str, Any] = {"max_num_seqs": options.running, "enforce_eager": options.eager or not options.num_gpus}
    engine |= {"gpu_memory_utilization": 0.4} if options.num_gpus else {"kv_cache_memory_bytes": 1 << 30}
    job = LabelJob(
        examples=examples,
        labels_uri=str(directory / "labels.lance"),
        domain=DomainConfig(name="benchmarks.vllm_teacher:Words"),
        teacher=TeacherConfig(
            backend="vllm",
            model=ModelConfig(path=ref.base),
            states=STATES,
            dtype=options.dtype,
            chunk_rows=2 * options.running,
            vllm={"engine": engine},
            actors={"num_gpus": options.num_gpus, "num_cpus": options.cores},
        ),
        model=ref,
        decoding=decoding,
        seed=0,
    )
    peer = Peer(ref, job, io.read(examples)["text"].to_pylist(), engine)
    dataset = make_dataset(job.teacher)

    def ours(pair: int) -> float:
        clock, uri = directory / f"clock-{pair}", str(directory / f"labels-{pair}.lance")
        timed = replace(
            job, labels_uri=uri, domain=DomainConfig.model_validate({"name": job.domain.name, "clock": str(clock)})
        )
        begun = time.time()
        result = label(timed, state_size=options.hidden, share=RowShare(), commit_seconds=1.0, dataset=dataset)
        ended, first = time.time(), float(clock.read_text())
        rate = count_labels(result.table).output_tokens / (ended - first)
        for started in result.teachers:
            print(
                f"  our start: {first - begun:.1f} s before the first prompt, of which the engine's "
                f"{started['start_seconds']:.1f} s; then {rate:,.0f} tokens/s in the first pass"
            )
        return rate

    try:
        ours(-1)  # warm
        peer.rate(-1)
        result = measure(ours, peer.rate, options.pairs)
    finally:
        dataset.close()
    stored = lance.dataset(str(directory / "labels-0.lance")).to_table().to_pylist()
    same = sum(row["completion"] == peer.texts[row["row_id"]] for row in stored)
    lengths = sorted(row["num_output_tokens"] for row in stored)
    size = sum(file.stat().st_size for file in (directory / "labels-0.lance").rglob("*") if file.is_file())
    print(
        f"  {same} of {len(stored)} answers the same; output tokens {lengths[0]} to {lengths[-1]}, sum {sum(lengths):,}"
    )
    print(f"  stored {size / len(stored):,.0f} bytes a row (4 states of {options.hidden} x float16)")
    if not options.num_gpus:  # a third engine would not fit beside the peer's
        teacher: Any = load_teacher(job.teacher, ref)
        seconds: dict[str, list[float]] = {"prompts, teacher, parsing": [], "fragment and commit": []}
        label_once(job, teacher, directory / "parts.lance", seconds)
        for name, spent in seconds.items():
            print(f"  in one process, {name}: {statistics.median(spent):.3f} s")
    plain = load_teacher(job.teacher.model_copy(update={"backend": "transformers"}), ref)
    prompts = dict(enumerate(peer.prompts))
    print(f"  {parity(plain, [row for row in stored if row['num_output_tokens']][:64], prompts)}")
    begun = time.perf_counter()
    num_tokens = label_once(job, plain, directory / "labels-plain.lance", {"teacher": [], "store": []})
    print(f"  transformers teacher: {num_tokens / (time.perf_counter() - begun):,.0f} tokens/s")
    return result.line("label stage with states in Lance, vLLM teacher, against LLM.generate", "tokens/s", 0.97)


def label_once(job: LabelJob, teacher: Teacher, target: Path, seconds: dict[str, list[float]]) -> int:
    """Label all rows into a new table; return the number of output tokens."""
    schema = schemas.make_labels_schema(STATES, job.teacher.state_dtype, teacher.state_size)
    io.create(str(target), schema)
    committer = commits.Committer(str(target))
    clock = [time.perf_counter()]
    rows = io.open_table(job.examples).to_table().to_pylist()
    labelled = pa.Table.from_batches(list(label_rows(job, Words(), teacher, rows)))
    clock.append(time.perf_counter())
    (written,) = commits.write_fragment(labelled.cast(schema), str(target), schema).to_pylist()
    committer.add(written["fragments"], written["row_ids"])
    committer.flush()
    clock.append(time.perf_counter())
    for name, spent in zip(seconds, np.diff(clock), strict=True):
        seconds[name].append(float(spent))
    return int(sum(labelled["num_output_tokens"].to_pylist()))


class Peer:
    """The peer: ``LLM.generate`` on the same prompts with the same engine arguments."""

    def __init__(self, ref: ModelRef, job: LabelJob, prompts: list[str], engine: dict[str, Any]) -> None:
        set_environment()
        from vllm import LLM, SamplingParams

        from curation.hashing import hash64

        self._llm = LLM(model=ref.base, dtype=job.teacher.dtype, disable_log_stats=True, **engine)
        ids = models.load_tokenizer(ref)(prompts)["input_ids"]
        self.prompts = prompts
        self._tokens = [{"prompt_token_ids": tokens} for tokens in ids]
        seeds = hash64(np.arange(len(prompts)), job.seed) >> np.uint64(1)
        self._params = [
            SamplingParams(temperature=1.0, max_tokens=job.decoding.max_tokens, stop=["."], seed=int(seed))
            for seed in seeds
        ]
        self.texts: list[str] = []

    def rate(self, pair: int) -> float:
        """Return output tokens per second; the token that holds the stop string is not counted."""
        begun = time.perf_counter()
        outputs = self._llm.generate(self._tokens, self._params, use_tqdm=False)
        seconds = time.perf_counter() - begun
        answers = [output.outputs[0] for output in outputs]
        self.texts = [answer.text for answer in answers]
        return sum(len(answer.token_ids) - (answer.finish_reason == "stop") for answer in answers) / seconds


def parity(plain: Teacher, rows: list[dict[str, Any]], prompts: dict[int, str]) -> str:
    """Return how far stored log-probabilities and states are from what ``plain`` finds for the same answers."""
    requests = [
        Request(row_id=row["row_id"], prompt=prompts[row["row_id"]], options=(row["completion"],)) for row in rows
    ]
    batches = plain.label(requests, DecodingConfig(), seed=0)
    found = {row["row_id"]: row for batch in batches for row in batch.to_pylist()}
    # A text lacks special tokens that were drawn; without them it is another answer.
    rows = [row for row in rows if row["num_output_tokens"] == found[row["row_id"]]["num_output_tokens"]]
    logprobs = [abs(row["mean_logprob"] - found[row["row_id"]]["mean_logprob"]) for row in rows]
    worst = 0.0
    for name in map(schemas.get_state_column, STATES):
        ours_ND, theirs_ND = (
            np.array([of[row["row_id"]][name] for row in rows], dtype=np.float32)
            for of in ({row["row_id"]: row for row in rows}, found)
        )
        worst = max(worst, float(np.abs(ours_ND - theirs_ND).max() / np.sqrt(np.mean(theirs_ND**2))))
    return (
        f"{len(rows)} answers given to the transformers teacher: mean log-probabilities differ by at most "
        f"{max(logprobs):.2g}, states by {worst:.2g} of their root mean square"
    )


def main() -> None:
    """Run it and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--running", type=int, default=32, help="rows that run at once")
    parser.add_argument("--prompt-words", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--num-gpus", type=float, default=0)
    parser.add_argument("--eager", action="store_true", help="on a GPU: without compiled code and CUDA graphs")
    parser.add_argument("--cores", type=int, default=2, help="of either side")
    options = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != str(options.cores):  # read once, when a process first uses threads
        os.environ["OMP_NUM_THREADS"] = str(options.cores)
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.vllm_teacher", *sys.argv[1:]])
    with tempfile.TemporaryDirectory() as directory, local_or_cluster(RayConfig(num_cpus=max(2, options.cores))):
        print(run(Path(directory), options))


if __name__ == "__main__":
    main()
