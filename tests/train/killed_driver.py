"""A driver that trains a student by Ray; its worker kills it after a step, if one is given.

``python killed_driver.py TASK.json``; the task is that of ``worker_group``.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import train.sft
from curation.cluster.session import local_or_cluster
from curation.config import RayConfig, SftConfig
from curation.refs import ModelRef, TableRef
from train.launch import TrainProcess, trained_in


def killing(driver: int, step: int) -> Any:
    """``train.sft._learn``, but the process ``driver`` is killed after a step."""
    learn = train.sft._learn

    def _learn(*args: Any, **how: Any) -> Any:
        import os
        import signal
        import time

        from transformers import TrainerCallback

        import train.sft

        class Killing(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
                if state.global_step == step:
                    os.kill(driver, signal.SIGKILL)
                    time.sleep(60)  # Ray ends this process

        train.sft.Progress = lambda *_: Killing()
        return learn(*args, **how)

    return _learn


def main(task: dict[str, Any]) -> None:
    """Train."""
    config = SftConfig.model_validate(task["config"])
    if "kill_at" in task:
        train.sft._learn = killing(os.getpid(), task["kill_at"])
    base, rows = ModelRef.from_json(task["base"]), TableRef.from_json(task["rows"])
    with local_or_cluster(RayConfig(num_cpus=1)):
        process = TrainProcess(config)
        with trained_in(process):
            train.sft.train_sft(base, rows, config, seed=task["seed"], output=Path(task["output"]), name="x")
        process.close()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
