"""What the vLLM teacher costs above vLLM itself: ``python -m benchmarks.vllm_teacher`` in ``.venv-vllm``, or with CUDA.

Our side labels rows as the actor of the label stage does: prompts from a table of examples, answers with their
log-probabilities and the states of four positions, read as labels, written as a fragment and committed to a Lance
table. The peer is
``LLM.generate`` with the same engine arguments on the same prompts, tokenised beforehand, which returns tokens and
text; nothing is stored. Answers are sampled with a seed a row and end by a stop string after a geometric number of
tokens, so that their lengths spread up to the cap. Rates are output tokens a second, stop tokens not counted.
Checked: both sides draw the same answers. The transformers teacher labels the same rows once.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from benchmarks.pairs import measure
from curation import models, store, tables
from curation.config import DecodingConfig, DomainConfig, ModelConfig, TeacherConfig
from curation.domains import Example, Vocabulary
from curation.refs import ModelRef, TableRef
from curation.stages.label_actor import LabelJob, label_rows
from curation.teachers import Teacher, load_teacher
from curation.teachers.vllm_engine import ENVIRONMENT

STATES = ("prompt_last", "output_first", "output_last", "output_mean")
NUM_WORDS, NUM_STOPS = 4_032, 64


class Words:
    """A domain that costs nothing: the prompt is a column, the label is the completion."""

    name = "words"
    forms = (("text",),)
    columns = pa.schema([("text", pa.string())])

    def prompt(self, example: Example, *, shots: Sequence[Example] = ()) -> str:
        """The text."""
        return str(example["text"])

    def options(self, example: Example) -> tuple[str, ...] | None:
        """None: answers are generated."""
        return None

    def parse(self, completion: str, example: Example) -> str | None:
        """The completion."""
        return completion

    def vocabulary(self) -> Vocabulary:
        """4,032 words, and 64 that are a row of dots each: an answer ends at the first dot."""
        words = [f"w{number} " for number in range(NUM_WORDS)]
        return Vocabulary(words=(*words, *("." * (1 + k) for k in range(NUM_STOPS))), pattern=r"w\d+ |\.+")


def make_examples(directory: Path, num_rows: int, num_words: int) -> TableRef:
    """Rows of random words, half as many to half more than ``num_words``."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(num_words // 2, num_words + num_words // 2, size=num_rows)
    texts = ["".join(f"w{word} " for word in rng.integers(NUM_WORDS, size=length)) for length in lengths]
    table = pa.table(
        {"row_id": np.arange(num_rows), "text": texts, "error": pa.nulls(num_rows, pa.string())},
        schema=tables.examples(Words.columns, gold=False),
    )
    uri = str(directory / "words.lance")
    return TableRef(uri=uri, version=lance.write_dataset(table, uri).version)


def run(directory: Path, options: argparse.Namespace) -> str:
    """Measure all; the line that sums it up."""
    domain = Words()
    vocabulary = domain.vocabulary()
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
    engine: dict[str, Any] = {"max_num_seqs": options.running, "enforce_eager": not options.num_gpus}
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
            vllm={"engine": engine},
            actors={"num_gpus": options.num_gpus},
        ),
        model=ref,
        decoding=decoding,
        seed=0,
    )
    teacher: Any = load_teacher(job.teacher, ref)
    print(f"  engine: {', '.join(f'{name} {value:,.0f}' for name, value in teacher.facts.items())}")
    peer = Peer(ref, job, store.read(examples)["text"].to_pylist(), engine)
    seconds: dict[str, list[float]] = {"prompts, teacher, parsing": [], "fragment and commit": []}

    def ours(pair: int) -> float:
        begun = time.perf_counter()
        num_tokens = label_once(job, domain, teacher, directory / f"labels-{pair}.lance", seconds)
        return num_tokens / (time.perf_counter() - begun)

    ours(-1)
    peer.rate(-1)  # both warm
    for spent in seconds.values():
        spent.clear()
    result = measure(ours, peer.rate, options.pairs)
    stored = lance.dataset(str(directory / "labels-0.lance")).to_table().to_pylist()
    same = sum(row["completion"] == peer.texts[row["row_id"]] for row in stored)
    lengths = sorted(row["num_output_tokens"] for row in stored)
    size = sum(file.stat().st_size for file in (directory / "labels-0.lance").rglob("*") if file.is_file())
    print(
        f"  {same} of {len(stored)} answers the same; output tokens {lengths[0]} to {lengths[-1]}, sum {sum(lengths):,}"
    )
    print(f"  stored {size / len(stored):,.0f} bytes a row (4 states of {options.hidden} x float16)")
    for name, spent in seconds.items():
        print(f"  {name}: {statistics.median(spent):.3f} s")
    print(f"  transformers teacher: {plain_rate(job, domain, directory):,.0f} tokens/s")
    return result.line("labels with states in Lance, vLLM teacher, against LLM.generate", "tokens/s", 0.97)


def label_once(job: LabelJob, domain: Any, teacher: Teacher, target: Path, seconds: dict[str, list[float]]) -> int:
    """Label all rows into a new table; the number of output tokens."""
    schema = tables.labels(STATES, job.teacher.state_dtype, teacher.state_size)
    store.create(str(target), schema)
    committer = store.Committer(str(target))
    clock = [time.perf_counter()]
    rows = store.open_table(job.examples).to_table().to_pylist()
    labelled = pa.Table.from_batches(list(label_rows(job, domain, teacher, rows)))
    clock.append(time.perf_counter())
    (written,) = store.write_fragment(labelled.cast(schema), str(target), schema).to_pylist()
    committer.add(written["fragments"], written["row_ids"])
    committer.flush()
    clock.append(time.perf_counter())
    for name, spent in zip(seconds, np.diff(clock), strict=True):
        seconds[name].append(float(spent))
    return int(sum(labelled["num_output_tokens"].to_pylist()))


class Peer:
    """``LLM.generate`` on the same prompts with the same engine arguments."""

    def __init__(self, ref: ModelRef, job: LabelJob, prompts: list[str], engine: dict[str, Any]) -> None:
        import os

        os.environ.update(ENVIRONMENT)
        from vllm import LLM, SamplingParams

        from curation.hashing import hash64

        self._llm = LLM(model=ref.base, dtype=job.teacher.dtype, disable_log_stats=True, **engine)
        ids = models.load_tokenizer(ref)(prompts)["input_ids"]
        self._prompts = [{"prompt_token_ids": tokens} for tokens in ids]
        seeds = hash64(np.arange(len(prompts)), job.seed) >> np.uint64(1)
        self._params = [
            SamplingParams(temperature=1.0, max_tokens=job.decoding.max_tokens, stop=["."], seed=int(seed))
            for seed in seeds
        ]
        self.texts: list[str] = []

    def rate(self, pair: int) -> float:
        """Output tokens a second; the token that holds the stop string is not counted."""
        begun = time.perf_counter()
        outputs = self._llm.generate(self._prompts, self._params, use_tqdm=False)
        seconds = time.perf_counter() - begun
        answers = [output.outputs[0] for output in outputs]
        self.texts = [answer.text for answer in answers]
        return sum(len(answer.token_ids) - (answer.finish_reason == "stop") for answer in answers) / seconds


def plain_rate(job: LabelJob, domain: Any, directory: Path) -> float:
    """Tokens a second of the transformers teacher on the same rows; it draws other samples."""
    config = job.teacher.model_copy(update={"backend": "transformers"})
    teacher = load_teacher(config, job.model)
    begun = time.perf_counter()
    spent: dict[str, list[float]] = {"teacher": [], "store": []}
    num_tokens = label_once(job, domain, teacher, directory / "labels-plain.lance", spent)
    return num_tokens / (time.perf_counter() - begun)


def main() -> None:
    """Run it and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--rows", type=int, default=96)
    parser.add_argument("--running", type=int, default=48, help="rows that run at once")
    parser.add_argument("--prompt-words", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--num-gpus", type=float, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        print(run(Path(directory), options))


if __name__ == "__main__":
    main()
