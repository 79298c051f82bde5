"""A driver that trains a student by Ray; its worker kills it after a step, if one is given.

``python killed_driver.py TASK.json``; the task is that of ``worker_group``, with the ``method`` if it is not ``sft``,
and for ``grpo`` the ``domain`` and the table of ``examples``.
"""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from curation.cluster.session import local_or_cluster
from curation.config import DomainConfig, RayConfig
from curation.config.models import as_student_config
from curation.refs import ModelRef, TableRef
from train.launch import TrainProcess, trained_in

SEAMS = {"sft": ("fine_tune", "train.sft"), "grpo": ("_learn", "train.grpo")}
"""By method, the function that each worker runs, and the module that tells how far a training is."""


def killing(learn: Any, telling: str, driver: int, step: int) -> Any:
    """The method's function, but the process ``driver`` is killed after a step."""

    def killed(*args: Any, **how: Any) -> Any:
        import importlib
        import os
        import signal
        import time

        from transformers import TrainerCallback

        class Killing(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
                if state.global_step == step:
                    os.kill(driver, signal.SIGKILL)
                    time.sleep(60)  # Ray ends this process

        importlib.import_module(telling).Progress = lambda *_: Killing()
        return learn(*args, **how)

    return killed


def main(task: dict[str, Any]) -> None:
    """Train."""
    method = task.get("method", "sft")
    module: Any = importlib.import_module(f"train.{method}")
    config = as_student_config({"method": method, **task["config"]})
    read = {}
    if method == "grpo":
        read = {"domain": DomainConfig(name=task["domain"]), "examples": TableRef.from_json(task["examples"])}
    if "kill_at" in task:
        seam, telling = SEAMS[method]
        setattr(module, seam, killing(getattr(module, seam), telling, os.getpid(), task["kill_at"]))
    base, rows, output = ModelRef.from_json(task["base"]), TableRef.from_json(task["rows"]), Path(task["output"])
    with local_or_cluster(RayConfig(num_cpus=1)):
        process = TrainProcess(config)
        with trained_in(process):
            getattr(module, f"train_{method}")(base, rows, config, seed=task["seed"], output=output, name="x", **read)
        process.close()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
