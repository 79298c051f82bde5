"""Runs ``fine_tune`` in processes of its own: a group of gloo workers, or one process that may be killed.

As a program (``python worker_group.py TASK.json``) it is one of the workers.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any


def start(task: dict[str, Any], num_workers: int, directory: Path) -> list[subprocess.Popen[bytes]]:
    """Start the workers; ``task``: base, rows, config, seed, output; perhaps kill_at, a step, and signal."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "task.json").write_text(json.dumps(task))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": str(num_workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            [sys.executable, __file__, str(directory / "task.json")],
            env=os.environ | ({**group, "RANK": str(rank), "LOCAL_RANK": str(rank)} if num_workers > 1 else {}),
            stderr=(directory / f"stderr-{rank}").open("w"),
        )
        for rank in range(num_workers)
    ]


def train(task: dict[str, Any], num_workers: int, directory: Path) -> None:
    """Train, all workers to the end."""
    for rank, process in enumerate(start(task, num_workers, directory)):
        assert process.wait(timeout=300) == 0, (directory / f"stderr-{rank}").read_text()[-3000:]


def train_until_killed(task: dict[str, Any], num_workers: int, directory: Path, *, step: int) -> None:
    """Train until the last worker kills itself after a step; its peers are killed too, as Ray Train does."""
    processes = start(task | {"kill_at": step}, num_workers, directory)
    assert processes[-1].wait(timeout=300) == -signal.SIGKILL, (directory / "stderr-0").read_text()[-3000:]
    for process in processes:
        process.kill()
        process.wait()


def _work(task: dict[str, Any]) -> None:
    import torch
    from transformers import TrainerCallback

    import train.callbacks
    from curation.config import SftConfig
    from curation.refs import ModelRef, TableRef
    from train.sft import fine_tune

    class Killing(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == task["kill_at"] and args.process_index == args.world_size - 1:
                os.kill(os.getpid(), signal.SIGKILL)

    if "WORLD_SIZE" in os.environ:
        torch.distributed.init_process_group("gloo")
    if "kill_at" in task:
        train.sft.Progress = lambda *_: Killing()
    base, rows = ModelRef.from_json(task["base"]), TableRef.from_json(task["rows"])
    config = SftConfig.model_validate(task["config"])
    fine_tune(base, rows, config, seed=task["seed"], output=Path(task["output"]))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    _work(json.loads(Path(sys.argv[1]).read_text()))
