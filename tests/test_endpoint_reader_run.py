"""Answers of a server that a model here reads: bought once, read once, with the states of a plain forward pass."""

import json
import signal
import string
import time
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from endpoint_server import serving
from sums_run import NUM_SOURCE, SumsRun
from test_endpoint_run import CONCURRENCY, PRICE, answer
from tiny_shape import LONG
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.recorded import recorded
from curation.cli import main
from curation.config.load import as_config
from curation.domains import get_domain
from curation.models import create
from curation.pipeline.opened import open_run
from curation.rundir.graph import make_cache_key
from curation.stages.label import Label

pytestmark = [pytest.mark.timeout(1200), pytest.mark.whole_run]
NUM_POOL = 120
STATES = ["prompt_last", "output_mean"]
SHAPE = LONG | {"initializer_range": 0.1}


def made(folder: Path, seed: int) -> str:
    """A random model with a token a character."""
    path = folder / f"reader-{seed}"
    create(path, family="qwen3", shape=SHAPE, words=tuple(string.printable), pattern=r"[\s\S]", seed=seed)
    return str(path)


def make_run(directory: Path, url: str, reader: str, **endpoint: Any) -> SumsRun:
    section = {"url": url, "model": "m", "concurrency": CONCURRENCY, "price": PRICE, **endpoint}
    teacher = {
        "backend": "endpoint",
        "endpoint": section,
        "reader": {"model": {"path": reader}},
        "states": STATES,
        "state_dtype": "float32",
        "decoding": {"max_tokens": 32},
        "chunk_rows": 20,
    }
    sections = {"teacher": teacher, "trust": {"states": STATES}, "selection": {"budget": {"n": 40}}}
    return SumsRun(directory, num_pool=NUM_POOL, actors={}, seconds_per_row=0, sections=sections)


def stage_of(run: SumsRun, name: str) -> dict[str, Any] | None:
    stages = recorded(run.directory) if (run.directory / "manifest.json").exists() else {}
    return stages.get(f"gen-0/{name}")


def rows_of(run: SumsRun, name: str) -> dict[int, dict[str, Any]]:
    stage = stage_of(run, name)
    assert stage is not None
    ref = stage["outputs"]["labels"]
    table = lance.dataset(ref["uri"], version=ref["version"]).to_table()
    return {row["row_id"]: row for row in table.to_pylist()}


def states_by_hand(reader: str, prompt: str, completion: str) -> dict[str, np.ndarray]:
    """The states of a plain forward pass over prompt and answer, and the answer's mean log-probability."""
    tokenizer, model = AutoTokenizer.from_pretrained(reader), AutoModelForCausalLM.from_pretrained(reader)
    ids = tokenizer(prompt + completion, return_tensors="pt").input_ids
    num = len(tokenizer(prompt).input_ids)
    with torch.inference_mode():
        out = model(ids, output_hidden_states=True)
    last_TD, logprob_TV = out.hidden_states[-1][0], out.logits[0].log_softmax(-1)
    own = [logprob_TV[place - 1, ids[0, place]].item() for place in range(num, ids.shape[1])]
    states = {"prompt_last": last_TD[num - 1].numpy(), "output_mean": last_TD[num:].mean(0).numpy()}
    return {**states, "mean_logprob": np.array(np.mean(own))}


def test_answers_are_bought_once_and_read_once(local_ray: Any, tmp_path: Path) -> None:
    first, second = made(tmp_path, 1), made(tmp_path, 2)
    with serving(answer=answer, seconds=0.02) as server:
        run = make_run(tmp_path, server.url, first)
        process = run.start()
        begun = time.monotonic()
        while stage_of(run, "label-pool") is None:  # bought and recorded, and not read
            assert process.poll() is None and time.monotonic() - begun < 500, run.errors()
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert stage_of(run, "read-pool") is None
        assert len(server.paid) == NUM_SOURCE + NUM_POOL and max(server.paid.values()) == 1
        bought = stage_of(run, "label-pool")
        run.run()
        assert len(server.asked) == NUM_SOURCE + NUM_POOL, "nothing was asked after the kill"
        assert stage_of(run, "label-pool") == bought

        # The rows of the server, with the states of a plain forward pass over prompt and answer.
        labelled, read = rows_of(run, "label-pool"), rows_of(run, "read-pool")
        assert labelled.keys() == read.keys() and len(read) == NUM_POOL
        domain = get_domain(as_config(yaml.safe_load(run.config.read_text())).domain_of("pool"))
        (uri,) = run.directory.glob("prepare-*/pool.lance")
        examples = {row["row_id"]: row for row in lance.dataset(str(uri)).to_table().to_pylist()}
        for row_id, row in list(read.items())[:6]:
            assert row["error"] is None
            expected = states_by_hand(first, domain.prompt(examples[row_id]), row["completion"])
            for name in STATES:
                np.testing.assert_allclose(row[f"state_{name}"], expected[name], atol=1e-4)
            own = {name: value for name, value in row.items() if not name.startswith("state_")}
            assert own == labelled[row_id], "log-probabilities, label and tokens stay the server's"
        report = json.loads((run.directory / "report.json").read_text())["generations"][0]
        assert {"naive", "internal_confidence", "trust"} <= {arm["name"] for arm in report["arms"]}

        # Another reader reads again, and buys nothing.
        raised = yaml.safe_load(run.config.read_text())
        raised["teacher"]["reader"]["model"]["path"] = second
        run.config.write_text(yaml.safe_dump(raised))
        run.run()
        assert len(server.asked) == NUM_SOURCE + NUM_POOL and stage_of(run, "label-pool") == bought
        again = rows_of(run, "read-pool")
        assert again.keys() == read.keys()
        assert not np.allclose(*(next(iter(rows.values()))["state_output_mean"] for rows in (again, read)))


def test_a_server_without_log_probabilities_has_those_of_the_reader(local_ray: Any, tmp_path: Path) -> None:
    reader = made(tmp_path, 1)
    with serving(answer=answer) as server:
        run = make_run(tmp_path, server.url, reader, top_logprobs=0)
        told = CliRunner().invoke(main, ["validate", str(run.config)])
        words = "teacher.reader: reads each answer once (transformers)"
        assert told.exit_code == 0 and words in told.output and f"reader: {reader}" in told.output
        run.run("--until", "read-pool")
    domain = get_domain(as_config(yaml.safe_load(run.config.read_text())).domain_of("pool"))
    (uri,) = run.directory.glob("prepare-*/pool.lance")
    examples = {row["row_id"]: row for row in lance.dataset(str(uri)).to_table().to_pylist()}
    labelled = rows_of(run, "label-pool")
    for row_id, row in list(rows_of(run, "read-pool").items())[:4]:
        assert labelled[row_id]["mean_logprob"] is None
        expected = states_by_hand(reader, domain.prompt(examples[row_id]), row["completion"])
        assert row["mean_logprob"] == pytest.approx(float(expected["mean_logprob"]), abs=1e-4)


def test_a_reader_s_states_need_not_be_stored(local_ray: Any, tmp_path: Path) -> None:
    """Scores in their place: read again, and nothing is bought."""
    with serving(answer=answer) as server:
        run = make_run(tmp_path, server.url, made(tmp_path, 1))

        def again(**teacher: Any) -> dict[int, dict[str, Any]]:
            raw = yaml.safe_load(run.config.read_text())
            raw["teacher"] |= teacher
            run.config.write_text(yaml.safe_dump(raw))
            run.run("--until", "score-pool")
            assert len(server.asked) == NUM_SOURCE + NUM_POOL
            return rows_of(run, "score-pool")

        stored = again()
        scored, rows = again(store_states=False), rows_of(run, "read-pool")
        raw = "trust_raw"
        assert all(row[raw] is not None for row in rows.values())
        assert {row_id: row[raw] for row_id, row in scored.items()} == pytest.approx(
            {row_id: row[raw] for row_id, row in stored.items()}, abs=1e-4
        )
        assert [row["completion"] for row in rows.values()] == [
            rows_of(run, "label-pool")[n]["completion"] for n in rows
        ]


def test_a_reader_and_its_settings_are_no_part_of_the_key_of_buying(tmp_path: Path) -> None:
    run = make_run(tmp_path, "http://localhost:9/v1", made(tmp_path, 1))
    raw = yaml.safe_load(run.config.read_text())

    def keys(**changes: Any) -> dict[str, str]:
        teacher = {name: value for name, value in {**raw["teacher"], **changes}.items() if value is not None}
        trust = {} if teacher.get("reader") is None else raw["trust"]
        opened = open_run(as_config({**raw, "teacher": teacher, "trust": trust}))
        known = {"prepare": {"tables": {name: f"{name}.lance" for name in ("source", "pool")}}}
        return {s.name: str(make_cache_key(s, known)) for s in opened.chain.stages if type(s) is Label}

    alone = keys(reader=None, states=None, state_dtype=None)
    assert alone and alone == keys() == keys(batch_tokens=100, dtype="bfloat16", actors={"num_gpus": 1})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"teacher": {"store_states": False, "states": []}, "trust": {}},
            "not among teacher.states; add it there",
        ),
        ({"teacher": {"adapt": {"epochs": 1}}}, "teacher.adapt needs a model that labels"),
        ({"teacher": {"reader": {"model": {}}}}, "teacher.reader.model: takes exactly one of path and init"),
        ({"trust": {"kind": "neural", "states": []}}, "trust: neural needs something to read"),
        (
            {"trust": {"states": ["output_first"]}},
            "trust.states needs the state output_first, not among",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    run = make_run(tmp_path, "http://localhost:9/v1", "nothing")
    raw = yaml.safe_load(run.config.read_text())
    for section, keys in changes.items():
        raw[section] = {**raw[section], **keys}
    run.config.write_text(yaml.safe_dump(raw))
    told = CliRunner().invoke(main, ["validate", str(run.config)])
    assert told.exit_code == 2 and message in " ".join(told.output.split())
