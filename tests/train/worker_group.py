"""Runs ``fine_tune`` in processes of its own: a group of gloo workers, or one process that may be killed.

All of them are forks of one process that has imported what they need: an import takes longer than such a training.
"""

import multiprocessing
import os
import signal
import socket
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["train.sft"])


def start(task: dict[str, Any], num_workers: int, directory: Path) -> list[BaseProcess]:
    """Start the workers; ``task``: base, rows, config, seed, output; perhaps kill_at, a step."""
    directory.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": str(num_workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes: list[BaseProcess] = []
    for rank in range(num_workers):
        variables = {**group, "RANK": str(rank), "LOCAL_RANK": str(rank)} if num_workers > 1 else {}
        processes.append(FORKS.Process(target=_work, args=(task, variables, directory / f"stderr-{rank}"), daemon=True))
        processes[-1].start()
    return processes


def train(task: dict[str, Any], num_workers: int, directory: Path) -> None:
    """Train, all workers to the end."""
    for rank, process in enumerate(start(task, num_workers, directory)):
        process.join(timeout=300)
        assert process.exitcode == 0, (directory / f"stderr-{rank}").read_text()[-3000:]


def train_until_killed(task: dict[str, Any], num_workers: int, directory: Path, *, step: int) -> None:
    """Train until the last worker kills itself after a step; its peers are killed too, as Ray Train does."""
    processes = start(task | {"kill_at": step}, num_workers, directory)
    processes[-1].join(timeout=300)
    assert processes[-1].exitcode == -signal.SIGKILL, (directory / "stderr-0").read_text()[-3000:]
    for process in processes:
        process.kill()
        process.join()


def _work(task: dict[str, Any], variables: dict[str, str], stderr: Path) -> None:
    with stderr.open("w") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())

    import torch
    from transformers import TrainerCallback

    import train.sft
    from curation.config import SftConfig
    from curation.refs import ModelRef, TableRef
    from train.sft import fine_tune

    class Killing(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == task["kill_at"] and args.process_index == args.world_size - 1:
                os.kill(os.getpid(), signal.SIGKILL)

    os.environ |= variables
    if variables:
        torch.distributed.init_process_group("gloo")
    if "kill_at" in task:
        train.sft.Progress = lambda *_: Killing()
    base, rows = ModelRef.from_json(task["base"]), TableRef.from_json(task["rows"])
    config = SftConfig.model_validate(task["config"])
    fine_tune(base, rows, config, seed=task["seed"], output=Path(task["output"]))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
