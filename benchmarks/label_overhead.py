"""The engine's overhead around a teacher: ``python -m benchmarks.label_overhead``.

1. The label stage with a transformers teacher against a bare loop of the same model: one process, one thread each. The
   bare loop renders the prompts, runs hand-written prefill and decode steps over batches of similar length, keeps the
   states in memory and reads the labels from the completions; nothing is stored. Rates are over the rows after the
   first commit, so that start-up does not count; it is printed separately. Checked: the same completions, and states
   equal to float16.
2. The label stage around a free teacher (scripted, 256-wide float16 states) against Ray Data's own ``map_batches`` +
   ``write_parquet`` of the same bytes, start-up of both included. Checked: the same rows and states.
3. The same against itself without waiting for ``fsync``, for the cost of commits that survive a power cut. Checked: the
   same rows and completions.

Part 1 also prints the actor's seconds by part of its work, in one process. ``--only 3`` runs only part 3.
"""

import argparse
import logging
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import numpy as np
import pyarrow as pa
import pyarrow.dataset
import ray
import ray.data
import torch

from benchmarks.pairs import measure
from benchmarks.plain import make_examples, write_parquet
from curation import models
from curation.config import ActorsConfig, DecodingConfig, DomainConfig, ModelConfig, ScriptedConfig, TeacherConfig
from curation.domains import get_domain
from curation.refs import ModelRef, TableRef
from curation.stages.label import RowShare, label
from curation.stages.label_chunks import LabelJob, label_rows
from curation.tables import commits, io, schemas
from curation.teachers import load_teacher

PUZZLES = Path(__file__).parents[1] / "examples" / "data" / "puzzles.parquet"
CHESS = DomainConfig(name="chess")
BATCH_TOKENS = 4096
MAX_TOKENS = 4
CHUNK_ROWS = 512


def chess_examples(directory: Path, num_rows: int) -> TableRef:
    """Write shipped puzzles as an examples table."""
    domain = get_domain(CHESS)
    raw = pyarrow.dataset.dataset(PUZZLES).head(num_rows).to_pylist()
    rows = [domain.read(row) | {"row_id": place, "error": None} for place, row in enumerate(raw)]
    table = pa.Table.from_pylist(rows, schema=schemas.make_examples_schema(domain.columns, gold=False))
    uri = str(directory / "chess.lance")
    return TableRef(uri=uri, version=lance.write_dataset(table, uri).version)


def bare_loop(model: Any, tokenizer: Any, prompts: list[str]) -> Iterator[tuple[list[int], list[str], torch.Tensor]]:
    """Yield greedy completions and the state at each one's last token: places, texts and hidden_ND, by batch."""
    from transformers import DynamicCache

    ids = tokenizer(prompts)["input_ids"]
    order = sorted(range(len(ids)), key=lambda place: -len(ids[place]))
    start = 0
    while start < len(order):
        size = max(1, BATCH_TOKENS // (len(ids[order[start]]) + MAX_TOKENS))
        places, start = order[start : start + size], start + size
        width = len(ids[places[0]])
        ids_BT = torch.tensor([[tokenizer.pad_token_id] * (width - len(ids[p])) + ids[p] for p in places])
        mask_BT = torch.tensor([[0] * (width - len(ids[p])) + [1] * len(ids[p]) for p in places])
        position_B = mask_BT.sum(dim=1)
        cache, answer, hidden = DynamicCache(config=model.config), [], []
        feed = {"input_ids": ids_BT, "position_ids": (mask_BT.cumsum(dim=1) - 1).clamp(min=0)}
        done_B = torch.zeros(len(places), dtype=torch.bool)
        with torch.inference_mode():
            for _ in range(MAX_TOKENS + 1):
                output = model.model(**feed, attention_mask=mask_BT, past_key_values=cache, use_cache=True)
                hidden.append(output.last_hidden_state[:, -1])
                token_B = model.lm_head(hidden[-1]).argmax(dim=-1)
                answer.append(token_B)
                done_B |= token_B == tokenizer.eos_token_id
                if done_B.all():
                    break
                mask_BT = torch.cat([mask_BT, mask_BT.new_ones(len(places), 1)], dim=1)
                feed = {"input_ids": token_B[:, None], "position_ids": position_B[:, None]}
                position_B = position_B + 1
        answer_BT, hidden_BTD = torch.stack(answer, dim=1), torch.stack(hidden, dim=1)
        is_end_BT = answer_BT == tokenizer.eos_token_id
        length_B = torch.where(is_end_BT.any(dim=1), is_end_BT.int().argmax(dim=1), MAX_TOKENS)
        texts = [
            tokenizer.decode(tokens[:length], skip_special_tokens=True)
            for tokens, length in zip(answer_BT.tolist(), length_B.tolist(), strict=True)
        ]
        yield places, texts, hidden_BTD[torch.arange(len(places)), length_B]


def against_bare_loop(directory: Path, num_rows: int, num_pairs: int) -> str:
    """Do part 1; return the line that sums it up."""
    domain = get_domain(CHESS)
    vocabulary = domain.vocabulary()
    shape = {
        "hidden_size": 192,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "head_dim": 32,
        "intermediate_size": 576,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
    }
    ref = models.create(
        directory / "model", family="qwen3", shape=shape, words=vocabulary.words, pattern=vocabulary.pattern, seed=0
    )
    examples = chess_examples(directory, num_rows)
    rows = io.read(examples).to_pylist()
    torch.set_num_threads(1)
    model, tokenizer = models.load_model(ref), models.load_tokenizer(ref)
    starts: list[float] = []

    def ours(pair: int) -> float:
        seen: list[tuple[float, int]] = []
        begun = time.monotonic()
        label(
            _job(examples, directory / f"labels-{pair}.lance", ref),
            state_size=shape["hidden_size"],
            share=RowShare(),
            commit_seconds=0,
            progress=lambda at: seen.append((time.monotonic(), at.rows)),
        )
        first = next(place for place, (_, done) in enumerate(seen) if done)
        starts.append(seen[first][0] - begun)
        return (seen[-1][1] - seen[first][1]) / (seen[-1][0] - seen[first][0])

    computed: dict[int, tuple[str, str | None, np.ndarray[Any, Any]]] = {}

    def peer(pair: int) -> float:
        begun = time.monotonic()
        for chunk in range(0, num_rows, CHUNK_ROWS):
            part = rows[chunk : chunk + CHUNK_ROWS]
            for places, texts, hidden_ND in bare_loop(model, tokenizer, [domain.prompt(row) for row in part]):
                for place, text, state in zip(places, texts, hidden_ND.numpy(), strict=True):
                    computed[chunk + place] = (text, domain.parse(text, part[place]), state)
        return num_rows / (time.monotonic() - begun)

    result = measure(ours, peer, num_pairs)
    stored = lance.dataset(str(directory / "labels-0.lance")).to_table().to_pylist()
    for row in stored:
        text, parsed, state = computed[row["row_id"]]
        assert (row["completion"], row["label"]) == (text, parsed), (row["completion"], text)
        np.testing.assert_allclose(np.array(row["state_output_last"], np.float32), state, rtol=2e-3, atol=2e-3)
    print(f"  checked {len(stored)} rows: completions equal, states equal to float16")
    print(f"  start-up of the label stage to its first commit: {np.median(starts):.1f} s (not in the rate)")
    print(_parts(examples, ref))
    return result.line("label stage, transformers teacher, against a bare loop", "rows/s", 0.95)


def _job(
    examples: TableRef, labels: Path, model: ModelRef | None, domain: DomainConfig = CHESS, **settings: Any
) -> LabelJob:
    teacher = TeacherConfig(
        **(
            {
                "backend": "scripted" if model is None else "transformers",
                "model": None if model is None else ModelConfig(path=model.base),
                "chunk_rows": CHUNK_ROWS,
                "batch_tokens": BATCH_TOKENS,
            }
            | settings
        )
    )
    return LabelJob(
        examples=examples,
        labels_uri=str(labels),
        domain=domain,
        teacher=teacher,
        model=model,
        decoding=DecodingConfig(max_tokens=MAX_TOKENS),
        seed=0,
    )


def _parts(examples: TableRef, ref: ModelRef) -> str:
    """Return the seconds of each part of the actor's work over the rows, in this process."""
    job = _job(examples, Path(examples.uri).with_name("parts.lance"), ref)
    domain, teacher = get_domain(job.domain), load_teacher(job.teacher, ref)
    schema = schemas.make_labels_schema(job.teacher.states, job.teacher.state_dtype, teacher.state_size)
    io.create(job.labels_uri, schema)
    seconds = dict.fromkeys(("read", "label: prompts, teacher and parsing", "write the fragment", "commit"), 0.0)
    prompts = 0.0
    num_rows = io.count(examples)
    committer = commits.Committer(job.labels_uri)
    for start in range(0, num_rows, CHUNK_ROWS):
        clock = [time.perf_counter()]
        rows = io.open_table(examples).take(range(start, min(start + CHUNK_ROWS, num_rows))).to_pylist()
        clock.append(time.perf_counter())
        batches = list(label_rows(job, domain, teacher, rows))
        clock.append(time.perf_counter())
        (written,) = commits.write_fragment(
            pa.Table.from_batches(batches).cast(schema), job.labels_uri, schema
        ).to_pylist()
        clock.append(time.perf_counter())
        committer.add(written["fragments"], written["row_ids"])
        committer.flush()
        clock.append(time.perf_counter())
        for name, begun, ended in zip(seconds, clock, clock[1:], strict=False):
            seconds[name] += ended - begun
        begun = time.perf_counter()
        for row in rows:
            domain.prompt(row)
            domain.parse("e2e4", row)
        prompts += time.perf_counter() - begun
    total = sum(seconds.values())
    lines = [f"    {name}: {spent:.2f} s ({spent / total:.1%})" for name, spent in seconds.items()]
    lines.insert(2, f"      of which prompts and parsing: {prompts:.2f} s ({prompts / total:.1%})")
    return "\n".join([f"  where the time goes, {num_rows} rows in one process:", *lines])


def against_ray_data(directory: Path, num_rows: int, num_pairs: int) -> str:
    """Do part 2; return the line that sums it up."""
    examples = make_examples(str(directory / "plain.lance"), num_rows)
    domain = DomainConfig(name="benchmarks.plain:Plain")
    script = ScriptedConfig(state_size=256)
    actors = ActorsConfig(min=2, max=2)
    settings = {"chunk_rows": 8192, "scripted": script, "actors": actors}

    def ours(pair: int) -> float:
        target = directory / f"free-{pair}.lance"
        begun = time.monotonic()
        job = _job(examples, target, None, domain, **settings)
        label(job, state_size=script.state_size, share=RowShare(), commit_seconds=2.0)
        seconds = time.monotonic() - begun
        if pair:
            shutil.rmtree(target)
        return num_rows / seconds

    def peer(pair: int) -> float:
        target = directory / f"free-{pair}"
        job = _job(examples, target, None, domain, **settings)
        begun = time.monotonic()
        write_parquet(job, str(target), actors)
        seconds = time.monotonic() - begun
        if pair:
            shutil.rmtree(target)
        return num_rows / seconds

    result = measure(ours, peer, num_pairs)
    columns = ["row_id", "completion", "state_output_last"]
    one = lance.dataset(str(directory / "free-0.lance")).to_table(columns=columns).sort_by("row_id")
    other = pyarrow.dataset.dataset(directory / "free-0").to_table(columns=columns).sort_by("row_id")
    assert one.num_rows == other.num_rows == num_rows
    assert one["completion"].to_pylist() == other["completion"].to_pylist()
    states = [np.concatenate([c.flatten().to_numpy() for c in t["state_output_last"].chunks]) for t in (one, other)]
    assert np.array_equal(*states)
    size = sum(file.stat().st_size for file in (directory / "free-0").rglob("*.parquet"))
    print(
        f"  checked {num_rows} rows: completions and states the same ({states[0].nbytes / 1e6:.0f} MB of states, "
        f"{size / 1e6:.0f} MB of Parquet)"
    )
    return result.line("label stage, free teacher, against Ray Data map_batches + write_parquet", "rows/s", 0.9)


def against_no_sync(directory: Path, num_rows: int, num_pairs: int) -> str:
    """Do part 3; return the line that sums it up."""
    examples = make_examples(str(directory / "plain.lance"), num_rows)
    script = ScriptedConfig(state_size=256)
    settings = {"chunk_rows": 8192, "scripted": script, "actors": ActorsConfig(min=2, max=2)}

    def labelled(target: Path) -> float:
        begun = time.monotonic()
        job = _job(examples, target, None, DomainConfig(name="benchmarks.plain:Plain"), **settings)
        label(job, state_size=script.state_size, share=RowShare(), commit_seconds=2.0)
        return num_rows / (time.monotonic() - begun)

    def peer(pair: int) -> float:
        with mock.patch("os.fsync"):  # the driver alone commits
            return labelled(directory / f"quick-{pair}.lance")

    result = measure(lambda pair: labelled(directory / f"safe-{pair}.lance"), peer, num_pairs)
    one, other = (
        lance.dataset(str(directory / f"{name}-0.lance")).to_table(columns=["row_id", "completion"]).sort_by("row_id")
        for name in ("safe", "quick")
    )
    assert one.num_rows == num_rows and one.equals(other)
    print(f"  checked {num_rows} rows: completions the same")
    return result.line("label stage, free teacher, synced, against itself without fsync", "rows/s", 0.95)


def main() -> None:
    """Run all parts and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--rows", type=int, default=6_144, help="rows of part 1")
    parser.add_argument("--free-rows", type=int, default=200_000, help="rows of parts 2 and 3")
    parser.add_argument("--only", type=int, choices=(1, 2, 3), help="do this part alone")
    options = parser.parse_args()
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    lines = []
    parts = (
        (against_bare_loop, options.rows),
        (against_ray_data, options.free_rows),
        (against_no_sync, options.free_rows),
    )
    for part, rows in parts if options.only is None else parts[options.only - 1 : options.only]:
        print(part.__name__.replace("_", " "), flush=True)
        with tempfile.TemporaryDirectory() as directory:
            lines.append(part(Path(directory), rows, options.pairs))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
