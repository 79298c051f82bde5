"""States by both of vLLM's model runners: ``python -m benchmarks.vllm_runners`` in ``.venv-vllm``, or on a GPU.

Three ways to get an answer with its hidden states are compared, each in a separate process, on one model and the same
prompts, with greedy decoding: the teacher's tap on runner V1; a tap on runner V2, written here; and vLLM's own
``extract_hidden_states`` on V2 with its example connector, which writes a file for each request. Printed for each: the
number of answers equal to the first way's, the maximum differences of log-probabilities and of the states at the end of
prompt and answer, and rows per second.

Runner V2 needs Triton, which vLLM's CPU build lacks; there its kernels run in Triton's interpreter, so answers and
states can be compared, but rates of V2 are meaningless.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

WAYS = ("V1 tap", "V2 tap", "V2 extract_hidden_states")


class V2Tap:
    """A worker extension that keeps sums and states by the runner's own slots on the device, without host work per row.

    It uses ``sample``, ``finish_requests``, ``model.compute_logits``, ``req_states.req_id_to_index`` and
    ``req_states.prompt_len`` of runner V2, and ``idx_mapping``, ``logits_indices`` and ``positions`` of its batch.
    """

    model_runner: Any
    vllm_config: Any

    def tap_install(self) -> None:
        """Hook the draw, and the end of requests, whose slots are free from then on."""
        import torch

        runner = self.model_runner
        num_slots = self.vllm_config.scheduler_config.max_num_seqs
        max_tokens = self.vllm_config.model_config.max_model_len
        draw, finish, head = runner.sample, runner.finish_requests, runner.model.compute_logits
        self.ended: dict[str, list[Any]] = {}
        self.arrays: dict[str, Any] = {}
        seen: dict[str, Any] = {}

        def compute_logits(hidden_BD: Any) -> Any:
            seen["hidden"], seen["logits"] = hidden_BD, head(hidden_BD)
            return seen["logits"]

        def sample(hidden_TD: Any, batch: Any, grammar: Any) -> Any:
            output = draw(hidden_TD, batch, grammar)
            hidden_BD, logits_BV = seen["hidden"], seen["logits"]
            if not self.arrays:
                self.arrays = {
                    name: hidden_BD.new_zeros((num_slots, hidden_BD.shape[1])) for name in ("prompt", "newest")
                }
                self.arrays["recent"] = hidden_BD.new_zeros((num_slots, 2, hidden_BD.shape[1]))
                self.arrays["logprob"] = torch.zeros((num_slots, max_tokens + 1), device=hidden_BD.device)
            slot_B, position_B = batch.idx_mapping, batch.positions[batch.logits_indices]
            number_B = position_B - runner.req_states.prompt_len.gpu[slot_B] + 1
            at_end_B = number_B >= 0  # of a prompt fed in part, nothing is drawn yet
            old_BD = self.arrays["prompt"][slot_B]
            self.arrays["prompt"][slot_B] = hidden_BD.where((number_B == 0)[:, None], old_BD)
            self.arrays["recent"][slot_B, position_B % 2] = hidden_BD
            token_B1 = output[0].sampled_token_ids.long()
            logprob_B = logits_BV.gather(1, token_B1)[:, 0].float() - logits_BV.float().logsumexp(dim=-1)
            place_B = number_B.clamp(min=0).where(at_end_B, max_tokens)
            self.arrays["logprob"][slot_B, place_B] = logprob_B
            return output

        def finish_requests(scheduled: Any) -> None:
            for name in scheduled.finished_req_ids:
                slot = runner.req_states.req_id_to_index.get(name)
                if slot is not None and self.arrays:
                    self.ended[name.split("-")[0]] = [  # the engine adds to the name that it was given
                        self.arrays[kept][slot].clone() for kept in ("prompt", "recent", "logprob")
                    ]
            finish(scheduled)

        runner.model.compute_logits, runner.sample, runner.finish_requests = compute_logits, sample, finish_requests

    def tap_collect(self, lengths: dict[str, tuple[int, int]]) -> dict[str, Any]:
        """Return states at the end of prompt (P tokens) and answer (L), and mean log-prob, by request."""
        found = {}
        for name, (prompt, length) in lengths.items():
            first_D, recent_2D, logprob_T = self.ended.pop(name)
            last_D = recent_2D[(prompt + length - 1) % 2]
            found[name] = (float(logprob_T[:length].mean()), first_D.tolist(), last_D.tolist())
        return found


def interpret_triton() -> None:
    """Let vLLM's CPU build take Triton's interpreter for a backend of Triton."""
    os.environ["TRITON_INTERPRET"] = "1"
    backends = importlib.import_module("triton.backends").backends  # triton is no requirement of ours
    backends.clear()
    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True), compiler=None)


def spare_pinned_memory() -> None:
    """Let vLLM's example connector do without pinned memory and events, which a machine without a GPU lacks."""
    import torch
    from vllm.v1.worker.cpu import shm

    shm._EventPlaceholder.query = lambda self: True

    like = torch.empty_like
    torch.empty_like = lambda *given, pin_memory=False, **named: like(*given, **named)  # type: ignore[assignment]


def answer(way: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the answers, states and rates of one way, in this process."""
    on_cpu = not options.gpu
    if way != WAYS[0]:
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
        if on_cpu:
            interpret_triton()
            spare_pinned_memory()
    from curation.config import AskConfig, DecodingConfig
    from curation.refs import ModelRef
    from curation.teachers import Request

    ref = ModelRef(base=options.model)
    rng = np.random.default_rng(0)
    prompts = [
        "".join(f"w{word} " for word in rng.integers(4_000, size=size)) for size in rng.integers(8, 40, options.rows)
    ]
    engine: dict[str, Any] = {"max_num_seqs": options.rows, "enforce_eager": on_cpu or options.eager}
    engine |= {"kv_cache_memory_bytes": 1 << 29}
    if way == WAYS[0]:
        from curation.teachers.vllm import VllmTeacher

        states = ("prompt_last", "output_last")
        config = AskConfig(
            backend="vllm", states=states, state_dtype="float32", dtype=options.dtype, vllm={"engine": engine}
        )
        teacher = VllmTeacher(config, ref)
        requests = [Request(row_id=row, prompt=prompt) for row, prompt in enumerate(prompts)]
        decoding = DecodingConfig(max_tokens=options.max_tokens, temperature=0.0)
        list(teacher.label(requests, decoding, seed=0))  # warm
        begun = time.perf_counter()
        rows = [row for batch in teacher.label(requests, decoding, seed=0) for row in batch.to_pylist()]
        seconds = time.perf_counter() - begun
        rows.sort(key=lambda row: row["row_id"])
        return {
            "texts": [row["completion"] for row in rows],
            "logprobs": [row["mean_logprob"] for row in rows],
            "first": [row["state_prompt_last"] for row in rows],
            "last": [row["state_output_last"] for row in rows],
            "rate": options.rows / seconds,
        }
    return _answered_by_v2(way, options, ref, prompts, engine)


def _answered_by_v2(way: str, options: argparse.Namespace, ref: Any, prompts: list[str], engine: dict[str, Any]) -> Any:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    from vllm import LLM, SamplingParams

    from curation.models import decode_tokens, load_configuration, load_tokenizer
    from curation.teachers.vllm_engine import stop_ids_of

    extra: dict[str, Any] = {}
    config = load_configuration(ref).get_text_config()
    if way == WAYS[1]:
        engine |= {"worker_extension_cls": "benchmarks.vllm_runners.V2Tap"}
    else:
        extra["kv_transfer_params"] = {"include_output_tokens": True}
        layers = {"eagle_aux_hidden_state_layer_ids": [config.num_hidden_layers]}
        engine["speculative_config"] = {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": layers},
        }
        engine["kv_transfer_config"] = {
            "kv_connector": "ExampleHiddenStatesConnector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": options.folder},
        }
    llm = LLM(model=ref.base, dtype=options.dtype, disable_log_stats=True, **engine)
    tokenizer = load_tokenizer(ref)
    stops = sorted(stop_ids_of(tokenizer.eos_token_id, ref, config))
    asked = [{"prompt_token_ids": tokens} for tokens in tokenizer(prompts)["input_ids"]]
    params = SamplingParams(
        temperature=0.0, max_tokens=options.max_tokens + 1, stop_token_ids=stops, detokenize=False, extra_args=extra
    )
    llm.generate(asked, params, use_tqdm=False)  # warm
    if way == WAYS[1]:
        llm.collective_rpc("tap_install")
    begun = time.perf_counter()
    outputs = llm.generate(asked, params, use_tqdm=False)
    # One step more: it frees what has ended, and takes the last requests' states to their files.
    llm.generate(asked[:1], SamplingParams(max_tokens=1), use_tqdm=False)
    answers = [
        list(output.outputs[0].token_ids)[: -1 if output.outputs[0].finish_reason == "stop" else options.max_tokens]
        for output in outputs
    ]
    sizes = {
        output.request_id: (len(given["prompt_token_ids"]), len(tokens))
        for output, given, tokens in zip(outputs, asked, answers, strict=True)
    }
    if way == WAYS[1]:
        by_name = llm.collective_rpc("tap_collect", args=(sizes,))[0]
        logprobs, first, last = zip(*(by_name[name] for name in sizes), strict=True)
    else:
        logprobs, (first, last) = (), _read(outputs, list(sizes.values()), ref)
    return {
        "texts": [decode_tokens(tokenizer, tokens) for tokens in answers],
        "logprobs": logprobs,
        "first": first,
        "last": last,
        "rate": options.rows / (time.perf_counter() - begun),
    }


def _read(outputs: Any, sizes: list[tuple[int, int]], ref: Any) -> tuple[list[Any], list[Any]]:
    """Read states at the end of prompt and answer from the files, which hold those before the model's last norm."""
    from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import load_hidden_states

    from curation.models import load_model

    norm = load_model(ref, dtype="float32").model.norm
    first, last = [], []
    for output, (prompt, length) in zip(outputs, sizes, strict=True):
        hidden_TD = load_hidden_states(output.kv_transfer_params["hidden_states_path"])["hidden_states"][:, 0]
        normed_TD = norm(hidden_TD.float()).detach()
        first.append(normed_TD[prompt - 1].tolist())
        last.append(normed_TD[prompt + length - 1].tolist())
    return first, last


def main() -> None:
    """Run the ways and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder; without it a model of one layer is made")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=12)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        found = answer(options.way, options)
        Path(options.folder, "found.json").write_text(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as directory:
        if options.model is None:
            options.model = _made(Path(directory, "model"))
        print(f"{'':26}{'same answers':>14}{'log-prob.':>12}{'states':>12}{'rows/s':>10}")
        base: dict[str, Any] = {}
        for way in WAYS:
            folder = Path(directory, way.replace(" ", "-"))
            folder.mkdir()
            command = [sys.executable, "-m", "benchmarks.vllm_runners", *sys.argv[1:]]
            command += ["--model", options.model, "--way", way, "--folder", str(folder)]
            ran = subprocess.run(command, capture_output=True, text=True)
            if ran.returncode:
                print(f"{way:26}failed: {ran.stderr.strip().splitlines()[-1:]}")
                continue
            found = json.loads((folder / "found.json").read_text())
            base = base or found
            print(line(way, found, base))


def line(way: str, found: dict[str, Any], base: dict[str, Any]) -> str:
    """Return one way beside the first."""
    same = [mine == its for mine, its in zip(found["texts"], base["texts"], strict=True)]

    def worst(name: str) -> float:
        if not len(found[name]):
            return float("nan")
        mine, its = (np.asarray(of[name], dtype=np.float64)[same] for of in (found, base))
        return float(np.abs(mine - its).max())

    states = max(worst("first"), worst("last"))
    return f"{way:26}{sum(same):>8} of {len(same):<3}{worst('logprobs'):>12.2g}{states:>12.2g}{found['rate']:>10.1f}"


def _made(folder: Path) -> str:
    from benchmarks.vllm_teacher import Words
    from curation import models

    vocabulary = Words().vocabulary()
    shape = {"hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    shape |= {"head_dim": 64, "intermediate_size": 384, "max_position_embeddings": 512}
    words, pattern = vocabulary.words, vocabulary.pattern
    return models.create(folder, family="qwen3", shape=shape, words=words, pattern=pattern, seed=0).base


if __name__ == "__main__":
    main()
